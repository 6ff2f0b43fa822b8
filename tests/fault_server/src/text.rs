//! The forms of text that the protocols need: percent-encoding, XML, JSON, dates.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Decodes a percent-encoded text; `None` if the result is no text.
pub(crate) fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// Encodes a path or a value for a URL; `/` stays.
pub(crate) fn encode_percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Escapes text for XML.
pub(crate) fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The contents of each element of this name that has no elements inside.
pub(crate) fn xml_fields(xml: &str, name: &str) -> Vec<String> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let pieces = xml.split(start.as_str()).skip(1).filter_map(|piece| piece.split(end.as_str()).next());
    let unescaped = pieces.map(|text| text.trim().replace("&quot;", "\"").replace("&#34;", "\"").replace("&lt;", "<"));
    unescaped.map(|text| text.replace("&gt;", ">").replace("&amp;", "&")).collect()
}

/// Text as JSON.
pub(crate) fn json_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Year, month, day, hour, minute, second and the day of the week (0 is Thursday, as the first of January 1970 was).
fn calendar(time: SystemTime) -> (u64, u64, u64, u64, u64, u64, u64) {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Counted from the first of March of the year 0, so that a leap day is the last of its year.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    (year, month, day, second / 3600, second / 60 % 60, second % 60, days % 7)
}

/// A time as HTTP writes it: `Thu, 01 Jan 1970 00:00:00 GMT`.
pub(crate) fn http_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day, hour, minute, second, of_week) = calendar(time);
    let (name, month) = (DAYS[of_week as usize], MONTHS[month as usize - 1]);
    format!("{name}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

/// A time as XML of S3 has it: `1970-01-01T00:00:00.000Z`.
pub(crate) fn iso_date(time: SystemTime) -> String {
    let (year, month, day, hour, minute, second, _) = calendar(time);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// Bytes as a gzip file, stored and not compressed.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut zipped = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut blocks = bytes.chunks(0xffff).peekable();
    if bytes.is_empty() {
        zipped.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        zipped.push(u8::from(blocks.peek().is_none()));
        zipped.extend(length.to_le_bytes());
        zipped.extend((!length).to_le_bytes());
        zipped.extend(block);
    }
    zipped.extend(crc32(bytes).to_le_bytes());
    zipped.extend((bytes.len() as u32).to_le_bytes());
    zipped
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(http_date(at(0)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(at(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso_date(at(1_709_210_096)), "2024-02-29T12:34:56.000Z");
    }

    #[test]
    fn percent_encoding_goes_both_ways() {
        let name = "a b/ä?%2F\u{0}#&=+";
        assert_eq!(decode_percent(&encode_percent(name)).as_deref(), Some(name));
        assert_eq!(decode_percent("%2"), None);
        assert_eq!(decode_percent("%zz"), None);
        assert_eq!(decode_percent("%ff"), None);
    }

    #[test]
    fn xml_and_json_are_escaped() {
        assert_eq!(xml_fields(&format!("<K>{}</K><K>b</K>", escape_xml("<&\">")), "K"), ["<&\">", "b"]);
        assert_eq!(json_text("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
    }

    #[test]
    fn sums_of_gzip_are_right() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let zipped = gzip(&vec![7; 70_000]);
        assert_eq!(zipped.len(), 10 + 5 + 65_535 + 5 + 4_465 + 8);
    }
}
