//! What programs get: the objects that are written as JSON, whose keys are documented in docs/cli.md.

use std::borrow::Cow;

use max_weights::checkpoint::Catalog;
use max_weights::error::{Diagnostic, Error};
use max_weights::format::gguf::GgufValue;
use max_weights::tensor::TensorInfo;
use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};

/// An error or a warning.
#[allow(clippy::struct_field_names)] // they are the keys of the object
#[derive(Serialize)]
pub(crate) struct MessageJson<'a> {
    /// `checkpoint`, `missing`, `usage`, `output`; or the id of the rule that is broken.
    kind: &'a str,
    /// The whole sentence.
    message: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    near: &'a [String],
}

impl<'a> MessageJson<'a> {
    /// A message of which only the sentence is known.
    pub(crate) fn new(kind: &'a str, message: &'a str) -> Self {
        let message = message.into();
        Self { kind, message, file: None, tensor: None, offset: None, cause: None, help: None, near: &[] }
    }

    /// An error about files, in all its parts.
    pub(crate) fn of_error(error: &'a Error, message: &'a str) -> Self {
        if let Some(fault) = error.diagnostic() {
            return Self { message: message.into(), ..Self::of_fault(fault) };
        }
        let new = Self::new("checkpoint", message);
        match error {
            Error::NotFound { name, near, .. } => Self { kind: "not_found", tensor: Some(name), near, ..new },
            Error::MissingFile { path, near } => {
                Self { kind: "missing_file", file: Some(path.to_string_lossy()), near, ..new }
            }
            Error::NotServed { folder, .. } => {
                Self { kind: "missing_file", file: Some(folder.to_string_lossy()), ..new }
            }
            Error::NotInCache { cause, command, .. } => {
                Self { kind: "not_in_cache", cause: Some(cause), help: Some(command), ..new }
            }
            Error::Io { path, .. } => Self { kind: "io", file: Some(path.to_string_lossy()), ..new },
            Error::Argument(_) => Self { kind: "usage", ..new },
            Error::Interrupted => Self { kind: "interrupted", ..new },
            _ => new,
        }
    }

    /// A broken rule.
    pub(crate) fn of_fault(fault: &'a Diagnostic) -> Self {
        Self {
            kind: fault.rule.id,
            message: fault.to_string().into(),
            file: fault.path.as_ref().map(|path| path.to_string_lossy()),
            tensor: fault.tensor.as_deref(),
            offset: fault.offset,
            cause: Some(&fault.message),
            help: Some(&fault.help),
            near: &[],
        }
    }
}

/// One weight.
#[derive(Serialize)]
pub(crate) struct Weight<'a> {
    name: &'a str,
    /// Of the elements: the dtype, the encoding of packed blocks, or the file's own name for a type that is not known.
    dtype: String,
    shape: &'a [u64],
    bytes: u64,
    file: Cow<'a, str>,
    /// The first byte in the file.
    offset: u64,
    /// Whether the file has it at a multiple of its dtype's alignment.
    aligned: bool,
}

impl<'a> Weight<'a> {
    pub(crate) fn new(catalog: &'a Catalog, info: &TensorInfo<'a>) -> Self {
        Self {
            name: info.name,
            dtype: info.element.to_string(),
            shape: info.shape,
            bytes: info.bytes(),
            file: catalog.files()[info.file as usize].path.to_string_lossy(),
            offset: info.span.start(),
            aligned: info.is_aligned(),
        }
    }
}

/// The metadata of a checkpoint as an object: of a GGUF file its values, else texts.
pub(crate) struct MetadataJson<'a>(pub(crate) &'a Catalog);

impl Serialize for MetadataJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.gguf() {
            Some(gguf) => {
                serializer.collect_map(gguf.metadata.iter().map(|(key, value)| (key, MetadataValueJson(value))))
            }
            None => serializer.collect_map(self.0.metadata()),
        }
    }
}

/// A value of the metadata, whole. Text that is not UTF-8 has U+FFFD where it is not; a float that JSON cannot have is null.
pub(crate) struct MetadataValueJson<'a>(pub(crate) GgufValue<'a>);

impl Serialize for MetadataValueJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            GgufValue::U8(value) => serializer.serialize_u8(value),
            GgufValue::I8(value) => serializer.serialize_i8(value),
            GgufValue::U16(value) => serializer.serialize_u16(value),
            GgufValue::I16(value) => serializer.serialize_i16(value),
            GgufValue::U32(value) => serializer.serialize_u32(value),
            GgufValue::I32(value) => serializer.serialize_i32(value),
            GgufValue::U64(value) => serializer.serialize_u64(value),
            GgufValue::I64(value) => serializer.serialize_i64(value),
            GgufValue::F32(value) => serializer.serialize_f32(value),
            GgufValue::F64(value) => serializer.serialize_f64(value),
            GgufValue::Bool(value) => serializer.serialize_bool(value),
            GgufValue::String(text) => serializer.serialize_str(text),
            GgufValue::Bytes(bytes) => serializer.serialize_str(&String::from_utf8_lossy(bytes)),
            GgufValue::Array(array) => {
                let mut list = serializer.serialize_seq(Some(array.len()))?;
                for element in &array {
                    list.serialize_element(&MetadataValueJson(element))?;
                }
                list.end()
            }
        }
    }
}
