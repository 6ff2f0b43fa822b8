"""The API of the safetensors package on top of this package: the same names, the same results, less waiting.

>>> from max_weights.safetensors import safe_open
>>> with safe_open("model.safetensors", framework="pt") as file:
...     tensor = file.get_tensor(file.keys()[0])

This module has `safe_open`, `deserialize`, `serialize` and `serialize_file`. The modules `torch`, `numpy`, `flax` and
`jax` run the files of the installed safetensors package over these four functions. Without the package, they have
`load_file`, `load`, `save_file` and `save`. The differences are listed in docs/dropin.md. Importing this module imports
no framework, and the safetensors package only for its `SafetensorError`, `TensorSpec` and `__version__`.
"""

from max_weights._core import PySafeSlice
from max_weights.safetensors._in_memory import deserialize, serialize, serialize_file
from max_weights.safetensors._open_file import TensorMeta, _safe_open_handle, safe_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights.safetensors._prefetch import PrefetchLoader

    SafetensorError: type[Exception]
    """The error class of the installed safetensors package, or one of the same name if it is not installed."""
    TensorSpec: type
    """The class of the installed safetensors package for a tensor in memory, which `serialize` takes."""
    __version__: str
del TYPE_CHECKING

__all__ = [
    "PrefetchLoader",
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "_safe_open_handle",
    "deserialize",
    "safe_open",
    "serialize",
    "serialize_file",
]


def __getattr__(name: str) -> object:
    if name == "PrefetchLoader":
        from max_weights.safetensors._prefetch import PrefetchLoader

        return PrefetchLoader
    if name == "SafetensorError":
        from max_weights.safetensors._errors import error_class

        return error_class()
    if name in ("TensorSpec", "__version__"):
        from max_weights.safetensors._installed import found_extension

        extension = found_extension()
        if name == "__version__":  # or else the version of the API that is provided here
            return str(getattr(extension, name, "0.8.0"))
        if not hasattr(extension, name):
            raise AttributeError(f"{name} is a class of safetensors 0.8 or newer: pip install -U safetensors")
        return getattr(extension, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
