"""The views that notebooks show of the compiled classes: trees, listings, the metadata of GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max_weights._core import Metadata, WeightInfo, WeightInfos
from max_weights._html import count, frame, properties, table, view

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["html_of"]


def html_of(value: object, content: Any = None) -> str:
    """Return the HTML of a tree, a listing, a record of one, or metadata, for `_repr_html_`."""
    if isinstance(value, WeightInfos):
        return _listing(value)
    if isinstance(value, WeightInfo):
        return _record(value)
    if isinstance(value, Metadata):
        return _metadata(value, content)
    return frame(content)


def _listing(infos: WeightInfos) -> str:
    columns = ("name", "dtype", "shape", "bytes", "offset")
    rows = ((info.name, _type(info), info.shape, info.bytes, info.offset) for info in infos)
    code, numbers = columns[:3], columns[3:]
    shown = table(columns, rows, total=len(infos), numbers=numbers, code=code)
    return view("WeightInfos", count(len(infos), "weight"), shown)


def _record(info: WeightInfo) -> str:
    facts = [
        ("dtype", _type(info)),
        ("shape", info.shape),
        ("elements", None if info.encoding is None else info.logical_shape),
        ("bytes", info.bytes),
        ("file", info.file),
        ("offset", info.offset),
        ("aligned", None if info.aligned else "no"),
    ]
    return view(info.name, f"{_type(info)} {list(info.logical_shape)}", properties(facts))


def _type(info: WeightInfo) -> str:
    """Return the type of the elements: an encoding of blocks, a dtype, or the file's own name of an unknown type."""
    return str(getattr(info.dtype, "name", info.dtype)) if info.encoding is None else info.encoding.value


def _metadata(metadata: Metadata, first: Sequence[tuple[str, str]]) -> str:
    rows = table(("key", "value"), first, total=len(metadata), code=("key",), long=("value",))
    return view("metadata", count(len(metadata), "key"), rows)
