//! The summary of a step on GitHub, in Markdown: the verdicts, and the worst findings in a table.

use max_weights::{Diagnostic, text};

use super::summary::{ReportSummary, seconds};
use super::{ReportPaths, Settings, place, word, worst_first};
use crate::report::Report;

/// GitHub's limit on everything that a step writes, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// With less room than this there is no summary.
pub(super) const MIN_BYTES: usize = 16 << 10;
/// Bytes reserved for the end of the table.
const END: usize = 2 << 10;
/// Characters of texts in the table.
const MAX_TEXT: usize = 400;

/// The summary, in at most `most` bytes.
pub(super) fn page(report: &Report, settings: &Settings, most: usize) -> String {
    let summary = ReportSummary::new(report);
    let mut places = ReportPaths::new(&settings.root);
    let mut page = String::from("## max-weights validate\n\n");
    for (_, sentence) in summary.verdicts(report) {
        page.push_str(&format!("- **{}**\n", prose(&sentence)));
    }
    let (files, size) = (text::plural(report.files.len() as u64, "file"), text::size(report.bytes()));
    page.push_str(&format!("\n{files}, {size}, in {} at the level {}: ", seconds(report), report.level.name()));
    page.push_str(&format!("{}.\n", prose(&summary.counts(report, settings))));
    if !report.findings.is_empty() {
        page.push_str("\n| | rule | file | finding |\n|---|---|---|---|\n");
    }
    let mut written = 0;
    for finding in worst_first(&report.findings) {
        let row = row(finding, places.name(finding.file()));
        if page.len() + row.len() + END > most {
            break;
        }
        page.push_str(&row);
        written += 1;
    }
    if let Some(more) = report.findings.len().checked_sub(written).filter(|more| *more > 0) {
        page.push_str(&format!("\n{} left out: the size limit is reached.\n", text::plural(more as u64, "finding")));
    }
    page
}

fn row(finding: &Diagnostic, path: &str) -> String {
    let rule = finding.rule;
    let cut = |text: &str| prose(&text::cut(text, MAX_TEXT));
    let code = |text: &str| format!("<code>{}</code>", cut(text));
    let evidence = finding.evidence.as_deref().map(|text| format!("<br>{}", code(text))).unwrap_or_default();
    let inside = place::inside(finding);
    let inside = if inside.is_empty() { inside } else { format!("<br>{}", code(&inside)) };
    format!(
        "| **{}** | {}<br>{} | {}{inside} | {}{evidence}<br><em>{}</em> |\n",
        word(rule),
        rule.code,
        rule.id,
        code(path),
        cut(&finding.message),
        cut(&finding.help)
    )
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
    // URLs would become links anywhere.
    safe.replace("://", "&#58;//").replace("www.", "www&#46;")
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
