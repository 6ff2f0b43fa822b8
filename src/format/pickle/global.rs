//! The globals that a pickle names, and what is known about each.

use super::cursor::limit;
use super::dtype::StorageType;
use super::machine::Machine;
use super::object::{DictKind, Factory, Object, ObjectId};
use super::{Step, danger, python2};
use crate::tensor::TorchDType;

number!(GlobalId, "globals");

/// What a global takes beside the bytes of its names, in the list and in the map.
const GLOBAL_BYTES: usize = 384;

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
    /// What is known about it.
    pub verdict: Verdict,
}

impl GlobalUse {
    /// Whether both are one class or function.
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

/// What is known about a global.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// One that PyTorch writes: its meaning is known, and applied to plain data.
    Known(Known),
    /// Any other: kept as a placeholder, never built.
    Unknown,
    /// One that runs code, opens files or reaches the network when it is called: kept as a placeholder, never built.
    Dangerous,
}

impl Verdict {
    /// `known`, `unknown` or `dangerous`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Known(_) => "known",
            Self::Unknown => "unknown",
            Self::Dangerous => "dangerous",
        }
    }
}

/// The globals whose meaning is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation
pub enum Known {
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

/// What a global is, by the exact spelling of its module and its name. One that does harm under the name that Python 2 had for it does so in
/// a pickle of any protocol: which of them a reader takes for old is its own affair.
pub(super) fn verdict(module: &str, name: &str) -> Verdict {
    let old = || python2::renamed(module, name).is_some_and(|(module, name)| danger::is_dangerous(module, name));
    match known(module, name) {
        Some(known) => Verdict::Known(known),
        None if danger::is_dangerous(module, name) || old() => Verdict::Dangerous,
        None => Verdict::Unknown,
    }
}

fn known(module: &str, name: &str) -> Option<Known> {
    Some(match (module, name) {
        ("collections", "OrderedDict") => Known::Dict(DictKind::OrderedDict),
        ("collections", "Counter") => Known::Dict(DictKind::Counter),
        ("collections", "defaultdict") => Known::Dict(DictKind::DefaultDict(Factory::None)),
        ("builtins" | "__builtin__", "dict") => Known::Dict(DictKind::Dict),
        ("builtins" | "__builtin__", "set") => Known::Set,
        ("builtins" | "__builtin__", "frozenset") => Known::FrozenSet,
        ("builtins" | "__builtin__", "bytearray") => Known::ByteArray,
        ("builtins" | "__builtin__", "bytes") => Known::Bytes,
        ("builtins" | "__builtin__", "complex") => Known::Complex,
        ("_codecs", "encode") => Known::CodecsEncode,
        ("copyreg" | "copy_reg", "_reconstructor") => Known::Reconstructor,
        ("torch", "Size") => Known::Size,
        ("torch", "device") => Known::Device,
        // Types that stand in a file as values, such as the default of a defaultdict; protocols up to 2 call int and str otherwise.
        ("builtins" | "__builtin__", "int" | "float" | "str" | "bool" | "list" | "tuple" | "object")
        | ("__builtin__", "long" | "unicode")
        | ("torch" | "torch._tensor" | "torch.tensor", "Tensor")
        | ("torch.nn.parameter", "Buffer")
        | ("torch.storage" | "torch", "TypedStorage") => Known::Placeholder,
        ("torch.nn.parameter", "Parameter") => Known::Parameter,
        ("torch.serialization", "_get_layout") => Known::GetLayout,
        ("torch._utils", "_rebuild_tensor") => Known::RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v2") => Known::RebuildTensorV2,
        ("torch._utils", "_rebuild_tensor_v3") => Known::RebuildTensorV3,
        ("torch._utils", "_rebuild_parameter") => Known::RebuildParameter,
        ("torch._utils", "_rebuild_parameter_with_state") => Known::RebuildParameterWithState,
        ("torch._utils", "_rebuild_qtensor") => Known::RebuildQTensor,
        ("torch._utils", "_rebuild_sparse_tensor") => Known::RebuildSparseTensor,
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => Known::RebuildMetaTensor,
        ("torch._utils", "_rebuild_wrapper_subclass") => Known::RebuildWrapperSubclass,
        ("torch._utils", "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor") => Known::RebuildFromNumpy,
        ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor") => Known::RebuildFromCpuTensor,
        ("torch._tensor" | "torch.tensor", "_rebuild_from_type_v2") => Known::RebuildFromTypeV2,
        ("numpy", "ndarray") => Known::NumpyArray,
        ("numpy", "dtype") => Known::NumpyDType,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Known::NumpyScalar,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Known::NumpyReconstruct,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Known::NumpyFromBuffer,
        ("torch", name) if QSCHEMES.contains(&name) => Known::QScheme,
        ("torch" | "torch.storage", name) => {
            let storage = StorageType::from_global(module, name).map(Known::Storage);
            let dtype = || TorchDType::from_name(name).filter(|_| module == "torch").map(Known::DType);
            return storage.or_else(dtype);
        }
        _ if DISTRIBUTED.iter().any(|(modules, names)| listed(modules, module) && listed(names, name)) => {
            Known::Placeholder
        }
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

/// The modules of DTensor and FSDP, as they were called in different versions, and the classes of theirs that checkpoints name.
const DISTRIBUTED: [(&str, &str); 8] = [
    ("torch.distributed.tensor torch.distributed.tensor._api torch.distributed._tensor.api", "DTensor"),
    (
        "torch.distributed.tensor._dtensor_spec torch.distributed._tensor._dtensor_spec",
        "DTensorSpec TensorMeta ShardOrderEntry",
    ),
    (
        "torch.distributed.tensor._op_schema torch.distributed._tensor.op_schema torch.distributed._tensor.placement_types",
        "DTensorSpec TensorMeta",
    ),
    (
        "torch.distributed.tensor.placement_types torch.distributed._tensor.placement_types",
        "Partial _Partial Replicate Shard _StridedShard",
    ),
    ("torch.distributed.device_mesh torch.distributed._tensor.device_mesh", "DeviceMesh _MeshEnv"),
    ("torch.distributed._mesh_layout", "_MeshLayout _FlatLayout"),
    (
        "torch.distributed._shard.sharded_tensor.api torch.distributed._shard.sharded_tensor.shard
        torch.distributed._shard.sharded_tensor.metadata torch.distributed._shard.metadata",
        "ShardedTensor Shard ShardMetadata ShardedTensorMetadata TensorProperties MEM_FORMAT_ENCODING",
    ),
    (
        "torch.distributed._shard.sharding_spec.api torch.distributed._shard.sharding_spec.chunk_sharding_spec
        torch.distributed.remote_device",
        "EnumerableShardingSpec ChunkShardingSpec _remote_device",
    ),
];

/// Whether a list of words has this one.
pub(super) fn listed(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|listed| listed == word)
}

impl Machine<'_> {
    /// The value of a global: one for each name.
    pub(super) fn global(&mut self, module: &str, name: &str) -> Step<ObjectId> {
        if module.len().saturating_add(name.len()) > self.limits.global_bytes {
            return Err(limit("bytes in the name of one global", self.limits.global_bytes, self.position));
        }
        let is_old = self.protocol <= python2::LAST_PROTOCOL;
        let imported = if is_old { python2::renamed(module, name) } else { None };
        let key = (module.to_owned(), name.to_owned(), imported.is_some());
        if let Some(id) = self.global_ids.get(&key) {
            return Ok(*id);
        }
        if self.globals.len() >= self.limits.globals {
            return Err(limit("different globals", self.limits.globals, self.position));
        }
        let verdict = verdict(module, name);
        let id = self.make(match verdict {
            Verdict::Known(Known::DType(dtype)) => Object::DType(dtype),
            _ => Object::Global(GlobalId(self.globals.len() as u32)),
        })?;
        self.take(3 * (module.len() + name.len()) + GLOBAL_BYTES)?;
        let imported = imported.map(|(module, name)| Box::new((module.to_owned(), name.to_owned())));
        let (module, name) = (module.to_owned(), name.to_owned());
        self.globals.push(GlobalUse { module, name, offset: self.position, imported, verdict });
        self.global_ids.insert(key, id);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_spelling_of_a_global_is_known() {
        assert_eq!(verdict("torch._utils", "_rebuild_tensor_v2"), Verdict::Known(Known::RebuildTensorV2));
        assert_eq!(verdict("torch", "_utils._rebuild_tensor_v2"), Verdict::Unknown);
        assert_eq!(verdict("torch._utils", "_rebuild_tensor_v2.__globals__"), Verdict::Dangerous);
        assert_eq!(
            verdict("torch", "FloatStorage"),
            Verdict::Known(Known::Storage(StorageType::Typed(TorchDType::Plain(crate::dtype::DType::Float32)),))
        );
        assert_eq!(verdict("torch.storage", "float32"), Verdict::Unknown);
        assert_eq!(verdict("__main__", "Model"), Verdict::Unknown);
    }
}
