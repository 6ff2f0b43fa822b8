//! Codes out of strings of bits.

use super::plan::CodeForm;

/// One code of a string whose words are every `stride`th from the word `first` on.
#[inline]
pub(super) fn code(
    words: &[[u8; 4]],
    (first, stride): (usize, usize),
    form: CodeForm,
    bits: usize,
    index: usize,
) -> u8 {
    let (word, shift) = match form {
        CodeForm::Dense => (index * bits / 32, index * bits % 32),
        CodeForm::Padded => (index / (32 / bits), index % (32 / bits) * bits),
    };
    let at = |word: usize| words.get(first + word * stride).map_or(0, |word| u64::from(u32::from_le_bytes(*word)));
    let next = if shift + bits > 32 { at(word + 1) } else { 0 };
    ((at(word) | next << 32) >> shift) as u8 & mask(bits)
}

/// The bits that a code may have.
pub(super) fn mask(bits: usize) -> u8 {
    u8::MAX >> (8 - bits)
}

/// Codes from `start` on, a multiple of eight, of a string that begins with the first byte.
pub(in crate::quant) fn unpack(string: &[u8], form: CodeForm, bits: usize, start: usize, codes: &mut [u8]) {
    if form == CodeForm::Padded {
        let (words, _) = string.as_chunks();
        for (index, to) in (start..).zip(codes) {
            *to = code(words, (0, 1), form, bits, index);
        }
        return;
    }
    let bytes = string.get(start / 8 * bits..).unwrap_or_default();
    match bits {
        2 => unpack_dense::<2>(bytes, codes),
        3 => unpack_dense::<3>(bytes, codes),
        4 => unpack_dense::<4>(bytes, codes),
        5 => unpack_dense::<5>(bytes, codes),
        6 => unpack_dense::<6>(bytes, codes),
        7 => unpack_dense::<7>(bytes, codes),
        _ => unpack_dense::<8>(bytes, codes),
    }
}

/// Eight codes take as many bytes as a code has bits.
fn unpack_dense<const BITS: usize>(bytes: &[u8], codes: &mut [u8]) {
    let (eights, rest) = codes.as_chunks_mut::<8>();
    let (groups, last) = bytes.as_chunks::<BITS>();
    for (packed, codes) in groups.iter().zip(eights.iter_mut()) {
        *codes = eight::<BITS>(packed);
    }
    if !rest.is_empty() {
        let mut packed = [0; BITS];
        let left = groups.get(eights.len()).map_or(last, <[u8; BITS]>::as_slice);
        packed[..left.len()].copy_from_slice(left);
        rest.copy_from_slice(&eight::<BITS>(&packed)[..rest.len()]);
    }
}

/// Eight codes, each expanded to a byte: in halves, quarters, eighths.
#[inline]
fn eight<const BITS: usize>(packed: &[u8; BITS]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..BITS].copy_from_slice(packed);
    let mut word = u64::from_le_bytes(word);
    for (codes, every) in [(4, 0x0000_0000_0000_0001_u64), (2, 0x0000_0001_0000_0001), (1, 0x0001_0001_0001_0001)] {
        let low = every * ((1 << (codes * BITS)) - 1);
        word = (word & low) | (word & (low << (codes * BITS))) << (codes * (8 - BITS));
    }
    word.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_at_once_are_those_one_by_one() {
        let string: Vec<u8> = (0..160u32).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let (words, _) = string.as_chunks::<4>();
        for bits in 2..=8 {
            for form in [CodeForm::Dense, CodeForm::Padded] {
                for (start, count) in [(0, 600), (8, 33), (64, 7), (512, 1), (16, 0)] {
                    let mut codes = vec![0; count];
                    unpack(&string, form, bits, start, &mut codes);
                    let one_by_one: Vec<u8> =
                        (start..start + count).map(|index| code(words, (0, 1), form, bits, index)).collect();
                    assert_eq!(codes, one_by_one, "{bits} bits, {form:?}, from {start}");
                }
            }
        }
    }
}
