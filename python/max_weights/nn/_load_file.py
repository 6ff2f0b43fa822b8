"""`Module.load`: from a checkpoint to a loaded model; and conversion of values, at once or when they are first used."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from max_weights._allocation import LazyCast
from max_weights._checkpoints import tree_of
from max_weights._core import GGUFWeights
from max_weights._devices import is_virtual_device_mode
from max_weights._dtype import DType
from max_weights._load_request import LoadRequest, Rename
from max_weights._quantized_weights import CODES
from max_weights._typing import known
from max_weights._weight_data import WeightData
from max_weights.nn._inspected_value import InspectedValue, Mismatch
from max_weights.nn._load_state import as_mapping, load

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray
    from max_weights._checkpoints import Checkpoint
    from max_weights._load_report import LoadReport
    from max_weights._weights import WeightsAdapter
    from max_weights.graph._weight import Weight
    from max_weights.nn._walk import ModuleNode

_log = logging.getLogger("max_weights.nn")


def load_file(
    root: ModuleNode,
    checkpoint: Checkpoint,
    dtype: DType | str | None,
    rename: Rename | str | None,
    adapter: WeightsAdapter | None,
    strict: bool,
    copy_if_misaligned: bool,
    override_quantization_encoding: bool,
) -> LoadReport:
    """Open, rename, adapt, convert, load; see `Module.load`."""
    target = None if dtype is None else DType(dtype)
    weights = tree_of(checkpoint, "load")
    if target is None or isinstance(weights, GGUFWeights):  # blocks are decoded when they are used
        request = LoadRequest(rename=rename, packed="keep").resolve(weights)
    else:
        request = LoadRequest(rename=rename, dtype=target).resolve(weights)
    nodes = as_mapping(request.node)
    values: Mapping[str, object] = {
        new: nodes[name] for name, new in zip(request.names, request.new_names, strict=True)
    }
    if adapter is not None:
        values = adapter(dict(values))
        if not isinstance(values, Mapping):
            raise TypeError(f"an adapter must return a mapping of names to values, not a {type(values).__name__}")

    def convert(_weight: Weight, value: object) -> object:
        return _decoded(value, target) if target is not None and isinstance(value, WeightData) else value

    return load(
        root,
        values,
        override_quantization_encoding=override_quantization_encoding,
        weight_alignment=None,
        strict=strict,
        copy_if_misaligned=copy_if_misaligned,
        convert=None if target is None else convert,
    )


class Conversions:
    """The conversion of `LayerV2.load_state_dict` to the dtypes of its weights."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[DType, DType]] = Counter()

    def convert(self, weight: Weight, argument: object) -> object:
        """Return a value as the weight's dtype; itself if it has that dtype, is packed, or cannot be converted.

        An invalid value is returned unchanged; the code that examines it next reports the error.
        """
        try:
            value = InspectedValue(argument)
        except Mismatch:
            return argument
        dtype = weight.dtype
        if weight.quantization_encoding or value.encoding is not None or value.dtype is dtype:
            return argument
        if value.dtype.is_float() and not dtype.is_float():
            return argument  # the fractions would be cut off
        if value.dtype in CODES and dtype not in CODES:
            return argument  # codes whose scales may be elsewhere; `load` with a dtype decodes them
        self._counts[value.dtype, dtype] += 1
        if isinstance(argument, WeightData):
            return _cast(argument, dtype)
        memory: DLPackArray | None = value.value.to_buffer() if isinstance(value.value, LazyCast) else value.memory
        # Only what virtual_devices() gives has no memory, and that is a WeightData.
        return _cast(WeightData(known(memory), "", value.dtype, value.shape), dtype)

    def warn(self, model: str) -> None:
        """Log the conversions."""
        if self._counts:
            kinds = ", ".join(f"{count} from {old!r} to {new!r}" for (old, new), count in self._counts.items())
            _log.warning("%s: values were converted to the dtypes of the weights: %s", model, kinds)


def _decoded(data: WeightData, dtype: DType) -> WeightData | LazyCast:
    """Return a weight of a checkpoint as `dtype`, packed ones decoded; integers and bools stay unchanged."""
    encoding = data.quantization_encoding
    convertible = data.dtype.is_float() if encoding is None else encoding.is_gguf
    return _cast(data, dtype) if convertible and (encoding is not None or data.dtype is not dtype) else data


def _cast(data: WeightData, dtype: DType) -> WeightData | LazyCast:
    if is_virtual_device_mode():
        return data.astype(dtype)
    return LazyCast(data, dtype) if data.to_buffer().is_mapped else data.astype(dtype)
