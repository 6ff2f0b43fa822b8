//! `max-weights.validate/1`: the report for programs.

use std::cell::RefCell;
use std::io::{self, Write};

use max_weights::Diagnostic;
use max_weights::rules::Verdict;
use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};

use super::json_text::write_pretty;
use super::summary::{Answers, DEPTHS, Summary};
use super::{Places, Settings, fails, fingerprints};
use crate::report::{Depth, FileReport, Report, TensorSummary};

/// The name and version of the object.
const SCHEMA: &str = "max-weights.validate/1";

#[derive(Serialize)]
struct Object<'a> {
    schema: &'a str,
    version: &'a str,
    level: &'a str,
    answer: &'a str,
    fails: bool,
    summary: Totals<'a>,
    files: Files<'a>,
    findings: Findings<'a>,
    #[serde(skip_serializing_if = "<[TensorRecord]>::is_empty")]
    statistics: Vec<TensorRecord<'a>>,
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
    left_out: u64,
    known: u64,
    ignored: u64,
    kinds: Vec<KindRecord<'a>>,
}

#[derive(Serialize)]
struct KindRecord<'a> {
    kind: &'a str,
    files: u64,
    bytes: u64,
    depths: Depths,
}

/// How many files were looked into how deep.
struct Depths([u64; DEPTHS.len()]);

impl Serialize for Depths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(DEPTHS.iter().map(|depth| key(*depth)).zip(&self.0).filter(|(_, count)| **count > 0))
    }
}

#[derive(Serialize)]
struct FileRecord<'a> {
    path: &'a str,
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
    path: &'a str,
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
struct TensorRecord<'a> {
    path: String,
    name: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    bytes: u64,
    mean: Option<f64>,
    std: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    norm: Option<f64>,
    #[serde(skip_serializing_if = "<[u64]>::is_empty")]
    histogram: &'a [u64],
}

/// The files, each made as it is written.
struct Files<'a>(&'a Report, RefCell<Places<'a>>);

impl Serialize for Files<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.files.len()))?;
        for file in &self.0.files {
            list.serialize_element(&file_record(file, self.1.borrow_mut().name(&file.path)))?;
        }
        list.end()
    }
}

/// The findings, each made as it is written.
struct Findings<'a>(&'a Report, RefCell<Places<'a>>, &'a [String]);

impl Serialize for Findings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.findings.len()))?;
        for (finding, fingerprint) in self.0.findings.iter().zip(self.2) {
            list.serialize_element(&finding_record(finding, self.1.borrow_mut().name(finding.file()), fingerprint))?;
        }
        list.end()
    }
}

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let fingerprints = fingerprints(&report.findings, &settings.root);
    let places = || RefCell::new(Places::new(&settings.root));
    let mut names = Places::new(&settings.root);
    let object = Object {
        schema: SCHEMA,
        version: super::VERSION,
        level: report.level.name(),
        answer: report.verdict().name(),
        fails: fails(report, settings),
        summary: totals(report),
        files: Files(report, places()),
        findings: Findings(report, places(), &fingerprints),
        statistics: report.statistics.iter().map(|tensor| tensor_record(tensor, names.name(&tensor.path))).collect(),
    };
    write_pretty(&object, out)
}

fn totals(report: &Report) -> Totals<'_> {
    let summary = Summary::new(report);
    let kinds = summary.kinds.iter();
    Totals {
        files: report.files.len() as u64,
        bytes: report.bytes(),
        seconds: report.elapsed.as_secs_f64(),
        answers: summary.answers,
        errors: summary.errors,
        warnings: summary.warnings,
        notes: summary.notes,
        left_out: report.left_out,
        known: report.known,
        ignored: report.ignored,
        kinds: kinds
            .map(|kind| KindRecord {
                kind: kind.kind,
                files: kind.files,
                bytes: kind.bytes,
                depths: Depths(kind.depths),
            })
            .collect(),
    }
}

fn file_record<'a>(file: &'a FileReport, path: &'a str) -> FileRecord<'a> {
    let imports = file.globals.iter().map(|global| Import {
        module: &global.module,
        name: &global.name,
        safety: global.safety(),
        member: global.member.as_deref(),
        offset: global.offset,
    });
    FileRecord {
        path,
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

fn finding_record<'a>(finding: &'a Diagnostic, path: &'a str, fingerprint: &'a str) -> FindingRecord<'a> {
    FindingRecord {
        code: finding.rule.code,
        rule: finding.rule.id,
        severity: finding.rule.severity.name(),
        answer: finding.rule.verdict.name(),
        message: &finding.message,
        help: &finding.help,
        path,
        member: finding.member.as_deref(),
        tensor: finding.tensor.as_deref(),
        offset: finding.offset,
        evidence: finding.evidence.as_deref(),
        global: finding.global.as_deref(),
        fingerprint,
    }
}

fn tensor_record<'a>(tensor: &'a TensorSummary, path: &str) -> TensorRecord<'a> {
    TensorRecord {
        path: path.to_owned(),
        name: &tensor.name,
        dtype: &tensor.dtype,
        shape: &tensor.shape,
        bytes: tensor.bytes,
        mean: tensor.mean,
        std: tensor.deviation,
        min: tensor.minimum,
        max: tensor.maximum,
        norm: tensor.norm,
        histogram: &tensor.bins,
    }
}

/// The word for a depth in JSON.
fn key(depth: Depth) -> &'static str {
    match depth {
        Depth::NotLookedAt => "not_looked_at",
        other => other.name(),
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
