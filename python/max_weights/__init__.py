"""Load, inspect, convert and save model checkpoints, quickly and safely.

>>> import max_weights
>>> weights = max_weights.load_weights("model.safetensors")
>>> weights.model.layers[0].self_attn.q_proj.weight.data()

No framework, not even NumPy, is imported before it is needed.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights import driver, graph, jax, nn, numpy, safetensors, sharding, torch
    from max_weights._benching import BenchResult, bench
    from max_weights._buffer import Buffer
    from max_weights._checking import InvalidCheckpointError, Report, assert_checkpoint_ok, validate
    from max_weights._checkpoints import infos
    from max_weights._core import (
        __version__,
        set_threads,
    )
    from max_weights._devices import DeviceRef, virtual_devices
    from max_weights._difference import Difference, diff
    from max_weights._dropin import patch, patched, unpatch
    from max_weights._dtype import DType, finfo
    from max_weights._expected_config import expectation_of_config
    from max_weights._fingerprint import fingerprint
    from max_weights._fingerprint_cache import release_memory
    from max_weights._lazy import lazy_state_dict
    from max_weights._loading import load_ranks
    from max_weights._planning import plan
    from max_weights._quantization import dequantize, quantize, scale_blocks
    from max_weights._quantized_weights import quantized
    from max_weights._renaming import renamed
    from max_weights._resharding import reshard, reshard_plan
    from max_weights._saving import SafetensorsWriter, save_file, save_sharded
    from max_weights._saving_gguf import save_gguf
    from max_weights._versions import show_versions
    from max_weights._weight_data import WeightData
    from max_weights._weight_statistics import stats
    from max_weights._weights import (
        GGUFWeights,
        PytorchWeights,
        SafetensorWeights,
        Weights,
        WeightsFormat,
        WeightsNode,
        load_weights,
        weights_format,
    )
    from max_weights.errors import (
        ClosedError,
        DeviceError,
        FileChangedError,
        FormatError,
        MissingFileError,
        UnsupportedError,
        WeightNotFoundError,
        WeightsError,
    )

__all__ = [
    "BenchResult",
    "Buffer",
    "ClosedError",
    "DType",
    "DeviceError",
    "DeviceRef",
    "Difference",
    "FileChangedError",
    "FormatError",
    "GGUFWeights",
    "InvalidCheckpointError",
    "MissingFileError",
    "PytorchWeights",
    "Report",
    "SafetensorWeights",
    "SafetensorsWriter",
    "UnsupportedError",
    "WeightData",
    "WeightNotFoundError",
    "Weights",
    "WeightsError",
    "WeightsFormat",
    "WeightsNode",
    "__version__",
    "assert_checkpoint_ok",
    "bench",
    "dequantize",
    "diff",
    "driver",
    "expectation_of_config",
    "finfo",
    "fingerprint",
    "graph",
    "infos",
    "jax",
    "lazy_state_dict",
    "load_ranks",
    "load_weights",
    "nn",
    "numpy",
    "patch",
    "patched",
    "plan",
    "quantize",
    "quantized",
    "release_memory",
    "renamed",
    "reshard",
    "reshard_plan",
    "safetensors",
    "save_file",
    "save_gguf",
    "save_sharded",
    "scale_blocks",
    "set_threads",
    "sharding",
    "show_versions",
    "stats",
    "torch",
    "unpatch",
    "validate",
    "virtual_devices",
    "weights_format",
]

# Where each name lives. A name is imported when it is first used, so that `import max_weights` costs next to nothing.
# The imports above repeat this for people and type checkers; a test compares the two.
_HOMES = {
    "BenchResult": "max_weights._benching",
    "Buffer": "max_weights._buffer",
    "ClosedError": "max_weights.errors",
    "DType": "max_weights.dtype",
    "DeviceError": "max_weights.errors",
    "DeviceRef": "max_weights.devices",
    "Difference": "max_weights._difference",
    "FileChangedError": "max_weights.errors",
    "FormatError": "max_weights.errors",
    "GGUFWeights": "max_weights._weights",
    "InvalidCheckpointError": "max_weights._checking",
    "MissingFileError": "max_weights.errors",
    "PytorchWeights": "max_weights._weights",
    "Report": "max_weights._checking",
    "SafetensorWeights": "max_weights._weights",
    "SafetensorsWriter": "max_weights._saving",
    "UnsupportedError": "max_weights.errors",
    "WeightData": "max_weights._weight_data",
    "WeightNotFoundError": "max_weights.errors",
    "Weights": "max_weights._weights",
    "WeightsError": "max_weights.errors",
    "WeightsFormat": "max_weights._weights",
    "WeightsNode": "max_weights._weights",
    "__version__": "max_weights._core",
    "assert_checkpoint_ok": "max_weights._checking",
    "bench": "max_weights._benching",
    "dequantize": "max_weights.quantization",
    "diff": "max_weights._difference",
    "driver": "max_weights.driver",
    "expectation_of_config": "max_weights._expected_config",
    "fingerprint": "max_weights._fingerprint",
    "finfo": "max_weights.dtype",
    "graph": "max_weights.graph",
    "infos": "max_weights._checkpoints",
    "jax": "max_weights.jax",
    "lazy_state_dict": "max_weights._lazy",
    "load_ranks": "max_weights._loading",
    "load_weights": "max_weights._weights",
    "nn": "max_weights.nn",
    "numpy": "max_weights.numpy",
    "patch": "max_weights._dropin",
    "patched": "max_weights._dropin",
    "plan": "max_weights._planning",
    "quantize": "max_weights.quantization",
    "quantized": "max_weights._quantized_weights",
    "release_memory": "max_weights._fingerprint_cache",
    "renamed": "max_weights._renaming",
    "reshard": "max_weights._resharding",
    "reshard_plan": "max_weights._resharding",
    "safetensors": "max_weights.safetensors",
    "save_file": "max_weights._saving",
    "save_gguf": "max_weights._saving_gguf",
    "save_sharded": "max_weights._saving",
    "scale_blocks": "max_weights.quantization",
    "set_threads": "max_weights._core",
    "sharding": "max_weights.sharding",
    "show_versions": "max_weights._versions",
    "stats": "max_weights._weight_statistics",
    "torch": "max_weights.torch",
    "unpatch": "max_weights._dropin",
    "validate": "max_weights._checking",
    "virtual_devices": "max_weights.devices",
    "weights_format": "max_weights._weights",
}
# The other modules, which are there without an import of their own, too.
_MODULES = (
    "conversion",
    "delta",
    "devices",
    "dtype",
    "engine",
    "errors",
    "integrations",
    "pipelines",
    "quantization",
    "remote",
    "tasks",
    "types",
)
# What is looked for here, and where it is.
_ELSEWHERE = {
    "digests": "it is max_weights.fingerprint(checkpoint, digests=True).digests",
    "verify_checksums": "it is max_weights.fingerprint(checkpoint, checksums=True)",
    "load_file": "max_weights.torch, .numpy and .jax have it, for the tensors of each",
    "load_into": "it is max_weights.torch.load_into",
    "load_state_dict": "max_weights.torch.load_into fills a module of torch, the load_state_dict of max_weights.nn "
    "modules those",
    "load_model": "it is max_weights.safetensors.torch.load_model; max_weights.torch.load_into fills a module, too",
    "load": "max_weights.load_weights opens a checkpoint, max_weights.torch.load is for files of torch.save",
    "save": "it is the method weights.save; max_weights.save_file, save_sharded and save_gguf save tensors",
    "safe_open": "it is max_weights.safetensors.safe_open; max_weights.load_weights opens every format",
    "open": "it is max_weights.load_weights",
    "stream": "it is the method weights.stream, of what max_weights.load_weights gives",
    "convert": "it is the method weights.save, or the command max-weights convert",
    "verify_loaded": "it is max_weights.torch.verify_loaded",
    "to_onnx": "weights alone are no model: max_weights.graph.onnx.save writes a max_weights.graph.Graph",
    "Remote": "it is max_weights.remote.Remote",
    "ReadOptions": "it is max_weights.types.ReadOptions",
    "Shard": "it is max_weights.sharding.Shard",
}


def __getattr__(name: str) -> object:
    home = f"{__name__}.{name}" if name in _MODULES else _HOMES.get(name)
    if home is None:
        where = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
    try:
        __import__(home)
    except ModuleNotFoundError as error:  # `hasattr` asks whether it is there, and does not ask for this error
        raise AttributeError(f"module {__name__!r} has {name!r} only with its library: {error}") from error
    module = sys.modules[home]
    value: object = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*_HOMES, *_MODULES, *globals()})
