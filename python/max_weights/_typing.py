"""Types for annotations that several modules share, and facts that type checkers cannot infer."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

__all__ = ["JSONObject", "known"]

JSONObject: TypeAlias = dict[str, Any]
"""The result of `json` for an object without a known schema, such as another library's configuration."""

_T = TypeVar("_T")


def known(value: _T | None) -> _T:
    """Return a value that cannot be None here, which its type does not say; `assert` is skipped under `python -O`.

    Raises:
        RuntimeError: it is None, which is a bug of this package.
    """
    if value is None:
        raise RuntimeError("a value of max_weights is missing where it was made before: please report this")
    return value
