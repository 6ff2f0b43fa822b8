//! The options of a validation.

use std::num::NonZero;
use std::time::Duration;

use max_weights::rules::{self, Rule, Severity, Verdict};
use max_weights::workers::stopped_here;
use max_weights::write::TaskNumber;
use max_weights::{OpenOptions, Result};

use crate::words::named;

named! {
    /// How deep files are looked into.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    Level {
        Header "header", "what the headers of weights say, and the names of files";
        #[default]
        Structure "structure", "all that can be known without reading tensors: pickles, archives, configurations";
        Content "content", "every byte";
    }
}

/// Which rules count.
#[derive(Debug, Clone, Default)]
pub struct RuleSelection {
    /// Codes and names of rules, beginnings of codes (`MW-EX`), or `security`; none: all.
    pub select: Vec<String>,
    /// Rules that do not count although they are selected.
    pub ignore: Vec<String>,
}

impl RuleSelection {
    /// Whether this rule counts.
    pub fn has(&self, rule: &Rule) -> bool {
        let names = |list: &[String]| list.iter().any(|word| matches(rule, word));
        (self.select.is_empty() || names(&self.select)) && !names(&self.ignore)
    }

    /// Whether findings of this rule are excluded. A group of rules, such as `security`, does not exclude malicious findings; only the rule's name or
    /// code does.
    pub(crate) fn excepts(&self, rule: &Rule) -> bool {
        let is_named =
            |word: &String| word.trim().eq_ignore_ascii_case(rule.code) || word.trim().eq_ignore_ascii_case(rule.id);
        self.has(rule) && (rule.verdict != Verdict::Malicious || self.select.iter().any(is_named))
    }

    /// The first word that names no rule.
    pub fn unknown(&self) -> Option<&str> {
        let words = self.select.iter().chain(&self.ignore);
        words.map(String::as_str).find(|word| !rules::all().any(|rule| matches(rule, word)))
    }
}

/// Whether a word names this rule: its name, its code, a beginning of the code or of the name that ends between two parts, or `security`.
fn matches(rule: &Rule, word: &str) -> bool {
    let word = word.trim();
    if word.eq_ignore_ascii_case("security") {
        return rule.verdict >= Verdict::Broken || rule.code.starts_with("MW-EX");
    }
    if word.eq_ignore_ascii_case("all") {
        return true;
    }
    let begins = |text: &str, end: char| {
        text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
            && (text.len() == word.len() || word.ends_with(end) || text[word.len()..].starts_with(end))
    };
    !word.is_empty() && (begins(rule.code, '-') || begins(rule.id, '.'))
}

/// The options of a validation.
#[derive(Debug, Clone)]
pub struct ValidateOptions {
    /// How deep.
    pub level: Level,
    /// Which rules.
    pub selection: RuleSelection,
    /// Findings below this are left out.
    pub severity: Severity,
    /// How many files are looked at at the same time; none: as many as there are processors.
    pub jobs: Option<NonZero<usize>>,
    /// Memory for all unpacked data at the same time, in bytes; the rest is in temporary files.
    pub max_memory: Option<u64>,
    /// Whether the values of tensors are counted in histograms, for which those that are wider than 16 bits, or packed, are read twice.
    pub histograms: bool,
    /// After this time the remaining files are listed as not examined.
    pub timeout: Option<Duration>,
    /// Only the folders of this task are looked at, of several tasks that share the work.
    pub task: Option<TaskNumber>,
    /// Archives in archives are looked into so deep.
    pub nesting: usize,
    /// Maximum bytes unpacked from one file, over all its archives.
    pub unpacked_bytes: u64,
    /// Called while headers are read, on any thread; an error cancels the reading.
    pub interrupt: fn() -> Result<()>,
}

impl Default for ValidateOptions {
    fn default() -> Self {
        Self {
            level: Level::Structure,
            selection: RuleSelection::default(),
            severity: Severity::Note,
            jobs: None,
            max_memory: None,
            histograms: true,
            timeout: None,
            task: None,
            nesting: 8,
            unpacked_bytes: 4 << 30,
            interrupt: stopped_here,
        }
    }
}

/// Whether findings of a rule are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleState {
    Yes,
    No,
    /// They are not reported, but a file that has one is not clean.
    NotButCounts,
}

impl ValidateOptions {
    /// How headers are read.
    pub(crate) fn opening(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.format.interrupt = self.interrupt;
        options
    }

    /// Whether findings of this rule are asked for. What is about safety counts all the same, and so do warnings that are only not to be shown.
    pub(crate) fn asks_for(&self, rule: &Rule) -> RuleState {
        if !self.selection.has(rule) {
            return if rule.verdict < Verdict::Broken { RuleState::No } else { RuleState::NotButCounts };
        }
        match rule.severity {
            severity if severity >= self.severity => RuleState::Yes,
            Severity::Note => RuleState::No,
            _ => RuleState::NotButCounts,
        }
    }
}
