"""What all commands share: sizes as they are printed, the console, and errors as one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from max_weights._core import printable
from max_weights.errors import WeightsError

CHECKPOINT = "A file, a directory, an index, or ORG/MODEL[@REVISION] in the local Hugging Face cache."
"""The help of every argument that names a checkpoint; it is passed on as text, because not all of these are paths."""


def size(count: int) -> str:
    """Bytes for people, in powers of ten: `90.9 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def plural(count: int, noun: str) -> str:
    """`1 weight`, `2,048 weights`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def console(*, stderr: bool = False) -> Console:
    """A console that never wraps or cuts a line, and takes no markup from a name."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


def warn(message: str) -> None:
    """Print a warning on standard error, so that piped output stays what it is."""
    console(stderr=True).print(Text("warning: ", "yellow").append(printable(message), "default"))


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and one line on standard error."""
    sys.stdout.flush()
    console(stderr=True).print(Text("max-weights: ", "red").append(printable(message), "default"))
    raise typer.Exit(1)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn what a checkpoint or the system can do to a command into one line and exit code 1."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of a pipe has seen enough: `max-weights ls … | head`
    except (WeightsError, OSError, ImportError) as error:
        fail(describe(error))
    except MemoryError as error:
        fail(f"not enough memory: {error}")


def describe(error: Exception) -> str:
    """The message of an error; those of the system as `PATH: REASON`."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


ARRAY_SHOWN = 8
"""Elements of an array of the metadata that are shown."""


def plain(value: object, shown: int | None = ARRAY_SHOWN) -> object:
    """A value of the metadata as JSON and people can have it.

    Args:
        value: A value of `Weights.metadata`.
        shown: Of a longer array so many elements, and a text that says how many more there are; None: all of them.
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    to_list = getattr(value, "tolist", None)
    values = to_list() if to_list is not None else value
    if not isinstance(values, list):
        return values
    first = [plain(item, shown) for item in values[:shown]]
    return first if len(first) == len(values) else [*first, f"… {len(values) - len(first):,} more"]
