//! JSON in which all characters that are not plainly printable are escaped. It is as safe to display as text is. No reader takes a character
//! for the end of a line, as Python's `splitlines` does with U+0085 and U+2028.

use std::fmt::Write as _;
use std::io::{self, Write};

use max_weights::text::printable;
use serde::Serialize;

/// The one control character of ASCII that JSON has without an escape.
const DELETE: char = '\u{7f}';

/// Writes the object in lines, and an end of line.
pub(crate) fn write_pretty(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(Escaping(&mut *out), value)?;
    out.write_all(b"\n")
}

/// How many bytes the object has in one line.
pub(super) fn len(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |text| json_escaped(&text).len() + 1)
}

/// What is written has to be whole characters, as serde_json writes them. Beyond ASCII they are in texts only, where each may have an escape.
struct Escaping<'a>(&'a mut dyn Write);

impl Write for Escaping<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().all(|byte| byte.is_ascii() && char::from(*byte) != DELETE) {
            return self.0.write(bytes);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => self.0.write_all(json_escaped(text).as_bytes()).map(|()| bytes.len()),
            Err(_) => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The output of serde_json, with escapes for all characters that are not plainly printable.
pub fn json_escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let mut bytes = [0; 4];
        let plain = &*c.encode_utf8(&mut bytes);
        if c != DELETE && (c.is_ascii() || printable(plain) == plain) {
            safe.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printed_has_an_escape_and_is_read_back() {
        let text = "\"重\u{202e}\u{85}\u{2028}\u{7f}\u{e0001}\n\\";
        let mut out = Vec::new();
        write_pretty(&text, &mut out).expect("memory takes everything");
        let written = String::from_utf8(out).expect("UTF-8");
        assert_eq!(written, "\"\\\"重\\u202e\\u0085\\u2028\\u007f\\udb40\\udc01\\n\\\\\"\n");
        assert_eq!(serde_json::from_str::<String>(&written).expect("JSON"), text);
    }
}
