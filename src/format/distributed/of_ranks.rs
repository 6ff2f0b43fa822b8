//! Folders of torch's safetensors writer, with the parts of each rank: every file has pieces of tensors, and their offsets.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;

use super::{Distributed, DistributedItem, DistributedPiece, DistributedTensor, TensorFault, covered, note};
use crate::budget::{self, saturating_u32};
use crate::error::{Diagnostic, Diagnostics, Result};
use crate::format::json::{self, Unique};
use crate::format::{MAX_HEADER_BYTES, escape, shown_shape};
use crate::rules;
use crate::tensor::{Element, TensorInfo, TensorTable, TorchDType, checked_elements};

/// The entry of a file's metadata with the offsets of its pieces: `{name: {"saved_offsets": [...]}}`, as JSON.
const SHARDING: &str = "DCP_SHARDING_INFO";

/// Where the pieces of a file begin, by name.
type Begins = BTreeMap<String, Begin>;

#[derive(Deserialize)]
struct Begin {
    saved_offsets: Option<Vec<u64>>,
}

/// Whether a file has torch's name for one of several: `shard-00001-model-00001-of-00001.safetensors`.
pub fn is_of_rank(name: &str) -> bool {
    let digits = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let rest = name.strip_prefix("shard-").and_then(|rest| rest.strip_suffix(".safetensors"));
    rest.and_then(|rest| rest.split_once("-model-")).is_some_and(|(rank, rest)| {
        digits(rank) && rest.split_once("-of-").is_some_and(|(number, count)| digits(number) && digits(count))
    })
}

/// A file of a rank: its name, its tensors, and its own key-value pairs.
pub type RankFile<'a> = (&'a str, &'a TensorTable, &'a [(String, String)]);

/// A piece of a tensor: the number of its file, its entry there, and its offset in the tensor.
type RankPiece<'a> = (u32, TensorInfo<'a>, Vec<u64>);

/// The checkpoint that the files form. Tensors with faults are reported, and left out.
pub fn of_ranks(files: &[RankFile<'_>], findings: &mut Diagnostics) -> Result<Distributed> {
    let mut found = Distributed { is_raw: true, ..Distributed::default() };
    let mut order: Vec<&str> = Vec::new();
    let mut by_name: HashMap<&str, Vec<RankPiece<'_>>> = HashMap::new();
    for (number, (name, tensors, pairs)) in files.iter().enumerate() {
        let begins =
            begins(pairs).map_err(|cause| Diagnostic::new(rules::DISTRIBUTED_METADATA, cause).path(*name).format())?;
        found.files.push((*name).to_owned());
        for info in tensors.iter() {
            let begin = match &begins {
                None => Some(vec![0; info.shape.len()]),
                Some(begins) => begins.get(info.name).and_then(|begin| begin.saved_offsets.clone()),
            };
            let Some(begin) = begin else {
                let cause = format!("'{}' does not say where its piece begins", escape(name));
                note(findings, rules::DISTRIBUTED_MISSING_ITEM, info.name, cause);
                continue;
            };
            by_name.try_reserve(1).map_err(|_| budget::Short::System(size_of::<TensorInfo<'_>>()))?;
            let own = by_name.entry(info.name).or_default();
            if own.is_empty() {
                order.push(info.name);
            }
            own.push((saturating_u32(number), info, begin));
        }
    }
    for name in order {
        let pieces = by_name.remove(name).unwrap_or_default();
        let (dims, first) = (found.dims.len(), found.pieces.len());
        match add(&mut found, &pieces) {
            Ok((dtype, shape)) => {
                let pieces = first..found.pieces.len();
                found.tensors.push(DistributedTensor { name: name.to_owned(), dtype, shape, pieces });
            }
            Err((rule, cause)) => {
                note(findings, rule, name, cause);
                found.dims.truncate(dims);
                found.pieces.truncate(first);
            }
        }
    }
    Ok(found)
}

/// Adds a tensor: as large as its pieces reach.
fn add(
    found: &mut Distributed,
    pieces: &[RankPiece<'_>],
) -> std::result::Result<(TorchDType, std::ops::Range<usize>), TensorFault> {
    let other = |cause: &str| Err((rules::DISTRIBUTED_ITEM, cause.to_owned()));
    let Some((_, first, _)) = pieces.first() else { return other("it has no piece") };
    let Element::Plain(dtype) = first.element else { return other("its elements are of a type that is not known") };
    if dtype.bytes().is_none() {
        return other("its elements are less than a byte, and cannot be put together of pieces");
    }
    let mut whole = vec![0_u64; first.shape.len()];
    for (_, info, begin) in pieces {
        if info.element != first.element {
            return other("its pieces have different dtypes");
        }
        let ends: Option<Vec<u64>> =
            begin.iter().zip(info.shape).map(|(begin, size)| begin.checked_add(*size)).collect();
        let Some(ends) = ends.filter(|_| begin.len() == info.shape.len() && info.shape.len() == whole.len()) else {
            let cause =
                format!("a piece of {} is declared to begin at {}", shown_shape(info.shape), shown_shape(begin));
            return Err((rules::DISTRIBUTED_SHAPE, cause));
        };
        for (dim, end) in whole.iter_mut().zip(ends) {
            *dim = (*dim).max(end);
        }
    }
    let elements = checked_elements(&whole).and_then(|elements| elements.checked_mul(TorchDType::Plain(dtype).bytes()));
    if elements.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        let cause = format!("its shape {} is more than can be counted", shown_shape(&whole));
        return Err((rules::DISTRIBUTED_SHAPE, cause));
    }
    let (start, rank) = (found.dims.len(), whole.len());
    found.dims.extend(&whole);
    let first = found.pieces.len();
    let mut boxes: HashSet<(&[u64], &[u64])> = HashSet::new();
    for (file, info, begin) in pieces {
        // Replicated pieces may have been saved by several ranks.
        if info.shape.contains(&0) || !boxes.insert((begin, info.shape)) {
            continue;
        }
        let dims = found.dims.len();
        found.dims.extend(begin.iter().chain(info.shape));
        let (offset, length) = (info.span.start(), info.span.len());
        found
            .pieces
            .push(DistributedPiece { dims, item: DistributedItem { file: *file, offset, length, transform: None } });
    }
    let shape = covered(&found.dims, start..start + rank, found.pieces.get(first..).unwrap_or_default())?;
    Ok((TorchDType::Plain(dtype), shape))
}

/// Where the pieces of a file begin; none where it has whole tensors.
fn begins(pairs: &[(String, String)]) -> std::result::Result<Option<Begins>, String> {
    let Some((_, text)) = pairs.iter().find(|(key, _)| key == SHARDING) else { return Ok(None) };
    let as_error =
        |cause: String| format!("the entry {SHARDING} of its metadata does not say where its pieces begin: {cause}");
    json::read(text.as_bytes(), MAX_HEADER_BYTES).map(|Unique(begins)| Some(begins)).map_err(as_error)
}
