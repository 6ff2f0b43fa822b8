//! What deltas of other libraries change in a tensor as a whole: it is composed with all of its bytes, and compared with the checksum of the new
//! version, where there is one.

use std::sync::Arc;

use crate::budget;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::published::{Checksum, Encoding};
use crate::format::delta::sparse::Indices;
use crate::rules::{self, Rule};
use crate::source::{Part, Source};
use crate::tensor::Span;
use crate::text;
use crate::workers::Interrupt;

use super::super::packed::unpack;

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

/// Places and values, in the elements of the tensor.
#[derive(Debug)]
pub(super) struct SparseChange {
    pub(super) indices: Span,
    /// Of whole numbers.
    pub(super) indices_dtype: DType,
    pub(super) indices_are: Indices,
    pub(super) values: Span,
    pub(super) dtype: DType,
    /// Where it is said.
    pub(super) shape: Option<Vec<u64>>,
    /// The exclusive or of all places and all values, as 64 bits each, where it is said.
    pub(super) sum: Option<u64>,
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

    /// Makes the bytes of a tensor what it says. What is wrong with it is found before, in between or after.
    fn apply(&self, name: &str, bytes: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let fault = |cause: String| self.fault(rules::DELTA_CHANGES, name, cause);
        match &self.change {
            Change::Frame { frame, encoding, .. } => {
                let range = frame.start()..frame.start() + frame.len();
                let mut taker: Box<dyn Take> = match encoding {
                    Encoding::Xor => Box::new(Xor { bytes, at: 0 }),
                    Encoding::Overwrite => Box::new(Overwrite::new(bytes)),
                };
                unpack(&*self.file, &range, interrupt, &fault, &mut |part| taker.take(part).map_err(fault))?;
                taker.finish().map_err(fault)
            }
            Change::Sparse(sparse) => {
                let read = |span: Span| {
                    let mut bytes = budget::zeroed(budget::saturating_usize(span.len()))?;
                    self.file.read(&mut [Part { offset: span.start(), bytes: &mut bytes }], interrupt)?;
                    Ok::<_, Error>(bytes)
                };
                let (indices, values) = (read(sparse.indices)?, read(sparse.values)?);
                sparse.write(&indices, &values, bytes).map_err(fault)
            }
        }
    }

    /// How much it changes of the tensor, and how much that has, where it says so: elements, or bytes, of frames.
    pub(super) fn extent(&self, name: &str, interrupt: Interrupt<'_>) -> Result<(u64, Option<u64>)> {
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
                unpack(&*self.file, &range, interrupt, &fault, &mut |part| {
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

/// Who changes a tensor by what a frame unpacks to.
trait Take {
    fn take(&mut self, part: &[u8]) -> Result<(), String>;

    fn finish(&self) -> Result<(), String>;
}

/// Each byte is that before and after, combined.
struct Xor<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Take for Xor<'_> {
    fn take(&mut self, part: &[u8]) -> Result<(), String> {
        let (len, end) = (self.bytes.len(), self.at + part.len());
        let Some(bytes) = self.bytes.get_mut(self.at..end) else {
            return Err(format!("what changed unpacks to more than the {len} bytes of the tensor"));
        };
        bytes.iter_mut().zip(part).for_each(|(byte, change)| *byte ^= change);
        self.at = end;
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(format!("what changed unpacks to {} bytes, but the tensor has {}", self.at, self.bytes.len()))
    }
}

/// How many bytes are replaced, the place of each, and then what is there now; numbers of 32 bits.
struct Overwrite<'a> {
    bytes: &'a mut [u8],
    /// The bytes of a number that is in two parts.
    word: Vec<u8>,
    count: Option<u32>,
    places: Vec<u32>,
    /// How many of them have their byte.
    done: usize,
}

impl<'a> Overwrite<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, word: Vec::new(), count: None, places: Vec::new(), done: 0 }
    }

    fn add(&mut self, number: u32) -> Result<(), String> {
        let len = self.bytes.len();
        if self.count.is_none() {
            if number as usize > len {
                return Err(format!("{number} bytes are replaced, but the tensor has {len}"));
            }
            self.count = Some(number);
            return Ok(());
        }
        if let Some(before) = self.places.last().filter(|before| **before >= number) {
            let (count, cause) = (self.places.len(), if *before == number { "twice" } else { "out of order" });
            return Err(format!("its place {count}, the byte {number}, is there {cause}: places rise"));
        }
        if number as usize >= len {
            return Err(format!("its place {} is the byte {number}, but the tensor has {len}", self.places.len()));
        }
        budget::reserve(&mut self.places, 1).map_err(|short| Error::from(short).to_string())?;
        self.places.push(number);
        Ok(())
    }
}

impl Take for Overwrite<'_> {
    fn take(&mut self, mut part: &[u8]) -> Result<(), String> {
        while self.count.is_none_or(|count| self.places.len() < count as usize) {
            let (now, rest) = part.split_at(part.len().min(size_of::<u32>() - self.word.len()));
            self.word.extend_from_slice(now);
            part = rest;
            let Ok(word) = <[u8; 4]>::try_from(&*self.word) else { return Ok(()) };
            self.word.clear();
            self.add(u32::from_le_bytes(word))?;
        }
        let places = self.places.get(self.done..).unwrap_or_default();
        if part.len() > places.len() {
            return Err(format!("more follows its {} places and their bytes", self.places.len()));
        }
        for (place, value) in places.iter().zip(part) {
            if let Some(byte) = self.bytes.get_mut(*place as usize) {
                *byte = *value;
            }
        }
        self.done += part.len();
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        match self.count {
            None => Err("what changed unpacks to nothing".to_owned()),
            Some(count) if self.done != count as usize => {
                Err(format!("it is about {count} bytes, but has {} places and {} bytes", self.places.len(), self.done))
            }
            Some(_) => Ok(()),
        }
    }
}

impl SparseChange {
    /// The places, one after the other.
    fn places<'a>(&self, indices: &'a [u8]) -> Box<dyn Iterator<Item = u64> + 'a> {
        // Numbers that are negative become places beyond every tensor.
        match self.indices_dtype {
            DType::UInt16 => Box::new(indices.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes).into())),
            DType::UInt32 => Box::new(indices.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes).into())),
            #[expect(clippy::cast_sign_loss, reason = "see above")]
            DType::Int32 => Box::new(indices.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as u64)),
            _ => Box::new(indices.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))),
        }
    }

    fn write(&self, indices: &[u8], values: &[u8], bytes: &mut [u8]) -> Result<(), String> {
        let width = self.dtype.bits() / 8;
        let elements = bytes.len() / width;
        let (mut next, mut sum) = (0_u64, Some(0_u64));
        for (number, (own, value)) in self.places(indices).zip(values.chunks_exact(width)).enumerate() {
            let place = match self.indices_are {
                Indices::Numbers => own,
                Indices::Gaps => next.saturating_add(own),
            };
            if place < next {
                let cause = if place + 1 == next { "twice" } else { "out of order" };
                return Err(format!("its place {number}, the element {place}, is there {cause}: places rise"));
            }
            let at = budget::saturating_usize(place).saturating_mul(width);
            let Some(element) = bytes.get_mut(at..at.saturating_add(width)) else {
                return Err(format!("its place {number} is the element {place}, but the tensor has {elements}"));
            };
            element.copy_from_slice(value);
            next = place + 1;
            sum = sum.zip(bits_of(self.dtype, value)).map(|(sum, bits)| sum ^ place ^ bits);
        }
        match self.sum.zip(sum) {
            Some((said, sum)) if said != sum => {
                Err(format!("the sum of its places and values is {sum:016x}, but it says {said:016x}"))
            }
            _ => Ok(()),
        }
    }
}

/// An element as the 64 bits that `torch.hash_tensor` combines: those of a float of 64 bits, or of a whole number. `None` for elements of other kinds, and
/// for NaN, of which processors make different bits.
fn bits_of(dtype: DType, value: &[u8]) -> Option<u64> {
    let float = |number: f64| (!number.is_nan()).then(|| number.to_bits());
    #[expect(clippy::cast_sign_loss, reason = "the bits")]
    let whole = |number: i64| Some(number as u64);
    match (dtype, value) {
        (DType::BFloat16, [low, high]) => float(f32::from_le_bytes([0, 0, *low, *high]).into()),
        (DType::Float16, [low, high]) => float(half::f16::from_le_bytes([*low, *high]).to_f64()),
        (DType::Float32, [a, b, c, d]) => float(f32::from_le_bytes([*a, *b, *c, *d]).into()),
        (DType::Float64, value) => float(f64::from_le_bytes(value.try_into().ok()?)),
        (DType::Int8, [byte]) => whole(i8::from_le_bytes([*byte]).into()),
        (DType::Int16, [a, b]) => whole(i16::from_le_bytes([*a, *b]).into()),
        (DType::Int32, [a, b, c, d]) => whole(i32::from_le_bytes([*a, *b, *c, *d]).into()),
        (DType::Int64 | DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64, value) => {
            Some(value.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
        }
        _ => None,
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
        let is_of = |patch: &Arc<Patch>| patch.checksum().is_some_and(|checksum| checksum.is_of(bytes));
        self.layers.iter().rposition(is_of).map(|position| position + 1)
    }

    /// Makes the bytes of a tensor, in which so many of the deltas are, what the last one says, and compares them with its checksum.
    pub(crate) fn go_on(&self, from: usize, bytes: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let layers = self.layers.get(from..).unwrap_or_default();
        for patch in layers {
            patch.apply(&self.name, bytes, interrupt)?;
        }
        layers.last().map_or(Ok(()), |patch| self.compare(patch, bytes, true))
    }

    fn compare(&self, patch: &Patch, bytes: &[u8], is_first: bool) -> Result<()> {
        let Some(checksum) = patch.checksum().filter(|checksum| !checksum.is_of(bytes)) else { return Ok(()) };
        let (rule, cause) = if is_first {
            (
                rules::DELTA_BASE,
                "it has other values than those that the delta was made from and makes, or the delta was changed",
            )
        } else {
            (rules::DELTA_CHANGES, "its changes do not give what they should")
        };
        Err(patch.fault(rule, &self.name, format!("{cause}: with it, the tensor has not the checksum {checksum}")))
    }

    /// Fills `bytes` with the tensor of the base, by `read`, and makes it what the last delta says. A tensor that has some of the deltas already gets
    /// the others.
    pub(crate) fn compose(
        &self,
        bytes: &mut [u8],
        read: &dyn Fn(&mut [u8]) -> Result<()>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        read(bytes)?;
        let failed = match self.go_on(0, bytes, interrupt) {
            Err(Error::Format(fault)) if fault.rule == rules::DELTA_BASE => fault,
            other => return other,
        };
        read(bytes)?;
        if let Some(from) = self.applied(bytes) {
            return self.go_on(from, bytes, interrupt);
        }
        // Which of them it is.
        for (position, patch) in self.layers.iter().enumerate() {
            patch.apply(&self.name, bytes, interrupt)?;
            self.compare(patch, bytes, position == 0)?;
        }
        Err(Error::Format(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_overwritten_however_what_says_so_is_divided() {
        let mut record: Vec<u8> = [3_u32, 0, 5, 6].into_iter().flat_map(u32::to_le_bytes).collect();
        record.extend([7, 8, 9]);
        for step in 1..=record.len() {
            let mut bytes = [0; 7];
            let mut taker = Overwrite::new(&mut bytes);
            record.chunks(step).for_each(|part| taker.take(part).expect("a record"));
            taker.finish().expect("all of it");
            assert_eq!(bytes, [7, 0, 0, 0, 0, 8, 9]);
        }
    }

    #[test]
    fn records_that_are_none_are_named() {
        let refused = |numbers: &[u32], values: &[u8]| {
            let mut record: Vec<u8> = numbers.iter().copied().flat_map(u32::to_le_bytes).collect();
            record.extend(values);
            let mut bytes = [0; 7];
            let mut taker = Overwrite::new(&mut bytes);
            taker.take(&record).and_then(|()| taker.finish()).expect_err("none")
        };
        assert!(refused(&[8], &[]).contains("8 bytes are replaced, but the tensor has 7"));
        assert!(refused(&[2, 3, 3], &[1, 2]).contains("is there twice"));
        assert!(refused(&[2, 3, 1], &[1, 2]).contains("is there out of order"));
        assert!(refused(&[1, 7], &[1]).contains("the byte 7, but the tensor has 7"));
        assert!(refused(&[1, 6], &[]).contains("1 places and 0 bytes"));
        assert!(refused(&[1, 6], &[1, 2]).contains("more follows"));
        assert!(refused(&[], &[]).contains("to nothing"));
    }
}
