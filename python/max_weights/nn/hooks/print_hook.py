# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.hooks.print_hook` of MAX."""

from max_weights.nn._print_hook import PrintHook

__all__ = ["PrintHook"]
