"""`load`, which returns what torch.load returns, and the builder that the Rust core calls for the values of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

import torch
from torch.utils.dlpack import from_dlpack

from max_weights._core import TorchFile, escape, printable
from max_weights._devices import torch_gpu
from max_weights.errors import ArgumentError, DeviceError, UnsupportedError
from max_weights.torch._file import load_file
from max_weights.torch._opened import at_path, position_of

if TYPE_CHECKING:
    import numpy as np

    from max_weights._buffer import Array

    MapLocation = (
        str | torch.device | dict[str, str] | Callable[[torch.UntypedStorage, str], torch.UntypedStorage | None] | None
    )
    Place = tuple[torch.UntypedStorage, str, int, tuple[int, ...], tuple[int, ...]]

__all__ = ["Loading", "load", "maps_by_default"]

_UNKNOWN = ("refuse", "placeholder")
_UNKNOWN_GLOBAL = "torch.global"
_SAFE_GLOBALS = (
    "torch.serialization.add_safe_globals has no effect here, where no function of a file is called: torch.load "
    "builds objects of the classes that it allows, and unknown='placeholder' replaces them"
)


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: MapLocation = "cpu",
    pickle_module: object = None,
    *,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    encoding: str = "utf-8",
    unknown: Literal["refuse", "placeholder"] = "refuse",
) -> Any:
    """Return what `torch.load(f, weights_only=True)` returns: the same nested values, with torch tensors.

    Code in the file, or named by it, is never run. Tensors that share a storage in the file share it here. All are
    copies when this returns, so the file may be overwritten, truncated or deleted.

    A path that ends with `.safetensors` gives what `load_file` does, as in torch from 2.15 on: a dict of tensors, which
    are views of private pages of the file.

    Args:
        f: A file that `torch.save` wrote, of any version from 0.1.10 on: its path, or a file object. A file object at
            the start of a file on disk is replaced by that file; any other, such as `io.BytesIO`, is read to the end.
            The older format may have several consecutive values: a file object is left after the one that was loaded,
            as torch leaves it. After an archive, it is where it was, or at its end.
        map_location: Where storages go, as for `torch.load`: a device, a dict of locations, a function of storage and
            location, or `None` for the device that they were saved on.
        pickle_module: Must be `None`: no other unpickler is used.
        weights_only: True or `None`, which mean the same here. `torch.serialization.add_safe_globals` has no effect: a
            class that it allows would be called.
        mmap: True maps the file: tensors whose storage is uncompressed are views of private pages of the file. Nothing
            is read before it is used, and writing to them changes neither the file nor another process. The file must
            not be changed in place while they are in use. `None` takes `torch.utils.serialization.config.load.mmap`,
            which is False unless a program sets it.
        encoding: The encoding of byte strings of Python 2; there is only one.
        unknown: How to handle objects of classes other than those of tensors and plain values. With "refuse" they are
            an error, as in torch. With "placeholder" a `max_weights.Placeholder` describes each, so that the rest of
            the file can be used.

    Returns:
        The nested values of the file.

    Raises:
        UnsupportedError: the file names a class or function other than those of tensors and plain values
            (`load_weights` reads the tensors of such a file); or an argument asks for something that could run code.
        FormatError: the file is damaged.
        ArgumentError: `f` is neither a path nor a file object that gives bytes.

    Example:
        >>> sorted(max_weights.torch.load("model.pt"))[0]
        'lm_head.weight'
    """
    if pickle_module is not None or weights_only is False or encoding != "utf-8":
        raise UnsupportedError(
            "only weights and plain values are loaded here, without running code: pickle_module=, weights_only=False "
            "and another encoding= are for torch.load, which can run code of the file",
            rule="unsupported.option",
        )
    if unknown not in _UNKNOWN:
        raise ArgumentError(
            f"unknown must be one of {', '.join(map(repr, _UNKNOWN))}, not {escape(repr(unknown))}",
            rule="argument.choice",
        )
    if isinstance(f, (str, os.PathLike)) and os.fspath(f).endswith(".safetensors"):
        return _of_safetensors(os.fspath(f), map_location)
    mapped = maps_by_default() if mmap is None else mmap
    start = position_of(f)
    with at_path(f) as path:
        loading = Loading(path, map_location, mmap=mapped)
        try:
            value = loading.value(placeholders=unknown == "placeholder")
        except UnsupportedError as error:
            if error.rule == _UNKNOWN_GLOBAL:
                error.args = (f"{error}; {_SAFE_GLOBALS}",)
            raise
    if start is not None:
        loading.go_after(f, start)
    return value


def _of_safetensors(path: str, map_location: MapLocation) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, which has no storages for a map to place."""
    if map_location is not None and not isinstance(map_location, (str, torch.device)):
        raise ArgumentError(
            "map_location must be a device for a safetensors file, not a dict or a function: it has no storages with "
            "separate locations",
            rule="argument.conflict",
        )
    return dict(load_file(path, device="cpu" if map_location is None else map_location))


def maps_by_default() -> bool:
    """Whether the program set torch's default to mapping files."""
    config = getattr(sys.modules.get("torch.utils.serialization.config"), "load", None)
    return bool(getattr(config, "mmap", False))


class Loading:
    """A file that is open for loading."""

    def __init__(self, path: str | os.PathLike[str], map_location: MapLocation, *, mmap: bool) -> None:
        self._file = TorchFile(path)
        self._own = not mmap
        self._builder = Builder(map_location)

    @property
    def globals(self) -> list[str]:
        """Every class and function that the file names, such as `torch._utils._rebuild_tensor_v2`."""
        return self._file.globals

    def go_after(self, file: Any, start: int) -> None:
        """Leave an open file at the end of the loaded value; archives end with their file, and torch leaves it
        anywhere.

        A file can have several consecutive streams, so that loading twice gives two values.
        """
        if self._file.is_stream:
            followed = self._file.followed_at
            file.seek(*((0, os.SEEK_END) if followed is None else (start + followed, os.SEEK_SET)))

    @property
    def raised(self) -> Exception | None:
        """The exception that the function given as `map_location` raised."""
        return self._builder.raised

    def value(self, *, placeholders: bool = False) -> Any:
        """Return the value; with `placeholders`, objects that are not built are described and not refused."""
        where = self._builder.map_location
        if gpu := torch_gpu(torch, where) if isinstance(where, (str, torch.device)) else None:
            try:
                return self._file.build(self._builder, data=True, own=True, device=gpu, placeholders=placeholders)
            except DeviceError:
                pass  # torch allocates there, and raises errors that programs know
        data = not _is_meta(where)
        return self._file.build(self._builder, data=data, own=self._own, placeholders=placeholders)


class Builder:
    """Builds the objects that only torch can build, for the Rust core."""

    def __init__(self, map_location: MapLocation) -> None:
        self.map_location = map_location
        self.raised: Exception | None = None
        """The exception that the caller's own function raised."""

    def storage(self, data: object, size: int, location: str) -> torch.UntypedStorage:
        """Return a storage of these bytes, on the device that `map_location` chooses for one from `location`.

        The bytes come as a DLPack capsule, as an existing Buffer, or as `None`.
        """
        where = self.map_location
        if isinstance(where, dict):
            where = where.get(location, location)
        if where is None:
            where = location
        if _is_meta(where):
            return torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
        tensor = from_dlpack(data) if size else torch.empty(0, dtype=torch.uint8, device="cpu")
        storage = tensor.untyped_storage()
        if storage.device.type != "cpu":
            return storage
        if isinstance(where, (str, torch.device)):
            return storage if str(where) == "cpu" else _restored(storage, str(where))
        try:
            moved = where(storage, location)
        except Exception as error:
            self.raised = error
            raise
        return _restored(storage, location) if moved is None else moved

    def strided(self, place: Place, requires_grad: bool) -> torch.Tensor:
        """Return a tensor over a part of a storage."""
        storage, dtype, offset, shape, strides = place
        tensor = torch.empty(0, dtype=getattr(torch, dtype), device=storage.device)
        tensor.set_(storage, offset, shape, strides)
        if requires_grad:
            tensor.requires_grad_()
        return tensor

    def flipped(self, place: Place, conjugate: bool, negative: bool, requires_grad: bool) -> torch.Tensor:
        """Return a view whose elements are conjugated or negated when they are read."""
        tensor = self.strided(place, False)
        tensor = torch.conj(tensor) if conjugate else tensor
        tensor = torch._neg_view(tensor) if negative else tensor
        return tensor.requires_grad_() if requires_grad else tensor

    def sparse(
        self,
        layout: str,
        indices: tuple[torch.Tensor, ...],
        values: torch.Tensor,
        shape: tuple[int, ...],
        coalesced: bool | None,
        requires_grad: bool,
    ) -> torch.Tensor:
        """Return a sparse tensor; its indices are checked against its shape."""
        kind = self.layout(layout)
        if kind is torch.sparse_coo:
            tensor = torch.sparse_coo_tensor(indices[0], values, shape, is_coalesced=coalesced, check_invariants=True)
        else:
            tensor = torch.sparse_compressed_tensor(
                indices[0], indices[1], values, shape, layout=kind, check_invariants=True
            )
        return tensor.requires_grad_() if requires_grad else tensor

    def quantized(
        self,
        place: Place,
        scheme: str,
        scale: object,
        zero_point: object,
        axis: int | None,
        requires_grad: bool,
    ) -> torch.Tensor:
        """Return a quantized tensor."""
        storage, dtype, offset, shape, strides = place
        typed = self.typed_storage(storage, dtype)
        parameters = (getattr(torch, scheme), scale, zero_point)
        tensor: torch.Tensor = torch._utils._rebuild_qtensor(  # type: ignore[no-untyped-call]
            typed, offset, shape, strides, parameters if axis is None else (*parameters, axis), requires_grad, None
        )
        return tensor

    def meta(self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
        """Return a tensor without data."""
        return torch.empty_strided(
            shape, strides, dtype=getattr(torch, dtype), device="meta", requires_grad=requires_grad
        )

    def converted(self, data: object, dtype: str, requires_grad: bool) -> torch.Tensor:
        """Return a tensor of another kind of device, which was saved as an array or as a CPU tensor."""
        tensor = data if isinstance(data, torch.Tensor) else torch.from_numpy(data)
        tensor = tensor.to(dtype=getattr(torch, dtype))
        return tensor.requires_grad_() if requires_grad else tensor

    def parameter(self, tensor: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
        """Return a parameter over a tensor."""
        return torch.nn.Parameter(tensor, requires_grad)

    def subclass(self, tensor: torch.Tensor, name: str) -> torch.Tensor | None:
        """Return a tensor of one of torch's own classes; `None` for any other class."""
        if name in ("torch._tensor.Tensor", "torch.Tensor"):
            return tensor
        if name == "torch.nn.parameter.Parameter":
            return tensor if isinstance(tensor, torch.nn.Parameter) else tensor.as_subclass(torch.nn.Parameter)
        return None

    def set_state(self, instance: torch.Tensor, state: object) -> None:
        """Set the Python attributes of a tensor, from a dict or from a pair of dict and slots."""
        for part in state if isinstance(state, tuple) else (state,):
            for key, value in (part or {}).items():
                setattr(instance, key, value)

    def typed_storage(self, storage: torch.UntypedStorage, dtype: str) -> torch.TypedStorage:
        """Return a storage that was saved by itself."""
        return torch.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True
        )

    def size(self, dims: Sequence[int]) -> torch.Size:
        """Return a shape."""
        return torch.Size(dims)

    def dtype(self, name: str) -> torch.dtype:
        """Return a dtype."""
        value: torch.dtype = getattr(torch, name)
        return value

    def device(self, name: str) -> torch.device:
        """Return a device."""
        return torch.device(name)

    def layout(self, name: str) -> torch.layout:
        """Return a layout, by its full name."""
        value: torch.layout = getattr(torch, name.removeprefix("torch."))
        return value

    def numpy_dtype(self, name: str) -> np.dtype[np.generic]:
        """Return a NumPy dtype."""
        import numpy as np

        return np.dtype(name)

    def numpy_scalar(self, data: bytes, dtype: str) -> object:
        """Return a NumPy scalar."""
        import numpy as np

        return np.frombuffer(data, np.dtype(dtype), 1)[0]

    def numpy_array(self, data: bytes, dtype: str, shape: tuple[int, ...], fortran: bool) -> Array:
        """Return a NumPy array."""
        from max_weights._buffer import pickled_array

        return pickled_array(data, dtype, shape, fortran)

    def named(self, name: str) -> object:
        """Return a class or constant of torch that is a value in the file; `None` for any other."""
        return _NAMED.get(name)


_NAMED = {
    "torch.Tensor": torch.Tensor,
    "torch._tensor.Tensor": torch.Tensor,
    "torch.nn.parameter.Parameter": torch.nn.Parameter,
    "torch.Size": torch.Size,
    "torch.device": torch.device,
    "torch.per_tensor_affine": torch.per_tensor_affine,
    "torch.per_tensor_symmetric": torch.per_tensor_symmetric,
    "torch.per_channel_affine": torch.per_channel_affine,
    "torch.per_channel_symmetric": torch.per_channel_symmetric,
    "torch.per_channel_affine_float_qparams": torch.per_channel_affine_float_qparams,
}


def _is_meta(where: object) -> bool:
    return isinstance(where, (str, torch.device)) and str(where) == "meta"


def _restored(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
    try:
        moved: torch.UntypedStorage
        moved = torch.serialization.default_restore_location(storage, location)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UnsupportedError(
            f"a storage cannot be put on {location!r}: {printable(error)}", rule="unsupported.option"
        ) from error
    return moved
