//! Opens checkpoints: reads headers, sorts names, and compares an index. No tensor is read.

use std::path::PathBuf;
use std::sync::Arc;

use super::delta;
use super::files::{FileOpener, read_header};
use super::locate::{INDEX_SUFFIX, LocatedFiles, ShardName, name_of};
use super::shards::Disagreements;
use super::{Catalog, Checkpoint, FileFacts, More, OpenOptions, ValueFile, distributed};
use crate::budget;
use crate::error::{Diagnostic, Diagnostics, Error, Policy, Result};
use crate::format::delta::{PREFIX, dialects};
use crate::format::gguf::split::{Shard, check_set};
use crate::format::{drive, index};
use crate::names::NameIndex;
use crate::rules;
use crate::source::Source;
use crate::source::store;
use crate::tensor::TensorTable;
use crate::text;

/// The combined headers of some files.
#[derive(Default)]
struct HeaderContentsOfAll {
    sources: Vec<Option<Arc<dyn Source>>>,
    files: Vec<FileFacts>,
    table: TensorTable,
    values: Vec<ValueFile>,
}

impl HeaderContentsOfAll {
    /// Adds a file, which begins with `first` if that was read.
    fn add(
        &mut self,
        source: Arc<dyn Source>,
        first: Option<Vec<u8>>,
        options: &OpenOptions,
        findings: &mut Diagnostics,
    ) -> Result<()> {
        if !self.files.is_empty() {
            (options.format.interrupt)()?;
        }
        let path = source.path();
        let (kind, header, more) = match read_header(&*source, first, options, findings) {
            Ok(read) => read,
            Err(error) => {
                self.add_nothing(path.into());
                return findings.record(error.at_path(path));
            }
        };
        let number = self.files.len() as u32;
        if self.table.is_empty() && number == 0 {
            self.table = header.tensors;
        } else {
            self.table.append(&header.tensors, number)?;
        }
        findings.extend(header.findings.into_iter().map(|finding| finding.path(path)));
        self.files.push(FileFacts { path: path.into(), kind: Some(kind), metadata: header.metadata, more });
        self.sources.push(Some(source));
        Ok(())
    }

    /// Keeps the number of a missing shard, without contents.
    fn add_nothing(&mut self, path: PathBuf) {
        self.files.push(FileFacts { path, kind: None, metadata: None, more: More::Nothing });
        self.sources.push(None);
    }

    fn finish(self, names: Option<NameIndex>, note: Option<String>, options: &OpenOptions) -> Result<HeadersRead> {
        let Self { sources, files, table, values } = self;
        NameIndex::probe(&table)?;
        let names = match names {
            Some(names) => names,
            None => NameIndex::new(&table).map_err(|pairs| {
                options.format.error_of(pairs.into_iter().map(|(a, b)| twice(&table, &files, a, b)))
            })?,
        };
        let findings = Vec::new();
        let (files, values) = (files.into(), values.into());
        Ok((Catalog { files, values, table, names, findings, note, composition: None }, sources))
    }

    /// Compares the split metadata in the files of a GGUF split set.
    fn check_split_set(&self, findings: &mut Diagnostics) -> Result<()> {
        let shards: Vec<Shard<'_>> = self
            .files
            .iter()
            .map(|file| Shard {
                path: &file.path,
                number: ShardName::of(&name_of(&file.path)).map(|shard| shard.number - 1),
                split: file.gguf().and_then(|gguf| gguf.split),
            })
            .collect();
        check_set(&shards, &self.table).into_iter().try_for_each(|fault| findings.report(fault)).map_err(Error::Format)
    }
}

/// The combined headers of all files; the source of a missing file is `None`.
type HeadersRead = (Catalog, Vec<Option<Arc<dyn Source>>>);

/// Opens one path of any kind, or a list of files.
pub(super) fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Checkpoint> {
    finish(paths, options, |findings| read(paths, options, findings))
}

/// Opens sources as the files of one checkpoint, which was requested as `opened`.
pub(super) fn open_sources(
    sources: Vec<Arc<dyn Source>>,
    opened: &[PathBuf],
    options: &OpenOptions,
) -> Result<Checkpoint> {
    finish(opened, options, |findings| read_sources(sources, options, findings))
}

/// The catalog of one file, which begins with `first`.
pub(super) fn catalog_of(file: Arc<dyn Source>, first: Vec<u8>, options: &OpenOptions) -> Result<Arc<Catalog>> {
    let read = |findings: &mut Diagnostics| {
        let mut contents = HeaderContentsOfAll::default();
        contents.add(file, Some(first), options, findings)?;
        finish_contents(contents, options, findings)
    };
    budget::interruptible(options.format.interrupt, || finish(&[], options, read)).map(|read| read.catalog)
}

/// The catalog of one file, and all findings about it. Other files of its set are not read.
pub(super) fn inspect(file: Arc<dyn Source>, options: &OpenOptions) -> Result<(Option<Catalog>, Vec<Diagnostic>)> {
    let mut findings = Diagnostics::new(Policy::CollectAll, usize::MAX);
    let mut contents = HeaderContentsOfAll::default();
    let read = contents.add(file, None, options, &mut findings).and_then(|()| contents.finish(None, None, options));
    match findings.finish(read) {
        Ok(((catalog, _), findings)) => Ok((Some(catalog), findings)),
        Err(Error::Diagnostics(findings)) => Ok((None, findings)),
        Err(error) => Err(error),
    }
}

fn finish(
    opened: &[PathBuf],
    options: &OpenOptions,
    read: impl FnOnce(&mut Diagnostics) -> Result<HeadersRead>,
) -> Result<Checkpoint> {
    // Each file's parser limits its own findings.
    let mut findings = Diagnostics::new(options.format.policy, usize::MAX);
    let read = read(&mut findings);
    let ((catalog, files), findings) = findings.finish(read)?;
    let catalog = Arc::new(Catalog { findings, ..catalog });
    let absolute = |path: &PathBuf| {
        if store::is_url(path) {
            return path.clone();
        }
        std::path::absolute(path).unwrap_or_else(|_| path.clone())
    };
    let (opened, options) = (opened.iter().map(absolute).collect(), options.clone());
    Ok(Checkpoint { catalog, files, opened, options })
}

fn read(paths: &[PathBuf], options: &OpenOptions, findings: &mut Diagnostics) -> Result<HeadersRead> {
    let files = &FileOpener::new(options);
    match paths {
        [] => Err(Error::Argument("no checkpoint files were given".into())),
        [path] => match files.locate(path)? {
            LocatedFiles::Files(paths) => open_files(files, &paths, options, findings),
            LocatedFiles::Index(index) => {
                let index = files.open(&index)?;
                open_index(files, &index, options, findings)
            }
            LocatedFiles::Opened(source) if name_of(source.path()).ends_with(INDEX_SUFFIX) => {
                open_index(files, &source, options, findings)
            }
            LocatedFiles::Opened(source) if name_of(source.path()) == dialects::MANIFEST => {
                Err(delta::alone(source.path()))
            }
            LocatedFiles::Opened(source) => read_sources(vec![source], options, findings),
            LocatedFiles::Distributed(metadata) => {
                let named = distributed::read(files.open(&metadata)?, &metadata, &options.format)?;
                let opened = files.open_each(&named.paths);
                open_distributed(named, opened, options, findings)
            }
            LocatedFiles::OfRanks(paths) => open_of_ranks(files, paths, options, findings),
        },
        paths => {
            let (base, deltas) = delta::base_and_deltas(files, paths, options)?;
            if deltas.is_empty() {
                return open_files(files, paths, options, findings);
            }
            let (base, sources) = read(base, options, findings)?;
            let (added, table, sources) = delta::compose(&base, sources, &deltas, &options.format.interrupt)?;
            let files = base.files.iter().cloned().chain(added).collect();
            HeaderContentsOfAll { sources, files, table, values: Vec::new() }.finish(None, None, options)
        }
    }
}

fn open_files(
    files: &FileOpener<'_>,
    paths: &[PathBuf],
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<HeadersRead> {
    read_sources(files.open_each(paths).into_iter().collect::<Result<_>>()?, options, findings)
}

fn read_sources(
    sources: Vec<Arc<dyn Source>>,
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<HeadersRead> {
    let mut contents = HeaderContentsOfAll::default();
    for source in sources {
        contents.add(source, None, options, findings)?;
    }
    finish_contents(contents, options, findings)
}

/// The checks across all files that have no index.
fn finish_contents(
    contents: HeaderContentsOfAll,
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<HeadersRead> {
    check_no_delta(&contents)?;
    let ggufs = contents.files.iter().filter_map(FileFacts::gguf);
    if ggufs.clone().count() > 1 || ggufs.clone().any(|gguf| gguf.split.is_some()) {
        contents.check_split_set(findings)?;
    }
    let note = alone(&contents.files);
    if let Some(note) = &note {
        let path = &contents.files[0].path;
        findings.note(rules::CHECKPOINT_SHARDS_ALONE, |rule| Diagnostic::new(rule, note.clone()).path(path));
    }
    contents.finish(None, note, options)
}

/// Fails if a file is a delta, even a damaged one: its tensors are not weights.
fn check_no_delta(contents: &HeaderContentsOfAll) -> Result<()> {
    let is_sparse =
        |file: &FileFacts| delta::is_delta(file.metadata.as_deref().unwrap_or_default(), &TensorTable::default());
    let own = contents.table.iter().find(|info| info.name.starts_with(PREFIX)).map(|info| info.file as usize);
    match own
        .and_then(|number| contents.files.get(number))
        .or_else(|| contents.files.iter().find(|file| is_sparse(file)))
    {
        Some(file) => Err(delta::alone(&file.path)),
        None => Ok(()),
    }
}

/// A note if the files are shards of a larger set.
fn alone(files: &[FileFacts]) -> Option<String> {
    let names: Vec<String> = files.iter().map(|file| name_of(&file.path)).collect();
    let first = ShardName::of(names.first()?)?;
    let of_the_set =
        |name: &String| ShardName::of(name).is_some_and(|shard| (shard.stem, shard.count) == (first.stem, first.count));
    if !names.iter().all(of_the_set) || names.len() >= first.count {
        return None;
    }
    Some(match names.len() {
        1 => format!("this is shard {} of {}, opened alone", first.number, first.count),
        opened => format!("these are {opened} of {} shards", first.count),
    })
}

fn open_index(
    files: &FileOpener<'_>,
    file: &Arc<dyn Source>,
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<HeadersRead> {
    let path = file.path();
    let parser = index::IndexParser::new(file.len(), &options.format);
    let index = drive(parser, &**file, &options.format.interrupt).map_err(|error| error.at_path(path))?;
    let folder = store::parent(path);
    let paths: Vec<PathBuf> = index.shards.iter().map(|shard| store::join(&folder, shard)).collect();

    let mut contents = HeaderContentsOfAll::default();
    let mut disagreements = Disagreements::new();
    let mut absent = vec![false; paths.len()];
    for (number, file) in files.open_each(&paths).into_iter().enumerate() {
        match file {
            Ok(file) => contents.add(file, None, options, findings)?,
            Err(Error::MissingFile { .. }) => {
                absent[number] = true;
                contents.add_nothing(paths[number].clone());
            }
            Err(error) => return Err(error),
        }
    }
    check_no_delta(&contents)?;
    disagreements.missing_shards(&paths, &index, &absent);
    // Includes broken files, if errors are collected.
    let missing: Vec<bool> = contents.sources.iter().map(Option::is_none).collect();
    NameIndex::probe(&contents.table)?;
    let names = NameIndex::new(&contents.table).ok();
    let names = names.filter(|names| index.agrees(&contents.table, names));
    if names.is_none() {
        disagreements.compare(&mut contents.table, &index, &paths, &missing);
    }
    if !missing.contains(&true) {
        disagreements.total_size(path, &index, &contents.table);
    }
    findings.extend(disagreements.finish(options.format.policy)?);
    contents.finish(names, None, options)
}

fn open_distributed(
    named: distributed::NamedFindings,
    opened: Vec<Result<Arc<dyn Source>>>,
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<HeadersRead> {
    let composed = distributed::compose(named, opened, &options.format)?;
    let distributed::ComposedFolder { sources, files, table, values, noted } = composed;
    findings.extend(noted.tolerated(options.format.policy)?);
    HeaderContentsOfAll { sources, files, table, values }.finish(None, None, options)
}

fn open_of_ranks(
    of: &FileOpener<'_>,
    paths: Vec<PathBuf>,
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<HeadersRead> {
    let mut files = Vec::with_capacity(paths.len());
    for file in of.open_each(&paths) {
        let file = file?;
        (options.format.interrupt)()?;
        let read = read_header(&*file, None, options, findings);
        let (_, header, _) = read.map_err(|error| error.at_path(file.path()))?;
        files.push((file, header));
    }
    let named = distributed::of_ranks(paths, &files)?;
    open_distributed(named, files.into_iter().map(|(file, _)| Ok(file)).collect(), options, findings)
}

fn twice(table: &TensorTable, files: &[FileFacts], a: usize, b: usize) -> Diagnostic {
    let (first, second) = (table.get(a.min(b)), table.get(a.max(b)));
    let [first_path, second_path] = [first, second].map(|info| text::path(&files[info.file as usize].path));
    let cause = format!("the same name is in {first_path} and in {second_path}");
    let fault =
        Diagnostic::new(rules::CHECKPOINT_DUPLICATE, cause).tensor(second.name).path(&files[second.file as usize].path);
    fault.offset(second.span.start())
}
