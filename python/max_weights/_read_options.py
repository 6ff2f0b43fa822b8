"""`ReadOptions`: how files are read, whatever is loaded from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from max_weights._core import escape
from max_weights._sizes import bytes_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._fingerprint_record import TensorFingerprint

__all__ = ["Backend", "Digests", "ReadKeywords", "ReadOptions"]

Backend: TypeAlias = Literal["auto", "mmap", "read", "direct", "cufile"]
Digests: TypeAlias = "Mapping[str, str] | Mapping[str, TensorFingerprint]"
"""{name: digest}, or a fingerprint with digests: `max_weights.fingerprint(checkpoint, digests=True)`."""


class ReadKeywords(TypedDict, total=False):
    """The fields of `ReadOptions` as keyword arguments."""

    backend: Backend
    max_memory: int | str | None
    threads: int | None
    drop_cache: bool
    digests: Digests | None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files are read: `options=` of `load`, `stream`, `plan`, `load_ranks` and the functions that load a file.

    These also take each field as a keyword argument, which overrides that of `options`. No field changes what is
    loaded.

    Example:
        >>> how = max_weights.types.ReadOptions(threads=2, max_memory="1GB")
        >>> len(weights.load(options=how))
        5
    """

    backend: Backend = "auto"
    """`mmap`: views of the mapping; `read`: positioned reads; `direct`: reads past the page cache; `cufile`: from the
    disk to the GPU. `auto`: the environment variable MAX_WEIGHTS_BACKEND, or the best for the filesystem, the page
    cache and the free memory. The logger `max_weights` reports the choice and why, at level INFO. A stream maps
    nothing: `mmap` is `read` there."""
    max_memory: int | str | None = None
    """The most bytes of host memory that the load may take, or a text such as "500MB"; pages of views are fetched as
    far as they fit. Staging buffers for a device count; without a bound they take at most 512 MiB. For a stream: the
    tensors that are being read, are waiting, or were returned last. Its default is 2 GiB, or an eighth of what this
    process may use; more, if the largest weights need more."""
    threads: int | None = None
    """The number of threads that read and convert. Default: `max_weights.set_threads` or the environment variable
    MAX_WEIGHTS_THREADS; else as many as the process may use, and more if the disk is the bottleneck."""
    drop_cache: bool = False
    """Drop the read bytes from the page cache; every tensor is then a copy."""
    digests: Digests | None = field(default=None, hash=False)
    """The expected digest of each loaded weight, by its name in the file: `sha256:` and 64 hexadecimal digits, or a
    fingerprint with digests. The bytes are compared before the tensor is returned; tensors are then copies."""

    def __post_init__(self) -> None:
        """Turn a text such as "500MB" into a number."""
        most = self.max_memory
        count = bytes_of(most, "max_memory") if isinstance(most, str) else most
        if count is not None and (not isinstance(count, int) or count <= 0):
            raise ArgumentError(f"max_memory must be a number of bytes above 0, not {most!r}", rule="argument.number")
        object.__setattr__(self, "max_memory", count)
        if not (self.digests is None or isinstance(self.digests, Mapping)):
            what = escape(type(self.digests).__name__)
            raise ArgumentError(
                f"digests must be {{name: digest}}, or a fingerprint that has them, not a {what}",
                rule="argument.digests",
            )

    @property
    def host_bytes(self) -> int | None:
        """`max_memory` as a number."""
        return self.max_memory if isinstance(self.max_memory, int) else None

    def backend_for(self, *, views: bool = False) -> str:
        """Return the backend, or that of the environment variable unless views are needed.

        Args:
            views: Whether tensors have to be views of the file.

        Raises:
            ArgumentError: Never; MAX_WEIGHTS_BACKEND is checked where it is used.

        Example:
            >>> max_weights.types.ReadOptions().backend_for(views=True)
            'mmap'
        """
        if views:
            return "mmap"
        return os.environ.get("MAX_WEIGHTS_BACKEND", self.backend) if self.backend == "auto" else self.backend

    @classmethod
    def of(cls, function: str, options: ReadOptions | None, keywords: Mapping[str, Any]) -> ReadOptions:
        """Return the options of a call, combined with its keyword arguments.

        Args:
            function: The name of the called function, for messages.
            options: The options.
            keywords: The other keyword arguments.

        Raises:
            TypeError: a keyword argument that the function does not have, or `options` of another type.

        Example:
            >>> max_weights.types.ReadOptions.of("load", None, {"threads": 2}).threads
            2
        """
        if not (options is None or isinstance(options, ReadOptions)):
            raise TypeError(f"{function}: options must be a ReadOptions, not {options!r}")
        for name in keywords:
            if name not in _NAMES:
                hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
                raise TypeError(f"{function}() got an unexpected keyword argument '{escape(name)}'{hint}")
        return replace(options or _DEFAULT, **keywords) if keywords else options or _DEFAULT


_ELSEWHERE = {
    "remote": "it is of load_weights(path, remote=...), whose tree is loaded then",
    "dequantize": 'it is packed="decode"',
    "storage": 'it is copy="per-tensor"',
    "verify": "it is digests=, with those of max_weights.fingerprint(checkpoint, digests=True)",
    "timeout": "it is rank_timeout=",
}
_NAMES = frozenset(one.name for one in fields(ReadOptions))
_DEFAULT = ReadOptions()
