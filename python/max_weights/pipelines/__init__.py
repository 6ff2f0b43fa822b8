# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.pipelines` of MAX."""
