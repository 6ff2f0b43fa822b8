//! Checkpoints of `torch.distributed.checkpoint`: a folder whose `.metadata`, or each of whose safetensors files, locates the pieces of tensors.
//!
//! A tensor is a recipe of its pieces ([`FolderPieces`]), and is read like any other recipe. No bytes are read from the folder itself: the offsets in
//! its table only order the tensors.

mod item;
mod pieces;
mod unpacked;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FileFacts, More, ValueFile};
use crate::budget;
use crate::buffer::row_major;
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::distributed::{self, Distributed, DistributedItem, RankFile};
use crate::format::{FileHeader, FormatKind, HeaderOptions};
use crate::memory::Origin;
use crate::rules;
use crate::source::store;
use crate::source::{Filesystem, ReadRange, Source};
use crate::tensor::{Element, Span, TensorInfo, TensorTable, View};
use crate::text;
use crate::workers::Interrupt;
pub use pieces::FolderPieces;
pub(crate) use pieces::{PiecePlace, PlacedPiece};

/// The alignment of tensors in the combined source.
const ALIGN: u64 = 64;

/// The declared contents of a folder, with the paths of its files.
pub(super) struct NamedFindings {
    path: PathBuf,
    kind: FormatKind,
    declared: Distributed,
    pub(super) paths: Vec<PathBuf>,
    /// The source of the declaration; each load checks that it is unchanged.
    first: Arc<dyn Source>,
    metadata: Vec<(String, String)>,
    /// Faults of single tensors.
    noted: Diagnostics,
}

/// A folder as one source, its contents and its faults.
pub(super) struct ComposedFolder {
    /// The source of the tensors, followed by the files; `None` for a missing file.
    pub(super) sources: Vec<Option<Arc<dyn Source>>>,
    pub(super) files: Vec<FileFacts>,
    pub(super) table: TensorTable,
    pub(super) values: Vec<ValueFile>,
    pub(super) noted: Diagnostics,
}

/// Reads `.metadata`.
pub(super) fn read(file: Arc<dyn Source>, path: &Path, options: &HeaderOptions) -> Result<NamedFindings> {
    let most = distributed::most_bytes(&options.limits);
    if file.len() > most as u64 {
        let cause = format!("it has {} bytes; at most {most} are read", file.len());
        return Err(Diagnostic::new(rules::DISTRIBUTED_LIMIT, cause).path(path).format());
    }
    let mut bytes = budget::zeroed(file.len() as usize)?;
    file.read(&mut [ReadRange { offset: 0, bytes: &mut bytes }], &options.interrupt)?;
    let mut noted = distributed::findings();
    let declared = distributed::read(&bytes, &options.limits, &mut noted).map_err(|error| error.at_path(path))?;
    for finding in noted.list_mut() {
        finding.path = Some(path.into());
    }
    let folder = store::parent(path);
    let paths = declared.files.iter().map(|name| store::join(&folder, name)).collect();
    let metadata = declared.version.iter().map(|version| ("version".to_owned(), version.clone())).collect();
    let (path, kind, first) = (path.to_path_buf(), FormatKind::TorchDistributed, file);
    Ok(NamedFindings { path, kind, declared, paths, first, metadata, noted })
}

/// Reads the headers of files of ranks, each with pieces of tensors.
pub(super) fn of_ranks(paths: Vec<PathBuf>, files: &[(Arc<dyn Source>, FileHeader)]) -> Result<NamedFindings> {
    let names: Vec<String> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let pairs = |header: &'_ FileHeader| -> Vec<(String, String)> { header.metadata.clone().unwrap_or_default() };
    let metadata: Vec<_> = files.iter().map(|(_, header)| pairs(header)).collect();
    let about: Vec<RankFile<'_>> = names
        .iter()
        .zip(files)
        .zip(&metadata)
        .map(|((name, (_, header)), pairs)| (&**name, &header.tensors, &**pairs))
        .collect();
    let mut noted = distributed::findings();
    let declared = distributed::of_ranks(&about, &mut noted)?;
    let Some((first, _)) = files.first() else {
        return Err(Error::Argument("no checkpoint files were given".into()));
    };
    for finding in noted.list_mut() {
        finding.path = Some(first.path().into());
    }
    let path = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("")).to_path_buf();
    let (kind, metadata) = (FormatKind::Safetensors, Vec::new());
    Ok(NamedFindings { path, kind, declared, paths, first: first.clone(), metadata, noted })
}

/// Combines the files, which are in the order of [`NamedFindings::paths`].
pub(super) fn compose(
    named: NamedFindings,
    files: Vec<Result<Arc<dyn Source>>>,
    options: &HeaderOptions,
) -> Result<ComposedFolder> {
    let NamedFindings { path, kind, declared, paths, first, metadata, mut noted } = named;
    let mut sources: Vec<Option<Arc<dyn Source>>> = budget::list(files.len())?;
    for file in files {
        sources.push(match file {
            Ok(file) => Some(file),
            Err(Error::MissingFile { .. }) => None,
            Err(error) => return Err(error),
        });
    }
    let kept = check_items(&declared, &path, &paths, &sources, &mut noted)?;
    let (table, starts) = table(&declared, &kept)?;
    let (values, unread) = values::read(&declared, &paths, &sources, options)?;
    if unread > 0 {
        noted.note(rules::DISTRIBUTED_VALUES, |rule| {
            let values = text::plural(unread as u64, "value");
            Diagnostic::new(rule, format!("{values} of {} are not read", declared.values.len())).path(&path)
        });
    }
    let pieces =
        Arc::new(FolderPieces::new(Arc::new(declared), &starts, paths.clone(), &sources, 1, options.interrupt)?);
    let mut facts = budget::list(paths.len() + 1)?;
    let more = More::Distributed(pieces.clone());
    facts.push(FileFacts { path, kind: Some(kind), metadata: Some(metadata), more });
    let present = paths.iter().zip(&sources).map(|(path, source)| (path.clone(), source.as_ref().map(|_| kind)));
    facts.extend(present.map(|(path, kind)| FileFacts { path, kind, metadata: None, more: More::Nothing }));
    sources.insert(0, Some(Arc::new(FolderRecord { first, pieces })));
    Ok(ComposedFolder { sources, files: facts, table, values, noted })
}

/// The source that represents a folder: its metadata file. No tensor is read from it.
#[derive(Debug)]
struct FolderRecord {
    first: Arc<dyn Source>,
    pieces: Arc<FolderPieces>,
}

impl Source for FolderRecord {
    fn origin(&self) -> &Arc<Origin> {
        self.first.origin()
    }

    fn read(&self, _: &mut [ReadRange<'_>], _: Interrupt<'_>) -> Result<()> {
        let path = text::path(self.path());
        Err(Error::Argument(format!("{path}: tensors of a distributed checkpoint are read from its other files")))
    }

    fn check_unchanged(&self) -> Result<()> {
        self.first.check_unchanged()
    }

    /// Locates the item of each piece.
    fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        self.pieces.faults(interrupt)
    }

    fn filesystem(&self) -> Option<Filesystem> {
        self.first.filesystem()
    }
}

/// The table of tensors, and the number and catalog offset of each.
type PlacedTensors = (TensorTable, Vec<(usize, u64)>);

/// The table of the tensors that are kept.
fn table(declared: &Distributed, kept: &[bool]) -> Result<PlacedTensors> {
    let tensors = || declared.tensors.iter().enumerate().filter(|(number, _)| kept[*number]);
    let overflow = || Error::Argument("the tensors have more bytes than can be counted".to_owned());
    let (mut starts, mut end) = (budget::list(declared.tensors.len())?, 0_u64);
    for (number, tensor) in tensors() {
        let start = end.checked_next_multiple_of(ALIGN).ok_or_else(overflow)?;
        // Each has a unique offset, by which its pieces are found.
        let after = start.checked_add(declared.bytes(tensor).max(1));
        end = after.filter(|end| i64::try_from(*end).is_ok()).ok_or_else(overflow)?;
        starts.push((number, start));
    }
    let names = tensors().map(|(_, tensor)| tensor.name.len()).sum();
    let mut table = TensorTable::with_capacity(starts.len(), names)?;
    for ((_, tensor), (_, start)) in tensors().zip(&starts) {
        let (shape, span) = (declared.shape(tensor), Span::within(end, *start, declared.bytes(tensor))?);
        let element = tensor.dtype.dtype().map_or(Element::Torch(tensor.dtype), Element::Plain);
        let strides: Vec<u64> = match element {
            Element::Plain(_) => Vec::new(),
            _ => {
                row_major(&shape.iter().map(|dim| *dim as i64).collect::<Vec<_>>()).iter().map(|n| *n as u64).collect()
            }
        };
        // The bytes of an element whose type only PyTorch has are a separate axis, as in other PyTorch files.
        let view = View { strides: &strides, storage: span, inflated: None, start: 0 };
        let view = matches!(element, Element::Torch(_)).then_some(view);
        table.push(&TensorInfo { name: &tensor.name, element, shape, file: 0, span, view })?;
    }
    Ok((table, starts))
}

/// Compares items with their files, and decides which tensors can be read; the others fail when they are read.
fn check_items(
    declared: &Distributed,
    path: &Path,
    paths: &[PathBuf],
    sources: &[Option<Arc<dyn Source>>],
    noted: &mut Diagnostics,
) -> Result<Vec<bool>> {
    let mut kept = vec![true; declared.tensors.len()];
    let mut missing = vec![0_usize; paths.len()];
    let mut items: Vec<(&DistributedItem, Option<usize>)> = budget::list(declared.count() + declared.values.len())?;
    items.extend(declared.values.iter().map(|value| (&value.item, None)));
    for (number, tensor) in declared.tensors.iter().enumerate() {
        for (_, sizes, item) in declared.pieces(tensor) {
            let needed = sizes.iter().product::<u64>() * tensor.dtype.bytes();
            if item.length < needed && item.transform.is_none() {
                noted.note(rules::DISTRIBUTED_SIZE, |rule| {
                    let cause = format!(
                        "its piece of shape {} takes {needed} bytes, but the item in '{}' has {}",
                        text::shape(sizes),
                        text::path(&paths[item.file as usize]),
                        item.length
                    );
                    Diagnostic::new(rule, cause).tensor(&tensor.name).path(path)
                });
                kept[number] = false;
            }
            items.push((item, Some(number)));
        }
    }
    let name_of = |number: &Option<usize>| number.map(|number| &*declared.tensors[number].name);
    for (item, number) in &items {
        let file = item.file as usize;
        let Some(source) = &sources[file] else {
            missing[file] += 1;
            continue;
        };
        if item.offset + item.length > source.len() {
            noted.note(rules::DISTRIBUTED_OUTSIDE, |rule| {
                let tensor = name_of(number).map(str::to_owned);
                Diagnostic { tensor, ..item::outside(item, source.len(), rule).path(&paths[file]) }
            });
        }
    }
    for (path, count) in paths.iter().zip(&missing).filter(|(_, count)| **count > 0) {
        noted.note(rules::DISTRIBUTED_MISSING_FILE, |rule| {
            let pieces = text::plural(*count as u64, "item");
            Diagnostic::new(rule, format!("the file is missing; .metadata puts {pieces} into it")).path(path)
        });
    }
    items.retain(|(item, _)| item.length > 0);
    items.sort_unstable_by_key(|(item, _)| (item.file, item.offset, item.length));
    for pair in items.windows(2) {
        let [(before, first), (after, second)] = pair else { continue };
        if before.file == after.file && before.offset + before.length > after.offset {
            noted.note(rules::DISTRIBUTED_SHARED_ITEM, |rule| {
                let other =
                    name_of(first).map_or_else(|| "a value".to_owned(), |name| format!("'{}'", text::escape(name)));
                let cause = format!("one of its items overlaps an item of {other}");
                let tensor = name_of(second).map(str::to_owned);
                let path = &paths[after.file as usize];
                Diagnostic { tensor, ..Diagnostic::new(rule, cause).path(path).offset(after.offset) }
            });
            for number in [first, second].into_iter().flatten() {
                kept[*number] = false;
            }
        }
    }
    Ok(kept)
}
