//! Places and values of elements that a sparse delta replaces.

use crate::dtype::DType;
use crate::format::delta::sparse::Indices;
use crate::tensor::Span;

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

impl SparseChange {
    /// The bytes of a tensor of so many at which elements are replaced, into `places`.
    pub(super) fn read_places(
        &self,
        indices: &[u8],
        values: &[u8],
        len: usize,
        places: &mut Vec<usize>,
    ) -> Result<(), String> {
        // Numbers that are negative become places beyond every tensor.
        match self.indices_dtype {
            DType::UInt16 => self.places_of(indices.as_chunks().0, |own| u16::from_le_bytes(own).into(), len, places),
            DType::UInt32 => self.places_of(indices.as_chunks().0, |own| u32::from_le_bytes(own).into(), len, places),
            #[expect(clippy::cast_sign_loss, reason = "see above")]
            DType::Int32 => self.places_of(indices.as_chunks().0, |own| i32::from_le_bytes(own) as u64, len, places),
            _ => self.places_of(indices.as_chunks().0, u64::from_le_bytes, len, places),
        }?;
        let width = self.dtype.bits() / 8;
        let Some(said) = self.sum else { return Ok(()) };
        let bits = |(at, value): (&usize, &[u8])| Some((at / width) as u64 ^ bits_of(self.dtype, value)?);
        match places.iter().zip(values.chunks_exact(width)).map(bits).try_fold(0, |sum, bits| Some(sum ^ bits?)) {
            Some(sum) if sum != said => {
                Err(format!("the sum of its places and values is {sum:016x}, but it says {said:016x}"))
            }
            _ => Ok(()),
        }
    }

    fn places_of<const WIDTH: usize>(
        &self,
        indices: &[[u8; WIDTH]],
        number_of: impl Fn([u8; WIDTH]) -> u64,
        len: usize,
        places: &mut Vec<usize>,
    ) -> Result<(), String> {
        let width = self.dtype.bits() / 8;
        let elements = (len / width) as u64;
        let mut next = 0_u64;
        for (number, own) in indices.iter().enumerate() {
            let own = number_of(*own);
            let place = match self.indices_are {
                Indices::Numbers => own,
                Indices::Gaps => next.saturating_add(own),
            };
            if place < next {
                let cause = if place + 1 == next { "twice" } else { "out of order" };
                return Err(format!("its place {number}, the element {place}, is there {cause}: places rise"));
            }
            if place >= elements {
                return Err(format!("its place {number} is the element {place}, but the tensor has {elements}"));
            }
            places.push(place as usize * width);
            next = place + 1;
        }
        Ok(())
    }

    /// Replaces elements; returns whether any was another.
    pub(super) fn write(&self, places: &[usize], values: &[u8], bytes: &mut [u8]) -> bool {
        fn write<const WIDTH: usize>(places: &[usize], values: &[u8], bytes: &mut [u8]) -> bool {
            let mut is_other = false;
            for (at, value) in places.iter().zip(values.as_chunks::<WIDTH>().0) {
                if let Some(element) = bytes.get_mut(*at..).and_then(|rest| rest.first_chunk_mut::<WIDTH>()) {
                    is_other |= element != value;
                    *element = *value;
                }
            }
            is_other
        }
        match self.dtype.bits() / 8 {
            1 => write::<1>(places, values, bytes),
            2 => write::<2>(places, values, bytes),
            4 => write::<4>(places, values, bytes),
            8 => write::<8>(places, values, bytes),
            _ => write::<16>(places, values, bytes),
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
