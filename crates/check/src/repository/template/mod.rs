//! Chat templates: their tags are looked through token by token, and nothing is rendered.
//!
//! A template escapes into Python through attributes with underscores (`__class__`, `__globals__`), however their names are composed. A name
//! that a template computes from its own texts is not evaluated: it may be any.

mod limits;
mod names;
mod origin;
mod tokens;

use max_weights::Diagnostic;
use max_weights::rules::{self, Rule};
use max_weights::text::cut;

use origin::Origins;
use tokens::{Tag, TemplateToken, decoded, tags};

/// Longer templates are looked through for names alone. The longest of well-known models have some 20 KB.
const MAX_BYTES: usize = 1 << 20;
/// Names may lie over the ends of windows.
const OVERLAP: usize = 4 << 10;
/// Tokens of one tag `{{ … }}` that are looked at together.
const MAX_TAG_TOKENS: usize = 1000;
/// Characters of a tag that a finding shows.
const EVIDENCE: usize = 160;
/// Tags that extend to a matching end tag.
const BLOCKS: [&str; 11] =
    ["autoescape", "block", "call", "filter", "for", "generation", "if", "macro", "set", "trans", "with"];
/// Tags without an end tag, or between two others.
const ALONE: [&str; 11] =
    ["break", "continue", "debug", "do", "elif", "else", "extends", "from", "import", "include", "pluralize"];

/// What is in a template that should not.
struct TemplateFault {
    rule: &'static Rule,
    sentence: String,
    line: usize,
    start: usize,
    end: usize,
}

/// Looks through a template; `source` says where it is (`chat_template`), `offset` where it begins in its file if it is the file's own text.
pub(super) fn check(template: &str, source: &str, offset: Option<u64>, report: &mut dyn FnMut(Diagnostic)) {
    if let Some(why) = look(template, source, offset, report) {
        let sentence = format!("{source} is not a whole template: {why}; its tags were looked at one by one");
        report(Diagnostic::new(rules::REPOSITORY_TEMPLATE_UNREADABLE, sentence));
    }
}

/// Examines the tags of a text that may contain a template.
pub(super) fn check_tags(text: &str, source: &str, report: &mut dyn FnMut(Diagnostic)) {
    let _ = look(text, source, None, report);
}

/// Says what is in the tags of a template, and returns why it is not a whole one, if it is not.
fn look(template: &str, source: &str, offset: Option<u64>, report: &mut dyn FnMut(Diagnostic)) -> Option<String> {
    if template.len() > MAX_BYTES {
        long(template, source, report);
        return Some(format!("it has {} bytes", template.len()));
    }
    let (tags, unended) = tags(template);
    let mut origins = Origins::default();
    let is_long = tags.iter().any(|tag| tag.tokens.len() > MAX_TAG_TOKENS);
    let is_known = is_long || origins.learn(&tags);
    let mut broken = Vec::new();
    for tag in &tags {
        limits::look(tag, &origins, &mut broken);
    }
    broken.sort_by_key(|broken| (broken.start, broken.end));
    broken.dedup_by(|a, b| a.rule == b.rule && a.sentence == b.sentence && a.line == b.line);
    for broken in broken {
        let mut finding = Diagnostic::new(broken.rule, format!("{source}, line {}: {}", broken.line, broken.sentence));
        let text = template.get(broken.start..broken.end).unwrap_or_default();
        finding.offset = offset.map(|offset| offset + broken.start as u64);
        report(if text.is_empty() { finding } else { finding.evidence(cut(text, EVIDENCE)) });
    }
    match unended {
        _ if is_long => Some(format!("one tag has more than {MAX_TAG_TOKENS} parts")),
        Some(line) => Some(format!("line {line}: a tag, or a string in it, has no end")),
        None if !is_known => Some("its names stand for one another in too many ways".to_owned()),
        None => unbalanced(&tags),
    }
}

/// Searches a template that is too long for more for names of Python's internals, however they are composed.
fn long(template: &str, source: &str, report: &mut dyn FnMut(Diagnostic)) {
    let mut from = 0;
    while let Some(rest) = template.get(from..).filter(|rest| !rest.is_empty()) {
        let window = rest.get(..super::boundary(rest, MAX_BYTES)).unwrap_or(rest);
        let joins = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '~' | '+' | ',');
        let joined = decoded(window).replace(joins, "");
        if let Some(inside) = names::inside_anywhere(&joined) {
            let sentence = format!("{source}: it has the word {inside}, a Python internal");
            return report(Diagnostic::new(rules::REPOSITORY_TEMPLATE_ESCAPE, sentence));
        }
        if window.len() == rest.len() {
            return;
        }
        // The next window begins before the end of this one.
        from = super::boundary(template, from + window.len() - OVERLAP);
    }
}

/// What is wrong with the order of the tags.
fn unbalanced(tags: &[Tag<'_>]) -> Option<String> {
    let mut open = Vec::new();
    for tag in tags.iter().filter(|tag| tag.is_block) {
        let Some(first) = tag.tokens.first() else { continue };
        let TemplateToken::Name(word) = first.token else {
            return Some(format!("line {}: a tag has no name", first.line));
        };
        let is_set = word == "set" && tag.tokens.iter().any(|placed| origin::is(placed, "="));
        if BLOCKS.contains(&word) {
            open.extend((!is_set).then_some(word));
        } else if let Some(ended) = word.strip_prefix("end") {
            if open.pop() != Some(ended) {
                return Some(format!("line {}: nothing ends here", first.line));
            }
        } else if !ALONE.contains(&word) {
            return Some(format!("line {}: there is no such tag", first.line));
        }
    }
    open.last().map(|word| format!("the block {word} has no end"))
}
