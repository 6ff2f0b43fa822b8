"""`Sequential`: layers that are called one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from max_weights.nn.hooks import Layer
from max_weights.nn.layer_list import LayerList

__all__ = ["Sequential"]


class Sequential(LayerList):
    """Layers in a list, each called with what the one before returned. The names below are `0.weight`, as in torch.

    Args:
        layers: The layers, as a list or one by one.
    """

    def __init__(self, *layers: Layer | Iterable[Layer]) -> None:
        one = layers[0] if len(layers) == 1 else layers
        super().__init__(one if isinstance(one, Iterable) and not isinstance(one, Sequential) else layers)  # type: ignore[arg-type]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first layer with the arguments, and each further one with the outputs of the one before."""
        if not self:
            raise ValueError("a Sequential without layers has nothing to call")
        first, *rest = self
        outputs = first(*args, **kwargs)
        for layer in rest:
            outputs = layer(outputs)
        return outputs
