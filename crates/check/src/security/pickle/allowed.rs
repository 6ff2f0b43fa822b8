//! The classes and functions that plain weights need: tensors, arrays, plain containers. Each stands here by its exact module and its exact name; no
//! name is covered by another, and what has a dot in its name is another name.
//!
//! The names of torch are those that torch's own `weights_only` allows (2.15), and those of older and newer versions of the same.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Modules, and the names that are allowed in each of them.
const ALLOWED: &[(&str, &str)] = &[
    ("builtins", "set frozenset bytearray bytes complex dict list tuple int float bool str object slice range"),
    ("collections", "OrderedDict Counter defaultdict deque"),
    ("_codecs", "encode"),
    ("copyreg", "_reconstructor"),
    ("datetime", "date datetime time timedelta timezone"),
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("uuid", "UUID"),
    (
        "torch",
        "Size Tensor device Generator
        BFloat16Storage BFloat16Tensor BoolStorage BoolTensor ByteStorage ByteTensor CharStorage CharTensor ComplexDoubleStorage
        ComplexFloatStorage DoubleStorage DoubleTensor FloatStorage FloatTensor HalfStorage HalfTensor IntStorage IntTensor LongStorage
        LongTensor QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage ShortStorage ShortTensor TypedStorage
        UntypedStorage
        bcomplex32 bfloat16 bits16 bits1x8 bits2x4 bits4x2 bits8 bool complex128 complex32 complex64 float16 float32 float4_e2m1fn_x2 float64
        float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int1 int16 int2 int3 int32 int4 int5 int6 int64 int7 int8
        qint32 qint8 quint2x4 quint4x2 quint8 uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 uint7 uint8
        per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine per_tensor_symmetric
        contiguous_format channels_last channels_last_3d preserve_format strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc",
    ),
    (
        "torch.cuda",
        "BFloat16Storage BFloat16Tensor BoolStorage BoolTensor ByteStorage ByteTensor CharStorage CharTensor ComplexDoubleStorage
        ComplexFloatStorage DoubleStorage DoubleTensor FloatStorage FloatTensor HalfStorage HalfTensor IntStorage IntTensor LongStorage
        LongTensor ShortStorage ShortTensor",
    ),
    ("torch.sparse", SPARSE),
    ("torch.cuda.sparse", SPARSE),
    (
        "torch._utils",
        "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy _rebuild_meta_tensor_no_storage _rebuild_parameter
        _rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_nested_tensor
        _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_wrapper_subclass _rebuild_xla_tensor",
    ),
    ("torch._tensor", "_rebuild_from_type_v2 Tensor"),
    ("torch.tensor", "_rebuild_from_type_v2 Tensor"),
    ("torch.nn.parameter", "Parameter Buffer UninitializedParameter UninitializedBuffer"),
    ("torch.serialization", "_get_layout"),
    // It unpickles its argument, which is looked through as a file of its own.
    ("torch.storage", "TypedStorage UntypedStorage _TypedStorage _UntypedStorage _load_from_bytes"),
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed.tensor._api", "DTensor"),
    ("torch.distributed._tensor.api", "DTensor"),
    ("torch.distributed.tensor._dtensor_spec", "DTensorSpec TensorMeta ShardOrderEntry"),
    ("torch.distributed._tensor._dtensor_spec", "DTensorSpec TensorMeta"),
    ("torch.distributed._tensor.placement_types", PLACEMENTS),
    ("torch.distributed.tensor.placement_types", PLACEMENTS),
    ("torch.distributed.device_mesh", "DeviceMesh _MeshEnv"),
    ("torch.distributed._tensor.device_mesh", "DeviceMesh _MeshEnv"),
    ("torch.distributed._mesh_layout", "_MeshLayout _FlatLayout"),
    ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"),
    ("torch.distributed._shard.sharded_tensor.shard", "Shard"),
    ("torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata TensorProperties MEM_FORMAT_ENCODING"),
    ("torch.distributed._shard.metadata", "ShardMetadata"),
    ("torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec"),
    ("torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"),
    ("torch.distributed.remote_device", "_remote_device"),
    (
        "torch.distributed.checkpoint.metadata",
        "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties StorageMeta
        _MEM_FORMAT_ENCODING MEM_FORMAT_ENCODING",
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix"),
    ("torch.torch_version", "TorchVersion"),
    ("torch.jit._pickle", "build_intlist build_doublelist build_boollist build_tensorlist build_tensor_from_id restore_type_tag"),
    ("numpy", NUMPY),
    ("numpy.core.multiarray", "_reconstruct scalar"),
    ("numpy._core.multiarray", "_reconstruct scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.dtypes", NUMPY_DTYPES),
    ("numpy.ma.core", "_mareconstruct MaskedArray"),
    ("ml_dtypes", "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu int4 uint4"),
    ("scipy.sparse._csr", "csr_matrix csr_array"),
    ("scipy.sparse._csc", "csc_matrix csc_array"),
    ("scipy.sparse._coo", "coo_matrix coo_array"),
    ("scipy.sparse.csr", "csr_matrix"),
    ("scipy.sparse.csc", "csc_matrix"),
    ("scipy.sparse.coo", "coo_matrix"),
];

const SPARSE: &str =
    "BFloat16Tensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor ShortTensor";
const PLACEMENTS: &str = "DTensorSpec TensorMeta Partial _Partial Replicate Shard _StridedShard";
const NUMPY: &str = "ndarray dtype bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 longdouble complex64
    complex128 clongdouble str_ bytes_ void datetime64 timedelta64 intc uintc longlong ulonglong";
const NUMPY_DTYPES: &str = "BoolDType Int8DType Int16DType Int32DType Int64DType UInt8DType UInt16DType UInt32DType UInt64DType
    Float16DType Float32DType Float64DType LongDoubleDType Complex64DType Complex128DType CLongDoubleDType StrDType BytesDType
    VoidDType DateTime64DType TimeDelta64DType ObjectDType";

static SET: LazyLock<HashSet<(&str, &str)>> = LazyLock::new(|| {
    ALLOWED.iter().flat_map(|(module, names)| names.split_whitespace().map(move |name| (*module, name))).collect()
});

/// Whether plain weights need this.
pub(super) fn has(module: &str, name: &str) -> bool {
    SET.contains(&(module, name))
}

/// Whether what a call of this returned has a state that BUILD sets, when it is written by the program that it belongs to.
pub(super) fn has_state(module: &str, name: &str) -> bool {
    let calls_only = [
        "_load_from_bytes",
        "encode",
        "scalar",
        "_get_layout",
        "bytes",
        "str",
        "int",
        "float",
        "bool",
        "complex",
        "slice",
        "range",
        "device",
        "date",
        "time",
        "timezone",
        "dict",
        "list",
        "tuple",
        "frozenset",
        "_frombuffer",
    ];
    // Attributes of torch in small letters are dtypes, layouts and the like.
    let is_value = module == "torch" && name.starts_with(|first: char| first.is_ascii_lowercase());
    !is_value && !calls_only.contains(&name)
}

/// What a call of an allowed class or function takes from the instructions that fill containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fills {
    Dict,
    List,
    Set,
    /// None of them: it is not a container.
    Nothing,
    /// Any of them: a class that is not known.
    Any,
}

/// How what a call of an allowed class or function returned is filled.
pub(super) fn fills(module: &str, name: &str) -> Fills {
    match (module, name) {
        ("collections", "OrderedDict" | "Counter" | "defaultdict") | ("builtins", "dict") => Fills::Dict,
        ("collections", "deque") | ("builtins", "list") => Fills::List,
        ("builtins", "set") => Fills::Set,
        _ => Fills::Nothing,
    }
}

/// What a dict that makes missing values may make them by.
pub(super) fn is_factory(module: &str, name: &str) -> bool {
    match module {
        "builtins" => {
            matches!(name, "list" | "dict" | "int" | "float" | "set" | "str" | "tuple" | "bool" | "bytes" | "frozenset")
        }
        "collections" => matches!(name, "OrderedDict" | "Counter" | "defaultdict" | "deque"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_are_allowed() {
        assert!(has("torch._utils", "_rebuild_tensor_v2"));
        for (module, name) in [
            ("torch", "_utils._rebuild_tensor_v2"),
            ("torch", "os.system"),
            ("torch", "load"),
            ("builtins", "eval"),
            ("Torch", "Size"),
        ] {
            assert!(!has(module, name), "{module}.{name}");
        }
        assert!(ALLOWED.iter().all(|(_, names)| !names.contains('.')));
    }

    #[test]
    fn no_module_stands_twice() {
        let modules: HashSet<&str> = ALLOWED.iter().map(|(module, _)| *module).collect();
        assert_eq!(modules.len(), ALLOWED.len());
    }
}
