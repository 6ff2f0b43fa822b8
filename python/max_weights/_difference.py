"""`diff`: the differences between two checkpoints, each of any format."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._core import WeightsNode, difference_of, open_weights, shown
from max_weights._finding import Finding
from max_weights._html import count
from max_weights._progress import progress_of
from max_weights._result import Result
from max_weights.errors import FormatError

if TYPE_CHECKING:
    from max_weights._finding import ComparedValues
    from max_weights._progress import Progress
    from max_weights._typing import JSONObject

__all__ = ["Difference", "diff"]

# The rules that a delta without its base breaks.
_OF_DELTAS = ("delta.alone", "index.delta")


@dataclass(frozen=True, repr=False)
class Difference(Result):
    """The differences between two checkpoints; ok if there are none, and everything could be compared.

    Kinds of findings, in this order: "removed" (only the first checkpoint has the weight), "added" (only the second),
    "renamed" (both have it, byte for byte, the second as `other`), "changed" (first those whose `shapes` differ, then
    the others by the largest difference in `values`; or by their `dtypes`), "not compared" and "metadata" (whose name
    is the key).
    """

    findings: tuple[Finding, ...]
    same: int
    """The number of weights that are equal byte for byte."""
    close: int
    """The number of weights whose bytes differ, but only within the tolerances, or for the same numbers."""
    metadata: dict[str, tuple[str | None, str | None]]
    """{key: the values on both sides, cut short if they are long} of metadata that differs."""

    def _summary(self) -> str:
        counts = {"the same": self.same, "close": self.close, **Counter(finding.kind for finding in self.findings)}
        return ", ".join(f"{number:,} {what}" for what, number in counts.items())


def diff(
    a: WeightsNode | str | os.PathLike[str],
    b: WeightsNode | str | os.PathLike[str],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    exact: bool = False,
    values: bool = True,
    dtypes: bool = True,
    metadata: bool = True,
    progress: Progress | bool | None = None,
) -> Difference:
    """Compare two checkpoints: names, dtypes, shapes, values, metadata.

    Both are read in pieces, on all cores, in bounded memory. Packed blocks are compared by their decoded values. Trees
    are compared whole and by their own names: `diff(renamed(load_weights("model.gguf"), "hf"), "model.safetensors")`.

    Args:
        a: A tree of weights, or anything that `load_weights` opens.
        b: What to compare it with. The path of a delta, or of a folder of them, is what it makes of the path `a`.
        rtol: Values may differ by `atol + rtol * |b|`, as with `numpy.allclose`.
        atol: See `rtol`.
        exact: Compare bytes instead of numbers: -0.0 differs from 0.0.
        values: Compare values; otherwise only the headers are compared.
        dtypes: Whether another dtype counts as a difference if the values are the same.
        metadata: Whether metadata is compared; it never is between two different formats.
        progress: True for a bar on standard error or in a notebook, or a function of the bytes done and the total.

    Returns:
        The differences; true if there are none: `assert max_weights.diff(a, b)`.
    """
    report, finish = progress_of(progress)
    try:
        text = difference_of(
            _opened(a),
            _opened(b, None if isinstance(a, WeightsNode) else a),
            rtol=rtol,
            atol=atol,
            exact=exact,
            values=values,
            dtypes=dtypes,
            metadata=metadata,
            progress=report,
        )
    finally:
        finish()
    data: JSONObject = json.loads(text)
    metadata = {change["key"]: (change["a"], change["b"]) for change in data["metadata"]}
    return Difference(tuple(_findings(data)), data["same"], data["close"], metadata)


def _opened(weights: WeightsNode | str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> WeightsNode:
    if isinstance(weights, WeightsNode):
        return weights
    try:
        return open_weights([weights], strict=False)
    except (FormatError, OSError) as error:
        is_delta = isinstance(error, FormatError) and error.rule in _OF_DELTAS
        if base is None or not (is_delta or _may_be_folder(weights)):
            raise
        try:
            return open_weights([base, weights], strict=False)
        except (FormatError, OSError) as together:
            raise together if is_delta else error from None


def _may_be_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path may be that of a folder of deltas, which is nothing by itself."""
    return os.path.isdir(path) or "://" in os.fspath(path)


def _findings(data: JSONObject) -> Iterator[Finding]:
    for kind, side in ("removed", "first"), ("added", "second"):
        for one in data[kind]:
            shape = tuple(one["shape"])
            message = f"only the {side} has it: {shown(one['dtype'])} {list(shape)}, {count(one['bytes'], 'byte')}"
            yield Finding(one["name"], message, kind=kind, dtypes=(one["dtype"],), shapes=(shape,))
    for one in data["renamed"]:
        other = one["new_name"]
        yield Finding(one["name"], f"it is '{shown(other)}' of the second", kind="renamed", other=other)
    for one in data["changed"]:
        dtypes, shapes = tuple(one["dtypes"] or ()), tuple(map(tuple, one["shapes"] or ()))
        message = "; ".join(_changes(dtypes, shapes, one["values"]))
        yield Finding(one["name"], message, kind="changed", dtypes=dtypes, shapes=shapes, values=one["values"])
    for one in data["not_compared"]:
        yield Finding(one["name"], one["reason"], kind="not compared")
    for one in data["metadata"]:
        values = (f"it is {one[side]!r} in the {number}" for side, number in (("a", "first"), ("b", "second")))
        yield Finding(one["key"], ", and ".join(values), kind="metadata")


def _changes(
    dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], values: ComparedValues | None
) -> Iterator[str]:
    if dtypes:
        yield " and ".join(map(shown, dtypes))
    if shapes:
        yield " and ".join(str(list(shape)) for shape in shapes)
    if values and values["differing"]:
        largest = "infinity" if values["largest"] is None else f"{values['largest']:.4g}"
        yield f"{values['differing']:,} of {values['elements']:,} values differ, by {largest} at most"
    if values and values["nan"]:
        yield f"{values['nan']:,} NaN on one side only"
