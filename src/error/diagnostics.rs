//! Collects the faults of files, from parsers and validation: one bounded list, under a policy that decides what ends an opening.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::Arc;

use super::{Diagnostic, Error, Result};
use crate::rules::{Rule, Severity};

/// The most findings of each rule that are kept for one file; further ones are counted.
pub const MAX_FINDINGS: usize = 100;
/// The most findings of each rule that are kept for all files together, in addition to the first of each file.
const MAX_OF_RULE: usize = 1_000;
/// The most findings whose hashes are remembered, so that none is kept or counted twice.
const MAX_SEEN: usize = 1 << 20;

/// What ends an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The first error, and constructs that are legal but never written on purpose.
    #[default]
    Strict,
    /// The first error.
    Lenient,
    /// No error after which it is safe to continue: the opening fails at its end, with all findings ([`Error::Diagnostics`]).
    CollectAll,
}

impl Policy {
    /// Strict, or lenient.
    pub fn new(strict: bool) -> Self {
        if strict { Self::Strict } else { Self::Lenient }
    }
}

/// The findings so far. Of each rule the first are kept, and the others counted.
#[derive(Debug)]
pub struct Diagnostics {
    policy: Policy,
    limit: usize,
    list: Vec<Diagnostic>,
    counts: BTreeMap<&'static str, RuleCount>,
    /// Hashes of the findings that were added.
    seen: HashSet<u64>,
    /// Whether an error was skipped.
    failed: bool,
}

/// How often a rule was broken.
#[derive(Debug)]
struct RuleCount {
    rule: &'static Rule,
    kept: usize,
    dropped: usize,
    files: HashMap<Option<Arc<Path>>, usize>,
}

impl Diagnostics {
    /// An empty list that keeps at most `limit` findings of each rule for one file.
    pub fn new(policy: Policy, limit: usize) -> Self {
        let (list, counts, seen) = (Vec::new(), BTreeMap::new(), HashSet::new());
        Self { policy, limit, list, counts, seen, failed: false }
    }

    /// True if errors are collected: then parsers continue where it is safe.
    pub fn collects(&self) -> bool {
        self.policy == Policy::CollectAll
    }

    /// True if an error was skipped, so that the result is incomplete.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// The number of findings, including those that are not kept.
    pub fn total(&self) -> usize {
        self.list.len() + self.dropped()
    }

    /// The number of findings that are not kept.
    pub fn dropped(&self) -> usize {
        self.counts.values().map(|count| count.dropped).sum()
    }

    /// The findings that are kept.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// The findings that are kept.
    pub fn list_mut(&mut self) -> &mut [Diagnostic] {
        &mut self.list
    }

    /// The findings that are kept, without the counts of the others.
    pub fn into_list(self) -> Vec<Diagnostic> {
        self.list
    }

    /// Keeps a finding that no policy refuses. It is made only if it is kept.
    pub fn note(&mut self, rule: &'static Rule, make: impl FnOnce(&'static Rule) -> Diagnostic) {
        if self.count(rule, None) {
            self.list.push(make(rule));
        }
    }

    /// Keeps a finding, unless it is a duplicate or its rule has too many. The first of a rule in each file is always kept, so that dropping others
    /// hides no file. True if it is kept.
    pub fn add(&mut self, diagnostic: Diagnostic) -> bool {
        if self.leaves_out(&diagnostic) {
            return false;
        }
        let mut hash = DefaultHasher::new();
        let Diagnostic { rule, offset, message, tensor, member, path, .. } = &diagnostic;
        (rule.code, offset, message, tensor, member, path).hash(&mut hash);
        let hash = hash.finish();
        if self.seen.contains(&hash) {
            return false;
        }
        if self.seen.len() < MAX_SEEN {
            self.seen.insert(hash);
        }
        let is_kept = self.count(rule, path.as_ref());
        if is_kept {
            self.list.push(diagnostic);
        }
        is_kept
    }

    /// Returns what ends the opening: an error, unless all are collected; a warning, if the policy is strict.
    pub fn report(&mut self, fault: impl Into<Box<Diagnostic>>) -> Result<(), Box<Diagnostic>> {
        let fault = fault.into();
        let is_error = fault.severity() == Severity::Error;
        match self.policy {
            Policy::Strict => return Err(fault),
            Policy::Lenient if is_error => return Err(fault),
            Policy::Lenient | Policy::CollectAll => {}
        }
        self.failed |= is_error;
        self.note(fault.rule, |_| *fault);
        Ok(())
    }

    /// If errors are collected, keeps those of the file and continues. Returns them otherwise, or if the system refused.
    pub fn record(&mut self, error: Error) -> Result<()> {
        match error {
            error if !self.collects() => return Err(error),
            Error::Diagnostics(list) => self.extend(list),
            Error::Format(fault) | Error::Unsupported(fault) | Error::FileChanged(fault) => {
                self.note(fault.rule, |_| *fault);
            }
            error => return Err(error),
        }
        self.failed = true;
        Ok(())
    }

    /// Adds findings from elsewhere.
    pub fn extend(&mut self, list: impl IntoIterator<Item = Diagnostic>) {
        for fault in list {
            if !self.leaves_out(&fault) {
                self.note(fault.rule, |_| fault);
            }
        }
    }

    /// Ends the list with the outcome of the work: the findings, if nothing failed; if errors are collected, all of them.
    pub fn finish<T>(&mut self, outcome: Result<T>) -> Result<(T, Vec<Diagnostic>)> {
        match outcome {
            Ok(read) if !self.failed => Ok((read, self.close())),
            Ok(_) => Err(Error::Diagnostics(self.close())),
            Err(error) => self.record(error).and_then(|()| Err(Error::Diagnostics(self.close()))),
        }
    }

    /// All findings, if the policy tolerates them; otherwise an error for the first, with their number.
    pub fn tolerated(mut self, policy: Policy) -> Result<Vec<Diagnostic>> {
        let is_note = |rule: &Rule| rule.severity == Severity::Note;
        let notes: usize =
            self.counts.values().filter(|count| is_note(count.rule)).map(|count| count.kept + count.dropped).sum();
        let total = self.total() - notes;
        let mut list = self.close();
        let first = list.iter().position(|one| !is_note(one.rule));
        if let Some(first) = first.filter(|_| policy == Policy::Strict) {
            let mut first = list.swap_remove(first);
            let more = if total > 1 { format!("There are {} more disagreements. ", total - 1) } else { String::new() };
            let tolerant = "strict=False opens it anyway and lists them in `warnings`";
            first.help = format!("{}. {more}{tolerant}", first.help).into();
            return Err(Error::Format(Box::new(first)));
        }
        Ok(list)
    }

    /// All that are kept, and for each rule the number of further ones.
    pub fn close(&mut self) -> Vec<Diagnostic> {
        let mut list = std::mem::take(&mut self.list);
        for RuleCount { rule, dropped, .. } in std::mem::take(&mut self.counts).into_values() {
            let more = || Diagnostic { more: dropped, ..Diagnostic::new(rule, format!("{dropped} more of this kind")) };
            list.extend((dropped > 0).then(more));
        }
        list
    }

    /// Counts those that exceeded the limit of another list; true if this finding stands for them.
    fn leaves_out(&mut self, fault: &Diagnostic) -> bool {
        if fault.more > 0 {
            self.of_rule(fault.rule).dropped += fault.more;
        }
        fault.more > 0
    }

    fn of_rule(&mut self, rule: &'static Rule) -> &mut RuleCount {
        self.counts.entry(rule.code).or_insert_with(|| RuleCount { rule, kept: 0, dropped: 0, files: HashMap::new() })
    }

    /// Counts one; true if it must be kept.
    fn count(&mut self, rule: &'static Rule, path: Option<&Arc<Path>>) -> bool {
        let limit = self.limit;
        let count = self.of_rule(rule);
        let of_file = count.files.entry(path.cloned()).or_default();
        let has_space = *of_file == 0 || *of_file < limit && count.kept < limit.max(MAX_OF_RULE);
        let is_kept = has_space && limit > 0;
        let counted = if is_kept { &mut count.kept } else { &mut count.dropped };
        *counted += 1;
        *of_file += usize::from(is_kept);
        is_kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    fn faults() -> [Diagnostic; 3] {
        [rules::GGUF_NAME_LONG, rules::GGUF_NAME_NUL, rules::GGUF_OVERLAP].map(|rule| Diagnostic::new(rule, "found"))
    }

    #[test]
    fn a_policy_says_what_ends_the_opening() {
        for (policy, refused) in
            [(Policy::Strict, vec![1, 2]), (Policy::Lenient, vec![2]), (Policy::CollectAll, vec![])]
        {
            let mut findings = Diagnostics::new(policy, 9);
            let [long, nul, overlap] = faults();
            findings.note(long.rule, |_| long);
            let ended: Vec<usize> = [(1, nul), (2, overlap)]
                .map(|(i, fault)| findings.report(fault).err().map(|_| i))
                .into_iter()
                .flatten()
                .collect();
            assert_eq!(ended, refused, "{policy:?}");
            assert_eq!(findings.total(), 3 - refused.len());
            assert_eq!(findings.failed(), policy == Policy::CollectAll);
        }
    }

    #[test]
    fn of_each_rule_the_first_are_kept_and_the_others_counted() {
        let mut findings = Diagnostics::new(Policy::Lenient, 2);
        for _ in 0..6 {
            findings.note(rules::GGUF_NAME_LONG, |rule| Diagnostic::new(rule, "long"));
        }
        findings.note(rules::GGUF_HOLE, |rule| Diagnostic::new(rule, "hole"));
        assert_eq!((findings.total(), findings.dropped()), (7, 4));
        let list = findings.close();
        let messages: Vec<&str> = list.iter().map(|fault| &*fault.message).collect();
        assert_eq!(messages, ["long", "long", "hole", "4 more of this kind"]);
        let mut other = Diagnostics::new(Policy::CollectAll, 9);
        other.extend(list);
        assert_eq!((other.list().len(), other.dropped()), (3, 4), "what one list had no room for, another counts");
        let mut none = Diagnostics::new(Policy::Lenient, 0);
        none.note(rules::GGUF_HOLE, |rule| Diagnostic::new(rule, "hole"));
        assert_eq!((none.list().len(), none.dropped()), (0, 1));
    }

    #[test]
    fn a_million_findings_are_bounded_and_every_file_keeps_one_of_each_rule() {
        let paths: Vec<Arc<Path>> = (0..2_000).map(|file| Path::new(&file.to_string()).into()).collect();
        let mut findings = Diagnostics::new(Policy::CollectAll, MAX_FINDINGS);
        for number in 0..200_000u64 {
            let path = paths.get(number as usize % paths.len()).cloned();
            findings.add(Diagnostic { path, ..Diagnostic::new(rules::GGUF_HOLE, "hole").offset(number / 4_000) });
        }
        // Each file has 50 different ones, twice each.
        assert_eq!((findings.list().len(), findings.total()), (paths.len(), 50 * paths.len()));
        for _ in 0..1_000_000 {
            findings.add(Diagnostic::new(rules::GGUF_NAME_NUL, "the same"));
        }
        assert_eq!(findings.total(), 50 * paths.len() + 1);
    }

    #[test]
    fn an_error_takes_all_findings_with_it_where_they_are_collected() {
        let [long, _, overlap] = faults();
        for policy in [Policy::Strict, Policy::CollectAll] {
            let mut findings = Diagnostics::new(policy, 9);
            findings.note(long.rule, |_| long.clone());
            let error = findings.finish::<()>(Err(overlap.clone().format())).unwrap_err();
            assert_eq!(error.diagnostic(), Some(&overlap));
            assert_eq!(matches!(error, Error::Diagnostics(list) if list.len() == 2), policy == Policy::CollectAll);
        }
    }
}
