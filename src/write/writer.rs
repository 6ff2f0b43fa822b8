//! A file writer that takes tensors in any order and in parts.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::layout::TensorPlacement;
use super::run::{AT_A_TIME, cut_off, declare, piece};
use super::sink::{SaveDestination, Sink};
use super::verify::PartChecksums;
use super::{DeclaredTensor, FileLayout};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::load::ranks::RegionCopy;
use crate::source::Source;
use crate::text;
use crate::workers::{Interrupt, uninterrupted};

/// An unfinished file. Its tensors are declared at the start, and each byte is written once: all bytes, or those that one of several ranks owns. Only
/// the header needs memory.
#[derive(Debug)]
pub struct TensorFileWriter {
    file: Sink,
    layout: FileLayout,
    /// The unwritten bytes of each tensor: disjoint, non-adjacent ranges in order.
    missing: Vec<Mutex<VecDeque<Range<u64>>>>,
    /// Whether other ranks write the rest.
    is_shared: bool,
    /// The checksums of the written bytes, if they will be verified.
    sums: Option<PartChecksums>,
}

impl TensorFileWriter {
    /// Begins a file, which appears under its name only after [`Self::finish`].
    ///
    /// An upload sends each part when it is complete: if tensors come in layout order, few bytes are in memory. After a server error, nothing more
    /// can be written.
    ///
    /// # Errors
    /// See [`PendingFile::create`](super::PendingFile::create); such a file exists and must stay.
    pub fn create(
        path: &Path,
        layout: FileLayout,
        sync: bool,
        to: &SaveDestination,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        Self::new(to.begin(path, &layout, sync, interrupt)?, layout, interrupt)
    }

    /// As [`Self::create`], for a new file with the length of the layout.
    pub(super) fn new(file: Sink, layout: FileLayout, interrupt: Interrupt<'_>) -> Result<Self> {
        file.write_at(0, layout.start(), interrupt)?;
        let whole =
            |place: &TensorPlacement| Some(0..place.bytes.end - place.bytes.start).filter(|range| !range.is_empty());
        let missing = layout.places().iter().map(|place| Mutex::new(whole(place).into_iter().collect())).collect();
        Ok(Self { file, layout, missing, is_shared: false, sums: None })
    }

    /// The writer of a rank, which owns these ranges of each tensor, in layout order. The process that created the file writes its header.
    ///
    /// # Errors
    /// Ranges that overlap, or exceed a tensor.
    pub(super) fn of_rank(file: Sink, layout: FileLayout, owned: Vec<Vec<Range<u64>>>) -> Result<Self> {
        let mut missing = Vec::with_capacity(owned.len());
        for (place, mut ranges) in layout.places().iter().zip(owned) {
            ranges.retain(|range| !range.is_empty());
            ranges.sort_unstable_by_key(|range| range.start);
            let mut of_tensor: VecDeque<Range<u64>> = VecDeque::new();
            for range in ranges {
                let end = of_tensor.back().map_or(0, |last| last.end);
                if range.start < end || range.end > place.bytes.end - place.bytes.start {
                    let (file, name) = (text::path(file.target()), text::escape(&place.tensor.name));
                    let Range { start, end } = range;
                    return Err(Error::Argument(format!(
                        "{file}: tensor '{name}': this rank has some of the bytes {start} to {end} twice, or they lie beyond its end"
                    )));
                }
                match of_tensor.back_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => of_tensor.push_back(range),
                }
            }
            missing.push(Mutex::new(of_tensor));
        }
        Ok(Self { file, layout, missing, is_shared: true, sums: None })
    }

    /// Enables verification: the file is read back and compared before it is put in place.
    #[must_use]
    pub fn verified(self) -> Self {
        let sums = PartChecksums::new(self.layout.places().len());
        Self { sums: Some(sums), ..self }
    }

    /// The layout of the tensors.
    pub fn layout(&self) -> &FileLayout {
        &self.layout
    }

    /// Writes bytes of a tensor, from its byte `offset` on. Several threads may write concurrently.
    ///
    /// # Errors
    /// An undeclared tensor, bytes beyond its end, bytes that were already written; a system error.
    pub fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes(name, offset, bytes, &uninterrupted)
    }

    /// As [`Self::write`], with cancellation: an upload may take long.
    pub(super) fn write_bytes(&self, name: &str, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let number = self.layout.position(name).ok_or_else(|| {
            let name = text::escape(name);
            Error::Argument(format!("no tensor '{name}' was declared when the file was begun"))
        })?;
        self.write_of(number, offset, bytes, interrupt)
    }

    /// As [`Self::write_bytes`], for the tensor of this number in the layout.
    fn write_of(&self, number: usize, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let place = &self.layout.places()[number];
        self.claim(number, place, offset, bytes.len() as u64)?;
        let written = self.file.write_at(place.bytes.start + offset, bytes, interrupt);
        match (&written, &self.sums) {
            (Err(_), _) => self.release(number, offset..offset + bytes.len() as u64),
            (Ok(()), Some(sums)) => sums.add(number, offset, bytes),
            (Ok(()), None) => {}
        }
        written
    }

    /// Writes bytes of the file at once, across several tensors and the gaps between them.
    ///
    /// # Errors
    /// See [`Self::write`]; none of the affected tensors may be written again.
    pub(super) fn write_span(&self, start: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let end = start + bytes.len() as u64;
        let places = self.layout.places();
        let first = places.partition_point(|place| place.bytes.end <= start);
        let mut claimed = Vec::new();
        for (number, place) in places.iter().enumerate().skip(first).take_while(|(_, place)| place.bytes.start < end) {
            let own = place.bytes.start.max(start)..place.bytes.end.min(end);
            self.claim(number, place, own.start - place.bytes.start, own.end.saturating_sub(own.start))?;
            claimed.push((number, own.start - place.bytes.start, own));
        }
        self.file.write_at(start, bytes, interrupt)?;
        if let Some(sums) = &self.sums {
            for (number, offset, own) in claimed {
                sums.add(number, offset, &bytes[(own.start - start) as usize..(own.end - start) as usize]);
            }
        }
        Ok(())
    }

    /// Writes rows of a part to their places in the tensor of this number.
    pub(super) fn write_rows(
        &self,
        number: usize,
        rows: &RegionCopy,
        part: &Buffer,
        scratch: &mut Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (mut at, end) = (0, rows.bytes());
        let is_one = rows.rows == 1 || rows.to_stride == rows.len;
        while at < end {
            interrupt()?;
            // Contiguous bytes of the part are fetched at once, as they may have to be gathered or copied from a device.
            let save = if is_one { end - at } else { rows.len - at % rows.len };
            let len = save.min(AT_A_TIME);
            let from = rows.to + if is_one { at } else { at / rows.len * rows.to_stride + at % rows.len };
            let mut rest = piece(part, from as usize, len as usize, scratch, interrupt)?;
            while !rest.is_empty() {
                let (row, within) = (at / rows.len, at % rows.len);
                let (now, later) = rest.split_at(rest.len().min((rows.len - within) as usize));
                self.write_of(number, rows.from + row * rows.from_stride + within, now, interrupt)
                    .map_err(|error| cut_off(part, error))?;
                at += now.len() as u64;
                rest = later;
            }
        }
        Ok(())
    }

    /// Lets the system copy bytes of a source to a tensor, from its byte `offset` on; false if it cannot. They count as written after
    /// [`Self::copied`] confirms the whole tensor.
    pub(super) fn copy(&self, name: &str, offset: u64, source: &dyn Source, from: u64, len: u64) -> Result<bool> {
        // Verification needs the bytes in this process.
        let Some(place) = self.place(name).filter(|_| self.sums.is_none()) else { return Ok(false) };
        self.file.copy_at(place.bytes.start + offset, source, from, len)
    }

    /// Records that all bytes of a tensor were copied.
    pub(super) fn copied(&self, name: &str) -> Result<()> {
        match self.layout.position(name) {
            Some(number) => {
                let place = &self.layout.places()[number];
                self.claim(number, place, 0, place.bytes.end - place.bytes.start)
            }
            None => Ok(()),
        }
    }

    fn place(&self, name: &str) -> Option<&TensorPlacement> {
        self.layout.position(name).map(|number| &self.layout.places()[number])
    }

    /// Writes a whole tensor, of any layout and device.
    ///
    /// # Errors
    /// See [`Self::write`]; another dtype or shape than declared.
    pub fn write_tensor(&self, name: &str, tensor: &Buffer, interrupt: Interrupt<'_>) -> Result<()> {
        let found = declare(name, tensor);
        if let Some(place) = self.place(name)
            && place.tensor != found
        {
            let DeclaredTensor { name, stored, shape } = &place.tensor;
            return Err(Error::Argument(format!(
                "tensor '{}': declared as {stored} of shape {shape:?}, given as {} of {:?}",
                text::escape(name),
                found.stored,
                found.shape
            )));
        }
        self.write_part(name, 0, tensor, interrupt)
    }

    /// Writes the elements of `part`, in C order, from byte `offset` of a tensor on.
    ///
    /// # Errors
    /// See [`Self::write`]. Then none of them counts as written, so all may be written again.
    pub fn write_part(&self, name: &str, offset: u64, part: &Buffer, interrupt: Interrupt<'_>) -> Result<()> {
        let (mut written, mut scratch) = (0, Vec::new());
        let mut write_all = || {
            for start in (0..part.size()).step_by(AT_A_TIME as usize) {
                interrupt()?;
                let len = (part.size() - start).min(AT_A_TIME as usize);
                let bytes = piece(part, start, len, &mut scratch, interrupt)?;
                let at = offset.saturating_add(start as u64);
                self.write_bytes(name, at, bytes, interrupt).map_err(|error| cut_off(part, error))?;
                written += len as u64;
            }
            // An empty part also checks the name.
            self.write(name, offset.saturating_add(part.size() as u64), &[])
        };
        let done = write_all();
        if let (Err(_), Some(number)) = (&done, self.layout.position(name)) {
            self.release(number, offset..offset.saturating_add(written));
        }
        done
    }

    /// Records that a part is being written.
    fn claim(&self, number: usize, place: &TensorPlacement, offset: u64, len: u64) -> Result<()> {
        let size = place.bytes.end - place.bytes.start;
        let refused = |why: String| {
            let (file, name) = (text::path(self.file.target()), text::escape(&place.tensor.name));
            Err(Error::Argument(format!("{file}: tensor '{name}': {why}")))
        };
        let Some(end) = offset.checked_add(len).filter(|end| *end <= size) else {
            return refused(format!("{len} bytes from byte {offset} on do not fit into its {size} bytes"));
        };
        if len == 0 {
            return Ok(());
        }
        let mut missing = self.missing(number);
        let at = missing.partition_point(|range| range.end <= offset);
        let Some(range) = missing.get_mut(at).filter(|range| range.start <= offset && end <= range.end) else {
            let others = if self.is_shared { ", or belong to another rank" } else { "" };
            return refused(format!("some or all of the bytes {offset} to {end} were written before{others}"));
        };
        let before = range.start..offset;
        range.start = end;
        match (before.is_empty(), range.is_empty()) {
            (true, true) => drop(missing.remove(at)),
            (true, false) => {}
            (false, true) => *range = before,
            (false, false) => missing.insert(at, before),
        }
        Ok(())
    }

    fn missing(&self, number: usize) -> MutexGuard<'_, VecDeque<Range<u64>>> {
        self.missing[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that claimed bytes were not written.
    fn release(&self, number: usize, mut bytes: Range<u64>) {
        // Bytes that were partly uploaded are not sent again.
        if bytes.is_empty() || self.file.prefers_order() {
            return;
        }
        let mut missing = self.missing(number);
        let at = missing.partition_point(|range| range.end < bytes.start);
        while let Some(next) = missing.get(at).filter(|next| next.start <= bytes.end).cloned() {
            bytes = bytes.start.min(next.start)..bytes.end.max(next.end);
            missing.remove(at);
        }
        missing.insert(at, bytes);
    }

    /// Puts the file in place.
    ///
    /// # Errors
    /// A tensor that is missing or incomplete, or that differs when it is read back: then no file is created.
    pub fn finish(self, interrupt: Interrupt<'_>) -> Result<()> {
        self.complete(interrupt)?.commit(interrupt)
    }

    /// Whether bytes in file order are preferred.
    pub(super) fn prefers_order(&self) -> bool {
        self.file.prefers_order()
    }

    /// Abandons the file because of an error.
    pub(super) fn given_up(self, error: Error) -> Error {
        self.file.given_up(error)
    }

    /// The complete file.
    pub(super) fn complete(mut self, interrupt: Interrupt<'_>) -> Result<Sink> {
        let checked = self.flush(interrupt).and_then(|()| match self.sums.take() {
            Some(sums) => self.file.verify(sums, self.layout.clone(), interrupt),
            None => Ok(()),
        });
        match checked {
            Ok(()) => Ok(self.file),
            Err(error) => Err(self.given_up(error)),
        }
    }

    /// The file and the checksums of the written bytes, even if it is incomplete.
    pub(super) fn into_parts(self) -> (Sink, Option<PartChecksums>) {
        (self.file, self.sums)
    }

    /// Waits until all bytes are durable, if that is requested.
    ///
    /// # Errors
    /// Some bytes were not written.
    pub(super) fn flush(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        let mut missing = Vec::new();
        for (number, place) in self.layout.places().iter().enumerate() {
            let (size, left) = (place.bytes.end - place.bytes.start, self.missing(number));
            if let Some(first) = left.front() {
                let name = text::escape(&place.tensor.name);
                missing.push(if self.is_shared {
                    format!("'{name}' (from byte {} on)", first.start)
                } else {
                    let existing = size - left.iter().map(|range| range.end - range.start).sum::<u64>();
                    format!("'{name}' ({existing} of {size} bytes)")
                });
            }
        }
        if missing.is_empty() {
            return self.file.flush(interrupt);
        }
        let whose = if self.is_shared { "that this rank owns " } else { "" };
        Err(Error::Argument(format!(
            "{}: the file is not finished: {} {whose}were declared but not written: {}; nothing was replaced",
            text::path(self.file.target()),
            missing.len(),
            text::listed(&missing)
        )))
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some of which have one")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;
    use crate::write::{StoredElements, WriteOptions};

    const SIZE: u64 = 24;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_byte_that_is_owned_is_written_once(
            owned in 0u32..1 << SIZE, writes in proptest::collection::vec((0..SIZE, 0..8u64, any::<bool>()), 0..40),
        ) {
            let folder = tempfile::tempdir().expect("a folder");
            let tensor = DeclaredTensor { name: "t".into(), stored: StoredElements::Plain(DType::UInt8), shape: vec![SIZE] };
            let layout = FileLayout::safetensors([tensor], None, &WriteOptions::default()).expect("a layout");
            let path = folder.path().join("a");
            let sink = SaveDestination::default().begin(&path, &layout, false, &uninterrupted).expect("begun");
            // In random order, including adjacent ones.
            let of_byte = |at: u64| at..at + 1;
            let ranges = (0..SIZE).rev().filter(|at| owned >> at & 1 == 1).map(of_byte).collect();
            let mut writer = TensorFileWriter::of_rank(sink, layout, vec![ranges]).expect("a writer").verified();
            let start = writer.layout().places()[0].bytes.start;
            let mut left = owned;
            for (offset, len, by_span) in writes {
                let bytes = vec![1; len as usize];
                let mask = (0..len).fold(0, |mask, at| mask | 1u32.checked_shl((offset + at) as u32).unwrap_or(0));
                let fits = offset + len <= SIZE && mask & !left == 0;
                let written = if by_span && offset + len <= SIZE {
                    writer.write_span(start + offset, &bytes, &uninterrupted)
                } else {
                    writer.write("t", offset, &bytes)
                };
                prop_assert_eq!(written.is_ok(), fits, "{} bytes at {} of {:b}", len, offset, left);
                if fits {
                    left &= !mask;
                }
            }
            prop_assert_eq!(writer.flush(&uninterrupted).is_ok(), left == 0);
            // Failed bytes are unwritten again: afterwards all owned bytes are missing.
            let written = (0..SIZE).filter(|at| (owned & !left) >> at & 1 == 1).map(|at| at..at + 1);
            written.for_each(|range| writer.release(0, range));
            let missing = writer.missing(0).iter().map(|range| range.end - range.start).sum::<u64>();
            prop_assert_eq!(missing, u64::from(owned.count_ones()));
        }
    }

    #[test]
    fn ranges_that_a_rank_has_twice_or_a_tensor_has_not_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        for ranges in [vec![0..4, 3..5], vec![0..SIZE + 1], vec![2..3, 0..24]] {
            let tensor =
                DeclaredTensor { name: "t".into(), stored: StoredElements::Plain(DType::UInt8), shape: vec![SIZE] };
            let layout = FileLayout::safetensors([tensor], None, &WriteOptions::default()).expect("a layout");
            let sink = SaveDestination::default().begin(&path, &layout, false, &uninterrupted).expect("begun");
            let error = TensorFileWriter::of_rank(sink, layout, vec![ranges]).expect_err("refused").to_string();
            assert!(error.contains("tensor 't': this rank has some of the bytes"), "{error}");
        }
    }
}
