//! Checkpoints of `torch.distributed.checkpoint` (DCP): from the pickle `.metadata` to tensors, their pieces, and the items of files that hold these.
//!
//! Every process of a training saves its parts of tensors. The pickle has the dtype, shape and chunks of each tensor, and the file, offset and
//! length of each chunk. Nothing that it names is called: the instances of torch's dataclasses are placeholders, whose attributes are read here.
//! Other names (plans, classes of other libraries) are listed.

mod attributes;
mod cover;
mod items;
mod of_ranks;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use attributes::{Attributes, TorchClass};
pub use cover::{Cover, cover};
use items::{OfName, PlaceContents, PlaceItems};
pub use of_ranks::{RankFile, is_of_rank, of_ranks};

use super::pickle::{self, GlobalUse, ObjectId, PersistentIds};
use super::{HeaderLimits, escape, shown_shape};
use crate::budget::{self, Budget, saturating_usize};
use crate::error::{Diagnostic, Diagnostics, MAX_FINDINGS, Policy, Result};
use crate::rules::{self, Rule};
use crate::tensor::{TorchDType, checked_elements};

/// The name of the file that describes the others.
pub const METADATA: &str = ".metadata";
/// The prefix of that file if each process wrote its own: `__0.metadata`.
pub const METADATA_PREFIX: &str = "__";
/// The suffix of the other files.
pub const SUFFIX: &str = ".distcp";
/// The most files of a checkpoint.
pub const MAX_FILES: usize = 1_000_000;

/// The content of `.metadata`.
#[derive(Debug, Default)]
pub struct Distributed {
    /// The version of the format.
    pub version: Option<String>,
    /// The files, by their paths below the folder, in the order in which they are named first.
    pub files: Vec<String>,
    /// The tensors, in the order of the state dict.
    pub tensors: Vec<DistributedTensor>,
    /// The values that are not tensors: counters, texts, settings.
    pub values: Vec<DistributedValue>,
    /// Every class and function that the pickle names. None is called.
    pub globals: Vec<GlobalUse>,
    /// Whether items are the elements of pieces in C order, and not files of torch.save.
    pub is_raw: bool,
    pieces: Vec<DistributedPiece>,
    dims: Vec<u64>,
}

/// A tensor.
#[derive(Debug)]
pub struct DistributedTensor {
    /// The name in the flattened state dict.
    pub name: String,
    /// The type of its elements.
    pub dtype: TorchDType,
    shape: Range<usize>,
    pieces: Range<usize>,
}

/// A box of a tensor, and its item.
#[derive(Debug, Clone)]
pub struct DistributedPiece {
    /// The first of the numbers of its box: where it begins on each axis, and its size on each.
    dims: usize,
    /// Where it is.
    pub item: DistributedItem,
}

/// A value that is not a tensor.
#[derive(Debug)]
pub struct DistributedValue {
    /// Its name.
    pub name: String,
    /// Where it is: as `torch.save` writes a value.
    pub item: DistributedItem,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedItem {
    /// The file, by its number.
    pub file: u32,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// The transformation of the bytes, such as `stream.zstd/1`.
    pub transform: Option<Arc<str>>,
}

impl Distributed {
    /// The shape of a tensor.
    pub fn shape(&self, tensor: &DistributedTensor) -> &[u64] {
        self.dims.get(tensor.shape.clone()).unwrap_or_default()
    }

    /// The pieces of a tensor: where each begins, its size, and its item. None is empty.
    pub fn pieces<'a>(
        &'a self,
        tensor: &DistributedTensor,
    ) -> impl ExactSizeIterator<Item = (&'a [u64], &'a [u64], &'a DistributedItem)> {
        let rank = tensor.shape.len();
        self.pieces.get(tensor.pieces.clone()).unwrap_or_default().iter().map(move |piece| {
            let dims = |start: usize| self.dims.get(start..start + rank).unwrap_or_default();
            (dims(piece.dims), dims(piece.dims + rank), &piece.item)
        })
    }

    /// How many pieces all tensors have.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// The bytes of a tensor, which [`read`] has counted.
    pub fn bytes(&self, tensor: &DistributedTensor) -> u64 {
        checked_elements(self.shape(tensor)).unwrap_or_default().saturating_mul(tensor.dtype.bytes())
    }
}

/// Reads `.metadata`; tensors with faults are reported, and left out.
pub fn read(bytes: &[u8], limits: &HeaderLimits, findings: &mut Diagnostics) -> Result<Distributed> {
    let limits = super::torch::pickle_limits(limits);
    let mut pickled = pickle::read(bytes, 0, &limits, PersistentIds::Refused)?;
    let mut budget = std::mem::replace(&mut pickled.budget, Budget::new(0));
    let classes = attributes::classes(&pickled);
    let mut reader = MetadataReader {
        attributes: Attributes::new(&pickled, &classes),
        budget: &mut budget,
        rank: limits.rank,
        found: Distributed::default(),
        files: HashMap::new(),
        last_file: None,
        transforms: HashMap::new(),
    };
    reader.read(pickled.root, findings)?;
    let found = reader.found;
    Ok(Distributed { globals: pickled.globals, ..found })
}

/// The error for content that torch does not write.
fn refused(cause: impl Into<String>) -> crate::error::Error {
    Diagnostic::new(rules::DISTRIBUTED_METADATA, cause).format()
}

struct MetadataReader<'a, 'b> {
    attributes: Attributes<'a>,
    budget: &'b mut Budget,
    rank: usize,
    found: Distributed,
    files: HashMap<&'a str, u32>,
    /// The one that was named last, as most are named again and again.
    last_file: Option<(ObjectId, u32)>,
    transforms: HashMap<ObjectId, Arc<str>>,
}

impl<'a> MetadataReader<'a, '_> {
    fn read(&mut self, root: ObjectId, findings: &mut Diagnostics) -> Result<()> {
        let attributes = self.attributes;
        let root = attributes.instance(root, TorchClass::Metadata, "the file")?;
        let [states] = attributes.required(root, ["state_dict_metadata"])?;
        let [version, storage] = attributes.optional(root, ["version", "storage_data"]);
        self.found.version = version.and_then(|version| attributes.text(version)).map(str::to_owned);
        let states = attributes.entries(states, "state_dict_metadata")?;
        let storage = match storage {
            Some(storage) => attributes.entries(storage, "storage_data")?,
            None => &[],
        };
        let mut items = PlaceItems::default();
        for (index, info) in storage {
            let index = attributes.instance(*index, TorchClass::MetadataIndex, "a key of storage_data")?;
            let [name, at] = attributes.optional(index, ["fqn", "offset"]);
            let name = match name {
                Some(name) => attributes.name(name)?,
                None => return Err(refused("a MetadataIndex has no 'fqn'")),
            };
            let start = items.offsets.len();
            if let Some(at) = at {
                self.dims_of(at, name, &mut items.offsets)?;
            }
            items.push(name, start, *info, self.budget)?;
        }
        items.sort(self.budget)?;
        for (name, about) in states {
            let name = attributes.name(*name)?;
            if attributes.is_instance(*about, TorchClass::BytesStorageMetadata) {
                self.value(name, items.of(name), findings)?;
            } else {
                self.tensor(name, *about, items.of(name), findings)?;
            }
        }
        let cause = "storage_data has an item of this name, and state_dict_metadata does not have the name";
        for name in items.others() {
            note(findings, rules::DISTRIBUTED_UNNAMED_ITEM, name, cause);
        }
        Ok(())
    }

    fn value(&mut self, name: &str, items: OfName<'_>, findings: &mut Diagnostics) -> Result<()> {
        let info = match items.at(&[]) {
            PlaceContents::Item(info) => info,
            PlaceContents::Nothing => {
                note(findings, rules::DISTRIBUTED_MISSING_ITEM, name, "storage_data does not say where the value is");
                return Ok(());
            }
            PlaceContents::Several => {
                note(findings, rules::DISTRIBUTED_DOUBLED_ITEM, name, "storage_data has several items of the value");
                return Ok(());
            }
        };
        let item = self.item(info)?;
        self.budget.take(name.len())?;
        self.budget.reserve(&mut self.found.values, 1)?;
        self.found.values.push(DistributedValue { name: name.to_owned(), item });
        Ok(())
    }

    fn tensor(&mut self, name: &str, about: ObjectId, items: OfName<'_>, findings: &mut Diagnostics) -> Result<()> {
        let attributes = self.attributes;
        let about = attributes.instance(about, TorchClass::TensorStorageMetadata, "an entry of state_dict_metadata")?;
        let [properties, size, chunks] = attributes.required(about, ["properties", "size", "chunks"])?;
        let dtype = attributes.dtype(properties)?;
        let chunks = attributes.list(chunks, "the chunks of a tensor")?;
        let (before, first) = (self.found.dims.len(), self.found.pieces.len());
        let mut dims = std::mem::take(&mut self.found.dims);
        let added = self.add_tensor(name, (size, dtype), chunks, items, &mut dims);
        let added = match added {
            Ok(Ok(shape)) => covered(&dims, shape, self.found.pieces.get(first..).unwrap_or_default()),
            Ok(Err(fault)) => Err(fault),
            Err(error) => return Err(error),
        };
        match added {
            Ok(shape) => {
                self.budget.take(name.len())?;
                self.budget.reserve(&mut self.found.tensors, 1)?;
                let pieces = first..self.found.pieces.len();
                self.found.tensors.push(DistributedTensor { name: name.to_owned(), dtype, shape, pieces });
            }
            Err((rule, cause)) => {
                note(findings, rule, name, cause);
                dims.truncate(before);
                self.found.pieces.truncate(first);
            }
        }
        self.found.dims = dims;
        Ok(())
    }

    /// Adds the shape and the pieces of a tensor, or returns its fault.
    fn add_tensor(
        &mut self,
        name: &str,
        (size, dtype): (ObjectId, TorchDType),
        chunks: &[ObjectId],
        items: OfName<'_>,
        dims: &mut Vec<u64>,
    ) -> Result<std::result::Result<Range<usize>, TensorFault>> {
        let attributes = self.attributes;
        let start = dims.len();
        self.dims_of(size, name, dims)?;
        let shape = start..dims.len();
        let whole = dims.get(shape.clone()).unwrap_or_default();
        let elements = checked_elements(whole).and_then(|elements| elements.checked_mul(dtype.bytes()));
        if elements.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            let cause = format!("its shape {} is more than can be counted", shown_shape(whole));
            return Ok(Err((rules::DISTRIBUTED_SHAPE, cause)));
        }
        for (number, chunk) in chunks.iter().enumerate() {
            let chunk = attributes.instance(*chunk, TorchClass::ChunkStorageMetadata, "a chunk of a tensor")?;
            let place = dims.len();
            let [offsets, sizes] = attributes.required(chunk, ["offsets", "sizes"])?;
            self.dims_of(offsets, name, dims)?;
            let middle = dims.len();
            self.dims_of(sizes, name, dims)?;
            let of = |range: Range<usize>| dims.get(range).unwrap_or_default();
            let (whole, offsets, sizes) = (of(shape.clone()), of(place..middle), of(middle..dims.len()));
            let fits = offsets.len() == whole.len()
                && sizes.len() == whole.len()
                && offsets
                    .iter()
                    .zip(sizes)
                    .zip(whole)
                    .all(|((at, size), dim)| at.checked_add(*size).is_some_and(|end| end <= *dim || *size == 0));
            if !fits {
                let cause = format!(
                    "chunk {number}, {} from {} on, reaches outside its shape {}",
                    shown_shape(sizes),
                    shown_shape(offsets),
                    shown_shape(whole)
                );
                return Ok(Err((rules::DISTRIBUTED_SHAPE, cause)));
            }
            // A rank without elements of a tensor saves a chunk of none.
            if sizes.contains(&0) {
                dims.truncate(place);
                continue;
            }
            let found = match items.at(offsets) {
                PlaceContents::Nothing if chunks.len() == 1 => items.at(&[]),
                found => found,
            };
            let begin = || shown_shape(offsets);
            let info = match found {
                PlaceContents::Item(info) => info,
                PlaceContents::Nothing => {
                    let cause =
                        format!("storage_data does not say where chunk {number} is, which begins at {}", begin());
                    return Ok(Err((rules::DISTRIBUTED_MISSING_ITEM, cause)));
                }
                PlaceContents::Several => {
                    let cause =
                        format!("storage_data has several items of chunk {number}, which begins at {}", begin());
                    return Ok(Err((rules::DISTRIBUTED_DOUBLED_ITEM, cause)));
                }
            };
            let item = self.item(info)?;
            self.budget.reserve(&mut self.found.pieces, 1)?;
            self.found.pieces.push(DistributedPiece { dims: place, item });
        }
        Ok(Ok(shape))
    }

    /// Adds the numbers of a `torch.Size`, within the limit of dimensions.
    fn dims_of(&mut self, id: ObjectId, name: &str, dims: &mut Vec<u64>) -> Result<()> {
        let sizes = self.attributes.sizes(id)?;
        if sizes.len() > self.rank {
            let cause = format!("'{}' has {} dimensions; at most {} are read", escape(name), sizes.len(), self.rank);
            return Err(refused(cause));
        }
        self.budget.reserve(dims, sizes.len())?;
        for size in sizes {
            dims.push(self.attributes.size(*size)?);
        }
        Ok(())
    }

    fn item(&mut self, info: ObjectId) -> Result<DistributedItem> {
        let attributes = self.attributes;
        let info = attributes.instance(info, TorchClass::StorageInfo, "a value of storage_data")?;
        let [path_id, offset, length] = attributes.required(info, ["relative_path", "offset", "length"])?;
        let [transforms] = attributes.optional(info, ["transform_descriptors"]);
        let (path, offset, length) = (attributes.name(path_id)?, attributes.size(offset)?, attributes.size(length)?);
        if offset.checked_add(length).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(refused(format!("an item of '{}' has {length} bytes from {offset} on", escape(path))));
        }
        let last = self.last_file.filter(|(id, _)| *id == path_id).map(|(_, file)| file);
        let file = match last.or_else(|| self.files.get(path).copied()) {
            Some(file) => file,
            None => self.file(path)?,
        };
        self.last_file = Some((path_id, file));
        let transform = match transforms {
            None => None,
            Some(id) => match self.transforms.get(&id) {
                Some(known) => Some(known.clone()),
                None => Some(self.transform(id)?),
            },
        };
        Ok(DistributedItem { file, offset, length, transform })
    }

    /// The number of a file that is named for the first time.
    fn file(&mut self, path: &'a str) -> Result<u32> {
        if self.found.files.len() >= MAX_FILES {
            return Err(refused(format!("it names more than {MAX_FILES} files")));
        }
        if !is_inside(path) {
            let cause = format!("an item is in '{}', which is not a file of the folder", escape(path));
            return Err(Diagnostic::new(rules::DISTRIBUTED_PATH, cause).format());
        }
        let number = budget::saturating_u32(self.found.files.len());
        self.budget.take(path.len())?;
        self.budget.reserve(&mut self.found.files, 1)?;
        self.budget.entry(&mut self.files)?;
        self.found.files.push(path.to_owned());
        self.files.insert(path, number);
        Ok(number)
    }

    fn transform(&mut self, id: ObjectId) -> Result<Arc<str>> {
        let list = self.attributes.list(id, "transform_descriptors")?;
        let names = list.iter().take(8).filter_map(|name| self.attributes.text(*name));
        let transform: Arc<str> = names.collect::<Vec<_>>().join(", ").into();
        self.budget.take(transform.len())?;
        self.budget.entry(&mut self.transforms)?;
        self.transforms.insert(id, transform.clone());
        Ok(transform)
    }
}

/// A fault of one tensor.
type TensorFault = (&'static Rule, String);

fn note(findings: &mut Diagnostics, rule: &'static Rule, name: &str, cause: impl Into<String>) {
    findings.note(rule, |rule| Diagnostic::new(rule, cause).tensor(name));
}

/// Whether the pieces of a tensor fill it, and none has elements of another.
fn covered(
    dims: &[u64],
    shape: Range<usize>,
    pieces: &[DistributedPiece],
) -> std::result::Result<Range<usize>, TensorFault> {
    let rank = shape.len();
    let whole = dims.get(shape.clone()).unwrap_or_default();
    let of = |start: usize| dims.get(start..start + rank).unwrap_or_default();
    let boxes: Vec<(&[u64], &[u64])> = pieces.iter().map(|piece| (of(piece.dims), of(piece.dims + rank))).collect();
    let begin = |number: usize| shown_shape(boxes.get(number).map_or(&[], |(start, _)| *start));
    match cover(whole, &boxes) {
        Cover::Whole => Ok(shape),
        Cover::Overlap(a, b) => {
            let cause = format!("the chunks that begin at {} and at {} have elements in common", begin(a), begin(b));
            Err((rules::DISTRIBUTED_OVERLAP, cause))
        }
        Cover::Hole { filled, all } => {
            let cause = format!("its chunks have {filled} of the {all} elements of its shape {}", shown_shape(whole));
            Err((rules::DISTRIBUTED_HOLE, cause))
        }
        Cover::Unknown => {
            let cause = format!("the arrangement of its {} chunks takes too long to check", boxes.len());
            Err((rules::DISTRIBUTED_LIMIT, cause))
        }
    }
}

/// Whether a path of a file stays below its folder on every system.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', ':', '\0'])
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// A list for faults of single tensors, all of which are checked.
pub fn findings() -> Diagnostics {
    Diagnostics::new(Policy::Lenient, MAX_FINDINGS)
}

/// How many bytes of `.metadata` are read at most.
pub fn most_bytes(limits: &HeaderLimits) -> usize {
    super::torch::pickle_limits(limits).pickle_bytes.min(saturating_usize(u64::from(u32::MAX)))
}
