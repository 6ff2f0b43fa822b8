"""The basis of the loading benches: limits move every byte, rivals load the same tensors, versions are separate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import converting
import files
import harness
import limits
import max_weights
import rivals
import saving
import written
from max_weights import DType, load_weights
from refusals import refuses


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.make(tmp_path_factory.mktemp("whole"), "a", small=True)


@pytest.fixture(scope="module")
def in_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.make(tmp_path_factory.mktemp("shards"), "b", small=True)


@pytest.mark.parametrize("label", [*limits.DISK, *limits.MEMORY])
def test_limits_ask_for_every_byte_of_every_file(label: str, whole: Path, in_shards: Path) -> None:
    limit = {**limits.DISK, **limits.MEMORY}[label]
    for path in (whole, in_shards):
        run = limit(path)
        run()
        run()  # memory is used again


def test_the_limit_of_copies_has_the_bytes_of_the_file(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytearray] = []

    class Memory(bytearray):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            made.append(self)

    monkeypatch.setattr(limits, "bytearray", Memory, raising=False)
    limits.copy(whole, 2)()
    assert made == [whole.read_bytes()]


@pytest.mark.parametrize("label", [rivals.PREAD, rivals.RUNAI, rivals.FAST])
def test_rivals_load_the_tensors_that_we_load(label: str, in_shards: Path) -> None:
    import torch

    theirs = rivals.COPIES[label](in_shards)()
    ours = rivals.own(in_shards)()
    assert isinstance(theirs, dict)
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_experts_of_a_rank_and_what_all_share_are_counted(tmp_path: Path) -> None:
    import slices_of_a_rank

    path = files.make(tmp_path, "e", small=True)
    infos = max_weights.infos(load_weights(path))
    requested = [(info.offset, info.bytes) for info in infos if slices_of_a_rank._is_requested(info.name)]
    assert list(slices_of_a_rank._ranges("e", path)) == requested
    assert len(requested) == 8 * 3 + 5


@pytest.mark.parametrize("case", saving.CASES)
def test_all_ways_to_save_write_every_tensor(case: str, whole: Path) -> None:
    saved = whole.with_name(f"saved-{whole.stem}")
    expected = {name: tensor.clone() for name, tensor in rivals.own(whole)().items()}
    for loader, load in saving.CASES[case].items():
        run = load(whole)
        for _ in range(2):
            run.before()
            assert saved.exists() == ("over" in case)
            run()
        found = torch.load(saved) if loader == saving.TORCH else safetensors.torch.load_file(saved)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    written.remove(saved)


def test_conversions_write_as_many_bytes_as_their_limits(tmp_path: Path) -> None:
    source, made = converting.make(tmp_path, small=True), tmp_path / "converted"
    for loader, load in converting.CASES[converting.WARM].items():
        run = load(source)
        run.before()
        run()
        if made.is_dir():
            found = {name: weight.data().dtype for name, weight in load_weights(made).items()}
            assert set(found.values()) == {DType.bfloat16}, loader
            assert len(found) == len(max_weights.infos(load_weights(source)))
        else:
            assert made.stat().st_size == sum(info.bytes for info in max_weights.infos(load_weights(source))) // 2, (
                loader
            )


def test_the_other_version_of_a_package_comes_first_in_a_process_of_its_own(tmp_path: Path) -> None:
    package = tmp_path / "rivals" / "toy-2" / "toy_of_two_versions"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("version = 2\n")
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, "benches/python")
import harness
sys.prefix = {str(tmp_path)!r}
def load(path):
    import toy_of_two_versions
    return lambda: toy_of_two_versions.version
print(harness.other_version("toy-2", load)(Path("x"))())"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
    with refuses(harness.BenchError):
        harness.other_version("no-such-1", rivals.own)(tmp_path)


def test_a_second_reader_reads_as_long_as_it_is_wanted(in_shards: Path, tmp_path: Path) -> None:
    with limits.second_reader(in_shards):
        pass
    with refuses(harness.BenchError), limits.second_reader(tmp_path / "missing"):
        pass


def test_timing_counts_what_was_read_from_the_disk(whole: Path) -> None:
    bench = Path(rivals.__file__).with_name("loading_cold.py")
    effort = harness.Effort(least=2, most=2)
    timings = harness.alternate(bench, "a", [limits.SEQUENTIAL], whole, effort=effort)
    assert len(timings[limits.SEQUENTIAL].read) == len(timings[limits.SEQUENTIAL].seconds) == 2
    assert np.median(timings[limits.SEQUENTIAL].seconds) > 0
