//! Chat templates: parsed as Jinja, and never rendered.
//!
//! What escapes from a template into Python goes by attributes with underscores (`__class__`, `__globals__`), however their names are put
//! together. A template that the parser cannot read is looked through word by word.

mod expressions;
mod names;
mod origin;
mod texts;
mod words;

use max_weights::text::{cut, shown};
use max_weights::{Diagnostic, rules};
use minijinja::machinery::{Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Longer templates are looked through word by word only. The longest of well-known models have some 20 KB.
const MAX_PARSED_BYTES: usize = 1 << 20;
/// Parts of one tag `{{ … }}`: the parser makes a tree as deep as a chain is long.
const MAX_TAG_TOKENS: usize = 1000;
/// Findings about one template.
const MAX_FINDINGS: usize = 20;
/// Characters of a tag that a finding shows.
const EVIDENCE: usize = 160;

/// What is in a template that should not.
pub(super) struct Seen {
    rule: &'static max_weights::rules::Rule,
    sentence: String,
    line: usize,
    start: usize,
    end: usize,
}

/// Looks through a template; `source` says where it is (`chat_template`), `offset` where it begins in its file if it is the file's own text.
pub(super) fn check(template: &str, source: &str, offset: Option<u64>, report: &mut dyn FnMut(Diagnostic)) {
    let mut seen = Vec::new();
    let text = tolerated(template);
    let unreadable = match readable(&text) {
        Err(why) => Some(why),
        Ok(()) => match parse(&text, "template", SyntaxConfig::default()) {
            Ok(parsed) => {
                let is_whole = expressions::look(&parsed, &mut seen);
                (!is_whole).then(|| "it assembles more strings than are followed".to_owned())
            }
            Err(error) => Some(format!(
                "line {}: {}",
                error.line().unwrap_or(1),
                error.detail().unwrap_or("it is not a Jinja template")
            )),
        },
    };
    // Python's texts have escapes that the parser does not know: characters by their names, and lines that go on.
    if unreadable.is_none() && (template.contains("\\N{") || template.contains("\\\n")) {
        words::look(template, &mut seen);
    }
    if let Some(why) = unreadable {
        words::look(template, &mut seen);
        let sentence = format!("{source} cannot be parsed: {}; only its words were looked at", shown(&why));
        report(Diagnostic::new(rules::REPOSITORY_TEMPLATE_UNREADABLE, sentence));
    }
    said(template, source, offset, seen, report);
}

/// Looks through the words of what may be a template among other things.
pub(super) fn check_words(text: &str, source: &str, report: &mut dyn FnMut(Diagnostic)) {
    let mut seen = Vec::new();
    words::look(text, &mut seen);
    said(text, source, None, seen, report);
}

fn said(template: &str, source: &str, offset: Option<u64>, mut seen: Vec<Seen>, report: &mut dyn FnMut(Diagnostic)) {
    seen.sort_by_key(|seen| (seen.start, seen.end));
    seen.dedup_by(|a, b| a.rule == b.rule && a.sentence == b.sentence && a.line == b.line);
    for found in seen.into_iter().take(MAX_FINDINGS) {
        let sentence = format!("{source}, line {}: {}", found.line, found.sentence);
        let stands = template.get(found.start..found.end.max(found.start)).unwrap_or_default();
        let mut finding = Diagnostic::new(found.rule, sentence);
        if !stands.is_empty() {
            finding = finding.evidence(cut(stands, EVIDENCE));
        }
        finding.offset = offset.map(|offset| offset + found.start as u64);
        report(finding);
    }
}

/// Whether the parser may be given this: it goes deep with what is long.
fn readable(text: &str) -> Result<(), String> {
    if text.len() > MAX_PARSED_BYTES {
        return Err(format!("it has {} bytes", text.len()));
    }
    let mut in_tag = 0_usize;
    for token in tokenize(text, false, SyntaxConfig::default()) {
        match token {
            Ok((Token::VariableStart | Token::BlockStart, _)) => in_tag = 0,
            Ok(_) => in_tag += 1,
            Err(error) => return Err(error.detail().unwrap_or("it is not a Jinja template").to_owned()),
        }
        if in_tag > MAX_TAG_TOKENS {
            return Err(format!("one tag has more than {MAX_TAG_TOKENS} parts"));
        }
    }
    Ok(())
}

/// The template with tags of Transformers' own that the parser does not know, `{% generation %}`, in the place of which others of the same
/// length stand.
fn tolerated(template: &str) -> String {
    let mut text = template.to_owned();
    for (tag, other) in [("generation", "if true   "), ("endgeneration", "endif        ")] {
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.find(tag)).map(|at| at + from) {
            from = at + tag.len();
            let before = text.get(..at).unwrap_or_default().trim_end().trim_end_matches(['-', '+']);
            let after = text.get(from..).unwrap_or_default().trim_start().trim_start_matches(['-', '+']);
            if before.ends_with("{%") && after.starts_with("%}") {
                text.replace_range(at..from, other);
            }
        }
    }
    text
}
