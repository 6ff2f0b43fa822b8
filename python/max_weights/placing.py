"""Small files that appear whole or not at all, as those of tensors do (`src/write/replacement.rs`)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

__all__ = ["place"]

# The end of the names of files that are being written. What a process that was killed has left is known by its free
# lock, and removed by the next save into that folder.
_UNFINISHED = ".max-weights-unfinished"
_ATTEMPTS = 100
# What file systems say that cannot sync folders, and do it without being asked.
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)


def place(path: str | os.PathLike[str], content: bytes, *, sync: bool = True) -> None:
    """Write a file that takes its place when it is complete; whatever happens before leaves what was there.

    Args:
        path: The file. A link is replaced itself; a file that is replaced keeps its permissions.
        content: All of its bytes.
        sync: Wait until they are on the disk.

    Raises:
        OSError: what the system refuses.
    """
    target = Path(path)
    if target.exists() and not os.access(target, os.W_OK):  # whoever made it read-only did so for a reason
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    with contextlib.ExitStack() as undo:
        number, unfinished = _create_beside(target)
        undo.callback(unfinished.unlink, missing_ok=True)
        with open(number, "wb") as file:
            with contextlib.suppress(OSError):  # where there are no locks, nobody removes what has none
                fcntl.flock(number, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(number, target.stat().st_mode & 0o777)
            file.write(content)
            file.flush()
            if sync:
                os.fsync(number)
            os.replace(unfinished, target)
        undo.pop_all()
    if sync:
        _sync_folder(target.parent)


def _sync_folder(path: Path) -> None:
    """Make names that were given in a folder last."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # one may write to some folders and not list them
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(folder)


def _create_beside(target: Path) -> tuple[int, Path]:
    """A new file in the folder of the target, with the permissions that the umask gives."""
    for attempt in range(_ATTEMPTS):
        path = target.parent / f".{target.name[:60]}.{os.getpid()}-{attempt}{_UNFINISHED}"
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), path
    raise FileExistsError(errno.EEXIST, "every name for the unfinished file is taken", str(target))
