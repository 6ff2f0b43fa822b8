"""Errors of commands that run in Python, reported as the native ones do (`crates/cli/src/failure.rs`)."""

from __future__ import annotations

import json
import sys

from max_weights._core import printable
from max_weights.errors import ArgumentError, DeviceError

__all__ = ["report_error"]

USAGE, UNREADABLE = 2, 3


def report_error(error: Exception, *, as_json: bool = False) -> int:
    """Print the error that ended a command: in one line on standard error, in JSON on the output; return the status."""
    message = printable(_message(error))
    if as_json:
        print(json.dumps({"schema": "max-weights.error/1", "error": {"kind": _kind(error), "message": message}}))
    print(f"max-weights: {message}", file=sys.stderr)
    return USAGE if isinstance(error, ArgumentError) else UNREADABLE


def _message(error: Exception) -> str:
    """Return the sentence of an error; for errors of the system, that of the native commands."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)


def _kind(error: Exception) -> str:
    """Return the command line's name for such an error in JSON."""
    match error:
        case ArgumentError():
            return "usage"
        case ImportError() | DeviceError():
            return "missing"
        case _:
            return "checkpoint"
