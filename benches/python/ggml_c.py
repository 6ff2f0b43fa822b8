"""ggml's own C library, by ctypes: what the GGUF benches measure against.

It comes with the package libggml-python as a shared library without Python code. Of each function only what the benches
call is declared here. `why_not` says why it cannot be measured where it cannot: the benches then leave its row away.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any, Final

NAME: Final = "ggml's C"

_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


class _TypeTraits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("block_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", _TO_FLOAT),
        ("from_float", ctypes.c_void_p),
    )


@functools.cache
def library() -> Any:
    """The library, loaded. Raises OSError if it is not installed, or not for this machine."""
    found = importlib.util.find_spec("libggml")
    if found is None or not found.submodule_search_locations:
        raise OSError("the package libggml-python is not installed")
    loaded = ctypes.CDLL(str(Path(found.submodule_search_locations[0]) / "lib64" / "libggml-base.so"))
    loaded.gguf_init_from_file.argtypes = (ctypes.c_char_p, _InitParams)
    loaded.gguf_init_from_file.restype = ctypes.c_void_p
    loaded.gguf_free.argtypes = (ctypes.c_void_p,)
    loaded.gguf_free.restype = None
    loaded.gguf_get_n_tensors.argtypes = (ctypes.c_void_p,)
    loaded.gguf_get_n_tensors.restype = ctypes.c_int64
    loaded.gguf_get_tensor_name.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    loaded.gguf_get_tensor_name.restype = ctypes.c_char_p
    loaded.gguf_get_tensor_type.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    loaded.gguf_get_tensor_type.restype = ctypes.c_int
    loaded.gguf_get_tensor_ne.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    loaded.gguf_get_tensor_ne.restype = ctypes.POINTER(ctypes.c_int64)
    loaded.ggml_get_type_traits.argtypes = (ctypes.c_int,)
    loaded.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
    return loaded


def why_not() -> str:
    """Why the library cannot be measured here; empty if it can."""
    try:
        library()
    except (OSError, AttributeError) as error:
        return str(error)
    return ""


def listing(path: Path) -> list[tuple[bytes, int, tuple[int, ...]]]:
    """Open a file without its data, and list name, type and dimensions of each tensor."""
    ggml = library()
    context = ggml.gguf_init_from_file(str(path).encode(), _InitParams(no_alloc=True, context=None))
    if not context:
        raise OSError(f"ggml does not open {path}")
    found = [
        (
            ggml.gguf_get_tensor_name(context, i),
            ggml.gguf_get_tensor_type(context, i),
            tuple(ggml.gguf_get_tensor_ne(context, i)[:4]),
        )
        for i in range(ggml.gguf_get_n_tensors(context))
    ]
    ggml.gguf_free(context)
    return found


def only_open(path: Path) -> None:
    """Open a file without its data, and close it: all of it C."""
    ggml = library()
    ggml.gguf_free(ggml.gguf_init_from_file(str(path).encode(), _InitParams(no_alloc=True, context=None)))


def to_float(type_id: int) -> Any:
    """The function `(blocks, out, elements)` that decodes blocks of this type to f32, on the calling thread."""
    traits = library().ggml_get_type_traits(type_id).contents
    return traits.to_float
