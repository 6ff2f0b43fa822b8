//! Places and new values in a tensor: of elements, as two tensors in sparse deltas, or of bytes, as one record in a frame.

use std::ops::Range;

use crate::budget::saturating_usize;
use crate::dtype::DType;

/// How places are written: whole numbers of 16, 32 or 64 bits. Negative ones are places beyond every tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PositionWidth {
    pub(super) dtype: DType,
    /// Whether they are how many elements are passed over before each.
    pub(super) are_gaps: bool,
}

/// The bytes of a place, and of the number of places, in a record.
const WORD: usize = size_of::<u32>();

fn record_len(count: usize) -> usize {
    count.saturating_mul(WORD + 1).saturating_add(WORD)
}

/// The number of places in a record that begins with `bytes`, for a tensor of `len` bytes. Fails if the record is invalid, or longer than its count
/// says.
pub(crate) fn check_record(bytes: &[u8], len: usize) -> Result<Option<usize>, String> {
    let Some(count) = bytes.first_chunk().map(|count| saturating_usize(u32::from_le_bytes(*count).into())) else {
        return Ok(None);
    };
    if count > len {
        return Err(format!("{count} bytes are replaced, but the tensor has {len}"));
    }
    if bytes.len() > record_len(count) {
        return Err(format!("more follows its {count} places and their bytes"));
    }
    Ok(Some(count))
}

/// The replaced places of a tensor, in rising order, and their new values.
#[derive(Debug)]
pub(crate) struct Replaced {
    places: PositionWidth,
    /// The range of the places in the bytes; the new values follow.
    range: Range<usize>,
    bytes: Vec<u8>,
    /// Bytes of an element.
    width: usize,
}

/// How many of the places were gone through, and the least that can follow.
#[derive(Default)]
pub(crate) struct PositionCursor {
    count: usize,
    next: u64,
}

impl Replaced {
    /// From a complete record, for a tensor of `len` bytes.
    pub(crate) fn of_record(bytes: Vec<u8>, len: usize) -> Result<Self, String> {
        let Some(count) = check_record(&bytes, len)? else { return Err("what changed unpacks to nothing".to_owned()) };
        if bytes.len() < record_len(count) {
            let places = (bytes.len() / WORD - 1).min(count);
            let values = if places == count { bytes.len() - WORD - WORD * count } else { 0 };
            return Err(format!("it is about {count} bytes, but has {places} places and {values} bytes"));
        }
        let places = PositionWidth { dtype: DType::UInt32, are_gaps: false };
        Self { places, range: WORD..WORD + WORD * count, bytes, width: 1 }.checked(len, "byte")
    }

    /// From `end` bytes of places, followed by values, for a tensor of `len` elements. Compares them with `sum`, the checksum of both, if there is
    /// one.
    pub(crate) fn of_elements(
        places: PositionWidth,
        (bytes, end): (Vec<u8>, usize),
        (dtype, sum): (DType, Option<u64>),
        len: usize,
    ) -> Result<Self, String> {
        let own = Self { places, range: 0..end, bytes, width: (dtype.bits() / 8).max(1) }.checked(len, "element")?;
        let Some(expected) = sum else { return Ok(own) };
        let (mut sum, mut values) = (Some(0), own.bytes[end..].chunks_exact(own.width));
        own.each(&mut PositionCursor::default(), |_, _, place| {
            let bits = values.next().and_then(|value| bits_of(dtype, value));
            sum = sum.zip(bits).map(|(sum, bits)| sum ^ place ^ bits);
            sum.is_some()
        });
        match sum {
            Some(sum) if sum != expected => {
                Err(format!("the sum of its places and values is {sum:016x}, but it states {expected:016x}"))
            }
            _ => Ok(own),
        }
    }

    fn checked(self, len: usize, noun: &str) -> Result<Self, String> {
        let elements = (len / self.width) as u64;
        let mut wrong = None;
        self.each(&mut PositionCursor::default(), |number, next, place| {
            if place < next {
                let cause = if place + 1 == next { "twice" } else { "out of order" };
                wrong = Some(format!("its place {number}, the {noun} {place}, is there {cause}: places rise"));
            } else if place >= elements {
                wrong = Some(format!("its place {number} is the {noun} {place}, but the tensor has {elements}"));
            }
            wrong.is_none()
        });
        wrong.map_or(Ok(self), Err)
    }

    /// Calls `work` with the number of each place, the least that it can be, and the place, in elements, until it returns false.
    fn each(&self, cursor: &mut PositionCursor, work: impl FnMut(usize, u64, u64) -> bool) {
        let places = &self.bytes[self.range.clone()];
        match self.places.dtype {
            DType::UInt16 => self.each_of(places.as_chunks().0, |own| u16::from_le_bytes(own).into(), cursor, work),
            DType::UInt32 => self.each_of(places.as_chunks().0, |own| u32::from_le_bytes(own).into(), cursor, work),
            #[expect(clippy::cast_sign_loss, reason = "negative numbers are beyond every tensor")]
            DType::Int32 => self.each_of(places.as_chunks().0, |own| i32::from_le_bytes(own) as u64, cursor, work),
            _ => self.each_of(places.as_chunks().0, u64::from_le_bytes, cursor, work),
        }
    }

    fn each_of<const WIDTH: usize>(
        &self,
        places: &[[u8; WIDTH]],
        number_of: impl Fn([u8; WIDTH]) -> u64,
        cursor: &mut PositionCursor,
        mut work: impl FnMut(usize, u64, u64) -> bool,
    ) {
        let (mut next, first) = (cursor.next, cursor.count);
        for own in &places[first..] {
            let own = number_of(*own);
            let place = if self.places.are_gaps { next.saturating_add(own) } else { own };
            if !work(cursor.count, next, place) {
                break;
            }
            next = place.saturating_add(1);
            cursor.count += 1;
        }
        cursor.next = next;
    }

    /// Replaces places in a part of the tensor, which begins at this byte. Parts are consecutive, and do not split elements.
    pub(crate) fn write(&self, cursor: &mut PositionCursor, start: usize, part: &mut [u8]) {
        match self.width {
            1 => self.write_elements::<1>(cursor, start, part),
            2 => self.write_elements::<2>(cursor, start, part),
            4 => self.write_elements::<4>(cursor, start, part),
            8 => self.write_elements::<8>(cursor, start, part),
            _ => self.write_elements::<16>(cursor, start, part),
        }
    }

    fn write_elements<const WIDTH: usize>(&self, cursor: &mut PositionCursor, start: usize, part: &mut [u8]) {
        let values = self.bytes[self.range.end..].as_chunks::<WIDTH>().0;
        let (elements, first) = (part.as_chunks_mut::<WIDTH>().0, start / WIDTH);
        self.each(cursor, |number, _, place| {
            let element = saturating_usize(place).checked_sub(first).and_then(|place| elements.get_mut(place));
            let (Some(element), Some(value)) = (element, values.get(number)) else { return false };
            *element = *value;
            true
        });
    }
}

/// Adds the places of bytes, numbered from `first` on, to those of a record.
pub(crate) fn push_places(first: u64, numbers: &[u16], places: &mut Vec<u8>) -> Result<(), String> {
    for number in numbers {
        let Ok(place) = u32::try_from(first + u64::from(*number)) else {
            return Err("it changed beyond its first 4 GiB: overwrite has places of 32 bits; take xor".to_owned());
        };
        places.extend_from_slice(&place.to_le_bytes());
    }
    Ok(())
}

/// How many elements are skipped before each place. They are collected in 32 bits, until it is known whether 16 suffice.
#[derive(Default)]
pub(crate) struct PositionGaps {
    /// The element after the last place.
    next: u64,
    are_long: bool,
}

impl PositionGaps {
    /// Adds the gaps of elements, numbered from `first` on.
    pub(crate) fn push(&mut self, first: u64, numbers: &[u16], gaps: &mut Vec<u8>) -> Result<(), String> {
        gaps.reserve(numbers.len() * WORD);
        for number in numbers {
            let place = first + u64::from(*number);
            let Ok(gap) = u32::try_from(place - self.next) else {
                let cause = "more than 4,294,967,295 unchanged elements precede a changed one";
                return Err(format!("{cause}; take another dialect"));
            };
            self.are_long |= gap > u16::MAX.into();
            self.next = place + 1;
            gaps.extend_from_slice(&gap.to_le_bytes());
        }
        Ok(())
    }

    /// The dtype in which they are written.
    pub(crate) fn dtype(&self) -> DType {
        if self.are_long { DType::UInt32 } else { DType::UInt16 }
    }
}

/// Gaps of 32 bits in 16, where these suffice.
pub(crate) fn narrowed(gaps: &[u8]) -> Vec<u8> {
    let short: Vec<[u8; 2]> = gaps.as_chunks::<WORD>().0.iter().map(|[low, high, ..]| [*low, *high]).collect();
    short.into_flattened()
}

/// An element as the 64 bits that `torch.hash_tensor` combines: those of the value as float64 or as an integer. Other kinds have none. NaN has none
/// either, because its bits depend on the processor.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(numbers: &[u32], values: &[u8]) -> Vec<u8> {
        numbers.iter().copied().flat_map(u32::to_le_bytes).chain(values.iter().copied()).collect()
    }

    #[test]
    fn bytes_are_overwritten_however_the_tensor_is_divided() {
        for step in 1..=8 {
            let replaced = Replaced::of_record(record(&[3, 0, 5, 6], &[7, 8, 9]), 7).expect("a record");
            let (mut bytes, mut cursor) = ([0; 7], PositionCursor::default());
            for (start, part) in (0..).step_by(step).zip(bytes.chunks_mut(step)) {
                replaced.write(&mut cursor, start, part);
            }
            assert_eq!(bytes, [7, 0, 0, 0, 0, 8, 9]);
        }
    }

    #[test]
    fn elements_are_replaced_where_their_gaps_say() {
        let mut gaps = PositionGaps::default();
        let mut bytes = Vec::new();
        gaps.push(0, &[1, 2], &mut bytes).and_then(|()| gaps.push(70_000, &[5], &mut bytes)).expect("gaps");
        assert_eq!(gaps.dtype(), DType::UInt32);
        let end = bytes.len();
        bytes.extend([1, 2, 3, 4, 5, 6]);
        let places = PositionWidth { dtype: DType::UInt32, are_gaps: true };
        let replaced = |len| Replaced::of_elements(places, (bytes.clone(), end), (DType::BFloat16, None), len);
        let (mut tensor, mut cursor) = (vec![0; 2 * 70_006], PositionCursor::default());
        let replaced_bytes = replaced(tensor.len()).expect("places");
        for (start, part) in (0..).step_by(64).zip(tensor.chunks_mut(64)) {
            replaced_bytes.write(&mut cursor, start, part);
        }
        assert_eq!((&tensor[..6], &tensor[140_008..]), (&[0, 0, 1, 2, 3, 4][..], &[0, 0, 5, 6][..]));
        assert_eq!(tensor.iter().filter(|byte| **byte != 0).count(), 6);
        assert!(replaced(2 * 70_005).expect_err("too short").contains("is the element 70005"));
        // Too far for 32 bits.
        assert!(PositionGaps::default().push(u32::MAX.into(), &[0], &mut Vec::new()).is_ok());
        assert!(PositionGaps::default().push(1 << 32, &[0], &mut Vec::new()).is_err());
        assert!(push_places(u32::MAX.into(), &[0], &mut Vec::new()).is_ok());
        assert!(push_places(u32::MAX.into(), &[0, 1], &mut Vec::new()).is_err());
        assert_eq!(narrowed(&[1, 2, 0, 0, 3, 4, 0, 0]), [1, 2, 3, 4]);
    }

    #[test]
    fn records_that_are_none_are_named() {
        let refused =
            |numbers: &[u32], values: &[u8]| Replaced::of_record(record(numbers, values), 7).expect_err("none");
        assert!(refused(&[8], &[]).contains("8 bytes are replaced, but the tensor has 7"));
        assert!(refused(&[2, 3, 3], &[1, 2]).contains("is there twice"));
        assert!(refused(&[2, 3, 1], &[1, 2]).contains("is there out of order"));
        assert!(refused(&[1, 7], &[1]).contains("the byte 7, but the tensor has 7"));
        assert!(refused(&[1, 6], &[]).contains("1 places and 0 bytes"));
        assert!(refused(&[2], &[1]).contains("0 places and 0 bytes"));
        assert!(refused(&[1, 6], &[1, 2]).contains("more follows"));
        assert!(refused(&[], &[1, 2, 3]).contains("to nothing"));
    }

    #[test]
    fn places_that_are_negative_or_do_not_rise_are_named() {
        let refused = |dtype, are_gaps, bytes: &[u8]| {
            let (end, mut bytes) = (bytes.len(), bytes.to_vec());
            bytes.resize(2 * end, 0);
            let places = PositionWidth { dtype, are_gaps };
            Replaced::of_elements(places, (bytes, end), (DType::Int8, None), 9).expect_err("none")
        };
        assert!(refused(DType::Int32, false, &[255; 4]).contains("the tensor has 9"));
        assert!(refused(DType::Int64, false, &[255; 16]).contains("the tensor has 9"));
        assert!(refused(DType::Int32, false, &[1, 0, 0, 0, 1, 0, 0, 0]).contains("the element 1, is there twice"));
        assert!(refused(DType::UInt16, true, &[4, 0, 4, 0]).contains("its place 1 is the element 9"));
    }
}
