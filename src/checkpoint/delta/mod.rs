//! A base and its deltas as one checkpoint. Unchanged tensors are those of the base; the others are composed when they are read. Tensors with deltas
//! of other libraries ([`DeltaDialect`]) are composed whole.
//!
//! Opening reads headers, and checks that the deltas form a chain. Blocks are verified when they are read, so that a wrong base is detected before
//! any of its values is used.

mod base;
mod check;
mod dialect;
mod identity;
mod open;
mod overlay;
mod patch;
mod source;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use once_cell::race::OnceBox;

pub(crate) use identity::{CheckpointIdentity, hash_of_block};

use super::{Catalog, FileFacts, More};
use crate::budget;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
pub use crate::format::delta::dialects::DeltaDialect;
use crate::format::delta::{self, COLUMNS, DeltaHeader, TensorsDigest};
use crate::format::{self, FormatKind};
use crate::names::NameIndex;
use crate::rules::{self, Rule};
use crate::source::{ReadRange, Source};
use crate::tensor::{Element, Span, TensorInfo, TensorTable};
use crate::text;
use crate::workers::Interrupt;
pub use check::ChangedElements;
pub(super) use dialect::is_delta;
pub(super) use open::base_and_deltas;
use overlay::DeltaLayer;
pub(crate) use overlay::Overlay;
use patch::Patch;
pub(crate) use patch::Patches;
pub(crate) use source::FAR_AT_A_TIME;
use source::{BaseBytes, ChangedTensor, ChangedTensors, OverlayChanges};

/// The alignment of tensors in the combined source.
const ALIGN: u64 = 64;

/// The sources of all files, by number; `None` for a missing one.
type Sources = Vec<Option<Arc<dyn Source>>>;

/// A delta: its file and header.
#[derive(Debug)]
pub struct OpenedDelta {
    /// The file; of several, the one that names them.
    source: Arc<dyn Source>,
    header: DeltaHeader,
    content: Content,
}

/// The contents of a delta.
#[derive(Debug)]
enum Content {
    /// Rows and records of changed tensors, and whole tensors.
    Blocks { table: TensorTable, names: NameIndex },
    /// Patches of another library, by tensor name.
    Patches { dialect: DeltaDialect, patches: BTreeMap<String, Arc<Patch>> },
}

/// Whether a file with these metadata and tensors is a delta of this library, even a damaged one.
pub(super) fn is_own(metadata: &[(String, String)], table: &TensorTable) -> bool {
    metadata.iter().any(|(key, _)| key == delta::KEY) || table.iter().any(|info| info.name.starts_with(delta::PREFIX))
}

/// The error for a delta that is opened without its base.
pub(super) fn alone(path: &Path) -> Error {
    let cause = "this is a delta: it has the changes since another version of the checkpoint, not weights";
    Diagnostic::new(rules::DELTA_ALONE, cause).path(path).format()
}

/// The error for a file that should be a delta.
pub(super) fn not_one(path: &Path) -> Error {
    let cause =
        format!("it is not a delta: the metadata of one have the key {}, or the keys of another library", delta::KEY);
    Diagnostic::new(rules::DELTA_HEADER, cause).path(path).format()
}

impl OpenedDelta {
    /// Creates a delta from a file with this header; `None` for another kind of file.
    pub(super) fn of_file(source: Arc<dyn Source>, mut header: format::FileHeader) -> Result<Option<Self>> {
        let metadata = header.metadata.take().unwrap_or_default();
        if is_own(&metadata, &header.tensors) {
            return Self::new(source, &metadata, header.tensors).map(Some);
        }
        dialect::of_file(source, &metadata, header)
    }

    /// Creates a delta from a file with these metadata and tensors.
    fn new(source: Arc<dyn Source>, metadata: &[(String, String)], table: TensorTable) -> Result<Self> {
        let declared = DeltaHeader::read(metadata, &table).map_err(|error| error.at_path(source.path()))?;
        NameIndex::probe(&table)?;
        let names = NameIndex::new(&table).map_err(|pairs| {
            let name = pairs.first().map_or("", |(tensor, _)| table.name(*tensor));
            let cause = "the delta has two tensors of this name";
            Diagnostic::new(rules::DELTA_HEADER, cause).tensor(name).path(source.path()).format()
        })?;
        Ok(Self { source, header: declared, content: Content::Blocks { table, names } })
    }

    /// Its header.
    pub fn header(&self) -> &DeltaHeader {
        &self.header
    }

    /// The path or URL of its file; of several, of the one that names them.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// Its file.
    pub(crate) fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Its form.
    pub fn dialect(&self) -> DeltaDialect {
        match &self.content {
            Content::Blocks { .. } => DeltaDialect::MaxWeights,
            Content::Patches { dialect, .. } => *dialect,
        }
    }

    /// The partly changed tensors, with dtype and shape if it gives them.
    pub fn changed(&self) -> impl Iterator<Item = (&str, Option<(&str, &[u64])>)> {
        let own = self.header.changed.iter().map(|(name, (dtype, shape, _))| (&**name, Some((&**dtype, &**shape))));
        let patches = match &self.content {
            Content::Blocks { .. } => None,
            Content::Patches { patches, .. } => Some(patches.keys().map(|name| (&**name, None))),
        };
        own.chain(patches.into_iter().flatten())
    }

    /// Whether it leads to another version.
    pub(crate) fn changes_anything(&self) -> bool {
        self.header.base != self.header.target
    }

    /// Its patch of a whole tensor.
    fn patch(&self, tensor: &str) -> Option<&Arc<Patch>> {
        match &self.content {
            Content::Blocks { .. } => None,
            Content::Patches { patches, .. } => patches.get(tensor),
        }
    }

    /// The tensors that it has whole: new ones, and those that mostly changed.
    pub fn whole(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        let table = match &self.content {
            Content::Blocks { table, .. } => Some(table),
            Content::Patches { .. } => None,
        };
        let whole = table.into_iter().flat_map(TensorTable::iter);
        whole.filter_map(|info| delta::of_values(info.name).map(|name| TensorInfo { name, ..info }))
    }

    /// Whether the tensor of this name exists in the base, and stays unchanged.
    pub(crate) fn leaves(&self, tensor: &str, interrupt: Interrupt<'_>) -> Result<bool> {
        let names = self.unchanged_names(interrupt)?;
        Ok(names.binary_search(&delta::hash_of_name(tensor)).is_ok())
    }

    /// The name hashes of all unchanged tensors; none for a delta of another library.
    pub(crate) fn unchanged_names(&self, interrupt: Interrupt<'_>) -> Result<Vec<u64>> {
        let Some(span) = self.span(delta::UNCHANGED, |info| info.element == Element::Plain(DType::UInt64)) else {
            return Ok(Vec::new());
        };
        let mut bytes = budget::zeroed(budget::saturating_usize(span.len()))?;
        self.source.read(&mut [ReadRange { offset: span.start(), bytes: &mut bytes }], interrupt)?;
        if delta::digest_of(&bytes) != self.header.unchanged {
            let cause = "the digest of the names of its unchanged tensors differs from its header";
            return Err(self.fault(rules::DELTA_HEADER, cause).offset(span.start()).format());
        }
        Ok(bytes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
    }

    /// A tensor that it has whole.
    fn whole_of(&self, name: &str) -> Option<TensorInfo<'_>> {
        let Content::Blocks { table, names } = &self.content else { return None };
        let info = table.get(names.find(table, &delta::values_of(name))?);
        Some(TensorInfo { name: delta::of_values(info.name)?, ..info })
    }

    fn fault(&self, rule: &'static Rule, cause: impl Into<String>) -> Diagnostic {
        Diagnostic::new(rule, cause).path(self.source.path())
    }

    /// The fault if the dtype or shape of an existing tensor differs from the delta's.
    fn misfit(&self, tensor: &str, element: &str, shape: &[u64]) -> Diagnostic {
        let (shape, changed) = (text::shape(shape), self.header.changed.get(tensor));
        let changed = changed.map(|(dtype, shape, _)| format!("{} in {}", text::escape(dtype), text::shape(shape)));
        let cause = format!(
            "it has {element} elements in the shape {shape}, but {} changed",
            changed.as_deref().unwrap_or("all of it")
        );
        self.fault(rules::DELTA_TENSOR, cause).tensor(tensor)
    }

    /// The place of one of its tensors, which must have such elements.
    fn span(&self, name: &str, is_right: impl Fn(&TensorInfo<'_>) -> bool) -> Option<Span> {
        let Content::Blocks { table, names } = &self.content else { return None };
        let info = table.get(names.find(table, name)?);
        is_right(&info).then_some(info.span)
    }

    /// Its changes to a tensor.
    fn layer(&self, tensor: &str) -> Result<DeltaLayer> {
        let is_records = |info: &TensorInfo<'_>| info.element == Element::Plain(DType::UInt8);
        let changes = self.span(&delta::changes_of(tensor), is_records);
        let digest = self.header.changed.get(tensor).map(|(.., digest)| digest.clone());
        let (Some(changes), Some(rows), Some(digest)) = (changes, self.rows(tensor), digest) else {
            let cause = format!(
                "it changed, but the delta lacks '{}' of bytes, or '{}' of {COLUMNS} columns of U64",
                text::escape(&delta::changes_of(tensor)),
                text::escape(&delta::blocks_of(tensor))
            );
            return Err(self.fault(rules::DELTA_TENSOR, cause).tensor(tensor).format());
        };
        let (delta, blocks) = (self.source.clone(), OnceBox::new());
        Ok(DeltaLayer { delta, changes, rows, digest, is_values: false, blocks })
    }

    /// The place of a tensor's rows.
    fn rows(&self, tensor: &str) -> Option<Span> {
        self.span(&delta::blocks_of(tensor), |info| {
            info.element == Element::Plain(DType::UInt64)
                && matches!(info.shape, [_, columns] if *columns == COLUMNS as u64)
        })
    }

    /// The rows that describe the elements of a whole tensor.
    fn values_layer(&self, tensor: &str) -> Result<DeltaLayer> {
        let (Some(rows), Some(digest)) = (self.rows(tensor), self.header.whole.get(tensor)) else {
            let cause = format!(
                "the delta has all of its elements, but lacks '{}' of {COLUMNS} columns of U64",
                text::escape(&delta::blocks_of(tensor))
            );
            return Err(self.fault(rules::DELTA_TENSOR, cause).tensor(tensor).format());
        };
        let changes = Span::within(rows.start(), rows.start(), 0)?;
        let (delta, digest, blocks) = (self.source.clone(), digest.clone(), OnceBox::new());
        Ok(DeltaLayer { delta, changes, rows, digest, is_values: true, blocks })
    }
}

/// Fails if a delta does not build on the one before it.
pub(crate) fn check_chain(deltas: &[OpenedDelta]) -> Result<()> {
    for pair in deltas.windows(2) {
        let [before, after] = pair else { continue };
        if let Some(cause) = dialect::mixed(before, after) {
            return Err(after.fault(rules::DELTA_CHAIN, cause).format());
        }
        if dialect::follows(before, after) {
            continue;
        }
        let (first, builds_on) = (text::path(before.source.path()), &after.header.base);
        let cause = if before.header.base == after.header.base && before.header.target == after.header.target {
            format!("it is the same change as '{first}', before it")
        } else if before.header.base == *builds_on {
            format!("it and '{first}', before it, both change the version {builds_on}: the chain forks")
        } else if let Some(other) = deltas.iter().find(|other| other.header.target == *builds_on) {
            format!("it builds on '{}', not on '{first}', before it", text::path(other.source.path()))
        } else {
            format!(
                "it changes the version {builds_on}, but '{first}', before it, results in {}: one between them is missing",
                before.header.target
            )
        };
        return Err(after.fault(rules::DELTA_CHAIN, cause).format());
    }
    Ok(())
}

/// Sorts the deltas of one folder by the order in which they build on each other.
///
/// # Errors
/// They do not form a single chain.
pub(super) fn in_order(mut deltas: Vec<OpenedDelta>) -> Result<Vec<OpenedDelta>> {
    if deltas.iter().any(|delta| delta.header.base.is_empty()) {
        deltas.sort_by_cached_key(|delta| dialect::number(&delta.header.target));
        check_chain(&deltas)?;
        return Ok(deltas);
    }
    // After an interrupted fold, the deltas that it replaces may still exist.
    let folds: Vec<DeltaHeader> =
        deltas.iter().filter(|delta| !delta.header.folded.is_empty()).map(|delta| delta.header.clone()).collect();
    deltas.retain(|delta| folds.iter().all(|fold| fold == &delta.header || !fold.replaces(&delta.header)));
    // A delta without changes leads to the version that it changes, and may be anywhere.
    if deltas.iter().any(|delta| delta.header.base != delta.header.target) {
        deltas.retain(|delta| delta.header.base != delta.header.target);
    }
    let mut chain: Vec<OpenedDelta> = Vec::with_capacity(deltas.len());
    while !deltas.is_empty() {
        let next = match chain.last() {
            None => {
                let is_first =
                    |delta: &OpenedDelta| deltas.iter().all(|other| other.header.target != delta.header.base);
                let first = deltas.iter().position(is_first);
                if let (None, [one, _, ..]) = (first, &*deltas) {
                    let cause =
                        "it and others of its folder form a cycle of versions: none is the first; pass them one by one";
                    return Err(one.fault(rules::DELTA_CHAIN, cause).format());
                }
                first
            }
            Some(last) => deltas.iter().position(|delta| delta.header.base == last.header.target),
        };
        // None of the rest builds on the last one: the error names the first of them.
        chain.push(deltas.swap_remove(next.unwrap_or_default()));
    }
    check_chain(&chain)?;
    Ok(chain)
}

/// The changes of deltas, in order, to a tensor of this dtype and shape.
pub(crate) fn overlay(
    deltas: &[OpenedDelta],
    name: &str,
    (dtype, shape): (DType, &[u64]),
    len: u64,
) -> Result<Overlay> {
    let (mut layers, mut values) = (Vec::new(), None);
    // Layers before a delta that has the whole tensor are irrelevant.
    let from = deltas.iter().rposition(|delta| delta.whole_of(name).is_some()).unwrap_or_default();
    for delta in deltas.get(from..).unwrap_or_default() {
        if let Some(info) = delta.whole_of(name) {
            if info.element != Element::Plain(dtype) || info.shape != shape {
                let (own, new) = (text::shape(shape), text::shape(info.shape));
                let cause = format!("it has {dtype} elements in the shape {own}, but is {} in {new} now", info.element);
                return Err(delta.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
            }
            (layers, values) = (vec![delta.values_layer(name)?], Some((delta.source.clone(), info.span)));
        }
        let Some((of, sizes, _)) = delta.header.changed.get(name) else { continue };
        if of != dtype.safetensors_name() || sizes != shape {
            return Err(delta.misfit(name, &dtype.to_string(), shape).format());
        }
        layers.push(delta.layer(name)?);
    }
    Ok(Overlay { name: name.to_owned(), len, width: delta::width(dtype), layers, values })
}

/// The patches of other libraries, in order, to a whole tensor; `None` if there are none.
pub(crate) fn patches(deltas: &[OpenedDelta], name: &str, (dtype, shape): (DType, &[u64])) -> Result<Option<Patches>> {
    let mut layers = Vec::new();
    for patch in deltas.iter().filter_map(|delta| delta.patch(name)) {
        patch.check_fits(dtype, shape)?;
        layers.push(patch.clone());
    }
    Ok((!layers.is_empty()).then(|| Patches { layers }))
}

/// A tensor of the combined checkpoint.
struct ComposedTensor<'a> {
    info: TensorInfo<'a>,
    /// The number of its file among all files.
    file: usize,
    layers: Vec<DeltaLayer>,
    patches: Vec<Arc<Patch>>,
}

impl<'a> ComposedTensor<'a> {
    fn new(info: TensorInfo<'a>, file: usize) -> Self {
        Self { info, file, layers: Vec::new(), patches: Vec::new() }
    }
}

/// Combines a base and deltas, in order: the files that they add, the table of tensors, and the sources of all files.
pub(super) fn compose(
    catalog: &Catalog,
    mut sources: Sources,
    deltas: &[OpenedDelta],
    interrupt: Interrupt<'_>,
) -> Result<(Vec<FileFacts>, TensorTable, Sources)> {
    check_chain(deltas)?;
    let before = sources.len();
    let mut tensors: HashMap<&str, ComposedTensor<'_>> = HashMap::with_capacity(catalog.table().len());
    let mut digest = TensorsDigest::default();
    let is_own = deltas.first().is_some_and(|delta| delta.dialect() == DeltaDialect::MaxWeights);
    for info in catalog.table().iter() {
        let file = info.file as usize;
        tensors.insert(info.name, ComposedTensor::new(info, file));
        if is_own {
            digest.add(info.name, &delta::dtype_name(info.element), info.shape);
        }
    }
    for (position, delta) in deltas.iter().enumerate() {
        if is_own {
            base::check_tensors(delta, &tensors, digest, interrupt)?;
        }
        if is_own && position == 0 {
            base::check_bytes(catalog, &sources, deltas, interrupt)?;
        }
        for name in &delta.header.removed {
            let Some(ComposedTensor { info, .. }) = tensors.remove(&**name) else {
                let cause = "it is removed, but is missing";
                return Err(delta.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
            };
            digest.remove(info.name, &delta::dtype_name(info.element), info.shape);
        }
        for (name, (dtype, shape, _)) in &delta.header.changed {
            let Some(ComposedTensor { info, layers, .. }) = tensors.get_mut(&**name) else {
                let cause = "it changed, but is missing";
                return Err(delta.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
            };
            let is_of_dtype = matches!(info.element, Element::Plain(own) if own.safetensors_name() == dtype);
            if !is_of_dtype || info.shape != shape {
                return Err(delta.misfit(name, &info.element.to_string(), info.shape).format());
            }
            layers.push(delta.layer(name)?);
        }
        for info in delta.whole() {
            let layers = vec![delta.values_layer(info.name)?];
            digest.add(info.name, &delta::dtype_name(info.element), info.shape);
            let new = ComposedTensor { layers, ..ComposedTensor::new(info, before + position) };
            if let Some(ComposedTensor { info, .. }) = tensors.insert(info.name, new) {
                digest.remove(info.name, &delta::dtype_name(info.element), info.shape);
            }
        }
        let Content::Patches { patches, .. } = &delta.content else { continue };
        for (name, patch) in patches {
            let Some(tensor) = tensors.get_mut(&**name) else {
                let cause = "it changed, but is missing";
                return Err(delta.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
            };
            let Element::Plain(dtype) = tensor.info.element else {
                let cause = format!("it changed, but its elements are {} in the base", tensor.info.element);
                return Err(delta.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
            };
            patch.check_fits(dtype, tensor.info.shape)?;
            tensor.patches.push(patch.clone());
        }
    }
    let all = tensors.into_values().collect();
    sources.extend(deltas.iter().map(|delta| Some(delta.source.clone())));
    let Some(last) = deltas.last() else { return Err(Error::Argument("no deltas were given".to_owned())) };
    let (table, changed) = changed(all, catalog, &sources, before, last)?;
    let whole = |tensor: &ChangedTensor| matches!(tensor.changes, OverlayChanges::Whole(_)).then_some(tensor.start);
    let wholes: Vec<u64> = changed.tensors().iter().filter_map(whole).collect();
    sources.push(Some(Arc::new(changed)));
    let facts = |delta: &OpenedDelta, more| {
        let (path, kind) = (delta.source.path().to_path_buf(), Some(FormatKind::Safetensors));
        FileFacts { path, kind, metadata: None, more }
    };
    let added = deltas.iter().map(|delta| facts(delta, More::Delta));
    Ok((added.chain([facts(last, More::Deltas(wholes.into()))]).collect(), table, sources))
}

/// The table of these tensors, and those that deltas change. The base has `before` files; changed tensors are in one more.
fn changed(
    mut all: Vec<ComposedTensor<'_>>,
    catalog: &Catalog,
    sources: &Sources,
    before: usize,
    last: &OpenedDelta,
) -> Result<(TensorTable, ChangedTensors)> {
    all.sort_unstable_by_key(|tensor| (tensor.file, tensor.info.span.start(), tensor.info.name));
    let mut table = TensorTable::with_capacity(all.len(), all.iter().map(|tensor| tensor.info.name.len()).sum())?;
    let (mut infos, mut changed, mut end) = (Vec::new(), Vec::new(), 0_u64);
    for ComposedTensor { info, file, layers, patches } in all {
        let is_same = layers.is_empty() && patches.is_empty();
        let (Element::Plain(dtype), Some(source), false) = (info.element, &sources[file], is_same) else {
            table.push(&TensorInfo { file: file as u32, ..info })?;
            continue;
        };
        if info.view.is_some() || file < before && catalog.is_big_endian(file as u32) {
            let cause = "a delta changes it, but its bytes in the base are not contiguous and little-endian";
            let fault = Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(info.name).path(source.path());
            return Err(fault.help("save the base as a safetensors file, and pass that").format());
        }
        let (len, start) = (info.span.len(), end.next_multiple_of(ALIGN));
        let base = match catalog.files().get(file).map(|file| &file.more) {
            Some(More::Distributed(folder)) => BaseBytes::Pieces(folder.clone(), info.span.start()),
            _ => BaseBytes::Run(source.clone(), info.span),
        };
        end = start + len;
        let changes = if patches.is_empty() {
            let (name, width) = (info.name.to_owned(), delta::width(dtype));
            OverlayChanges::Blocks(Overlay { name, len, width, layers, values: None })
        } else {
            OverlayChanges::Whole(Patches { layers: patches })
        };
        infos.push(info);
        changed.push(ChangedTensor { base, len, changes, start });
    }
    for (info, tensor) in infos.into_iter().zip(&changed) {
        let span = Span::within(end, tensor.start, tensor.len)?;
        table.push(&TensorInfo { file: sources.len() as u32, span, ..info })?;
    }
    Ok((table, ChangedTensors::new(last.source.clone(), changed, end)))
}
