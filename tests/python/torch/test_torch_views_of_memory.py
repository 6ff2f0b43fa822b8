"""Tensors of torch whose memory holds other values: views with lazy negation or conjugation.

They are resolved when values are read, and refused when memory is shared or written to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import max_weights
from max_weights import Buffer, DType, delta, load_weights
from max_weights.safetensors import torch as safetensors_torch
from max_weights.torch import load_into, verify_loaded
from refusals import refuses

VALUES = torch.tensor([1.5, -2.0, 3.0, 0.25])


def negative() -> torch.Tensor:
    """A view with the values, over memory with the negated values."""
    view = torch.complex(torch.zeros(4), -VALUES).conj().imag
    assert view.is_neg()
    assert torch.equal(view, VALUES)
    return view


def negative_in_one_piece() -> torch.Tensor:
    """The same over contiguous memory."""
    view: torch.Tensor = torch._neg_view(-VALUES)  # type: ignore[attr-defined]
    assert view.is_neg()
    assert view.is_contiguous()
    return view


def conjugate() -> torch.Tensor:
    """A view with the values, over memory with their conjugates."""
    view = torch.complex(VALUES, -VALUES).conj()
    assert view.is_conj()
    return view


VIEWS = pytest.mark.parametrize("view", [negative, negative_in_one_piece, conjugate])


class Holder(torch.nn.Module):
    """A module with one buffer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("a", tensor)


@VIEWS
def test_a_fingerprint_is_that_of_the_values_and_not_of_the_memory(view: Callable[[], torch.Tensor]) -> None:
    values = view().resolve_neg().resolve_conj().clone()
    expected = max_weights.fingerprint({"a": values}, digests=True)
    assert max_weights.fingerprint({"a": view()}, digests=True).compare(expected, require_digests=True)
    assert not max_weights.fingerprint({"a": -view()}).compare(expected)
    assert not max_weights.fingerprint({"a": view().conj() if view is conjugate else -view()}).compare(expected)


@VIEWS
def test_a_module_is_verified_by_its_values_and_not_by_its_memory(
    view: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    values = view().resolve_neg().resolve_conj().clone()
    save_file({"a": values}, tmp_path / "a.safetensors")
    other = values.conj().resolve_conj() if view is conjugate else -values
    save_file({"a": other}, tmp_path / "memory.safetensors")
    for path, is_equal in ((tmp_path / "a.safetensors", True), (tmp_path / "memory.safetensors", False)):
        for weights in (path, max_weights.fingerprint(load_weights(path))):
            report = verify_loaded(Holder(view()), weights)
            assert report.ok is is_equal, report


def test_views_of_one_memory_with_another_sign_are_not_tied(tmp_path: Path) -> None:
    memory = torch.complex(torch.zeros(4), VALUES)
    module = Holder(memory.imag)
    module.register_buffer("b", memory.conj().imag)
    save_file({"a": VALUES.clone(), "b": -VALUES}, tmp_path / "a.safetensors")
    assert verify_loaded(module, tmp_path / "a.safetensors")
    save_file({"a": VALUES.clone(), "b": VALUES.clone()}, tmp_path / "b.safetensors")
    assert [one.name for one in verify_loaded(module, tmp_path / "b.safetensors").findings] == ["b"]


def _through_gguf(tensor: torch.Tensor, path: Path) -> None:
    """GGUF has no complex numbers: these are only in the other file."""
    if not tensor.is_complex():
        max_weights.save_gguf({"a": tensor}, path.with_suffix(".gguf"))
        values = load_weights(path.with_suffix(".gguf"))["a"].torch()
        assert torch.equal(values, tensor.resolve_neg())
    max_weights.save_file({"a": tensor}, path)


def _written(tensor: torch.Tensor, path: Path) -> None:
    dtype = DType.complex64 if tensor.is_complex() else DType.float32
    with max_weights.SafetensorsWriter(path, {"a": (dtype, (4,))}) as writer:
        writer.write("a", tensor)


SAVES: dict[str, Callable[[torch.Tensor, Path], object]] = {
    "save_file": lambda tensor, path: max_weights.save_file({"a": tensor}, path),
    "save_sharded": lambda tensor, path: max_weights.save_sharded({"a": tensor}, path.parent),
    "save_gguf": lambda tensor, path: _through_gguf(tensor, path),
    "SafetensorsWriter": lambda tensor, path: _written(tensor, path),
    "save_file as of safetensors": lambda tensor, path: safetensors_torch.save_file(
        {"a": tensor if tensor.is_contiguous() else tensor.contiguous()}, path
    ),
}


@VIEWS
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_the_values_are_saved_and_not_the_memory(
    save: Callable[[torch.Tensor, Path], object], view: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    save(view(), tmp_path / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["a"], view().resolve_neg().resolve_conj())


@VIEWS
def test_a_delta_has_the_values_and_not_the_memory(view: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    values = view().resolve_neg().resolve_conj().clone()
    save_file({"a": torch.zeros_like(values)}, tmp_path / "base.safetensors")
    delta.create(tmp_path / "base.safetensors", {"a": view()}, tmp_path / "delta.safetensors")
    chain = load_weights([tmp_path / "base.safetensors", tmp_path / "delta.safetensors"])
    assert torch.equal(chain["a"].torch(), values)


SHARED: dict[str, Callable[[torch.Tensor], object]] = {
    "Buffer.from_dlpack": Buffer.from_dlpack,
    "Buffer.from_dlpack(copy=True)": lambda tensor: Buffer.from_dlpack(tensor, copy=True),
    "Buffer.of": Buffer.of,
    "engine constant": lambda tensor: max_weights.graph.ops.constant(tensor),
    "inplace_copy_from": lambda tensor: Buffer.zeros((4,), "float32").inplace_copy_from(Buffer.of(tensor)),
}


@VIEWS
@pytest.mark.parametrize("intake", SHARED.values(), ids=SHARED)
def test_memory_that_does_not_hold_the_values_is_not_shared(
    intake: Callable[[torch.Tensor], object], view: Callable[[], torch.Tensor]
) -> None:
    for tensor in (view(), torch.nn.Parameter(view()), view()[1:3]):
        with refuses((BufferError, ValueError, RuntimeError)):
            intake(tensor.detach() if view is conjugate else tensor)


def _delta(path: Path) -> Path:
    """A delta from zeros to the values."""
    save_file({"a": torch.zeros(4)}, path / "base.safetensors")
    save_file({"a": VALUES}, path / "new.safetensors")
    delta.create(path / "base.safetensors", path / "new.safetensors", path / "delta.safetensors")
    return path / "delta.safetensors"


WRITES: dict[str, Callable[[torch.Tensor, Path], object]] = {
    "load(out=)": lambda tensor, path: load_weights(path / "new.safetensors").load(out={"a": tensor}),
    "delta.apply_into": lambda tensor, path: delta.apply_into({"a": tensor}, path / "delta.safetensors"),
    "delta.apply_into of a module": lambda tensor, path: delta.apply_into(Holder(tensor), path / "delta.safetensors"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_memory_that_does_not_hold_the_values_is_not_written_to(
    write: Callable[[torch.Tensor, Path], object], tmp_path: Path
) -> None:
    _delta(tmp_path)
    memory = torch.zeros(4, dtype=torch.complex64)
    with refuses((BufferError, ValueError)):
        write(memory.conj().imag, tmp_path)
    assert not memory.imag.any()


def test_a_module_is_filled_with_the_values_whatever_its_memory_is(tmp_path: Path) -> None:
    save_file({"a": VALUES}, tmp_path / "a.safetensors")
    memory = torch.zeros(4, dtype=torch.complex64)
    module = Holder(memory.conj().imag)
    load_into(module, tmp_path / "a.safetensors")
    assert torch.equal(module.a, VALUES)
    assert torch.equal(memory.imag, -VALUES)
    assert verify_loaded(module, tmp_path / "a.safetensors")


def test_objects_that_answer_to_any_attribute_are_tensors_as_before() -> None:
    class Any_:
        array = np.arange(3.0)

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

        def __getattr__(self, name: str) -> Any:
            if name == "to_buffer":
                raise AttributeError(name)
            return lambda *_: True

    assert Buffer.from_dlpack(Any_()).to_numpy().tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_dcp_load_fills_the_values_whatever_the_memory_is(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    from max_weights.integrations import WeightsReader

    save_file({"a": VALUES, "b": VALUES.clone()}, tmp_path / "a.safetensors")
    memory, alone = torch.zeros(4, dtype=torch.complex64), torch.zeros(4)
    state = {"a": memory.conj().imag, "b": torch._neg_view(alone)}  # type: ignore[attr-defined]
    dcp.load(state, storage_reader=WeightsReader(tmp_path / "a.safetensors"), no_dist=True)
    assert torch.equal(state["a"], VALUES)
    assert torch.equal(memory.imag, -VALUES)
    assert torch.equal(alone, -VALUES)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_dcp_save_saves_the_values_and_not_the_memory(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    from max_weights.integrations import WeightsWriter

    state = {"a": negative(), "b": negative_in_one_piece(), "c": conjugate()}
    dcp.save(state, storage_writer=WeightsWriter(tmp_path / "saved"), no_dist=True)
    found = load_weights(tmp_path / "saved").load(framework="torch")
    for name, view in state.items():
        assert torch.equal(found[name], view.resolve_neg().resolve_conj()), name
