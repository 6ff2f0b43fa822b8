//! Storages and tensors, as a pickle describes them.

use std::sync::Arc;

use super::dtype::StorageType;
use super::ids::{GlobalId, ObjectId, StorageId};
use crate::tensor::{NoArray, TorchDType};

/// A storage outside the pickle, by its key. Storages of one key have the same number of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageRef {
    /// The key: the name of the entry in a zip file.
    pub key: Arc<str>,
    /// The type of an element.
    pub dtype: StorageType,
    /// Where it lay, such as `cpu` or `cuda:0`.
    pub location: Arc<str>,
    /// How many elements the storage of this key has.
    pub elements: u64,
    /// The part of it that this is, in a legacy file. Tensors count from the start of the part, and must end within it.
    pub view: Option<StorageView>,
    /// The offset in the file of the instruction that names it first.
    pub position: u64,
}

impl StorageRef {
    /// Bytes of the storage of this key.
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.bytes()
    }

    /// Bytes that a tensor may reach: those of the view, if this is one.
    pub fn reach(&self) -> u64 {
        self.view.as_ref().map_or(self.elements, |view| view.elements) * self.dtype.bytes()
    }
}

/// A part of a storage that counts as a storage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StorageView {
    /// The key of the view.
    pub key: Arc<str>,
    /// The first element.
    pub offset: u64,
    /// How many elements.
    pub elements: u64,
}

/// How a tensor is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the documentation
pub enum MemoryOrder {
    Strided,
    SparseCoo,
    SparseCsr,
    SparseCsc,
    SparseBsr,
    SparseBsc,
    Mkldnn,
    Jagged,
}

impl MemoryOrder {
    const NAMES: [(Self, &'static str); 8] = [
        (Self::Strided, "torch.strided"),
        (Self::SparseCoo, "torch.sparse_coo"),
        (Self::SparseCsr, "torch.sparse_csr"),
        (Self::SparseCsc, "torch.sparse_csc"),
        (Self::SparseBsr, "torch.sparse_bsr"),
        (Self::SparseBsc, "torch.sparse_bsc"),
        (Self::Mkldnn, "torch._mkldnn"),
        (Self::Jagged, "torch.jagged"),
    ];

    /// The layout of this name, such as `torch.sparse_coo`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The name in PyTorch.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|row| row.0 == self).map_or("torch.strided", |row| row.1)
    }
}

/// A part of a storage, with strides. It is within its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strided {
    /// The type of an element.
    pub dtype: TorchDType,
    /// The storage.
    pub storage: StorageId,
    /// The first element, in elements of the dtype.
    pub offset: u64,
    /// The shape.
    pub shape: Arc<[u64]>,
    /// The strides, in elements.
    pub strides: Arc<[u64]>,
}

/// How a tensor is stored. All kinds but the first are not an array in the file; their parts are values of the pickle.
#[derive(Debug, Clone, PartialEq)]
pub enum TensorKind {
    /// A part of a storage.
    Strided(Strided),
    /// A part of a storage that is read with every element conjugated or negated (`x.conj()` is such a view).
    Flipped {
        /// The part.
        strided: Strided,
        /// Imaginary parts have the other sign.
        conjugate: bool,
        /// All values have the other sign.
        negative: bool,
    },
    /// Indices and values.
    Sparse {
        /// Which kind.
        layout: MemoryOrder,
        /// The tensors of the indices: one for COO, two for the compressed layouts.
        indices: Vec<ObjectId>,
        /// The tensor of the values.
        values: ObjectId,
        /// The shape of the whole.
        shape: Arc<[u64]>,
        /// Whether the indices of COO are sorted and unique, according to the file; `None` if it does not say.
        coalesced: Option<bool>,
    },
    /// Integers with a scale.
    Quantized {
        /// The integers.
        integers: Strided,
        /// The scheme: a global such as `torch.per_tensor_affine`.
        scheme: GlobalId,
        /// A number, or a tensor or list of one for each channel.
        scale: ObjectId,
        /// As the scale.
        zero_point: ObjectId,
        /// The axis of the channels.
        axis: Option<u64>,
    },
    /// A shape without data.
    Meta {
        /// The type of an element.
        dtype: TorchDType,
        /// The shape.
        shape: Arc<[u64]>,
        /// The strides, in elements.
        strides: Arc<[u64]>,
    },
    /// A wrapper around other tensors, such as `DTensor`: they are in the state of the [`super::PickleObject::Subclass`].
    Wrapper {
        /// The class.
        class: GlobalId,
        /// The type of an element.
        dtype: TorchDType,
        /// The shape of the whole.
        shape: Arc<[u64]>,
    },
    /// An array, or a tensor of another dtype, that was converted to a tensor on a device.
    Converted {
        /// A NumPy array or a tensor.
        data: ObjectId,
        /// The type of an element.
        dtype: TorchDType,
    },
}

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorRef {
    /// How it is stored.
    pub kind: TensorKind,
    /// Whether it is trained, according to the tensor; a parameter has its own flag.
    pub requires_grad: bool,
    /// The offset in the file of the instruction that builds it.
    pub position: u64,
}

impl TensorRef {
    /// The part of a storage that the tensor is, if it is only that.
    pub fn strided(&self) -> Option<&Strided> {
        match &self.kind {
            TensorKind::Strided(strided) => Some(strided),
            _ => None,
        }
    }

    /// The part of a storage that its elements are in, whatever is done to them when they are read.
    pub fn part_of_storage(&self) -> Option<&Strided> {
        match &self.kind {
            TensorKind::Strided(strided)
            | TensorKind::Flipped { strided, .. }
            | TensorKind::Quantized { integers: strided, .. } => Some(strided),
            _ => None,
        }
    }

    /// The kind of the tensor, if it is not an array in the file.
    pub fn not_mappable(&self) -> Option<NoArray> {
        Some(match &self.kind {
            TensorKind::Strided(_) => return None,
            TensorKind::Flipped { .. } => NoArray::Flipped,
            TensorKind::Sparse { layout, .. } => match layout {
                MemoryOrder::SparseCsr => NoArray::SparseCsr,
                MemoryOrder::SparseCsc => NoArray::SparseCsc,
                MemoryOrder::SparseBsr => NoArray::SparseBsr,
                MemoryOrder::SparseBsc => NoArray::SparseBsc,
                _ => NoArray::SparseCoo,
            },
            TensorKind::Quantized { .. } => NoArray::Quantized,
            TensorKind::Meta { .. } => NoArray::Meta,
            TensorKind::Wrapper { .. } => NoArray::Wrapper,
            TensorKind::Converted { .. } => NoArray::Converted,
        })
    }

    /// The shape; `None` if it is that of its source data.
    pub fn shape(&self) -> Option<&[u64]> {
        match &self.kind {
            TensorKind::Strided(strided)
            | TensorKind::Flipped { strided, .. }
            | TensorKind::Quantized { integers: strided, .. } => Some(&strided.shape),
            TensorKind::Sparse { shape, .. } | TensorKind::Meta { shape, .. } | TensorKind::Wrapper { shape, .. } => {
                Some(shape)
            }
            TensorKind::Converted { .. } => None,
        }
    }

    /// The parts that are separate values, by name.
    pub fn parts(&self) -> Vec<(&'static str, ObjectId)> {
        match &self.kind {
            TensorKind::Sparse { layout: MemoryOrder::SparseCoo, indices, values, .. } => {
                let indices = indices.iter().map(|id| ("indices", *id));
                indices.chain([("values", *values)]).collect()
            }
            TensorKind::Sparse { indices, values, .. } => {
                let names = ["compressed_indices", "plain_indices"].into_iter();
                names.zip(indices.iter().copied()).chain([("values", *values)]).collect()
            }
            TensorKind::Quantized { scale, zero_point, .. } => vec![("scale", *scale), ("zero_point", *zero_point)],
            TensorKind::Converted { data, .. } => vec![("data", *data)],
            _ => Vec::new(),
        }
    }
}
