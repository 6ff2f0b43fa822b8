//! The text of a program as Python reads it: its encoding, and its ends of lines, which hide what follows from other readers.

/// Encodings in which ASCII is ASCII, so that what the program says is seen without decoding it.
const PLAIN: [&str; 28] = [
    "ascii",
    "us-ascii",
    "utf-8",
    "utf8",
    "utf-8-sig",
    "latin-1",
    "latin1",
    "iso-8859-1",
    "iso8859-1",
    "iso-8859-15",
    "iso8859-15",
    "l1",
    "cp1250",
    "cp1251",
    "cp1252",
    "windows-1250",
    "windows-1251",
    "windows-1252",
    "koi8-r",
    "koi8-u",
    "gbk",
    "gb2312",
    "gb18030",
    "cp936",
    "euc-jp",
    "euc-kr",
    "big5",
    "cp65001",
];

/// A program's text.
pub(super) struct Source {
    /// With `\n` at the end of each line and no bytes of 0.
    pub(super) text: String,
    /// The encoding that it declares, if that hides what it says.
    pub(super) hidden_by: Option<String>,
    /// Whether it has bytes of 0, at which versions of Python differ.
    pub(super) has_zeros: bool,
}

impl Source {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let hidden_by = declared(bytes).filter(|name| !PLAIN.contains(&name.as_str()));
        let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        let has_zeros = text.contains('\0');
        // A lone \r ends a line for Python, and a comment with it; so does a form feed count as a space.
        let text = text.replace("\r\n", "\n").replace('\r', "\n").replace(['\0', '\x0c'], " ");
        Self { text, hidden_by, has_zeros }
    }
}

/// The encoding of a `coding:` comment in the first two lines.
fn declared(bytes: &[u8]) -> Option<String> {
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()).take(2);
    for line in lines {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line: String = line.iter().map(|byte| char::from(*byte)).collect();
        let Some(comment) = line.trim_start_matches([' ', '\t', '\x0c']).strip_prefix('#') else { continue };
        for (at, word) in comment.match_indices("coding") {
            let after = comment.get(at + word.len()..).unwrap_or_default();
            let Some(name) = after.strip_prefix([':', '=']) else { continue };
            let name = name.trim_start_matches([' ', '\t']);
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            let name: String = name.chars().take_while(|c| is_part(*c)).collect();
            if !name.is_empty() {
                return Some(name.to_ascii_lowercase().replace('_', "-"));
            }
        }
    }
    None
}
