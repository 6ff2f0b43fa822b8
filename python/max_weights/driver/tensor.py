# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.driver.tensor` of MAX."""

from max_weights._buffer import DLPackArray

__all__ = ["DLPackArray"]
