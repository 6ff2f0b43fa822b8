//! Base64 as Python decodes it, in which payloads are written.

/// The bytes that a string spells in either alphabet. Other characters are passed over, as Python does: a strict decoder would see less than a loader.
pub(super) fn decoded(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for digit in text.iter().filter_map(|byte| digit(*byte)) {
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The value of a character, if it belongs to one of the alphabets.
pub(super) fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn base64_is_read_as_python_reads_it() {
        assert_eq!(decoded(b"aGVs\nbG8="), b"hello");
        assert_eq!(decoded(b"aGVsbG8gd29ybGQ"), b"hello world");
        assert_eq!(decoded(b"!aG.Vs"), b"hel");
        assert_eq!(decoded(b"!"), b"");
    }
}
