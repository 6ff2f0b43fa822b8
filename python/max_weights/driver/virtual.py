"""Compiling for a device that is not there: inside `virtual_devices()`, conversions change the dtype and touch no
data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from max_weights._core import shown
from max_weights.errors import UnsupportedError

_VIRTUAL: ContextVar[bool] = ContextVar("max_weights_virtual_devices", default=False)


@contextmanager
def virtual_devices() -> Iterator[None]:
    """Make `WeightData.astype` return the target dtype over no data, as a compilation needs it that only looks at
    dtypes
    and shapes. Holds for the current context (thread or task) alone.
    """
    token = _VIRTUAL.set(True)
    try:
        yield
    finally:
        _VIRTUAL.reset(token)


def devices_are_virtual() -> bool:
    """True inside `virtual_devices()`."""
    return _VIRTUAL.get()


class NoData:
    """Stands for data that was never converted; reading it raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Stand for the data of the weight `name`."""
        self._name = name

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"weight '{shown(self._name)}' was converted inside virtual_devices(), which keeps dtype and shape "
            "but no data; convert it outside to read it"
        )

    def __dlpack__(self, **_: Any) -> NoReturn:
        self._refuse()

    def __dlpack_device__(self) -> NoReturn:
        self._refuse()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self._refuse()

    def __repr__(self) -> str:
        return "NoData()"
