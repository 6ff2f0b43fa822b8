//! The globals that a pickle names, and their classification.

use super::dtype::StorageType;
use super::names::{DISTRIBUTED, Danger, exact};
use super::object::{DictKind, Factory};
use crate::tensor::TorchDType;

/// A class or function that a pickle names. Nothing is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalUse {
    /// The module, as the pickle spells it.
    pub module: String,
    /// The name in the module; it may have dots.
    pub name: String,
    /// The offset in the file of the instruction that names it first.
    pub offset: u64,
    /// Module and name as Python 3 imports them, where the pickle has those of Python 2.
    pub imported: Option<Box<(String, String)>>,
    /// Its classification.
    pub danger: Danger,
    /// What it constructs, if PyTorch writes this global.
    pub known: Option<KnownGlobal>,
}

impl GlobalUse {
    /// The globals with a known meaning: each is built, or applied to plain data.
    pub fn is_same(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }

    /// Module and name that would be imported, such as `torch._utils._rebuild_tensor_v2`: a file may have `subprocess.Popen` as
    /// `commands.Popen`, its name in Python 2.
    pub fn full_name(&self) -> String {
        let (module, name) = self.parts();
        format!("{module}.{name}")
    }

    /// Module and name that would be imported.
    pub fn parts(&self) -> (&str, &str) {
        self.imported.as_deref().map_or((&self.module, &self.name), |(module, name)| (module, name))
    }
}

/// The globals whose meaning is known: each is built, or applied to plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation
pub enum KnownGlobal {
    Dict(DictKind),
    Set,
    FrozenSet,
    ByteArray,
    Bytes,
    Complex,
    CodecsEncode,
    /// `copyreg._reconstructor`: an object of its first argument's class, without a call.
    Reconstructor,
    Storage(StorageType),
    DType(TorchDType),
    QScheme,
    Size,
    Device,
    GetLayout,
    Parameter,
    RebuildTensor,
    RebuildTensorV2,
    RebuildTensorV3,
    RebuildParameter,
    RebuildParameterWithState,
    RebuildQTensor,
    RebuildSparseTensor,
    RebuildMetaTensor,
    RebuildWrapperSubclass,
    RebuildFromNumpy,
    RebuildFromCpuTensor,
    RebuildFromTypeV2,
    NumpyScalar,
    NumpyReconstruct,
    NumpyFromBuffer,
    NumpyArray,
    NumpyDType,
    /// `torch.Tensor`, and the classes of distributed tensors: named, and kept as placeholders where they are called.
    Placeholder,
}

/// The known meaning of a global, by the exact spelling of its module and its name; `None`: a placeholder, never built.
pub(super) fn known(module: &str, name: &str) -> Option<KnownGlobal> {
    Some(match (module, name) {
        ("collections", "OrderedDict") => KnownGlobal::Dict(DictKind::OrderedDict),
        ("collections", "Counter") => KnownGlobal::Dict(DictKind::Counter),
        ("collections", "defaultdict") => KnownGlobal::Dict(DictKind::DefaultDict(Factory::None)),
        ("builtins" | "__builtin__", "dict") => KnownGlobal::Dict(DictKind::Dict),
        ("builtins" | "__builtin__", "set") => KnownGlobal::Set,
        ("builtins" | "__builtin__", "frozenset") => KnownGlobal::FrozenSet,
        ("builtins" | "__builtin__", "bytearray") => KnownGlobal::ByteArray,
        ("builtins" | "__builtin__", "bytes") => KnownGlobal::Bytes,
        ("builtins" | "__builtin__", "complex") => KnownGlobal::Complex,
        ("_codecs", "encode") => KnownGlobal::CodecsEncode,
        ("copyreg" | "copy_reg", "_reconstructor") => KnownGlobal::Reconstructor,
        ("torch", "Size") => KnownGlobal::Size,
        ("torch", "device") => KnownGlobal::Device,
        // Types that are values in a file, such as the default of a defaultdict; protocols up to 2 also call int and str.
        ("builtins" | "__builtin__", "int" | "float" | "str" | "bool" | "list" | "tuple" | "object")
        | ("__builtin__", "long" | "unicode")
        | ("torch" | "torch._tensor" | "torch.tensor", "Tensor")
        | ("torch.nn.parameter", "Buffer")
        | ("torch.storage" | "torch", "TypedStorage") => KnownGlobal::Placeholder,
        ("torch.nn.parameter", "Parameter") => KnownGlobal::Parameter,
        ("torch.serialization", "_get_layout") => KnownGlobal::GetLayout,
        ("torch._utils", "_rebuild_tensor") => KnownGlobal::RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v2") => KnownGlobal::RebuildTensorV2,
        ("torch._utils", "_rebuild_tensor_v3") => KnownGlobal::RebuildTensorV3,
        ("torch._utils", "_rebuild_parameter") => KnownGlobal::RebuildParameter,
        ("torch._utils", "_rebuild_parameter_with_state") => KnownGlobal::RebuildParameterWithState,
        ("torch._utils", "_rebuild_qtensor") => KnownGlobal::RebuildQTensor,
        ("torch._utils", "_rebuild_sparse_tensor") => KnownGlobal::RebuildSparseTensor,
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => KnownGlobal::RebuildMetaTensor,
        ("torch._utils", "_rebuild_wrapper_subclass") => KnownGlobal::RebuildWrapperSubclass,
        ("torch._utils", "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor") => KnownGlobal::RebuildFromNumpy,
        ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor") => KnownGlobal::RebuildFromCpuTensor,
        ("torch._tensor" | "torch.tensor", "_rebuild_from_type_v2") => KnownGlobal::RebuildFromTypeV2,
        ("numpy", "ndarray") => KnownGlobal::NumpyArray,
        ("numpy", "dtype") => KnownGlobal::NumpyDType,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => KnownGlobal::NumpyScalar,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => KnownGlobal::NumpyReconstruct,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => KnownGlobal::NumpyFromBuffer,
        ("torch", name) if QSCHEMES.contains(&name) => KnownGlobal::QScheme,
        ("torch" | "torch.storage", name) => {
            let storage = StorageType::from_global(module, name).map(KnownGlobal::Storage);
            let dtype = || TorchDType::from_name(name).filter(|_| module == "torch").map(KnownGlobal::DType);
            return storage.or_else(dtype);
        }
        _ if exact(module, name).is_some_and(|entry| entry.reason == DISTRIBUTED) => KnownGlobal::Placeholder,
        _ => return None,
    })
}

const QSCHEMES: [&str; 5] = [
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_spelling_of_a_global_is_known() {
        assert_eq!(known("torch._utils", "_rebuild_tensor_v2"), Some(KnownGlobal::RebuildTensorV2));
        let float = StorageType::Typed(TorchDType::Plain(crate::dtype::DType::Float32));
        assert_eq!(known("torch", "FloatStorage"), Some(KnownGlobal::Storage(float)));
        assert_eq!(known("torch.distributed.tensor", "DTensor"), Some(KnownGlobal::Placeholder));
        for (module, name) in [
            ("torch", "_utils._rebuild_tensor_v2"),
            ("torch._utils", "_rebuild_tensor_v2.__globals__"),
            ("torch.storage", "float32"),
            ("__main__", "Model"),
        ] {
            assert_eq!(known(module, name), None, "{module}.{name}");
        }
    }
}
