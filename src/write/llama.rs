//! Which tensors llama.cpp's tools quantize, and which stay unchanged.

use super::{MetadataValue, StoredElements};
use crate::checkpoint::Catalog;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Encoding;

/// Keys that describe how the tensors of a file are stored.
const FILE_TYPE: &str = "general.file_type";
const QUANTIZATION_VERSION: (&str, u32) = ("general.quantization_version", 2);
/// The key for the framework that wrote a safetensors file.
const FORMAT: &str = "format";

/// Parts of the names of matrices that are not packed: they are small, or ggml has no kernel for them in blocks.
const PLAIN: [&str; 10] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "attn_rel_b",
    "time_mix_",
    "altup",
    "laurel",
];

/// The stored type of a tensor in a quantized GGUF file, by the rules of llama.cpp's converter. Matrices are packed, or float16 if their rows are not
/// whole blocks. Vectors, norms and others that ggml needs in float32 are float32. Integers are unchanged.
pub fn quantized(name: &str, shape: &[u64], found: StoredElements, encoding: Encoding) -> StoredElements {
    match found {
        StoredElements::Plain(dtype) if !dtype.is_float() => return found,
        StoredElements::Packed(packed) if packed == encoding => return found,
        StoredElements::Plain(_) | StoredElements::Packed(_) => {}
    }
    // ggml does not count leading dimensions of 1.
    let is_matrix = shape.iter().skip_while(|dim| **dim == 1).count() >= 2;
    if !is_matrix || !name.ends_with("weight") || PLAIN.iter().any(|part| name.contains(part)) {
        return StoredElements::Plain(DType::Float32);
    }
    let is_whole = shape.last().is_some_and(|row| row.is_multiple_of(encoding.elements_per_block() as u64));
    if is_whole { StoredElements::Packed(encoding) } else { StoredElements::Plain(DType::Float16) }
}

/// Fails if no tensor has the requested encoding.
///
/// # Errors
/// None of the tensors is stored in this encoding.
pub fn check_quantized(tensors: impl IntoIterator<Item = StoredElements>, encoding: Encoding) -> Result<()> {
    if tensors.into_iter().any(|stored| stored == StoredElements::Packed(encoding)) {
        return Ok(());
    }
    let per_block = encoding.elements_per_block();
    Err(Error::Argument(format!(
        "no tensor would be packed as {}: it needs matrices whose names end in 'weight' and whose rows are a multiple of {per_block} elements",
        encoding.name()
    )))
}

/// The text metadata to copy to another file. Those of PyTorch files describe the file itself (byte order, archive version), and are not copied.
pub fn text_metadata(catalog: &Catalog) -> impl Iterator<Item = (&str, &str)> {
    catalog.metadata().filter(|_| catalog.torch(0).is_none())
}

/// Metadata for a GGUF file: those of a checkpoint in order (text only, unless it is a GGUF file), the type of its matrices if known, and `given`,
/// which has precedence.
pub fn gguf_metadata(
    catalog: &Catalog,
    matrices: Option<StoredElements>,
    given: Vec<(String, MetadataValue)>,
) -> Vec<(String, MetadataValue)> {
    let mut found: Vec<(String, MetadataValue)> = match catalog.gguf() {
        Some(gguf) => gguf.metadata.iter().map(|(key, value)| (key.to_owned(), value.into())).collect(),
        None => text_metadata(catalog)
            .filter(|(key, _)| *key != FORMAT)
            .map(|(key, value)| (key.to_owned(), MetadataValue::String(value.into())))
            .collect(),
    };
    let mut declared = Vec::new();
    if let Some(stored) = matrices {
        // The key of the source would describe another file.
        found.retain(|(key, _)| key != FILE_TYPE);
        declared.extend(file_type(stored).map(|number| (FILE_TYPE.to_owned(), MetadataValue::U32(number))));
        if let StoredElements::Packed(_) = stored {
            declared.push((QUANTIZATION_VERSION.0.to_owned(), MetadataValue::U32(QUANTIZATION_VERSION.1)));
        }
    }
    for (key, value) in declared.into_iter().chain(given) {
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => found.push((key, value)),
        }
    }
    found
}

/// The value of `general.file_type` for matrices of this type.
fn file_type(matrices: StoredElements) -> Option<u32> {
    Some(match matrices {
        StoredElements::Plain(DType::Float32) => 0,
        StoredElements::Plain(DType::Float16) => 1,
        StoredElements::Plain(DType::BFloat16) => 32,
        StoredElements::Packed(Encoding::Q4_0) => 2,
        StoredElements::Packed(Encoding::Q4_1) => 3,
        StoredElements::Packed(Encoding::Q8_0) => 7,
        StoredElements::Packed(Encoding::Q5_0) => 8,
        StoredElements::Packed(Encoding::Q5_1) => 9,
        StoredElements::Plain(_) | StoredElements::Packed(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_packed_and_the_rest_is_what_ggml_computes_with() {
        let half = StoredElements::Plain(DType::BFloat16);
        let made = |name, shape: &[u64]| quantized(name, shape, half, Encoding::Q8_0);
        assert_eq!(made("blk.0.attn_q.weight", &[64, 64]), StoredElements::Packed(Encoding::Q8_0));
        assert_eq!(made("blk.0.ffn_up_exps.weight", &[8, 64, 64]), StoredElements::Packed(Encoding::Q8_0));
        assert_eq!(made("blk.0.attn_q.weight", &[64, 40]), StoredElements::Plain(DType::Float16));
        for name in ["blk.0.attn_q_norm.weight", "position_embd.weight", "blk.0.attn_q.bias"] {
            assert_eq!(made(name, &[64, 64]), StoredElements::Plain(DType::Float32), "{name}");
        }
        assert_eq!(made("output.weight", &[1, 64]), StoredElements::Plain(DType::Float32));
        let same = |found| quantized("output.weight", &[64, 64], found, Encoding::Q8_0) == found;
        assert!(same(StoredElements::Plain(DType::Int32)) && same(StoredElements::Packed(Encoding::Q8_0)));
        assert!(!same(StoredElements::Packed(Encoding::Q4_0)));
    }
}
