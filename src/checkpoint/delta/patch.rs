//! Patches of other libraries' deltas to a whole tensor. The tensor is composed from all its bytes, and compared with the checksum of the new
//! version, if there is one.

use std::sync::Arc;

use crate::budget;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::dialects::{
    Checksum, DeltaDialect, DialectChange, Hasher, PositionCursor, Replaced, check_record,
};
use crate::rules::{self, Rule};
use crate::source::{ReadRange, Source};
use crate::workers::Interrupt;

use super::super::packed::Unpacker;

/// The part of the base that is read, changed and hashed while it is in the processor's cache.
const PART: usize = 128 << 10;

/// The tensor of the base, which is read before it is changed.
#[derive(Clone, Copy)]
pub(super) struct PatchBase<'a> {
    /// Fills some bytes of the tensor, from an offset on.
    pub(super) read: &'a dyn Fn(usize, &mut [u8]) -> Result<()>,
    /// Whether to read it in parts, or whole, as over a network.
    pub(super) in_parts: bool,
}

/// A tensor that is composed part by part.
struct Composing<'a> {
    len: usize,
    /// Its bytes; `None` if they are only hashed.
    bytes: Option<&'a mut [u8]>,
    /// The source of the old bytes, if they must be read.
    base: Option<PatchBase<'a>>,
    hasher: Option<Hasher>,
    buffer: Vec<u8>,
}

impl<'a> Composing<'a> {
    fn new(bytes: &'a mut [u8], base: Option<PatchBase<'a>>) -> Result<Self> {
        let in_parts = base.filter(|base| base.in_parts);
        if let (Some(base), None) = (base, in_parts) {
            (base.read)(0, bytes)?;
        }
        Ok(Self { len: bytes.len(), bytes: Some(bytes), base: in_parts, hasher: None, buffer: Vec::new() })
    }

    fn part(&mut self, start: usize, len: usize, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let bytes = if let Some(bytes) = &mut self.bytes {
            &mut bytes[start..start + len]
        } else {
            self.buffer.resize(len, 0);
            &mut *self.buffer
        };
        self.base.map_or(Ok(()), |base| (base.read)(start, bytes))?;
        change(bytes);
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }
}

/// The change of one delta to a tensor.
#[derive(Debug)]
pub(crate) struct Patch {
    /// The name of the tensor.
    pub(super) name: String,
    pub(super) file: Arc<dyn Source>,
    pub(super) change: DialectChange,
}

impl Patch {
    fn fault(&self, rule: &'static Rule, cause: impl Into<String>) -> Error {
        Diagnostic::new(rule, cause).tensor(&self.name).offset(self.change.start()).path(self.file.path()).format()
    }

    /// Fails if it does not fit a tensor of this dtype and shape.
    pub(super) fn check_fits(&self, dtype: DType, shape: &[u64]) -> Result<()> {
        self.change.check_fits(dtype, shape).map_err(|cause| self.fault(rules::DELTA_TENSOR, cause))
    }

    /// Applies the patch to a tensor. Faults are found before any byte changes, except with XOR.
    fn apply(&self, tensor: &mut Composing<'_>, unpacker: &mut Unpacker, interrupt: Interrupt<'_>) -> Result<()> {
        let (mut at, len) = (0, tensor.len);
        let fault = |cause: String| self.fault(rules::DELTA_CHANGES, cause);
        if let DialectChange::Frame { dialect: DeltaDialect::Xor, .. } = &self.change {
            self.unpack(unpacker, interrupt, &mut |part| {
                if part.len() > len - at {
                    return Err(fault(format!("the changes unpack to more than the {len} bytes of the tensor")));
                }
                tensor.part(at, part.len(), |bytes| {
                    bytes.iter_mut().zip(part).for_each(|(byte, change)| *byte ^= change);
                })?;
                at += part.len();
                Ok(())
            })?;
            if at < len {
                return Err(fault(format!("the changes unpack to {at} bytes, but the tensor has {len}")));
            }
            return Ok(());
        }
        let replaced = self.replaced(len, unpacker, interrupt)?;
        if tensor.bytes.is_none() && tensor.hasher.is_none() {
            return Ok(());
        }
        let mut cursor = PositionCursor::default();
        for start in (0..len).step_by(PART) {
            interrupt()?;
            tensor.part(start, PART.min(len - start), |bytes| replaced.write(&mut cursor, start, bytes))?;
        }
        Ok(())
    }

    /// The replaced elements in a tensor of `len` bytes.
    fn replaced(&self, len: usize, unpacker: &mut Unpacker, interrupt: Interrupt<'_>) -> Result<Replaced> {
        let fault = |cause: String| self.fault(rules::DELTA_CHANGES, cause);
        let DialectChange::Elements { indices, places, values, dtype, sum, .. } = &self.change else {
            let mut bytes = Vec::new();
            self.unpack(unpacker, interrupt, &mut |part| {
                budget::reserve(&mut bytes, part.len())?;
                bytes.extend_from_slice(part);
                check_record(&bytes, len).map(|_| ()).map_err(fault)
            })?;
            return Replaced::of_record(bytes, len).map_err(fault);
        };
        let end = budget::saturating_usize(indices.len());
        let mut bytes = budget::zeroed(end.saturating_add(budget::saturating_usize(values.len())))?;
        let (first, second) = bytes.split_at_mut(end);
        let mut parts =
            [(indices, first), (values, second)].map(|(span, bytes)| ReadRange { offset: span.start(), bytes });
        parts.sort_unstable_by_key(|part| part.offset);
        self.file.read(&mut parts, interrupt)?;
        Replaced::of_elements(*places, (bytes, end), (*dtype, *sum), len).map_err(fault)
    }

    /// Passes the unpacked frame to `take`, in parts.
    fn unpack(
        &self,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let DialectChange::Frame { frame, .. } = &self.change else { return Ok(()) };
        let fault = |cause: String| self.fault(rules::DELTA_CHANGES, cause);
        unpacker.frame(&*self.file, &(frame.start()..frame.start() + frame.len()), interrupt, &fault, take)
    }

    /// The number of changes, and the total number if the delta gives it: elements, or bytes of frames.
    pub(super) fn extent(&self, unpacker: &mut Unpacker, interrupt: Interrupt<'_>) -> Result<(u64, Option<u64>)> {
        let dialect = match &self.change {
            DialectChange::Frame { dialect, .. } => *dialect,
            DialectChange::Elements { values, dtype, shape, .. } => {
                let width = (dtype.bits() / 8).max(1) as u64;
                let elements = shape.as_ref().map(|shape| shape.iter().copied().fold(1, u64::saturating_mul));
                return Ok((values.len() / width, elements));
            }
        };
        let (mut len, mut different, mut count) = (0, 0, None);
        self.unpack(unpacker, interrupt, &mut |part| {
            if len == 0 {
                count = part.first_chunk().map(|count| u64::from(u32::from_le_bytes(*count)));
            }
            len += part.len() as u64;
            different += part.iter().filter(|byte| **byte != 0).count() as u64;
            Ok(())
        })?;
        let fault = |cause: String| Err(self.fault(rules::DELTA_CHANGES, cause));
        match count {
            _ if dialect == DeltaDialect::Xor => Ok((different, Some(len))),
            None => fault("the changes unpack to nothing".to_owned()),
            Some(count) if len == 4 + 5 * count => Ok((count, None)),
            Some(count) => {
                let expected = 4 + 5 * count;
                fault(format!("it is about {count} bytes, and has {len} bytes, not {expected}"))
            }
        }
    }
}

/// The patches of successive deltas to a tensor.
#[derive(Debug)]
pub(crate) struct Patches {
    pub(super) layers: Vec<Arc<Patch>>,
}

impl Patches {
    /// The number of patches already applied to these bytes; `None` if they match no new version, or there are no checksums.
    pub(crate) fn applied(&self, bytes: &[u8]) -> Option<usize> {
        let mut known: Vec<Checksum> = Vec::new();
        let is_of = |patch: &Arc<Patch>| {
            let Some(declared) = patch.change.checksum() else { return false };
            if !known.iter().any(|own| own.format == declared.format) {
                let mut hasher = declared.hasher();
                hasher.update(bytes);
                known.push(hasher.finish());
            }
            known.contains(declared)
        };
        self.layers.iter().rposition(is_of).map(|position| position + 1)
    }

    /// Applies the patches from number `from` on, and compares the result with the checksum of the last one, or of each.
    fn apply(
        &self,
        from: usize,
        is_each_compared: bool,
        mut tensor: Composing<'_>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        for (position, patch) in self.layers.iter().enumerate().skip(from) {
            let is_compared = is_each_compared || position + 1 == self.layers.len();
            let declared = patch.change.checksum().filter(|_| is_compared);
            tensor.hasher = declared.map(Checksum::hasher);
            patch.apply(&mut tensor, unpacker, interrupt)?;
            tensor.base = None;
            let is_other =
                |declared: &&Checksum| tensor.hasher.as_ref().is_some_and(|hasher| hasher.finish() != **declared);
            let Some(declared) = declared.filter(is_other) else { continue };
            let (rule, cause) = if is_each_compared && position > 0 {
                (rules::DELTA_CHANGES, "its changes do not give the expected result")
            } else {
                let cause = "its values match neither the base nor the result of the delta, or the delta was changed";
                (rules::DELTA_BASE, cause)
            };
            return Err(patch.fault(rule, format!("{cause}: the patched tensor does not have the checksum {declared}")));
        }
        Ok(())
    }

    /// Reads the tensor of the base into `bytes` and applies the patches. A tensor with some patches already gets only the others.
    pub(super) fn compose(
        &self,
        bytes: &mut [u8],
        base: PatchBase<'_>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let failed = match self.apply(0, false, Composing::new(bytes, Some(base))?, unpacker, interrupt) {
            Err(Error::Format(fault)) if fault.rule == rules::DELTA_BASE => fault,
            other => return other,
        };
        (base.read)(0, bytes)?;
        let applied = self.applied(bytes);
        // If none is applied, this finds the first patch with a wrong checksum.
        self.apply(applied.unwrap_or(0), applied.is_none(), Composing::new(bytes, None)?, unpacker, interrupt)?;
        if applied.is_some() { Ok(()) } else { Err(Error::Format(failed)) }
    }

    /// Fails if a tensor of these bytes cannot be composed; `buffer` is memory for the result if it is needed.
    pub(crate) fn check(
        &self,
        bytes: &[u8],
        buffer: &mut Vec<u8>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        if self.layers.len() == 1 {
            let read = of_memory(bytes);
            let base = Some(PatchBase { read: &read, in_parts: true });
            let hashed = Composing { len: bytes.len(), bytes: None, base, hasher: None, buffer: Vec::new() };
            match self.apply(0, false, hashed, unpacker, interrupt) {
                // The delta may already be applied.
                Err(Error::Format(_)) => {}
                other => return other,
            }
        }
        self.compose_from(bytes, buffer, unpacker, interrupt)
    }

    /// Composes the tensor from these bytes in `buffer`.
    pub(crate) fn compose_from(
        &self,
        bytes: &[u8],
        buffer: &mut Vec<u8>,
        unpacker: &mut Unpacker,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        budget::reserve(buffer, bytes.len().saturating_sub(buffer.len()))?;
        buffer.resize(bytes.len(), 0);
        let read = of_memory(bytes);
        self.compose(buffer, PatchBase { read: &read, in_parts: true }, unpacker, interrupt)
    }
}

/// Reads a base that is in memory.
fn of_memory(bytes: &[u8]) -> impl Fn(usize, &mut [u8]) -> Result<()> {
    |start, out| {
        out.copy_from_slice(&bytes[start..start + out.len()]);
        Ok(())
    }
}
