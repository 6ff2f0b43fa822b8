# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.weights.load` of MAX."""

from max_weights._weights import load_weights

__all__ = ["load_weights"]
