//! The tensors of a model: whether the values of each are complete, in the model or in an external file, and their statistics.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use max_weights::source::{Source, store};
use max_weights::tensor::checked_elements;
use max_weights::text::{escape, shape};
use max_weights::{DType, Diagnostic, Result, rules};

use super::super::protobuf::{ProtobufField, ProtobufFields};
use super::{location, text};
use crate::bytes::{ByteSlice, OpenFile, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::options::Level;
use crate::values::array::{self, ArrayFacts};

/// Different files that are looked at.
const MAX_FILES: usize = 10_000;
/// Dimensions of a tensor.
const MAX_RANK: usize = 64;

/// The types of ONNX, by their numbers: their bits, and what they are here, where they are known.
const TYPES: [(u64, u64, Option<DType>); 22] = [
    (1, 32, Some(DType::Float32)),
    (2, 8, Some(DType::UInt8)),
    (3, 8, Some(DType::Int8)),
    (4, 16, Some(DType::UInt16)),
    (5, 16, Some(DType::Int16)),
    (6, 32, Some(DType::Int32)),
    (7, 64, Some(DType::Int64)),
    (9, 8, Some(DType::Bool)),
    (10, 16, Some(DType::Float16)),
    (11, 64, Some(DType::Float64)),
    (12, 32, Some(DType::UInt32)),
    (13, 64, Some(DType::UInt64)),
    (14, 64, Some(DType::Complex64)),
    (15, 128, None),
    (16, 16, Some(DType::BFloat16)),
    (17, 8, Some(DType::Float8E4M3Fn)),
    (18, 8, Some(DType::Float8E4M3Fnuz)),
    (19, 8, Some(DType::Float8E5M2)),
    (20, 8, Some(DType::Float8E5M2Fnuz)),
    (21, 4, None),
    (22, 4, None),
    (23, 4, None),
];
/// The dtype number of texts, whose bytes are elsewhere.
const TEXTS: u64 = 8;
/// The location of the values: an external file.
const EXTERNAL: u64 = 1;

/// What one message says.
#[derive(Default)]
struct OnnxTensor {
    name: String,
    dims: Vec<u64>,
    /// Whether a dimension is negative, or there are too many.
    no_shape: bool,
    kind: u64,
    /// The values in the model: as bytes, or as a packed list of floats.
    raw: Option<(u64, u64)>,
    floats: Option<(u64, u64)>,
    /// Whether there are values as lists of numbers of variable length.
    has_others: bool,
    is_external: bool,
    /// The external file, and where its name is.
    location: Option<(String, u64)>,
    offset: Option<String>,
    length: Option<String>,
}

/// An external file of the model.
struct ExternalFile {
    path: PathBuf,
    /// Its length; `None` if it is not there, or is not a file.
    len: Option<u64>,
}

/// What is known of the external files.
#[derive(Default)]
pub(super) struct ExternalFiles {
    /// By their names; `None` for those that are not to be opened.
    files: HashMap<String, Option<ExternalFile>>,
    /// The last one that was read.
    open: Option<(PathBuf, Arc<dyn Source>)>,
}

impl ExternalFiles {
    /// Looks at one tensor; tells where it breaks, if it does.
    pub(super) fn look(
        &mut self,
        piece: &ByteSpan<'_>,
        (start, end): (u64, u64),
        context: &mut FileContext<'_>,
    ) -> Result<Option<u64>> {
        let mut tensor = OnnxTensor::default();
        let mut fields = ProtobufFields::new(piece.bytes, start, end);
        while let Some(field) = fields.next()? {
            match field {
                Ok((number, value)) => tensor.add(piece.bytes, number, value)?,
                Err(broken) => return Ok(Some(broken.at)),
            }
        }
        if let Some((location, at)) = tensor.location.clone() {
            self.file(piece, &location, at, context);
        }
        if tensor.is_external {
            self.external(piece, &tensor, start, context)
        } else {
            inline(piece, &tensor, start, context)
        }
        .map(|()| None)
    }

    /// Looks at where a file lies, once.
    fn file(&mut self, piece: &ByteSpan<'_>, location: &str, at: u64, context: &mut FileContext<'_>) {
        if self.files.len() >= MAX_FILES || self.files.contains_key(location) {
            return;
        }
        let may_be_opened = location::check(piece, location, at, context);
        let companions = may_be_opened.then(|| {
            let folder = context.file.path.parent().unwrap_or(Path::new(""));
            let path = folder.join(location);
            let meta = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file);
            ExternalFile { path, len: meta.map(|meta| meta.len()) }
        });
        self.files.insert(location.to_owned(), companions);
    }

    /// Whether the external values exist.
    fn external(
        &mut self,
        piece: &ByteSpan<'_>,
        tensor: &OnnxTensor,
        at: u64,
        context: &mut FileContext<'_>,
    ) -> Result<()> {
        let (path, offset, len) = match self.place(tensor) {
            Ok(Some(place)) => place,
            Ok(None) => {
                array::unknown("files that are not opened", context);
                return Ok(());
            }
            Err(why) => {
                let finding = Diagnostic::new(rules::ONNX_EXTERNAL_DATA, why).offset(at).tensor(&tensor.name);
                context.report(piece, finding);
                array::unknown("values that are not all there", context);
                return Ok(());
            }
        };
        if context.options.level < Level::Content {
            return Ok(());
        }
        if self.open.as_ref().is_none_or(|(open, _)| *open != path) {
            self.open = Some((path.clone(), store::open(&path, context.interrupt())?));
        }
        if let Some((_, file)) = &self.open {
            let file = OpenFile::new(file.clone(), context.interrupt());
            tensor.values(piece, &ByteSlice::new(&file, offset, len), at, context)?;
        }
        Ok(())
    }

    /// The external file with the values, where they begin in it, and how many bytes they have; `None` if it is not opened. An error is the fault of
    /// the file.
    fn place(&self, tensor: &OnnxTensor) -> std::result::Result<Option<(PathBuf, u64, u64)>, String> {
        let Some((location, _)) = &tensor.location else {
            return Err("its values should be in another file, but none is named".into());
        };
        let Some(Some(companions)) = self.files.get(location) else { return Ok(None) };
        let file = escape(location);
        let len =
            companions.len.ok_or_else(|| format!("its values should be in '{file}', but there is no such file"))?;
        let number = |text: &Option<String>| text.as_ref().map(|text| text.trim().parse::<u64>()).transpose();
        let (Ok(offset), Ok(length)) = (number(&tensor.offset), number(&tensor.length)) else {
            let [offset, length] =
                [&tensor.offset, &tensor.length].map(|text| escape(text.as_deref().unwrap_or("none")));
            return Err(format!("'{offset}' and '{length}' are not a valid offset and length in '{file}'"));
        };
        let offset = offset.unwrap_or(0);
        let expected = tensor.bytes();
        // Without a length, readers take what the shape needs, or all that is there.
        let needed = length.or(expected).unwrap_or(0);
        if offset > len || needed > len - offset {
            return Err(format!("its values are {needed} bytes from byte {offset} of '{file}', which has {len}"));
        }
        if let Some(expected) = expected.filter(|expected| length.is_some_and(|length| length != *expected)) {
            let shape = shape(&tensor.dims);
            return Err(format!("its values in '{file}' are {needed} bytes, but {shape} of its type need {expected}"));
        }
        Ok(Some((companions.path.clone(), offset, needed)))
    }
}

/// Whether the values that are in the model are as many as the shape needs.
fn inline(piece: &ByteSpan<'_>, tensor: &OnnxTensor, at: u64, context: &mut FileContext<'_>) -> Result<()> {
    let present = match (tensor.raw, tensor.floats, tensor.kind) {
        (Some(raw), ..) => Some(raw),
        (None, Some(floats), 1 | 11) => Some(floats),
        _ => None,
    };
    let Some((from, to)) = present else {
        let has_values = tensor.has_others || tensor.floats.is_some();
        if has_values && context.options.level >= Level::Content {
            array::unknown("lists of numbers of variable length", context);
        }
        return Ok(());
    };
    let (len, needed) = (to - from, tensor.bytes());
    let wrong = match needed {
        _ if tensor.no_shape => Some("a tensor has a shape with negative dimensions, or too many".to_owned()),
        Some(needed) if needed != len => {
            Some(format!("a tensor has {len} bytes of values, but its type and shape need {needed}"))
        }
        _ => None,
    };
    if let Some(message) = wrong {
        let finding = Diagnostic::new(rules::ONNX_DAMAGED, message).offset(at).tensor(&tensor.name);
        context.report(piece, finding);
        array::unknown("values that are not all there", context);
        return Ok(());
    }
    if context.options.level >= Level::Content {
        tensor.values(piece, &ByteSlice::new(piece.bytes, from, len), at, context)?;
    }
    Ok(())
}

impl OnnxTensor {
    /// Adds a field.
    fn add(&mut self, bytes: &dyn RandomRead, number: u64, value: ProtobufField) -> Result<()> {
        match (number, value) {
            (1, ProtobufField::Number(dim)) => self.dim(dim),
            (1, ProtobufField::Bytes(from, to)) => {
                let mut packed = ProtobufFields::new(bytes, from, to);
                while let Some(dim) = packed.next_number()? {
                    self.dim(dim);
                    if self.no_shape {
                        break;
                    }
                }
            }
            (2, ProtobufField::Number(kind)) => self.kind = kind,
            (4 | 10, ProtobufField::Bytes(from, to)) if self.floats.is_none() && !self.has_others => {
                self.floats = Some((from, to));
            }
            // A list in several parts, which no program writes.
            (4 | 10, _) => (self.floats, self.has_others) = (None, true),
            (5 | 7 | 11, _) => self.has_others = true,
            (8, ProtobufField::Bytes(from, to)) => self.name = text(bytes, (from, to))?,
            (9, ProtobufField::Bytes(from, to)) => self.raw = Some((from, to)),
            (13, ProtobufField::Bytes(from, to)) => self.pair(bytes, (from, to))?,
            (14, ProtobufField::Number(place)) => self.is_external = place == EXTERNAL,
            _ => {}
        }
        Ok(())
    }

    fn dim(&mut self, dim: u64) {
        if i64::try_from(dim).is_err() || self.dims.len() >= MAX_RANK {
            self.no_shape = true;
        } else {
            self.dims.push(dim);
        }
    }

    /// Adds a key and a value of the description of the external file.
    fn pair(&mut self, bytes: &dyn RandomRead, (start, end): (u64, u64)) -> Result<()> {
        let (mut key, mut value) = (String::new(), None);
        let mut fields = ProtobufFields::new(bytes, start, end);
        while let Some(Ok((number, field))) = fields.next()? {
            match (number, field) {
                (1, ProtobufField::Bytes(from, to)) => key = text(bytes, (from, to))?,
                (2, ProtobufField::Bytes(from, to)) => value = Some(text(bytes, (from, to))?),
                _ => {}
            }
        }
        match key.as_str() {
            "location" => self.location = value.map(|value| (value, start)),
            "offset" => self.offset = value,
            "length" => self.length = value,
            _ => {}
        }
        Ok(())
    }

    /// The bytes of all values; `None` if they are not known, or too many.
    fn bytes(&self) -> Option<u64> {
        let (_, bits, _) = TYPES.iter().find(|(kind, ..)| *kind == self.kind)?;
        let bits = checked_elements(&self.dims).filter(|_| !self.no_shape)?.checked_mul(*bits)?;
        Some(bits.div_ceil(8))
    }

    /// Looks at the values, which are these bytes.
    fn values(
        &self,
        piece: &ByteSpan<'_>,
        values: &dyn RandomRead,
        at: u64,
        context: &mut FileContext<'_>,
    ) -> Result<()> {
        let dtype = TYPES.iter().find(|(kind, ..)| *kind == self.kind).and_then(|(_, _, dtype)| *dtype);
        match dtype {
            _ if self.kind == TEXTS => Ok(()),
            Some(dtype) => {
                let array = ArrayFacts { name: &self.name, dtype, shape: &self.dims, at, is_swapped: false };
                array::look(piece, &array, values, context)
            }
            None => {
                array::unknown(&format!("ONNX's type {}", self.kind), context);
                Ok(())
            }
        }
    }
}
