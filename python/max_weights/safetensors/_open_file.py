"""`safe_open`: one open safetensors file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from max_weights._core import PySafeSlice, _SafetensorsFile, escape
from max_weights.errors import WeightsError
from max_weights.safetensors._devices import device_of
from max_weights.safetensors._errors import closed, missing_tensor, opening_error, safetensor_error
from max_weights.safetensors._frameworks import framework_of, is_delegated
from max_weights.safetensors._installed import found_extension

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from max_weights.safetensors._frameworks import Framework
    from max_weights.safetensors._prefetch import Plan, PrefetchLoader

__all__ = ["TensorMeta", "safe_open"]

_BACKENDS = {"mmap": "mmap", "pread": "read"}


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What the header of a file says about a tensor; the result of `get_tensor_meta`."""

    dtype: str
    """The dtype as safetensors spells it, such as `F32`."""
    shape: list[int] = field(hash=False)
    """The shape, slowest dimension first."""
    data_offsets: tuple[int, int]
    """The first byte and the end in the data, which begins after the header."""


class _Signed(type):
    @property
    def __text_signature__(cls) -> str:
        """The place where programs look for "backend" before they use it, as a Python class has no text signature."""
        return "(filename, framework, device='cpu', *, backend='mmap')"


class safe_open(metaclass=_Signed):
    """An open safetensors file, as a context manager. Only its header is read at first.

    Args:
        filename: The file, as a string or a path.
        framework: The framework of the tensors: "pt" (torch, pytorch), "np" (numpy), or "flax" (jax). For "tf", "mlx"
            and "paddle", the installed safetensors package opens the file, and the result is an object of its class.
        device: Where tensors go, by torch's name for the device or by its number; default: the CPU. Only torch has
            others.
        backend: How tensors are read. With "mmap", torch tensors are writable views of private pages of the file;
            writing to them changes neither the file nor another process. With "pread", each is read into a copy when it
            is used, as arrays of NumPy and JAX always are.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: a directory, or something that is not a regular file.
        SafetensorError: it is not a safetensors file, it is damaged, or an argument is not valid.
    """

    __slots__ = ("_device", "_file", "_framework", "_keys")

    _device: str | int
    _file: _SafetensorsFile | None
    _framework: Framework
    _keys: list[str] | None

    def __new__(
        cls,
        filename: str | os.PathLike[str],
        framework: str,
        device: str | int | None = "cpu",
        *,
        backend: str = "mmap",
    ) -> Self:
        path = os.fspath(filename)
        if not isinstance(path, str):
            raise TypeError(f"filename is a str or an os.PathLike of str, not {type(path).__name__}")
        if not isinstance(backend, str):
            raise TypeError(f"backend is 'mmap' or 'pread', not {type(backend).__name__}")
        if is_delegated(framework) and (package := found_extension()) is not None:
            # Versions before 0.8 have no backends.
            options = {} if backend == "mmap" else {"backend": backend}
            opened: Self = package.safe_open(path, framework, device, **options)
            return opened
        self = super().__new__(cls)
        self._framework, self._device = framework_of(framework, device)
        if backend not in _BACKENDS:
            wrong = f'backend "{escape(backend)}" is invalid (expected one of: "mmap", "pread")'
            raise safetensor_error(wrong)
        self._keys = None
        try:
            self._file = _SafetensorsFile(path, backend=_BACKENDS[backend])
        except WeightsError as error:
            raise opening_error(error, path) from None
        return self

    def _open_file(self) -> _SafetensorsFile:
        if self._file is None:
            raise closed()
        return self._file

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        file = self._open_file()
        if self._keys is None:
            self._keys = file.sorted_names()
        return self._keys.copy()

    def offset_keys(self) -> list[str]:
        """Return the names of all tensors, in the order of the file."""
        return self._open_file().names()

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata of the file; `None` if it has none."""
        return self._open_file().metadata()

    def get_tensor(self, name: str) -> Any:
        """Return a tensor; a SafetensorError for another name, or a dtype that the framework has not."""
        file = self._open_file()
        try:
            return self._framework.tensor(file, name)
        except KeyError:
            raise missing_tensor(name) from None
        except WeightsError as error:
            raise safetensor_error(f"Could not read tensor {escape(name)} from file: {error}") from error

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors by name, in the order of the file: in memory, if they have to come from a disk."""
        try:
            return self._framework.tensors(self._open_file())
        except WeightsError as error:
            raise safetensor_error(f"Could not read tensors from file: {error}") from error

    def get_slice(self, name: str) -> PySafeSlice:
        """Return a tensor that can be read in parts; nothing is read yet."""
        try:
            return self._open_file().slice(name, self._framework)
        except KeyError:
            raise missing_tensor(name) from None

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Return what the header says about a tensor."""
        try:
            dtype, shape, offsets = self._open_file().entry(name)
        except KeyError:
            raise missing_tensor(name) from None
        return TensorMeta(dtype, shape, offsets)

    def prefetch(
        self, plan: Plan | None = None, *, device: str | int | None = None, threads: int = 8
    ) -> PrefetchLoader:
        """Read tensors in the background, and hand out each of them once.

        Args:
            plan: {name: `None` for the whole tensor, or a slice of its first dimension with step 1}; default: all.
            device: Where they go, which may be the CPU; default: the device that the file was opened for.
            threads: The number of threads that read.
        """
        from max_weights.safetensors._prefetch import PrefetchLoader

        file = self._open_file()
        if not self._framework.prefetches:
            raise safetensor_error('prefetch is only compatible with framework="pt"')
        return PrefetchLoader(file, plan, self._device if device is None else device_of(device), threads)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        _exc_type: type[BaseException] | None,
        _exc_value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._file = None

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")


class _safe_open_handle(safe_open):
    """Open a file object that has `fileno` and a name, by that name, as `safe_open` does."""

    __slots__ = ()

    def __new__(cls, f: Any, framework: str, device: str | int | None = "cpu", *, backend: str = "mmap") -> Self:
        _ = f.fileno
        return super().__new__(cls, f.name, framework, device, backend=backend)
