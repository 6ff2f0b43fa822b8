"""The safetensors package as programs know it, over this package: the same names, the same results, less waiting.

>>> from max_weights.safetensors import safe_open
>>> with safe_open("model.safetensors", framework="pt") as file:
...     tensor = file.get_tensor(file.keys()[0])

What reads is here: `safe_open`, `deserialize`, and `load_file`, `load` and `load_model` of the modules `torch`, `numpy`
and `flax`. What saves (`serialize`, `save_file`, ...) is that of the installed safetensors package, and an ImportError
that says so where there is none. docs/dropin.md lists what differs. Importing this module imports no framework, and the
safetensors package only when a name of it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._core import PySafeSlice
from max_weights.safetensors.deserializing import deserialize
from max_weights.safetensors.open_file import _safe_open_handle, safe_open
from max_weights.safetensors.tensor_meta import TensorMeta

if TYPE_CHECKING:
    from typing import Any

    from max_weights.safetensors.prefetch import PrefetchLoader

    SafetensorError: type[Exception]
    TensorSpec: Any
    __version__: str

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


def serialize(tensor_dict: Any, metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a file with these tensors, by the installed safetensors package.

    Args:
        tensor_dict: {name: TensorSpec}.
        metadata: Text by name.

    Raises:
        ImportError: the safetensors package is not installed.
    """
    from max_weights.safetensors.installed import extension

    written: bytes = extension("serialize").serialize(tensor_dict, metadata=metadata)
    return written


def serialize_file(tensor_dict: Any, filename: Any, metadata: dict[str, str] | None = None) -> None:
    """Save these tensors to a file, by the installed safetensors package.

    Args:
        tensor_dict: {name: TensorSpec}.
        filename: The file.
        metadata: Text by name.

    Raises:
        ImportError: the safetensors package is not installed.
    """
    from max_weights.safetensors.installed import extension

    extension("serialize_file").serialize_file(tensor_dict, filename, metadata=metadata)


def __getattr__(name: str) -> Any:
    if name == "SafetensorError":
        from max_weights.safetensors.errors import error_class

        return error_class()
    if name == "PrefetchLoader":
        from max_weights.safetensors.prefetch import PrefetchLoader

        return PrefetchLoader
    if name == "TensorSpec":
        from max_weights.safetensors.installed import extension

        return extension("TensorSpec").TensorSpec
    if name == "__version__":
        from max_weights.safetensors.installed import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
