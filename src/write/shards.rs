//! Assigns tensors to the files of a sharded checkpoint, and creates the index.

use std::collections::BTreeMap;

use serde_json::json;

use super::DeclaredTensor;
use crate::error::{Error, Result};
use crate::names::natural;

/// The name of a file, and the positions of its tensors.
type ShardTensors = (String, Vec<usize>);

/// The files of a sharded checkpoint; a single file has no index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// The names of the files, and the positions of their tensors.
    pub files: Vec<ShardTensors>,
    /// The index, as JSON, and its name.
    pub index: Option<(String, Vec<u8>)>,
    /// The suffix of the file names.
    pub(super) suffix: &'static str,
}

const SAFETENSORS: &str = ".safetensors";
const GGUF: &str = ".gguf";

impl Shards {
    /// Fills files sequentially with tensors in the natural order of their names. Each file has at most `most` bytes of tensors, or a single larger
    /// tensor. File names follow the Hugging Face hub: `model-00001-of-00003.safetensors` and `model.safetensors.index.json`, for the stem `model`.
    ///
    /// # Errors
    /// See [`DeclaredTensor::bytes`]; a limit of 0 bytes, a stem that is not valid in a name.
    pub fn new(stem: &str, tensors: &[DeclaredTensor], most: u64) -> Result<Self> {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_cached_key(|number| tensors[*number].name.split('.').map(natural).collect::<Vec<_>>());
        let (files, total) = grouped(stem, SAFETENSORS, tensors, order, most)?;
        if files.len() == 1 {
            return Ok(Self { files, index: None, suffix: SAFETENSORS });
        }
        let of_file = |(name, group): &ShardTensors| {
            group.iter().map(|number| (tensors[*number].name.clone(), name.clone())).collect::<Vec<_>>()
        };
        let weight_map: BTreeMap<String, String> = files.iter().flat_map(of_file).collect();
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        let mut index = serde_json::to_vec_pretty(&index)
            .map_err(|error| Error::Argument(format!("the index cannot be made: {error}")))?;
        index.push(b'\n');
        let index = Some((format!("{stem}.safetensors.index.json"), index));
        Ok(Self { files, index, suffix: SAFETENSORS })
    }

    /// As [`Self::new`] for GGUF files, with the tensors in the given order, and without an index: `model-00001-of-00003.gguf`.
    ///
    /// # Errors
    /// See [`Self::new`]; more files than a set may have.
    pub fn gguf(stem: &str, tensors: &[DeclaredTensor], most: u64) -> Result<Self> {
        let (files, _) = grouped(stem, GGUF, tensors, (0..tensors.len()).collect(), most)?;
        if files.len() > usize::from(u16::MAX) {
            let most = u16::MAX;
            return Err(Error::Argument(format!(
                "{} files, but a set of GGUF files has at most {most}; set a larger size for each",
                files.len()
            )));
        }
        Ok(Self { files, index: None, suffix: GGUF })
    }
}

/// The names of the files and the positions of their tensors, filled sequentially; and the bytes of all tensors.
fn grouped(
    stem: &str,
    suffix: &str,
    tensors: &[DeclaredTensor],
    order: Vec<usize>,
    most: u64,
) -> Result<(Vec<ShardTensors>, u64)> {
    if stem.is_empty() || stem.contains(['/', '\\']) {
        return Err(Error::Argument(format!(
            "name={stem:?}: it must be the prefix of the file names, such as \"model\""
        )));
    }
    if most == 0 {
        return Err(Error::Argument(
            "max_shard_size=0: a shard holds at least one tensor; set a size such as \"5GB\"".into(),
        ));
    }
    let (mut groups, mut filled, mut total) = (vec![Vec::new()], 0_u64, 0_u64);
    for number in order {
        let size = tensors[number].bytes()?;
        if filled.saturating_add(size) > most && groups.last().is_some_and(|group| !group.is_empty()) {
            groups.push(Vec::new());
            filled = 0;
        }
        filled = filled.saturating_add(size);
        total = total.saturating_add(size);
        if let Some(group) = groups.last_mut() {
            group.push(number);
        }
    }
    let count = groups.len();
    let named = |(i, group)| {
        let place = if count == 1 { String::new() } else { format!("-{:05}-of-{count:05}", i + 1) };
        (format!("{stem}{place}{suffix}"), group)
    };
    Ok((groups.into_iter().enumerate().map(named).collect(), total))
}
