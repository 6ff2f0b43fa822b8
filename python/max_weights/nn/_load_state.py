"""`load_state_dict`: examines every value first, then hands over all of them, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max_weights._core import WeightsNode, data_of_all, escape
from max_weights._dtype import DType
from max_weights._load_report import LoadReport, mismatch_error
from max_weights._shape import Shape, listed, matches
from max_weights._transaction import Transaction
from max_weights.nn._inspected_value import InspectedValue, Mismatch
from max_weights.nn._named_weights import NamedWeights, keep_weights

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray
    from max_weights._quantization import QuantizationEncoding
    from max_weights._weights_protocol import Weights
    from max_weights.graph._weight import Weight
    from max_weights.nn._walk import ModuleNode

_log = logging.getLogger("max_weights.nn")

_ABSENT = object()


def load(
    root: ModuleNode,
    state_dict: Mapping[str, object] | Weights,
    *,
    override_quantization_encoding: bool,
    weight_alignment: int | None,
    strict: bool,
    copy_if_misaligned: bool,
    convert: Callable[[Weight, Any], object] | None = None,
    ignore_unexpected: bool = False,
) -> LoadReport:
    """Give every weight its value; see `Module.load_state_dict`. `convert` is applied to each value first."""
    state = as_mapping(state_dict)
    rules = _Rules(override_quantization_encoding, _power_of_two(weight_alignment), copy_if_misaligned)
    named = NamedWeights(root)
    values = {name: state.get(name, _ABSENT) for name in named.weights}
    absent = [name for name, value in values.items() if value is _ABSENT]
    for name in absent:
        values[name] = named.by_other_name(name, state, _ABSENT)
    missing = tuple(name for name in absent if values[name] is _ABSENT)
    for name in missing:
        del values[name]
    known_names = named.known_names()
    unexpected = () if ignore_unexpected else tuple(name for name in state if name not in known_names)
    report = LoadReport(missing, unexpected, loaded=tuple(values))
    _take_tensors(values)
    stored: dict[str, DLPackArray | None] = {}
    problems: list[str] = []
    for name, value in values.items():
        weight = named.weights[name]
        try:
            stored[name] = rules.examine(weight, value if convert is None else convert(weight, value))
        except Mismatch as problem:
            problems.append(f"'{escape(name)}': {problem}")
    if problems or (strict and (missing or unexpected)):
        what = f"the state dict does not fit {type(root).__name__}, and nothing in it was changed"
        names = (missing, unexpected) if strict else ((), ())
        raise mismatch_error(what, *names, problems, "strict=False takes what fits, and reports the rest")
    if missing or unexpected:
        _log.warning("%s: the state dict does not fit: %s", type(root).__name__, _in_short(report))
    changed = [packing.weight for packing in rules.packings] if rules.align is None else named.weights.values()
    with Transaction() as transaction:
        keep_weights(transaction, named.weights.values(), changed)
        for packing in rules.packings:
            packing.apply()
        for name, value in stored.items():
            weight = named.weights[name]
            if rules.align is not None:
                weight.align = rules.align
            weight.load(value, name)
    return report


def as_mapping(state_dict: Mapping[str, object] | Weights) -> Mapping[str, object]:
    """Return a checkpoint as {name below this node: weight}; its tensors are created when they are needed."""
    if isinstance(state_dict, Mapping):
        return state_dict
    if not isinstance(state_dict, WeightsNode) and not (
        hasattr(type(state_dict), "items") and hasattr(type(state_dict), "exists")
    ):
        raise TypeError(
            f"a state dict must be a mapping of names to values, or a Weights, not a {type(state_dict).__name__}; use "
            "Module.load for paths"
        )
    start = len(state_dict.name) + 1 if state_dict.name else 0
    return {name[start:]: node for name, node in state_dict.items()}


def _take_tensors(values: dict[str, Any]) -> None:
    """Replace weights of checkpoints by their tensors, created together so that tied ones share their memory."""
    kinds = {kind for kind in set(map(type, values.values())) if hasattr(kind, "allocate")}
    nodes = {name: value for name, value in values.items() if type(value) in kinds}
    ours = {name: node for name, node in nodes.items() if isinstance(node, WeightsNode)}
    values.update(zip(ours, data_of_all(list(ours.values())), strict=True))
    values.update((name, node.data()) for name, node in nodes.items() if name not in ours)


def _power_of_two(align: int | None) -> int | None:
    if align is not None and (
        isinstance(align, bool) or not isinstance(align, int) or align < 1 or align & (align - 1)
    ):
        raise ValueError(f"weight_alignment must be a power of two; found {align!r}")
    return align


@dataclass(frozen=True)
class _Packing:
    """The new state of a weight whose elements become packed, or are no longer packed."""

    weight: Weight
    dtype: DType
    shape: Shape
    encoding: QuantizationEncoding | None
    original: tuple[DType, Shape] | None = None
    """The new `original_dtype_and_shape`; `None` to keep it."""

    def apply(self) -> None:
        """Set the new state. Attributes with the right value are not set, because a graph may have fixed them."""
        if self.weight.dtype is not self.dtype:
            self.weight.dtype = self.dtype
        if self.weight.shape != self.shape:
            self.weight.shape = self.shape
        self.weight.quantization_encoding = self.encoding
        if self.original is not None:
            self.weight.original_dtype_and_shape = self.original


class _Rules:
    """The rules for values that a weight accepts."""

    def __init__(self, override_encoding: bool, align: int | None, copy_if_misaligned: bool) -> None:
        self._override_encoding = override_encoding
        self._copy_if_misaligned = copy_if_misaligned
        self.align = align
        self.packings: list[_Packing] = []
        """The changes to weights, apart from their values."""

    def examine(self, weight: Weight, argument: object) -> DLPackArray | None:
        """Return the object that the weight is to hold; raise Mismatch with the reason if there is none."""
        value = InspectedValue(argument)
        if weight.quantization_encoding is None and value.encoding is None:
            _require_same(value, weight.dtype, weight.shape)
        else:
            self.packings.append(self._packing(weight, value))
        if not value.is_contiguous:
            raise _not_contiguous()
        align = self.align or weight.align
        return value.value if align is None and value.is_aligned else self._aligned(value, align or value.dtype.align)

    def _aligned(self, value: InspectedValue, align: int) -> DLPackArray | None:
        beyond = value.misalignment(align)
        if not beyond:
            return value.value
        if self._copy_if_misaligned:
            return value.aligned_copy(align)
        raise Mismatch(
            f"the data is {beyond} bytes past a multiple of {align}; copy_if_misaligned=True copies such values, "
            "weight_alignment=1 takes them unchanged"
        )

    def _packing(self, weight: Weight, value: InspectedValue) -> _Packing:
        encoding = self._encoding(weight, value)
        original = None
        if encoding is None and weight.quantization_encoding is None:
            _require_same(value, weight.dtype, weight.shape)
        elif encoding is None:
            _require_same(value, *weight.original_dtype_and_shape)
        elif encoding.is_gguf:
            _require_blocks(value, encoding, weight)
        else:
            if weight.dtype is not DType.uint8:  # otherwise the weight accepts whatever comes
                _require_same(value, *weight.original_dtype_and_shape)
            if not value.is_contiguous:
                raise _not_contiguous()
            original = value.dtype, value.shape
            value.take_as_bytes()
        return _Packing(weight, value.dtype, value.shape, encoding, original)

    def _encoding(self, weight: Weight, value: InspectedValue) -> QuantizationEncoding | None:
        """Return how the weight's elements are to be packed."""
        declared, encoding_of_value = weight.quantization_encoding, value.encoding
        if encoding_of_value is declared:
            return declared
        if encoding_of_value is None and declared is not None and (value.dtype is DType.uint8 or not declared.is_gguf):
            return declared  # bytes without an encoding
        if self._override_encoding:
            return encoding_of_value
        if declared is None and value.dtype is weight.dtype and matches(weight.shape, value.shape):
            return None  # the weight was declared as these bytes
        names = ("none" if encoding is None else encoding.value for encoding in (encoding_of_value, declared))
        decoding = ", and Module.load(path, dtype) decodes it" if declared is None else ""
        raise Mismatch(
            "the quantization encoding is {}, declared is {}; override_quantization_encoding=True uses that of the "
            "value"
            "{}".format(*names, decoding)
        )


def _require_same(value: InspectedValue, dtype: DType, shape: Shape) -> None:
    # As lists, because most of their dimensions are the same objects.
    fits = list.__eq__(value.shape, shape) or matches(shape, value.shape)
    if not fits and value.is_weight_data:
        # Files disagree about whether a scale is a scalar.
        fits = [] in (shape, value.shape) and [1] in (shape, value.shape)
    if fits and value.dtype is dtype:
        return
    wrong = [] if fits else [f"the shape is {listed(value.shape)}, declared is {listed(shape)}"]
    if value.dtype is not dtype:
        wrong.append(f"the dtype is {value.dtype!r}, declared is {dtype!r}")
    raise Mismatch("; ".join(wrong))


def _require_blocks(value: InspectedValue, encoding: QuantizationEncoding, weight: Weight) -> None:
    """Refuse incomplete blocks, and a number of elements other than that of a weight that was declared in elements."""
    if value.dtype is not DType.uint8:
        raise Mismatch(f"the dtype is {value.dtype!r}, but blocks of {encoding.value} are uint8 bytes")
    if (value.shape.static_dims or [1])[-1] % encoding.block_size:
        raise Mismatch(
            f"the shape is {listed(value.shape)}, but a block of {encoding.value} is {encoding.block_size} bytes"
        )
    original_dtype, original_shape = weight.original_dtype_and_shape
    if original_dtype is DType.uint8:
        return  # declared as bytes, which may be of any number
    elements = encoding.logical_shape(value.shape)
    in_bytes = weight.dtype is DType.uint8 and matches(weight.shape, value.shape)
    if not in_bytes and not matches(original_shape, elements):
        raise Mismatch(
            f"the shape is {listed(elements)} ({listed(value.shape)} in bytes), declared is {listed(original_shape)}"
        )


def _not_contiguous() -> Mismatch:
    return Mismatch(
        "the value is not contiguous; copy it first (numpy.ascontiguousarray, or `.contiguous()` of a tensor)"
    )


def _in_short(report: LoadReport) -> str:
    kinds = (report.missing, "weights are missing in it"), (report.unexpected, "names in it are unexpected")
    return ", ".join(
        f"{len(names)} {what} ({', '.join(map(escape, names[:5]))}{', ...' if len(names) > 5 else ''})"
        for names, what in kinds
        if names
    )
