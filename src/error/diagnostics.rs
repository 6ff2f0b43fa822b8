//! Where a parser reports what is wrong with a file: one bounded list, under a policy that says what ends the opening.

use super::{Diagnostic, Error, Result};
use crate::rules::{Rule, Severity};

/// What ends an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The first error, and what is legal to the letter but never written on purpose.
    #[default]
    Strict,
    /// The first error.
    Lenient,
    /// No error after which it is safe to go on: the opening fails at its end, with all that was found ([`Error::Diagnostics`]).
    CollectAll,
}

impl Policy {
    /// Strict, or lenient.
    pub fn new(strict: bool) -> Self {
        if strict { Self::Strict } else { Self::Lenient }
    }
}

/// What was found so far. Of each rule the first findings are kept, and the others counted.
#[derive(Debug)]
pub struct Diagnostics {
    policy: Policy,
    most: usize,
    more: Option<&'static Rule>,
    list: Vec<Diagnostic>,
    counts: Vec<(&'static Rule, usize)>,
    /// An error was passed over.
    failed: bool,
}

impl Diagnostics {
    /// An empty list that keeps `most` findings of each rule. `more` is the rule of the one that counts the others; without it, each rule
    /// counts its own.
    pub fn new(policy: Policy, most: usize, more: Option<&'static Rule>) -> Self {
        Self { policy, most, more, list: Vec::new(), counts: Vec::new(), failed: false }
    }

    /// True if errors are collected: then parsers go on where it is safe.
    pub fn collects(&self) -> bool {
        self.policy == Policy::CollectAll
    }

    /// True if an error was passed over, so that what was read is not whole.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// The number of findings, those that are not kept among them.
    pub fn total(&self) -> usize {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// The findings that are kept.
    pub fn list_mut(&mut self) -> &mut [Diagnostic] {
        &mut self.list
    }

    /// Keeps what no policy refuses. A finding that is only counted is not made.
    pub fn note(&mut self, rule: &'static Rule, finding: impl FnOnce(&'static Rule) -> Diagnostic) {
        if self.count(rule) {
            self.list.push(finding(rule));
        }
    }

    /// Gives back what ends the opening: an error, unless all are collected; a warning, if the policy is strict.
    pub fn report(&mut self, fault: impl Into<Box<Diagnostic>>) -> Result<(), Box<Diagnostic>> {
        let fault = fault.into();
        let is_error = fault.rule.severity == Severity::Error;
        match self.policy {
            Policy::Strict => return Err(fault),
            Policy::Lenient if is_error => return Err(fault),
            Policy::Lenient | Policy::CollectAll => {}
        }
        self.failed |= is_error;
        self.note(fault.rule, |_| *fault);
        Ok(())
    }

    /// Where errors are collected, keeps those of the file and goes on; otherwise, and where the system refused, gives them back.
    pub fn go_on(&mut self, error: Error) -> Result<()> {
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

    /// Adds what was found elsewhere.
    pub fn extend(&mut self, list: impl IntoIterator<Item = Diagnostic>) {
        list.into_iter().for_each(|fault| self.note(fault.rule, |_| fault));
    }

    /// Ends the list with the outcome of what it was for: the findings, if nothing failed; where errors are collected, all of them.
    pub fn finish<T>(&mut self, outcome: Result<T>) -> Result<(T, Vec<Diagnostic>)> {
        match outcome {
            Ok(read) if !self.failed => Ok((read, self.close())),
            Ok(_) => Err(Error::Diagnostics(self.close())),
            Err(error) => self.go_on(error).and_then(|()| Err(Error::Diagnostics(self.close()))),
        }
    }

    /// All findings, and how many there are besides.
    pub fn close(&mut self) -> Vec<Diagnostic> {
        let counts = std::mem::take(&mut self.counts);
        let beyond = counts.into_iter().filter_map(|(rule, count)| Some((rule, count.checked_sub(self.most)?)));
        let beyond = beyond.filter(|(_, count)| *count > 0);
        match self.more {
            None => {
                self.list.extend(beyond.map(|(rule, more)| Diagnostic::new(rule, format!("{more} more of this kind"))));
            }
            Some(rule) => {
                let more: usize = beyond.map(|(_, count)| count).sum();
                self.list.extend((more > 0).then(|| Diagnostic::new(rule, format!("{more} more findings"))));
            }
        }
        std::mem::take(&mut self.list)
    }

    /// Counts a finding; true if it is to be kept.
    fn count(&mut self, rule: &'static Rule) -> bool {
        let known = self.counts.iter().position(|(have, _)| *have == rule);
        let at = known.unwrap_or_else(|| {
            self.counts.push((rule, 0));
            self.counts.len() - 1
        });
        let (_, count) = &mut self.counts[at];
        *count += 1;
        *count <= self.most
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
            let mut findings = Diagnostics::new(policy, 9, None);
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
        for (more, counted) in [(None, "4 more of this kind"), (Some(rules::GGUF_MORE_FINDINGS), "4 more findings")] {
            let mut findings = Diagnostics::new(Policy::Lenient, 2, more);
            for _ in 0..6 {
                findings.note(rules::GGUF_NAME_LONG, |rule| Diagnostic::new(rule, "long"));
            }
            findings.note(rules::GGUF_HOLE, |rule| Diagnostic::new(rule, "hole"));
            let list = findings.close();
            let causes: Vec<&str> = list.iter().map(|fault| &*fault.message).collect();
            assert_eq!(causes, ["long", "long", "hole", counted]);
        }
    }

    #[test]
    fn an_error_takes_all_findings_with_it_where_they_are_collected() {
        let [long, _, overlap] = faults();
        for policy in [Policy::Strict, Policy::CollectAll] {
            let mut findings = Diagnostics::new(policy, 9, None);
            findings.note(long.rule, |_| long.clone());
            let error = findings.finish::<()>(Err(overlap.clone().format())).unwrap_err();
            assert_eq!(error.diagnostic(), Some(&overlap));
            assert_eq!(matches!(error, Error::Diagnostics(list) if list.len() == 2), policy == Policy::CollectAll);
        }
    }
}
