//! Writes deltas in the forms of other libraries. One is a folder `weight_v000012` with the changes of each tensor as a zstd frame, and an index. The
//! other is a safetensors file of TRL with the positions of elements, as gaps, and their new values.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::json;
use zstd::stream::write::Encoder;

use super::delta::{DeltaSummary, VersionPair, compared};
use super::layout::{DeclaredTensor, StoredElements};
use super::spill::{Spill, SpilledPieces};
use super::version::VersionTensors;
use super::{PendingFile, SaveTarget, WriteOptions, check_safetensors_name};
use crate::delta::{BLOCK, ChangeScratch};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::dialects::{
    Checksum, DeltaDialect, DialectForm, Hasher, NOTHING, PositionGaps, names_of, narrowed, push_places,
};
use crate::source::Spooled;
use crate::source::store::is_url;
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// The file names that trainers use in a folder.
const FILE: &str = "model-00000-of-00001.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes of both versions read at a time, if blocks are shorter.
const READ: usize = 256 << 10;
/// The zstd level of the other libraries.
const LEVEL: i32 = 1;
/// The encoded bytes of a tensor that are kept before they spill.
const AT_A_TIME: usize = 1 << 20;
/// The maximum bytes in memory of the overwritten positions of a tensor, and of its new values; the rest spills to temporary files.
const IN_MEMORY: usize = 4 << 20;

/// The changes of a tensor: tensors of the file.
struct ChangedParts {
    columns: Vec<Column>,
    checksum: Checksum,
    elements: u64,
}

/// A tensor of the file, of one dimension.
struct Column {
    declared: DeclaredTensor,
    pieces: SpilledPieces,
    /// Whether its elements are spilled as 32-bit gaps, but 16 bits suffice.
    is_narrowed: bool,
}

impl Column {
    fn new(name: String, dtype: DType, len: u64, pieces: SpilledPieces) -> Self {
        let declared = DeclaredTensor { name, stored: StoredElements::Plain(dtype), shape: vec![len] };
        Self { declared, pieces, is_narrowed: false }
    }
}

impl DialectForm {
    /// Writes the changes from `base` to the new version: a folder that has no index yet, or a file. `done` counts the compared bytes of the new
    /// version.
    ///
    /// Each tensor is read once. Encoded changes are kept in memory, and beyond 64 MiB spill to a temporary file. The index of a folder is written
    /// last: a reader that waits for it finds all files.
    ///
    /// # Errors
    /// A path that is an input, or inside one. Tensors that are new or removed, or have another dtype or shape, which other libraries do not support.
    /// Elements of partial bytes, or gaps that are too large, for a file of TRL. Read and write errors.
    pub fn write(
        &self,
        base: &VersionTensors<'_>,
        new: &VersionTensors<'_>,
        path: &Path,
        options: WriteOptions,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<DeltaSummary> {
        base.check_target(path).and_then(|()| new.check_target(path))?;
        let is_folder = self.dialect != DeltaDialect::Sparse;
        let index = path.join(INDEX);
        if !is_folder {
            check_safetensors_name(path)?;
        } else if is_url(path) || index.exists() {
            let cause = if is_url(path) { "is a URL" } else { "already has an index" };
            return Err(Error::Argument(format!("{} {cause}: pass a new folder on a disk", text::path(path))));
        }
        let pairs = pairs(base, new)?;
        let (all, spill): (Mutex<BTreeMap<&str, ChangedParts>>, _) = (Mutex::default(), Spill::new());
        in_order(
            threads(),
            pairs.iter().collect(),
            interrupt,
            |pair: &VersionPair<'_>, buffer: &mut DialectBuffers, cancel| {
                let changed = changed(pair, self, buffer, &spill, cancel)?;
                done.fetch_add(pair.bytes, Ordering::Relaxed);
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend(changed.map(|changed| (pair.name, changed)));
                Ok(())
            },
        )?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut columns: Vec<&Column> = all.values().flat_map(|changed| &changed.columns).collect();
        let (path, metadata) = if is_folder {
            std::fs::create_dir_all(path).map_err(|error| Error::io(path, "make the folder", error))?;
            let sum = |(name, changed): (&&str, &ChangedParts)| ((*name).to_owned(), changed.checksum.digits.clone());
            (path.join(FILE), all.iter().map(sum).collect())
        } else {
            (path.to_path_buf(), self.metadata())
        };
        let mut pieces = SpilledPieces::default();
        spill.push(&[0], &mut pieces)?;
        let nothing = Column::new(NOTHING.to_owned(), DType::UInt8, 1, pieces);
        if columns.is_empty() && !is_folder {
            columns.push(&nothing);
        }
        let mut files = Vec::new();
        if !columns.is_empty() {
            let declared: Vec<DeclaredTensor> = columns.iter().map(|column| column.declared.clone()).collect();
            let output = SaveTarget::Safetensors { path, metadata: Some(metadata), options };
            files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
                columns.iter().try_for_each(|Column { declared, pieces, is_narrowed }| {
                    let change = |bytes: Vec<u8>| if *is_narrowed { narrowed(&bytes) } else { bytes };
                    spill.write(pieces, writer, &declared.name, change, interrupt)
                })
            })?;
        }
        if is_folder {
            let map: BTreeMap<&str, &str> = all.keys().map(|name| (*name, FILE)).collect();
            let stated = json!({"metadata": self.words(), "weight_map": map});
            PendingFile::of_bytes(&index, stated.to_string().as_bytes(), options.sync)?.commit()?;
            files.push(index);
        }
        Ok(DeltaSummary {
            base: self.base_version.clone(),
            target: self.version.clone(),
            changed: all.len(),
            unchanged: pairs.len() - all.len(),
            elements: all.values().map(|changed| changed.elements).sum(),
            files,
            ..DeltaSummary::default()
        })
    }
}

/// Pairs the tensors of both versions, which may differ only in their values.
fn pairs<'a>(base: &'a VersionTensors<'a>, new: &'a VersionTensors<'a>) -> Result<Vec<VersionPair<'a>>> {
    let refused = |name: &str, cause: &str| {
        Err(Error::Argument(format!(
            "tensor '{}' {cause}: this dialect does not support that; write a delta of max-weights, or a whole version",
            text::escape(name)
        )))
    };
    let pairs = new.tensors.iter().map(|(name, new)| VersionPair::new(base, name, new)).collect::<Result<Vec<_>>>()?;
    if let Some(pair) = pairs.iter().find(|pair| pair.base.is_none()) {
        return refused(pair.name, "is not in the base with this dtype and shape");
    }
    match base.tensors.keys().find(|name| !new.tensors.contains_key(&**name)) {
        Some(name) => refused(name, "is not in the new version"),
        None => Ok(pairs),
    }
}

/// What a thread keeps between tensors.
#[derive(Default)]
struct DialectBuffers {
    old: Vec<u8>,
    new: Vec<u8>,
    bytes: Vec<u8>,
    scratch: ChangeScratch,
}

/// The changes of a tensor, both versions of which are read once; `None` if there are none.
fn changed(
    pair: &VersionPair<'_>,
    form: &DialectForm,
    buffer: &mut DialectBuffers,
    spill: &Spill,
    interrupt: Interrupt<'_>,
) -> Result<Option<ChangedParts>> {
    let Some(base) = pair.base else { return Ok(None) };
    let dtype = pair.new.dtype;
    let refused = |cause: String| Error::Argument(format!("tensor '{}': {cause}", text::escape(pair.name)));
    let is_sparse = form.dialect == DeltaDialect::Sparse;
    let width = if is_sparse { (dtype.bits() / 8).max(1) } else { pair.width() };
    let DialectBuffers { old, new, bytes, scratch } = buffer;
    let (mut elements, mut hasher) = (0, Hasher::new(form.checksum));
    let mut changes = match form.dialect {
        DeltaDialect::Xor => EncodedChanges::Xor(SpilledFrame::new(pair.bytes)?),
        DeltaDialect::Overwrite => EncodedChanges::Overwrite([Spooled::within(IN_MEMORY), Spooled::within(IN_MEMORY)]),
        _ => EncodedChanges::Sparse(PositionGaps::default(), Default::default()),
    };
    let block = BLOCK * width;
    let step = if is_sparse { block } else { block * (READ / block).max(1) };
    for start in (0..pair.bytes).step_by(step) {
        interrupt()?;
        let len = (pair.bytes - start).min(step as u64) as usize;
        let old = base.piece(start, len, old, interrupt)?;
        let new = pair.new.elements.piece(start, len, new, interrupt)?;
        if !is_sparse {
            hasher.update(new);
        }
        for (start, (old, new)) in (start..).step_by(block).zip(old.chunks(block).zip(new.chunks(block))) {
            let (numbers, now) = compared(old, new, width, scratch)?;
            elements += numbers.len() as u64;
            match &mut changes {
                EncodedChanges::Xor(frame) => {
                    bytes.clear();
                    bytes.extend(old.iter().zip(new).map(|(old, new)| old ^ new));
                    frame.push(bytes, spill)?;
                }
                EncodedChanges::Overwrite([places, values]) => {
                    let blocks = old.chunks(BLOCK).zip(new.chunks(BLOCK));
                    for (first, (old, new)) in (start..).step_by(BLOCK).zip(blocks) {
                        let (numbers, now) = compared(old, new, 1, scratch)?;
                        bytes.clear();
                        push_places(first, numbers, bytes).map_err(refused)?;
                        places.push(bytes)?;
                        values.push(now)?;
                    }
                }
                EncodedChanges::Sparse(gaps, [places, values]) => {
                    gaps.push(start / width as u64, numbers, &mut places.bytes).map_err(refused)?;
                    values.bytes.extend_from_slice(now);
                    spill.settle(places, AT_A_TIME)?;
                    spill.settle(values, AT_A_TIME)?;
                }
            }
        }
    }
    pair.check_unchanged()?;
    if elements == 0 {
        return Ok(None);
    }
    if is_sparse && !dtype.bits().is_multiple_of(8) {
        let cause = format!("it changed, but a sparse delta does not support elements of {dtype}; use another dialect");
        return Err(refused(cause));
    }
    let columns = match changes {
        EncodedChanges::Xor(frame) => vec![frame.finish(pair.name, spill)?],
        EncodedChanges::Overwrite([places, values]) => {
            let too_many = |_| refused("more bytes changed than overwrite can count; use xor".to_owned());
            let count = u32::try_from(values.len()).map_err(too_many)?.to_le_bytes();
            let mut frame = SpilledFrame::new(count.len() as u64 + places.len() + values.len())?;
            frame.push(&count, spill)?;
            for spooled in [places, values] {
                for at in (0..spooled.len()).step_by(READ) {
                    interrupt()?;
                    bytes.resize((spooled.len() - at).min(READ as u64) as usize, 0);
                    spooled.read_at(at, bytes)?;
                    frame.push(bytes, spill)?;
                }
            }
            vec![frame.finish(pair.name, spill)?]
        }
        EncodedChanges::Sparse(gaps, pieces) => {
            let ([of_places, of_values], [mut places, mut values]) = (names_of(pair.name), pieces);
            spill.settle(&mut places, 0)?;
            spill.settle(&mut values, 0)?;
            let mut places = Column::new(of_places, gaps.dtype(), elements, places);
            places.is_narrowed = gaps.dtype() == DType::UInt16;
            vec![places, Column::new(of_values, dtype, elements, values)]
        }
    };
    Ok(Some(ChangedParts { columns, checksum: hasher.finish(), elements }))
}

/// The encoder of a tensor's changes.
enum EncodedChanges {
    Xor(SpilledFrame),
    /// Positions and values of bytes: a frame begins with their number.
    Overwrite([Spooled; 2]),
    /// Positions and values of elements.
    Sparse(PositionGaps, [SpilledPieces; 2]),
}

/// A zstd frame that is being spilled.
struct SpilledFrame(Encoder<'static, SpilledPieces>);

impl SpilledFrame {
    /// A frame that declares its unpacked size, because readers allocate memory first.
    fn new(len: u64) -> Result<Self> {
        let mut encoder = Encoder::new(SpilledPieces::default(), LEVEL).map_err(not_compressed)?;
        encoder.set_pledged_src_size(Some(len)).map_err(not_compressed)?;
        Ok(Self(encoder))
    }

    fn push(&mut self, bytes: &[u8], spill: &Spill) -> Result<()> {
        self.0.write_all(bytes).map_err(not_compressed)?;
        spill.settle(self.0.get_mut(), AT_A_TIME)
    }

    fn finish(self, name: &str, spill: &Spill) -> Result<Column> {
        let mut pieces = self.0.finish().map_err(not_compressed)?;
        spill.settle(&mut pieces, 0)?;
        Ok(Column::new(name.to_owned(), DType::UInt8, pieces.len(), pieces))
    }
}

fn not_compressed(error: io::Error) -> Error {
    Error::io(Path::new("what changed"), "compress", error)
}
