//! A plain reader and writer of GGUF headers: what ours is compared with, and what changes are made to.
//!
//! It decodes everything at once, and knows no rule but the syntax.

/// How deep arrays may lie in each other here: deeper than ours reads.
const DEPTH: usize = 24;
/// Bytes of a value, by the number of its type; 0 for strings and arrays.
const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// A header, field by field.
#[derive(Clone, Debug)]
pub struct Document {
    pub version: u32,
    pub big_endian: bool,
    pub keys: Vec<(Vec<u8>, Value)>,
    pub tensors: Vec<Tensor>,
    /// The counts that are claimed instead of the true ones: of tensors, of keys.
    pub claims: [Option<u64>; 2],
    /// Where the last record ends.
    pub end: usize,
}

/// A value of the metadata.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number of this type, its bytes as in a little-endian file.
    Number(u32, Vec<u8>),
    Text(Vec<u8>),
    Array(Array),
}

#[derive(Clone, Debug)]
pub struct Array {
    pub element: u32,
    /// The number of elements that is claimed instead of the true one.
    pub claim: Option<u64>,
    pub elements: Elements,
}

#[derive(Clone, Debug)]
pub enum Elements {
    /// Numbers in sequence, each as in a little-endian file.
    Numbers(Vec<u8>),
    Values(Vec<Value>),
}

/// The record of a tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: Vec<u8>,
    /// The fastest first, as in the file.
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub offset: u64,
    /// The position of the record in the header.
    pub place: std::ops::Range<usize>,
}

/// The bytes of a number of this type; none for other types.
pub fn size(type_id: u32) -> Option<usize> {
    SIZES.get(type_id as usize).copied().filter(|size| *size > 0)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
    narrow: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(len).ok()?)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = self.take(len as u64)?.to_vec();
        if self.big_endian {
            bytes.reverse();
        }
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.number(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.number(8)?.try_into().ok()?))
    }

    fn length(&mut self) -> Option<u64> {
        if self.narrow { self.u32().map(u64::from) } else { self.u64() }
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let len = self.length()?;
        Some(self.take(len)?.to_vec())
    }

    fn value(&mut self, type_id: u32, depth: usize) -> Option<Value> {
        Some(match type_id {
            STRING => Value::Text(self.text()?),
            ARRAY if depth < DEPTH => {
                let (element, count) = (self.u32()?, self.length()?);
                let elements = if let Some(size) = size(element) {
                    let bytes = self.take(count.checked_mul(size as u64)?)?;
                    let swapped = |number: &[u8]| number.iter().rev().copied().collect::<Vec<u8>>();
                    let numbers = bytes.chunks_exact(size);
                    Elements::Numbers(if self.big_endian { numbers.flat_map(swapped).collect() } else { bytes.into() })
                } else if element == STRING || element == ARRAY {
                    let least = if self.narrow { 4 } else { 8 };
                    if count > ((self.bytes.len() - self.at) / least) as u64 {
                        return None;
                    }
                    Elements::Values((0..count).map(|_| self.value(element, depth + 1)).collect::<Option<_>>()?)
                } else {
                    return None;
                };
                Value::Array(Array { element, claim: None, elements })
            }
            number => Value::Number(number, self.number(size(number)?)?),
        })
    }

    fn tensor(&mut self) -> Option<Tensor> {
        let start = self.at;
        let name = self.text()?;
        let rank = self.u32().filter(|rank| *rank <= 4)?;
        let dims = (0..rank).map(|_| self.length()).collect::<Option<_>>()?;
        let (type_id, offset) = (self.u32()?, self.u64()?);
        Some(Tensor { name, dims, type_id, offset, place: start..self.at })
    }
}

impl Document {
    /// The header at the start of these bytes, if all of it is there.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { bytes, at: 0, big_endian: false, narrow: false };
        if reader.take(4)? != b"GGUF" {
            return None;
        }
        let stored = reader.u32()?;
        reader.big_endian = stored.trailing_zeros() >= 16;
        let version = if reader.big_endian { stored.swap_bytes() } else { stored };
        reader.narrow = version == 1;
        let (tensors, keys) = (reader.length()?, reader.length()?);
        if tensors.max(keys) > bytes.len() as u64 {
            return None;
        }
        let pair = |reader: &mut Reader<'_>| {
            let key = reader.text()?;
            let type_id = reader.u32()?;
            Some((key, reader.value(type_id, 0)?))
        };
        let keys = (0..keys).map(|_| pair(&mut reader)).collect::<Option<_>>()?;
        let tensors = (0..tensors).map(|_| reader.tensor()).collect::<Option<_>>()?;
        Some(Self { version, big_endian: reader.big_endian, keys, tensors, claims: [None; 2], end: reader.at })
    }

    /// The bytes of this header.
    pub fn write(&self) -> Vec<u8> {
        let mut writer = Writer { bytes: b"GGUF".to_vec(), big_endian: self.big_endian, narrow: self.version == 1 };
        writer.number(&self.version.to_le_bytes());
        writer.length(self.claims[0].unwrap_or(self.tensors.len() as u64));
        writer.length(self.claims[1].unwrap_or(self.keys.len() as u64));
        for (key, value) in &self.keys {
            writer.text(key);
            writer.number(&value.type_id().to_le_bytes());
            writer.value(value);
        }
        for tensor in &self.tensors {
            writer.text(&tensor.name);
            writer.number(&(tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                writer.length(*dim);
            }
            writer.number(&tensor.type_id.to_le_bytes());
            writer.number(&tensor.offset.to_le_bytes());
        }
        writer.bytes
    }
}

impl Value {
    /// The number of this value's type.
    pub fn type_id(&self) -> u32 {
        match self {
            Self::Number(type_id, _) => *type_id,
            Self::Text(_) => STRING,
            Self::Array(_) => ARRAY,
        }
    }
}

impl Array {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match &self.elements {
            Elements::Numbers(bytes) => bytes.len() / size(self.element).unwrap_or(1),
            Elements::Values(values) => values.len(),
        }
    }
}

struct Writer {
    bytes: Vec<u8>,
    big_endian: bool,
    narrow: bool,
}

impl Writer {
    fn number(&mut self, little_endian: &[u8]) {
        self.bytes.extend_from_slice(little_endian);
        if self.big_endian {
            let start = self.bytes.len() - little_endian.len();
            self.bytes[start..].reverse();
        }
    }

    fn length(&mut self, value: u64) {
        let bytes = value.to_le_bytes();
        self.number(if self.narrow { &bytes[..4] } else { &bytes });
    }

    fn text(&mut self, text: &[u8]) {
        self.length(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Number(_, bytes) => self.number(bytes),
            Value::Text(text) => self.text(text),
            Value::Array(array) => {
                self.number(&array.element.to_le_bytes());
                self.length(array.claim.unwrap_or(array.len() as u64));
                match &array.elements {
                    Elements::Numbers(bytes) => {
                        bytes.chunks(size(array.element).unwrap_or(1)).for_each(|number| self.number(number));
                    }
                    Elements::Values(values) => values.iter().for_each(|value| self.value(value)),
                }
            }
        }
    }
}
