"""Tensors of an open file in the framework that it was opened for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from max_weights._core import escape
from max_weights._devices import torch_gpu
from max_weights.errors import DeviceError
from max_weights.safetensors._array_indices import array_index
from max_weights.safetensors._devices import device_of
from max_weights.safetensors._errors import no_dtype, safetensor_error

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from max_weights._buffer import Array
    from max_weights._core import Buffer, _SafetensorsFile

__all__ = ["SUPPORTED", "Framework", "framework_of", "from_capsule", "is_delegated", "on_gpu", "to_array", "to_torch"]

_T = TypeVar("_T")

# Every name that safetensors accepts, and the framework that it stands for.
_NAMES = {
    "pt": "pytorch",
    "torch": "pytorch",
    "pytorch": "pytorch",
    "np": "numpy",
    "numpy": "numpy",
    "jax": "flax",
    "flax": "flax",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "mlx": "mlx",
    "paddle": "paddle",
}
SUPPORTED = ("pytorch", "numpy", "flax")
"""The frameworks for which this package makes tensors."""


def is_delegated(name: object) -> bool:
    """Whether safetensors supports this framework, and this package does not."""
    return isinstance(name, str) and _NAMES.get(name, SUPPORTED[0]) not in SUPPORTED


def framework_of(name: object, device: object) -> tuple[Framework, str | int]:
    """Return the framework of this name, and the full name of the device on which it makes tensors."""
    if not isinstance(name, str):
        raise TypeError(f"framework is a name such as 'pt', not {type(name).__name__}")
    framework = _NAMES.get(name)
    if framework is None:
        raise safetensor_error(f"framework {escape(name)} is invalid")
    device = device_of(device)
    if framework not in SUPPORTED:
        raise safetensor_error(
            f"framework {framework} is not supported by max_weights itself (it supports {', '.join(SUPPORTED)}), but "
            "by the safetensors package, which is not installed: pip install safetensors"
        )
    if framework == "pytorch":
        return _Torch(device), device
    if device != "cpu":
        raise safetensor_error(f"Device {device} is not supported for framework {framework}")
    return _Numpy() if framework == "numpy" else _Jax(), device


class _Torch:
    """A tensor is a view of the file's private pages with a separate storage; on a device, memory there."""

    __slots__ = ("_convert", "_device")

    prefetches = True

    def __init__(self, device: str | int) -> None:
        self._device = device
        self._convert = from_capsule()

    def tensor(self, file: _SafetensorsFile, name: str) -> object:
        try:
            if (loaded := on_gpu(self._device, lambda gpu: file.buffer(name).to(gpu))) is not None:
                return to_torch(loaded)
            tensor = file.take(name, self._convert, whole=True)
        except BufferError:
            raise no_dtype(file.dtype(name)) from None
        return tensor if self._device == "cpu" else tensor.to(self._device)

    def tensors(self, file: _SafetensorsFile) -> dict[str, Any]:
        try:
            if (loaded := on_gpu(self._device, file.buffers)) is not None:
                return {name: to_torch(buffer) for name, buffer in loaded}
            tensors = file.take_all(self._convert)
        except BufferError:
            return {name: self.tensor(file, name) for name in file.names()}  # an error here names the tensor
        if self._device != "cpu":
            for name, tensor in tensors.items():
                tensors[name] = tensor.to(self._device)
        return tensors

    def part(self, file: _SafetensorsFile, name: str, index: object) -> object:
        def load(gpu: str) -> Buffer | None:
            part = _part_that_is_read(file, name, index)
            return None if part is None else part.to(gpu)

        try:
            if (loaded := on_gpu(self._device, load)) is not None:
                return to_torch(loaded)
            tensor = self._part(file, name, index)
        except BufferError:
            raise no_dtype(file.dtype(name)) from None
        return tensor if self._device == "cpu" else tensor.to(self._device)

    def _part(self, file: _SafetensorsFile, name: str, index: Any) -> torch.Tensor:
        if not file.is_mapped and (part := _part_that_is_read(file, name, index)) is not None:
            return self._convert(part.__dlpack__(max_version=(1, 0)))
        whole = file.take(name, self._convert, whole=False)
        try:
            return whole[index]
        except ValueError:
            # torch has no negative steps.
            backwards = _part_that_is_read(file, name, index)
            if backwards is None:
                raise
            return self._convert(backwards.copy().__dlpack__(max_version=(1, 0)))


def from_capsule() -> Callable[[object], torch.Tensor]:
    """Return a function that makes a CPU tensor of a DLPack capsule, whatever torch's default device."""
    import torch
    from torch.utils.dlpack import from_dlpack

    def convert(capsule: object) -> torch.Tensor:
        tensor = from_dlpack(capsule)
        # Memory of no bytes has the address of its neighbour, so torch.save would take them for one storage.
        return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")

    return convert


def on_gpu(device: str | int, load: Callable[[str], _T]) -> _T | None:
    """Load to a GPU; `None` leaves it, and its errors, to torch: for another device, or if the GPU refuses us."""
    if device == "cpu":
        return None
    import torch

    gpu = torch_gpu(torch, device)
    try:
        return None if gpu is None else load(gpu)
    except DeviceError:
        return None


def to_torch(buffer: Buffer) -> torch.Tensor:
    """Return the torch tensor over GPU memory, for which torch's current stream waits."""
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(buffer)


def _part_that_is_read(file: _SafetensorsFile, name: str, index: object) -> Buffer | None:
    """Return the part that a basic index selects; `None` for any other, and for one that the framework must refuse."""
    try:
        return file.part(name, index)
    except (IndexError, TypeError, ValueError):
        return None


class _Numpy:
    """NumPy. An array is a copy, as in the safetensors package: the file may change under it."""

    __slots__ = ()

    prefetches = False

    def __init__(self) -> None:
        import numpy  # noqa: F401 (without NumPy, opening the file fails here, not at its first tensor)

        import max_weights._buffer  # noqa: F401 (which knows how arrays are made)

    def tensor(self, file: _SafetensorsFile, name: str) -> object:
        return self._of(to_array(file.buffer(name), file.dtype(name)))

    def tensors(self, file: _SafetensorsFile) -> dict[str, Any]:
        return {name: self._of(to_array(buffer, file.dtype(name))) for name, buffer in file.buffers(own=True)}

    def part(self, file: _SafetensorsFile, name: str, index: object) -> object:
        import numpy as np

        part = file.part(name, array_index(index, file.shape(name)))
        return self._of(np.ascontiguousarray(to_array(part, file.dtype(name))).reshape(part.shape))

    def _of(self, array: Array) -> object:
        """Return the object that a program gets for an array."""
        return array


def to_array(buffer: Buffer, dtype: str) -> Array:
    """Return a NumPy array of a tensor with a dtype of this name in safetensors files, never a view of a mapping.

    Dtypes that ml_dtypes adds to NumPy are errors of NumPy's if the program has not imported it.
    """
    import numpy as np

    if dtype.startswith("F6_"):
        raise no_dtype(dtype)
    if "ml_dtypes" not in sys.modules or dtype == "F4":
        if dtype == "BF16":
            np.dtype("bfloat16")
        if dtype.startswith("F8") or dtype == "F4":
            getattr(np, buffer.dtype.name)
    return (buffer if buffer.aligned and not buffer.is_mapped else buffer.copy()).to_numpy()


class _Jax(_Numpy):
    """JAX, through NumPy, with its default device and its choice of widths."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        import jax  # noqa: F401 (and ml_dtypes with it)

    def _of(self, array: Array) -> object:
        import jax.numpy as jnp

        return jnp.asarray(array)


Framework: TypeAlias = _Torch | _Numpy
