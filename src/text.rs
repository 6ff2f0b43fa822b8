//! Text of files and paths, made safe to print: this file alone decides what reaches a terminal or a page.
//!
//! The maker of a file chooses its names, keys, values and paths. Printed raw, escape sequences would steer the terminal, a right-to-left override
//! would disguise a name, and a name of megabytes would bury the message. All text for people (messages, trees, `repr`) passes through here; values
//! that a program reads stay unchanged. Text that is already safe is not changed again.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// The most characters of a name in a message.
const SHOWN: usize = 200;

/// The text with Python's escapes for each character without a visible sign. These are control characters, line ends, changes of direction and other
/// format characters, separators except the space, and unassigned code points.
pub fn printable(text: &str) -> Cow<'_, str> {
    cut(text, usize::MAX)
}

/// Names that begin a sentence in lower case.
const NAMES: [&str; 3] = ["safetensors", "torch", "transformers"];

/// The text with a capital first letter, unless its first word is code or a name.
pub fn sentence(text: &str) -> Cow<'_, str> {
    let word = text.split([' ', ',', ';', ':']).next().unwrap_or_default();
    if word.is_empty() || NAMES.contains(&word) || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}{}", text[..1].to_ascii_uppercase(), &text[1..]))
}

/// The text as in [`printable`], cut to at most `most` characters, including escapes; `…` stands for the rest.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most && text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let (mut safe, mut width) = (String::new(), 0);
    for c in text.chars() {
        let end = safe.len();
        if is_printable(c) {
            safe.push(c);
        } else {
            push_escaped(u32::from(c), &mut safe);
        }
        width += safe[end..].chars().count();
        if width > most {
            safe.truncate(end);
            safe.push('…');
            return Cow::Owned(safe);
        }
    }
    if safe == text { Cow::Borrowed(text) } else { Cow::Owned(safe) }
}

/// A name, key or value, quoted for a message.
pub fn escape(text: &str) -> String {
    cut(text, SHOWN).into_owned()
}

/// A path for a message. Bytes that are not UTF-8 are escaped, so that different files do not look alike.
pub fn path(path: &Path) -> String {
    let mut safe = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        safe.push_str(&printable(chunk.valid()));
        chunk.invalid().iter().for_each(|byte| push_escaped(u32::from(*byte), &mut safe));
    }
    safe
}

/// The text as in [`printable`], in HTML.
pub fn html(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A readable shape: `[384, 384]`. It may have many dimensions, of which the first are shown.
pub fn shape(shape: &[u64]) -> String {
    const SHOWN: usize = 8;
    let mut dims: Vec<String> = shape.iter().take(SHOWN).map(u64::to_string).collect();
    if shape.len() > SHOWN {
        dims.push("…".into());
    }
    format!("[{}]", dims.join(", "))
}

/// The first of several names, and the number of the others: `a, b and 3 more`. There may be a hundred thousand.
pub fn listed<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    const LISTED: usize = 8;
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(LISTED).map(|name| name.as_ref().to_owned()).collect();
    let more = names.count();
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

/// `1 weight`, `2,048 weights`.
pub fn plural(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A count in groups of three digits: `46,080`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A readable size, in powers of ten: `90.9 MB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        if value < 999.95 || unit == "TB" {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    String::new()
}

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // The standard library does not expose its table of printable characters, but escapes by it. It also escapes a combining mark, unless a
    // character precedes it.
    let mut both = String::from("a");
    both.push(c);
    both.escape_debug().nth(1) == Some(c)
}

fn push_escaped(code: u32, safe: &mut String) {
    // Writing to a string cannot fail.
    let _ = match code {
        0x09 => write!(safe, "\\t"),
        0x0a => write!(safe, "\\n"),
        0x0d => write!(safe, "\\r"),
        0..=0xff => write!(safe, "\\x{code:02x}"),
        0x100..=0xffff => write!(safe, "\\u{code:04x}"),
        _ => write!(safe, "\\U{code:08x}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        for (raw, safe) in [
            ("\u{1b}]0;owned\u{7}", "\\x1b]0;owned\\x07"),
            ("a\u{9b}31mb", "a\\x9b31mb"),
            ("line\nline\r\t\0", "line\\nline\\r\\t\\x00"),
            ("\u{7f}\u{85}\u{ad}", "\\x7f\\x85\\xad"),
            ("x\u{202e}y\u{2066}z", "x\\u202ey\\u2066z"),
            ("\u{200b}\u{200e}\u{feff}\u{61c}", "\\u200b\\u200e\\ufeff\\u061c"),
            ("\u{2028}\u{2029}\u{a0}", "\\u2028\\u2029\\xa0"),
            ("\u{e0041}\u{e000}", "\\U000e0041\\ue000"),
        ] {
            assert_eq!(printable(raw), safe);
        }
    }

    #[test]
    fn a_text_that_is_cut_is_short_when_it_is_escaped() {
        assert_eq!(cut(&"\u{202e}".repeat(1000), 20), "\\u202e\\u202e\\u202e…");
        assert_eq!(cut("12345", 5), "12345");
        assert_eq!(cut("123456", 5), "12345…");
    }

    #[test]
    fn what_is_printable_in_any_script_stays_and_is_not_copied() {
        for text in ["", "a 'b' \\ \"c\"", "Größe", "नमस्ते", "é e\u{301}", "\u{301}", "层.权重", "тензор", "שם", "😀"]
        {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn what_is_safe_is_not_changed_again() {
        let once = printable("a\n\u{202e}\\").into_owned();
        assert_eq!(printable(&once), once);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("ééé", 2), "éé…");
        assert_eq!(cut("éé", 2), "éé");
        assert_eq!(cut("\n\n\n", 3), "\\n…");
        assert_eq!(escape(&"x".repeat(1 << 20)).chars().count(), SHOWN + 1);
    }

    #[test]
    #[cfg(unix)]
    fn bytes_of_a_path_that_are_not_utf8_are_escaped() {
        use std::os::unix::ffi::OsStrExt;
        let raw = std::ffi::OsStr::from_bytes(b"a\xffb\xe2\x80\xae/\x1bc");
        assert_eq!(path(Path::new(raw)), "a\\xffb\\u202e/\\x1bc");
    }

    #[test]
    fn html_has_no_markup_of_the_text() {
        assert_eq!(html("<b a=\"1\">&\u{1b}"), "&lt;b a=&quot;1&quot;&gt;&amp;\\x1b");
    }
}
