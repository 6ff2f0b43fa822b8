"""The exception classes. Each is a `WeightsError` and also the built-in class that callers already catch.

The Rust core writes the messages and fills in the attributes. This module imports nothing of the package, so that the
core can import it from anywhere.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights._finding import Finding
del TYPE_CHECKING

__all__ = [
    "ArgumentError",
    "ClosedError",
    "DeviceError",
    "FileChangedError",
    "FormatError",
    "InternalError",
    "MissingFileError",
    "RankError",
    "UnsupportedError",
    "VerificationError",
    "WeightAttributeError",
    "WeightNotFoundError",
    "WeightsError",
]


class WeightsError(Exception):
    """The base of every error that this package raises itself.

    The attributes repeat facts of the message as data; each is `None` if it is not known.
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
    """The remedy."""


class WeightNotFoundError(WeightsError, KeyError):
    """No weight has this name."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which quotes and escapes a sentence.
        return Exception.__str__(self)


class WeightAttributeError(WeightNotFoundError, AttributeError):
    """An attribute of weights, such as a shape, was requested of a name that is not a weight."""


class FormatError(WeightsError, ValueError):
    """Bytes break the rules of their file format."""


class UnsupportedError(WeightsError, NotImplementedError):
    """A valid request, file or value that this package does not support."""


class FileChangedError(WeightsError, OSError):
    """The file changed after it was opened."""


class DeviceError(WeightsError, RuntimeError, ValueError):
    """A device is absent, or cannot do what was asked."""


class MissingFileError(WeightsError, FileNotFoundError, ValueError):
    """A path does not exist. Created as `MissingFileError(errno, message, filename)`, it has those attributes."""


class ClosedError(WeightsError, ValueError):
    """The checkpoint was closed."""


class ArgumentError(WeightsError, ValueError):
    """An argument is not valid."""


class InternalError(WeightsError, RuntimeError):
    """A bug of this package: its compiled part panicked, and did not finish."""


class RankError(WeightsError, RuntimeError):
    """One of several ranks that load or save together has failed, is gone, or does not answer: raised on all of them.

    The attributes are those of the error on that rank.
    """

    rank: int | None = None
    """The failed rank of the group."""
    host: str | None = None
    """The name of its machine."""
    _failure: object = None


class VerificationError(WeightsError, ValueError):
    """A loaded model differs from its files."""

    findings: tuple["Finding", ...] = ()
    """The differences: each a `max_weights.types.Finding`."""
