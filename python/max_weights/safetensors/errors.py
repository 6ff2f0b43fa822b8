"""`SafetensorError`, and the errors of this package in the words that programs look for in those of safetensors."""

from __future__ import annotations

import os

from max_weights._core import shown
from max_weights.errors import FormatError, MissingFileError, UnsupportedError, WeightsError

__all__ = [
    "closed",
    "error_class",
    "missing_tensor",
    "no_dtype",
    "opening_error",
    "safetensor_error",
    "saving_error",
    "serializing_error",
    "unfit",
]

_FULL = "incomplete metadata, file not fully covered"
_JSON = ("invalid JSON in header", "InvalidHeaderDeserialization")
_OFFSET = ("invalid offset for tensor `{}`", "InvalidOffset")

# Rule -> what safetensors says since 0.6, and the name that it said before, for which programs look, too.
_REASONS = {
    "safetensors.header-empty": ("invalid JSON in header: EOF while parsing a value", "InvalidHeaderDeserialization"),
    "safetensors.header-too-long": ("header too large", "HeaderTooLarge"),
    "safetensors.hole": _OFFSET,
    "safetensors.offsets": _OFFSET,
    "safetensors.outside": _OFFSET,
    "safetensors.overlap": _OFFSET,
    "safetensors.shape-overflow": (
        "overflow computing buffer size from shape and/or element type",
        "ValidationOverflow",
    ),
    "safetensors.size": ("invalid shape, data type, or offset for tensor", "TensorInvalidInfo"),
    "safetensors.sub-byte": (
        "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, this is invalid.",
        "MisalignedSlice",
    ),
    "safetensors.too-short": ("header too small", "HeaderTooSmall"),
    "safetensors.trailing-data": (_FULL, "MetadataIncompleteBuffer"),
    "safetensors.utf8": ("invalid UTF-8 in header", "InvalidHeader"),
}

_class: type[Exception] | None = None


def error_class() -> type[Exception]:
    """`SafetensorError`: the class of the installed package, or one of the same name where there is none."""
    global _class
    if _class is None:
        from max_weights.safetensors.installed import found_extension

        found = getattr(found_extension(), "SafetensorError", None)
        _class = found if isinstance(found, type) and issubclass(found, Exception) else _own_class()
    return _class


def _own_class() -> type[Exception]:
    class SafetensorError(Exception):
        """What `safe_open` and the functions beside it raise."""

    SafetensorError.__module__ = "max_weights.safetensors"
    SafetensorError.__qualname__ = "SafetensorError"
    return SafetensorError


def safetensor_error(message: str) -> Exception:
    """A `SafetensorError` of this text."""
    return error_class()(message)


def closed() -> Exception:
    """That the file is closed."""
    return safetensor_error("File is closed")


def missing_tensor(name: str) -> Exception:
    """That there is no tensor of this name."""
    return safetensor_error(f"File does not contain tensor {shown(name)}")


def no_dtype(dtype: str) -> Exception:
    """That no framework has the dtype."""
    return safetensor_error(f"Dtype not understood: {shown(dtype)}")


def opening_error(error: WeightsError, path: str | os.PathLike[str] | None) -> Exception:
    """What safetensors raises where opening a file, or bytes where `path` is None, fails like this."""
    if isinstance(error, MissingFileError):
        # One argument, as there: programs look at the first one.
        return FileNotFoundError(f"No such file or directory: {os.fspath(path) if path is not None else ''}")
    if error.rule in ("file.directory", "file.special"):
        return OSError(f"No such device (os error 19): {error}")
    if not isinstance(error, FormatError | UnsupportedError):
        return error
    what = "Error while deserializing" if path is None else "Error while deserializing header"
    reason, token = _reason(error)
    return safetensor_error(f"{what}: {reason} ({token}): {error}")


def unfit(rule: str, what: str) -> Exception:
    """That a tensor cannot be saved, which breaks this rule of the format."""
    reason, token = _REASONS[rule]
    return serializing_error(f"{reason} ({token}): {what}")


def serializing_error(message: str) -> Exception:
    """That tensors cannot be saved, for this reason."""
    return safetensor_error(f"Error while serializing: {message}")


def saving_error(error: OSError | ValueError) -> Exception:
    """What safetensors raises where saving fails like this; a ValueError says that no reader would take the header."""
    if not isinstance(error, OSError):
        reason, token = _REASONS["safetensors.header-too-long"]
        return serializing_error(f"{reason} ({token}): {error}")
    if error.errno is None:
        return serializing_error(f"I/O error: {error}")
    system = f"{os.strerror(error.errno)} (os error {error.errno})"
    what = str(error.strerror).removesuffix(f": {system}")
    return serializing_error(f'I/O error: {system} at path "{shown(str(error.filename))}": {what}')


def _reason(error: WeightsError) -> tuple[str, str]:
    if error.rule == "safetensors.truncated":
        return ("invalid header length", "InvalidHeaderLength") if error.tensor is None else _incomplete()
    reason, token = _REASONS.get(error.rule or "", _JSON)
    return reason.format(shown(error.tensor or "")), token


def _incomplete() -> tuple[str, str]:
    return _REASONS["safetensors.trailing-data"]
