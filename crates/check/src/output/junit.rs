//! JUnit's XML, as Jenkins and GitLab read it: a case for each file and group of rules, so that what was not looked at is seen as skipped.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use max_weights::rules::{self, Rule, Severity};
use max_weights::{Diagnostic, text};

use super::summary::{ReportSummary, about};
use super::xml::{escaped, lines};
use super::{PROGRAM, ReportPaths, Settings, is_security, sentence, time, word};
use crate::options::Level;
use crate::report::{Depth, FileReport, Report};

/// Cases that are written: GitLab takes 250,000 objects of XML, of which a case that fails is two, and 500,000 cases a job.
pub(super) const MAX_CASES: usize = 100_000;
/// Findings of which a case has the sentences.
const MAX_SENTENCES: usize = 20;
/// Characters of a sentence, and of a name.
const MAX_SENTENCE: usize = 2000;
const MAX_NAME: usize = 1000;
/// From here on cases have no sentences; GitLab takes files below 30 MB.
const BYTES_WITH_SENTENCES: usize = 16 << 20;
/// From here on cases are counted and not written.
const MAX_BYTES: usize = 26 << 20;

/// Rules that make one case of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaseGroup {
    File,
    Format,
    Security,
    Values,
    Folder,
}

impl CaseGroup {
    const ALL: [Self; 5] = [Self::File, Self::Format, Self::Security, Self::Values, Self::Folder];

    fn of(rule: &Rule) -> Self {
        match rule.code.get(..5) {
            _ if is_security(rule) => Self::Security,
            Some("MW-FI") => Self::File,
            Some("MW-ST" | "MW-GG" | "MW-PT") => Self::Format,
            Some("MW-VA") => Self::Values,
            _ => Self::Folder,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Format => "format",
            Self::Security => "security",
            Self::Values => "values",
            Self::Folder => "checkpoint",
        }
    }

    /// Whether a file was not looked into so deep that the rules of the group were applied to it.
    fn is_skipped(self, file: &FileReport) -> bool {
        file.depth
            < match self {
                Self::File => Depth::Recognised,
                Self::Format => Depth::Header,
                Self::Security => Depth::Structure,
                Self::Values => Depth::Content,
                Self::Folder => return false,
            }
    }
}

/// What became of a case; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaseOutcome {
    /// The file could not be read.
    Error,
    Failure,
    Skipped,
    Passed,
}

struct Case<'a> {
    class: usize,
    file: Option<&'a FileReport>,
    group: CaseGroup,
    outcome: CaseOutcome,
    findings: Vec<&'a Diagnostic>,
}

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let (classes, mut cases) = cases(report, settings);
    cases.sort_by_key(|case| rank(case.outcome));
    let (mut body, mut counts, mut written) = (String::new(), [0u64; 4], 0usize);
    for case in cases.iter().take(MAX_CASES) {
        if body.len() > MAX_BYTES {
            break;
        }
        let class = classes.get(case.class).map_or("", String::as_str);
        case.push(class, body.len() < BYTES_WITH_SENTENCES, &mut body);
        written += 1;
        counts[case.outcome as usize] += 1;
    }
    let summary = ReportSummary::new(report);
    let mut end: Vec<String> = summary.verdicts(report).into_iter().map(|(_, sentence)| sentence).collect();
    end.push(summary.counts(report, settings));
    if written < cases.len() {
        let omitted = (cases.len() - written) as u64;
        end.push(format!("{} left out: readers of this format take no more", text::plural(omitted, "case")));
    }
    let [errors, failures, skipped, _] = counts;
    let (seconds, started) = (report.elapsed.as_secs_f64(), time(settings.started));
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>")?;
    writeln!(
        out,
        "  <testsuite name=\"{PROGRAM} validate\" package=\"{PROGRAM}\" id=\"0\" hostname=\"localhost\" timestamp=\"{started}\" \
         tests=\"{written}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">"
    )?;
    writeln!(
        out,
        "    <properties>\n      <property name=\"version\" value=\"{}\"/>\n    </properties>",
        super::VERSION
    )?;
    out.write_all(body.as_bytes())?;
    writeln!(out, "    <system-out>{}</system-out>", lines(&end.join("\n")))?;
    writeln!(out, "    <system-err></system-err>\n  </testsuite>\n</testsuites>")
}

fn rank(outcome: CaseOutcome) -> u8 {
    match outcome {
        CaseOutcome::Error | CaseOutcome::Failure => 0,
        CaseOutcome::Skipped => 1,
        CaseOutcome::Passed => 2,
    }
}

/// The names of classes, one for each path, and all cases.
fn cases<'a>(report: &'a Report, settings: &Settings) -> (Vec<String>, Vec<Case<'a>>) {
    let mut places = ReportPaths::new(&settings.root);
    let (mut classes, mut seen, mut cases) = (Vec::new(), HashSet::new(), Vec::new());
    let mut by_path: HashMap<&Path, &[Diagnostic]> = HashMap::new();
    for findings in report.findings.chunk_by(|a, b| a.path == b.path) {
        if let Some(first) = findings.first() {
            by_path.insert(first.file(), findings);
        }
    }
    let mut add = |path: &'a Path, file: Option<&'a FileReport>, findings: &'a [Diagnostic]| {
        let mut class = text::cut(places.name(path), MAX_NAME).into_owned();
        if !seen.insert(class.clone()) {
            class = format!("{class} ({})", classes.len() + 1);
        }
        classes.push(class);
        for group in CaseGroup::ALL {
            let mut findings: Vec<_> = findings.iter().filter(|finding| CaseGroup::of(finding.rule) == group).collect();
            let always = group != CaseGroup::Folder && (group != CaseGroup::Values || report.level == Level::Content);
            if findings.is_empty() && !(always && file.is_some()) {
                continue;
            }
            let fails =
                |finding: &&Diagnostic| settings.fail_on.is_some_and(|fail_on| finding.rule.severity >= fail_on);
            findings.sort_by_key(|finding| !fails(finding));
            let unreadable = |finding: &&Diagnostic| finding.rule == rules::FILE_UNREADABLE && fails(finding);
            let outcome = if findings.iter().any(unreadable) {
                CaseOutcome::Error
            } else if findings.iter().any(fails) {
                CaseOutcome::Failure
            } else if file.is_some_and(|file| group.is_skipped(file)) {
                CaseOutcome::Skipped
            } else {
                CaseOutcome::Passed
            };
            cases.push(Case { class: classes.len() - 1, file, group, outcome, findings });
        }
    };
    for file in &report.files {
        add(&file.path, Some(file), by_path.remove(&*file.path).unwrap_or_default());
    }
    let mut others: Vec<_> = by_path.into_iter().collect();
    others.sort_by_key(|(path, _)| *path);
    for (path, findings) in others {
        add(path, None, findings);
    }
    (classes, cases)
}

impl Case<'_> {
    fn push(&self, class: &str, with_sentences: bool, body: &mut String) {
        let sentences = if with_sentences { self.sentences() } else { String::new() };
        let output = || match sentences.as_str() {
            "" => String::new(),
            sentences => format!("      <system-out>{}</system-out>\n", lines(sentences)),
        };
        let inside = match self.outcome {
            CaseOutcome::Error => self.element("error", &sentences),
            CaseOutcome::Failure => self.element("failure", &sentences),
            CaseOutcome::Skipped => {
                let why = self.file.map_or_else(String::new, |file| file.note.clone().unwrap_or_else(|| about(file)));
                format!("      <skipped message=\"{}\"/>\n{}", escaped(&text::cut(&why, MAX_SENTENCE)), output())
            }
            CaseOutcome::Passed => output(),
        };
        let (class, name) = (escaped(class), self.group.name());
        body.push_str(&format!("    <testcase classname=\"{class}\" name=\"{name}\" time=\"0\""));
        body.push_str(&if inside.is_empty() { "/>\n".into() } else { format!(">\n{inside}    </testcase>\n") });
    }

    fn element(&self, element: &str, sentences: &str) -> String {
        let Some(first) = self.findings.first() else { return String::new() };
        let more =
            if self.findings.len() > 1 { format!(", and {} more", self.findings.len() - 1) } else { String::new() };
        let message = format!("{}: {}{more}", word(first.rule), text::cut(&first.message, MAX_SENTENCE));
        let (message, sentences) = (escaped(&message), lines(sentences));
        let code = first.rule.code;
        format!("      <{element} type=\"{code}\" message=\"{message}\">{sentences}</{element}>\n")
    }

    /// The findings, a line each, and what to do.
    fn sentences(&self) -> String {
        let mut lines = Vec::new();
        for finding in self.findings.iter().take(MAX_SENTENCES) {
            let rule = finding.rule;
            let sentence = sentence(finding);
            lines.push(format!("{} {} ({}): {}", rule.code, rule.id, word(rule), text::cut(&sentence, MAX_SENTENCE)));
            if rule.severity > Severity::Note {
                lines.push(format!("  help: {}", text::cut(&finding.help, MAX_SENTENCE)));
            }
        }
        if let Some(more) = self.findings.len().checked_sub(MAX_SENTENCES).filter(|more| *more > 0) {
            lines.push(format!("and {} more", text::grouped(more as u64)));
        }
        lines.join("\n")
    }
}
