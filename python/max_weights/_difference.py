"""`diff`: the differences between two checkpoints, each of any format."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._core import WeightsNode, difference_of, open_weights, shown
from max_weights._html import count, details, table, view
from max_weights._progress import progress_of
from max_weights.errors import FormatError

if TYPE_CHECKING:
    from max_weights._progress import Progress
    from max_weights._typing import JSONObject

__all__ = ["ChangedWeight", "ComparedValues", "Difference", "OneSidedWeight", "RenamedWeight", "diff"]


# The rules that a delta without its base breaks.
_OF_DELTAS = ("delta.alone", "index.delta")


@dataclass(frozen=True, slots=True)
class OneSidedWeight:
    """A weight that only one of the two checkpoints has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class RenamedWeight:
    """A weight that both checkpoints have under different names, with the same dtype, shape and bytes."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ComparedValues:
    """How the values of a weight differ."""

    elements: int
    differing: int
    nan: int
    """How many elements are NaN on one side only."""
    largest: float | None
    """The largest difference; `None` if it is infinite."""
    relative: float | None
    """The largest difference relative to the second value, where that is not 0."""
    cosine: float | None
    """The cosine similarity of the finite values."""
    index: tuple[int, ...] | None
    """The index of the largest difference."""
    at: tuple[float | None, float | None] | None
    """The two values at that index."""


@dataclass(frozen=True, slots=True)
class ChangedWeight:
    """A weight that both checkpoints have, and that differs."""

    name: str
    dtypes: tuple[str, str] | None
    """`None` if they are the same."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    """`None` if they are the same."""
    values: ComparedValues | None
    """`None` if they were not compared."""


@dataclass(frozen=True, slots=True, repr=False)
class Difference:
    """The differences between two checkpoints; true if it is `ok`: if there are none."""

    different: bool
    same: int
    """The number of weights that are equal byte for byte."""
    close: int
    """The number of weights whose bytes differ, but only within the tolerances, or for the same numbers."""
    removed: tuple[OneSidedWeight, ...]
    """Weights that only the first checkpoint has."""
    added: tuple[OneSidedWeight, ...]
    """Weights that only the second checkpoint has."""
    renamed: tuple[RenamedWeight, ...]
    changed: tuple[ChangedWeight, ...]
    """Weights that differ: first those whose shapes differ, then the others by their largest difference."""
    not_compared: dict[str, str]
    """{name: the reason why its values cannot be compared}."""
    metadata: dict[str, tuple[str | None, str | None]]
    """{key: the values on both sides, cut short if they are long}."""

    @property
    def ok(self) -> bool:
        """Whether nothing differs, and everything could be compared."""
        return not self.different

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        counts = [f"{self.same:,} the same", f"{self.close:,} close"]
        kinds = ("removed", "added", "renamed", "changed", "not_compared", "metadata")
        counts += [f"{len(of):,} {kind.replace('_', ' ')}" for kind in kinds if (of := getattr(self, kind))]
        names = [weight.name for of in (self.changed, self.removed, self.added, self.renamed) for weight in of]
        first = f"; '{shown(names[0])}' first" if names else ""
        return f"<Difference: {'none' if self.ok else 'not ok'}, {', '.join(counts)}{first}>"

    def _repr_html_(self) -> str:
        rows = [(weight.name, "only in the first", f"{weight.dtype} {list(weight.shape)}") for weight in self.removed]
        rows += [(weight.name, "only in the second", f"{weight.dtype} {list(weight.shape)}") for weight in self.added]
        rows += [(weight.name, "renamed", weight.new_name) for weight in self.renamed]
        rows += [(weight.name, "changed", _change(weight)) for weight in self.changed]
        rows += [(name, "not compared", why) for name, why in self.not_compared.items()]
        metadata = [(key, *values) for key, values in self.metadata.items()]
        parts = [table(("weight", "what", "how"), rows, code=("weight",), long=("how",))]
        if metadata:
            keys = table(("key", "first", "second"), metadata, code=("key",))
            parts.append(details("metadata", count(len(metadata), "difference"), keys))
        title = "different" if self.different else "the same"
        return view(title, f"{count(self.same, 'weight')} the same, {self.close:,} close", *parts)


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
    return _of(json.loads(text))


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


def _of(data: JSONObject) -> Difference:
    return Difference(
        different=data["different"],
        same=data["same"],
        close=data["close"],
        removed=tuple(map(_one_sided, data["removed"])),
        added=tuple(map(_one_sided, data["added"])),
        renamed=tuple(RenamedWeight(weight["name"], weight["new_name"]) for weight in data["renamed"]),
        changed=tuple(map(_changed, data["changed"])),
        not_compared={weight["name"]: weight["reason"] for weight in data["not_compared"]},
        metadata={change["key"]: (change["a"], change["b"]) for change in data["metadata"]},
    )


def _one_sided(data: JSONObject) -> OneSidedWeight:
    return OneSidedWeight(data["name"], data["dtype"], tuple(data["shape"]), data["bytes"])


def _changed(data: JSONObject) -> ChangedWeight:
    dtypes, shapes, values = data["dtypes"], data["shapes"], data["values"]
    if values is not None:
        index, at = values["index"], values["at"]
        plain = {key: values[key] for key in ("elements", "differing", "nan", "largest", "relative", "cosine")}
        places: JSONObject = {"index": index and tuple(index), "at": at and tuple(at)}
        values = ComparedValues(**plain, **places)
    return ChangedWeight(
        data["name"],
        None if dtypes is None else (dtypes[0], dtypes[1]),
        None if shapes is None else (tuple(shapes[0]), tuple(shapes[1])),
        values,
    )


def _change(weight: ChangedWeight) -> str:
    parts = []
    if weight.dtypes:
        parts.append(" and ".join(weight.dtypes))
    if weight.shapes:
        parts.append(" and ".join(str(list(shape)) for shape in weight.shapes))
    values = weight.values
    if values and values.differing:
        largest = "infinity" if values.largest is None else f"{values.largest:.4g}"
        parts.append(f"{values.differing:,} of {values.elements:,} values, by {largest} at most")
        if values.nan:
            parts.append(f"{values.nan:,} NaN on one side only")
    return "; ".join(parts)
