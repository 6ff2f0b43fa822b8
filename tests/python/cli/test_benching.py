"""`max_weights.bench` and `max-weights bench`: what is run, what is reported, and what cannot be measured."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import max_weights
from command_line import COMMAND, environment, run
from max_weights._benching import loaders, measure
from max_weights._benching.result import BenchResult, BenchRow
from max_weights._benching.worker import LoaderFailed, Worker
from max_weights.errors import ArgumentError
from refusals import refuses

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    tensors = {f"layer.{number}.weight": np.ones((64, 64), np.float32) for number in range(4)}
    tensors["scale"] = np.array(1, np.float32)
    safetensors.numpy.save_file(tensors, path)
    return path


def test_a_file_is_measured_beside_a_rival_and_the_limits(file: Path) -> None:
    steps: list[str] = []
    result = max_weights.bench(file, ["safetensors"], cold=False, progress=steps.append)
    names = [row.loader for row in result.rows]
    assert names[0] == "max_weights"
    assert {"max_weights, copy=True", "safetensors.numpy", "sequential read"} <= set(names)
    assert [row.failed for row in result.rows] == [""] * len(names)
    assert all(len(row.seconds["touched"]) == 5 for row in result.rows)
    assert (result.format, result.bytes, result.tensors) == ("safetensors", file.stat().st_size, 5)
    assert result.rows[0].median("cold") is None
    assert "Nothing was measured from the disk: it was not asked for." in result.summary
    assert steps[0] == "max_weights: first run"
    plain = json.loads(json.dumps(result.as_dict()))
    assert plain["rows"][0]["median_seconds"]["touched"] == result.rows[0].median("touched")
    assert plain["summary"] in str(result)


@pytest.mark.parametrize("name", [pytest.param("smollm2-135m.Q4_1.gguf", marks=pytest.mark.nightly), "crepe-tiny.pth"])
def test_other_formats_meet_the_packages_that_read_them(models: Path, name: str) -> None:
    against = "gguf" if name.endswith("gguf") else "torch"
    result = max_weights.bench(models / name, against, cold=False, seconds=120)
    rows = {row.loader: row for row in result.rows}
    assert {row.of for row in result.rows} == {"", against, "limit"}
    assert not rows["max_weights"].failed
    assert rows["max_weights"].seconds["touched"]


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    for number in (1, 2):
        tensors = {f"weight.{number}": np.ones(1000, np.float32)}
        safetensors.numpy.save_file(tensors, tmp_path / f"model-{number:05}-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {f"weight.{n}": f"model-{n:05}-of-00002.safetensors" for n in (1, 2)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    result = max_weights.bench(tmp_path, (), cold=False)
    assert len(result.files) == 2
    assert result.tensors == 2
    assert not [row.failed for row in result.rows if row.failed]


def test_cold_runs_read_the_file_from_the_disk_or_say_why_not(file: Path) -> None:
    result = max_weights.bench(file, ())
    by_name = {row.loader: row for row in result.rows}
    if result.not_cold:
        assert "stays in memory" in result.not_cold
        assert result.not_cold in result.summary
    else:
        assert len(by_name["sequential read"].seconds["cold"]) == 5
        assert len(by_name["max_weights"].read) == 5


def test_a_file_that_stays_in_memory_is_not_called_cold(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_cached_fraction", lambda _: 0.5)
    result = max_weights.bench(file, ())
    assert result.not_cold.startswith("50% of '")
    assert all(row.median("cold") is None for row in result.rows)


def test_copies_that_do_not_fit_into_memory_are_not_made(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "available_memory", lambda: 1000)
    result = max_weights.bench(file, (), cold=False)
    failed = {row.loader: row.failed for row in result.rows if row.failed}
    assert list(failed) == ["max_weights, copy=True"]
    assert "of memory" in failed["max_weights, copy=True"]


def test_time_that_is_up_ends_it(file: Path) -> None:
    begun = time.monotonic()
    result = max_weights.bench(file, (), cold=False, seconds=0.0)
    assert time.monotonic() - begun < 30
    assert {row.failed for row in result.rows} == {"time ran out"}


@pytest.mark.parametrize(
    ("against", "error"),
    [
        (["pickle"], ArgumentError),
        (["gguf"], ArgumentError),
    ],
)
def test_what_cannot_be_a_rival_is_an_error(file: Path, against: list[str], error: type[Exception]) -> None:
    with refuses(error):
        max_weights.bench(file, against)


def test_a_rival_that_is_not_installed_is_named_with_its_package(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_is_installed", lambda name: name != "runai")
    with refuses(ImportError):
        max_weights.bench(file, ["runai"])


def test_a_missing_file_is_the_error_of_opening(tmp_path: Path) -> None:
    with pytest.raises(max_weights.MissingFileError):
        max_weights.bench(tmp_path / "missing.safetensors")


def test_a_loader_that_raises_is_a_row_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    worker = Worker("safetensors.numpy", [str(broken)])
    try:
        with refuses(LoaderFailed):
            worker.ask("touched", time.monotonic() + 60)
    finally:
        worker.close()


def test_a_process_that_dies_is_a_row_with_its_last_words(file: Path) -> None:
    worker = Worker("no such loader", [str(file)])
    try:
        with refuses(LoaderFailed):
            worker.ask("touched", time.monotonic() + 60)
    finally:
        worker.close()


def result_of(ours: float, theirs: float) -> BenchResult:
    rows = [BenchRow("max_weights", ""), BenchRow("torch.load", "torch"), BenchRow("sequential read", "limit")]
    for row, seconds in zip(rows, (ours, theirs, 0.5), strict=True):
        row.seconds["touched"] = [seconds]
    return BenchResult(["a.pt"], "pytorch", 10**9, 3, rows, "it was not asked for")


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (1.0, 2.0, "max_weights is fastest, 2.00 times as fast"),
        (3.0, 2.0, "torch.load is fastest, 1.50 times as fast"),
        (1.0, 1.04, "equally fast"),
    ],
)
def test_the_summary_says_who_is_ahead(ours: float, theirs: float, verdict: str) -> None:
    assert f"{verdict}; the least that this machine needs, sequential read, 500 ms." in result_of(ours, theirs).summary


def test_touching_reads_every_page_of_what_loaders_return() -> None:
    import torch

    ones = np.ones(3 * 4096, np.uint8)
    assert loaders.touch({"a": ones, "b": [torch.from_numpy(ones), max_weights.Buffer.from_numpy(ones)]}) == 9
    assert loaders.touch({"scalar": np.array(1, np.uint8), "empty": np.ones(0), "text": "x", "none": None}) == 1


def test_the_command_prints_a_table(file: Path) -> None:
    done = run("bench", file, "--against", "", "--no-cold")
    assert (done.status, done.stderr) == (0, ""), "a pipe gets no line of what is done now"
    assert done.stdout.splitlines()[0].split() == ["loader", "call", "touched", "cold", "peak"]
    assert "max_weights, copy=True" in done.stdout


def test_the_command_prints_json_and_nothing_else(file: Path) -> None:
    done = run("bench", file, "--against", " safetensors, ", "--no-cold", "--seconds", "30", "--json")
    assert (done.status, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert next(iter(found)) == "schema"
    assert found["schema"] == "max-weights.bench/1"
    assert (found["tensors"], found["bytes"], found["files"]) == (5, file.stat().st_size, [str(file)])
    assert {row["of"] for row in found["rows"]} == {"", "safetensors", "limit"}
    assert [row["seconds"]["cold"] for row in found["rows"]] == [[]] * len(found["rows"])


@pytest.mark.parametrize(
    ("arguments", "status", "kind", "message"),
    [
        (["--against", "pickle"], 2, "usage", "against names 'pickle'; it can name safetensors, torch"),
        (["--against", "gguf"], 2, "usage", "gguf reads no safetensors files"),
        (["--device", "cuda:99"], 3, "missing", "99"),
    ],
)
def test_what_the_command_cannot_measure_is_one_line(
    file: Path, arguments: list[str], status: int, kind: str, message: str
) -> None:
    done = run("bench", file, *arguments)
    assert (done.status, done.stdout) == (status, "")
    assert done.stderr.startswith("max-weights: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    in_json = run("bench", "--json", file, *arguments)
    error = {"kind": kind, "message": done.stderr.removeprefix("max-weights: ").rstrip("\n")}
    assert json.loads(in_json.stdout) == {"schema": "max-weights.error/1", "error": error}
    assert (in_json.status, in_json.stderr) == (status, done.stderr)


def test_the_command_answers_a_file_that_cannot_be_opened_with_status_3(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged\x1b[31m.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    for path, message in [
        (damaged, "damaged\\x1b[31m.safetensors: "),
        (tmp_path / "missing", "missing: no such file or directory\n"),
    ]:
        done = run("bench", path)
        assert (done.status, done.stdout) == (3, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_ctrl_c_ends_the_command_and_its_processes(file: Path) -> None:
    command = [*COMMAND, "bench", str(file), "--against", "safetensors"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment())
    deadline = time.monotonic() + 60
    while not (children := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    # A child that was just starting ends by itself when its pipe is closed.
    while any(map(_lives, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, children))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
