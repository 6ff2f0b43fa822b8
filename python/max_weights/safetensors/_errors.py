"""`SafetensorError`, and the errors of this package with the messages of safetensors, which programs match."""

from __future__ import annotations

import os

from max_weights._core import escape
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

# Rule -> the message of safetensors since 0.6, and its earlier name, which programs also match.
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
    """Return `SafetensorError`: the class of the installed package, or one of the same name if there is none."""
    global _class
    if _class is None:
        from max_weights.safetensors._installed import found_extension

        installed = getattr(found_extension(), "SafetensorError", None)
        if isinstance(installed, type) and issubclass(installed, Exception):
            _class = installed
        else:
            own = {"__module__": "max_weights.safetensors", "__doc__": "Raised by `safe_open` and the other functions."}
            _class = type("SafetensorError", (Exception,), own)
    return _class


def safetensor_error(message: str) -> Exception:
    """Return a `SafetensorError` with this message."""
    return error_class()(message)


def closed() -> Exception:
    return safetensor_error("File is closed")


def missing_tensor(name: str) -> Exception:
    return safetensor_error(f"File does not contain tensor {escape(name)}")


def no_dtype(dtype: str) -> Exception:
    return safetensor_error(f"Dtype not understood: {escape(dtype)}")


# How the first bytes of other kinds of files look as the length of a header.
_NO_HEADER = ("safetensors.header-too-long", "safetensors.too-short")


def _what_it_is(path: str | os.PathLike[str]) -> WeightsError | None:
    """Return the error that names the kind of a file that is not a safetensors file, such as a pointer of git-LFS."""
    from max_weights._weights import load_weights

    try:
        load_weights([path]).close()
    except (FormatError, UnsupportedError) as error:
        return error if error.rule.startswith("format.") else None
    except Exception:
        return None
    return None


def opening_error(error: WeightsError, path: str | os.PathLike[str] | None) -> Exception:
    """Return the error of safetensors for a failure to open a file, or bytes if `path` is `None`."""
    if isinstance(error, MissingFileError):
        # One argument, as in safetensors: programs look at the first one.
        return FileNotFoundError(f"No such file or directory: {os.fspath(path) if path is not None else ''}")
    if error.rule in ("file.directory", "file.special"):
        return OSError(f"No such device (os error 19): {error}")
    if not isinstance(error, FormatError | UnsupportedError):
        return error
    what = "Error while deserializing" if path is None else "Error while deserializing header"
    reason, token = _reason(error)
    if path is not None and error.rule in _NO_HEADER:
        error = _what_it_is(path) or error
    return safetensor_error(f"{what}: {reason} ({token}): {error}")


def unfit(rule: str, what: str) -> Exception:
    """Return the error for a tensor that cannot be saved, because it breaks this rule of the format."""
    reason, token = _REASONS[rule]
    return serializing_error(f"{reason} ({token}): {what}")


def serializing_error(message: str) -> Exception:
    """Return the error for tensors that cannot be saved, for this reason."""
    return safetensor_error(f"Error while serializing: {message}")


def saving_error(error: OSError | ValueError) -> Exception:
    """Return the error of safetensors for a failure to save; a ValueError means that no reader accepts the header."""
    if not isinstance(error, OSError):
        reason, token = _REASONS["safetensors.header-too-long"]
        return serializing_error(f"{reason} ({token}): {error}")
    if error.errno is None:
        return serializing_error(f"I/O error: {error}")
    system = f"{os.strerror(error.errno)} (os error {error.errno})"
    what = str(error.strerror).removesuffix(f": {system}")
    return serializing_error(f'I/O error: {system} at path "{escape(str(error.filename))}": {what}')


def _reason(error: WeightsError) -> tuple[str, str]:
    if error.rule == "safetensors.truncated":
        is_header = error.tensor is None
        return ("invalid header length", "InvalidHeaderLength") if is_header else _REASONS["safetensors.trailing-data"]
    reason, token = _REASONS.get(error.rule, _JSON)
    return reason.format(escape(error.tensor or "")), token
