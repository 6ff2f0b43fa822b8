//! `max-weights.validate/1`: the report for programs.

use std::io::{self, Write};

use max_weights::Diagnostic;
use max_weights::rules::Verdict;
use serde::Serialize;

use super::json_text::write_pretty;
use super::summary::{Answers, KindSummary, ReportSummary, key};
use super::{ReportPaths, Settings, fails, fingerprints};
use crate::report::{Depth, FileReport, Report, TensorSummary};
use crate::share::Share;

/// The name and version of the object.
const SCHEMA: &str = "max-weights.validate/1";

#[derive(Serialize)]
struct ReportJson<'a> {
    schema: &'a str,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a Share>,
    level: &'a str,
    answer: &'a str,
    fails: bool,
    summary: Totals<'a>,
    files: Vec<FileJson<'a>>,
    findings: Vec<FindingRecord<'a>>,
    #[serde(skip_serializing_if = "<[TensorJson]>::is_empty")]
    statistics: Vec<TensorJson<'a>>,
}

#[derive(Serialize)]
struct Totals<'a> {
    files: u64,
    bytes: u64,
    seconds: f64,
    answers: Answers,
    errors: u64,
    warnings: u64,
    notes: u64,
    #[serde(rename = "left_out")]
    omitted: u64,
    known: u64,
    ignored: u64,
    kinds: &'a [KindSummary<'a>],
}

#[derive(Serialize)]
struct FileJson<'a> {
    path: String,
    kind: &'a str,
    bytes: u64,
    depth: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    answer: &'a str,
    /// The word of the Hugging Face hub for it.
    status: &'a str,
    members: u64,
    pickles: u64,
    #[serde(rename = "pickleImports")]
    pickle_imports: Vec<Import<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<u64>,
}

#[derive(Serialize)]
struct Import<'a> {
    module: &'a str,
    name: &'a str,
    safety: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<&'a str>,
    offset: u64,
}

#[derive(Serialize)]
struct FindingRecord<'a> {
    code: &'a str,
    rule: &'a str,
    severity: &'a str,
    answer: &'a str,
    message: &'a str,
    help: &'a str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    global: Option<&'a str>,
    fingerprint: &'a str,
}

#[derive(Serialize)]
struct TensorJson<'a> {
    path: String,
    #[serde(flatten)]
    tensor: &'a TensorSummary,
}

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let fingerprints = fingerprints(&report.findings, &settings.root);
    let mut places = ReportPaths::new(&settings.root);
    let summary = ReportSummary::new(report);
    let numbered = report.findings.iter().zip(&fingerprints);
    let object = ReportJson {
        schema: SCHEMA,
        version: super::VERSION,
        task: report.share.as_ref(),
        level: report.level.name(),
        answer: report.verdict().name(),
        fails: fails(report, settings),
        summary: Totals {
            files: report.files.len() as u64,
            bytes: report.bytes(),
            seconds: report.elapsed.as_secs_f64(),
            answers: summary.answers,
            errors: summary.errors,
            warnings: summary.warnings,
            notes: summary.notes,
            omitted: report.omitted,
            known: report.known,
            ignored: report.ignored,
            kinds: &summary.kinds,
        },
        files: report.files.iter().map(|file| file_record(file, places.name(&file.path))).collect(),
        findings: numbered.map(|(of, number)| finding_record(of, places.name(of.file()), number)).collect(),
        statistics: report
            .statistics
            .iter()
            .map(|tensor| TensorJson { path: places.name(&tensor.path).to_owned(), tensor })
            .collect(),
    };
    write_pretty(&object, out)
}

fn file_record<'a>(file: &'a FileReport, path: &str) -> FileJson<'a> {
    let imports = file.globals.iter().map(|global| Import {
        module: &global.module,
        name: &global.name,
        safety: global.safety(),
        member: global.member.as_deref(),
        offset: global.offset,
    });
    FileJson {
        path: path.to_owned(),
        kind: &file.kind,
        bytes: file.bytes,
        depth: key(file.depth),
        note: file.note.as_deref(),
        answer: file.answer_verdict().name(),
        status: status(file),
        members: file.members,
        pickles: file.pickles,
        pickle_imports: imports.collect(),
        tensors: file.tensors,
        parameters: file.parameters,
    }
}

fn finding_record<'a>(finding: &'a Diagnostic, path: &str, fingerprint: &'a str) -> FindingRecord<'a> {
    FindingRecord {
        code: finding.rule.code,
        rule: finding.rule.id,
        severity: finding.rule.severity.name(),
        answer: finding.rule.verdict.name(),
        message: &finding.message,
        help: &finding.help,
        path: path.to_owned(),
        member: finding.member.as_deref(),
        tensor: finding.tensor.as_deref(),
        offset: finding.offset,
        evidence: finding.evidence.as_deref(),
        global: finding.global.as_deref(),
        fingerprint,
    }
}

/// The word of the Hugging Face hub's `securityFileStatus` for a file.
fn status(file: &FileReport) -> &'static str {
    match file.answer {
        Verdict::Malicious => "unsafe",
        Verdict::NeedsTrust => "caution",
        Verdict::Broken => "error",
        _ if file.depth <= Depth::Recognised => "unscanned",
        _ => "safe",
    }
}
