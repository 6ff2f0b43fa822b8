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

    The attributes repeat facts of the message as data; each but `rule` is `None` if it is not known.
    """

    rule: str = "error.other"
    """The stable code of the error: the id of a broken rule, such as `safetensors.overlap`, or another of the codes
    below, such as `weight.not-found`. It stays the same from release to release; the text of the message may change.
    """
    path: str | None = None
    """The file."""
    tensor: str | None = None
    """The full name of the tensor."""
    offset: int | None = None
    """The byte offset in the file."""
    help: str | None = None
    """The remedy."""

    def __init__(self, *args: object, rule: str | None = None) -> None:
        super().__init__(*args)
        if rule is not None:
            self.rule = rule


class WeightNotFoundError(WeightsError, KeyError):
    """No weight has this name."""

    rule = "weight.not-found"

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which quotes and escapes a sentence.
        return Exception.__str__(self)


class WeightAttributeError(WeightNotFoundError, AttributeError):
    """An attribute of weights, such as a shape, was requested of a name that is not a weight."""

    rule = "weight.attribute"


class FormatError(WeightsError, ValueError):
    """Bytes break the rules of their file format."""

    rule = "file.invalid"


class UnsupportedError(WeightsError, NotImplementedError):
    """A valid request, file or value that this package does not support."""

    rule = "unsupported.request"


class FileChangedError(WeightsError, OSError):
    """The file changed after it was opened."""

    rule = "file.changed"


class DeviceError(WeightsError, RuntimeError, ValueError):
    """A device is absent, or cannot do what was asked."""

    rule = "device.failed"


class MissingFileError(WeightsError, FileNotFoundError, ValueError):
    """A path does not exist. Created as `MissingFileError(errno, message, filename)`, it has those attributes."""

    rule = "file.missing"


class ClosedError(WeightsError, ValueError):
    """The checkpoint was closed."""

    rule = "checkpoint.closed"


class ArgumentError(WeightsError, ValueError):
    """An argument is not valid."""

    rule = "argument.value"


class InternalError(WeightsError, RuntimeError):
    """A bug of this package: its compiled part panicked, and did not finish."""

    rule = "internal.panic"


class RankError(WeightsError, RuntimeError):
    """One of several ranks that load or save together has failed, is gone, or does not answer: raised on all of them.

    The attributes are those of the error on that rank.
    """

    rule = "rank.failed"
    rank: int | None = None
    """The failed rank of the group."""
    host: str | None = None
    """The name of its machine."""
    _failure: object = None


class VerificationError(WeightsError, ValueError):
    """A loaded model differs from its files."""

    rule = "model.differs"
    findings: tuple["Finding", ...] = ()
    """The differences: each a `max_weights.types.Finding`."""
