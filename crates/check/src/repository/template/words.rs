//! A template that is not parsed: its tags are looked through word by word, so that breaking the parser hides nothing.

use max_weights::rules;

use super::{Seen, names};

/// Bytes of one tag that are looked at together; a longer one is looked at in parts that overlap.
const PART: usize = 4096;

/// Looks through the tags of a template.
pub(super) fn look(template: &str, seen: &mut Vec<Seen>) {
    let (mut at, mut line) = (0, 1);
    while let Some((start, len)) = next_tag(template, at) {
        line += lines(template.get(at..start).unwrap_or_default());
        let tag = template.get(start..start + len).unwrap_or_default();
        let mut from = 0;
        while let Some(part) = tag.get(from..) {
            let mut end = part.len().min(PART);
            while !part.is_char_boundary(end) {
                end -= 1;
            }
            if let Some(sentence) = of_tag(part.get(..end).unwrap_or_default()) {
                let rule = if sentence.starts_with("it would") {
                    rules::REPOSITORY_TEMPLATE_INCLUDE
                } else {
                    rules::REPOSITORY_TEMPLATE_ESCAPE
                };
                seen.push(Seen { rule, sentence, line, start, end: start + len });
                break;
            }
            if end == part.len() {
                break;
            }
            from += end / 2;
            while !tag.is_char_boundary(from) {
                from += 1;
            }
        }
        line += lines(tag);
        at = start + len;
    }
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// The next tag from here on: where it begins, and its length. One that is not closed goes to the end.
fn next_tag(template: &str, from: usize) -> Option<(usize, usize)> {
    let rest = template.get(from..)?;
    let opens = |at: &usize| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%'));
    let start = rest.match_indices('{').map(|(at, _)| at).find(opens)?;
    let tag = rest.get(start..)?;
    let end = if tag.starts_with("{{") { "}}" } else { "%}" };
    let len = tag.find(end).map_or(tag.len(), |at| at + end.len());
    Some((from + start, len))
}

fn of_tag(tag: &str) -> Option<String> {
    // Escapes are undone, and then texts that stand beside each other are put together.
    let plain = decoded(tag);
    let mut joined: String = plain.chars().filter(|c| !c.is_whitespace()).collect();
    for glue in ["'~'", "\"~\"", "'~\"", "\"~'", "'+'", "\"+\"", "'+\"", "\"+'", "''", "\"\"", "','", "\",\""] {
        joined = joined.replace(glue, "");
    }
    for text in [plain.as_str(), joined.as_str()] {
        if let Some(inside) = names::inside_anywhere(text) {
            return Some(format!("it has the word {inside}, a Python internal"));
        }
    }
    let word =
        plain.trim_start_matches(['{', '%', '-', '+', ' ', '\n', '\t']).split(|c: char| !c.is_alphanumeric()).next();
    if let Some(word @ ("import" | "include" | "extends" | "from")) = word {
        return Some(format!("it would {word} another template"));
    }
    if let Some(frame) = names::frame_anywhere(&joined) {
        return Some(format!("it has the word {frame}, a Python internal"));
    }
    if plain.contains("\\N{") {
        return Some("it has a character by its name, which hides what it says".to_owned());
    }
    let attribute =
        joined.contains("|attr(") || joined.contains(".__") || joined.contains("['__") || joined.contains("[\"__");
    attribute.then(|| "it takes an attribute by a name with underscores, or by one that is computed".to_owned())
}

/// The text with `\x5f`, `\u005f` and `\137` as the characters that they stand for.
fn decoded(text: &str) -> String {
    let text = text.replace("\\\n", "").replace("\\N{LOW LINE}", "_").replace("\\N{low line}", "_");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        out.push_str(rest.get(..at).unwrap_or_default());
        let after = rest.get(at + 1..).unwrap_or_default();
        let number = |skip: usize, len: usize, base: u32| {
            let digits = after.get(skip..skip + len)?;
            let code = u32::from_str_radix(digits, base).ok().and_then(char::from_u32)?;
            Some((code, skip + len))
        };
        let found = match after.bytes().next() {
            Some(b'x') => number(1, 2, 16),
            Some(b'u') => number(1, 4, 16),
            Some(b'U') => number(1, 8, 16),
            Some(b'0'..=b'7') => number(0, 3, 8),
            _ => None,
        };
        let (c, len) = found.unwrap_or(('\\', 0));
        out.push(c);
        rest = after.get(len..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}
