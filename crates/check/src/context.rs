//! The context of each check of one file: the options, and the collected findings.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use max_weights::error::{Diagnostics, MAX_FINDINGS, Policy};
use max_weights::format::torch_zip::{ALWAYS_INFLATED_BYTES, MAX_INFLATED_RATIO};
use max_weights::rules::{self, Verdict};
use max_weights::source::{Source, Spooled};
use max_weights::workers::Interrupt;
use max_weights::{Catalog, Diagnostic, Error, Result};

use crate::bytes::RandomRead;
use crate::code_digest::CodeDigests;
use crate::kind::Kind;
use crate::options::{RuleState, ValidateOptions};
use crate::report::{Depth, FileReport, Global, TensorSummary};

/// Unpacked data stays in memory up to this size, and spills to a temporary file beyond.
const UNPACKED_IN_MEMORY: usize = 8 << 20;

/// Maximum number of distinct globals listed for one file.
const MAX_GLOBALS: usize = 10_000;
/// The contents of a file may be examined this many times in all: once at each depth, and as several formats. This bounds contents that overlap
/// or refer back to themselves …
const MAX_LOOKS: u64 = 16;
/// … except for this many bytes, which take no noticeable time.
const ALWAYS_LOOKED_AT: u64 = 64 << 20;

/// Some bytes that are looked at: a file, or a member of an archive in it.
#[derive(Clone, Copy)]
pub struct ByteSpan<'a> {
    /// The bytes.
    pub bytes: &'a dyn RandomRead,
    /// The name of the file or member, for formats that are recognised by suffixes.
    pub name: &'a str,
    /// The way to the member through archives; `None` for the file itself.
    pub member: Option<&'a str>,
    /// How many archives it is in.
    pub depth: usize,
}

impl<'a> ByteSpan<'a> {
    /// A whole file.
    pub fn file(bytes: &'a dyn RandomRead, name: &'a str) -> Self {
        Self { bytes, name, member: None, depth: 0 }
    }

    /// The path to a member of this archive, with its printable name.
    pub fn way_to(&self, name: &str) -> String {
        let name = max_weights::text::escape(name);
        self.member.map_or_else(|| name.clone(), |outer| format!("{outer}!/{name}"))
    }

    /// A member of this archive; `way` is [`ByteSpan::way_to`] it.
    pub fn inside<'b>(&self, bytes: &'b dyn RandomRead, name: &'b str, way: &'b str) -> ByteSpan<'b> {
        ByteSpan { bytes, name, member: Some(way), depth: self.depth + 1 }
    }
}

/// What is known of the values of arrays in files that are not checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    /// What those are like that were read.
    pub(crate) drawn: Vec<TensorSummary>,
    /// How many were not read.
    pub(crate) unread: u64,
    /// Why the first of those was not.
    pub(crate) why: Option<String>,
}

/// The check of one file.
pub struct FileContext<'a> {
    /// The options.
    pub options: &'a ValidateOptions,
    /// What is known of the file.
    pub file: FileReport,
    /// What the header of a file of weights contains, for checks that compare files.
    pub catalog: Option<Arc<Catalog>>,
    /// The file, as it was opened.
    pub(crate) source: Option<Arc<dyn Source>>,
    /// Whether the file was given by itself, and not the folder that it is in: then it is meant to be what its name says.
    pub(crate) is_given: bool,
    /// The arrays whose values were looked at.
    pub(crate) arrays: Arrays,
    findings: Diagnostics,
    codes: CodeDigests,
    /// The modules and names of the globals that are listed.
    globals: HashSet<(String, String)>,
    unpacked: u64,
    nested: u64,
    looked_at: u64,
    pace: CheckPace<'a>,
}

/// Checks for cancellation and the deadline.
#[derive(Clone)]
pub struct CheckPace<'a> {
    path: Arc<Path>,
    deadline: Option<Instant>,
    interrupt: Interrupt<'a>,
}

impl CheckPace<'_> {
    /// An error if the work is to end: by Ctrl-C, or as time has run out.
    pub fn check_cancelled(&self) -> Result<()> {
        in_time(self.deadline, &self.path).and_then(|()| (self.interrupt)())
    }
}

/// An error if the time for this file has run out.
pub(crate) fn in_time(deadline: Option<Instant>, path: &Path) -> Result<()> {
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(Error::io(path, "look at all of it in the given time", std::io::ErrorKind::TimedOut.into()));
    }
    Ok(())
}

impl<'a> FileContext<'a> {
    /// The check of this file.
    pub fn new(
        path: Arc<Path>,
        bytes: u64,
        kind: Kind,
        options: &'a ValidateOptions,
        interrupt: Interrupt<'a>,
    ) -> Self {
        let file = FileReport {
            path,
            kind: kind.name().to_owned(),
            bytes,
            depth: Depth::Recognised,
            note: None,
            answer: Verdict::Clean,
            reported: Verdict::Clean,
            excepted: false,
            members: 0,
            pickles: 0,
            globals: Vec::new(),
            tensors: None,
            parameters: None,
        };
        let deadline = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let pace = CheckPace { path: file.path.clone(), deadline, interrupt };
        Self {
            options,
            file,
            catalog: None,
            source: None,
            is_given: false,
            arrays: Arrays::default(),
            findings: Diagnostics::new(Policy::CollectAll, MAX_FINDINGS),
            codes: CodeDigests::default(),
            globals: HashSet::new(),
            unpacked: 0,
            nested: 0,
            looked_at: 0,
            pace,
        }
    }

    /// Sets the deadline, where one exists for all files together.
    pub fn until(&mut self, deadline: Option<Instant>) {
        self.pace.deadline = deadline;
    }

    /// An error if the work is to end: by Ctrl-C, or as time has run out. To be asked at least every few milliseconds.
    pub fn check_cancelled(&self) -> Result<()> {
        self.pace.check_cancelled()
    }

    /// What reading asks, which an error of another file's time does not end.
    pub fn interrupt(&self) -> Interrupt<'a> {
        self.pace.interrupt
    }

    /// What asks the same without the rest of this.
    pub fn pace(&self) -> CheckPace<'a> {
        self.pace.clone()
    }

    /// Keeps a finding about this piece, unless its rule is not asked for.
    pub fn report(&mut self, piece: &ByteSpan<'_>, mut finding: Diagnostic) {
        if finding.member.is_none() {
            finding.member = piece.member.map(str::to_owned);
            // What a file says of itself may lead beyond its end.
            finding.offset = finding.offset.filter(|offset| *offset <= piece.bytes.len());
        }
        let runs_code = finding.rule.verdict >= Verdict::NeedsTrust;
        if runs_code && finding.code.is_none() && self.options.asks_for(finding.rule) == RuleState::Yes {
            let (pace, whole) = (self.pace(), self.file.bytes);
            finding.code = Some(self.codes.of(piece.member, piece.bytes, whole, &|| pace.check_cancelled()));
        }
        self.report_here(finding);
    }

    /// Keeps a finding about the whole file, or one that knows its member.
    pub fn report_here(&mut self, mut finding: Diagnostic) {
        let rule = finding.rule;
        match self.options.asks_for(rule) {
            RuleState::Yes => {}
            RuleState::No => return,
            RuleState::NotButCounts => return self.file.except(rule),
        }
        // That the name says what the bytes are not, is found as a question of safety, too.
        if rule == rules::FILE_SUFFIX && self.findings.list().iter().any(|found| found.rule == rules::CONTAINER_SUFFIX)
        {
            return;
        }
        finding.path = Some(self.file.path.clone());
        // The look at what would be executed and the one at weights find some things both.
        if self.findings.add(finding) {
            self.file.answer = self.file.answer.max(rule.verdict);
            self.file.reported = self.file.reported.max(rule.verdict);
        }
    }

    /// Lists a class or function that a pickle names, once.
    pub fn global(&mut self, global: Global) {
        let has_space = self.file.globals.len() < MAX_GLOBALS;
        if has_space && self.globals.insert((global.module.clone(), global.name.clone())) {
            self.file.globals.push(global);
        }
    }

    /// Counts `bytes` more that are examined again, or separately; false if the limit is exceeded.
    #[must_use]
    pub fn look(&mut self, bytes: u64) -> bool {
        self.looked_at = self.looked_at.saturating_add(bytes);
        let present = self.file.bytes.saturating_add(self.unpacked);
        self.looked_at <= present.saturating_mul(MAX_LOOKS).saturating_add(ALWAYS_LOOKED_AT)
    }

    /// Counts `bytes` more unpacked from this file; false if the limit is exceeded.
    #[must_use]
    pub fn unpack(&mut self, bytes: u64) -> bool {
        self.unpacked = self.unpacked.saturating_add(bytes);
        // Many bombs in one file are one bomb.
        let beyond = self.unpacked > ALWAYS_INFLATED_BYTES && self.unpacked / MAX_INFLATED_RATIO > self.file.bytes;
        self.unpacked <= self.options.unpacked_bytes && !beyond
    }

    /// Counts `bytes` of a nested pickle; false if they are more than nesting without overlap allows.
    #[must_use]
    pub(crate) fn nest(&mut self, bytes: u64) -> bool {
        self.nested = self.nested.saturating_add(bytes);
        let present = self.file.bytes.saturating_add(self.unpacked);
        self.nested <= present.saturating_mul(self.options.nesting as u64)
    }

    /// A buffer for unpacked data: in memory while it is small, within the thread's share of the limit for all files.
    pub fn spooled(&self) -> Spooled {
        let share = self.options.max_memory.map(|most| most / max_weights::workers::threads() as u64);
        Spooled::within(share.map_or(UNPACKED_IN_MEMORY, |share| UNPACKED_IN_MEMORY.min(share as usize)))
    }

    /// Says how deep the file was looked into, if deeper than before.
    pub fn looked(&mut self, depth: Depth) {
        self.file.depth = self.file.depth.max(depth);
    }

    /// Says that the values of all arrays in the file were looked at, or why not.
    pub(crate) fn looked_at_arrays(&mut self) {
        let Arrays { unread, why, .. } = &self.arrays;
        if *unread == 0 {
            self.looked(Depth::Content);
        } else {
            let why = why.clone().unwrap_or_default();
            let note = format!("the values of {unread} arrays were not looked at: {why}");
            self.file.note.get_or_insert(note);
        }
    }

    /// The file, its findings (the worst first), and how many were left out.
    pub fn finish(self) -> (FileReport, Vec<Diagnostic>, u64) {
        let excluded = self.findings.dropped() as u64;
        let mut findings = self.findings.into_list();
        findings.sort_by_key(|finding| {
            (std::cmp::Reverse((finding.rule.verdict, finding.rule.severity)), finding.member.clone(), finding.offset)
        });
        (self.file, findings, excluded)
    }
}

#[cfg(test)]
mod tests {
    use max_weights::uninterrupted;

    use super::*;

    #[test]
    fn what_is_found_twice_is_neither_kept_nor_counted_twice() {
        let options = ValidateOptions::default();
        let mut context = FileContext::new(Path::new("a").into(), 1 << 20, Kind::Unknown, &options, &uninterrupted);
        for _ in 0..3 {
            for offset in 0..MAX_FINDINGS as u64 + 50 {
                context.report_here(Diagnostic::new(rules::FORMAT_UNKNOWN, "the same").offset(offset));
            }
        }
        let (file, findings, excluded) = context.finish();
        assert_eq!((findings.len(), excluded), (MAX_FINDINGS, 50));
        assert_eq!((file.answer, file.reported), (Verdict::Broken, Verdict::Broken));
    }
}
