//! NumPy's scalars, arrays and dtypes, as plain values.

use half::f16;

use super::ParseStep;
use super::construct::KnownCall;
use super::dtype::NumpyDType;
use super::global::KnownGlobal;
use super::ids::ObjectId;
use super::machine::PickleMachine;
use super::object::{ArenaSlice, PickleObject};
use crate::format::shown_shape;
use crate::rules;

/// The most digits of the size in the name of a dtype: those of 32 bits.
const MAX_DIGITS: usize = 10;

impl NumpyDType {
    /// The dtype that NumPy's pickles call `f8`, `S5` and so on; an element of `U` has four bytes per character.
    fn from_code(code: &str) -> Option<Self> {
        // No longer than the largest count, or a text of many zeros is read again and again.
        let (kind, digits) = (*code.as_bytes().first()?, code.get(1..).filter(|digits| digits.len() <= MAX_DIGITS)?);
        let count: u32 = digits.parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
        let exists = match kind {
            b'b' => count == 1,
            b'i' | b'u' => matches!(count, 1 | 2 | 4 | 8),
            b'f' => matches!(count, 2 | 4 | 8 | 12 | 16),
            b'c' => matches!(count, 8 | 16 | 24 | 32),
            b'M' | b'm' => count == 8,
            b'S' | b'U' | b'O' | b'V' => true,
            _ => false,
        };
        if !exists {
            return None;
        }
        let bytes = if kind == b'U' { count.checked_mul(4)? } else { count };
        Some(Self { kind, bytes, big_endian: false })
    }

    /// Like `dtype.str`, such as `<f4`; an element of `U` is counted in characters.
    pub fn code(self) -> String {
        let order = match (self.kind, self.bytes) {
            (b'b' | b'S' | b'O' | b'V', _) | (b'i' | b'u', 1) => '|',
            _ if self.big_endian => '>',
            _ => '<',
        };
        let count = if self.kind == b'U' { self.bytes / 4 } else { self.bytes };
        format!("{order}{}{count}", char::from(self.kind))
    }
}

/// An element that is a number of Python.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the names are the documentation
pub enum PythonNumber {
    Bool(bool),
    Int(i128),
    Float(f64),
}

impl NumpyDType {
    /// The number that the bytes of one element are; `None` for a type that Python has no number for, or other bytes than of one element.
    pub fn number(self, bytes: &[u8]) -> Option<PythonNumber> {
        let mut wide = [0; 8];
        let place = wide.get_mut(..bytes.len()).filter(|place| place.len() == self.bytes as usize)?;
        place.copy_from_slice(bytes);
        if self.big_endian {
            place.reverse();
        }
        let unsigned = u64::from_le_bytes(wide);
        Some(match (self.kind, self.bytes) {
            (b'b', 1) => PythonNumber::Bool(unsigned != 0),
            (b'u', 1 | 2 | 4 | 8) => PythonNumber::Int(i128::from(unsigned)),
            (b'i', bytes @ (1 | 2 | 4 | 8)) => {
                let unused = 64 - 8 * bytes;
                PythonNumber::Int(i128::from((unsigned << unused).cast_signed() >> unused))
            }
            (b'f', 2) => PythonNumber::Float(f16::from_le_bytes([wide[0], wide[1]]).to_f64()),
            (b'f', 4) => PythonNumber::Float(f64::from(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]))),
            (b'f', 8) => PythonNumber::Float(f64::from_bits(unsigned)),
            _ => return None,
        })
    }
}

impl PickleMachine<'_> {
    pub(super) fn make_numpy(&mut self, call: &KnownCall<'_>) -> ParseStep<Option<ObjectId>> {
        let &KnownCall { known, global, callee, list, arguments } = call;
        let object = match (known, list) {
            (KnownGlobal::NumpyDType, [code, ..]) => match self.objects.text(*code).and_then(NumpyDType::from_code) {
                Some(dtype) => PickleObject::NumpyDType(dtype),
                // Of classes that extend NumPy.
                None => return self.placeholder(global, callee, arguments, None).map(Some),
            },
            (KnownGlobal::NumpyScalar, [dtype, data]) => match *self.objects.get(*dtype) {
                // The unit of a time is in the state of its dtype, which is not kept: without it the number has no meaning.
                PickleObject::NumpyDType(NumpyDType { kind: b'O' | b'M' | b'm', .. }) | PickleObject::Opaque(_) => {
                    return self.placeholder(global, callee, arguments, None).map(Some);
                }
                PickleObject::NumpyDType(dtype) => {
                    let Some(data) = self.data_of(*data)? else { return Ok(None) };
                    if data.len() != dtype.bytes as usize {
                        let cause = format!("a NumPy scalar of {} has {} bytes", dtype.code(), data.len());
                        return Err(self.fault(rules::PICKLE_NUMPY, cause));
                    }
                    PickleObject::NumpyScalar { dtype, data: Some(data) }
                }
                _ => return Ok(None),
            },
            (KnownGlobal::NumpyReconstruct, [class, _, _]) => match self.objects.get(*class) {
                PickleObject::Global(class) => {
                    let class = *class;
                    if self.known_of(class) != Some(KnownGlobal::NumpyArray) {
                        return self.placeholder(class, callee, arguments, None).map(Some);
                    }
                    let dtype = NumpyDType { kind: b'V', bytes: 0, big_endian: false };
                    PickleObject::NumpyArray { dtype, shape: None, fortran: false, data: None }
                }
                _ => return Ok(None),
            },
            (KnownGlobal::NumpyFromBuffer, [data, dtype, shape, order]) => {
                let fortran = match self.objects.text(*order) {
                    Some("C") => false,
                    Some("F") => true,
                    _ => return Ok(None),
                };
                self.numpy_array(*dtype, *shape, *data, fortran)?
            }
            (KnownGlobal::NumpyArray, _) => return self.placeholder(global, callee, arguments, None).map(Some),
            _ => return Ok(None),
        };
        self.make(object).map(Some)
    }

    /// `BUILD` of a dtype: the version of the state, the order, and for bytes and text the size of an element.
    pub(super) fn build_numpy_dtype(&mut self, target: ObjectId, state: ObjectId) -> ParseStep<()> {
        let (order, size, parts) = match self.objects.get(state) {
            PickleObject::Tuple(members) => match &**members {
                [_, order, subarray, names, fields, size, ..] => (*order, *size, [*subarray, *names, *fields]),
                _ => return Err(self.fault(rules::PICKLE_NUMPY, "the state of a NumPy dtype is too short")),
            },
            _ => return Err(self.fault(rules::PICKLE_NUMPY, "the state of a NumPy dtype is not a tuple")),
        };
        let plain = parts.iter().all(|part| *self.objects.get(*part) == PickleObject::None);
        let big_endian = match self.objects.text(order) {
            Some(">") => true,
            Some("<" | "|" | "=") => false,
            _ => return Err(self.fault(rules::PICKLE_NUMPY, "the byte order of a NumPy dtype is not one of < > = |")),
        };
        let size = match self.objects.get(size) {
            PickleObject::Int(size) => u32::try_from(*size).ok(),
            _ => None,
        };
        if let Some(PickleObject::NumpyDType(dtype)) = self.objects.get_mut(target) {
            dtype.big_endian = big_endian;
            if !plain {
                dtype.kind = b'V';
            }
            if matches!(dtype.kind, b'S' | b'U' | b'V') {
                dtype.bytes = size.unwrap_or(dtype.bytes);
            }
        }
        Ok(())
    }

    /// `BUILD` of an array: version, shape, dtype, order of the indices, and the elements.
    pub(super) fn build_numpy_array(&mut self, target: ObjectId, state: ObjectId) -> ParseStep<()> {
        let Some([_, shape, dtype, fortran, content]) = self.objects.tuple(state) else {
            return Err(self.fault(rules::PICKLE_NUMPY, "the state of a NumPy array is not a tuple of five"));
        };
        let PickleObject::Bool(fortran) = *self.objects.get(fortran) else {
            return Err(self.fault(rules::PICKLE_NUMPY, "the order of a NumPy array is not a bool"));
        };
        let array = self.numpy_array(dtype, shape, content, fortran)?;
        if let Some(object) = self.objects.get_mut(target) {
            *object = array;
        }
        Ok(())
    }

    fn numpy_array(
        &mut self,
        dtype: ObjectId,
        shape_id: ObjectId,
        content: ObjectId,
        fortran: bool,
    ) -> ParseStep<PickleObject> {
        let shape = self.dims(shape_id, "the shape of a NumPy array")?;
        let dtype = match *self.objects.get(dtype) {
            PickleObject::NumpyDType(dtype) => dtype,
            // A dtype of a class that extends NumPy: bytes of an unknown meaning.
            PickleObject::Opaque(_) => NumpyDType { kind: b'V', bytes: 0, big_endian: false },
            _ => return Err(self.fault(rules::PICKLE_NUMPY, "the dtype of a NumPy array is not a dtype")),
        };
        if matches!(self.objects.get(content), PickleObject::List(_)) || matches!(dtype.kind, b'M' | b'm') {
            return Ok(PickleObject::NumpyArray { dtype, shape: Some(shape_id), fortran, data: None });
        }
        let Some(data) = self.data_of(content)? else {
            let cause = format!("the elements of a NumPy array are {}", self.kind(content));
            return Err(self.fault(rules::PICKLE_NUMPY, cause));
        };
        let bytes = shape.iter().try_fold(u64::from(dtype.bytes), |bytes, size| bytes.checked_mul(*size));
        if dtype.bytes > 0 && bytes != Some(data.len() as u64) {
            let (shape, len) = (shown_shape(&shape), data.len());
            let cause = format!("a NumPy array of {} with the shape {shape} has {len} bytes", dtype.code());
            return Err(self.fault(rules::PICKLE_NUMPY, cause));
        }
        Ok(PickleObject::NumpyArray { dtype, shape: Some(shape_id), fortran, data: Some(data) })
    }

    /// The bytes that a value is, or that a string of Python 2 was.
    fn data_of(&mut self, id: ObjectId) -> ParseStep<Option<ArenaSlice>> {
        if let Some(slice) = self.objects.bytes_slice(id) {
            return Ok(Some(slice));
        }
        let encoded = self.encode(id, true)?;
        Ok(encoded.and_then(|id| self.objects.bytes_slice(id)))
    }
}

impl super::PickleObjects {
    /// The value of a NumPy scalar that is an integer, if it fits.
    pub fn numpy_integer(&self, id: ObjectId) -> Option<i64> {
        let PickleObject::NumpyScalar { dtype, data: Some(data) } = self.get(id) else { return None };
        match dtype.number(self.bytes_of(*data))? {
            PythonNumber::Int(value) => i64::try_from(value).ok(),
            _ => None,
        }
    }
}
