"""Load, inspect, convert and save model checkpoints, quickly and safely.

>>> import max_weights
>>> weights = max_weights.load_weights("model.safetensors")
>>> weights.model.layers[0].self_attn.q_proj.weight.data()

No framework, not even NumPy, is imported before it is needed.
"""

from max_weights._facade import facade as _facade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights import (
        conversion,
        delta,
        driver,
        dtype,
        engine,
        errors,
        graph,
        integrations,
        jax,
        nn,
        numpy,
        pipelines,
        remote,
        safetensors,
        sharding,
        tasks,
        torch,
        types,
    )
    from max_weights._benching import BenchResult, bench
    from max_weights._buffer import Buffer
    from max_weights._checking import InvalidCheckpointError, Report, assert_checkpoint_ok, validate
    from max_weights._checkpoints import Checkpoint, infos
    from max_weights._core import (
        __version__,
        set_threads,
    )
    from max_weights._devices import DeviceRef
    from max_weights._difference import Difference, diff
    from max_weights._dropin import patch, patched, unpatch
    from max_weights._dtype import DType
    from max_weights._fingerprint import fingerprint
    from max_weights._fingerprint_cache import release_memory
    from max_weights._lazy import lazy_state_dict
    from max_weights._loading import load_ranks
    from max_weights._planning import plan
    from max_weights._quantization import dequantize, dequantize_groups, quantize, scale_blocks
    from max_weights._quantized_weights import quantized
    from max_weights._read_options import ReadOptions
    from max_weights._remote import Remote
    from max_weights._renaming import renamed
    from max_weights._resharding import reshard
    from max_weights._result import Finding, Result
    from max_weights._rows import table
    from max_weights._saving import SafetensorsWriter, save, save_file, save_gguf, save_sharded
    from max_weights._torch_verbs import load_file, load_into, verify_loaded
    from max_weights._versions import show_versions
    from max_weights._weight_data import WeightData
    from max_weights._weight_statistics import stats
    from max_weights._weights import WeightsNode, load_weights
    from max_weights._weights_protocol import Weights
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

del TYPE_CHECKING

# Written by tools/surface.py from the imports above: run it after each change of them.
# fmt: off
__all__ = [
    "BenchResult", "Buffer", "Checkpoint", "ClosedError", "DType", "DeviceError", "DeviceRef", "Difference",
    "FileChangedError", "Finding", "FormatError", "InvalidCheckpointError", "MissingFileError", "ReadOptions", "Remote",
    "Report", "Result", "SafetensorsWriter", "UnsupportedError", "WeightData", "WeightNotFoundError", "Weights",
    "WeightsError", "WeightsNode", "__version__", "assert_checkpoint_ok", "bench", "conversion", "delta", "dequantize",
    "dequantize_groups", "diff", "driver", "dtype", "engine", "errors", "fingerprint", "graph", "infos", "integrations",
    "jax", "lazy_state_dict", "load_file", "load_into", "load_ranks", "load_weights", "nn", "numpy", "patch", "patched",
    "pipelines", "plan", "quantize", "quantized", "release_memory", "remote", "renamed", "reshard", "safetensors",
    "save", "save_file", "save_gguf", "save_sharded", "scale_blocks", "set_threads", "sharding", "show_versions",
    "stats", "table", "tasks", "torch", "types", "unpatch", "validate", "verify_loaded",
]
_NAMES = {
    "": """conversion delta driver dtype engine errors graph integrations jax nn numpy pipelines remote safetensors
    sharding tasks torch types""",
    "_benching": "BenchResult bench",
    "_buffer": "Buffer",
    "_checking": "InvalidCheckpointError Report assert_checkpoint_ok validate",
    "_checkpoints": "Checkpoint infos",
    "_core": "__version__ set_threads",
    "_devices": "DeviceRef",
    "_difference": "Difference diff",
    "_dropin": "patch patched unpatch",
    "_dtype": "DType",
    "_fingerprint": "fingerprint",
    "_fingerprint_cache": "release_memory",
    "_lazy": "lazy_state_dict",
    "_loading": "load_ranks",
    "_planning": "plan",
    "_quantization": "dequantize dequantize_groups quantize scale_blocks",
    "_quantized_weights": "quantized",
    "_read_options": "ReadOptions",
    "_remote": "Remote",
    "_renaming": "renamed",
    "_resharding": "reshard",
    "_result": "Finding Result",
    "_rows": "table",
    "_saving": "SafetensorsWriter save save_file save_gguf save_sharded",
    "_torch_verbs": "load_file load_into verify_loaded",
    "_versions": "show_versions",
    "_weight_data": "WeightData",
    "_weight_statistics": "stats",
    "_weights": "WeightsNode load_weights",
    "_weights_protocol": "Weights",
    "errors": """ClosedError DeviceError FileChangedError FormatError MissingFileError UnsupportedError
    WeightNotFoundError WeightsError""",
}
# fmt: on
# Where a name is that users look for here.
_ELSEWHERE = {
    "digests": "it is fingerprint(checkpoint, digests=True).digests",
    "verify_checksums": "it is fingerprint(checkpoint, checksums=True)",
    "reshard_plan": "it is reshard(..., plan_only=True)",
    "aliases": "it is infos(checkpoint).aliases",
    "objects": "it is infos(checkpoint).objects",
    "warnings": "it is infos(checkpoint).warnings",
    "load_state_dict": "load_into fills a module of torch, the load_state_dict of max_weights.nn modules those",
    "load_model": "it is max_weights.safetensors.torch.load_model; load_into fills a module, too",
    "load": "load_weights opens a checkpoint, load_file loads one, max_weights.torch.load is for files of torch.save",
    "safe_open": "it is max_weights.safetensors.safe_open; load_weights opens every format",
    "open": "it is load_weights",
    "stream": "it is the method weights.stream, of what load_weights gives",
    "convert": "it is save, or the command max-weights convert",
    "to_onnx": "weights alone are no model: max_weights.graph.onnx.save writes a max_weights.graph.Graph",
    "Shard": "it is max_weights.sharding.Shard",
    "GraphError": "it is max_weights.graph.GraphError",
}


def _elsewhere(name: str) -> object:
    where = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")


__getattr__, __dir__ = _facade(__name__, _NAMES, _elsewhere)
