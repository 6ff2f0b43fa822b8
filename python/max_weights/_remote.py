"""Remote checkpoints: how URLs are opened, and files whose bytes a function of yours reads.

`load_weights("s3://bucket/model")`, `gs://`, `az://`, `https://` and `hf://org/model` do not need this module:
credentials come from the environment and the profile. Use it to set what these do not.
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
"""Credentials: for S3 `key_id`, `secret` and, for temporary ones, `token`; for Google and the hub `token`; for Azure
`account` with `key`, `sas` or `token`. A function is called at first use, and again when the server rejects the
last."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """How URLs are opened: `load_weights(url, remote=Remote(...))`.

    No message, `repr` or pickle contains credentials: another process finds its own.
    """

    endpoint: str | None = None
    """The URL of a server other than the vendor's, such as "https://minio.example", or of a hub. Default:
    AWS_ENDPOINT_URL, HF_ENDPOINT or the profile."""
    region: str | None = None
    """The region of S3 buckets. Default: AWS_REGION, the profile, or us-east-1."""
    credentials: Credentials | Literal["anonymous"] | None = field(default=None, repr=False, hash=False)
    """Credentials; "anonymous" for public data. Default: the environment, the profile in `~/.aws`, the token of `hf
    auth login`, the identity of the machine."""
    allow_http: bool = False
    """Allow unencrypted HTTP to servers other than this machine."""
    requests: int = 64
    """The most requests in flight to one server; fewer while it answers that it is busy."""
    request_bytes: int | str | None = None
    """The most bytes of one request. Default: 4 to 32 MiB, by measured speed."""
    retries: int = 10
    """The most retries of a request after a transient failure; a retry resumes at the last received byte."""
    stall: float = 10.0
    """Seconds without a byte after which a request is retried."""
    timeout: float | None = None
    """The most seconds that opening, or one read, may take in total."""
    cache: str | os.PathLike[str] | None = None
    """A folder in which read bytes are cached for later processes; it is created if needed. It must belong to this user
    alone. Default: no cache."""
    cache_bytes: int | str = "100GB"
    """The most bytes in the cache. A file counts with its whole length; the least recently used files are evicted."""
    _store: RemoteStore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Create the store that opens URLs with these options.

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
        """TypeError: it may contain secrets."""
        raise TypeError("a Remote is not pickled, because of the credentials in it: create one in each process")


def store_of(remote: Remote | None) -> RemoteStore | None:
    """Return the store of a `remote=` option; TypeError for another type."""
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
    """Return a file whose bytes a function reads, for `load_weights`: with fsspec, obstore, or anything else.

    Args:
        read_ranges: Takes a list of (start, end), in bytes, the end not included, and returns a buffer for each, in the
            same order. Several threads call it concurrently. Its exceptions end the load.
        size: The number of bytes of the file.
        name: The name in messages; its suffix gives the format where the content does not.
        identity: A version of the content, such as an ETag: a pickled tree is opened again only if it is the same.

    Returns:
        A source that `load_weights` opens, alone or in a list.

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
