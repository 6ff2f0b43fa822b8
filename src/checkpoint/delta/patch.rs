//! What deltas of other libraries change in a tensor as a whole: it is composed with all of its bytes, and compared with the checksum of the new
//! version, where there is one.

use std::sync::Arc;

use crate::budget;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::published::{Checksum, Encoding, Hasher};
use crate::rules::{self, Rule};
use crate::source::{Part, Source};
use crate::tensor::Span;
use crate::text;
use crate::workers::Interrupt;

use super::super::packed::Unpacker;
use super::frame::{Base, Overwrite, Stop, Take, Xor, XorOf};
use super::sparse::SparseChange;

/// What one delta changes in a tensor.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(super) file: Arc<dyn Source>,
    pub(super) change: Change,
}

/// How it is written.
#[derive(Debug)]
pub(super) enum Change {
    /// A zstd frame, and the checksum of all bytes of the tensor after it.
    Frame { frame: Span, encoding: Encoding, checksum: Checksum },
    /// The places of elements, and their new values.
    Sparse(SparseChange),
}

impl Patch {
    fn fault(&self, rule: &'static Rule, name: &str, cause: impl Into<String>) -> Error {
        let span = match &self.change {
            Change::Frame { frame, .. } => frame,
            Change::Sparse(sparse) => &sparse.indices,
        };
        Diagnostic::new(rule, cause).tensor(name).offset(span.start()).path(self.file.path()).format()
    }

    /// An error if it cannot be about a tensor of this name, dtype and shape.
    pub(super) fn check_fits(&self, name: &str, dtype: DType, shape: &[u64]) -> Result<()> {
        let Change::Sparse(sparse) = &self.change else { return Ok(()) };
        let is_shape = sparse.shape.as_ref().is_none_or(|own| own == shape);
        if sparse.dtype == dtype && is_shape && dtype.bits().is_multiple_of(8) {
            return Ok(());
        }
        let (of, own) = (sparse.dtype, sparse.shape.as_deref().unwrap_or(shape));
        let (own, shape) = (text::shape(own), text::shape(shape));
        let cause = format!("it has {dtype} elements in the shape {shape}, but {of} in {own} changed");
        Err(self.fault(rules::DELTA_TENSOR, name, cause))
    }

    fn checksum(&self) -> Option<&Checksum> {
        match &self.change {
            Change::Frame { checksum, .. } => Some(checksum),
            Change::Sparse(_) => None,
        }
    }

    /// Makes the bytes of a tensor what it says; `base` fills them before, and `hasher` gets what they are then. Returns whether any byte was
    /// another. What is wrong with it is found before a byte is changed, but for an exclusive or.
    fn apply(
        &self,
        name: &str,
        bytes: &mut [u8],
        base: Option<Base<'_>>,
        mut hasher: Option<&mut Hasher>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<bool> {
        let in_parts = base.filter(|base| self.is_xor() && base.in_parts);
        if let (Some(base), None) = (base, in_parts) {
            (base.read)(0, bytes)?;
        }
        let is_other = match &self.change {
            Change::Frame { encoding: Encoding::Xor, .. } => {
                let mut xor = Xor { bytes, at: 0, base: in_parts, hasher: hasher.take() };
                self.unpack(name, &mut xor, unpacker, interrupt)?;
                true
            }
            Change::Frame { encoding: Encoding::Overwrite, .. } => {
                let mut overwrite = Overwrite::new(bytes.len());
                self.unpack(name, &mut overwrite, unpacker, interrupt)?;
                overwrite.write(bytes)
            }
            Change::Sparse(sparse) => {
                let (places, values) = self.read_sparse(name, sparse, bytes.len(), interrupt)?;
                sparse.write(&places, &values, bytes)
            }
        };
        if let Some(hasher) = hasher {
            hasher.update(bytes);
        }
        Ok(is_other)
    }

    fn is_xor(&self) -> bool {
        matches!(self.change, Change::Frame { encoding: Encoding::Xor, .. })
    }

    /// Hands all that its frame unpacks to, to `taker`.
    fn unpack(
        &self,
        name: &str,
        taker: &mut dyn Take,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let Change::Frame { frame, .. } = &self.change else { return Ok(()) };
        let fault = |cause: String| self.fault(rules::DELTA_CHANGES, name, cause);
        let stopped = |stop| match stop {
            Stop::Wrong(cause) => fault(cause),
            Stop::Failed(error) => error,
        };
        let range = frame.start()..frame.start() + frame.len();
        unpacker.frame(&*self.file, &range, interrupt, &fault, &mut |part| taker.take(part).map_err(stopped))?;
        taker.finish().map_err(fault)
    }

    /// The elements of a tensor of so many bytes that are replaced, and what is there then.
    fn read_sparse(
        &self,
        name: &str,
        sparse: &SparseChange,
        len: usize,
        interrupt: Interrupt<'_>,
    ) -> Result<(Vec<usize>, Vec<u8>)> {
        let read = |span: Span| {
            let mut bytes = budget::zeroed(budget::saturating_usize(span.len()))?;
            self.file.read(&mut [Part { offset: span.start(), bytes: &mut bytes }], interrupt)?;
            Ok::<_, Error>(bytes)
        };
        let (indices, values) = (read(sparse.indices)?, read(sparse.values)?);
        let mut places = budget::list(indices.len() / (sparse.indices_dtype.bits() / 8))?;
        sparse
            .read_places(&indices, &values, len, &mut places)
            .map_err(|cause| self.fault(rules::DELTA_CHANGES, name, cause))?;
        Ok((places, values))
    }

    /// Whether a tensor with these bytes becomes what it says, seen without memory for all of it.
    fn gives(&self, name: &str, bytes: &[u8], unpacker: &mut Unpacker, interrupt: Interrupt<'_>) -> Result<bool> {
        let (encoding, checksum) = match &self.change {
            Change::Frame { encoding, checksum, .. } => (encoding, checksum),
            Change::Sparse(sparse) => return self.read_sparse(name, sparse, bytes.len(), interrupt).map(|_| true),
        };
        let mut hasher = checksum.hasher();
        match encoding {
            Encoding::Xor => {
                let mut taker = XorOf { bytes, at: 0, hasher: &mut hasher, room: Vec::new() };
                self.unpack(name, &mut taker, unpacker, interrupt)?;
            }
            Encoding::Overwrite => {
                let mut taker = Overwrite::new(bytes.len());
                self.unpack(name, &mut taker, unpacker, interrupt)?;
                taker.hash(bytes, &mut hasher);
            }
        }
        Ok(hasher.finish() == *checksum)
    }

    /// How much it changes of the tensor, and how much that has, where it says so: elements, or bytes, of frames.
    pub(super) fn extent(
        &self,
        name: &str,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<(u64, Option<u64>)> {
        let fault = |cause: String| self.fault(rules::DELTA_CHANGES, name, cause);
        match &self.change {
            Change::Sparse(SparseChange { values, dtype, shape, .. }) => {
                let width = (dtype.bits() / 8).max(1) as u64;
                let elements = shape.as_ref().map(|shape| shape.iter().copied().fold(1, u64::saturating_mul));
                Ok((values.len() / width, elements))
            }
            Change::Frame { frame, encoding, .. } => {
                let range = frame.start()..frame.start() + frame.len();
                let (mut len, mut different, mut head) = (0, 0, Vec::new());
                unpacker.frame(&*self.file, &range, interrupt, &fault, &mut |part| {
                    len += part.len() as u64;
                    different += part.iter().filter(|byte| **byte != 0).count() as u64;
                    head.extend(part.iter().take(size_of::<u32>() - head.len()));
                    Ok(())
                })?;
                match (encoding, <[u8; 4]>::try_from(&*head)) {
                    (Encoding::Xor, _) => Ok((different, Some(len))),
                    (Encoding::Overwrite, Ok(count)) => {
                        let count = u64::from(u32::from_le_bytes(count));
                        let expected = 4 + 5 * count;
                        let cause = || fault(format!("it is about {count} bytes, and has {len} bytes, not {expected}"));
                        if len == expected { Ok((count, None)) } else { Err(cause()) }
                    }
                    (Encoding::Overwrite, Err(_)) => Err(fault("what changed unpacks to nothing".to_owned())),
                }
            }
        }
    }
}

/// What deltas change in a tensor, one after the other.
#[derive(Debug)]
pub(crate) struct Patches {
    pub(super) name: String,
    pub(super) layers: Vec<Arc<Patch>>,
}

impl Patches {
    /// How many of them are in these bytes of the tensor already; `None` if the bytes are those of no new version, or there are no checksums.
    pub(crate) fn applied(&self, bytes: &[u8]) -> Option<usize> {
        let mut known: Vec<Checksum> = Vec::new();
        let is_of = |patch: &Arc<Patch>| {
            let Some(said) = patch.checksum() else { return false };
            if !known.iter().any(|own| own.is_like(said)) {
                let mut hasher = said.hasher();
                hasher.update(bytes);
                known.push(hasher.finish());
            }
            known.contains(said)
        };
        self.layers.iter().rposition(is_of).map(|position| position + 1)
    }

    /// Makes the bytes of a tensor, in which so many of the deltas are, what the last one says, and compares them with its checksum; `base` fills them
    /// before.
    fn go_on(
        &self,
        from: usize,
        bytes: &mut [u8],
        mut base: Option<Base<'_>>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let Some((last, others)) = self.layers.get(from..).unwrap_or_default().split_last() else { return Ok(()) };
        for patch in others {
            patch.apply(&self.name, bytes, base.take(), None, unpacker, interrupt)?;
        }
        self.apply_and_compare(last, bytes, base, true, unpacker, interrupt).map(|_| ())
    }

    fn apply_and_compare(
        &self,
        patch: &Patch,
        bytes: &mut [u8],
        base: Option<Base<'_>>,
        is_first: bool,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<bool> {
        let mut hasher = patch.checksum().map(Checksum::hasher);
        let is_other = patch.apply(&self.name, bytes, base, hasher.as_mut(), unpacker, interrupt)?;
        let Some(said) = patch.checksum().filter(|said| hasher.is_some_and(|hasher| hasher.finish() != **said)) else {
            return Ok(is_other);
        };
        let (rule, cause) = if is_first {
            (
                rules::DELTA_BASE,
                "it has other values than those that the delta was made from and makes, or the delta was changed",
            )
        } else {
            (rules::DELTA_CHANGES, "its changes do not give what they should")
        };
        Err(patch.fault(rule, &self.name, format!("{cause}: with it, the tensor has not the checksum {said}")))
    }

    /// Fills `bytes` with the tensor of the base, and makes it what the last delta says. A tensor that has some of the deltas already gets the others.
    pub(super) fn compose(
        &self,
        bytes: &mut [u8],
        base: Base<'_>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let failed = match self.go_on(0, bytes, Some(base), unpacker, interrupt) {
            Err(Error::Format(fault)) if fault.rule == rules::DELTA_BASE => fault,
            other => return other,
        };
        (base.read)(0, bytes)?;
        if let Some(from) = self.applied(bytes) {
            return self.go_on(from, bytes, None, unpacker, interrupt);
        }
        // Which of them it is.
        for (position, patch) in self.layers.iter().enumerate() {
            self.apply_and_compare(patch, bytes, None, position == 0, unpacker, interrupt)?;
        }
        Err(Error::Format(failed))
    }

    /// An error if a tensor of these bytes cannot be composed; `room` is for what becomes of it, where that is needed to know.
    pub(crate) fn check(
        &self,
        bytes: &[u8],
        room: &mut Vec<u8>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        if let [patch] = &*self.layers {
            match patch.gives(&self.name, bytes, unpacker, interrupt) {
                // It may have the delta already.
                Ok(false) | Err(Error::Format(_)) => {}
                other => return other.map(|_| ()),
            }
        }
        self.compose_from(bytes, room, unpacker, interrupt)
    }

    /// Makes `room` what the last delta says of a tensor of these bytes.
    pub(crate) fn compose_from(
        &self,
        bytes: &[u8],
        room: &mut Vec<u8>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        budget::reserve(room, bytes.len().saturating_sub(room.len()))?;
        room.resize(bytes.len(), 0);
        let read = |start: usize, out: &mut [u8]| {
            out.copy_from_slice(&bytes[start..start + out.len()]);
            Ok(())
        };
        self.compose(room, Base { read: &read, in_parts: true }, unpacker, interrupt)
    }
}
