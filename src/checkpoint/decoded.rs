//! Decoded weights: each replaces its packed tensor and the tensors that belong to it. Rows are decoded in batches while they are read. The caller
//! supplies the decoder, so no quantization scheme is known here.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{Catalog, Checkpoint, FileFacts, More};
use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{self, FileIdentity, IdentityKind, Origin};
use crate::names::NameIndex;
use crate::rules;
use crate::source::{Filesystem, ReadRange, Source};
use crate::tensor::{Element, Span, TensorInfo, TensorTable, checked_bytes};
use crate::text;
use crate::workers::Interrupt;

/// The alignment of tensors in the combined source.
const ALIGN: u64 = 64;
/// The bytes of a weight that are decoded at a time; at least the rows that must be decoded together.
const AT_A_TIME: u64 = 4 << 20;
/// A metadata key of torchao's files, which lists the quantized tensors.
const LISTED: &str = "tensor_names";

/// How a weight is divided for decoding: matrices of equally many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grain {
    /// The elements of a row; the very last row may be shorter.
    pub row: u64,
    /// The rows of a matrix.
    pub rows: u64,
    /// Ranges of rows begin at multiples of this, and end at one or at the end of the matrix.
    pub align: u64,
}

/// The decoder of one weight.
pub trait Decode: Send + Sync + fmt::Debug {
    /// How the weight is divided.
    fn grain(&self) -> Grain;

    /// Decodes rows of one of its matrices: elements in C order without gaps, in the dtype of the weight.
    ///
    /// # Errors
    /// The tensors cannot be read; invalid elements.
    fn rows(&self, checkpoint: &Checkpoint, matrix: u64, rows: Range<u64>, interrupt: Interrupt<'_>) -> Result<Buffer>;
}

/// A weight that is decoded when it is read.
#[derive(Debug)]
pub struct DecodedWeight {
    /// Its name.
    pub name: String,
    /// Its dtype, of whole bytes.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The number of the tensor that it replaces.
    pub packed: usize,
    /// The numbers of all tensors that it is decoded from.
    pub parts: Vec<usize>,
    /// The decoder.
    pub decode: Box<dyn Decode>,
}

/// A decoded weight in the combined source.
#[derive(Debug)]
struct PlacedWeight {
    start: u64,
    len: u64,
    item: u64,
    decode: Box<dyn Decode>,
}

impl PlacedWeight {
    /// Fills `out` with its bytes from `offset` on.
    fn fill(&self, of: &Checkpoint, offset: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let Grain { row, rows, align } = self.decode.grain();
        let (row, rows, align) = ((row * self.item).max(1), rows.max(1), align.max(1));
        let at_a_time = (AT_A_TIME / row).max(1).next_multiple_of(align);
        let end = offset + out.len() as u64;
        let mut at = offset;
        while at < end {
            interrupt()?;
            let matrix = at / row / rows;
            let first = at / row % rows / align * align;
            let requests = end.div_ceil(row) - matrix * rows;
            let last = requests.min(first + at_a_time).next_multiple_of(align).min(rows);
            let decoded = self.decode.rows(of, matrix, first..last, interrupt)?;
            let start = at - (matrix * rows + first) * row;
            let bytes = decoded.bytes().and_then(|bytes| bytes.get(start as usize..)).unwrap_or_default();
            let len = bytes.len().min((end - at) as usize);
            let place = (at - offset) as usize..(at - offset) as usize + len;
            match (out.get_mut(place), bytes.get(..len)) {
                (Some(place), Some(bytes)) if len > 0 => place.copy_from_slice(bytes),
                _ => return Err(Error::Argument(format!("decoded rows {first} to {last} have too few elements"))),
            }
            at += len as u64;
        }
        Ok(())
    }
}

/// The decoded weights, back to back.
#[derive(Debug)]
struct DecodedSource {
    /// The checkpoint with the packed tensors.
    of: Checkpoint,
    weights: Vec<PlacedWeight>,
    origin: Arc<Origin>,
}

impl Source for DecodedSource {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        for part in parts {
            let (start, end) = (part.offset, part.offset.saturating_add(part.bytes.len() as u64));
            if end > self.len() {
                return Err(self.origin.truncated());
            }
            let first = self.weights.partition_point(|weight| weight.start + weight.len <= start);
            for weight in self.weights.iter().skip(first).take_while(|weight| weight.start < end) {
                let own = start.max(weight.start)..end.min(weight.start + weight.len);
                let place = (own.start - start) as usize..(own.end - start) as usize;
                let out = part.bytes.get_mut(place).unwrap_or_default();
                weight.fill(&self.of, own.start - weight.start, out, interrupt)?;
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.of.files.iter().flatten().try_for_each(|file| file.check_unchanged())
    }

    fn filesystem(&self) -> Option<Filesystem> {
        self.of.files.iter().flatten().next()?.filesystem()
    }

    fn mapping(&self) -> Result<&Arc<memory::Storage>, &str> {
        Err("no file has the decoded weights")
    }
}

impl Checkpoint {
    /// The same checkpoint with these weights decoded, each in place of its packed tensor. Nothing is read.
    ///
    /// # Errors
    /// Two weights with one name; a size that overflows.
    pub fn with_decoded(&self, weights: Vec<DecodedWeight>) -> Result<Self> {
        let Some(first) = weights.first() else { return Ok(self.with_catalog(self.catalog.clone())) };
        let of = &self.catalog;
        let file_of_first = of.table.get(first.packed).file as usize;
        let file = of.files.len() as u32;
        let (mut end, mut placed) = (0_u64, Vec::with_capacity(weights.len()));
        let mut by_packed: HashMap<usize, (String, DType, Vec<u64>, Range<u64>)> = HashMap::new();
        let mut gone: HashSet<usize> = HashSet::new();
        for DecodedWeight { name, dtype, shape, packed, parts, decode } in weights {
            let size = checked_bytes(&shape, dtype).zip(dtype.bytes());
            let sizes = size.and_then(|(len, item)| {
                let start = end.checked_next_multiple_of(ALIGN)?;
                Some((start, len, item as u64, start.checked_add(len)?))
            });
            let Some((start, len, item, after)) = sizes else {
                let shown = text::escape(&name);
                return Err(Error::Argument(format!("'{shown}' of {dtype} in {} is too large", text::shape(&shape))));
            };
            end = after;
            placed.push(PlacedWeight { start, len, item, decode });
            gone.extend(parts);
            by_packed.insert(packed, (name, dtype, shape, start..start + len));
        }
        let decoded: HashSet<&String> = by_packed.values().map(|(name, ..)| name).collect();
        let mut table = TensorTable::with_capacity(of.table.len(), 0)?;
        let mut numbers = HashMap::new();
        for (number, info) in of.table.iter().enumerate() {
            if let Some((name, dtype, shape, bytes)) = by_packed.get(&number) {
                let span = Span::within(end, bytes.start, bytes.end - bytes.start)?;
                let element = Element::Plain(*dtype);
                table.push(&TensorInfo { name, element, shape, file, span, view: None })?;
            } else if !gone.contains(&number) {
                numbers.insert(number as u32, table.len() as u32);
                table.push(&info)?;
            }
        }
        NameIndex::probe(&table)?;
        let names = NameIndex::new(&table).map_err(|twice| {
            let (_, b) = twice.first().copied().unwrap_or_default();
            let cause = "a decoded weight would have this name, but another tensor already has it";
            let path = &of.files[file_of_first].path;
            Diagnostic::new(rules::NAMES_COLLISION, cause).tensor(table.name(b)).path(path).unsupported()
        })?;
        let FileFacts { path, kind, .. } = &of.files[file_of_first];
        let facts = FileFacts { path: path.clone(), kind: *kind, metadata: None, more: More::Decoded };
        let mut files: Vec<FileFacts> = of.files.iter().cloned().chain([facts]).collect();
        for metadata in files.iter_mut().filter_map(|file| file.metadata.as_mut()) {
            let before = metadata.len();
            metadata.retain(|(key, _)| !decoded.contains(key));
            if metadata.len() < before {
                metadata.retain(|(key, _)| key != LISTED); // the list of packed tensors
            }
        }
        let catalog = Catalog {
            files: files.into(),
            values: of.values.clone(),
            table,
            names,
            findings: of.findings.clone(),
            note: of.note.clone(),
            composition: of.composition.as_ref().map(|composition| Arc::new(composition.renumbered(&numbers))),
        };
        let origin = Origin {
            path: path.clone(),
            absolute: path.clone(),
            // In memory, so that no cache key is derived from it: another configuration decodes the same bytes differently.
            fingerprint: FileIdentity { len: end, identity: IdentityKind::Memory },
        };
        let of = self.with_catalog(of.clone());
        let source: Arc<dyn Source> = Arc::new(DecodedSource { of, weights: placed, origin: Arc::new(origin) });
        let files = self.files.iter().cloned().chain([Some(source)]).collect();
        let (opened, options) = (self.opened.clone(), self.options.clone());
        Ok(Self { catalog: Arc::new(catalog), files, opened, options })
    }
}
