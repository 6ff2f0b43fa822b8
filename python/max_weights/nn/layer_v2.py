"""`LayerV2`: the module of an earlier version of the documents, which takes more than it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from max_weights.nn.load_state import load
from max_weights.nn.module import Module

if TYPE_CHECKING:
    from max_weights.graph.weight import Weight
    from max_weights.nn.load_report import LoadReport
    from max_weights.weights import Weights

__all__ = ["LayerV2"]


class LayerV2(Module):
    """A `Module` whose `load_state_dict` ignores names that it does not know, and converts values to the dtypes of its
    weights.
    """

    def load_state_dict(  # type: ignore[override] # one signature stands for both of the base class's
        self,
        state_dict: Mapping[str, Any] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: bool = True,
        copy_if_misaligned: bool = False,
    ) -> LoadReport | None:
        """Give every weight its value, converted to the weight's dtype: all of them, or none.

        What lies in a mapped file is converted when it is first used, everything else now. Packed weights are not
        converted. The arguments are those of `Module.load_state_dict`.

        Raises:
            ValueError: a weight is missing in `state_dict` (unless `strict` is false), or a value does not fit.
        """
        report = load(
            self,
            state_dict,
            override_quantization_encoding=override_quantization_encoding,
            weight_alignment=weight_alignment,
            strict=strict,
            copy_if_misaligned=copy_if_misaligned,
            convert=_converted,
            ignore_unexpected=True,
        )
        return None if strict else report


def _converted(weight: Weight, value: Any) -> Any:
    from max_weights.nn.convert import converted

    return value if weight.quantization_encoding is not None else converted(value, weight.dtype)
