"""`load_state_dict`: examine every value first, then hand them all over, or none.

Most models take the short way of `plain`, which can only say yes. Otherwise `_Loading` examines one value after the
other; it knows every rule, and can say what is wrong.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any

from max_weights._core import WeightsNode, data_of_all, shown
from max_weights.dtype import DType
from max_weights.nn.load_report import LoadReport, misfit
from max_weights.nn.named_weights import NamedWeights, hand_over
from max_weights.nn.plain import plain
from max_weights.nn.values import Misfit, Value, matches, static_shape
from max_weights.shape import Shape, listed

if TYPE_CHECKING:
    from max_weights.graph.weight import Weight
    from max_weights.nn.walk import ModuleNode
    from max_weights.quantization import QuantizationEncoding
    from max_weights.weights import Weights

_log = logging.getLogger("max_weights.nn")

_ABSENT = object()
# What a weight becomes if its elements are packed otherwise.
_Repacked = tuple[DType, Shape, "QuantizationEncoding | None"]


def load(
    root: ModuleNode,
    state_dict: Mapping[str, Any] | Weights,
    *,
    override_quantization_encoding: bool,
    weight_alignment: int | None,
    strict: bool,
    copy_if_misaligned: bool,
    convert: Callable[[Weight, Any], Any] | None = None,
    ignore_unexpected: bool = False,
) -> LoadReport:
    """Give every weight its value; see `Module.load_state_dict`. `convert` makes another value of each first."""
    given = as_mapping(state_dict)
    align = _power_of_two(weight_alignment)
    named = NamedWeights(root)
    get = given.get if isinstance(given, dict) else _getter(given)
    names, weights = list(named.weights), list(named.weights.values())
    values = list(map(get, names, repeat(_ABSENT)))
    missing: list[str] = []
    if any(map(operator.is_, values, repeat(_ABSENT))):
        missing = [name for name, value in zip(names, values, strict=True) if value is _ABSENT]
    if missing:
        found = dict(zip(names, values, strict=True))
        found.update((name, named.by_other_name(name, get, _ABSENT)) for name in missing)
        found = {name: value for name, value in found.items() if value is not _ABSENT}
        missing = [name for name in missing if name not in found]
        names, values, weights = list(found), list(found.values()), [named.weights[name] for name in found]
    unexpected: list[str] = []
    if not ignore_unexpected and len(values) != len(given):
        known = named.known()
        unexpected = [name for name in given if name not in known]
    loading = _Loading(override_quantization_encoding, align, copy_if_misaligned)
    values = loading.examine_all(weights, values, names, convert)
    report = LoadReport(tuple(missing), tuple(unexpected))
    if loading.problems or (strict and (missing or unexpected)):
        shown = report if strict else LoadReport((), ())
        raise misfit(type(root).__name__, shown, loading.problems)
    _commit(weights, values, names, loading.repacked, align)
    if missing or unexpected:
        parts = [
            f"{len(found)} {what} ({_some(found)})"
            for found, what in ((missing, "weights are missing in it"), (unexpected, "names in it are unexpected"))
            if found
        ]
        _log.warning("%s: the state dict does not fit: %s", type(root).__name__, ", ".join(parts))
    return report


def as_mapping(state_dict: Mapping[str, Any] | Weights) -> Mapping[str, Any]:
    """A checkpoint as {name below this node: weight}; its tensors are made when they are needed."""
    if isinstance(state_dict, Mapping):
        return state_dict
    if not isinstance(state_dict, WeightsNode) and not (
        hasattr(type(state_dict), "items") and hasattr(type(state_dict), "exists")
    ):
        raise TypeError(
            f"a state dict is a mapping of names to values, or a Weights, not a {type(state_dict).__name__}; "
            "Module.load takes paths"
        )
    start = len(state_dict.name) + 1 if state_dict.name else 0
    return {name[start:]: node for name, node in state_dict.items()}


def _getter(given: Mapping[str, Any]) -> Callable[[str, object], Any]:
    def get(name: str, default: object) -> Any:
        try:
            return given[name]
        except KeyError:
            return default

    return get


def _power_of_two(align: int | None) -> int | None:
    if align is not None and (
        isinstance(align, bool) or not isinstance(align, int) or align < 1 or align & (align - 1)
    ):
        raise ValueError(f"weight_alignment is a power of two; found {align!r}")
    return align


class _Loading:
    """The rules, and what was found against them so far."""

    def __init__(self, override_encoding: bool, align: int | None, copy_if_misaligned: bool) -> None:
        self.problems: list[str] = []
        self.repacked: list[tuple[Weight, _Repacked]] = []
        self._override_encoding = override_encoding
        self._align = align
        self._copy_if_misaligned = copy_if_misaligned

    def examine_all(
        self, weights: list[Weight], values: list[Any], names: list[str], convert: Callable[[Weight, Any], Any] | None
    ) -> list[Any]:
        """What is to be stored for each weight."""
        if not values:
            return values
        if nodes := [value for value in values if isinstance(value, WeightsNode)]:
            taken = iter(data_of_all(nodes))  # together, so that tied weights share their memory
            values = [next(taken) if isinstance(value, WeightsNode) else value for value in values]
        if convert is not None:
            values = [convert(weight, value) for weight, value in zip(weights, values, strict=True)]
        stored = plain(weights, values) if self._align is None else None
        if stored is None:
            stored = [self._examine(*one) for one in zip(weights, values, names, strict=True)]
        return stored

    def _examine(self, weight: Weight, given: Any, name: str) -> Any:
        """What is to be stored; or nothing, and one problem more."""
        try:
            value = Value(given)
            if value.encoding is None and weight.quantization_encoding is None:
                self._same(value, weight.dtype, weight.shape)
            else:
                self._packed(weight, value)
            return self._placed(weight, value)
        except Misfit as problem:
            self.problems.append(f"'{shown(name)}': {problem}")
            return None

    def _same(self, value: Value, dtype: DType, shape: Shape) -> None:
        wrong = []
        if value.shape != static_shape(shape) and not matches(shape, value.shape):
            wrong.append(f"the shape is {listed(value.shape)}, declared is {listed(shape)}")
        if value.dtype is not dtype:
            wrong.append(f"the dtype is {value.dtype!r}, declared is {dtype!r}")
        if wrong:
            raise Misfit("; ".join(wrong))

    def _packed(self, weight: Weight, value: Value) -> None:
        """Where elements are packed, or are to be: bytes have another shape than the elements."""
        wanted = weight.quantization_encoding
        original_dtype, original_shape = weight.original_dtype_and_shape
        if not value.declared:
            # An array does not say how it is packed: it has to be what the weight has become, or its bytes.
            if wanted is not None and wanted.is_gguf and value.dtype is DType.uint8 and value.shape:
                blocks, rest = divmod(value.shape[-1], wanted.block_size)
                if not rest and not matches(weight.shape, value.shape):
                    value.logical = (*value.shape[:-1], blocks * wanted.elements_per_block)
                    if matches(original_shape, value.logical):
                        self.repacked.append((weight, (DType.uint8, Shape(value.shape), wanted)))
                        return
            self._same(value, DType.uint8 if weight.dtype is not DType.uint8 else weight.dtype, weight.shape)
            if weight.dtype is not DType.uint8:
                self.repacked.append((weight, (DType.uint8, Shape(value.shape), wanted)))
            return
        if value.encoding is not wanted and not self._override_encoding:
            found, declared = ("none" if one is None else one.value for one in (value.encoding, wanted))
            raise Misfit(
                f"the quantization encoding is {found}, declared is {declared}; "
                "override_quantization_encoding=True takes that of the value"
            )
        elements = value.shape if value.logical is None else value.logical
        known = value.encoding is None or value.encoding.is_gguf
        if known and not any(
            matches(shape, found) for shape in (original_shape, weight.shape) for found in (elements, value.shape)
        ):
            packed = f" ({listed(value.shape)} in bytes)" if value.encoding is not None else ""
            raise Misfit(f"the shape is {listed(elements)}{packed}, declared is {listed(original_shape)}")
        if value.encoding is None and not (wanted is not None and original_dtype is DType.uint8):
            self._same(value, original_dtype, original_shape)
        self.repacked.append((weight, (value.dtype, Shape(value.shape), value.encoding)))

    def _placed(self, weight: Weight, value: Value) -> Any:
        """The value to store: contiguous and aligned."""
        if not value.contiguous:
            raise Misfit(
                "the value is not contiguous; copy it first (numpy.ascontiguousarray, or `.contiguous()` of a tensor)"
            )
        align = self._align or weight.align or value.dtype.align
        beyond = value.misalignment(align)
        if not beyond:
            return value.stored
        if self._copy_if_misaligned:
            return value.aligned_copy(align)
        raise Misfit(
            f"the data lies {beyond} bytes beyond a multiple of {align}; copy_if_misaligned=True copies such values, "
            "weight_alignment=1 takes them as they are"
        )


def _commit(
    weights: list[Weight],
    values: list[Any],
    names: list[str],
    repacked: list[tuple[Weight, _Repacked]],
    align: int | None,
) -> None:
    """Hand everything over, or, if an interrupt comes in between, nothing."""
    if align is None and not repacked:
        hand_over(weights, values, names)
        return

    def change() -> None:
        for weight, (dtype, shape, encoding) in repacked:
            if weight.dtype is not dtype:
                weight.dtype = dtype
            if weight.shape != shape:
                weight.shape = shape
            weight.quantization_encoding = encoding
        if align is not None:
            for weight in weights:
                weight.align = align

    hand_over(weights, values, names, change)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(map(shown, listed[:5])) + (", ..." if len(listed) > 5 else "")
