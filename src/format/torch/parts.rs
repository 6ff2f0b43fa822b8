//! What a tensor is in the table: one entry, or an entry without bytes and the arrays of which it is composed.

use crate::dtype::DType;
use crate::format::pickle::{ObjectId, Pickled, Strided, TensorId, TensorKind};
use crate::tensor::{NoArray, TorchDType};

/// A named array, or a tensor without an array.
pub(super) enum NamedPart {
    /// A part of a storage, read as `dtype`.
    Array { name: String, strided: Strided },
    /// Listed, and refused on load.
    Refused { name: String, dtype: TorchDType, shape: Vec<u64>, kind: NoArray },
    /// A value that is not a tensor.
    Object { name: String, object: ObjectId },
}

/// The most nested parts: a converted tensor may be made from one.
const DEPTH: usize = 8;
/// What a part takes in memory in addition to the bytes of its name…
const PART_BYTES: usize = 128;
/// … and what a dimension of it takes.
const DIM_BYTES: usize = 16;

/// The parts of a tensor, itself first. `remaining` is the budget of bytes for names and shapes; endlessly nested parts exhaust it.
pub(super) fn parts(
    pickled: &Pickled,
    name: &str,
    id: TensorId,
    found: &mut Vec<NamedPart>,
    remaining: &mut usize,
) -> Option<()> {
    collect(pickled, name.to_owned(), id, found, DEPTH, remaining)
}

fn collect(
    pickled: &Pickled,
    name: String,
    id: TensorId,
    found: &mut Vec<NamedPart>,
    depth: usize,
    remaining: &mut usize,
) -> Option<()> {
    let tensor = pickled.tensor(id);
    let rank = tensor.shape().map_or(0, <[u64]>::len);
    *remaining =
        remaining.checked_sub(name.len().checked_add(PART_BYTES)?.checked_add(rank.checked_mul(DIM_BYTES)?)?)?;
    let below = |part: &str| format!("{name}.{part}");
    let Some(kind) = tensor.not_mappable() else {
        found.extend(tensor.strided().map(|strided| NamedPart::Array { name, strided: strided.clone() }));
        return Some(());
    };
    let array = match &tensor.kind {
        // The raw integers, without their scale.
        TensorKind::Quantized { integers, .. } => {
            let dtype = plain_integers(integers.dtype);
            Some(NamedPart::Array { name: below("int_repr"), strided: Strided { dtype, ..integers.clone() } })
        }
        TensorKind::Flipped { strided, .. } => {
            Some(NamedPart::Array { name: below("stored"), strided: strided.clone() })
        }
        _ => None,
    };
    let dtype = match &tensor.kind {
        TensorKind::Sparse { values, .. } => pickled.objects.tensor(*values).and_then(|id| dtype_of(pickled, id)),
        TensorKind::Meta { dtype, .. } | TensorKind::Wrapper { dtype, .. } | TensorKind::Converted { dtype, .. } => {
            Some(*dtype)
        }
        _ => tensor.part_of_storage().map(|strided| strided.dtype),
    };
    let shape = tensor.shape().map(<[u64]>::to_vec).unwrap_or_default();
    let dtype = dtype.unwrap_or(TorchDType::Plain(DType::UInt8));
    let inner: Vec<(String, ObjectId)> =
        tensor.parts().into_iter().map(|(part, object)| (below(part), object)).collect();
    found.push(NamedPart::Refused { name, dtype, shape, kind });
    found.extend(array);
    for (name, object) in inner {
        match pickled.objects.tensor(object) {
            Some(id) if depth > 0 => collect(pickled, name, id, found, depth - 1, remaining)?,
            _ => found.push(NamedPart::Object { name, object }),
        }
    }
    Some(())
}

fn dtype_of(pickled: &Pickled, id: TensorId) -> Option<TorchDType> {
    pickled.tensor(id).strided().map(|strided| strided.dtype)
}

fn plain_integers(dtype: TorchDType) -> TorchDType {
    match dtype {
        TorchDType::QInt8 => TorchDType::Plain(DType::Int8),
        TorchDType::QUInt8 => TorchDType::Plain(DType::UInt8),
        TorchDType::QInt32 => TorchDType::Plain(DType::Int32),
        other => other,
    }
}
