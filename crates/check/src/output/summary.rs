//! What every report sums up: which files were looked into how deep, which were not and why, and what was found, the three answers apart.

use max_weights::rules::Severity;
use max_weights::rules::Verdict;
use max_weights::text;
use serde::{Serialize, Serializer};

use super::Settings;
use crate::report::{Depth, FileReport, Report};

/// The depths, the deepest first.
pub(super) const DEPTHS: [Depth; 5] =
    [Depth::Content, Depth::Structure, Depth::Header, Depth::Recognised, Depth::NotLookedAt];

/// How many files are what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Answers {
    pub(super) malicious: u64,
    pub(super) needs_trust: u64,
    /// Broken, or there was something that could not be looked at.
    pub(super) broken: u64,
    /// None of these, with a warning.
    pub(super) faulty: u64,
    /// None of these, with a warning that is not reported.
    pub(super) accepted: u64,
    /// Looked into, and none of these.
    pub(super) clean: u64,
    /// Not looked into: nothing is known of them.
    pub(super) unknown: u64,
}

impl Answers {
    fn count(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Malicious => &mut self.malicious,
            Verdict::NeedsTrust => &mut self.needs_trust,
            Verdict::Broken => &mut self.broken,
            Verdict::Faulty => &mut self.faulty,
            Verdict::Accepted => &mut self.accepted,
            Verdict::Unknown => &mut self.unknown,
            Verdict::Clean => &mut self.clean,
        } += 1;
    }
}

/// The files of one kind.
#[derive(Debug, Clone, Serialize)]
pub(super) struct KindSummary<'a> {
    pub(super) kind: &'a str,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// How many were looked into how deep, by [`DEPTHS`].
    #[serde(serialize_with = "by_depth")]
    pub(super) depths: [u64; DEPTHS.len()],
}

/// The word for a depth in JSON.
pub(super) fn key(depth: Depth) -> &'static str {
    match depth {
        Depth::NotLookedAt => "not_looked_at",
        other => other.name(),
    }
}

/// The counts that are not 0, by the words for the depths.
fn by_depth<S: Serializer>(counts: &[u64; DEPTHS.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(DEPTHS.iter().map(|depth| key(*depth)).zip(counts).filter(|(_, count)| **count > 0))
}

/// The summary of a report.
pub(super) struct ReportSummary<'a> {
    /// What the files are, whether or not it is reported.
    pub(super) answers: Answers,
    /// What is reported of them.
    reported: Answers,
    pub(super) errors: u64,
    pub(super) warnings: u64,
    pub(super) notes: u64,
    pub(super) kinds: Vec<KindSummary<'a>>,
    /// The files that were not looked at.
    pub(super) not_looked_at: Vec<&'a FileReport>,
    /// Those of which only the kind is known.
    pub(super) recognised: Vec<&'a FileReport>,
}

impl<'a> ReportSummary<'a> {
    pub(super) fn new(report: &'a Report) -> Self {
        let mut summary = Self {
            answers: Answers::default(),
            reported: Answers::default(),
            errors: report.count(Severity::Error) as u64,
            warnings: report.count(Severity::Warning) as u64,
            notes: report.count(Severity::Note) as u64,
            kinds: Vec::new(),
            not_looked_at: Vec::new(),
            recognised: Vec::new(),
        };
        for file in &report.files {
            match file.depth {
                Depth::NotLookedAt => summary.not_looked_at.push(file),
                Depth::Recognised => summary.recognised.push(file),
                _ => {}
            }
            summary.answers.count(file.answer_verdict());
            summary.reported.count(file.verdict());
            summary.count_kind(file);
        }
        summary.kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
        summary
    }

    fn count_kind(&mut self, file: &'a FileReport) {
        let at = self.kinds.iter().position(|kind| kind.kind == file.kind).unwrap_or_else(|| {
            self.kinds.push(KindSummary { kind: &file.kind, files: 0, bytes: 0, depths: [0; DEPTHS.len()] });
            self.kinds.len() - 1
        });
        let depth = DEPTHS.iter().position(|depth| *depth == file.depth);
        let Some(kind) = self.kinds.get_mut(at) else { return };
        kind.files += 1;
        kind.bytes = kind.bytes.saturating_add(file.bytes);
        if let Some(count) = depth.and_then(|depth| kind.depths.get_mut(depth)) {
            *count += 1;
        }
    }

    /// A sentence for each verdict that occurs, the worst first, which is the verdict on all files together.
    pub(super) fn verdicts(&self, report: &Report) -> Vec<(Verdict, String)> {
        let files = |count: u64| text::plural(count, "file");
        let Answers { malicious, needs_trust, broken, faulty, accepted, clean, unknown } = self.reported;
        let worst = report.verdict();
        let sentences = [
            (Verdict::Malicious, malicious, format!("{}, made to do harm or to mislead", files(malicious))),
            (Verdict::NeedsTrust, needs_trust, format!("loading {} runs code, or may", files(needs_trust))),
            (Verdict::Broken, broken, format!("{}, damaged, not as expected, or not fully examined", files(broken))),
            (Verdict::Faulty, faulty, format!("{}, with warnings", files(faulty))),
            (
                Verdict::Accepted,
                accepted,
                format!("{}, with findings that are left out{}", files(accepted), self.omitted()),
            ),
            (Verdict::Unknown, unknown, format!("{}, of which only the kind is known", files(unknown))),
            (Verdict::Clean, clean, format!("{} at the level {}", files(clean), report.level.name())),
        ];
        // Pictures and texts in a folder of weights do not count as unknown weights.
        let is_declared = |verdict: Verdict, count: u64| count > 0 && (verdict != Verdict::Unknown || verdict == worst);
        let mut verdicts: Vec<(Verdict, String)> = sentences
            .into_iter()
            .filter(|(verdict, count, _)| is_declared(*verdict, *count))
            .map(|(verdict, _, sentence)| (verdict, format!("{}: {sentence}", verdict.words())))
            .collect();
        // What is about a folder is about none of its files.
        if verdicts.first().is_none_or(|(verdict, _)| *verdict < worst) {
            let of_folder = match worst {
                Verdict::Unknown => "there was no file to look at",
                Verdict::Accepted => "what the files of a folder say about each other is left out",
                _ => "what the files of a folder say about each other",
            };
            verdicts.insert(0, (worst, format!("{}: {of_folder}", worst.words())));
        }
        verdicts
    }

    /// What files are of which less is reported.
    fn omitted(&self) -> String {
        let Answers { malicious, needs_trust, broken, .. } = self.answers;
        let of = [
            (malicious - self.reported.malicious.min(malicious), "malicious"),
            (needs_trust - self.reported.needs_trust.min(needs_trust), "need trust"),
            (broken - self.reported.broken.min(broken), "broken"),
        ];
        let listed: Vec<String> = of
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{} {word}", text::grouped(count)))
            .collect();
        if listed.is_empty() { String::new() } else { format!(" ({})", listed.join(", ")) }
    }

    /// How many findings there are, and how many are not listed, with the reasons.
    pub(super) fn counts(&self, report: &Report, settings: &Settings) -> String {
        let mut counts: Vec<String> = [(self.errors, "error"), (self.warnings, "warning"), (self.notes, "note")]
            .map(|(count, noun)| text::plural(count, noun))
            .into();
        if report.omitted > 0 {
            counts.push(format!("{} more of rules with too many in one file", text::grouped(report.omitted)));
        }
        if report.known > 0 {
            counts.push(format!("{} known from the baseline", text::grouped(report.known)));
        }
        if report.ignored > 0 {
            let by = settings.config.as_deref().map_or_else(|| "settings".into(), text::path);
            counts.push(format!("{} ignored by {by}", text::grouped(report.ignored)));
        }
        counts.join(", ")
    }
}

/// How long it took, for people.
pub(super) fn seconds(report: &Report) -> String {
    let seconds = report.elapsed.as_secs_f64();
    if seconds < 0.1 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// A file in a line: what it is, how large, how deep it was looked into.
pub(super) fn about(file: &FileReport) -> String {
    let mut parts = vec![text::escape(&file.kind), text::size(file.bytes)];
    if let Some(tensors) = file.tensors {
        parts.push(text::plural(tensors, "tensor"));
    }
    if file.pickles > 0 {
        parts.push(text::plural(file.pickles, "pickle"));
    }
    if file.members > 0 {
        parts.push(text::plural(file.members, "member"));
    }
    parts.push(match file.depth {
        Depth::NotLookedAt => "not looked at".into(),
        Depth::Recognised => "recognised only".into(),
        depth => format!("looked into: {}", depth.name()),
    });
    parts.join(", ")
}
