"""Which ranks are on which machine."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

__all__ = ["host_name", "is_running", "machine"]


def host_name() -> str:
    """Return the name of this machine, for errors."""
    return socket.gethostname()


@functools.cache
def machine() -> str:
    """Return a value that processes share exactly if they see each other.

    Containers of one machine whose process numbers are separate count as separate machines.
    """
    parts = [host_name()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass  # not Linux: the name alone
    return " ".join(parts)


def is_running(process: int) -> bool:
    """Whether a process of this machine exists and has not ended; a stopped one exists."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
        return _answers(process)
    except OSError:
        return _answers(process)
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def _answers(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
