"""A node of the tree that is a weight, and the level below it: usual operations without data()."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights import DType, WeightNotFoundError, load_weights
from max_weights._weights import RESERVED, WeightsNode
from refusals import refuses

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def weights(make_file: Callable[..., Path]) -> WeightsNode:
    layers = {f"encoder.layer.{i}.weight": np.full(2, i, np.float32) for i in range(12)}
    return load_weights(make_file({"head.weight": ARRAY, "head.bias": np.array(2.5), **layers}))


def test_a_node_that_is_a_weight_answers_what_arrays_answer(weights: WeightsNode) -> None:
    node = weights.head.weight
    assert (node.shape, node.dtype) == ((2, 3, 4), DType.float32)
    assert isinstance(node.shape, tuple)
    assert weights.head.bias.shape == ()
    np.testing.assert_array_equal(node.numpy(), ARRAY)


KEYS: list[Any] = [
    slice(0, 2),
    (slice(None), 1),
    (0, ..., None),
    ...,
    None,
    (),
    (slice(None, None, -1), slice(2, 0, -1), slice(1, None, 2)),
    (1, 2, 3),
    (slice(5, 9),),
    (..., slice(-1, None)),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_weight_is_indexed_as_numpy_indexes(weights: WeightsNode, backend: str, key: Any, tmp_path: Path) -> None:
    weights = load_weights(tmp_path / "model.safetensors", backend=backend)  # type: ignore[arg-type]
    part = weights.head.weight[key]
    assert isinstance(part, max_weights.Buffer)
    np.testing.assert_array_equal(part.to_numpy(), ARRAY[key])


def test_a_part_of_a_mapped_weight_is_a_view_of_the_mapping(weights: WeightsNode) -> None:
    part, whole = weights.head.weight[1:], weights.head.weight.data().to_buffer()
    assert part.is_mapped
    assert part._data_ptr() == whole._data_ptr() + 48


def test_a_part_of_a_weight_that_is_read_brings_its_own_bytes_and_no_others(make_file: Callable[..., Path]) -> None:
    array = np.arange(1 << 18, dtype=np.float32).reshape(1024, 256)
    node = load_weights(make_file({"w": array}), backend="read").w
    for key in (slice(10, 12), (slice(11, 9, -1), slice(3, 5)), (slice(0, 0),)):
        part = node[key]
        np.testing.assert_array_equal(part.to_numpy(), array[key])
        assert part._memory()[0].nbytes <= 2 * 256 * 4 + 64


def test_parts_of_weights_that_cannot_be_mapped_are_right(tmp_path: Path) -> None:
    import torch

    base = torch.arange(60, dtype=torch.float64).reshape(6, 10)
    torch.save({"t": base.t()[1:], "c": torch.arange(6).to(torch.complex128)}, tmp_path / "a.pt")
    weights = load_weights(tmp_path / "a.pt", backend="read")
    np.testing.assert_array_equal(weights.t[::-2, 1:].to_numpy(), base.t()[1:].numpy()[::-2, 1:])
    np.testing.assert_array_equal(weights.c[1:3].to_numpy().reshape(-1).view(np.complex128), [1, 2])


def test_a_child_wins_over_what_a_weight_answers(make_file: Callable[..., Path]) -> None:
    names = ("a", "a.shape", "a.0", "a.dtype.x", "b.ndim", "c.keys.x")
    weights = load_weights(make_file({name: np.zeros(3, np.float32) for name in names}))
    assert weights.a.exists()
    assert weights.a.shape == weights["a.shape"]
    assert weights.a.dtype.x.exists()
    assert weights.b.ndim.exists()
    assert weights.c.keys.x.exists()
    assert weights.a[0:1].shape == (1,)


def test_an_integer_is_a_child_and_a_slice_is_rows(weights: WeightsNode) -> None:
    weight = weights.head.weight
    assert weights.encoder.layer[1] == weights["encoder.layer.1"]
    for child in (weight[0], weight[np.int64(0)]):
        assert isinstance(child, WeightsNode)
        assert (child.name, child.exists()) == ("head.weight.0", False)
    with refuses(WeightNotFoundError, "weight.not-found"):
        weight[0].data()
    with refuses(IndexError):
        weight[-1]
    np.testing.assert_array_equal(weight[1:2].to_numpy(), ARRAY[1:2])
    np.testing.assert_array_equal(weight.data()[1].to_numpy(), ARRAY[1])


MEMBERS = {
    "allocate", "allocated_weights", "children", "close", "data", "dtype", "exists", "items", "load", "metadata",
    "name", "numpy", "save", "shape", "stream", "torch",
}  # fmt: skip


def public(node: WeightsNode) -> set[str]:
    children = {child.name.removeprefix(f"{node.name}.") for child in node.children()}
    return {name for name in dir(node) if not name.startswith("_") and name not in children}


def test_a_node_has_sixteen_public_members(weights: WeightsNode, models: Path) -> None:
    root, leaf = public(weights), public(weights.head.weight)
    # Of MAX's classes only that of safetensors has this one; and a branch lacks the members of weights.
    assert root == MEMBERS - {"shape", "dtype"} | {"allocate_as_bytes"}
    assert leaf == MEMBERS | {"allocate_as_bytes"}
    for path in ("smollm2-135m.Q4_1.gguf", "crepe-tiny.pth"):
        node = next(node for _, node in load_weights(models / path).items())
        assert public(node) == MEMBERS
        assert len(MEMBERS) == 16


@pytest.mark.parametrize("name", ["shape", "dtype"])
def test_a_name_that_is_no_weight_has_no_shape_but_near_names(weights: WeightsNode, name: str) -> None:
    with refuses(WeightNotFoundError, "weight.attribute"):
        getattr(weights.head.wieght, name)
    with refuses(WeightNotFoundError, "weight.attribute"):
        getattr(weights.encoder.layer, name)
    assert not hasattr(weights.encoder, name)  # so that looking whether there is one is harmless
    assert hasattr(weights.head.weight, name)


@pytest.mark.parametrize("key", [slice(0, 2), (0, 1), ..., None], ids=str)
def test_a_part_of_a_name_that_is_no_weight_is_an_error_with_near_names(weights: WeightsNode, key: Any) -> None:
    with refuses(WeightNotFoundError, "weight.not-found"):
        weights.head.wieght[key]
    with refuses(WeightNotFoundError, "weight.not-found"):
        weights.encoder[key]


def test_the_entry_points_of_a_name_that_is_no_weight_raise_with_near_names(weights: WeightsNode) -> None:
    entry_points = [
        np.asarray,
        np.from_dlpack,
        max_weights.Buffer.from_dlpack,
        lambda node: node.numpy(),
        lambda node: node.data(),
    ]
    for entry_point in entry_points:
        with refuses(WeightNotFoundError, "weight.not-found"):
            entry_point(weights.head.wieght)
        with refuses(WeightNotFoundError, "weight.not-found"):
            entry_point(weights.encoder)


def test_torch_and_jax_say_too_that_a_name_is_no_weight(weights: WeightsNode) -> None:
    import jax
    import torch

    for entry_point in (torch.from_dlpack, jax.dlpack.from_dlpack):
        with refuses(WeightNotFoundError, "weight.not-found"):
            entry_point(weights.head.wieght)


def test_children_are_one_level_and_numbers_count(weights: WeightsNode) -> None:
    layers = weights.encoder.layer
    assert [layer.name for layer in layers.children()] == [f"encoder.layer.{i}" for i in range(12)]
    assert layers.children()[-1] == layers[-1] == layers[11]
    assert weights.children() == [weights.encoder, weights.head]
    assert weights.head.weight.children() == []
    assert len(layers) == 12
    assert len(weights.encoder) == len(list(weights.encoder.items())) == 12
    assert len(weights) == 14


def test_a_tree_is_no_mapping_and_says_what_to_call(weights: WeightsNode) -> None:
    with refuses(AttributeError):
        _ = weights.keys
    with refuses(TypeError):
        dict(weights)  # type: ignore[call-overload]
    assert dict(weights.items())["head.bias"] == weights.head.bias


def test_nodes_are_equal_by_tree_and_name(weights: WeightsNode, tmp_path: Path) -> None:
    assert weights.head == weights.head
    assert weights["head.weight"] == weights.head.weight
    assert hash(weights.head) == hash(weights["head"])
    assert weights.head != weights.encoder
    assert weights.head != "head"
    assert weights.head != load_weights(tmp_path / "model.safetensors").head
    assert len({weights.head, weights["head"], weights.encoder}) == 2


def test_reserved_names_are_the_members_of_a_node() -> None:
    assert set(RESERVED) == MEMBERS - {"shape", "dtype"} | {"allocate_as_bytes"}


def test_a_child_of_a_reserved_name_is_reached_by_an_index(make_file: Callable[..., Path]) -> None:
    weights = load_weights(make_file({f"x.{name}": np.zeros(1, np.float32) for name in RESERVED}))
    assert all(weights.x[name].exists() for name in RESERVED)


def test_iterating_a_node_says_what_to_call(weights: WeightsNode) -> None:
    with refuses(TypeError):
        iter(weights)
    with refuses(TypeError):
        weights[1.5]  # type: ignore[index]


def test_listing_a_level_imports_no_numpy(make_file: Callable[..., Path]) -> None:
    import subprocess
    import sys

    path = make_file({"a.b": np.zeros(3, np.float32)})
    script = f"""
import sys, max_weights
weights = max_weights.load_weights({str(path)!r})
weights.children(), weights.a.b.shape, weights.a.b.dtype, weights.a.b[0:2]
print("numpy" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
