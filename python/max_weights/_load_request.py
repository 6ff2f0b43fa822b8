"""`LoadRequest`: which weights are loaded, under which names, as which dtype, and which part of each.

`load`, `stream`, `plan`, `save`, `load_into`, `lazy_state_dict` and `Module.load` all resolve their arguments here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from max_weights._core import escape, infos, renamed_names
from max_weights._dtype import DType
from max_weights._selection import Pattern, Select, fits, not_found, require_effect, selected
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights._dtype import DTypeLike
    from max_weights._quantized_weights import DecodedAs, StoredWeights
    from max_weights._read_options import Digests
    from max_weights.sharding._by_name import Shard, ShardBox

# fmt: off
__all__ = [
    "DTypeOption", "LoadRequest", "PackedOption", "Quantized", "Rename", "ResolvedRequest", "holds_floats",
    "renamed_by",
]
# fmt: on

DTypeOption: TypeAlias = "DTypeLike | Mapping[str, DTypeLike] | Mapping[Pattern, DTypeLike]"
"""One dtype for everything, or one for each pattern of names."""

_T = TypeVar("_T")

Rename = Callable[[str], "str | None"] | Mapping[str, str]
Quantized: TypeAlias = Callable[["str | None", "str | None"], "DType | None"]
"""The dtype of a quantized weight, by the new names of the decoded weight and of its packed numbers; `None` keeps it in
the stored form. Names that are unknown before decoding are passed as `None`."""
_DECODED = DType.bfloat16
"""The dtype of `packed="decode"` for weights that `dtype` does not cover."""

_UNPACK = (
    ": set dtype='bfloat16' or another, or packed='decode', to decode it; packed='keep' keeps the bytes of the blocks"
)
PackedOption: TypeAlias = Literal["keep", "decode"] | None
"""How packed weights are loaded: unchanged (keep), or dequantized (decode), to bfloat16 where `dtype` does not apply.
With `None`, blocks of GGUF are refused, and weights of several tensors (FP8, GPTQ, AWQ) are loaded as stored."""


class ResolvedRequest(NamedTuple):
    """The weights of a request, with one entry for each, in the order of the files."""

    node: WeightsNode
    """The tree of the weights: for `rename="hf"`, the one with the new names."""
    names: Sequence[str]
    new_names: Sequence[str]
    infos: Sequence[WeightInfo]
    dtypes: Sequence[DType | None]
    """`None` for the dtype in the file."""
    parts: Sequence[ShardBox | None]
    """`None` for the whole weight."""
    decoded: Sequence[DecodedAs | None]
    """`None` for a weight that is a tensor of the file."""

    def only(self, dtypes: Mapping[str, DType | None]) -> ResolvedRequest:
        """Return only the weights of these new names, each as another dtype."""
        rows = [row for row in zip(*self[1:], strict=True) if row[1] in dtypes]
        names, new_names, infos, _, parts, decoded = zip(*rows, strict=True) if rows else [()] * 6
        return ResolvedRequest(self.node, names, new_names, infos, [dtypes[new] for new in new_names], parts, decoded)

    def index_outputs(self, out: Mapping[str, _T]) -> dict[int, _T]:
        """Look up the caller's memory by new name, and return it by the positions of the weights."""
        positions = {new: position for position, new in enumerate(self.new_names)}
        for name in out:
            if name not in positions:
                raise not_found(name, list(positions), "out names")
        return {positions[name]: memory for name, memory in out.items()}

    def digests(self, digests: Digests) -> list[str]:
        """Return the digest that each weight must have, or raise an error for a weight without one."""
        found = []
        for name, decoded in zip(self.names, self.decoded, strict=True):
            if decoded is not None:
                raise ArgumentError(
                    f"digests are of tensors in the file, and '{escape(name)}' is decoded of several: compare "
                    "them with max_weights.fingerprint, or load them unchanged",
                    rule="argument.packed",
                )
            known = digests.get(name)
            digest = getattr(known, "digest", known)
            if not isinstance(digest, str):
                raise ArgumentError(
                    f"digests has none of '{escape(name)}': it needs one for every weight that is loaded, as "
                    "max_weights.fingerprint(checkpoint, digests=True) has",
                    rule="argument.digests",
                )
            found.append(digest)
        return found


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of `WeightsNode.load` that say what is loaded; `None` for all of it unchanged."""

    select: Select | None = None
    rename: Rename | str | None = None
    dtype: DTypeOption | None = None
    packed: PackedOption = None
    shard: Shard | None = None

    def __post_init__(self) -> None:
        """Check the options that are not tables."""
        if self.packed not in (None, "keep", "decode"):
            raise ArgumentError(f'packed must be "keep", "decode" or None, not {self.packed!r}', rule="argument.choice")

    @property
    def keeps(self) -> bool:
        """Whether packed weights stay unchanged."""
        return self.packed == "keep"

    @property
    def decodes(self) -> bool:
        """Whether all packed weights are decoded."""
        return self.packed == "decode"

    def resolve(
        self, node: WeightsNode, *, unpack: DType | str = _UNPACK, quantized: Quantized | None = None
    ) -> ResolvedRequest:
        """Resolve the request for the weights at and below a node."""
        rename, decoding = self.rename, self._decoding(node, quantized)
        if decoding is not None:
            node = decoding.node
        if isinstance(rename, str):
            from max_weights._renaming import renamed  # with the tables of all libraries

            node, rename = renamed(node, rename), None
        below = {info.name: info for info in infos(node)}
        if decoding is not None and decoding.names is not None:
            names = decoding.names
        else:
            names = list(below) if self.select is None else selected(list(below), self.select)

        # A table of options may cover more than this node.
        def every() -> list[str]:
            return [info.name for info in infos(node._root)]

        new_names = {name: name for name in names} if rename is None else renamed_by(names, rename, every)
        chosen = [below[name] for name in new_names]
        parts: list[ShardBox | None] = [None] * len(chosen)
        if self.shard is not None:
            from max_weights.sharding._by_name import parts_of_rank

            parts = parts_of_rank(node, chosen, self.shard)
        if self.decodes and isinstance(unpack, str):
            unpack = _DECODED
        dtypes = self._dtypes(chosen, every, unpack)
        if decoding is not None:
            dtypes = decoding.checked(chosen, dtypes, all_decoded=self.decodes)
        if self.decodes and decoding is None and not any(info.encoding is not None for info in chosen):
            raise ArgumentError(
                "packed='decode': nothing is quantized here, so it changes nothing: omit it", rule="argument.no-effect"
            )
        decoded: list[DecodedAs | None] = [None] * len(chosen)
        if decoding is not None:
            decoded = [decoding.stored.decoded_as(name) if name in decoding.decoded else None for name in new_names]
        return ResolvedRequest(node, list(new_names), list(new_names.values()), chosen, dtypes, parts, decoded)

    def _decoding(self, node: WeightsNode, quantized: Quantized | None) -> Decoding | None:
        """Decide which weights stored as several tensors are decoded; `None` if there are none."""
        if self.dtype is None and not self.decodes and quantized is None:
            return None
        from max_weights._quantized_weights import stored_weights

        stored = stored_weights(node)
        if stored is None:
            return None
        by_library = isinstance(self.rename, str)
        if by_library and (isinstance(self.dtype, Mapping) or self.keeps):
            # After the renaming, the parts of a quantized weight have other names and layouts.
            raise ArgumentError(
                f"weights of this checkpoint are quantized: rename={self.rename!r} needs them decoded to one dtype, "
                "neither packed nor by a mapping of dtypes",
                rule="argument.packed",
            )
        requested = self.dtype is not None or self.decodes
        if stored.is_converted and (requested or (quantized is not None and quantized(None, None) is not None)):
            raise stored.named_otherwise()
        if by_library and requested and stored.unknown:
            raise stored.not_known(min(stored.unknown))
        if self.keeps:
            return Decoding(node, None, stored, frozenset(), keeps=True)
        dtypes = {weight: to for weight in stored.packed if (to := self._decoded_to(weight, stored, quantized))}
        names = stored.names(dtypes)
        if self.select is not None and not by_library:
            names = selected(names, self.select)
            chosen = set(names)
            dtypes = {weight: to for weight, to in dtypes.items() if weight in chosen}
        below = set(names)
        dtypes = {weight: to for weight, to in dtypes.items() if by_library or weight in below}
        return Decoding(stored.decode(dtypes), None if by_library else names, stored, frozenset(dtypes), keeps=False)

    def _decoded_to(self, weight: str, stored: StoredWeights, quantized: Quantized | None) -> DType | None:
        """Return the dtype of the quantized weight of this name; `None`: it stays in the stored form."""
        to: DType | None = None
        if isinstance(self.dtype, Mapping):
            by_name = self.dtype.get(weight)
            fitting = (one for pattern, one in self.dtype.items() if fits(pattern)(weight))
            declared = next(fitting, None) if by_name is None else by_name
            to = None if declared is None else DType(declared)
        elif self.dtype is not None:
            to = DType(self.dtype)
        if to is None and self.decodes:
            to = _DECODED
        if to is None and self.dtype is None and quantized is not None:
            packed = stored.packed[weight]
            if isinstance(self.rename, str):
                return quantized(None, None)
            if self.rename is None:
                return quantized(weight, packed)
            new = [
                next(iter(renamed_by([name], self.rename, lambda: [*stored.parts, *stored.packed]).values()), None)
                for name in (weight, packed)
            ]
            return quantized(*new)
        return to

    def _dtypes(
        self, chosen: list[WeightInfo], every: Callable[[], Iterable[str]], unpack: DType | str
    ) -> list[DType | None]:
        """Return the dtype of each weight; `None` for the one in the file."""
        if isinstance(self.dtype, Mapping):
            require_effect("dtype", self.dtype, [info.name for info in chosen], every)
            by_name = {pattern: DType(dtype) for pattern, dtype in self.dtype.items()}
            table = [(fits(pattern), dtype) for pattern, dtype in by_name.items()]
            named = [
                by_name[info.name]
                if info.name in by_name
                else next((dtype for fit, dtype in table if fit(info.name)), None)
                for info in chosen
            ]
        else:
            dtype = None if self.dtype is None else DType(self.dtype)
            named = [dtype if holds_floats(info) else None for info in chosen]
        if self.keeps:
            return [None if info.encoding is not None else one for info, one in zip(chosen, named, strict=True)]
        unspecified = [
            info for info, one in zip(chosen, named, strict=True) if one is None and info.encoding is not None
        ]
        if isinstance(unpack, str):
            if unspecified:
                raise _packed(unspecified, unpack)
            return named
        return [
            unpack if one is None and info.encoding is not None else one
            for info, one in zip(chosen, named, strict=True)
        ]


class Decoding(NamedTuple):
    """How a request decodes the quantized weights of a tree."""

    node: WeightsNode
    """The node, with these weights decoded."""
    names: list[str] | None
    """The selected names, if they are known."""
    stored: StoredWeights
    decoded: frozenset[str]
    """The names of the decoded weights."""
    keeps: bool
    """Whether parts of quantized weights stay unchanged."""

    def checked(self, chosen: list[WeightInfo], dtypes: list[DType | None], *, all_decoded: bool) -> list[DType | None]:
        """Return the dtypes of weights, `None` for those that stay unchanged."""
        checked = []
        for info, to in zip(chosen, dtypes, strict=True):
            is_part, is_unknown = info.name in self.stored.parts, info.name in self.stored.unknown
            if is_unknown and all_decoded:
                raise self.stored.not_known(info.name)
            if to is None or to is info.dtype:
                checked.append(to)
                continue
            if not self.keeps and is_part and info.name not in self.stored.packed:
                raise self.stored.is_part(info.name)
            if not self.keeps and is_unknown:
                raise self.stored.not_known(info.name)
            checked.append(None if self.keeps and (is_part or is_unknown) else to)
        return checked


def _packed(weights: list[WeightInfo], advice: str) -> ArgumentError:
    """Return the error for packed blocks without a dtype."""
    first, others = weights[0], len(weights) - 1
    encoding = "" if first.encoding is None else f" ({first.encoding.name})"
    more = "is" if not others else f"and {others} more weight{'s' * (others > 1)} are"
    error = ArgumentError(f"'{escape(first.name)}'{encoding} {more} packed in blocks{advice}", rule="argument.packed")
    error.tensor = first.name
    return error


def holds_floats(info: WeightInfo) -> bool:
    """Whether the elements of a weight are floats, packed ones too."""
    return info.encoding is not None or (isinstance(info.dtype, DType) and info.dtype.is_float())


def renamed_by(
    names: Iterable[str], rename: Rename, every: Callable[[], Iterable[str]] | None = None
) -> dict[str, str]:
    """Return {name: new name}, without the names that are dropped.

    Args:
        names: The current names.
        rename: A function (returning `None` drops the weight) or a mapping. A key that ends with a dot stands for every
            name that starts with it; each `*` in a key is any text, which replaces the `*` of the same number in the
            new name. An exact name has priority over the longest key that ends with a dot, and that over the first with
            `*`; other names stay.
        every: Returns all names that a key may match; default: `names`.

    Raises:
        ArgumentError: two names become the same, or the mapping is empty (a ValueError).
        WeightNotFoundError: a key matches no name.
    """
    names = list(names)
    if isinstance(rename, Mapping):
        require_effect("rename", rename, names, every, fits=_renames)
        new_names = renamed_names(names, list(rename.items()))
        table = {name: name if new is None else new for name, new in zip(names, new_names, strict=True)}
        new_name: Callable[[str], str | None] = table.__getitem__
    else:
        new_name = rename
    result: dict[str, str] = {}
    old_names: dict[str, str] = {}
    for name in names:
        new = new_name(name)
        if new is None:
            continue
        if new in old_names:
            raise ArgumentError(
                f"rename gives '{escape(old_names[new])}' and '{escape(name)}' the same name, '{escape(new)}'",
                rule="argument.name-twice",
            )
        result[name], old_names[new] = new, name
    return result


def _renames(key: Pattern) -> Callable[[str], bool]:
    """Return a function that tells whether a key of `rename` matches a name."""
    if not isinstance(key, str):
        raise TypeError(f"a key of rename is a name, a prefix that ends with a dot, or has *, not {key!r}")
    if "*" in key:
        any_text = re.compile(".*".join(map(re.escape, key.split("*"))), re.DOTALL)
        return lambda name: any_text.fullmatch(name) is not None
    return (lambda name: name.startswith(key)) if key.endswith(".") else (lambda name: name == key)
