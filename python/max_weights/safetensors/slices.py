"""`PySafeSlice`: a tensor that is taken in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from max_weights._core import SafetensorsFile
    from max_weights.safetensors.frameworks import Framework

__all__ = ["PySafeSlice"]


class PySafeSlice:
    """A tensor that is taken in parts; what `safe_open.get_slice` gives. It stays valid when the file is closed."""

    __slots__ = ("_file", "_framework", "_name")

    def __init__(self, file: SafetensorsFile, framework: Framework, name: str) -> None:
        self._file = file
        self._framework = framework
        self._name = name

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor, slowest dimension first."""
        return self._file.shape(self._name)

    def get_dtype(self) -> str:
        """The dtype as safetensors spells it, such as `BF16`."""
        return self._file.dtype(self._name)

    def __getitem__(self, index: Any) -> Any:
        """The part that an index of the framework selects: for torch and NumPy a view of the file's private pages.

        A negative step is allowed, too. From a file that is read (`backend="pread"`), no more is read than a basic
        index selects.

        Raises:
            IndexError: torch: there is no such part.
            SafetensorError: NumPy and JAX: there is no such part.
        """
        return self._framework.part(self._file, self._name, index)
