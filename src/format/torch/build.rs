//! The table of tensors of a PyTorch file.

use std::collections::HashSet;

use super::parts::{NamedPart, parts};
use super::{StorageLocation, Torch, TorchFrame};
use crate::budget::{self, MemoryPace, Short};
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::pickle::{self, Leaf, Pickled, Strided};
use crate::rules;
use crate::tensor::{Element, Span, TensorInfo, TensorTable, TorchDType, View, extent};

/// Names of parts may take this fraction of the remaining memory, as a divisor, while they are counted: they are copied once or twice.
const PART_SHARE: usize = 4;

/// Names the tensors and objects of a pickle, and finds their bytes: the tensors, in the order of the file, and all else.
pub fn build(pickled: Pickled, file: TorchFrame<'_>, limits: &pickle::PickleLimits) -> Result<(TensorTable, Torch)> {
    let mut torch = Torch::new(pickled, file)?;
    let leaves = pickle::leaves(&torch.pickled, limits)?;
    let name_bytes = leaves.iter().map(|leaf| leaf.name.len()).sum();
    let mut table = TensorTable::with_capacity(leaves.len(), name_bytes)?;
    let mut pace = MemoryPace::default();
    let mut found = Vec::new();
    let mut remaining = pickle::name_limit(&torch.pickled, limits).min(torch.pickled.budget.left() / PART_SHARE);
    let mut objects = budget::list(leaves.iter().filter(|leaf| leaf.tensor.is_none()).count())?;
    for leaf in leaves {
        pace.step()?;
        let Some(id) = leaf.tensor else {
            objects.push(leaf);
            continue;
        };
        match torch.pickled.tensor(id).strided() {
            Some(strided) => push(&mut table, &torch, &leaf.name, strided)?,
            None => parts(&torch.pickled, &leaf.name, id, &mut found, &mut remaining)
                .ok_or_else(|| pickle::too_many(&torch.pickled, limits).format())?,
        }
    }
    if !found.is_empty() {
        let mut taken: HashSet<String> = HashSet::new();
        taken.try_reserve(table.len() + objects.len()).map_err(|_| Short::System(name_bytes))?;
        for name in table.iter().map(|info| info.name).chain(objects.iter().map(|leaf: &Leaf| &*leaf.name)) {
            taken.insert(budget::text(name)?);
        }
        for part in found {
            pace.step()?;
            add_part(part, &taken, &mut table, &torch, &mut objects)?;
        }
    }
    table.sort_by_offset()?;
    let names = objects.iter().map(|leaf: &Leaf| size_of::<Leaf>() + leaf.name.len()).sum::<usize>();
    torch.pickled.budget.take((table.bytes() + names).min(torch.pickled.budget.left()))?;
    torch.objects = objects;
    Ok((table, torch))
}

/// A part's name may be that of a tensor that the file has under its own name; then that one keeps it.
fn add_part(
    part: NamedPart,
    taken: &HashSet<String>,
    table: &mut TensorTable,
    torch: &Torch,
    objects: &mut Vec<Leaf>,
) -> Result<()> {
    match part {
        NamedPart::Array { name, strided } if !taken.contains(&name) => push(table, torch, &name, &strided),
        NamedPart::Object { name, object } if !taken.contains(&name) => {
            budget::reserve(objects, 1)?;
            objects.push(Leaf { name, object, tensor: None });
            Ok(())
        }
        NamedPart::Refused { name, dtype, shape, kind } if !taken.contains(&name) => {
            let (element, span) = (Element::NoArray(kind, dtype), Span::within(0, 0, 0)?);
            table.push(&TensorInfo { name: &name, element, shape: &shape, file: 0, span, view: None })
        }
        _ => Ok(()),
    }
}

fn push(table: &mut TensorTable, torch: &Torch, name: &str, strided: &Strided) -> Result<()> {
    let mut pairs = Vec::new();
    let (element, shape) = element(strided, &mut pairs);
    let empty = strided.shape.contains(&0);
    let storage = torch.pickled.storage(strided.storage);
    let place = match torch.place(strided.storage.index()) {
        Ok(place) => place,
        Err(_) if empty => StorageLocation::stored(Span::within(0, 0, 0)?),
        Err(Error::Format(fault)) => return Err(fault.tensor(name).format()),
        Err(error) => return Err(error),
    };
    let item = strided.dtype.bytes();
    let overflow = || outside(name, place);
    // The parts of legacy storages count elements of the storage.
    let part = storage.view.as_ref().map_or(Some(0), |view| view.offset.checked_mul(storage.dtype.bytes()));
    let offset = strided.offset.checked_mul(item).ok_or_else(overflow)?;
    let start = part.and_then(|part| part.checked_add(offset)).ok_or_else(overflow)?;
    let reach = extent(&strided.shape, &strided.strides).and_then(|extent| extent.bytes(item));
    let reach = reach.ok_or_else(overflow)?.len;
    let start = if empty { start.min(place.bytes()) } else { start };
    if start.checked_add(reach).is_none_or(|end| end > place.bytes()) {
        return Err(overflow());
    }
    let span = if place.inflated.is_some() { place.span } else { place.span.part(start, reach)? };
    let view = View { strides: &strided.strides, storage: place.span, inflated: place.inflated, start };
    table.push(&TensorInfo { name, element, shape, file: 0, span, view: Some(view) })
}

/// The element of the table, and the shape that counts such elements.
fn element<'a>(strided: &'a Strided, pairs: &'a mut Vec<u64>) -> (Element<'static>, &'a [u64]) {
    if strided.dtype == TorchDType::Float4E2M1FnX2
        && is_contiguous(strided)
        && let Some((last, outer)) = strided.shape.split_last()
        && let Some(doubled) = last.checked_mul(2)
    {
        pairs.extend_from_slice(outer);
        pairs.push(doubled);
        return (Element::Plain(DType::Float4E2M1Fn), pairs);
    }
    match strided.dtype.dtype() {
        Some(dtype) => (Element::Plain(dtype), &strided.shape),
        None => (Element::Torch(strided.dtype), &strided.shape),
    }
}

fn is_contiguous(strided: &Strided) -> bool {
    let mut expected = 1u64;
    strided.shape.iter().zip(&*strided.strides).rev().all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected = expected.saturating_mul(dim);
        fits
    })
}

fn outside(name: &str, place: StorageLocation) -> Error {
    let cause = format!("the tensor reaches beyond its storage of {} bytes", place.bytes());
    Diagnostic::new(rules::TORCH_OUTSIDE_STORAGE, cause).tensor(name).offset(place.span.start()).format()
}
