"""Every change of memory is a transaction: any error leaves all values unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from max_weights import _transaction, delta, load_weights, save_file, save_gguf
from max_weights._transaction import Box, Transaction
from max_weights.errors import ArgumentError, FileChangedError
from max_weights.integrations import WeightsReader
from max_weights.torch import _into, load_into
from refusals import refuses

ERRORS = [OSError(5, "Input/output error"), KeyboardInterrupt()]


class Model(nn.Module):
    """Tensors for each way of writing memory: direct, copied, tied, and by a module with its own loader."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.a = nn.Linear(8, 8, bias=False, device=device)
        self.turned = nn.Parameter(torch.randn(6, 4, device=device).t())
        self.embed = nn.Embedding(5, 4, device=device)
        self.head = nn.Linear(4, 5, bias=False, device=device)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3, device=device)
        self.register_buffer("table", torch.arange(4.0, device=device))


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    new = {name: torch.randn_like(one.float()).to(one.dtype) for name, one in Model().state_dict().items()}
    new["head.weight"] = new["embed.weight"]
    save_file({name: one.contiguous().clone() for name, one in new.items()}, tmp_path / "new.safetensors")
    return tmp_path / "new.safetensors"


@pytest.fixture(params=[1 << 30, 0], ids=["in memory", "in a file"])
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transaction, "_IN_MEMORY", request.param)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BaseException], None]]:
    """Make the last step of load_into fail, after all values are written."""

    def fail(error: BaseException) -> None:
        monkeypatch.setattr(_into._Plan, "_report", Mock(side_effect=error))

    yield fail
    monkeypatch.undo()


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_module_is_what_it_was_after_an_error_of_load_into(
    checkpoint: Path, failing: Callable[[BaseException], None], error: BaseException
) -> None:
    model = Model()
    before, tensors = values(model), dict(model.named_parameters())
    failing(error)
    with pytest.raises(type(error)):
        load_into(model, checkpoint)
    assert is_same(values(model), before)
    assert all(tensors[name] is one for name, one in model.named_parameters())
    assert model.head.weight is model.embed.weight


def test_without_undo_an_error_says_that_values_may_be_new(
    checkpoint: Path, failing: Callable[[BaseException], None]
) -> None:
    model = Model()
    before = values(model)
    failing(ERRORS[0])
    with refuses(OSError) as caught:
        load_into(model, checkpoint, undo=False)
    assert not is_same(values(model), before)
    assert any("some tensors hold new values" in note for note in caught.value.__notes__)
    with refuses(ArgumentError, "argument.number"):
        load_into(model, checkpoint, undo=1)  # type: ignore[arg-type]


def test_a_full_disk_says_where_old_values_are_kept(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transaction, "_IN_MEMORY", 0)
    monkeypatch.setattr(_transaction.tempfile, "TemporaryFile", Mock(side_effect=OSError(28, "No space left")))
    model = Model()
    before = values(model)
    with refuses(OSError) as caught:
        load_into(model, checkpoint)
    assert any("TMPDIR" in note and "undo=False" in note for note in caught.value.__notes__)
    assert is_same(values(model), before)


def test_a_module_on_the_meta_device_stays_there_after_an_error(
    checkpoint: Path, failing: Callable[[BaseException], None]
) -> None:
    model = Model("meta")
    model.norm = nn.BatchNorm1d(3)
    before, norm = dict(model.named_parameters()), values(model.norm)
    failing(ERRORS[0])
    with refuses(OSError):
        load_into(model, checkpoint)
    assert all(before[name] is one for name, one in model.named_parameters())
    assert is_same(values(model.norm), norm)
    assert model.table.is_meta


def test_decoded_blocks_leave_a_module_what_it_was(tmp_path: Path, failing: Callable[[BaseException], None]) -> None:
    path = tmp_path / "blocks.gguf"
    save_gguf({"weight": np.ones((4, 32), np.float32)}, path, quantize={"*": "q4_0"})
    linear = nn.Linear(32, 4, bias=False, dtype=torch.bfloat16)
    before = values(linear)
    failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        load_into(linear, path)
    assert is_same(values(linear), before)


def test_a_file_that_is_cut_while_it_is_read_leaves_a_module_what_it_was(tmp_path: Path) -> None:
    save_file(
        {"0.weight": np.ones((300, 300), "f4"), "1.weight": np.ones((300, 300), "f4")}, tmp_path / "x.safetensors"
    )
    model = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    before = values(model)
    with load_weights(tmp_path / "x.safetensors") as weights:
        (tmp_path / "x.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:400_000])
        with pytest.raises(FileChangedError):
            load_into(model, weights)
    assert is_same(values(model), before)


def test_tensors_that_torch_loads_are_what_they_were_after_an_error_in_the_second(checkpoint: Path) -> None:
    state = {name: torch.zeros(one.shape, dtype=one.dtype) for name, one in Model().state_dict().items()}
    reader, count = WeightsReader(checkpoint), []
    planner = dcp.DefaultLoadPlanner()

    def commit(_item: Any, tensor: torch.Tensor) -> None:
        count.append(bool(tensor.any()))
        if len(count) == 2:
            raise OSError(5, "Input/output error")

    planner.commit_tensor = commit  # type: ignore[method-assign]
    with warnings.catch_warnings(action="ignore"), pytest.raises(dcp.CheckpointException):
        dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
    assert count == [True, True]
    assert not any(bool(one.any()) for one in state.values())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_deltas_are_undone_after_an_error(tmp_path: Path, error: BaseException) -> None:
    old = {"a": np.zeros(100_000, "f4"), "b": np.zeros((3, 5), "f4")}
    new = {name: one + (np.arange(one.size).reshape(one.shape) % 7 == 0).astype("f4") for name, one in old.items()}
    delta.create(old, new, path := tmp_path / "d.safetensors", sync=False)
    tensors = {name: torch.from_numpy(one.copy()) for name, one in old.items()}

    def stop(done: int, total: int) -> None:
        if done == total:
            raise error

    with pytest.raises(type(error)):
        delta.apply_into(tensors, path, progress=stop)
    assert not any(bool(one.any()) for one in tensors.values())
    delta.apply_into(tensors, path)
    assert all(np.array_equal(tensors[name].numpy(), new[name]) for name in new)


def test_names_are_given_from_the_checkpoint_to_the_program(tmp_path: Path) -> None:
    save_file(old := {"model.a": np.zeros(9, "f4"), "model.b": np.zeros(4, "f4")}, base := tmp_path / "b.safetensors")
    new = {"net.a": np.ones(9, "f4"), "net.b": np.zeros(4, "f4")}
    path = tmp_path / "d.safetensors"
    made = delta.create(base, new, path, rename={"model.": "net."}, sync=False)
    assert (made.changed + made.whole, made.removed, made.unchanged) == (1, 0, 1)
    tensors = {name.replace("model", "net"): one for name, one in old.items()}
    for wrong in ({"net.": "model."}, lambda _: None):
        with refuses(ArgumentError, "argument.name"):
            delta.apply_into(tensors, path, rename=wrong)
    delta.apply_into(tensors, path, rename={"model.": "net."})
    assert tensors["net.a"].all()
    with refuses(ArgumentError, "argument.name-twice"):
        delta.create(base, new, path, rename=lambda _: "net")


def test_a_number_of_threads_that_cannot_be_is_refused_by_fold(tmp_path: Path) -> None:
    with refuses(ArgumentError, "argument.value"):
        delta.fold(tmp_path / "b", tmp_path / "d", path=tmp_path / "f", threads=0)


def test_what_cannot_be_undone_is_said_and_an_interrupt_does_not_end_it() -> None:
    done: list[str] = []

    def interrupted() -> None:
        done.append("one")
        if len(done) == 1:
            raise KeyboardInterrupt

    def failed() -> None:
        raise OSError("the device is gone")

    def change() -> None:
        with Transaction() as transaction:
            transaction.on_undo(lambda: done.append("two"))
            transaction.on_undo(failed)
            transaction.on_undo(interrupted)
            raise ValueError("first")

    with refuses(ValueError) as raised:
        change()
    assert done == ["one", "one", "two"]
    assert raised.value.__notes__ == ["not everything could be restored: the device is gone; load the weights again"]


def test_a_box_says_where_its_blocks_lie() -> None:
    box = Box.of([[[0, 2], [4, 5]], [[1, 3]]])
    assert (box.shape, box.elements) == ([3, 2], 6)
    assert box.cut([6, 3]) == [(0, [(0, 2), (4, 5)]), (1, [(1, 3)])]
    whole, part = torch.arange(18).reshape(6, 3), torch.zeros(3, 2, dtype=torch.int64)
    for outer, inner in box.moves():
        part[inner] = whole[outer]
    assert part.tolist() == [[1, 2], [4, 5], [13, 14]]
    assert Box.at([0, 0], [6, 3]).cut([6, 3]) is None
    assert Box.nothing(2).cut([6, 3]) == [(0, [(0, 0)]), (1, [(0, 0)])]
    assert (Box.of([]).shape, Box.of([]).elements, Box.nothing(0).elements) == ([], 1, 0)
