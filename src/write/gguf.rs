//! The layout of a GGUF file (version 3, little-endian): metadata of every type, and the tensors.

use super::layout::{DeclaredTensor, FileLayout, StoredElements};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::gguf::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufValue, MAX_DIMENSIONS, ValueType};
use crate::text;

const MAGIC: &[u8] = b"GGUF";
const VERSION: u32 = 3;
/// The size of ggml's name field, including the NUL.
const NAME_BYTES: usize = 64;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the names are the documentation
pub enum MetadataValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Text; some tokenizers have text that is not UTF-8.
    String(Vec<u8>),
    /// Values of this one type.
    Array(ValueType, Vec<MetadataValue>),
}

impl From<GgufValue<'_>> for MetadataValue {
    fn from(value: GgufValue<'_>) -> Self {
        match value {
            GgufValue::U8(value) => Self::U8(value),
            GgufValue::I8(value) => Self::I8(value),
            GgufValue::U16(value) => Self::U16(value),
            GgufValue::I16(value) => Self::I16(value),
            GgufValue::U32(value) => Self::U32(value),
            GgufValue::I32(value) => Self::I32(value),
            GgufValue::U64(value) => Self::U64(value),
            GgufValue::I64(value) => Self::I64(value),
            GgufValue::F32(value) => Self::F32(value),
            GgufValue::F64(value) => Self::F64(value),
            GgufValue::Bool(value) => Self::Bool(value),
            GgufValue::String(value) => Self::String(value.into()),
            GgufValue::Bytes(value) => Self::String(value.into()),
            GgufValue::Array(array) => Self::Array(array.element(), array.iter().map(Self::from).collect()),
        }
    }
}

impl MetadataValue {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(..) => ValueType::Array,
        }
    }

    /// Parses a value of this type; `None` if the text is not a valid one, and for arrays.
    pub fn parse(kind: ValueType, text: &str) -> Option<Self> {
        Some(match kind {
            ValueType::U8 => Self::U8(text.parse().ok()?),
            ValueType::I8 => Self::I8(text.parse().ok()?),
            ValueType::U16 => Self::U16(text.parse().ok()?),
            ValueType::I16 => Self::I16(text.parse().ok()?),
            ValueType::U32 => Self::U32(text.parse().ok()?),
            ValueType::I32 => Self::I32(text.parse().ok()?),
            ValueType::U64 => Self::U64(text.parse().ok()?),
            ValueType::I64 => Self::I64(text.parse().ok()?),
            ValueType::F32 => Self::F32(text.parse().ok()?),
            ValueType::F64 => Self::F64(text.parse().ok()?),
            ValueType::Bool => Self::Bool(text.parse().ok()?),
            ValueType::String => Self::String(text.into()),
            ValueType::Array => return None,
        })
    }

    /// Appends the value, without its type.
    fn write(&self, key: &str, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::U8(value) => out.push(*value),
            Self::I8(value) => out.push(value.cast_unsigned()),
            Self::U16(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::I16(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::U32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::I32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::U64(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::I64(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::F32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::F64(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Bool(value) => out.push(u8::from(*value)),
            Self::String(bytes) => string(bytes, out),
            Self::Array(element, values) => {
                out.extend_from_slice(&(*element as u32).to_le_bytes());
                out.extend_from_slice(&(values.len() as u64).to_le_bytes());
                for value in values {
                    let found = value.value_type();
                    if found != *element {
                        let key = text::escape(key);
                        return Err(Error::Argument(format!(
                            "metadata '{key}': an array of {element} has a value that is {found}; all values of an array must have the same type"
                        )));
                    }
                    value.write(key, out)?;
                }
            }
        }
        Ok(())
    }
}

impl FileLayout {
    /// Lays out tensors in the given order, each at a multiple of the alignment: `general.alignment` in the metadata, or 32.
    ///
    /// # Errors
    /// A duplicate key, an array of mixed types, an alignment that is not a multiple of 8. A dtype that GGUF lacks, more than four dimensions, a name
    /// of 64 bytes or more, or two tensors of one name.
    pub fn gguf(tensors: Vec<DeclaredTensor>, metadata: &[(String, MetadataValue)]) -> Result<Self> {
        let mut keys = std::collections::HashSet::new();
        let mut alignment = DEFAULT_ALIGNMENT;
        let mut start = Vec::new();
        start.extend_from_slice(MAGIC);
        start.extend_from_slice(&VERSION.to_le_bytes());
        start.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        start.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            if !keys.insert(key) {
                return Err(Error::Argument(format!("the key '{}' occurs twice", text::escape(key))));
            }
            if key == ALIGNMENT_KEY {
                alignment = aligned_to(value)?;
            }
            string(key.as_bytes(), &mut start);
            start.extend_from_slice(&(value.value_type() as u32).to_le_bytes());
            value.write(key, &mut start)?;
        }
        let mut offset = 0_u64;
        for tensor in &tensors {
            record(tensor, offset, &mut start)?;
            // On overflow, `behind` reports the error.
            offset = offset.saturating_add(tensor.bytes()?).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        }
        start.resize(start.len().next_multiple_of(alignment as usize), 0);
        Self::behind(start, tensors, alignment)
    }
}

/// The alignment set by the metadata.
fn aligned_to(value: &MetadataValue) -> Result<u64> {
    match value {
        MetadataValue::U32(alignment) if *alignment > 0 && alignment.is_multiple_of(8) && *alignment <= 1 << 20 => {
            Ok(u64::from(*alignment))
        }
        _ => Err(Error::Argument(format!(
            "metadata '{ALIGNMENT_KEY}' is {value:?}; it must be a u32, a multiple of 8 of at most 1048576"
        ))),
    }
}

/// Appends the header record of a tensor.
fn record(tensor: &DeclaredTensor, offset: u64, out: &mut Vec<u8>) -> Result<()> {
    let DeclaredTensor { name, stored, shape } = tensor;
    let refused = |why: String| Err(Error::Argument(format!("tensor '{}': {why}", text::escape(name))));
    if name.len() >= NAME_BYTES {
        return refused(format!(
            "its name has {} bytes, but ggml has room for {}; rename it",
            name.len(),
            NAME_BYTES - 1
        ));
    }
    if name.is_empty() || name.contains('\0') {
        return refused("a name must not be empty or contain NUL, or it cannot be loaded again; rename it".into());
    }
    if shape.len() > MAX_DIMENSIONS {
        return refused(format!("it has {} dimensions, but ggml supports {MAX_DIMENSIONS}; reshape it", shape.len()));
    }
    let id = match stored {
        StoredElements::Packed(encoding) => encoding.ggml(),
        StoredElements::Plain(dtype) => match type_id(*dtype) {
            Some(id) => id,
            None => {
                return refused(format!(
                    "a GGUF file cannot hold {dtype}; convert it, for example to float32 or bfloat16"
                ));
            }
        },
    };
    string(name.as_bytes(), out);
    out.extend_from_slice(&(shape.len() as u32).to_le_bytes());
    for dim in shape.iter().rev() {
        out.extend_from_slice(&dim.to_le_bytes());
    }
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    Ok(())
}

/// The number of a plain type.
fn type_id(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::Float32 => 0,
        DType::Float16 => 1,
        DType::Int8 => 24,
        DType::Int16 => 25,
        DType::Int32 => 26,
        DType::Int64 => 27,
        DType::Float64 => 28,
        DType::BFloat16 => 30,
        _ => return None,
    })
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
