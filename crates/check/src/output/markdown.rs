//! The report as Markdown, for the summaries of CI jobs and for comments.

use std::io::{self, Write};

use max_weights::text;

use super::summary::{Summary, seconds};
use super::{Places, Settings, place, word, worst_first};
use crate::finding::Finding;
use crate::report::{FileReport, Report, Verdict};

/// GitHub takes so many bytes for the summary of a step.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// With less room than this there is no page.
pub(super) const LEAST_BYTES: usize = 16 << 10;
/// Room for what ends the page.
const END: usize = 2 << 10;
/// Characters of texts in the table.
const MAX_TEXT: usize = 400;
/// Files that are listed as not looked into.
const MAX_LISTED: usize = 20;

/// Writes a page of at most so many bytes.
pub(super) fn write(report: &Report, settings: &Settings, most: usize, out: &mut dyn Write) -> io::Result<()> {
    let summary = Summary::new(report);
    let mut places = Places::new(&settings.root);
    let mut page = String::from("## max-weights validate\n\n");
    for (verdict, sentence) in summary.verdicts(report) {
        let sign = match verdict {
            Verdict::Malicious => "⛔",
            Verdict::NeedsTrust | Verdict::Faulty => "⚠️",
            Verdict::Broken => "❌",
            Verdict::Unknown => "❔",
            Verdict::Accepted => "☑️",
            Verdict::Clean => "✅",
        };
        page.push_str(&format!("- {sign} {}\n", prose(&sentence)));
    }
    let files = text::plural(report.files.len() as u64, "file");
    let size = text::size(report.bytes());
    page.push_str(&format!("\n{files}, {size}, in {} at the level {}: ", seconds(report), report.level.name()));
    page.push_str(&format!("{}.\n\n", prose(&summary.counts(report, settings))));
    page.push_str("| kind | files | size | looked into |\n|---|---:|---:|---|\n");
    for kind in summary.kinds.iter().take(MAX_LISTED) {
        let depths = super::summary::DEPTHS.iter().zip(&kind.depths).filter(|(_, count)| **count > 0);
        let depths: Vec<_> =
            depths.map(|(depth, count)| format!("{} {}", depth.name(), text::grouped(*count))).collect();
        let (files, size) = (text::grouped(kind.files), text::size(kind.bytes));
        page.push_str(&format!("| {} | {files} | {size} | {} |\n", prose(&text::shown(kind.kind)), depths.join(", ")));
    }
    listed("Not looked at", &summary.not_looked_at, &mut places, &mut page);
    listed("Only recognised: nothing is known about the contents", &summary.recognised, &mut places, &mut page);
    if !report.findings.is_empty() {
        page.push_str("\n| | rule | file | finding |\n|---|---|---|---|\n");
    }
    let mut written = 0;
    for finding in worst_first(&report.findings).into_iter().filter_map(|at| report.findings.get(at)) {
        let row = row(finding, places.name(&finding.path));
        if page.len() + row.len() + END > most {
            break;
        }
        page.push_str(&row);
        written += 1;
    }
    if let Some(more) = report.findings.len().checked_sub(written).filter(|more| *more > 0) {
        page.push_str(&format!("\n{} left out: there is no more room here.\n", text::plural(more as u64, "finding")));
    }
    out.write_all(page.as_bytes())
}

fn row(finding: &Finding, path: &str) -> String {
    let rule = finding.rule;
    let mut text = prose(&text::cut(&finding.message, MAX_TEXT));
    if let Some(evidence) = &finding.evidence {
        text.push_str(&format!("<br>{}", code(&text::cut(evidence, MAX_TEXT))));
    }
    text.push_str(&format!("<br><em>{}</em>", prose(&text::cut(&finding.help, MAX_TEXT))));
    let inside = place::inside(finding);
    let inside = if inside.is_empty() { String::new() } else { format!("<br>{}", code(&text::cut(&inside, MAX_TEXT))) };
    let path = code(&text::cut(path, MAX_TEXT));
    format!("| **{}** | {}<br>{} | {path}{inside} | {text} |\n", word(rule), rule.code, rule.id)
}

fn listed<'a>(title: &str, files: &[&'a FileReport], places: &mut Places<'a>, page: &mut String) {
    if files.is_empty() {
        return;
    }
    page.push_str(&format!("\n{title}:\n\n"));
    for file in files.iter().take(MAX_LISTED) {
        let path = code(&text::cut(places.name(&file.path), MAX_TEXT));
        let note = file.note.as_deref().map(|note| format!(": {}", prose(&text::cut(note, MAX_TEXT))));
        page.push_str(&format!("- {path} ({}){}\n", prose(&text::shown(&file.kind)), note.unwrap_or_default()));
    }
    if let Some(more) = files.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
        page.push_str(&format!("- and {}\n", text::plural(more as u64, "more file")));
    }
}

/// A string of which nothing is taken for Markdown or HTML, nor for a mention, an issue or a link.
fn prose(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text::printable(text).chars() {
        match c {
            // A character of no width, without which GitHub would tell a user of this name, and point to an issue of this number.
            '@' | '#' => safe.push_str(&format!("&#{};&#8203;", u32::from(c))),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '|' | '&' | '~' | '$' | '!' | '"' => {
                safe.push_str(&format!("&#{};", u32::from(c)));
            }
            c => safe.push(c),
        }
    }
    // Addresses become links wherever they stand.
    safe.replace("://", "&#58;//").replace("www.", "www&#46;")
}

/// The same in the letters of code.
fn code(text: &str) -> String {
    format!("<code>{}</code>", prose(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_markup() {
        assert_eq!(
            prose("a|b\n<b>`c` [d](http://e) @f"),
            "a&#124;b&#92;n&#60;b&#62;&#96;c&#96; &#91;d&#93;(http&#58;//e) &#64;&#8203;f"
        );
    }
}
