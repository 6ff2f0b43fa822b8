"""`torch.load`, as far as it loads only weights. This module imports torch when it is first called."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable
from mmap import MAP_PRIVATE
from typing import TYPE_CHECKING, TypeVar

from max_weights._core import escape
from max_weights._dropin.calls import Counter, Refused

if TYPE_CHECKING:
    from max_weights.torch._builder import MapLocation
    from max_weights.torch._opened import Source

__all__ = ["replacement"]

_FORCED = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
_ZIP = b"PK\x03\x04"
_ZIP_HEADER = 30  # bytes before the name of an entry
_PROTOCOL_2 = b"\x80\x02"
_HEAD = 1024


_T = TypeVar("_T")


def replacement(original: Callable[..., _T], counter: Counter) -> Callable[..., _T]:
    """Return the replacement of `torch.load`."""

    # A function with this parameter by name, because other libraries inspect its code for `weights_only`.
    @functools.wraps(original)
    def load(
        f: Source,
        map_location: MapLocation = None,
        pickle_module: object = None,
        *,
        weights_only: bool | None = None,
        mmap: bool | None = None,
        **pickle_load_args: object,
    ) -> _T:
        if counter.active:
            loading = None
            try:
                path, mapped = _allowed(f, pickle_module, weights_only, mmap, pickle_load_args)
                from max_weights.torch._builder import Loading

                loading = Loading(path, map_location, mmap=mapped)
                if unknown := sorted(set(loading.globals) - _torch_allows()):
                    raise Refused(
                        f"not among what torch allows by default: {escape(unknown[0])} (torch.load builds what "
                        "torch.serialization.add_safe_globals allows)"
                    )
                value: _T = loading.value()
            except Refused as refused:
                counter.count_fallback(str(refused))
            except Exception as error:
                if loading is not None and error is loading.raised:
                    raise
                counter.count_fallback(error)
            else:
                counter.count_fast()
                return value
        return original(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **pickle_load_args)

    return load


def _allowed(
    f: Source, pickle_module: object, weights_only: bool | None, mmap: bool | None, pickle_load_args: dict[str, object]
) -> tuple[str | os.PathLike[str], bool]:
    """Return the path, and whether to map it."""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    from max_weights.torch._builder import maps_by_default
    from max_weights.torch._opened import path_of

    serialization = torch.serialization
    if pickle_module is not None or pickle_load_args:
        raise Refused("pickle_module or arguments for it")
    if weights_only is None:
        weights_only = hasattr(serialization, "_default_to_weights_only") and not any(map(os.environ.get, _FORCED))
    if not weights_only:
        raise Refused("not weights_only")
    if mmap is None:
        mmap = maps_by_default()
    if _get_current_dispatch_mode() is not None:
        raise Refused("a dispatch mode, such as FakeTensorMode, is active")
    if getattr(serialization._serialization_tls, "skip_data", False):
        raise Refused("skip_data")
    if serialization.get_default_load_endianness() is not None:
        raise Refused("a byte order is set")
    if mmap and serialization.get_default_mmap_options() != MAP_PRIVATE:
        raise Refused("mappings should be shared")
    is_path = isinstance(f, (str, os.PathLike))
    if mmap and not is_path:
        raise Refused("mmap of something that is not a path")
    path = f if isinstance(f, (str, os.PathLike)) else path_of(f)
    if path is None:
        raise Refused("neither a path nor a file object at the start of a file on disk")
    if os.fspath(path).endswith(".safetensors"):
        raise Refused("a safetensors file")
    form = _form(path)
    if form is None:
        # Pickles of other protocols can be read here, but torch refuses them.
        raise Refused("not a file that torch.save writes")
    if form == "stream" and (mmap or not is_path):
        # torch maps none of these; and an open file can hold several values, which are read sequentially.
        raise Refused("mmap, or a file object, with the format before 1.6")
    return path, mmap


def _form(path: str | os.PathLike[str]) -> str | None:
    """Return how torch.save wrote a file: "archive", its first entry the pickle; "stream", of pickles; or `None`."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if head.startswith(_PROTOCOL_2):
        return "stream"
    if not head.startswith(_ZIP) or len(head) < _ZIP_HEADER:
        return None
    name, extra = struct.unpack_from("<HH", head, _ZIP_HEADER - 4)
    first = _ZIP_HEADER + name + extra
    is_pickle = head[_ZIP_HEADER : _ZIP_HEADER + name].endswith(b"/data.pkl")
    return "archive" if is_pickle and head[first : first + 2] == _PROTOCOL_2 else None


@functools.cache
def _torch_allows() -> frozenset[str]:
    """Return the classes and functions that torch allows in files by default."""
    from torch._weights_only_unpickler import _get_allowed_globals

    return frozenset(_get_allowed_globals())
