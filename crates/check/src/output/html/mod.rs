//! The report as a page: one file, in which nothing comes from elsewhere, and of which no browser sends anything anywhere.
//!
//! `report.html` is the page, into which minijinja writes every text escaped. Its policy lets no script run but the one that is built in.

mod layers;
mod treemap;

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use max_weights::rules::Answer;
use max_weights::text;
use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::summary::{DEPTHS, Summary, seconds};
use super::{PROGRAM, Places, Settings, VERSION, place, time, word, worst_first};
use crate::finding::Finding;
use crate::report::{FileReport, Report, Verdict};

/// Findings that are listed, the worst first.
pub(super) const MAX_FINDINGS: usize = 2000;
/// Files that are listed, those with findings first.
const MAX_FILES: usize = 2000;
/// Classes and functions that are listed of one file, the worst first.
const MAX_GLOBALS: usize = 100;
/// Characters of one text.
const MAX_TEXT: usize = 2000;

const PAGE: &str = include_str!("report.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

#[derive(Serialize)]
struct Row {
    word: &'static str,
    class: &'static str,
    code: &'static str,
    rule: &'static str,
    path: String,
    inside: String,
    message: String,
    evidence: Option<String>,
    meaning: &'static str,
    cause: &'static str,
    help: String,
}

#[derive(Serialize)]
struct FileRow {
    path: String,
    kind: String,
    size: String,
    depth: &'static str,
    answer: &'static str,
    class: &'static str,
    note: Option<String>,
    tensors: Option<String>,
    globals: Vec<GlobalRow>,
    more_globals: usize,
}

#[derive(Serialize)]
struct GlobalRow {
    name: String,
    safety: &'static str,
}

#[derive(Serialize)]
struct KindRow {
    kind: String,
    files: String,
    size: String,
    depths: String,
}

/// What the page is made of.
#[derive(Serialize)]
struct Page<'a> {
    policy: String,
    style: &'a str,
    script: &'a str,
    program: &'a str,
    version: &'a str,
    started: String,
    level: &'a str,
    seconds: String,
    size: String,
    file_count: String,
    counts: String,
    class: &'a str,
    verdicts: Vec<(&'a str, String)>,
    kinds: Vec<KindRow>,
    words: Vec<&'a str>,
    findings_left_out: Option<String>,
    findings: Vec<Row>,
    files_left_out: usize,
    not_looked_at: bool,
    files: Vec<FileRow>,
    treemap: Vec<treemap::Tile>,
    shares: Vec<treemap::Share>,
    layers: Vec<layers::Layer>,
    layers_left_out: usize,
}

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let mut environment = Environment::new();
    environment.add_template("report.html", PAGE).map_err(io::Error::other)?;
    let page = environment.get_template("report.html").map_err(io::Error::other)?;
    let summary = Summary::new(report);
    let mut places = Places::new(&settings.root);
    let findings: Vec<Row> = worst_first(&report.findings)
        .into_iter()
        .take(MAX_FINDINGS)
        .filter_map(|at| report.findings.get(at))
        .map(|finding| row(finding, places.name(&finding.path)))
        .collect();
    let mut files: Vec<&FileReport> = report.files.iter().collect();
    files.sort_by_key(|file| (std::cmp::Reverse(file.answer_verdict()), file.depth));
    let files: Vec<FileRow> =
        files.into_iter().take(MAX_FILES).map(|file| file_row(file, places.name(&file.path))).collect();
    let verdicts: Vec<_> = summary.verdicts(report).into_iter().map(|(verdict, text)| (class(verdict), text)).collect();
    let left_out = (report.findings.len() - findings.len()) as u64 + report.left_out;
    let (layers, layers_left_out) = layers::layers(&report.statistics);
    let mut words: Vec<&str> = findings.iter().map(|row| row.word).collect();
    words.dedup();
    let values = Page {
        policy: policy(),
        style: STYLE,
        script: SCRIPT,
        program: PROGRAM,
        version: VERSION,
        started: time(settings.started).replace('T', " "),
        level: report.level.name(),
        seconds: seconds(report),
        size: text::size(report.bytes()),
        file_count: text::plural(report.files.len() as u64, "file"),
        counts: shown(&summary.counts(report, settings)),
        class: class(report.verdict()),
        verdicts,
        kinds: summary.kinds.iter().map(kind_row).collect(),
        words,
        findings_left_out: (left_out > 0).then(|| text::plural(left_out, "finding")),
        findings,
        not_looked_at: !summary.not_looked_at.is_empty(),
        files_left_out: report.files.len() - files.len(),
        files,
        treemap: treemap::treemap(&report.statistics),
        shares: treemap::shares(&report.statistics),
        layers,
        layers_left_out,
    };
    page.render_captured_to(Value::from(Serde(values)), out).map_err(io::Error::other)?;
    Ok(())
}

/// What the browser lets the page do: show itself, and run the one script.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()))
    )
}

fn row(finding: &Finding, path: &str) -> Row {
    let rule = finding.rule;
    Row {
        word: word(rule),
        class: match (rule.answer, rule.severity) {
            (Answer::Malicious, _) => "malicious",
            (Answer::NeedsTrust, _) => "trust",
            (_, max_weights::rules::Severity::Error) => "broken",
            (_, max_weights::rules::Severity::Warning) => "warning",
            _ => "note",
        },
        code: rule.code,
        rule: rule.id,
        path: shown(path),
        inside: place::inside(finding),
        message: shown(&finding.message),
        evidence: finding.evidence.as_deref().map(shown),
        meaning: rule.meaning,
        cause: rule.cause,
        help: shown(&finding.help),
    }
}

fn file_row(file: &FileReport, path: &str) -> FileRow {
    let mut globals: Vec<_> = file.globals.iter().collect();
    globals.sort_by(|a, b| b.safety.cmp(&a.safety).then_with(|| (&a.module, &a.name).cmp(&(&b.module, &b.name))));
    let shown_globals = globals.iter().take(MAX_GLOBALS).map(|global| GlobalRow {
        name: text::shown(&format!("{}.{}", global.module, global.name)),
        safety: global.safety.name(),
    });
    FileRow {
        path: shown(path),
        kind: text::shown(&file.kind),
        size: text::size(file.bytes),
        depth: file.depth.name(),
        answer: file.answer_verdict().name(),
        class: class(file.answer_verdict()),
        note: file.note.as_deref().map(shown),
        tensors: file.tensors.map(|tensors| text::plural(tensors, "tensor")),
        globals: shown_globals.collect(),
        more_globals: globals.len().saturating_sub(MAX_GLOBALS),
    }
}

fn kind_row(kind: &super::summary::KindSummary<'_>) -> KindRow {
    let depths = DEPTHS.iter().zip(&kind.depths).filter(|(_, count)| **count > 0);
    let depths: Vec<_> = depths.map(|(depth, count)| format!("{} {}", text::grouped(*count), depth.name())).collect();
    KindRow {
        kind: text::shown(kind.kind),
        files: text::grouped(kind.files),
        size: text::size(kind.bytes),
        depths: depths.join(", "),
    }
}

fn shown(text: &str) -> String {
    text::cut(text, MAX_TEXT).into_owned()
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
