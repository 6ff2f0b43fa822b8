"""`safe_open`: one open safetensors file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from max_weights._core import PySafeSlice, _SafetensorsFile, shown
from max_weights.errors import WeightsError
from max_weights.safetensors.devices import device_of
from max_weights.safetensors.errors import closed, missing_tensor, opening_error, safetensor_error
from max_weights.safetensors.frameworks import framework_of, is_elsewhere
from max_weights.safetensors.installed import found_extension
from max_weights.safetensors.tensor_meta import TensorMeta

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from max_weights.safetensors.frameworks import Framework
    from max_weights.safetensors.prefetch import Plan, PrefetchLoader

__all__ = ["safe_open"]

_BACKENDS = {"mmap": "mmap", "pread": "read"}


class _Signed(type):
    @property
    def __text_signature__(cls) -> str:
        """Where programs look for "backend" before they use it: a class of Python has none of its own."""
        return "(filename, framework, device='cpu', *, backend='mmap')"


class safe_open(metaclass=_Signed):
    """One safetensors file, open; a context manager. Only its header is read now.

    Args:
        filename: The file, as a string or a path.
        framework: What tensors are made for: "pt" (torch, pytorch), "np" (numpy), or "flax" (jax). For "tf", "mlx" and
            "paddle" the installed safetensors package opens the file; what is returned is an object of its class.
        device: Where tensors go, by torch's name of it or its number; default: the CPU. Only torch has others.
        backend: "mmap": tensors are writable views of private pages of the file; writing to them changes neither
            the file nor another process. "pread": each is read into memory of its own when it is taken.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: a directory, or what is no regular file.
        SafetensorError: no safetensors file, a damaged one, or an argument that makes no sense.
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
        if is_elsewhere(framework) and (package := found_extension()) is not None:
            # Versions before 0.8 have no backends.
            options = {} if backend == "mmap" else {"backend": backend}
            opened: Self = package.safe_open(path, framework, device, **options)
            return opened
        self = super().__new__(cls)
        self._framework, self._device = framework_of(framework, device)
        if backend not in _BACKENDS:
            wrong = f'backend "{shown(backend)}" is invalid (expected one of: "mmap", "pread")'
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
        """The names of all tensors, sorted."""
        file = self._open_file()
        if self._keys is None:
            self._keys = file.sorted_names()
        return self._keys.copy()

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of the file."""
        return self._open_file().names()

    def metadata(self) -> dict[str, str] | None:
        """The metadata of the file; None where it has none."""
        return self._open_file().metadata()

    def get_tensor(self, name: str) -> Any:
        """A tensor.

        Raises:
            SafetensorError: there is none of this name, or the framework has no such dtype.
        """
        file = self._open_file()
        try:
            return self._framework.tensor(file, name)
        except KeyError:
            raise missing_tensor(name) from None
        except WeightsError as error:
            raise safetensor_error(f"Could not read tensor {shown(name)} from file: {error}") from error

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of the file. Where they have to come from a disk, they are in memory when
        this returns.

        Raises:
            SafetensorError: the framework has no such dtype.
        """
        try:
            return self._framework.tensors(self._open_file())
        except WeightsError as error:
            raise safetensor_error(f"Could not read tensors from file: {error}") from error

    def get_slice(self, name: str) -> PySafeSlice:
        """A tensor that is taken in parts, of which nothing is read now.

        Raises:
            SafetensorError: there is none of this name.
        """
        try:
            return self._open_file().slice(name, self._framework)
        except KeyError:
            raise missing_tensor(name) from None

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """What the header says of a tensor.

        Raises:
            SafetensorError: there is none of this name.
        """
        try:
            dtype, shape, offsets = self._open_file().entry(name)
        except KeyError:
            raise missing_tensor(name) from None
        return TensorMeta(dtype, shape, offsets)

    def prefetch(
        self, plan: Plan | None = None, *, device: str | int | None = None, threads: int = 8
    ) -> PrefetchLoader:
        """Read tensors in the background, and hand each of them out once.

        Args:
            plan: {name: None for the whole tensor, or a slice of its first dimension with the step 1}; default: all.
            device: Where they go; default: as the file was opened. The CPU is one, too.
            threads: How many read.

        Raises:
            SafetensorError: the file was not opened for torch, or the plan names what is not there.
        """
        from max_weights.safetensors.prefetch import PrefetchLoader

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
    """As `safe_open`, of an open file that has a name.

    Args:
        f: A file object with `fileno` and `name`; it is opened by its name.
        framework: As of `safe_open`.
        device: As of `safe_open`.
        backend: As of `safe_open`.
    """

    __slots__ = ()

    def __new__(cls, f: Any, framework: str, device: str | int | None = "cpu", *, backend: str = "mmap") -> Self:
        _ = f.fileno
        return super().__new__(cls, f.name, framework, device, backend=backend)
