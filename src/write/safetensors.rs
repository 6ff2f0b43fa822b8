//! The layout and header of a safetensors file. The same tensors always have the same layout, whatever their order.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::WriteOptions;
use super::layout::{DeclaredTensor, FileLayout, MAX_BYTES, StoredElements};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::text;

/// The maximum size of a header: the limit of the safetensors package.
pub const MAX_HEADER: usize = 100_000_000;
/// The key of the metadata, which is not a valid tensor name.
const METADATA: &str = "__metadata__";
/// The size of the length field before the header.
const LENGTH: usize = 8;

/// Fails if the suffix of a file implies another format.
///
/// # Errors
/// It does; the error tells how to write that format.
pub fn check_safetensors_name(path: &Path) -> Result<()> {
    let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
    let (format, instead) = match suffix.as_deref() {
        Some("gguf") => ("a GGUF file", "call save_gguf"),
        Some("pt" | "pth" | "bin" | "ckpt") => ("a PyTorch file", "call torch.save"),
        _ => return Ok(()),
    };
    Err(Error::Argument(format!(
        "'{}': a file with this name is {format}, but this writes safetensors; {instead}, or name the file .safetensors",
        text::path(path)
    )))
}

impl FileLayout {
    /// With an alignment larger than the format's own, tensors whose size is a multiple of it come first. Then larger dtypes come first, as in the
    /// safetensors package; then tensors are sorted by name. So every element of a plain dtype is aligned. Empty metadata are written as such.
    ///
    /// # Errors
    /// Two tensors of one name, one named `__metadata__`, a size of partial bytes or beyond 2^62, a header above [`MAX_HEADER`] bytes.
    pub fn safetensors<'a>(
        tensors: impl IntoIterator<Item = DeclaredTensor>,
        metadata: impl Into<Option<&'a BTreeMap<String, String>>>,
        options: &WriteOptions,
    ) -> Result<Self> {
        if !options.alignment.is_power_of_two() || !(LENGTH as u64..=1 << 20).contains(&options.alignment) {
            let alignment = options.alignment;
            return Err(Error::Argument(format!(
                "alignment={alignment}: it must be a power of two from 8 to 1048576, such as 64 or 4096"
            )));
        }
        let mut sized = Vec::new();
        for tensor in tensors {
            let StoredElements::Plain(dtype) = tensor.stored else {
                let (name, stored) = (text::escape(&tensor.name), tensor.stored);
                return Err(Error::Argument(format!(
                    "tensor '{name}': a safetensors file cannot hold {stored}; set a dtype to decode it to"
                )));
            };
            if tensor.name == METADATA {
                return Err(Error::Argument(format!(
                    "a tensor cannot be called {METADATA}: that is the key of the metadata in a safetensors file; rename it"
                )));
            }
            let bytes = tensor.bytes()?;
            let last = options.alignment > LENGTH as u64 && !bytes.is_multiple_of(options.alignment);
            sized.push(((last, Reverse(rank(dtype))), bytes, dtype, tensor));
        }
        sized.sort_by(|(a_key, _, _, a), (b_key, _, _, b)| a_key.cmp(b_key).then_with(|| a.name.cmp(&b.name)));
        let header = header(sized.iter().map(|(_, bytes, dtype, tensor)| (*bytes, *dtype, tensor)), metadata.into())?;
        let data = (LENGTH + header.len()).next_multiple_of(options.alignment as usize);
        if data - LENGTH > MAX_HEADER {
            return Err(Error::Argument(format!(
                "the header of {} tensors takes {} bytes, but safetensors readers accept at most {MAX_HEADER}: write several files (save_sharded), or less metadata",
                sized.len(),
                data - LENGTH
            )));
        }
        let mut start = Vec::with_capacity(data);
        start.extend_from_slice(&((data - LENGTH) as u64).to_le_bytes());
        start.extend_from_slice(&header);
        start.resize(data, b' ');
        Self::behind(start, sized.into_iter().map(|(_, _, _, tensor)| tensor).collect(), 1)
    }
}

/// The order of dtypes in a file: the order of the enum in the safetensors package, in which larger elements have larger numbers.
fn rank(dtype: DType) -> usize {
    const ORDER: [DType; DType::COUNT] = [
        DType::Bool,
        DType::Float4E2M1Fn,
        DType::Float6E2M3Fn,
        DType::Float6E3M2Fn,
        DType::UInt8,
        DType::Int8,
        DType::Float8E5M2,
        DType::Float8E4M3Fn,
        DType::Float8E8M0Fnu,
        DType::Float8E4M3Fnuz,
        DType::Float8E5M2Fnuz,
        DType::Int16,
        DType::UInt16,
        DType::Float16,
        DType::BFloat16,
        DType::Int32,
        DType::UInt32,
        DType::Float32,
        DType::Complex64,
        DType::Float64,
        DType::Int64,
        DType::UInt64,
    ];
    ORDER.iter().position(|known| *known == dtype).unwrap_or(0)
}

/// The JSON of the header without padding, in the form of the safetensors package.
fn header<'a>(
    tensors: impl Iterator<Item = (u64, DType, &'a DeclaredTensor)>,
    metadata: Option<&BTreeMap<String, String>>,
) -> Result<Vec<u8>> {
    let mut json = metadata_json(metadata)?;
    let mut placed = Vec::new();
    let mut at = 0_u64;
    for (size, dtype, DeclaredTensor { name, shape, .. }) in tensors {
        let end = at.checked_add(size).filter(|end| *end <= MAX_BYTES).ok_or_else(|| {
            Error::Argument(format!("the tensors up to '{}' have more than 2^62 bytes", text::escape(name)))
        })?;
        placed.push((at..end, dtype.safetensors_name(), name.as_str(), shape.as_slice()));
        at = end;
    }
    if !placed.is_empty() && json.len() > 1 {
        json.push(b',');
    }
    json.extend_from_slice(&tensors_json(placed.into_iter())?);
    json.push(b'}');
    Ok(json)
}

/// The start of the JSON, with the metadata if there are any.
pub(super) fn metadata_json(metadata: Option<&BTreeMap<String, String>>) -> Result<Vec<u8>> {
    let mut json = b"{".to_vec();
    let Some(metadata) = metadata else { return Ok(json) };
    json.extend_from_slice(format!("\"{METADATA}\":{{").as_bytes());
    for (number, (key, value)) in metadata.iter().enumerate() {
        if number > 0 {
            json.push(b',');
        }
        quoted(&mut json, key)?;
        json.push(b':');
        quoted(&mut json, value)?;
    }
    json.push(b'}');
    Ok(json)
}

/// The records of tensors, separated by commas: offsets in the data, dtype, name and shape.
pub(super) fn tensors_json<'a>(
    tensors: impl Iterator<Item = (Range<u64>, &'a str, &'a str, &'a [u64])>,
) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    for (Range { start, end }, dtype, name, shape) in tensors {
        if !json.is_empty() {
            json.push(b',');
        }
        quoted(&mut json, name)?;
        json.extend_from_slice(br#":{"dtype":"#);
        quoted(&mut json, dtype)?;
        let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
        let dims = dims.join(",");
        json.extend_from_slice(format!(r#","shape":[{dims}],"data_offsets":[{start},{end}]}}"#).as_bytes());
    }
    Ok(json)
}

fn quoted(json: &mut Vec<u8>, text: &str) -> Result<()> {
    serde_json::to_writer(json, text)
        .map_err(|error| Error::Argument(format!("{text:?} cannot be written as JSON: {error}")))
}
