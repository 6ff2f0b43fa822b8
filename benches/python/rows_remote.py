"""Take rows of a table from a server with 20 ms latency: scattered ones, and neighbours.

The file is that of the bench `rows`, of ROWS_GB. It is in the page cache, so that only the server's latency counts.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

import harness
import rows
import servers
from report import Column, Report, Target

TITLE = "Rows of a table on a server"
LATENCY: Final = "20 ms"
SECONDS: Final = 0.020
COUNT: Final = 8_192
THREADS: Final = 64
SCATTERED: Final = f"{COUNT:,} scattered rows"
NEIGHBOURS: Final = f"{COUNT:,} neighbouring rows"
REQUESTS: Final = f"requests, {THREADS} threads"
CLIENT: Final = f"http.client, {THREADS} threads"
ONE: Final = "http.client, one request"
LIMIT: Final = f"the latency, {THREADS} requests at a time"
ROUNDS = harness.Effort(least=5, most=7, seconds=60.0)

Get: TypeAlias = Callable[[int, int], bytes]


def _url(path: Path) -> str:
    """Return the URL of the served file."""
    return f"{os.environ['REMOTE_ROWS']}/{path.name}"


def _ours(path: Path) -> rows.Take:
    """Open a table of max_weights."""
    import max_weights

    table = max_weights.table(_url(path), rows.NAME, cache=0)
    return lambda ids: table.take(ids, framework="numpy")


def _client(path: Path) -> Get:
    """Return a function that gets bytes of the file from a start to an end, over one connection of http.client."""
    parts = urllib.parse.urlsplit(_url(path))
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port)

    def get(start: int, end: int) -> bytes:
        connection.request("GET", parts.path, headers={"Range": f"bytes={start}-{end - 1}"})
        answer = connection.getresponse()
        if answer.status != http.client.PARTIAL_CONTENT:
            raise harness.BenchError(f"{path.name}: status {answer.status}")
        return answer.read()

    return get


def _session(path: Path) -> Get:
    """Return a function that gets bytes of the file from a start to an end, in a session of requests."""
    import requests

    session, url = requests.Session(), _url(path)

    def get(start: int, end: int) -> bytes:
        answer = session.get(url, headers={"Range": f"bytes={start}-{end - 1}"})
        answer.raise_for_status()
        return answer.content

    return get


def _by_threads(connect: Callable[[Path], Get], path: Path) -> rows.Take:
    """Get each row by a request, in threads with a connection each."""
    first, _ = rows.layout(path)

    def take(ids: rows.Array) -> object:
        memory = np.empty((len(ids), rows.WIDTH), np.uint8)
        places = iter(enumerate(ids.tolist()))

        def fetch() -> None:
            get = connect(path)
            while (found := next(places, None)) is not None:
                place, row = found
                start = first + row * rows.WIDTH
                memory[place] = np.frombuffer(get(start, start + rows.WIDTH), np.uint8)

        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(fetch) for _ in range(THREADS)]:
                done.result()
        return memory

    return take


def _at_once(path: Path) -> rows.Take:
    """Get neighbouring rows by one request."""
    first, _ = rows.layout(path)

    def take(ids: rows.Array) -> object:
        start = first + int(ids[0]) * rows.WIDTH
        found = _client(path)(start, start + len(ids) * rows.WIDTH)
        return np.frombuffer(found, np.uint8).reshape(len(ids), rows.WIDTH)

    return take


def neighbours(total: int, series: int) -> Iterator[rows.Array]:
    """Yield the ids of each run without end: consecutive ones from a random row."""
    for first in rows.draw(total - COUNT, 1, series=series):
        yield np.arange(first[0], first[0] + COUNT)


def _prepare(way: Callable[[Path], rows.Take], case: str, path: Path) -> Callable[[], object]:
    """Prepare the runs of one loader, which opens the table off the clock."""
    total = rows.layout(path)[1]
    ids, others = (
        rows.draw(total, COUNT, series=series) if case == SCATTERED else neighbours(total, series) for series in (0, 1)
    )
    return rows.Run(ids, others, partial(way, path), "once", 1)


WAYS: Final[dict[str, dict[str, Callable[[Path], rows.Take]]]] = {
    SCATTERED: {
        harness.OURS: _ours,
        **({REQUESTS: partial(_by_threads, _session)} if importlib.util.find_spec("requests") else {}),
        CLIENT: partial(_by_threads, _client),
    },
    NEIGHBOURS: {harness.OURS: _ours, ONE: _at_once},
}
CASES: harness.Cases = {
    case: {name: partial(_prepare, way, case) for name, way in ways.items()} for case, ways in WAYS.items()
}


def measure(folder: Path, small: bool) -> Report:
    """Time takes of scattered and of neighbouring rows."""
    path, bench = rows.make(folder, small), Path(__file__)
    rows.warm_up(path)
    effort = harness.QUICK if small else ROUNDS
    with servers.web(folder, folder / "servers") as urls:
        os.environ["REMOTE_ROWS"] = urls[LATENCY]
        timings = {
            case: harness.alternate(bench, case, loaders, path, effort=effort) for case, loaders in CASES.items()
        }
    latencies = {SCATTERED: COUNT / THREADS * SECONDS, NEIGHBOURS: SECONDS}
    columns = [
        Column(case, "ms", {**{name: timing.median for name, timing in of.items()}, LIMIT: latencies[case]})
        for case, of in timings.items()
    ]
    ours = timings[SCATTERED][harness.OURS].median
    return Report(
        "rows_remote",
        columns,
        targets=(
            Target(f"{SCATTERED}: ours ÷ {COUNT // THREADS} latencies", ours / latencies[SCATTERED], 1.2, "at most"),
        ),
        limits=frozenset({LIMIT}),
        notes=(
            f"Rows of {rows.WIDTH} bytes from a file of {path.stat().st_size / 1e9:.2f} GB on loopback, from nginx "
            f"behind haproxy, which delays each request by {LATENCY}. The table is open, and each run takes new ids. "
            f"The limit is computed: {COUNT // THREADS} latencies for scattered rows, and one for neighbours. It "
            "assumes a request for each scattered row. Rows that happen to be close may share one.",
        ),
        samples={case: {name: timing.seconds for name, timing in of.items()} for case, of in timings.items()},
    )
