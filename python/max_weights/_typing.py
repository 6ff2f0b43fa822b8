"""Words for annotations that several modules share; nothing imports this when a program runs."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["JSONObject"]

JSONObject: TypeAlias = dict[str, Any]
"""What `json` makes of an object of which no schema is known here, such as another library's configuration."""
