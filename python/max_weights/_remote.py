"""Checkpoints where they are: how URLs are opened, and files of which a function of yours reads the bytes.

`load_weights("s3://bucket/model")`, `gs://`, `az://`, `https://` and `hf://org/model` need nothing of this module: the
environment and the profile say who asks. It is for what they do not say.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from max_weights._core import RangeSource, RemoteStore
from max_weights._sizes import bytes_of
from max_weights.errors import ArgumentError

__all__ = ["Credentials", "Remote", "source", "store_of"]

Credentials: TypeAlias = "Callable[[], Mapping[str, str | None]] | Mapping[str, str | None]"
"""Who asks: for S3 `key_id`, `secret` and, where there is one, `token`; for Google and the hub `token`; for Azure
`account` with `key`, `sas` or `token`. A function is asked when it is needed, and again when the server refuses."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """How URLs are opened: `load_weights(url, remote=Remote(...))`.

    Credentials are in no message, no `repr` and no pickle: another process finds its own.
    """

    endpoint: str | None = None
    """The server of a store that is not its vendor's, such as "https://minio.example", or of a hub. Default: what
    AWS_ENDPOINT_URL, HF_ENDPOINT or the profile say."""
    region: str | None = None
    """The region of buckets of S3. Default: what AWS_REGION or the profile say, or us-east-1."""
    credentials: Credentials | Literal["anonymous"] | None = field(default=None, repr=False, hash=False)
    """Who asks; "anonymous" for what everybody may read. Default: the environment, the profile in `~/.aws`, the token
    of `hf auth login`, the identity of the machine."""
    allow_http: bool = False
    """Allow servers without encryption elsewhere than on this machine."""
    requests: int = 64
    """The most requests under way at one server; fewer while it answers that it is busy."""
    request_bytes: int | str | None = None
    """The most bytes of one request. Default: 4 to 32 MiB, by what was measured."""
    retries: int = 10
    """So often a request is tried again after a failure that may pass, at the byte that was reached."""
    stall: float = 10.0
    """Seconds without a byte after which a request is tried again."""
    timeout: float | None = None
    """The most seconds that opening, or one read, may take in all."""
    cache: str | os.PathLike[str] | None = None
    """A folder in which what was read is kept for the next process that reads it, made if there is none. It must be
    this user's alone. Default: nothing is kept."""
    cache_bytes: int | str = "100GB"
    """The most bytes in that folder. A file counts with its whole length; those that were not used for the longest time
    are removed."""
    _store: RemoteStore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make what opens URLs by these options.

        Raises:
            ArgumentError: a number that is not above 0, or an endpoint that is not the URL of a server (a ValueError).
        """
        if self.endpoint is not None:
            _require_server(self.endpoint)
        for name in ("requests", "retries"):
            if not isinstance(getattr(self, name), int):
                raise ArgumentError(
                    f"{name} must be a whole number, not {getattr(self, name)!r}", rule="argument.number"
                )
        if self.requests < 1 or self.retries < 0:
            raise ArgumentError("requests must be at least 1, and retries at least 0", rule="argument.number")
        most = self.request_bytes
        count = bytes_of(most, "request_bytes") if isinstance(most, str) else most
        if count is not None and count < 1:
            raise ArgumentError(f"request_bytes must be above 0, not {most!r}", rule="argument.number")
        anonymous = self.credentials == "anonymous"
        store = RemoteStore(
            endpoint=self.endpoint,
            region=self.region,
            credentials=None if anonymous else _function(self.credentials),
            anonymous=anonymous,
            allow_http=self.allow_http,
            requests=self.requests,
            request_bytes=count,
            retries=self.retries,
            stall=self.stall,
            timeout=self.timeout,
            cache=None if self.cache is None else Path(self.cache).expanduser(),
            cache_bytes=bytes_of(self.cache_bytes, "cache_bytes"),
        )
        object.__setattr__(self, "_store", store)

    def __reduce__(self) -> str:
        """TypeError: it may know secrets."""
        raise TypeError("a Remote is not pickled, because of the credentials in it: make one where it is needed")


def store_of(remote: Remote | None) -> RemoteStore | None:
    """Return what opens URLs as an option of that name says; TypeError if it is something else."""
    if remote is not None and not isinstance(remote, Remote):
        raise TypeError(f"remote must be a max_weights.Remote, not {type(remote).__name__}")
    return None if remote is None else remote._store


def _require_server(endpoint: str) -> None:
    from urllib.parse import urlsplit

    try:
        url = urlsplit(str(endpoint))
        is_server = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, or an address in brackets that is none
        is_server = False
    if not is_server:
        raise ArgumentError(
            f'endpoint must be the URL of a server, such as "https://minio.example", not {str(endpoint)[:100]!r}',
            rule="argument.remote",
        )
    if url.username is not None or url.query or url.fragment:
        raise ArgumentError(
            "endpoint has no user, password, query or fragment: give credentials= instead", rule="argument.remote"
        )


def _function(credentials: object) -> Callable[[], Mapping[str, str | None]] | None:
    if credentials is None or callable(credentials):
        return credentials
    if isinstance(credentials, Mapping):
        fields = dict(credentials)
        return lambda: fields
    raise ArgumentError(
        'credentials must be a mapping, a function that returns one, or "anonymous"', rule="argument.remote"
    )


def source(
    read_ranges: Callable[[list[tuple[int, int]]], Iterable[bytes | bytearray | memoryview]],
    size: int,
    *,
    name: str = "source",
    identity: bytes | str = b"",
) -> RangeSource:
    """Return a file of which a function reads the bytes, for `load_weights`: of fsspec, obstore, or anything else.

    Args:
        read_ranges: Takes a list of (start, end), in bytes, the end not included, and returns a buffer for each, in the
            same order. Several threads call it at the same time. What it raises ends the load.
        size: The number of bytes of the file.
        name: What messages call it; its suffix says the format where the content does not.
        identity: What differs where the content does, such as an ETag: what is pickled is opened again only where it is
            the same.

    Returns:
        What `load_weights` opens, alone or in a list of such.

    Raises:
        TypeError: `read_ranges` is no function.
        ArgumentError: `size` is below 0 (a ValueError).

    Example:
        >>> data = open("model.safetensors", "rb").read()
        >>> one = max_weights.remote.source(lambda ranges: [data[start:end] for start, end in ranges], len(data))
        >>> len(max_weights.load_weights(one))
        5
    """
    if not callable(read_ranges):
        raise TypeError(f"read_ranges must be a function of a list of ranges, not {type(read_ranges).__name__}")
    if size < 0:
        raise ArgumentError(f"size must be a number of bytes, not {size}", rule="argument.number")
    tag = identity.encode() if isinstance(identity, str) else identity
    return RangeSource(read_ranges, size, name, hashlib.sha256(tag).digest() if tag else b"")
