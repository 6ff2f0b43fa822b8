# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.pipelines` of MAX."""

from max_weights._unsupported import unsupported_names as _unsupported

__getattr__ = _unsupported(__name__)
