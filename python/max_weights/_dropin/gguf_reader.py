"""`gguf.GGUFReader` that builds the parts of an array on demand, because a tokenizer has very many of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from max_weights._dropin.calls import Counter

if TYPE_CHECKING:
    from max_weights._buffer import Array

__all__ = ["replacement"]

_LENGTH = struct.Struct("<Q")
_ITEM_TYPE_AND_LENGTH = struct.Struct("<IQ")
# Of the field of an array: the length and bytes of its key, its type, the type of its items, and their number.
_BEFORE_ITEMS = 5


def replacement(original: type[Any], counter: Counter) -> type[Any]:
    """Return the replacement of `gguf.GGUFReader`: a class derived from it, with all of its members."""
    import numpy as np
    from gguf.constants import GGUFValueType
    from gguf.gguf_reader import ReaderField

    class ArrayField(ReaderField):
        """The field of an array, whose parts are created when they are first used."""

        _make_parts: Callable[[], list[Array]]
        _starts: list[int] | None
        _count: int

        @cached_property
        def parts(self) -> list[Array]:
            """The arrays that the field consists of."""
            return self._make_parts()

        @cached_property
        def data(self) -> list[int]:
            """The positions of the items in `parts`."""
            if self._starts is None:
                return list(range(_BEFORE_ITEMS, _BEFORE_ITEMS + self._count))
            return list(range(_BEFORE_ITEMS + 1, _BEFORE_ITEMS + 1 + 2 * self._count, 2))

        def __iter__(self) -> Any:
            return iter((self.offset, self.name, self.parts, self.data, self.types))

        def __getitem__(self, index: Any) -> Any:
            return tuple(self)[index]

        def __reduce__(self) -> tuple[type[ReaderField], tuple[object, ...]]:
            return ReaderField, tuple(self)

    class GGUFReader(original):  # type: ignore[misc]
        """A reader of GGUF files like that of the package gguf, whose metadata arrays are built on demand."""

        def __init__(self, path: str | os.PathLike[str], mode: Literal["r", "r+", "c"] = "r") -> None:
            self._path = path
            self._on_demand = counter.active and all(
                getattr(type(self), hook) is getattr(original, hook)
                for hook in ("_get", "_get_str", "_get_field_parts", "_push_field")
            )
            if self._on_demand:
                try:
                    super().__init__(path, mode)
                except Exception as error:
                    # The original would spend minutes and gigabytes on what a damaged file claims.
                    if (refusal := _refusal(path)) is not None:
                        counter.count_fast()
                        raise refusal from None
                    counter.count_fallback(error)
                    self._on_demand = False
                else:
                    counter.count_fast()
                    return
            super().__init__(path, mode)

        def _build_fields(self, offs: int, count: int) -> int:
            if not self._on_demand or self.byte_order != "I":
                self._require_sound()
                return int(super()._build_fields(offs, count))
            everything = np.asarray(self.data)
            for _ in range(count):
                start = offs
                key_length, key = self._get_str(offs)
                offs += key_length.nbytes + key.nbytes
                kind = self._get(offs, np.uint32)
                offs += kind.nbytes
                name, head = str(bytes(key), encoding="utf-8"), [key_length, key, kind]
                field = array_field(everything, start, offs, name, head) if kind[0] == GGUFValueType.ARRAY else None
                if field is None:
                    if kind[0] == GGUFValueType.ARRAY:
                        self._require_sound()
                    size, parts, places, types = self._get_field_parts(offs, kind[0])
                    places = [place + len(head) for place in places]
                    self._push_field(ReaderField(start, name, head + parts, places, types), skip_sum=True)
                    offs += size
                else:
                    value, offs = field
                    self._push_field(value, skip_sum=True)
            return offs

        def _require_sound(self) -> None:
            """Refuse a damaged file, before the original makes as many parts as it claims."""
            if counter.active and (refusal := _refusal(self._path)) is not None:
                raise refusal

    def array_field(data: Any, start: int, at: int, name: str, head: list[Array]) -> tuple[ArrayField, int] | None:
        """Return the field of the array at a byte, and where it ends; `None` for an array of arrays."""
        item_type, count = _ITEM_TYPE_AND_LENGTH.unpack_from(data, at)
        item = GGUFValueType(item_type)
        first = at + _ITEM_TYPE_AND_LENGTH.size
        head = [*head, data[at : at + 4].view(np.uint32), data[at + 4 : first].view(np.uint64)]
        starts: list[int] | None = None
        if item == GGUFValueType.STRING:
            starts, end = _starts_of_strings(data, first, count)

            def parts() -> list[Array]:
                arrays = list(head)
                for string in starts or ():
                    length = data[string : string + 8].view(np.uint64)
                    arrays += (length, data[string + 8 : string + 8 + int(length[0])])
                return arrays
        elif item in original.gguf_scalar_to_np:
            dtype = np.dtype(original.gguf_scalar_to_np[item])
            end = first + count * dtype.itemsize
            if end > len(data):
                raise ValueError("the array ends after the end of the file")

            def parts() -> list[Array]:
                items = data[first:end].view(dtype)
                return head + [items[i : i + 1] for i in range(count)]
        else:
            return None
        field = ArrayField(start, name, [], [], [GGUFValueType.ARRAY, *([item] if count else [])])
        field._make_parts, field._starts, field._count = parts, starts, count
        return field, end

    for replaced in (GGUFReader, ArrayField):
        replaced.__module__ = original.__module__
        replaced.__qualname__ = replaced.__name__
    return GGUFReader


def _refusal(path: object) -> Exception | None:
    """Return the error with which this package refuses a file as damaged; `None` if it does not."""
    from max_weights._weights import load_weights
    from max_weights.errors import FormatError, UnsupportedError

    if not isinstance(path, str | os.PathLike):
        return None
    try:
        load_weights([path]).close()
    except UnsupportedError:
        return None
    except FormatError as error:
        return error
    except Exception:
        return None  # the original reports the error
    return None


def _starts_of_strings(data: Any, at: int, count: int) -> tuple[list[int], int]:
    """Return where the strings of an array begin, and where the last one ends."""
    if count > len(data) // 8:
        raise ValueError("more strings than the file has room for")
    starts: list[int] = []
    length_at = _LENGTH.unpack_from
    view = memoryview(data)
    for _ in range(count):
        starts.append(at)
        at += 8 + length_at(view, at)[0]
    if at > len(data):
        raise ValueError("a string ends after the end of the file")
    return starts, at
