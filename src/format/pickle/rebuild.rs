//! Tensors: the results of PyTorch's `_rebuild_…` functions, with the checks that need no byte of a storage.

use std::sync::Arc;

use super::ParseStep;
use super::construct::KnownCall;
use super::global::KnownGlobal;
use super::ids::{GlobalId, ObjectId, StorageId, TensorId};
use super::machine::PickleMachine;
use super::object::PickleObject;
use super::tensor::{MemoryOrder, Strided, TensorKind, TensorRef};
use crate::budget::{BLOCK_BYTES, saturating_u32};
use crate::error::Diagnostic;
use crate::format::shown_shape;
use crate::rules;
use crate::tensor::{TorchDType, extent};

/// The memory of the counts of shared dims, and of their block.
const DIMS_BYTES: usize = 2 * size_of::<usize>() + BLOCK_BYTES;

impl PickleMachine<'_> {
    /// The result of a `_rebuild_…` function; `None` if its arguments are invalid.
    pub(super) fn rebuild(&mut self, call: &KnownCall<'_>) -> ParseStep<Option<ObjectId>> {
        let &KnownCall { known, global, callee, list, arguments } = call;
        match (known, list) {
            (KnownGlobal::RebuildTensor, [storage, offset, size, stride]) => {
                self.make_strided([*storage, *offset, *size, *stride], None, false, None)
            }
            (KnownGlobal::RebuildTensorV2, [storage, offset, size, stride, grad, hooks, metadata @ ..])
                if metadata.len() <= 1 =>
            {
                let Some(grad) = self.grad(*grad, *hooks) else { return Ok(None) };
                self.make_strided([*storage, *offset, *size, *stride], None, grad, metadata.first().copied())
            }
            (KnownGlobal::RebuildTensorV3, [storage, offset, size, stride, grad, hooks, dtype, metadata @ ..])
                if metadata.len() <= 1 =>
            {
                let (Some(grad), PickleObject::DType(dtype)) = (self.grad(*grad, *hooks), self.objects.get(*dtype))
                else {
                    return Ok(None);
                };
                let dtype = *dtype;
                self.make_strided([*storage, *offset, *size, *stride], Some(dtype), grad, metadata.first().copied())
            }
            (KnownGlobal::RebuildQTensor, [storage, offset, size, stride, parameters, grad, hooks]) => {
                let Some(grad) = self.grad(*grad, *hooks) else { return Ok(None) };
                let Some(integers) = self.strided([*storage, *offset, *size, *stride], None)? else { return Ok(None) };
                self.make_quantized(integers, *parameters, grad)
            }
            (KnownGlobal::RebuildSparseTensor, [layout, data]) => self.make_sparse(*layout, *data),
            (KnownGlobal::RebuildMetaTensor, [dtype, size, stride, grad]) => {
                let Some((dtype, grad)) = self.dtype_and_grad(*dtype, *grad) else { return Ok(None) };
                let shape = self.dims(*size, "the shape of a tensor")?;
                let strides = self.dims(*stride, "the strides of a tensor")?;
                if shape.len() != strides.len() {
                    return Err(self.rank_fault(&shape, &strides));
                }
                self.tensor(TensorKind::Meta { dtype, shape, strides }, grad).map(Some)
            }
            (KnownGlobal::RebuildWrapperSubclass, [class, dtype, size, _, _, _, _, grad]) => {
                let Some((dtype, grad)) = self.dtype_and_grad(*dtype, *grad) else { return Ok(None) };
                let PickleObject::Global(class) = *self.objects.get(*class) else { return Ok(None) };
                let shape = self.dims(*size, "the shape of a tensor")?;
                self.tensor(TensorKind::Wrapper { class, dtype, shape }, grad).map(Some)
            }
            (KnownGlobal::RebuildFromNumpy | KnownGlobal::RebuildFromCpuTensor, [data, dtype, _, grad]) => {
                let Some((dtype, grad)) = self.dtype_and_grad(*dtype, *grad) else { return Ok(None) };
                self.make_converted(known, *data, dtype, grad)
            }
            (KnownGlobal::RebuildParameter | KnownGlobal::Parameter, [tensor, grad]) => {
                self.make_parameter(*tensor, *grad, None, None)
            }
            (KnownGlobal::RebuildParameter, [tensor, grad, hooks]) => {
                self.make_parameter(*tensor, *grad, Some(*hooks), None)
            }
            (KnownGlobal::RebuildParameterWithState, [tensor, grad, hooks, state]) => {
                self.make_parameter(*tensor, *grad, Some(*hooks), Some(*state))
            }
            (KnownGlobal::RebuildFromTypeV2, [function, class, inner, state]) => {
                self.make_subclass((global, callee), [*function, *class, *inner, *state], arguments)
            }
            _ => Ok(None),
        }
    }

    /// A tuple of sizes or strides.
    pub(super) fn dims(&mut self, id: ObjectId, what: &str) -> ParseStep<Arc<[u64]>> {
        if let Some(have) = self.dims.get(&id) {
            return Ok(have.clone());
        }
        if let PickleObject::Size(tuple) = *self.objects.get(id) {
            return self.dims(tuple, what); // which is a tuple
        }
        let elements = self.dims_of(id, what)?;
        let dims: Result<Arc<[u64]>, _> = elements.iter().map(|element| self.size(*element, what)).collect();
        let dims = dims?;
        self.take(size_of_val(&*dims) + DIMS_BYTES)?;
        self.budget.entry(&mut self.dims).map_err(|short| self.short(short))?;
        self.dims.insert(id, dims.clone());
        Ok(dims)
    }

    /// Checks sizes or strides; their values are read again when needed.
    pub(super) fn check_dims(&self, id: ObjectId, what: &str) -> ParseStep<()> {
        self.dims_of(id, what)?.iter().try_for_each(|element| self.size(*element, what).map(drop))
    }

    /// The members of sizes or strides, within the limit of dimensions.
    fn dims_of(&self, id: ObjectId, what: &str) -> ParseStep<&[ObjectId]> {
        let (PickleObject::Tuple(_) | PickleObject::Size(_), Some(elements)) =
            (self.objects.get(id), self.objects.elements(id))
        else {
            return Err(self.fault(rules::PICKLE_TENSOR, format!("{what} is {}, not a tuple", self.kind(id))));
        };
        if elements.len() > self.limits.rank {
            let cause = format!("{what} has {} dimensions; at most {} are read", elements.len(), self.limits.rank);
            return Err(self.fault(rules::PICKLE_RANK, cause));
        }
        Ok(elements)
    }

    /// A non-negative number.
    pub(super) fn size(&self, id: ObjectId, what: &str) -> ParseStep<u64> {
        let value = match self.objects.get(id) {
            PickleObject::Int(value) => u64::try_from(*value).map_err(|_| *value),
            PickleObject::NumpyScalar { .. } => match self.objects.numpy_integer(id) {
                Some(value) => u64::try_from(value).map_err(|_| value),
                None => return Err(self.fault(rules::PICKLE_TENSOR, format!("{what} is not an integer"))),
            },
            _ => return Err(self.fault(rules::PICKLE_TENSOR, format!("{what} is {}, not an integer", self.kind(id)))),
        };
        value.map_err(|value| self.fault(rules::PICKLE_NEGATIVE, format!("{what} is negative: {value}")))
    }

    /// `requires_grad`, if it is a bool, and the hooks are as usual: a dict, or nothing.
    fn grad(&self, grad: ObjectId, hooks: ObjectId) -> Option<bool> {
        match (self.objects.get(grad), self.objects.get(hooks)) {
            (PickleObject::Bool(grad), PickleObject::Dict(_) | PickleObject::None) => Some(*grad),
            _ => None,
        }
    }

    fn dtype_and_grad(&self, dtype: ObjectId, grad: ObjectId) -> Option<(TorchDType, bool)> {
        match (self.objects.get(dtype), self.objects.get(grad)) {
            (PickleObject::DType(dtype), PickleObject::Bool(grad)) => Some((*dtype, *grad)),
            _ => None,
        }
    }

    fn tensor(&mut self, kind: TensorKind, requires_grad: bool) -> ParseStep<ObjectId> {
        let id = self.make(PickleObject::Tensor(TensorId(saturating_u32(self.tensors.len()))))?;
        self.budget.reserve(&mut self.tensors, 1).map_err(|short| self.short(short))?;
        self.tensors.push(TensorRef { kind, requires_grad, position: self.position });
        Ok(id)
    }

    fn make_strided(
        &mut self,
        place: [ObjectId; 4],
        dtype: Option<TorchDType>,
        grad: bool,
        metadata: Option<ObjectId>,
    ) -> ParseStep<Option<ObjectId>> {
        let Some(strided) = self.strided(place, dtype)? else { return Ok(None) };
        let mut flips = [("conj", false), ("neg", false)];
        if let Some(dict) = metadata.and_then(|metadata| self.objects.dict(metadata)) {
            for (key, value) in &dict.entries {
                let key = self.objects.text(*key);
                let (Some(flip), PickleObject::Bool(value)) =
                    (flips.iter_mut().find(|flip| Some(flip.0) == key), self.objects.get(*value))
                else {
                    return Ok(None);
                };
                flip.1 = *value;
            }
        } else if metadata.is_some_and(|metadata| *self.objects.get(metadata) != PickleObject::None) {
            return Ok(None);
        }
        let [(_, conjugate), (_, negative)] = flips;
        let kind = match (conjugate, negative) {
            (false, false) => TensorKind::Strided(strided),
            _ => TensorKind::Flipped { strided, conjugate, negative },
        };
        self.tensor(kind, grad).map(Some)
    }

    /// A part of a storage, which must be within it.
    fn strided(
        &mut self,
        [storage, offset, size, stride]: [ObjectId; 4],
        dtype: Option<TorchDType>,
    ) -> ParseStep<Option<Strided>> {
        let PickleObject::Storage(storage) = *self.objects.get(storage) else { return Ok(None) };
        let Some(place) = self.storages.get(storage.index()) else { return Ok(None) };
        let dtype = dtype.unwrap_or(place.dtype.torch_dtype());
        let offset = self.size(offset, "the offset of a tensor")?;
        let shape = self.dims(size, "the shape of a tensor")?;
        let strides = self.dims(stride, "the strides of a tensor")?;
        if shape.len() != strides.len() {
            return Err(self.rank_fault(&shape, &strides));
        }
        let strided = Strided { dtype, storage, offset, shape, strides };
        self.check_extent(&strided, storage)?;
        Ok(Some(strided))
    }

    fn rank_fault(&self, shape: &[u64], strides: &[u64]) -> Box<Diagnostic> {
        let cause = format!("a tensor has the shape {} and the strides {}", shown_shape(shape), shown_shape(strides));
        self.fault(rules::PICKLE_RANK, cause)
    }

    /// `offset + sum((size - 1) * stride) < elements`; a tensor without elements accesses nothing, but its offset is checked, too.
    fn check_extent(&self, strided: &Strided, storage: StorageId) -> ParseStep<()> {
        let reach = self.storages.get(storage.index()).map_or(0, super::StorageRef::reach);
        let has = reach / strided.dtype.bytes();
        let elements = strided.shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
        let empty = strided.shape.contains(&0);
        let extent = extent(&strided.shape, &strided.strides);
        let end = extent.and_then(|extent| if empty { Some(0) } else { strided.offset.checked_add(extent.len) });
        let fits = end.is_some_and(|end| end <= has) && (empty || elements.is_some());
        let representable = i64::try_from(strided.offset).is_ok()
            && (!empty || strided.shape.iter().all(|size| i64::try_from(*size).is_ok()));
        if fits && representable {
            return Ok(());
        }
        let reaches =
            end.map_or_else(|| "more elements than can be counted".to_owned(), |end| format!("{end} elements"));
        let cause = format!(
            "a tensor of the shape {} with the strides {} from element {} on reaches over {reaches} of {}; its storage has {has}",
            shown_shape(&strided.shape),
            shown_shape(&strided.strides),
            strided.offset,
            strided.dtype.name(),
        );
        Err(self.fault(rules::PICKLE_EXTENT, cause))
    }

    fn make_quantized(&mut self, integers: Strided, parameters: ObjectId, grad: bool) -> ParseStep<Option<ObjectId>> {
        let PickleObject::Tuple(members) = self.objects.get(parameters) else { return Ok(None) };
        let (scheme, scale, zero_point, axis) = match **members {
            [scheme, scale, zero_point] => (scheme, scale, zero_point, None),
            [scheme, scale, zero_point, axis] => (scheme, scale, zero_point, Some(axis)),
            _ => return Ok(None),
        };
        let PickleObject::Global(scheme) = *self.objects.get(scheme) else { return Ok(None) };
        if self.known_of(scheme) != Some(KnownGlobal::QScheme) {
            return Ok(None);
        }
        let axis = axis.map(|axis| self.size(axis, "the axis of a quantized tensor")).transpose()?;
        if axis.is_some_and(|axis| axis >= integers.shape.len() as u64) {
            let cause = format!("a tensor of {} dimensions is quantized along another one", integers.shape.len());
            return Err(self.fault(rules::PICKLE_TENSOR, cause));
        }
        self.tensor(TensorKind::Quantized { integers, scheme, scale, zero_point, axis }, grad).map(Some)
    }

    fn make_sparse(&mut self, layout: ObjectId, data: ObjectId) -> ParseStep<Option<ObjectId>> {
        let (PickleObject::Layout(layout), PickleObject::Tuple(members)) =
            (self.objects.get(layout), self.objects.get(data))
        else {
            return Ok(None);
        };
        let layout = *layout;
        let coalesced = match members.get(3).map(|id| self.objects.get(*id)) {
            Some(PickleObject::Bool(coalesced)) if layout == MemoryOrder::SparseCoo => Some(*coalesced),
            _ => None,
        };
        let (indices, values, size) = match (layout, &**members) {
            (MemoryOrder::SparseCoo, [indices, values, size] | [indices, values, size, _]) => {
                (vec![*indices], *values, *size)
            }
            (
                MemoryOrder::SparseCsr | MemoryOrder::SparseCsc | MemoryOrder::SparseBsr | MemoryOrder::SparseBsc,
                [compressed, plain, values, size],
            ) => (vec![*compressed, *plain], *values, *size),
            _ => return Ok(None),
        };
        if !indices.iter().chain([&values]).all(|id| matches!(self.objects.get(*id), PickleObject::Tensor(_))) {
            return Ok(None);
        }
        let shape = self.dims(size, "the shape of a tensor")?;
        self.take(size_of_val(&*indices) + BLOCK_BYTES)?;
        self.tensor(TensorKind::Sparse { layout, indices, values, shape, coalesced }, false).map(Some)
    }

    fn make_converted(
        &mut self,
        known: KnownGlobal,
        data: ObjectId,
        dtype: TorchDType,
        grad: bool,
    ) -> ParseStep<Option<ObjectId>> {
        let kind = match (known, self.objects.get(data)) {
            (KnownGlobal::RebuildFromCpuTensor, PickleObject::Tensor(inner)) => {
                let inner = self.tensors.get(inner.index()).and_then(TensorRef::strided);
                match inner.filter(|inner| inner.dtype == dtype) {
                    Some(inner) => TensorKind::Strided(inner.clone()),
                    None => TensorKind::Converted { data, dtype },
                }
            }
            (KnownGlobal::RebuildFromNumpy, PickleObject::NumpyArray { .. }) => TensorKind::Converted { data, dtype },
            _ => return Ok(None),
        };
        self.tensor(kind, grad).map(Some)
    }

    fn make_parameter(
        &mut self,
        tensor: ObjectId,
        grad: ObjectId,
        hooks: Option<ObjectId>,
        state: Option<ObjectId>,
    ) -> ParseStep<Option<ObjectId>> {
        let PickleObject::Bool(requires_grad) = *self.objects.get(grad) else { return Ok(None) };
        let is_tensor = matches!(
            self.objects.get(tensor),
            PickleObject::Tensor(_) | PickleObject::Subclass { .. } | PickleObject::Opaque(_)
        );
        let hooks_fit =
            hooks.is_none_or(|hooks| matches!(self.objects.get(hooks), PickleObject::Dict(_) | PickleObject::None));
        if !is_tensor || !hooks_fit {
            return Ok(None);
        }
        self.make(PickleObject::Parameter { tensor, requires_grad, state }).map(Some)
    }

    fn make_subclass(
        &mut self,
        (global, callee): (GlobalId, ObjectId),
        [function, class, inner, state]: [ObjectId; 4],
        arguments: ObjectId,
    ) -> ParseStep<Option<ObjectId>> {
        let (PickleObject::Global(function_id), PickleObject::Global(class)) =
            (self.objects.get(function), self.objects.get(class))
        else {
            return Ok(None);
        };
        let (class, known) = (*class, self.known_of(*function_id));
        let rebuilds = match known {
            Some(
                KnownGlobal::RebuildTensor
                | KnownGlobal::RebuildTensorV2
                | KnownGlobal::RebuildTensorV3
                | KnownGlobal::RebuildQTensor
                | KnownGlobal::RebuildSparseTensor
                | KnownGlobal::RebuildMetaTensor
                | KnownGlobal::RebuildWrapperSubclass
                | KnownGlobal::RebuildFromNumpy
                | KnownGlobal::RebuildFromCpuTensor,
            ) => true,
            // Calls within calls within calls are not followed.
            Some(_) => return Ok(None),
            None => false,
        };
        if !rebuilds {
            return self.placeholder(global, callee, arguments, None).map(Some);
        }
        let tensor = self.call(function, inner, None)?;
        self.make(PickleObject::Subclass { tensor, class, state }).map(Some)
    }
}
