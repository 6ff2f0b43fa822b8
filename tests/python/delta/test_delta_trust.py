"""What a trainer relies on: damage is named, a wrong base is refused, memory is changed atomically."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import max_weights
from max_weights import delta, load_weights
from max_weights.errors import ArgumentError, FormatError, UnsupportedError, WeightsError
from refusals import refuses
from test_delta import Tensors, assert_same, memory, rewritten

# --- A3: damage ----------------------------------------------------------------------------------------------------


def small(kind: str) -> tuple[Tensors, Tensors]:
    """Two versions of a small checkpoint, with one kind of difference or all."""
    old = {
        "T": np.arange(40, dtype=np.float32),
        "zeros": np.zeros(140_000, np.uint8),
        "gone": np.arange(3, dtype=np.int64),
        "same": np.arange(5, dtype=np.float16),
        "w": np.arange(12, dtype=np.float32),
    }
    new = memory(old)
    if kind in ("part", "all"):
        new["T"][3:5] = -1
        new["zeros"][70_000] = 1  # a block equal to its neighbours
    if kind in ("whole", "all"):
        new["w"] = -np.arange(12, dtype=np.float32) - 1
    if kind in ("new", "all"):
        new["added"] = np.full(6, 2.5, np.float32)
    if kind in ("removed", "all"):
        del new["gone"]
    return old, new


class Damaged:
    """A delta with flipped bits, and all operations on it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.old, self.new = small(kind)
        self.base, self.path = folder / "base.safetensors", folder / "d.safetensors"
        save_file(self.old, self.base)
        delta.create(self.base, self.new, self.path, sync=False)
        self.whole = self.path.read_bytes()
        self.target = folder / "target.safetensors"
        self.base_bytes = self.base.read_bytes()
        self.named = 0

    def flip(self, bit: int, verbs: str = "lavm") -> None:
        """Flip a bit: each verb reports it, or gives the result for the intact file."""
        damaged = bytearray(self.whole)
        damaged[bit // 8] ^= 1 << bit % 8
        self.path.write_bytes(damaged)
        for verb in verbs:
            self.named += self._is_named(verb)

    def _is_named(self, verb: str) -> bool:
        before = memory({name: tensor for name, tensor in self.old.items() if name in self.new})
        is_in_place = verb == "m" and set(self.new) <= set(self.old)
        try:
            if verb == "l":
                assert_same(load_weights([self.base, self.path]).load(framework="numpy"), self.new)
            elif verb == "a":
                self.target.write_bytes(self.base_bytes)
                delta.apply(self.target, self.path, sync=False)
                assert_same(load_file(self.target), self.new)
            elif verb == "v":
                return bool(max_weights.validate(self.path).findings)
            elif is_in_place:
                tensors = memory(before)
                delta.apply_into(tensors, self.path)
                assert_same(tensors, self.new)
        except (WeightsError, OSError):
            if verb == "a":
                assert self.target.read_bytes() == self.base_bytes
            if is_in_place:
                assert_same(tensors, before)
            return True
        return False


@pytest.mark.parametrize("kind", ["part", "whole", "new", "removed", "nothing", "all"])
def test_a_flipped_bit_anywhere_in_a_delta_is_named_or_harmless(tmp_path: Path, kind: str) -> None:
    damaged = Damaged(tmp_path, kind)
    bits = len(damaged.whole) * 8
    # One bit of every byte, at a changing position, with the verbs in turns.
    for byte, verb in zip(range(bits // 8), itertools.cycle("lavm")):
        damaged.flip(byte * 8 + byte % 8, verb)
    data = 8 + int.from_bytes(damaged.whole[:8], "little")
    assert damaged.named > 0.7 * data


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_flipped_bits_are_named_or_harmless(tmp_path: Path) -> None:
    tried = 0
    for kind in ("part", "whole", "new", "removed", "nothing", "all"):
        (folder := tmp_path / kind).mkdir()
        damaged = Damaged(folder, kind)
        bits = len(damaged.whole) * 8
        for bit in range(bits):
            damaged.flip(bit)
        tried += 4 * bits
        print(kind, bits, damaged.named)
    assert tried >= 100_000


@pytest.mark.parametrize("kind", ["part", "whole", "new", "removed", "nothing"])
def test_a_delta_whose_key_is_damaged_is_never_taken_for_weights(tmp_path: Path, kind: str) -> None:
    damaged = Damaged(tmp_path, kind)
    for found in (b'max_weights.delta"', b"max_weights.delta.digest", b"__metadata__"):
        at = damaged.whole.index(found) + 4
        other = bytearray(damaged.whole)
        other[at] ^= 1
        damaged.path.write_bytes(other)
        for open_it in (
            lambda: load_weights([damaged.base, damaged.path]),
            lambda: load_weights(damaged.path),
            lambda: delta.read(damaged.path),
            lambda: delta.apply(damaged.target, damaged.path),
        ):
            damaged.target.write_bytes(damaged.base_bytes)
            with refuses(FormatError):
                open_it()
        assert not max_weights.validate(damaged.path).ok


def test_the_outcome_is_compared_with_the_target_before_files_are_replaced(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path, "part")
    other = rewritten(damaged.path, tmp_path / "other.safetensors", lambda _, message: message.update(target="0" * 32))
    with refuses(FormatError, "delta.changes"):
        delta.apply(damaged.base, other, sync=False)
    assert damaged.base.read_bytes() == damaged.base_bytes


# --- N3: the base --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["small", "large"])
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Path], list[Tensors]]:
    """A base, a delta that changes elements of a tensor, and one with only whole tensors."""
    count = 1000 if request.param == "small" else 3_000_000
    first = {f"layers.{number}.weight": np.full(count, number, np.float32) for number in range(4)}
    second = memory(first)
    second["layers.0.weight"][count // 2 : count // 2 + 5] = 9
    third = memory(second)
    third["layers.3.weight"] = np.full(count, -1, np.float16)
    third["new.weight"] = np.ones(7, np.float32)
    save_file(first, tmp_path / "base.safetensors")
    paths = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    delta.create(tmp_path / "base.safetensors", second, paths[0], sync=False)
    delta.create([tmp_path / "base.safetensors", paths[0]], third, paths[1], sync=False)
    return tmp_path / "base.safetensors", paths, [first, second, third]


def test_a_delta_does_not_open_without_the_one_before_it(steps: tuple[Path, list[Path], list[Tensors]]) -> None:
    base, paths, versions = steps
    assert not delta.read(paths[1]).changed
    with refuses(FormatError, "delta.base"):
        load_weights([base, paths[1]])
    assert_same(load_weights([base, *paths]).load(framework="numpy"), versions[2])
    before = base.read_bytes()
    with refuses(FormatError, "delta.base"):
        delta.apply(base, paths[1], sync=False)
    assert base.read_bytes() == before


def test_a_base_with_other_names_dtypes_or_shapes_is_refused(
    steps: tuple[Path, list[Path], list[Tensors]], tmp_path: Path
) -> None:
    _, paths, (_, second, _) = steps
    changes: list[Callable[[Tensors], object]] = [
        lambda t: t.update(more=np.zeros(3)),
        lambda t: t.pop("layers.1.weight"),
        lambda t: t.update({"layers.1.weight": t["layers.1.weight"].view(np.int32)}),
        lambda t: t.update({"layers.1.weight": t["layers.1.weight"].reshape(-1, 2)}),
        lambda t: t.update({f"model.{name}": t.pop(name) for name in list(t)}),
    ]
    for change in changes:
        other = memory(second)
        change(other)
        save_file(other, tmp_path / "other.safetensors")
        with refuses(FormatError, "delta.base"):
            load_weights([tmp_path / "other.safetensors", paths[1]])


# --- R2: one transaction -------------------------------------------------------------------------------------------


def test_whole_tensors_and_blocks_are_what_they_were_if_one_cannot_be_changed(tmp_path: Path) -> None:
    old = {f"t{number}": np.arange(70_000, dtype=np.float32) + number for number in range(4)}
    new = memory(old)
    new["t0"] = np.random.default_rng(0).standard_normal(70_000).astype(np.float32)
    new["t1"][5:9] = 0
    new["t2"] = -new["t2"] - 1
    new["t3"][66_000] = 3
    save_file(old, tmp_path / "base.safetensors")
    paths = {}
    for dialect, name in (("max-weights", "d.safetensors"), ("xor", "weight_v000001"), ("overwrite", "weight_v000002")):
        paths[dialect] = tmp_path / name
        delta.create(tmp_path / "base.safetensors", new, paths[dialect], dialect=dialect, sync=False)  # type: ignore[arg-type]
    assert len(delta.read(paths["max-weights"]).whole) == 2

    for path in paths.values():
        for wrong, place in (("t1", 0), ("t3", 66_001)):
            tensors = memory(old)
            tensors[wrong][place] = 77
            before = memory(tensors)
            with refuses(FormatError, "delta.base"):
                delta.apply_into(tensors, path)
            assert_same(tensors, before)
        # Interrupted when it is nearly done.
        tensors = memory(old)

        def stop(done: int, total: int) -> None:
            if done >= total:
                raise RuntimeError("stop")

        with refuses(RuntimeError):
            delta.apply_into(tensors, path, progress=stop)
        assert_same(tensors, old)
        delta.apply_into(tensors, path)
        assert_same(tensors, new)


def test_tensors_of_the_host_are_what_they_were_if_those_of_a_device_cannot_be_changed(
    tmp_path: Path,
) -> None:
    from max_weights import _delta_memory
    from max_weights._transaction import Transaction

    old = {name: np.arange(1000, dtype=np.float32) for name in ("a", "b", "c")}
    new = {name: tensor + (np.arange(1000) % 50 == 0) for name, tensor in old.items()}
    new = {name: tensor.astype(np.float32) for name, tensor in new.items()}
    save_file(old, tmp_path / "base.safetensors")
    path = tmp_path / "d.safetensors"
    delta.create(tmp_path / "base.safetensors", new, path, sync=False)
    tensors: dict[str, Any] = {name: torch.from_numpy(tensor.copy()) for name, tensor in old.items()}
    with refuses(ArgumentError, "argument.meta"):
        delta.apply_into({**tensors, "b": torch.empty(1000, device="meta")}, path)
    assert_same({name: tensor.numpy() for name, tensor in tensors.items()}, old)

    # A device, simulated by host memory that is copied back and forth; its second tensor fails.
    class Device:
        def __init__(self, tensor: torch.Tensor, *, fails: bool) -> None:
            self.tensor, self.fails = tensor, fails

        def cpu(self) -> torch.Tensor:
            return self.tensor.clone()

        def copy_(self, other: torch.Tensor) -> None:
            self.tensor.copy_(other)
            if self.fails:
                self.fails = False
                raise RuntimeError("the device is gone")

    devices = [(["b"], Device(tensors["b"], fails=False)), (["c"], Device(tensors["c"], fails=True))]
    sorted_tensors = _delta_memory.MemoryTensors([("a", tensors["a"])], devices, [], False)

    def apply() -> None:
        with Transaction() as transaction:
            _delta_memory.Applying([str(path)], sorted_tensors, tensors, transaction).to_own(None)

    with refuses(RuntimeError):
        apply()
    assert_same({name: tensor.numpy() for name, tensor in tensors.items()}, old)
    apply()
    assert_same({name: tensor.numpy() for name, tensor in tensors.items()}, new)


# --- A2: tied tensors ----------------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    """A head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(700, 100)
        self.norm = torch.nn.LayerNorm(100)
        self.head = torch.nn.Linear(100, 700, bias=False)
        self.head.weight = self.embed.weight

    def step(self) -> None:
        with torch.no_grad():
            self.embed.weight[::7] += 1
            self.norm.weight[3] = 5


def copies(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("dialect", ["max-weights", "xor", "sparse"])
def test_a_delta_of_a_tied_module_is_applied_to_it(tmp_path: Path, dialect: Any) -> None:
    trainer, engine = Tied(), Tied()
    before = copies(trainer)
    trainer.step()
    path = tmp_path / ("weight_v000001" if dialect == "xor" else "000001.safetensors")
    delta.create(before, trainer, path, dialect=dialect, sync=False)
    delta.apply_into(engine, path)
    assert engine.head.weight is engine.embed.weight
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(engine.state_dict()[name], tensor)
    arrays = {name: tensor.numpy() for name, tensor in copies(Tied()).items()}
    arrays["head.weight"] = arrays["embed.weight"]
    delta.apply_into(arrays, path)
    assert np.array_equal(arrays["embed.weight"], trainer.embed.weight.detach().numpy())


def test_a_delta_that_changes_one_of_two_names_of_one_memory_is_refused(tmp_path: Path) -> None:
    before = copies(Tied())
    after = {name: tensor.clone() for name, tensor in before.items()}
    after["embed.weight"][3] += 1
    path = tmp_path / "d.safetensors"
    delta.create(before, after, path, sync=False)
    for other in (None, 4):
        if other is not None:
            after["head.weight"][other] += 1
            delta.create(before, after, path, sync=False)
        engine = Tied()
        with refuses(FormatError, "delta.tensor"):
            delta.apply_into(engine, path)
        arrays = {name: tensor.numpy() for name, tensor in copies(engine).items()}
        arrays["head.weight"] = arrays["embed.weight"]
        with refuses(FormatError, "delta.tensor"):
            delta.apply_into(arrays, path)
        assert_same({name: tensor.numpy() for name, tensor in copies(engine).items()},
                    {name: tensor.numpy() for name, tensor in before.items()})  # fmt: skip
    untied = {name: tensor.clone() for name, tensor in before.items()}
    delta.apply_into(untied, path)
    assert all(torch.equal(untied[name], after[name]) for name in after)


def test_a_name_that_the_checkpoint_does_not_have_may_be_tied_to_one_that_it_has(tmp_path: Path) -> None:
    trainer, engine = Tied(), Tied()
    before = copies(trainer)
    del before["head.weight"]
    trainer.step()
    after = copies(trainer)
    del after["head.weight"]
    delta.create(before, after, tmp_path / "d.safetensors", sync=False)
    delta.apply_into(engine, tmp_path / "d.safetensors")
    assert torch.equal(engine.head.weight, trainer.head.weight)


# --- N5: following -------------------------------------------------------------------------------------------------


def test_following_goes_on_from_the_version_that_the_engine_has(tmp_path: Path) -> None:
    versions = [{"w": np.zeros(1000, np.float32), "x": np.ones(3)}]
    (folder := tmp_path / "deltas").mkdir()
    base = tmp_path / "base.safetensors"
    save_file(versions[0], base)
    paths = []
    for number in range(4):
        new = memory(versions[-1])
        new["w"][number] = number + 1
        paths.append(folder / f"{'zbca'[number]}.safetensors")
        delta.create(versions[-1], new, paths[-1], sync=False)
        versions.append(new)
    other = {"w": np.full(1000, 7, np.float32), "x": np.ones(3)}
    stray = folder / "0-of-another-base.safetensors"
    delta.create(other, {**other, "x": np.zeros(3)}, stray, sync=False)
    now = tmp_path / "now.safetensors"
    for held in range(5):
        save_file(versions[held], now)
        bases: list[Any] = [now, [base, *paths[:held]], load_weights(now), load_weights([base, *paths[:held]])]
        for start in bases if held else bases[2:3]:
            found = list(delta.follow(start, folder, every=0.01, timeout=0))
            assert [version.deltas for version in found] == [tuple(paths[held:end]) for end in range(held + 1, 5)]
            engine = memory(versions[held])
            for version in found:
                delta.apply_into(engine, version.deltas[-1])
                assert_same(version.weights().load(framework="numpy"), engine)
            assert_same(engine, versions[4])
    save_file({**other, "x": np.full(3, 2.0)}, now)
    assert list(delta.follow(now, folder, every=0.01, timeout=0)) == []


# --- N6: names -----------------------------------------------------------------------------------------------------


class Config:
    """A configuration as of transformers."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"model_type": "qwen3_moe", "num_experts": 3}

    def to_dict(self) -> dict[str, Any]:
        return self.values


class Experts(torch.nn.Module):
    """Experts that are packed, as in transformers 5."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        tensors = {
            "model.layers.0.mlp.experts.gate_up_proj": torch.randn(3, 8, 6),
            "model.layers.0.mlp.experts.down_proj": torch.randn(3, 6, 4),
            "model.norm.weight": torch.randn(6),
        }
        self.values = tensors

    def state_dict(self, *_args: Any, **_options: Any) -> Any:
        return dict(self.values)


def on_the_hub(module: Experts) -> dict[str, torch.Tensor]:
    """The same, apart."""
    gate_up, down, norm = module.values.values()
    tensors = {"model.norm.weight": norm.clone()}
    for expert in range(3):
        front = f"model.layers.0.mlp.experts.{expert}"
        tensors[f"{front}.gate_proj.weight"] = gate_up[expert, :4].clone()
        tensors[f"{front}.up_proj.weight"] = gate_up[expert, 4:].clone()
        tensors[f"{front}.down_proj.weight"] = down[expert].clone()
    return tensors


def test_a_module_with_packed_experts_is_compared_with_the_checkpoint_of_the_hub(tmp_path: Path) -> None:
    trainer = Experts()
    old = on_the_hub(trainer)
    max_weights.save_file(old, tmp_path / "base.safetensors")
    engine = Experts()
    engine.values = {name: tensor.clone() for name, tensor in trainer.values.items()}
    trainer.values["model.layers.0.mlp.experts.gate_up_proj"][1, 5, 2] = 9
    path = tmp_path / "d.safetensors"
    with pytest.warns(UserWarning, match=r"1 of the 10 names of the base.*give rename='transformers5'"):
        delta.create(tmp_path / "base.safetensors", trainer, tmp_path / "much.safetensors", sync=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = delta.create(tmp_path / "base.safetensors", trainer, path, rename="transformers5", sync=False)
    assert (summary.changed, summary.whole, summary.removed, summary.elements) == (1, 0, 0, 1)
    found = load_weights([tmp_path / "base.safetensors", path]).load(framework="torch")
    assert all(torch.equal(found[name], tensor) for name, tensor in on_the_hub(trainer).items())
    delta.apply_into(engine, path, rename="transformers5")
    assert all(torch.equal(engine.values[name], tensor) for name, tensor in trainer.values.items())


def test_names_of_layouts_and_modules_that_are_none_are_named(tmp_path: Path) -> None:
    old = {"a": np.zeros(4, np.float32)}
    save_file(old, base := tmp_path / "base.safetensors")
    path = tmp_path / "d.safetensors"
    delta.create(base, {"a": np.ones(4, np.float32)}, path, sync=False)
    tensors = memory(old)
    with refuses(ArgumentError, "argument.choice"):
        delta.apply_into(tensors, path, rename="nonsense")
    with refuses(ArgumentError, "argument.config"):
        delta.apply_into(tensors, path, rename="transformers5")
    with refuses(ArgumentError, "argument.type"):
        delta.apply_into(tensors, path, rename=3)  # type: ignore[arg-type]
    with refuses(ArgumentError, "argument.type"):
        delta.create(base, 3.5, path)  # type: ignore[arg-type]
    with refuses(ArgumentError, "argument.conflict"):
        delta.create(base, base, path, rename={})
    other = Experts()
    other.config.values["model_type"] = "bert"
    with refuses(UnsupportedError, "unsupported.layout"):
        delta.create(base, other, path, rename="transformers5")
    module = torch.nn.Module()
    module.register_buffer("a", torch.full((4,), 2.0))
    delta.create(base, module, path, sync=False)
    delta.create(base, {"module.a": np.full(4, 2, np.float32)}, path, rename={"a": "module.a"}, sync=False)
    assert np.array_equal(load_weights([base, path]).a.numpy(), np.full(4, 2, np.float32))


def test_the_module_offers_what_it_promises() -> None:
    assert set(delta.__all__) <= set(dir(delta))


# --- retention -----------------------------------------------------------------------------------------------------


def chain_of(folder: Path, count: int) -> tuple[Path, list[Path], list[Tensors]]:
    versions = [{"w": np.zeros(70_000, np.float32), "x": np.ones(3)}]
    save_file(versions[0], base := folder / "base.safetensors")
    (deltas := folder / "deltas").mkdir()
    paths = []
    for number in range(count):
        new = memory(versions[-1])
        new["w"][number * 100 : number * 100 + 7] = number + 1
        paths.append(deltas / f"step-{number:03}.safetensors")
        delta.create(versions[-1], new, paths[-1], sync=False)
        versions.append(new)
    return base, paths, versions


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_folding_keeps_the_newest_deltas_and_one_before_them(tmp_path: Path, keep: int) -> None:
    base, paths, versions = chain_of(tmp_path, 6)
    folder = paths[0].parent
    kept = {path: path.read_bytes() for path in paths[6 - keep :]}
    summary = delta.fold(base, folder, keep=keep, sync=False)
    assert summary is not None
    assert sorted(folder.iterdir()) == paths[5 - keep :]
    assert {path: path.read_bytes() for path in kept} == kept
    assert Path(summary.path) == paths[5 - keep]
    assert len(delta.read(summary.path).folded) == 5 - keep
    assert_same(load_weights([base, folder]).load(framework="numpy"), versions[-1])
    assert delta.fold(base, folder, keep=keep, sync=False) is None
    # The next step continues from there, and the folded delta is folded again.
    new = memory(versions[-1])
    new["x"][0] = 4
    delta.create(versions[-1], new, folder / "step-006.safetensors", sync=False)
    assert_same(load_weights([base, folder]).load(framework="numpy"), new)
    assert delta.fold(base, folder, keep=0, sync=False) is not None
    assert [path.name for path in folder.iterdir()] == ["step-006.safetensors"]
    assert_same(load_weights([base, folder]).load(framework="numpy"), new)


def test_folding_that_was_interrupted_leaves_the_same_version_and_is_finished(tmp_path: Path) -> None:
    base, paths, versions = chain_of(tmp_path, 5)
    folder = paths[0].parent
    old = {path: path.read_bytes() for path in paths}
    delta.fold(base, folder, keep=2, sync=False)
    # Interrupted after writing the folded file, before removing the others.
    for there in ([0, 1], [0]):
        for number in there:
            paths[number].write_bytes(old[paths[number]])
        assert_same(load_weights([base, folder]).load(framework="numpy"), versions[-1])
        found = list(delta.follow(base, folder, every=0.01, timeout=0))
        assert [len(version.deltas) for version in found] == [1, 2, 3]
        assert_same(found[-1].weights().load(framework="numpy"), versions[-1])
        assert delta.fold(base, folder, keep=2, sync=False) is None
        assert sorted(folder.iterdir()) == paths[2:]


def test_a_folder_is_not_folded_onto_another_base(tmp_path: Path) -> None:
    base, paths, versions = chain_of(tmp_path, 3)
    save_file(versions[1], base)
    before = {path: path.read_bytes() for path in paths}
    with refuses(FormatError, "delta.base"):
        delta.fold(base, paths[0].parent, keep=0, sync=False)
    assert {path: path.read_bytes() for path in paths[0].parent.iterdir()} == before
    for options in ({}, {"keep": 1, "path": tmp_path / "x.safetensors"}, {"keep": -1}, {"keep": True}):
        with pytest.raises(ArgumentError):
            delta.fold(base, *paths, **options)  # type: ignore[call-overload]


def test_the_shell_folds_all_but_the_newest_and_counts_the_deltas_of_a_folder(tmp_path: Path, capfd: Any) -> None:
    from max_weights._core import command_line

    base, paths, versions = chain_of(tmp_path, 5)
    folder = paths[0].parent
    run = lambda *words: command_line(["max-weights", "delta", *map(str, words)])  # noqa: E731
    own = tmp_path / "own.safetensors"
    own.write_bytes(base.read_bytes())
    assert run("apply", own, folder, "--no-sync") == 0
    assert "after 5 deltas, of which 0 were in it before" in capfd.readouterr().out
    assert_same(load_file(own), versions[-1])
    assert run("fold", base, folder, "--keep", 2, "--no-sync") == 0
    assert sorted(folder.iterdir()) == paths[2:]
    assert run("fold", base, folder, "--keep", 2, "--no-sync") == 0
    assert "nothing to fold" in capfd.readouterr().out
    assert_same(load_weights([base, folder]).load(framework="numpy"), versions[-1])
    assert run("fold", base, folder) != 0
