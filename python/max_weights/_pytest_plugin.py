"""The fixture `checkpoint_ok`, which pytest finds if max_weights is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from max_weights._checking import Report


@pytest.fixture(scope="session")
def checkpoint_ok() -> Callable[..., Report]:
    """Return `max_weights.assert_checkpoint_ok`: `checkpoint_ok("model.safetensors", level="content")`."""
    from max_weights._checking import assert_checkpoint_ok

    return assert_checkpoint_ok
