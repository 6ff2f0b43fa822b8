"""The exception classes. Each is a `WeightsError` and also the built-in class that callers of such code already catch.

The messages are written by the Rust core, which also fills in the attributes; this module imports nothing of the
package, so that the core can fetch it from anywhere.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ClosedError",
    "DeviceError",
    "FileChangedError",
    "FormatError",
    "GraphError",
    "GraphIndexError",
    "MissingFileError",
    "NoGraphError",
    "UnsupportedError",
    "WeightAttributeError",
    "WeightNotFoundError",
    "WeightsError",
]


class WeightsError(Exception):
    """The base of every error that this package raises by itself.

    The attributes say as data what the message says in words; each is None where it is not known.
    """

    rule: str | None = None
    """The stable id of the broken rule, such as `safetensors.overlap`."""
    path: str | None = None
    """The file."""
    tensor: str | None = None
    """The full name of the tensor."""
    offset: int | None = None
    """The byte offset in the file."""
    help: str | None = None
    """What to do about it."""


class WeightNotFoundError(WeightsError, KeyError):
    """No weight of this name."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which quotes and escapes a sentence.
        return Exception.__str__(self)


class WeightAttributeError(WeightNotFoundError, AttributeError):
    """What weights have, such as a shape, asked of a name that is none."""


class FormatError(WeightsError, ValueError):
    """Bytes that break the rules of their file format."""


class UnsupportedError(WeightsError, NotImplementedError):
    """Legal, but nothing here can do it."""


class FileChangedError(WeightsError, OSError):
    """The file is no longer the one that was opened."""


class DeviceError(WeightsError, RuntimeError, ValueError):
    """A device that is absent, or not able to do what was asked."""


class MissingFileError(WeightsError, FileNotFoundError, ValueError):
    """A path that does not exist. Made as `MissingFileError(errno, message, filename)`, it has those attributes."""


class ClosedError(WeightsError, ValueError):
    """The checkpoint was closed."""


class ArgumentError(WeightsError, ValueError):
    """An argument that makes no sense."""


class GraphError(WeightsError, ValueError):
    """An operation of a graph whose operands do not fit, or that has no graph to go to."""

    op: str | None = None
    """The name of the operation."""
    place: str | None = None
    """The user's line, as `file:line`."""


class GraphIndexError(GraphError, IndexError):
    """An axis, or a position on an axis, that a shape does not have."""


class NoGraphError(GraphError, LookupError):
    """There is no graph that an operation could go to."""
