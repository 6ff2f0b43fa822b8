"""Deltas: written, read again by a second implementation, opened with their base, applied to files and to memory."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.numpy import load_file, save_file

import delta_specification as specification
import max_weights
from command_line import measured
from conftest import ROOT
from fault_server import FaultServer
from faults import saver
from max_weights import delta, load_weights
from max_weights._core import command_line
from max_weights.errors import ArgumentError, FormatError, UnsupportedError
from refusals import refuses

__all__ = ["saver"]

Tensors = dict[str, np.ndarray]


def first(seed: int = 0) -> Tensors:
    """Tensors of elements of 1 to 8 bytes, some of several blocks, some empty."""
    random = np.random.default_rng(seed)
    codes = lambda count: random.integers(0, 1 << 16, count, dtype=np.uint16)  # noqa: E731
    return {
        "a.weight": codes(300_000).view(np.float16).reshape(300, 1000),
        "b.weight": random.standard_normal((700, 211)).astype(np.float32),
        "b.double": random.standard_normal(70_001),
        "c.bytes": random.integers(0, 255, 140_001, dtype=np.uint8),
        "d.same": np.arange(100),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.full((), 1.5, np.float32),
    }


def step(tensors: Tensors, rate: float, seed: int) -> Tensors:
    """The next version: some elements change by the smallest step, a few in all bits, and a run is replaced."""
    random = np.random.default_rng(seed)
    new = {}
    for name, tensor in tensors.items():
        codes = tensor.reshape(-1).view(np.dtype(f"u{tensor.itemsize}")).copy()
        if name != "d.same" and codes.size:
            codes[random.random(codes.size) < rate] += 1
            codes[random.random(codes.size) < rate / 20] ^= codes.dtype.type(-1 & (1 << 8 * tensor.itemsize) - 1)
            start = int(random.integers(codes.size))
            codes[start : start + int(codes.size * rate)] += 2
        new[name] = codes.view(tensor.dtype).reshape(tensor.shape)
    return new


def assert_same(one: Any, other: Tensors) -> None:
    """Every bit."""
    assert sorted(one) == sorted(other)
    for name, tensor in other.items():
        own = np.asarray(one[name])
        assert (own.dtype, own.shape, own.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes()), name


class Chain:
    """Versions and the deltas between them."""

    def __init__(self, folder: Path, rates: tuple[float, ...] = (0.02, 0.0005, 0.3)) -> None:
        self.folder = folder
        self.versions = [first()]
        save_file(self.versions[0], self.version(0), {"step": "0"})
        for number, rate in enumerate(rates, 1):
            new = step(self.versions[-1], rate, number)
            if number == 2:
                new["new.weight"] = np.full((3, 5), 7, np.float16)
                del new["d.same"]
                new["c.bytes"] = new["c.bytes"][:70_000]
            self.versions.append(new)
            save_file(new, self.version(number))
            delta.create(self.version(number - 1), self.version(number), self.delta(number), sync=False)

    def version(self, number: int) -> Path:
        return self.folder / f"v{number}.safetensors"

    def delta(self, number: int) -> Path:
        return self.folder / f"d{number}.safetensors"

    def deltas(self) -> list[Path]:
        return [self.delta(number) for number in range(1, len(self.versions))]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


def test_a_second_implementation_reads_what_was_written(chain: Chain) -> None:
    for number in range(1, len(chain.versions)):
        assert_same(specification.apply(chain.versions[number - 1], chain.delta(number)), chain.versions[number])
        header = delta.read(chain.delta(number))
        assert header.target == specification.identity(chain.versions[number])
        assert max_weights.fingerprint(chain.version(number), identity=True).identity == header.target
    assert header.base == delta.read(chain.delta(number - 1)).target


def test_versions_are_files_trees_or_tensors_in_memory(chain: Chain, tmp_path: Path) -> None:
    written = chain.delta(2).read_bytes()
    one, other = chain.version(1), chain.version(2)
    path = tmp_path / "delta.safetensors"
    for base, new in [(chain.versions[1], chain.versions[2]), (chain.versions[1], other), (one, chain.versions[2])]:
        summary = delta.create(base, new, path, sync=False)
        assert path.read_bytes() == written
        assert (summary.removed, summary.whole) == (1, 2)
    strided = {name: np.array(tensor, order="F") for name, tensor in chain.versions[1].items()}
    delta.create(strided, load_weights(other), path, sync=False)
    assert path.read_bytes() == written
    folder = tmp_path / "weight_v000001"
    same = {name: tensor for name, tensor in chain.versions[1].items() if name in ("a.weight", "b.weight")}
    changed = {name: chain.versions[2][name] for name in same}
    delta.create(same, changed, folder, dialect="xor", sync=False)
    save_file(same, tmp_path / "base.safetensors")
    assert_same(load_weights([tmp_path / "base.safetensors", folder]).load(framework="numpy"), changed)
    with refuses(ValueError):
        delta.create(same, {"a.weight": same["a.weight"]}, tmp_path / "weight_v000002", dialect="xor")
    six = {"six": max_weights.Buffer(max_weights.DType.float6_e2m3fn, (4,))}
    with refuses(UnsupportedError, "cast.pair"):
        delta.create(six, six, path)


def test_a_base_and_deltas_are_one_checkpoint(chain: Chain) -> None:
    for number, version in enumerate(chain.versions):
        weights = load_weights([chain.version(0), *chain.deltas()[:number]])
        assert_same(weights.load(framework="numpy"), version)
        assert_same(dict(weights.stream(framework="numpy")), version)
        assert dict(weights.metadata) == {"step": "0"}
        assert (
            max_weights.fingerprint(weights, digests=True).digests
            == max_weights.fingerprint(load_weights(chain.version(number)), digests=True).digests
        )
        for rows in (slice(0, 1), slice(17, 290, 30), slice(299, 300)):
            part = weights.a.weight[rows, 3:999]
            assert np.asarray(part).tobytes() == np.ascontiguousarray(version["a.weight"][rows, 3:999]).tobytes()
    shard = load_weights([chain.version(0), chain.delta(1)]).load(framework="numpy", select="a.*", dtype="float32")
    assert np.array_equal(shard["a.weight"], chain.versions[1]["a.weight"].astype(np.float32), equal_nan=True)


def test_deltas_of_a_folder_are_taken_in_the_order_in_which_they_build_on_each_other(
    chain: Chain, tmp_path: Path
) -> None:
    for name, path in zip(("z", "m", "a"), chain.deltas(), strict=True):
        shutil.copy(path, tmp_path / f"{name}.safetensors")
    assert_same(load_weights([chain.version(0), tmp_path]).load(framework="numpy"), chain.versions[-1])


def test_bases_and_deltas_are_read_by_url(chain: Chain) -> None:
    with FaultServer(chain.folder) as server:
        urls = [server.file(path.name) for path in (chain.version(0), *chain.deltas())]
        assert_same(load_weights(urls).load(framework="numpy"), chain.versions[-1])
        assert_same(load_weights([chain.version(0), urls[1]]).load(framework="numpy"), chain.versions[1])
        tensors = memory(chain.versions[0])
        delta.apply_into(tensors, urls[1])
        assert_same(tensors, chain.versions[1])
        assert delta.read(urls[1]).target == delta.read(chain.delta(1)).target


def test_deltas_of_a_folder_are_read_by_url(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = tmp_path / "runs"  # a process keeps its connections to a bucket, so the name is unique among tests
    (bucket / "run-1.5/deltas").mkdir(parents=True)
    shutil.copy(chain.version(0), bucket / "run-1.5/base.safetensors")
    for name, path in zip(("z", "m", "a"), chain.deltas(), strict=True):
        shutil.copy(path, bucket / f"run-1.5/deltas/{name}.safetensors")
    (bucket / "run-1.5/deltas/notes.txt").write_text("no delta")
    with FaultServer(bucket.parent) as server:
        for key, value in {
            "AWS_ENDPOINT_URL_S3": server.s3,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }.items():
            monkeypatch.setenv(key, value)
        base, deltas = "s3://runs/run-1.5/base.safetensors", "s3://runs/run-1.5/deltas"
        assert_same(load_weights([base, deltas]).load(framework="numpy"), chain.versions[-1])
        assert_same(load_weights([chain.version(0), deltas + "/"]).load(framework="numpy"), chain.versions[-1])
        shutil.copy(chain.version(0), tmp_path / "own.safetensors")
        assert delta.apply(tmp_path / "own.safetensors", deltas, sync=False).applied_before == 0
        assert_same(load_file(tmp_path / "own.safetensors"), chain.versions[-1])
        server.set("slow-down times=2")
        assert_same(load_weights([base, deltas]).load(framework="numpy"), chain.versions[-1])
        server.set()
        (bucket / "run-1.5/deltas/m.safetensors").rename(tmp_path / "m.safetensors")
        with refuses(FormatError, "delta.chain"):
            load_weights([base, deltas])
        with refuses(ValueError):
            load_weights([base, server.file("runs/run-1.5/deltas")])


def test_commands_take_a_folder_of_several_deltas(chain: Chain, tmp_path: Path) -> None:
    folder, own = tmp_path / "deltas", tmp_path / "own.safetensors"
    folder.mkdir()
    for name, path in zip(("z", "m", "a"), chain.deltas(), strict=True):
        shutil.copy(path, folder / f"{name}.safetensors")
    shutil.copy(chain.version(0), own)

    def run(*words: object, status: int = 0) -> str:
        done = subprocess.run([sys.executable, "-m", "max_weights", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout

    expected = max_weights.diff(chain.version(0), chain.version(3), metadata=False)
    message = json.loads(run("diff", chain.version(0), folder, "--json", status=1))
    assert len(message["changed"]) == len(expected.by_kind("changed")) > 0
    assert max_weights.diff(chain.version(0), [chain.version(0), folder], metadata=False).findings == expected.findings
    with pytest.raises((FormatError, OSError)):
        max_weights.diff(chain.version(0), tmp_path / "nothing")
    summary = json.loads(run("ls", chain.version(0), folder, "--changed", "--json"))
    assert (summary["schema"], summary["unit"]) == ("max-weights.ls-changed/1", "elements")
    assert [Path(path).name for path in summary["deltas"]] == ["z.safetensors", "m.safetensors", "a.safetensors"]
    changed = [
        name
        for name in chain.versions[3]
        if any(name in {*delta.read(path).changed, *delta.read(path).whole} for path in chain.deltas())
    ]
    assert summary["changed"] == len(changed)
    assert sum(layer["tensors"] for layer in summary["layers"]) == len(changed)
    assert f"{len(changed)} weights changed by 3 deltas: --changed prints where" in run("ls", chain.version(0), folder)
    weights = load_weights([chain.version(0), folder])
    assert f"v0.safetensors, with 3 deltas that changed {len(changed)} weights: " in repr(weights)
    assert (
        "no deltas follow the base"
        in subprocess.run(
            [sys.executable, "-m", "max_weights", "ls", chain.version(0), "--changed"], capture_output=True, text=True
        ).stderr
    )
    run("delta", "apply", own, folder, "--no-sync")
    assert_same(load_file(own), chain.versions[3])
    run("delta", "fold", chain.version(0), folder, tmp_path / "one.safetensors", "--no-sync")
    assert_same(specification.apply(chain.versions[0], tmp_path / "one.safetensors"), chain.versions[3])


def test_a_delta_of_tensors_in_memory_is_that_of_their_file(chain: Chain, tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(tensor.copy()) for name, tensor in chain.versions[1].items()}
    tensors["a.weight"] = tensors["a.weight"].t().contiguous().t()
    summary = delta.create(load_weights(chain.version(0)), tensors, tmp_path / "d.safetensors", sync=False)
    assert (tmp_path / "d.safetensors").read_bytes() == chain.delta(1).read_bytes()
    assert (summary.changed, summary.whole, summary.removed, summary.unchanged) == (4, 0, 0, 3)
    nothing = delta.create(chain.version(1), chain.version(1), tmp_path / "none.safetensors", sync=False)
    assert (nothing.base, nothing.changed, nothing.elements) == (nothing.target, 0, 0)


def test_a_step_of_two_percent_takes_two_percent(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    old = {"w": random.integers(0, 1 << 16, 4_000_000, dtype=np.uint16).view(np.float16)}
    new = {"w": (old["w"].view(np.uint16) + (random.random(4_000_000) < 0.02)).astype(np.uint16).view(np.float16)}
    save_file(old, tmp_path / "old.safetensors")
    delta.create(tmp_path / "old.safetensors", new, tmp_path / "d.safetensors", sync=False)
    assert (tmp_path / "d.safetensors").stat().st_size < 0.0215 * old["w"].nbytes


def test_the_vectors_of_the_specification_are_what_is_written(tmp_path: Path) -> None:
    codes = np.arange(32, dtype=np.uint16)
    new = codes.copy()
    new[1], new[2] = 17, 0x1234
    new[4:8] += 0xA0
    save_file({"w": codes.view(np.float16)}, tmp_path / "old.safetensors")
    path = tmp_path / "d.safetensors"
    summary = delta.create(tmp_path / "old.safetensors", {"w": new.view(np.float16)}, path, sync=False)
    text, stored = (ROOT / "docs" / "delta.md").read_text(), load_file(path)
    _, _, vectors = text.partition("**Vectors.**")
    record = stored[f"{specification.PREFIX}changes/w"].tobytes()
    assert bytes.fromhex("".join(re.findall(r"`([0-9a-f ]{2,14})`", vectors)[:4])) == record
    *counts, before, after, of_record = stored[f"{specification.PREFIX}blocks/w"][0].tolist()
    assert f"| {', '.join(map(str, counts))}, {before:#018x}, {after:#018x}, {of_record:#018x} |" in vectors
    message = specification.metadata(path)
    assert re.findall(r"`([0-9a-f]{32})`", vectors)[:3] == [summary.base, summary.target, message["base_tensors"]]


def test_runs_take_no_place_for_each_element(tmp_path: Path) -> None:
    old = {"w": np.zeros(1_000_000, np.uint8)}
    new = {"w": (np.arange(1_000_000) % 1000 < 500).astype(np.uint8)}
    save_file(old, tmp_path / "old.safetensors")
    delta.create(tmp_path / "old.safetensors", new, tmp_path / "d.safetensors", sync=False)
    assert (tmp_path / "d.safetensors").stat().st_size < 510_000
    assert_same(specification.apply(old, tmp_path / "d.safetensors"), new)


def test_what_changed_waits_in_a_file_if_it_is_much(tmp_path: Path) -> None:
    old = {"w": np.zeros(256_000_000, np.uint8)}
    new = {"w": np.tile(np.array([1, 0, 0, 0], np.uint8), 64_000_000)}
    for name, tensors in {"old": old, "new": new}.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / f"{name}.safetensors" for name in ("old", "new", "d")]
    done, peak = measured("delta", "create", *paths, "--no-sync")
    assert (done.status, done.stderr) == (0, "")
    assert paths[2].stat().st_size > 128_000_000
    assert peak < 150, "the limit of 64 MiB, the program, and blocks of each thread"
    now = load_weights(paths[:1] + paths[2:]).w[1000:9000].numpy()
    assert np.array_equal(now, new["w"][1000:9000])


def test_what_folds_a_chain_leads_to_the_same_version(chain: Chain, tmp_path: Path) -> None:
    summary = delta.fold(chain.version(0), *chain.deltas(), path=tmp_path / "all.safetensors", sync=False)
    assert (summary.base, summary.target) == (delta.read(chain.delta(1)).base, delta.read(chain.delta(3)).target)
    assert_same(specification.apply(chain.versions[0], tmp_path / "all.safetensors"), chain.versions[-1])


# --- to memory -----------------------------------------------------------------------------------------------------


def memory(tensors: Tensors) -> Tensors:
    return {name: tensor.copy() for name, tensor in tensors.items()}


def test_tensors_in_memory_become_the_new_version_and_stay_so(chain: Chain) -> None:
    tensors = memory(chain.versions[0])
    applied = delta.apply_into(tensors, chain.delta(1))
    assert_same(tensors, chain.versions[1])
    again = delta.apply_into(tensors, chain.delta(1))
    assert_same(tensors, chain.versions[1])
    assert applied.changed == again.unchanged > 10
    assert applied.unchanged == again.changed == 0


def test_what_was_interrupted_is_finished_by_applying_again(chain: Chain) -> None:
    tensors = memory(chain.versions[2])
    done = chain.versions[3]["a.weight"].reshape(-1)
    tensors["a.weight"].reshape(-1)[: 2 * 65_536] = done[: 2 * 65_536]
    delta.apply_into(tensors, chain.delta(3))
    assert_same(tensors, chain.versions[3])


def test_a_module_gets_a_delta_also_under_other_names(chain: Chain) -> None:
    module = torch.nn.Module()
    for name in ("a.weight", "b.weight", "b.double", "c.bytes", "d.same", "scalar"):
        module.register_buffer(name.replace(".", "_"), torch.from_numpy(chain.versions[0][name].copy()))
    module.tied = torch.nn.Parameter(module.b_weight)
    delta.apply_into(module, chain.delta(1), rename=lambda name: name.replace(".", "_"))
    assert np.array_equal(module.b_weight.numpy(), chain.versions[1]["b.weight"])
    assert np.array_equal(module.tied.detach().numpy(), chain.versions[1]["b.weight"])


def test_rows_of_a_fused_tensor_are_views_that_may_be_given(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    parts = {
        f"attention.{part}.weight": random.standard_normal((rows, 64)).astype(np.float32)
        for part, rows in zip("qkv", (64, 16, 16), strict=True)
    }
    new = {
        name: np.where(random.random(part.shape) < 0.02, part + 1, part).astype(np.float32)
        for name, part in parts.items()
    }
    save_file(parts, tmp_path / "base.safetensors")
    delta.create(tmp_path / "base.safetensors", new, tmp_path / "d.safetensors", sync=False)
    fused = torch.from_numpy(np.concatenate(list(parts.values())))
    with refuses(FormatError, "delta.tensor"):
        delta.apply_into({"attention.qkv.weight": fused}, tmp_path / "d.safetensors")
    views = dict(zip(parts, fused.split([64, 16, 16]), strict=True))
    delta.apply_into(views, tmp_path / "d.safetensors")
    assert np.array_equal(fused.numpy(), np.concatenate(list(new.values())))


@pytest.mark.parametrize("place", [0, 200_000, 299_999])
def test_a_tensor_that_is_another_one_is_refused_before_anything_is_changed(chain: Chain, place: int) -> None:
    tensors = memory(chain.versions[0])
    tensors["a.weight"].reshape(-1).view(np.uint16)[place] ^= 1
    before = memory(tensors)
    with refuses(FormatError, "delta.base") as error:
        delta.apply_into(tensors, chain.delta(1))
    first_of_block = place // 65_536 * 65_536
    assert "tensor 'a.weight': its values differ" in str(error.value)
    assert f"in the elements {first_of_block} to" in str(error.value)
    assert_same(tensors, before)


def test_tensors_that_do_not_fit_are_named(chain: Chain) -> None:
    new = np.zeros((3, 5), np.float16)

    def refused(change: Callable[[Tensors], Any], *deltas: Path) -> str:
        tensors = memory(chain.versions[0])
        change(tensors)
        with pytest.raises((FormatError, ValueError)) as error:
            delta.apply_into(tensors, *(deltas or (chain.delta(1),)))
        return str(error.value)

    assert "tensor 'b.weight': the delta changes it, but the caller did not pass it" in refused(
        lambda t: t.pop("b.weight")
    )
    wider = refused(lambda t: t.update({"b.weight": t["b.weight"].astype(np.float64)}))
    assert "it has float64 elements in the shape [700, 211], but F32 in [700, 211] changed" in wider
    assert "the shape [211, 700]" in refused(lambda t: t.update({"b.weight": t["b.weight"].reshape(211, 700)}))
    assert "have the same memory" in refused(lambda t: t.update(other=t["b.weight"]))
    assert "overlap in memory" in refused(lambda t: t.update(other=t["b.weight"][1:]))
    assert "not contiguous" in refused(lambda t: t.update({"b.weight": np.asfortranarray(t["b.weight"])}))
    assert "delta.chain" in refused(lambda _: None, chain.delta(1), chain.delta(3))
    assert "'d.same': the delta removes it" in refused(lambda t: t.update({"new.weight": new}), *chain.deltas())


def rewritten(path: Path, to: Path, change: Callable[[Tensors, dict[str, Any]], object]) -> Path:
    """A delta in which something was changed, with digests that fit."""
    tensors, message = load_file(path), specification.metadata(path)
    change(tensors, message)
    for name, entry in [*message["changed"].items(), *message["whole"].items()]:  # type: ignore[attr-defined]
        rows = tensors.get(f"{specification.PREFIX}blocks/{name}")
        if rows is not None and isinstance(entry, list):
            entry[2:] = [specification.hash_of(rows.tobytes())]
        elif rows is not None:
            message["whole"][name] = specification.hash_of(rows.tobytes())  # type: ignore[index]
    return specification.sealed(tensors, message, to)


BLOCKS, CHANGES = f"{specification.PREFIX}blocks/", f"{specification.PREFIX}changes/"


# --- inspected without its base ------------------------------------------------------------------------------------


def test_validation_finds_what_is_wrong_with_a_delta_alone(chain: Chain, tmp_path: Path) -> None:
    def found(change: Callable[[Tensors, dict[str, Any]], object]) -> list[str]:
        path = rewritten(chain.delta(1), tmp_path / "d.safetensors", change)
        return [f"{finding.rule} {finding.name}" for finding in max_weights.validate(path).findings]

    assert found(lambda _tensors, _messages: None) == []

    def shorter(tensors: Tensors, _: dict[str, Any]) -> None:
        tensors[f"{CHANGES}b.weight"] = tensors[f"{CHANGES}b.weight"][:-1].copy()

    def disordered(tensors: Tensors, _: dict[str, Any]) -> None:
        tensors[f"{BLOCKS}a.weight"][[0, 1]] = tensors[f"{BLOCKS}a.weight"][[1, 0]]

    assert found(shorter) == ["delta.changes b.weight"]
    assert found(disordered) == ["delta.changes a.weight"]
    assert found(lambda tensors, _: tensors.pop(f"{BLOCKS}a.weight")) == ["delta.header None"]

    def shape(dtype: str, *dims: int) -> Callable[[Tensors, dict[str, Any]], object]:
        return lambda _, message: message["changed"].update(
            {"a.weight": [dtype, [*dims], message["changed"]["a.weight"][2]]}
        )

    assert [finding.split()[0] for finding in found(shape("F17", 3))] == ["delta.tensor"]
    assert found(shape("F16", 1)) == ["delta.changes a.weight"]
    assert found(lambda _, message: message.update(version=9)) == ["delta.header None"]

    def flipped(tensors: Tensors, _: dict[str, Any]) -> None:
        tensors[f"{CHANGES}a.weight"][0] ^= 1

    assert found(flipped) == ["delta.changes a.weight"]


def test_a_delta_is_compared_with_its_base(chain: Chain, tmp_path: Path) -> None:
    message = max_weights.diff(chain.version(0), [chain.version(0), chain.delta(1)])
    expected = max_weights.diff(chain.version(0), chain.version(1), metadata=False)
    assert message.findings
    assert message.findings == expected.findings
    with refuses(FormatError, "delta.alone"):
        max_weights.diff(load_weights(chain.version(0)), chain.delta(1))
    assert command_line(["max-weights", "diff", str(chain.version(0)), str(chain.delta(1))]) == 1
    folder = tmp_path / "weight_v000001"
    delta.create(chain.version(0), chain.version(1), folder, dialect="xor", sync=False)
    assert max_weights.diff(chain.version(0), [chain.version(0), folder]).findings == message.findings


def test_what_changed_is_shown_layer_by_layer(tmp_path: Path) -> None:
    old = {f"layers.{number}.{part}.weight": np.zeros(100, np.float32) for number in (2, 10) for part in "ab"}
    old["head.weight"] = np.zeros(10, np.float32)
    new = memory(old)
    new["layers.10.a.weight"][:7] = 1
    new["layers.2.a.weight"][:1], new["layers.2.b.weight"][:2], new["head.weight"][:] = 1, 1, 1
    save_file(old, tmp_path / "old.safetensors")
    delta.create(tmp_path / "old.safetensors", new, tmp_path / "d.safetensors", sync=False)
    program = [sys.executable, "-m", "max_weights", "delta", "show", str(tmp_path / "d.safetensors"), "--layers"]
    message = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    assert message == [
        "100.00 %  head  1 tensor, 10 of 10 elements",
        "  1.50 %  layers.2  2 tensors, 3 of 200 elements",
        "  7.00 %  layers.10  1 tensor, 7 of 100 elements",
    ]


# --- following a trainer -------------------------------------------------------------------------------------------


def test_versions_are_followed_as_they_appear(chain: Chain, tmp_path: Path) -> None:
    shutil.copy(chain.delta(2), tmp_path / "0.safetensors")
    (tmp_path / "notes.txt").write_text("no delta")
    versions = delta.follow(chain.version(0), tmp_path, every=0.01, timeout=5)
    shutil.copy(chain.delta(1), tmp_path / "1.safetensors")
    for number in (1, 2):
        version = next(versions)
        assert_same(version.weights().load(framework="numpy"), chain.versions[number])
    shutil.copy(chain.delta(3), tmp_path / ".3.part")
    (tmp_path / ".3.part").rename(tmp_path / "3.safetensors")
    version = next(versions)
    assert (version.identity, len(version.deltas)) == (delta.read(chain.delta(3)).target, 3)
    assert list(delta.follow(chain.version(0), tmp_path, every=0.01, timeout=0))[-1] == version
    delta.create(chain.version(1), step(chain.versions[1], 0.01, 98), tmp_path / "fork.safetensors", sync=False)
    with refuses(ArgumentError, "delta.order"):
        next(versions)


# --- the command line ----------------------------------------------------------------------------------------------


def test_the_same_in_the_shell(chain: Chain, tmp_path: Path) -> None:
    def run(*words: object) -> str:
        program = [sys.executable, "-m", "max_weights", "delta", *map(str, words)]
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout

    out, file = tmp_path / "d.safetensors", tmp_path / "model.safetensors"
    message = run("create", chain.version(0), chain.version(1), out, "--no-sync")
    assert out.read_bytes() == chain.delta(1).read_bytes()
    assert "4 tensors changed" in message
    assert json.loads(run("show", out, "--json"))["target"] == delta.read(out).target
    assert "changed  a.weight  F16  [300, 1000]" in run("show", out)
    shutil.copy(chain.version(0), file)
    run("apply", file, *chain.deltas(), "--no-sync")
    assert_same(load_file(file), chain.versions[3])
    run("fold", chain.version(0), *chain.deltas(), tmp_path / "all.safetensors", "--no-sync")
    assert_same(specification.apply(chain.versions[0], tmp_path / "all.safetensors"), chain.versions[3])
    assert command_line(["max-weights", "delta", "apply", str(chain.version(1)), str(chain.delta(3))]) == 3


def random_versions(random: np.random.Generator, tensors: int) -> list[Tensors]:
    """Versions of a checkpoint of some tensors, each of which is a chain by itself."""
    versions: list[Tensors] = [{}]
    for number in range(tensors):
        shape = tuple(int(dim) for dim in random.integers(1, 400, random.integers(1, 3)))
        if number % 17 == 0:
            shape = (int(random.integers(65_000, 140_000)),)  # two blocks, or three
        dtype = [np.float16, np.float32, np.uint8, np.int64][int(random.integers(4))]
        versions[0][f"w.{number}"] = random.integers(0, 100, shape).astype(dtype)
    for position in range(int(random.integers(1, 5))):
        rates = random.choice([0.0, 0.001, 0.05, 0.6], len(versions[-1]))
        seeds = random.integers(1 << 31, size=len(versions[-1]))
        new = {}
        for (name, tensor), rate, seed in zip(versions[-1].items(), rates, seeds, strict=True):
            new |= step({name: tensor}, float(rate), int(seed)) if rate else {name: tensor}
        if position == 1 and tensors > 3:
            new["w.1"], new["w.new"] = new["w.1"].reshape(-1)[:1].copy(), np.full(9, 5.0)
        versions.append(new)
    return versions


@pytest.mark.parametrize(
    ("seed", "count", "tensors"), [(5, 5, 4), pytest.param(6, 1000, 100, marks=pytest.mark.nightly)]
)
def test_random_chains_lead_where_numpy_says(tmp_path: Path, seed: int, count: int, tensors: int) -> None:
    random = np.random.default_rng(seed)
    base = tmp_path / "base.safetensors"
    for _ in range(count):
        versions = random_versions(random, tensors)
        safetensors.numpy.save_file(versions[0], base)
        deltas: list[Path] = []
        for position, new in enumerate(versions[1:]):
            path = tmp_path / f"{position}.safetensors"
            delta.create([base, *deltas], new, path, sync=False)
            deltas.append(path)
        assert_same(load_weights([base, *deltas]).load(framework="numpy"), versions[-1])
        if all(sorted(version) == sorted(versions[0]) for version in versions):
            own = memory(versions[0])
            delta.apply_into(own, *deltas)
            assert_same(own, versions[-1])
        delta.apply(base, *deltas, sync=False)
        assert_same(load_file(base), versions[-1])
