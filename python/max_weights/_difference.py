"""`diff`: the differences between two checkpoints, each of any format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._checkpoints import opened, tensors_of
from max_weights._core import WeightsNode, difference_of, escape, infos
from max_weights._finding import Finding
from max_weights._html import count
from max_weights._progress import progress_of
from max_weights._result import Result
from max_weights._threads import threads_of_call
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._checkpoints import Checkpoint, Tensors
    from max_weights._finding import ComparedValues
    from max_weights._progress import Progress
    from max_weights._typing import JSONObject

__all__ = ["Difference", "diff"]


@dataclass(frozen=True, repr=False)
class Difference(Result):
    """The differences between two checkpoints; ok if there are none, and everything could be compared.

    Kinds of findings, in this order: "removed" and "added" (only one checkpoint has the weight), "renamed" (equal
    bytes, named `other` in the second), "changed", "not compared" and "metadata" (the name is the key). Changes of
    `shapes` come first, then the others by the largest difference in `values`, or by their `dtypes`.
    """

    _KINDS = ("removed", "added", "renamed", "changed", "not compared", "metadata")

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
    a: Checkpoint | Tensors,
    b: Checkpoint | Tensors,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    exact: bool = False,
    values: bool = True,
    dtypes: bool = True,
    metadata: bool = True,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> Difference:
    """Compare two checkpoints: names, dtypes, shapes, values, metadata.

    Both are read in pieces, on all cores, in bounded memory. Packed blocks are compared by their decoded values. Trees
    are compared whole, by their own names, as in `diff(renamed("model.gguf", "hf"), "model.safetensors")`; a part of
    one is refused.

    Args:
        a: A tree, anything that `load_weights` opens, {name: tensor}, or a module.
        b: The checkpoint to compare with; `[base, delta]` is a base with a delta.
        rtol: Values may differ by `atol + rtol * |b|`, as with `numpy.allclose`.
        atol: See `rtol`.
        exact: Compare bytes instead of numbers: -0.0 differs from 0.0.
        values: Compare values; otherwise only the headers are compared.
        dtypes: Whether another dtype counts as a difference if the values are the same.
        metadata: Whether metadata is compared; it never is between two different formats, or with tensors in memory.
        threads: How many; `None` for as many as there are cores.
        progress: True for a bar on standard error or in a notebook, or a function of the bytes done and the total.

    Returns:
        The differences; true if there are none: `assert max_weights.diff(a, b)`.

    Raises:
        ArgumentError: `a` or `b` is not a checkpoint, or a tolerance is not valid (a ValueError).
        FormatError: A file is damaged, or a delta without its base.

    Example:
        >>> max_weights.diff("model.safetensors", "model.pt", metadata=False)
        <Difference: ok, 5 the same, 0 close>
    """
    for side in (a, b):
        if isinstance(side, WeightsNode) and side.name:
            infos(side)  # raises WeightNotFoundError for a name that does not exist
            raise ArgumentError(
                f"diff compares whole checkpoints, and '{escape(side.name)}' is a part of one: give the tree, or "
                "tensors by their names, such as weights.load(...)",
                rule="argument.part",
            )
    report, finish = progress_of(progress)
    try:
        with (
            opened(a, "diff", tensors=True) as one,
            opened(b, "diff", tensors=True) as two,
            threads_of_call(threads),
        ):
            text = difference_of(
                one,
                two,
                rtol=rtol,
                atol=atol,
                exact=exact,
                values=values,
                dtypes=dtypes,
                metadata=metadata and not any(tensors_of(side) is not None for side in (a, b)),
                progress=report,
            )
    finally:
        finish()
    data: JSONObject = json.loads(text)
    changed = {change["key"]: (change["a"], change["b"]) for change in data["metadata"]}
    return Difference(tuple(_findings(data)), data["same"], data["close"], changed)


def _findings(data: JSONObject) -> Iterator[Finding]:
    for kind, side in ("removed", "first"), ("added", "second"):
        for one in data[kind]:
            shape = tuple(one["shape"])
            message = f"only the {side} has it: {escape(one['dtype'])} {list(shape)}, {count(one['bytes'], 'byte')}"
            yield Finding(one["name"], message, kind=kind, dtypes=(one["dtype"],), shapes=(shape,))
    for one in data["renamed"]:
        other = one["new_name"]
        yield Finding(one["name"], f"it is '{escape(other)}' of the second", kind="renamed", other=other)
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
        yield " and ".join(map(escape, dtypes))
    if shapes:
        yield " and ".join(str(list(shape)) for shape in shapes)
    if values and values["differing"]:
        largest = "infinity" if values["largest"] is None else f"{values['largest']:.4g}"
        yield f"{values['differing']:,} of {values['elements']:,} values differ, by {largest} at most"
    if values and values["nan"]:
        yield f"{values['nan']:,} NaN on one side only"
