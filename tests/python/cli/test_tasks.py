"""Commands as tasks: together they have the result of one run, after any rerun, and missing parts are named."""

import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import run
from conftest import ROOT
from fault_server import FaultServer
from max_weights import load_weights, save_sharded
from max_weights.errors import ArgumentError, WeightsError
from max_weights.tasks import TasksResult, run_tasks
from refusals import refuses

TASKS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of several sizes, some with broken or malicious files."""
    folder = tmp_path_factory.mktemp("models")
    for number in range(7):
        data = {f"layer.{i}.weight": np.full((64 * (number + 1), 16), i, np.float32) for i in range(4)}
        save_sharded(data, folder / f"model-{number}", max_shard_size="10kB")
    (folder / "model-3/model-00002-of-00004.safetensors").unlink()
    (folder / "model-5/pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.")
    (folder / "model-6/config.json").write_text('{"auto_map": {"AutoModel": "code.Model"}}')
    (folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    return folder


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    """The digests and modification times of a folder's files."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file()
    }


def without_time(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "summary": {**report["summary"], "seconds": 0}}


@pytest.mark.parametrize("level", ["structure", "content"])
def test_the_reports_of_tasks_are_joined_to_that_of_one_run(models: Path, tmp_path: Path, level: str) -> None:
    whole = run("validate", models, "--level", level, "--json")
    reports = []
    for number in (2, 3, 1):
        reports.append(tmp_path / f"{number}.json")
        arguments = ("validate", models, "--level", level, "--task", f"{number}/{TASKS}")
        done = run(*arguments, "--json", "--output", f"sarif={tmp_path / f'{number}.sarif'}")
        reports[-1].write_text(done.stdout)
        again = json.loads(run(*arguments, "--json").stdout)
        assert without_time(again) == without_time(json.loads(done.stdout)), "a task that is run again says the same"
        assert 0 < len(again["files"]) < len(json.loads(whole.stdout)["files"])
    merged = run("report", "merge", *reports)
    assert merged.status == whole.status != 0
    assert without_time(json.loads(merged.stdout)) == without_time(json.loads(whole.stdout))
    assert "task" not in json.loads(merged.stdout)
    # The same as SARIF.
    run("validate", models, "--level", level, "--output", f"sarif={tmp_path / 'whole.sarif'}")
    run("report", "merge", *[tmp_path / f"{n}.sarif" for n in (1, 2, 3)], "-o", tmp_path / "merged.sarif")
    one, several = (json.loads((tmp_path / f"{name}.sarif").read_text())["runs"][0] for name in ("whole", "merged"))
    assert [rule["id"] for rule in several["tool"]["driver"]["rules"]]
    by_print = lambda results: sorted(  # noqa: E731
        json.dumps({**result, "ruleIndex": 0}, sort_keys=True) for result in results
    )
    assert by_print(several["results"]) == by_print(one["results"])
    levels = [result["level"] for result in several["results"]]
    assert levels[0] == "error"
    for result in several["results"]:
        assert several["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert several.get("properties") is None


def test_manifests_of_tasks_are_joined_to_that_of_one_run(models: Path, tmp_path: Path) -> None:
    whole, merged = tmp_path / "whole.json", tmp_path / "merged.json"
    assert run("manifest", "create", models, "-o", whole).status == 0
    parts = [tmp_path / f"{number}.json" for number in range(1, TASKS + 1)]
    for number, part in enumerate(parts, 1):
        assert run("manifest", "create", models, "-o", part, "--task", f"{number}/{TASKS}").status == 0
    refused = run("manifest", "check", parts[0], models)
    assert refused.status != 0
    assert "task 1 of 3" in refused.stderr
    assert run("report", "merge", *reversed(parts), "-o", merged).status == 0
    assert json.loads(merged.read_text()) == json.loads(whole.read_text())
    checked = run("manifest", "check", merged, models)
    assert checked.status == 0, checked.stdout


def test_missing_and_foreign_reports_are_named(models: Path, tmp_path: Path) -> None:
    def report(name: str, *arguments: object) -> Path:
        file = tmp_path / name
        file.write_text(run("validate", *arguments, "--json").stdout)
        return file

    first = report("1.json", models, "--task", "1/4")
    third = report("3.json", models, "--task", "3/4")
    done = run("report", "merge", first, third, first)
    assert done.status == 2
    assert "2 tasks of 4 missing: 2/4, 4/4" in done.stderr
    for other, cause in (
        (report("of.json", models, "--task", "2/5"), "of other files, or of another question or number of tasks"),
        (report("level.json", models, "--level", "header", "--task", "2/4"), "of another question"),
        (report("files.json", models / "model-1", "--task", "2/4"), "of other files"),
        (report("single.json", models), "no report of a task"),
    ):
        done = run("report", "merge", first, other)
        assert done.status == 2
        assert cause in done.stderr
        assert other.name in done.stderr


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "a/b", "-1/4", "1/0"])
@pytest.mark.parametrize("command", ["validate", "manifest create", "convert"])
def test_what_is_no_task_is_a_mistake_of_the_command_line(
    models: Path, tmp_path: Path, command: str, text: str
) -> None:
    places = [models / "model-0", tmp_path / "out"] if command == "convert" else [models]
    done = run(*command.split(), *places, f"--task={text}")
    assert done.status == 2
    assert "task" in done.stderr
    assert not (tmp_path / "out").exists()


def test_tasks_write_the_files_of_a_folder_and_the_last_the_index(models: Path, tmp_path: Path) -> None:
    source = models / "model-6"
    arguments = (source, tmp_path / "whole", "--dtype", "float16", "--max-shard-size", "5kB")
    assert run("convert", *arguments).status == 0
    out = tmp_path / "out"
    arguments = (source, out, "--dtype", "float16", "--max-shard-size", "5kB")
    for number in (3, 1, 2):
        assert not (out / "model.safetensors.index.json").exists()
        assert run("convert", *arguments, "--task", f"{number}/{TASKS}").status == 0
    assert {name: digest for name, (digest, _) in digests(out).items()} == {
        name: digest for name, (digest, _) in digests(tmp_path / "whole").items()
    }
    before = digests(out)
    for number in (1, 3):
        assert run("convert", *arguments, "--task", f"{number}/{TASKS}").status == 0
    assert digests(out) == before, "what is run again writes nothing"
    # The last task writes the index; a lost file is written again by its task.
    lost = sorted(name for name in before if name.endswith(".safetensors"))[1]
    (out / lost).unlink()
    for number in range(1, TASKS + 1):
        assert run("convert", *arguments, "--task", f"{number}/{TASKS}").status == 0
    assert digests(out)[lost][0] == before[lost][0]
    # Another conversion into this folder is an error that names a file.
    other = run("convert", source, out, "--dtype", "bfloat16", "--max-shard-size", "5kB", "--task", "1/1")
    assert other.status != 0
    assert 'if_exists is "same"' in other.stderr
    one_file = run("convert", source, tmp_path / "one.safetensors", "--task", "1/2")
    assert one_file.status == 2
    assert "cannot write a part of one file" in one_file.stderr


def test_tasks_write_to_a_store(models: Path, tmp_path: Path) -> None:
    (tmp_path / "served/bucket").mkdir(parents=True)
    with FaultServer(tmp_path / "served") as server:
        variables = {"AWS_ENDPOINT_URL_S3": server.s3, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        for number in (2, 1, 2):
            done = run(
                "convert", models / "model-6", "s3://bucket/model", "--max-shard-size", "10kB", "--task", f"{number}/2",
                **variables,
            )  # fmt: skip
            assert done.status == 0, done.stderr
        validated = [
            run("validate", "s3://bucket", "--json", "--task", f"{number}/2", **variables).stdout for number in (1, 2)
        ]
        assert sum(len(json.loads(report)["files"]) for report in validated) >= 5
    written = load_weights(tmp_path / "served/bucket/model").load(framework="numpy")
    expected = load_weights(models / "model-6").load(framework="numpy")
    assert all(np.array_equal(array, written[name]) for name, array in expected.items())


class Client:
    """Like a client of Dask: `map` returns futures, which `gather` waits for."""

    def map(self, function: Any, numbers: Any) -> list[Any]:
        return [lambda number=number: function(number) for number in numbers]

    def gather(self, futures: list[Any]) -> list[Any]:
        return [future() for future in futures]


def test_engines_run_the_tasks_and_join_their_reports(models: Path, tmp_path: Path) -> None:
    whole = json.loads(run("validate", models, "--json").stdout)

    def check(done: TasksResult) -> None:
        assert done.report is not None
        assert done.status == 5
        assert without_time(done.report) == without_time(whole)

    with concurrent.futures.ThreadPoolExecutor(2) as engine:
        check(run_tasks(engine, ["validate", str(models)], TASKS))
        manifest = run_tasks(engine, ["manifest", "create", str(models)], TASKS).report
        assert manifest == json.loads(run("manifest", "create", models).stdout)
        done = run_tasks(engine, ["convert", str(models / "model-6"), str(tmp_path / "out"), "--max-shard-size=5kB"], 2)
        assert done.report is None
        assert len(load_weights(tmp_path / "out")) == 4
        with refuses(WeightsError, "task.failed"):
            run_tasks(engine, ["validate", str(models / "nothing")], 2)
        with refuses(ArgumentError, "argument.choice"):
            run_tasks(engine, ["ls", str(models)], 2)
        with refuses(ArgumentError, "argument.number"):
            run_tasks(engine, ["validate", str(models)], 0)
    check(run_tasks(Client(), ["validate", str(models)], TASKS))
    with refuses(ArgumentError, "argument.choice"):
        run_tasks("spark", ["validate", str(models)], TASKS)  # type: ignore[arg-type]


RAY = """
import json, sys
import ray
from max_weights.tasks import run_tasks

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
done = run_tasks("ray", ["validate", sys.argv[1]], 3)
print(json.dumps([done.status, done.report]))
"""


@pytest.mark.nightly  # the environment of Ray is large, and is made for this
@pytest.mark.skipif(sys.platform != "linux", reason="one platform shows it")
def test_ray_runs_the_tasks(models: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, environment], check=True, timeout=120)
    python = environment / "bin/python"
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, "ray", "numpy"], check=True, timeout=600)
    # This package, as installed for these tests.
    variables = os.environ | {"PYTHONPATH": str(ROOT / "python"), "RAY_TMPDIR": str(tmp_path)[:40]}
    command = [python, "-c", RAY, models]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stderr
    status, report = json.loads(done.stdout.splitlines()[-1])
    whole = run("validate", models, "--json")
    assert status == whole.status
    assert without_time(report) == without_time(json.loads(whole.stdout))
