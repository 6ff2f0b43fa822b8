//! The files of one folder, for checks that compare files.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use max_weights::error::{Diagnostics, MAX_FINDINGS, Policy};
use max_weights::rules::{Rule, Verdict};
use max_weights::source::Source;
use max_weights::workers::Interrupt;
use max_weights::{Catalog, Diagnostic, Result};

use crate::bytes::OpenFile;
use crate::code_digest::{self, DigestBytes};
use crate::context::in_time;
use crate::kind::Kind;
use crate::options::{RuleState, ValidateOptions};
use crate::progress::ValidateProgress;
use crate::report::{Depth, TensorSummary};

/// One file of a folder.
#[derive(Debug, Clone)]
pub struct ListedFile {
    /// Its path, or its printable URL.
    pub path: Arc<Path>,
    /// The path or URL that it is opened by.
    pub at: Arc<Path>,
    /// The file of a server that stays open.
    pub opened: Option<Arc<dyn Source>>,
    /// The path below what was given, with `/`.
    pub below: String,
    /// What it is.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// What its header says, where it is a file of weights that can be opened.
    pub catalog: Option<Arc<Catalog>>,
}

impl ListedFile {
    /// The name without folders.
    pub fn name(&self) -> &str {
        self.below.rsplit('/').next().unwrap_or(&self.below)
    }

    /// Its bytes.
    pub fn open<'a>(&self, interrupt: Interrupt<'a>) -> Result<OpenFile<'a>> {
        match &self.opened {
            Some(source) => Ok(OpenFile::new(source.clone(), interrupt)),
            None => OpenFile::open(&self.at, interrupt),
        }
    }
}

/// All files in one folder, without those in folders of it.
#[derive(Debug, Clone)]
pub struct FolderListing {
    /// The folder.
    pub path: Arc<Path>,
    /// Whether all files of it were given: not only one of them.
    pub is_whole: bool,
    /// Its files, by name.
    pub files: Vec<ListedFile>,
}

impl FolderListing {
    /// The file of this name.
    pub fn file(&self, name: &str) -> Option<&ListedFile> {
        self.files.iter().find(|entry| entry.name() == name)
    }
}

/// What the check of a folder found.
pub struct FolderReport {
    /// The findings.
    pub findings: Vec<Diagnostic>,
    /// How many were not kept, as there were many of their rule.
    pub omitted: u64,
    /// How deep files were looked into.
    pub depths: Vec<(Arc<Path>, Depth)>,
    /// What tensors are like.
    pub tensors: Vec<TensorSummary>,
    /// Of the files that have findings that are not asked for, the rule of the worst of them.
    pub excepted: HashMap<Arc<Path>, &'static Rule>,
}

/// The check of one folder.
pub struct FolderContext<'a> {
    /// The options.
    pub options: &'a ValidateOptions,
    /// Asked at least every few milliseconds.
    pub interrupt: Interrupt<'a>,
    findings: Diagnostics,
    depths: Vec<(Arc<Path>, Depth)>,
    tensors: Vec<TensorSummary>,
    excepted: HashMap<Arc<Path>, &'static Rule>,
    codes: HashMap<Arc<Path>, DigestBytes>,
    folder: Option<&'a FolderListing>,
    all: Option<&'a HashSet<Arc<Path>>>,
    deadline: Option<Instant>,
    progress: Option<&'a ValidateProgress>,
}

impl<'a> FolderContext<'a> {
    /// The check of a folder.
    pub fn new(options: &'a ValidateOptions, interrupt: Interrupt<'a>) -> Self {
        Self {
            options,
            interrupt,
            findings: Diagnostics::new(Policy::CollectAll, MAX_FINDINGS),
            depths: Vec::new(),
            tensors: Vec::new(),
            excepted: HashMap::new(),
            codes: HashMap::new(),
            folder: None,
            all: None,
            deadline: None,
            progress: None,
        }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn until(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// Sets the folder whose files it is about.
    #[must_use]
    pub fn of(self, folder: &'a FolderListing) -> Self {
        Self { folder: Some(folder), ..self }
    }

    /// Sets the paths of all files that are looked at, in any folder.
    #[must_use]
    pub fn among(self, all: &'a HashSet<Arc<Path>>) -> Self {
        Self { all: Some(all), ..self }
    }

    /// Whether a file is one of those that are looked at.
    pub fn is_looked_at(&self, path: &Path) -> bool {
        self.all.is_some_and(|all| all.contains(path))
    }

    /// Sets what counts how far this is.
    #[must_use]
    pub fn counting(self, progress: &'a ValidateProgress) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// The deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// An error if the work is to end: by Ctrl-C, or as time has run out while this was looked at. To be asked at least every few milliseconds.
    pub fn check_cancelled(&self, path: &Path) -> Result<()> {
        in_time(self.deadline, path)?;
        (self.interrupt)()
    }

    /// What counts how far this is.
    pub fn progress(&self) -> Option<&'a ValidateProgress> {
        self.progress
    }

    /// Says how deep a file was looked into, if deeper than before.
    pub fn looked(&mut self, path: &Arc<Path>, depth: Depth) {
        self.depths.push((path.clone(), depth));
    }

    /// Keeps a finding about a file, unless its rule is not asked for.
    pub fn report(&mut self, path: &Arc<Path>, mut finding: Diagnostic) {
        let rule = finding.rule;
        match self.options.asks_for(rule) {
            RuleState::Yes => {}
            RuleState::No => return,
            RuleState::NotButCounts => {
                let worst = self.excepted.entry(path.clone()).or_insert(rule);
                if rule.verdict > worst.verdict {
                    *worst = rule;
                }
                return;
            }
        }
        if rule.verdict >= Verdict::NeedsTrust && finding.code.is_none() {
            finding.code = Some(self.code(path));
        }
        finding.path = Some(path.clone());
        self.findings.add(finding);
    }

    /// The digest of a file that runs code.
    fn code(&mut self, path: &Arc<Path>) -> DigestBytes {
        let interrupt = self.interrupt;
        let entry = self.folder.and_then(|folder| folder.files.iter().find(|entry| entry.path == *path));
        let open = || entry.map_or_else(|| OpenFile::open(path, interrupt), |entry| entry.open(interrupt));
        *self.codes.entry(path.clone()).or_insert_with(|| {
            let digest = open().and_then(|file| code_digest::digest(&file, &AtomicU64::new(0), interrupt));
            digest.unwrap_or_else(|_| code_digest::unlike_any())
        })
    }

    /// Keeps what a tensor is like, for the drawings of the report.
    pub fn summarise(&mut self, tensor: TensorSummary) {
        self.tensors.push(tensor);
    }

    /// What was found.
    pub fn finish(self) -> FolderReport {
        let Self { findings, depths, tensors, excepted, .. } = self;
        let omitted = findings.dropped() as u64;
        FolderReport { findings: findings.into_list(), omitted, depths, tensors, excepted }
    }
}
