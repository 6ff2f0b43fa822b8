//! The report as a page: one file without a script, in which nothing comes from elsewhere.

use std::cmp::Reverse;
use std::io::{self, Write};

use max_weights::rules::{Severity, Verdict};
use max_weights::{Diagnostic, text};

use super::summary::{DEPTHS, ReportSummary, seconds};
use super::xml::lines;
use super::{PROGRAM, ReportPaths, Settings, VERSION, place, time, word, worst_first};
use crate::report::{FileReport, Report};

/// Findings that are listed, the worst first.
const MAX_ROWS: usize = 2000;
/// Files that are listed, those with findings first.
const MAX_FILES: usize = 2000;
/// Classes and functions that are listed of one file, the worst first.
const MAX_GLOBALS: usize = 100;
/// Characters of one text.
const MAX_TEXT: usize = 2000;
/// Findings that are open from the beginning.
const MAX_OPEN: usize = 10;

const STYLE: &str = include_str!("style.css");

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let summary = ReportSummary::new(report);
    let mut places = ReportPaths::new(&settings.root);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{PROGRAM} validate</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header class=\"{}\">\n<div class=\"top\"><h1>{PROGRAM} validate</h1><span>{} UTC</span></div>\n<ul class=\"verdicts\">\n",
        class(report.verdict()),
        time(settings.started).replace('T', " ")
    )?;
    for (verdict, sentence) in summary.verdicts(report) {
        writeln!(out, "<li class=\"{}\">{}</li>", class(verdict), display(&sentence))?;
    }
    writeln!(
        out,
        "</ul>\n<p>{}</p>\n<p class=\"soft\">{}, {}, looked at in {} at the level {}</p>\n</header>\n<section>\n<h2>Findings</h2>",
        display(&summary.counts(report, settings)),
        text::plural(report.files.len() as u64, "file"),
        text::size(report.bytes()),
        seconds(report),
        report.level.name()
    )?;
    let worst = worst_first(&report.findings);
    for (number, finding) in worst.iter().take(MAX_ROWS).enumerate() {
        write_finding(finding, places.name(finding.file()), number < MAX_OPEN, out)?;
    }
    let omitted = worst.len().saturating_sub(MAX_ROWS) as u64 + report.omitted;
    if omitted > 0 {
        let findings = text::plural(omitted, "finding");
        writeln!(
            out,
            "<p class=\"soft\">{findings} left out: the worst are listed, and of rules that are broken very often in one file the first.</p>"
        )?;
    } else if worst.is_empty() {
        writeln!(out, "<p>None.</p>")?;
    }
    writeln!(
        out,
        "</section>\n<section>\n<h2>What was looked at</h2>\n<div class=\"scroll\"><table class=\"kinds\">\n\
         <tr><th>kind</th><th class=\"number\">files</th><th class=\"number\">size</th><th>how deep</th></tr>"
    )?;
    for kind in &summary.kinds {
        let depths = DEPTHS.iter().zip(&kind.depths).filter(|(_, count)| **count > 0);
        let depths: Vec<_> =
            depths.map(|(depth, count)| format!("{} {}", text::grouped(*count), depth.name())).collect();
        let (files, size) = (text::grouped(kind.files), text::size(kind.bytes));
        let (name, depths) = (display(kind.kind), depths.join(", "));
        writeln!(out, "<tr><td>{name}</td>{}{}<td>{depths}</td></tr>", number(&files), number(&size))?;
    }
    writeln!(
        out,
        "</table></div>\n<details{}>\n<summary>All files</summary>\n<div class=\"scroll\"><table>\n\
         <tr><th>file</th><th>kind</th><th class=\"number\">size</th><th>how deep</th><th>answer</th></tr>",
        if summary.not_looked_at.is_empty() { "" } else { " open" }
    )?;
    let mut files: Vec<&FileReport> = report.files.iter().collect();
    files.sort_by_key(|file| (Reverse(file.answer_verdict()), file.depth));
    for file in files.iter().take(MAX_FILES) {
        write_file(file, places.name(&file.path), out)?;
    }
    writeln!(out, "</table></div>")?;
    if let Some(more) = files.len().checked_sub(MAX_FILES).filter(|more| *more > 0) {
        writeln!(out, "<p class=\"soft\">and {}</p>", text::plural(more as u64, "more file"))?;
    }
    writeln!(
        out,
        "</details>\n</section>\n<footer>{PROGRAM} {VERSION}. Nothing of a file was executed.</footer>\n</main>\n</body>\n</html>"
    )
}

fn write_finding(finding: &Diagnostic, path: &str, may_open: bool, out: &mut dyn Write) -> io::Result<()> {
    let rule = finding.rule;
    let class = match (rule.verdict, rule.severity) {
        (Verdict::Malicious, _) => "malicious",
        (Verdict::NeedsTrust, _) => "trust",
        (_, Severity::Error) => "broken",
        (_, Severity::Warning) => "warning",
        _ => "note",
    };
    let open = if may_open && rule.verdict == Verdict::Malicious { " open" } else { "" };
    let inside = place::inside(finding);
    let inside = if inside.is_empty() { inside } else { format!(" · {}", display(&inside)) };
    let evidence =
        finding.evidence.as_deref().map(|text| format!("<pre>{}</pre>\n", display(text))).unwrap_or_default();
    writeln!(
        out,
        "<details class=\"finding {class}\"{open}>\n\
         <summary><span><span class=\"badge\">{}</span></span><code>{}</code><span class=\"message\">{}</span>\
         <span class=\"where\"><code>{}</code>{inside}</span></summary>\n\
         <div>\n{evidence}<p>{}</p>\n<p class=\"soft\"><code>{}</code>: {}. Why files are like that: {}.</p>\n</div>\n</details>",
        word(rule),
        rule.code,
        display(&finding.message),
        display(path),
        display(&finding.help),
        rule.id,
        display(rule.meaning),
        display(rule.cause)
    )
}

fn write_file(file: &FileReport, path: &str, out: &mut dyn Write) -> io::Result<()> {
    let soft = |text: String| format!("<br><span class=\"soft\">{text}</span>");
    let note = file.note.as_deref().map(|note| soft(display(note))).unwrap_or_default();
    let tensors = file.tensors.map(|tensors| soft(text::plural(tensors, "tensor"))).unwrap_or_default();
    write!(out, "<tr><td class=\"path\"><code>{}</code>{note}", display(path))?;
    if !file.globals.is_empty() {
        let mut globals: Vec<_> = file.globals.iter().collect();
        globals.sort_by(|a, b| b.danger.cmp(&a.danger).then_with(|| (&a.module, &a.name).cmp(&(&b.module, &b.name))));
        writeln!(
            out,
            "\n<details><summary class=\"soft\">classes and functions in its pickles</summary><ul class=\"globals\">"
        )?;
        for global in globals.iter().take(MAX_GLOBALS) {
            let (safety, name) = (global.safety(), display(&format!("{}.{}", global.module, global.name)));
            writeln!(out, "<li class=\"{safety}\" title=\"{safety}\"><code>{name}</code></li>")?;
        }
        if let Some(more) = globals.len().checked_sub(MAX_GLOBALS).filter(|more| *more > 0) {
            writeln!(out, "<li class=\"soft\">and {more} more</li>")?;
        }
        write!(out, "</ul></details>")?;
    }
    let (verdict, size) = (file.answer_verdict(), text::size(file.bytes));
    writeln!(
        out,
        "</td><td>{}{tensors}</td>{}<td>{}</td><td class=\"{}\"><span class=\"badge\">{}</span></td></tr>",
        display(&file.kind),
        number(&size),
        file.depth.name(),
        class(verdict),
        verdict.name()
    )
}

fn number(text: &str) -> String {
    format!("<td class=\"number\">{text}</td>")
}

/// A text of a file, without markup or control characters.
fn display(text: &str) -> String {
    lines(&text::cut(text, MAX_TEXT))
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Malicious => "malicious",
        Verdict::NeedsTrust => "trust",
        Verdict::Broken => "broken",
        Verdict::Faulty => "warning",
        Verdict::Accepted => "note",
        Verdict::Unknown => "unknown",
        Verdict::Clean => "clean",
    }
}
