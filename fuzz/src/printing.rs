//! The characters that may reach a terminal or a page: an independent list, so that the library is not compared with itself.

use max_weights::Diagnostic;
use max_weights::error::MAX_FINDINGS;

/// Characters that steer what is printed, or are not seen: Unicode's controls (Cc), formats (Cf: directions, joiners, tags), separators of
/// lines and paragraphs, and what else is blank in most fonts.
const UNSAFE: [(u32, u32); 26] = [
    (0x00, 0x1f),
    (0x7f, 0x9f),
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0xe000, 0xf8ff),
    (0xfeff, 0xfeff),
    (0xfff0, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe007f),
    (0xf0000, 0x10_ffff),
    (0xfdd0, 0xfdef),
    (0xfffe, 0xffff),
    (0x1fffe, 0x1ffff),
];
/// The maximum length of a message.
const MAX: usize = 4000;

fn is_unsafe(c: char) -> bool {
    UNSAFE.iter().any(|(first, last)| (*first..=*last).contains(&u32::from(c)))
}

/// True for a text that is always displayed unchanged.
pub fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_graphic() || c == ' ' || c.is_alphabetic())
}

/// Nothing in the text steers the terminal or hides; lines are ours to end, if `lines`.
pub fn check_text(text: &str, lines: bool) {
    let found = text.chars().find(|c| is_unsafe(*c) && !(lines && *c == '\n'));
    assert!(found.is_none(), "{:?} in {text:?}", found.unwrap_or_default());
}

/// A message about a hostile file is short, of one line, and holds no character that a terminal obeys.
pub fn check_message(message: &str) {
    assert!(message.len() <= MAX, "a message of {} bytes: {message}", message.len());
    check_text(message, false);
}

/// Nothing but our own tags, with our own attributes: no name can bring one in.
pub fn check_html(html: &str) {
    check_text(html, false);
    let tags = ["div", "details", "summary", "span"];
    for tag in tags {
        let opened = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "<{tag}> in {html}");
    }
    for at in html.match_indices('<').map(|(at, _)| at + 1) {
        let tag = &html[at..];
        let tag = tag[..tag.find('>').expect("the end of a tag")].trim_start_matches('/');
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(tags.contains(&name), "<{tag}> in {html}");
        let attributes = attributes.trim_start_matches("open").trim_start();
        let ours =
            attributes.is_empty() || (attributes.starts_with("class=\"") && attributes.matches('"').count() == 2);
        assert!(ours, "<{tag}> in {html}");
    }
}

/// Of no rule are more findings kept than the limit.
pub fn check_bounded(findings: &[Diagnostic]) {
    for finding in findings {
        let same = findings.iter().filter(|other| other.rule == finding.rule).count();
        assert!(same <= MAX_FINDINGS + 1, "{same} findings of {}", finding.rule);
    }
}
