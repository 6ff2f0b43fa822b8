//! Converts tensors of a checkpoint into a file, in bounded memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{DeclaredTensor, StoredElements};
use super::output::SaveTarget;
use super::replacement::{COPIED_AT_A_TIME, folder_of};
use super::steps::{ElementSteps, StepScratch};
use super::writer::TensorFileWriter;
use crate::buffer::{self, Buffer, IndexPart};
use crate::checkpoint::Checkpoint;
use crate::error::{Diagnostic, Error, Result};
use crate::load::{
    Conversion, FileSegment, LoadOptions, LoadPlan, Placement, Recipe, Region, TensorMemory, TensorRequest, TensorScan,
    Transform, region_shape,
};
use crate::rules;
use crate::source::store::{is_url, parent};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// A tensor with fewer bytes in the new file is converted by one thread, in parallel with others: its few parts would leave threads idle at the end.
const SHORT: u64 = 16 << 20;
/// The total bytes of short tensors in one batch.
const TOGETHER: u64 = 256 << 20;

/// A tensor of a checkpoint, and its result.
#[derive(Debug, Clone)]
pub struct ConvertItem {
    /// Its number in the catalog.
    pub number: usize,
    /// The part to convert; `None` for the whole tensor.
    pub region: Option<Region>,
    /// Its name, type and shape in the new file.
    pub tensor: DeclaredTensor,
}

impl ConvertItem {
    /// The conversion steps of the elements.
    ///
    /// # Errors
    /// Elements that cannot be converted to the declared type; a different shape; an empty name.
    pub(super) fn steps(&self, checkpoint: &Checkpoint) -> Result<ElementSteps> {
        let catalog = checkpoint.catalog();
        let info = catalog.table().get(self.number);
        if self.tensor.name.is_empty() {
            let name = text::escape(info.name);
            return Err(Error::Argument(format!(
                "tensor '{name}' would have an empty name, and could not be loaded again"
            )));
        }
        let shape = self.region.as_ref().map_or_else(|| info.shape.to_vec(), |region| region_shape(info.shape, region));
        if shape != self.tensor.shape {
            let (name, declared) = (text::escape(info.name), &self.tensor.shape);
            return Err(Error::Argument(format!(
                "tensor '{name}' has the shape {shape:?}, but {declared:?} was declared"
            )));
        }
        let refused = |cause: String| {
            let fault = Diagnostic::new(rules::CAST_PAIR, cause).tensor(info.name).offset(info.span.start());
            Err(fault.path(&catalog.files()[info.file as usize].path).unsupported())
        };
        match StoredElements::of(info.element) {
            None => refused(format!("elements of the type {} cannot be written to another file", info.element)),
            Some(stored) => ElementSteps::new(stored, self.tensor.stored).or_else(refused),
        }
    }

    /// The recipe of the read, before elements are packed into blocks.
    fn recipe(&self, checkpoint: &Checkpoint, steps: ElementSteps) -> Result<Recipe> {
        checkpoint.catalog().request(self.number, steps.dtype(), self.region.as_ref(), false)
    }
}

/// The bytes of a composed tensor in memory at a time; at least one row.
const MADE_AT_A_TIME: u64 = 64 << 20;

/// Converts tensors of a checkpoint into files; `done` counts the bytes written. With `verify`, the files are read back and compared. All files are
/// complete before the first one is put in place. Returns them, an index last.
///
/// Each thread needs a few megabytes. Tensors that are cut, or compressed and out of order, are loaded whole, one at a time unless they are short.
///
/// # Errors
/// See [`super::save`]; unsupported conversions, which are detected before any read; read errors. Then nothing has changed.
pub fn convert(
    checkpoint: &Checkpoint,
    items: &[ConvertItem],
    output: &SaveTarget,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    check_whole(checkpoint, output)?;
    write_items(checkpoint, items, output, verify, done, interrupt)
}

/// As [`convert`], also if a file is one of several in the checkpoint.
pub(super) fn write_items(
    checkpoint: &Checkpoint,
    items: &[ConvertItem],
    output: &SaveTarget,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    // Checked before the first file is created: the last tensor may be the one that cannot be converted.
    items.iter().try_for_each(|item| item.steps(checkpoint).map(drop))?;
    // Long tensors are read part by part.
    let is_long = |number: &usize| checkpoint.catalog().table().get(*number).bytes() > MADE_AT_A_TIME;
    let (long, others): (Vec<usize>, Vec<usize>) = items.iter().map(|item| item.number).partition(is_long);
    checkpoint.look_up(long.into_iter(), true, interrupt)?;
    checkpoint.look_up(others.into_iter(), false, interrupt)?;
    let declared: Vec<DeclaredTensor> = items.iter().map(|item| item.tensor.clone()).collect();
    output.write(&declared, checkpoint.opened(), verify, interrupt, |writer, group| {
        let items: Vec<&ConvertItem> = group.iter().map(|number| &items[*number]).collect();
        write_converted(writer, checkpoint, &items, done, interrupt)
    })
}

/// Fails if an output file is one of several files of the checkpoint, or the only opened one of several: the others would be incomplete without it.
///
/// # Errors
/// An output file is such a file.
pub fn check_whole(checkpoint: &Checkpoint, output: &SaveTarget) -> Result<()> {
    let Some(path) = output.only_file() else { return Ok(()) };
    let catalog = checkpoint.catalog();
    let place = |path: &Path| {
        let folder = if is_url(path) { parent(path) } else { folder_of(path).canonicalize().ok()? };
        Some((folder, path.file_name()?.to_os_string()))
    };
    let written = place(path);
    let is_of_several = catalog.file_count() > 1 || catalog.note().is_some();
    if !is_of_several || written.is_none() || catalog.files().iter().all(|file| place(&file.path) != written) {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{}: it is one of several files of the checkpoint, which could not be opened without it: write to another file",
        text::path(path)
    )))
}

/// Writes tensors of a checkpoint to a file in which they are declared.
fn write_converted(
    writer: &TensorFileWriter,
    checkpoint: &Checkpoint,
    items: &[&ConvertItem],
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let mut jobs = Vec::with_capacity(items.len());
    let in_order_of_file = writer.prefers_order();
    for &item in items {
        let info = checkpoint.catalog().table().get(item.number);
        let position = writer.layout().position(&item.tensor.name).filter(|_| in_order_of_file);
        let place = (position, info.file, info.span.start());
        jobs.push((place, item, item.steps(checkpoint)?, item.tensor.bytes()?));
    }
    // In the order on disk, or in the order of the new file.
    jobs.sort_by_key(|(place, ..)| *place);
    let work = ConvertWork { writer, checkpoint, done };
    let (mut short, mut save) = (Vec::new(), 0);
    let all_of = |short: &mut Vec<(&ConvertItem, ElementSteps)>| {
        in_order(threads(), std::mem::take(short), interrupt, |(item, steps), scratch: &mut StepScratch, cancel| {
            work.write(item, steps, Some(scratch), cancel)
        })
    };
    for (_, item, steps, bytes) in jobs {
        if bytes < SHORT {
            short.push((item, steps));
            save += bytes;
        } else {
            if in_order_of_file {
                all_of(&mut short)?;
                save = 0;
            }
            work.write(item, steps, None, interrupt)?;
        }
        if save >= TOGETHER {
            all_of(&mut short)?;
            save = 0;
        }
    }
    all_of(&mut short)
}

/// The source and the target of tensors.
#[derive(Clone, Copy)]
struct ConvertWork<'a> {
    writer: &'a TensorFileWriter,
    checkpoint: &'a Checkpoint,
    done: &'a AtomicU64,
}

impl ConvertWork<'_> {
    /// Writes one tensor: on this thread, with `alone` as its buffers, or on all threads.
    fn write(
        &self,
        item: &ConvertItem,
        steps: ElementSteps,
        alone: Option<&mut StepScratch>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (Self { writer, checkpoint, done }, ConvertItem { number, tensor, .. }) = (*self, item);
        let bytes = tensor.bytes()?;
        let recipe = item.recipe(checkpoint, steps)?;
        let requested = match recipe.into_one() {
            Ok(one) if is_scanned(&one, steps) => one,
            Ok(one) if one.cut.is_none() => return self.write_pieces(item, &one.into(), steps, interrupt),
            Ok(one) => {
                let whole = take(checkpoint, one.into(), steps, interrupt)?;
                writer.write_part(&tensor.name, 0, &whole, interrupt)?;
                done.fetch_add(bytes, Ordering::Relaxed);
                return Ok(());
            }
            Err(recipe) => return self.write_pieces(item, &recipe, steps, interrupt),
        };
        let placement = requested.placement;
        if steps.are_none() && self.copy(&tensor.name, &placement, interrupt)? {
            return Ok(());
        }
        let Some(scan) = TensorScan::in_order(checkpoint, &placement, steps.unit().1)? else {
            let info = checkpoint.catalog().table().get(*number);
            let cause = format!(
                "its {} elements overlap, and are far more than the file has: it is a view made by expand()",
                tensor.shape.iter().product::<u64>()
            );
            let fault = Diagnostic::new(rules::TORCH_NO_ARRAY, cause)
                .tensor(info.name)
                .help("Call contiguous() before saving it");
            return Err(fault.path(&checkpoint.catalog().files()[info.file as usize].path).unsupported());
        };
        steps.write(&scan, tensor, writer, alone, done, interrupt)
    }

    /// Writes one tensor of several pieces, some rows at a time.
    fn write_pieces(
        &self,
        item: &ConvertItem,
        recipe: &Recipe,
        steps: ElementSteps,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let tensor = &item.tensor;
        let rows = recipe.shape().first().copied().unwrap_or(1);
        let bytes = tensor.bytes()?;
        let row = (bytes / (rows.max(1) as u64)).max(1);
        let at_a_time = i64::try_from(MADE_AT_A_TIME / row).unwrap_or(rows).max(1);
        let mut offset = 0;
        for start in (0..rows).step_by(at_a_time as usize) {
            let all = start == 0 && at_a_time >= rows;
            let some = IndexPart::Slice { start: Some(start), stop: Some(rows.min(start + at_a_time)), step: 1 };
            let part = if all { recipe.clone() } else { recipe.index(&[some])? };
            let part = take(self.checkpoint, part, steps, interrupt)?;
            self.writer.write_part(&tensor.name, offset, &part, interrupt)?;
            offset += part.size() as u64;
            self.done.fetch_add(part.size() as u64, Ordering::Relaxed);
        }
        // An empty tensor counts as written, too.
        self.writer.write(&tensor.name, bytes, &[])
    }

    /// Lets the system copy the bytes of an unchanged tensor; false if it cannot.
    fn copy(&self, name: &str, placement: &Placement, interrupt: Interrupt<'_>) -> Result<bool> {
        let FileSegment { file, span, transform } = placement.segment;
        // If the offsets within filesystem blocks differ, the system copies some kilobytes at a time, in up to twice the time of parallel reads and
        // writes. A PyTorch file has no order to keep. Bytes of merged and split files bypass this process, and a filesystem can share aligned
        // blocks.
        let is_torch = self.checkpoint.catalog().torch(file).is_some();
        if is_torch || !placement.is_dense() || transform != Transform::default() {
            return Ok(false);
        }
        let source = self.checkpoint.file(file)?;
        source.check_unchanged()?;
        for start in (0..placement.len).step_by(COPIED_AT_A_TIME as usize) {
            interrupt()?;
            let len = COPIED_AT_A_TIME.min(placement.len - start);
            if !self.writer.copy(name, start, source, span.start() + placement.start + start, len)? {
                self.done.fetch_sub(start, Ordering::Relaxed);
                return Ok(false);
            }
            self.done.fetch_add(len, Ordering::Relaxed);
        }
        source.check_unchanged()?;
        self.writer.copied(name)?;
        Ok(true)
    }
}

/// Whether the elements of a tensor of one piece are read unchanged in parts, before the steps are applied.
fn is_scanned(one: &TensorRequest, steps: ElementSteps) -> bool {
    let is_parted = one.placement.is_dense() || one.placement.dtype.bytes() == Some(steps.unit().1);
    one.cut.is_none() && is_parted && !matches!(one.conversion, Conversion::Add { .. })
}

/// Loads a tensor of several pieces, or parts of its rows, whole.
fn take(checkpoint: &Checkpoint, recipe: Recipe, steps: ElementSteps, interrupt: Interrupt<'_>) -> Result<Buffer> {
    let layout = LoadPlan::new(checkpoint, vec![recipe], TensorMemory::Own, &[], &LoadOptions::default())?;
    let (taken, _) = layout.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?;
    let taken = taken.into_iter().next().ok_or(Error::Interrupted)?;
    match steps.encoding {
        Some(encoding) => buffer::quantize(&taken, encoding, interrupt),
        None => Ok(taken),
    }
}
