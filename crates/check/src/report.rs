//! What a validation found: every file, and every finding.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use max_weights::Diagnostic;
use max_weights::check::{ExactNumber, Statistics};
use max_weights::format::pickle::names;
use max_weights::rules::{Rule, Severity, Verdict};
use max_weights::tensor::TensorInfo;

use crate::options::Level;
use crate::share::Share;
use crate::words::named;

named! {
    /// How deep a file was looked into.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    Depth {
        NotLookedAt "not looked at", "its name only: it could not be read, or time or memory ran out";
        Recognised "recognised", "what it is, and no more: nothing is known of the inside of such files here";
        Header "header", "what its header says";
        Structure "structure", "all but the values of tensors";
        Content "content", "every byte";
    }
}

/// A class or function that a pickle names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// Its module, as Python 3 calls it.
    pub module: String,
    /// Its name in the module, with dots.
    pub name: String,
    /// What is known of it.
    pub danger: names::Danger,
    /// Where it is first.
    pub member: Option<String>,
    /// The byte there.
    pub offset: u64,
}

impl Global {
    /// The word that the Hugging Face hub has for the verdict.
    pub fn safety(&self) -> &'static str {
        match self.danger {
            names::Danger::Harmless => "innocuous",
            names::Danger::Library | names::Danger::NeedsTrust => "suspicious",
            names::Danger::RunsCode => "dangerous",
        }
    }
}

/// One file.
#[derive(Debug, Clone)]
pub struct FileReport {
    /// The path, as it was given or found below what was given.
    pub path: Arc<Path>,
    /// What it is, such as `safetensors`, `PyTorch`, `pickle`.
    pub kind: String,
    /// Its size.
    pub bytes: u64,
    /// How deep it was looked into.
    pub depth: Depth,
    /// Why it was not looked into deeper, where more was asked for.
    pub note: Option<String>,
    /// The worst answer about it, whether or not the finding is reported.
    pub answer: Verdict,
    /// The worst that the findings say that are reported.
    pub reported: Verdict,
    /// Whether a finding that is worse than a note is not reported, by options, settings or a baseline.
    pub excepted: bool,
    /// The members of its archives that were looked at, those in other members too.
    pub members: u64,
    /// The pickles in it.
    pub pickles: u64,
    /// The classes and functions that they name, each once.
    pub globals: Vec<Global>,
    /// Its tensors, where it is a file of weights.
    pub tensors: Option<u64>,
    /// The values in them.
    pub parameters: Option<u64>,
}

impl FileReport {
    /// What is reported of it, in a word.
    pub fn verdict(&self) -> Verdict {
        match self.reported {
            Verdict::Clean if self.excepted => Verdict::Accepted,
            Verdict::Clean if self.depth <= Depth::Recognised => Verdict::Unknown,
            verdict => verdict,
        }
    }

    /// What it is: that of a file that was not looked into is not "clean", and malice stays what it is where it is accepted.
    pub fn answer_verdict(&self) -> Verdict {
        if self.answer >= Verdict::Broken { self.answer } else { self.verdict() }
    }

    /// Notes a finding that is not reported.
    pub(crate) fn except(&mut self, rule: &Rule) {
        self.answer = self.answer.max(rule.verdict);
        self.excepted |= rule.verdict > Verdict::Clean;
    }
}

/// A tensor as the report draws it: how large it is, and what its values are like where they were read.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TensorSummary {
    /// Its file.
    #[serde(skip)]
    pub path: Arc<Path>,
    /// Its name.
    pub name: String,
    /// Its dtype, or the encoding of packed blocks.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The bytes that it has in the file.
    pub bytes: u64,
    /// The mean of the finite values.
    pub mean: Option<f64>,
    /// Their standard deviation.
    #[serde(rename = "std")]
    pub deviation: Option<f64>,
    /// The smallest of them.
    #[serde(rename = "min")]
    pub minimum: Option<f64>,
    /// The largest of them.
    #[serde(rename = "max")]
    pub maximum: Option<f64>,
    /// The square root of the sum of their squares.
    pub norm: Option<f64>,
    /// The number of values in each of several equal intervals between the smallest and the largest value; empty if they were not counted.
    #[serde(rename = "histogram", skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<u64>,
}

impl TensorSummary {
    /// Of this tensor, with what its values are like, if they were read.
    pub(crate) fn new(path: &Arc<Path>, info: &TensorInfo<'_>, values: Option<&Statistics>) -> Self {
        let float = |of: fn(&Statistics) -> Option<ExactNumber>| values.and_then(of).map(ExactNumber::to_f64);
        let (mean, deviation) = (values.and_then(|of| of.mean), values.and_then(|of| of.deviation));
        // The mean of the squares is the variance and the square of the mean.
        let norm = values
            .zip(mean.zip(deviation))
            .map(|(of, (mean, deviation))| (of.finite() as f64).sqrt() * mean.hypot(deviation));
        Self {
            path: path.clone(),
            name: info.name.to_owned(),
            dtype: info.element.to_string(),
            shape: info.shape.to_vec(),
            bytes: info.bytes(),
            mean,
            deviation,
            minimum: float(|of| of.minimum),
            maximum: float(|of| of.maximum),
            norm,
            bins: values.map(|of| of.bins.iter().map(|bin| bin.count).collect()).unwrap_or_default(),
        }
    }
}

/// What a validation found.
#[derive(Debug, Clone)]
pub struct Report {
    /// How deep it was to look.
    pub level: Level,
    /// The files, by their paths.
    pub files: Vec<FileReport>,
    /// The findings, by file, the worst of each first.
    pub findings: Vec<Diagnostic>,
    /// Findings of rules that have too many in one file to keep all.
    pub omitted: u64,
    /// Findings that a baseline has already.
    pub known: u64,
    /// Findings that settings leave out where they are.
    pub ignored: u64,
    /// Whether a finding that is worse than a note is not reported.
    pub excepted: bool,
    /// The tensors, where the values were read.
    pub statistics: Vec<TensorSummary>,
    /// How long it took.
    pub elapsed: Duration,
    /// Which task it is of, where several share the work.
    pub share: Option<Share>,
}

impl Report {
    /// The worst answer of all findings that are reported.
    pub fn answer(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.rule.verdict).max().unwrap_or(Verdict::Clean)
    }

    /// The verdict on the report.
    pub fn verdict(&self) -> Verdict {
        match self.findings.iter().map(|finding| finding.rule.verdict).max().unwrap_or(Verdict::Clean) {
            Verdict::Clean if self.excepted => Verdict::Accepted,
            Verdict::Clean if self.files.iter().all(|file| file.depth <= Depth::Recognised) => Verdict::Unknown,
            verdict => verdict,
        }
    }

    /// How many findings are of this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.rule.severity == severity).count()
    }

    /// The worst answer of the findings that are at least this severe; `None` if there is no such finding.
    pub fn failing(&self, fail_on: Severity) -> Option<Verdict> {
        let failing = self.findings.iter().filter(|finding| finding.rule.severity >= fail_on);
        failing.map(|finding| finding.rule.verdict).max()
    }

    /// Puts the findings in order, the worst of each file first, and says the answer about each file.
    pub fn settle(&mut self) {
        self.findings.sort_by(|a, b| {
            let weight = |finding: &Diagnostic| (finding.rule.verdict, finding.rule.severity);
            // Findings without an offset have a count instead, and sort last.
            let place = |finding: &Diagnostic| (finding.member.clone(), finding.offset.unwrap_or(u64::MAX));
            a.path.cmp(&b.path).then(weight(b).cmp(&weight(a))).then_with(|| place(a).cmp(&place(b)))
        });
        for file in &mut self.files {
            let start = self.findings.partition_point(|finding| finding.file() < &*file.path);
            let about = self.findings[start..].iter().take_while(|finding| finding.file() == &*file.path);
            file.reported = Verdict::Clean;
            for finding in about {
                file.answer = file.answer.max(finding.rule.verdict);
                file.reported = file.reported.max(finding.rule.verdict);
            }
            self.excepted |= file.excepted;
        }
    }

    /// Takes these of the findings out of the report, and gives back how many. What the files are does not change by that.
    pub(crate) fn leave_out(&mut self, which: &[bool]) -> u64 {
        let mut which = which.iter();
        let (out, kept) = std::mem::take(&mut self.findings)
            .into_iter()
            .partition::<Vec<_>, _>(|_| which.next().is_some_and(|is_out| *is_out));
        self.findings = kept;
        let places: HashMap<Arc<Path>, usize> =
            self.files.iter().enumerate().map(|(place, file)| (file.path.clone(), place)).collect();
        for finding in &out {
            if let Some(file) = places.get(finding.file()).and_then(|place| self.files.get_mut(*place)) {
                file.except(finding.rule);
            }
            self.excepted |= finding.rule.verdict > Verdict::Clean;
        }
        self.settle();
        out.len() as u64
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
