"""The server with faults (tests/fault_server), as a separate process. The documentation of the crate lists its
protocols and faults.
"""

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Self

from conftest import ROOT

# The server is on this machine, so proxies of the environment must not be used.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def program() -> Path:
    """The program built by `cargo build -p fault-server`."""
    named = os.environ.get("MAX_WEIGHTS_FAULT_SERVER")
    files = [ROOT / "target" / profile / "fault-server" for profile in ("debug", "quick", "release")]
    found = [file for file in ([Path(named)] if named else files) if file.is_file()]
    assert found, f"the server is none of {named or files}: cargo build -p fault-server, as `make test` does"
    return found[0]


class FaultServer:
    """A server of a folder, for the length of a `with`."""

    url: str

    def __init__(self, folder: str | os.PathLike[str], *faults: str, latency_ms: int = 0, rate: int = 0) -> None:
        command = [str(program()), os.fspath(folder), "--latency-ms", str(latency_ms), "--rate", str(rate)]
        command += [word for fault in faults for word in ("--fault", fault)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.close()
        assert self.url, f"the server did not start: {command}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop it; connections that are open are closed."""
        self._process.communicate(timeout=20)

    def file(self, path: str) -> str:
        """The URL of a file over plain HTTP."""
        return f"{self.url}/files/{path}"

    @property
    def s3(self) -> str:
        """The value of `AWS_ENDPOINT_URL_S3`; a bucket is a folder."""
        return f"{self.url}/s3"

    @property
    def azure(self) -> str:
        """The endpoint of Azure's blob service; a container is a folder."""
        return f"{self.url}/azure"

    @property
    def hub(self) -> str:
        """The value of `HF_ENDPOINT`; a model is a folder in a folder."""
        return f"{self.url}/hub"

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        data = None if body is None else body.encode()
        with DIRECT.open(urllib.request.Request(self.url + path, data, method=method), timeout=20) as reply:
            answer: bytes = reply.read()
        return answer

    def set(self, *faults: str) -> None:
        """Replace the faults from the next request on."""
        self._ask("POST", "/_control", "\n".join(faults))

    def counts(self) -> dict[str, Any]:
        """Requests, bytes, uploaded, connections, most_at_once, open_uploads, by_path."""
        counts: dict[str, Any] = json.loads(self._ask("GET", "/_counts"))
        return counts

    def log(self) -> list[dict[str, Any]]:
        """The method, path, range, headers, authorization, host and status of each request."""
        log: list[dict[str, Any]] = json.loads(self._ask("GET", "/_log"))
        return log

    def reset_counts(self) -> None:
        """Reset the counters and the log."""
        self._ask("DELETE", "/_counts")
