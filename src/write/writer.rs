//! A file that is written while its tensors come, in any order and part by part.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::layout::Place;
use super::run::{AT_A_TIME, Run, cut_off, declare, piece};
use super::sink::{Destination, Sink};
use super::verify::Sums;
use super::{Declared, Layout};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::source::Source;
use crate::text;
use crate::workers::{Interrupt, uninterrupted};

/// A file under way: its tensors are declared at the begin, and each byte of them is given once. It needs no memory but for the header.
#[derive(Debug)]
pub struct Writer {
    file: Sink,
    layout: Layout,
    /// What was written of each tensor: ranges of its bytes that do not touch, in order.
    written: Vec<Mutex<Vec<Range<u64>>>>,
    /// The checksums of what is written, where they are wanted.
    sums: Option<Sums>,
}

impl Writer {
    /// Begins a file, which stands under its name after [`Self::finish`] and not before.
    ///
    /// To a server, parts are sent when all of their bytes are there: of tensors that come in the order of the layout, few are in memory. After an
    /// error of the server, nothing more can be written.
    ///
    /// # Errors
    /// As of [`Replacement::create`](super::Replacement::create); there is such a file, and it is to stay.
    pub fn create(path: &Path, layout: Layout, sync: bool, to: &Destination, interrupt: Interrupt<'_>) -> Result<Self> {
        Self::new(to.begin(path, &layout, sync, interrupt)?, layout, interrupt)
    }

    /// The same for a file that is begun, with the length that the layout says.
    pub(super) fn new(file: Sink, layout: Layout, interrupt: Interrupt<'_>) -> Result<Self> {
        file.write_at(0, layout.start(), interrupt)?;
        let written = layout.places().iter().map(|_| Mutex::default()).collect();
        Ok(Self { file, layout, written, sums: None })
    }

    /// The same, and what was written is read back and compared before the file takes its place.
    #[must_use]
    pub fn verified(self) -> Self {
        let sums = Sums::new(self.layout.places().len());
        Self { sums: Some(sums), ..self }
    }

    /// Where the tensors lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Writes bytes of a tensor, from its byte `offset` on. Several threads may do so at a time.
    ///
    /// # Errors
    /// A tensor that was not declared, bytes beyond its end, bytes that were written before; what the system refuses.
    pub fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes(name, offset, bytes, &uninterrupted)
    }

    /// The same; to a server it may take long.
    pub(super) fn write_bytes(&self, name: &str, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let number = self.layout.position(name).ok_or_else(|| {
            let name = text::shown(name);
            Error::Argument(format!("no tensor '{name}' was declared when the file was begun"))
        })?;
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

    /// Writes bytes of tensors that follow each other in the file, at once.
    ///
    /// # Errors
    /// As of [`Self::write`]; none of the tensors that failed may be written again.
    pub(super) fn write_runs(&self, runs: &[Run<'_>], bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let Some(first) = runs.first() else { return Ok(()) };
        let places = self.layout.places();
        for run in runs {
            self.claim(run.tensor, &places[run.tensor], run.start, run.len)?;
        }
        self.file.write_at(places[first.tensor].bytes.start + first.start, bytes, interrupt)?;
        if let Some(sums) = &self.sums {
            let mut rest = bytes;
            for run in runs {
                let (now, later) = rest.split_at(run.len as usize);
                sums.add(run.tensor, run.start, now);
                rest = later;
            }
        }
        Ok(())
    }

    /// Lets the system copy bytes of a source to those of a tensor from its byte `offset` on; false where that is not possible. They count as
    /// written when [`Self::copied`] says that all of the tensor are there.
    pub(super) fn copy(&self, name: &str, offset: u64, source: &dyn Source, from: u64, len: u64) -> Result<bool> {
        // What is read back is compared with what went through this process.
        let Some(place) = self.place(name).filter(|_| self.sums.is_none()) else { return Ok(false) };
        self.file.copy_at(place.bytes.start + offset, source, from, len)
    }

    /// Notes that all bytes of a tensor were copied.
    pub(super) fn copied(&self, name: &str) -> Result<()> {
        match self.layout.position(name) {
            Some(number) => {
                let place = &self.layout.places()[number];
                self.claim(number, place, 0, place.bytes.end - place.bytes.start)
            }
            None => Ok(()),
        }
    }

    fn place(&self, name: &str) -> Option<&Place> {
        self.layout.position(name).map(|number| &self.layout.places()[number])
    }

    /// Writes a whole tensor, of any layout and device.
    ///
    /// # Errors
    /// As of [`Self::write`]; another dtype or shape than was declared.
    pub fn write_tensor(&self, name: &str, tensor: &Buffer, interrupt: Interrupt<'_>) -> Result<()> {
        let found = declare(name, tensor);
        if let Some(place) = self.place(name)
            && place.tensor != found
        {
            let Declared { name, stored, shape } = &place.tensor;
            return Err(Error::Argument(format!(
                "tensor '{}': declared as {stored} of shape {shape:?}, given as {} of {:?}",
                text::shown(name),
                found.stored,
                found.shape
            )));
        }
        self.write_part(name, 0, tensor, interrupt)
    }

    /// Writes the elements of `part`, in C order, from byte `offset` of a tensor on.
    ///
    /// # Errors
    /// As of [`Self::write`]. Then none of them counts as written, so that all may be written again.
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
            // Without bytes, the name has to be right, too.
            self.write(name, offset.saturating_add(part.size() as u64), &[])
        };
        let done = write_all();
        if let (Err(_), Some(number)) = (&done, self.layout.position(name)) {
            self.release(number, offset..offset.saturating_add(written));
        }
        done
    }

    /// Notes that a part is written now.
    fn claim(&self, number: usize, place: &Place, offset: u64, len: u64) -> Result<()> {
        let size = place.bytes.end - place.bytes.start;
        let refused = |why: String| {
            let name = text::shown(&place.tensor.name);
            Err(Error::Argument(format!("tensor '{name}': {why}")))
        };
        let Some(end) = offset.checked_add(len).filter(|end| *end <= size) else {
            return refused(format!("{len} bytes from byte {offset} on do not fit into its {size} bytes"));
        };
        if len == 0 {
            return Ok(());
        }
        let mut written = self.written[number].lock().unwrap_or_else(PoisonError::into_inner);
        let after = written.partition_point(|range| range.end <= offset);
        if written.get(after).is_some_and(|next| next.start < end) {
            return refused(format!("some or all of the bytes {offset} to {end} were written before"));
        }
        let joins_before = after > 0 && written[after - 1].end == offset;
        let joins_after = written.get(after).is_some_and(|next| next.start == end);
        match (joins_before, joins_after) {
            (true, true) => written[after - 1].end = written.remove(after).end,
            (true, false) => written[after - 1].end = end,
            (false, true) => written[after].start = offset,
            (false, false) => written.insert(after, offset..end),
        }
        Ok(())
    }

    /// Notes that bytes which were claimed are not there.
    fn release(&self, number: usize, bytes: Range<u64>) {
        // What a server was sent in part is not sent again.
        if bytes.is_empty() || self.file.prefers_order() {
            return;
        }
        let mut written = self.written[number].lock().unwrap_or_else(PoisonError::into_inner);
        // They lie in one range: nobody else has claimed any of them.
        let at = written.partition_point(|range| range.end <= bytes.start);
        if let Some(Range { start, end }) = written.get(at).cloned() {
            let rest = [start..bytes.start, bytes.end..end];
            written.splice(at..=at, rest.into_iter().filter(|range| !range.is_empty()));
        }
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// A tensor that was not written, or not all of it, or that is not what was written when it is read back: then there is no file.
    pub fn finish(self, interrupt: Interrupt<'_>) -> Result<()> {
        self.complete(interrupt)?.commit(interrupt)
    }

    /// Whether bytes had better come in the order of the file.
    pub(super) fn prefers_order(&self) -> bool {
        self.file.prefers_order()
    }

    /// Gives the file up because of an error.
    pub(super) fn given_up(self, error: Error) -> Error {
        self.file.given_up(error)
    }

    /// The file, which has all of its bytes.
    pub(super) fn complete(mut self, interrupt: Interrupt<'_>) -> Result<Sink> {
        match self.check_complete(interrupt) {
            Ok(()) => Ok(self.file),
            Err(error) => Err(self.given_up(error)),
        }
    }

    fn check_complete(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        let mut missing = Vec::new();
        for (place, written) in self.layout.places().iter().zip(&self.written) {
            let size = place.bytes.end - place.bytes.start;
            let written = written.lock().unwrap_or_else(PoisonError::into_inner);
            let there: u64 = written.iter().map(|range| range.end - range.start).sum();
            if there < size {
                missing.push(format!("'{}' ({there} of {size} bytes)", text::shown(&place.tensor.name)));
            }
        }
        if missing.is_empty() {
            self.file.flush(interrupt)?;
            return match self.sums.take() {
                Some(sums) => self.file.verify(sums, self.layout.clone(), interrupt),
                None => Ok(()),
            };
        }
        Err(Error::Argument(format!(
            "{}: the file is not finished: {} were declared but not written: {}; nothing was replaced",
            text::path(self.file.target()),
            missing.len(),
            text::listed(&missing)
        )))
    }
}
