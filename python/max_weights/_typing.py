"""Words for annotations that several modules share, and what type checkers cannot see by themselves."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

__all__ = ["JSONObject", "known"]

JSONObject: TypeAlias = dict[str, Any]
"""What `json` makes of an object of which no schema is known here, such as another library's configuration."""

_T = TypeVar("_T")


def known(value: _T | None) -> _T:
    """Return a value that is there by now, which no type says: an `assert` would be gone under `python -O`.

    Raises:
        RuntimeError: it is not there, which is an error of this package.
    """
    if value is None:
        raise RuntimeError("a value of max_weights is missing where it was made before: please report this")
    return value
