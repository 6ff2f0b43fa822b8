"""Consistency: after a write to a weight, every entry point of its tree returns the new values, or refuses."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import max_weights
from max_weights._weights import WeightsNode
from max_weights.graph import Graph, onnx
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses
from stand_in import run, stand_in

__all__ = ["stand_in"]

# Several pages, so that some are written to and others are the file's.
ROWS, COLUMNS = 64, 512
WHOLE = np.arange(ROWS * COLUMNS, dtype="f4").reshape(ROWS, COLUMNS) % 100


@pytest.fixture(params=["auto", "mmap"])
def weights(request: pytest.FixtureRequest, make_file: Callable[..., Path]) -> WeightsNode:
    return max_weights.load_weights(make_file({"a": WHOLE, "b": np.ones(5, "f4")}), backend=request.param)


def saved(weights: WeightsNode, save: Callable[[str], object]) -> Any:
    path = f"{max_weights.infos(weights)[0].file}.saved.safetensors"
    save(path)
    return load_file(path)["a"]


def out_of(weights: WeightsNode, **options: Any) -> Any:
    out = np.zeros_like(WHOLE)
    weights.load("a", out={"a": out}, **options)
    return out


def lazily(weights: WeightsNode, **options: Any) -> Any:
    return max_weights.lazy_state_dict(weights, "a", **options)["a"][...].numpy()


ENTRY_POINTS: dict[str, Callable[[WeightsNode], Any]] = {
    "data": lambda w: w.a.data().to_numpy(),
    "numpy": lambda w: w.a.numpy(),
    "asarray": lambda w: np.asarray(w.a),
    "dlpack": lambda w: np.from_dlpack(w.a),
    "astype": lambda w: w.a.data().astype("float64").to_numpy(),
    "copy": lambda w: w.a.data().to_buffer().copy().to_numpy(),
    "rows": lambda w: w.a[:].to_numpy(),
    "load": lambda w: w.load()["a"].to_numpy(),
    "load(copy=True)": lambda w: w.load(copy=True)["a"].to_numpy(),
    "load(copy=False)": lambda w: w.load(copy=False)["a"].to_numpy(),
    "load(dtype=)": lambda w: w.load(dtype="float64")["a"].to_numpy(),
    "load(out=)": out_of,
    "load(out=, dtype=)": lambda w: out_of(w, dtype="float32"),
    "load(backend='read')": lambda w: w.load(backend="read")["a"].to_numpy(),
    "load(backend='direct')": lambda w: w.load(backend="direct")["a"].to_numpy(),
    "load(drop_cache=True)": lambda w: w.load(drop_cache=True)["a"].to_numpy(),
    "load(copy='per-tensor')": lambda w: w.load(copy="per-tensor")["a"].to_numpy(),
    "load(digests=)": lambda w: w.load(digests=max_weights.fingerprint(w, digests=True).digests)["a"].to_numpy(),
    "load(shard=)": lambda w: np.concatenate(
        [w.load("a", shard=Shard(rank, 2, ShardingStrategy.rowwise(2)))["a"].to_numpy() for rank in range(2)]
    ),
    "load(shard=), columns": lambda w: np.concatenate(
        [w.load("a", shard=Shard(rank, 2, ShardingStrategy.columnwise(2)))["a"].to_numpy() for rank in range(2)], axis=1
    ),
    "stream": lambda w: dict(w.stream(framework="numpy"))["a"],
    "stream(dtype=)": lambda w: dict(w.stream(framework="numpy", dtype="float64"))["a"],
    "stream(backend='direct')": lambda w: dict(w.stream(framework="numpy", backend="direct"))["a"],
    "lazy_state_dict": lazily,
    "lazy_state_dict(copy=True)": lambda w: lazily(w, copy=True),
    "lazy_state_dict(dtype=)": lambda w: lazily(w, dtype="float64"),
    "save_file": lambda w: saved(w, lambda path: max_weights.save_file(w, path)),
    "weights.save": lambda w: saved(w, w.save),
    "weights.save(dtype=)": lambda w: saved(w, lambda path: w.save(path, dtype="float64")),
    "a pickled view": lambda w: pickle.loads(pickle.dumps(w.a.data().to_buffer())).to_numpy(),
    "a pickled weight": lambda w: pickle.loads(pickle.dumps(w.a.data())).to_numpy(),
    "a pickled tree": lambda w: pickle.loads(pickle.dumps(w)).a.numpy(),
    "allocate": lambda w: (w.a.allocate(), np.from_dlpack(w.allocated_weights["a"]))[1],
    "torch": lambda w: w.a.torch().numpy(),
}
REFUSED = {"a pickled tree": "pickle the tensors instead of the tree"}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_every_entry_point_gives_what_was_written_or_refuses(weights: WeightsNode, entry_point: str) -> None:
    assert np.array_equal(ENTRY_POINTS[entry_point](weights), WHOLE)  # before anything was written
    requested = WHOLE.copy()
    requested[10:13], np.asarray(weights.a)[10:13] = 7, 7
    if entry_point in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[entry_point]):
            ENTRY_POINTS[entry_point](weights)
        return
    assert np.array_equal(ENTRY_POINTS[entry_point](weights), requested)


@pytest.mark.parametrize("write", ["asarray", "dlpack", "buffer", "memoryview", "out", "astype(out=)", "torch"])
def test_however_it_was_written(weights: WeightsNode, write: str) -> None:
    view = weights.a.data().to_buffer()
    if write == "asarray":
        np.asarray(view)[5] = 7
    elif write == "dlpack":
        np.from_dlpack(view)[5] = 7
    elif write == "buffer":
        view[5] = 7
    elif write == "memoryview":
        memoryview(view)[5, 0] = 7.0
    elif write == "out":
        weights.load("b", dtype="float32", out={"b": view[5, :5]})
    elif write == "astype(out=)":
        max_weights.Buffer.from_numpy(np.full(5, 7, "f8")).astype("float32", out=view[5, :5])
    else:
        weights.a.torch()[5] = 7
    found = np.asarray(view).copy()
    assert not np.array_equal(found, WHOLE)
    for entry_point in ("load(copy=True)", "load(dtype=)", "stream", "weights.save"):
        assert np.array_equal(ENTRY_POINTS[entry_point](weights), found), entry_point


def test_digests_and_statistics_are_of_what_was_written(weights: WeightsNode, tmp_path: Path) -> None:
    of_file, before = max_weights.fingerprint(weights, digests=True).digests, max_weights.stats(weights, "a")["maximum"]
    np.asarray(weights.a)[:] = 7
    weights.save(tmp_path / "written.safetensors")
    assert max_weights.fingerprint(weights, digests=True).digests != of_file
    assert (
        max_weights.fingerprint(weights, digests=True).digests
        == max_weights.fingerprint(max_weights.load_weights(tmp_path / "written.safetensors"), digests=True).digests
    )
    assert (before, max_weights.stats(weights, "a")["maximum"], max_weights.stats(weights, "a")["std"]) == (
        [99],
        [7],
        [0],
    )


def test_a_difference_is_that_of_what_was_written(weights: WeightsNode) -> None:
    other = max_weights.load_weights(max_weights.infos(weights)[0].file)
    assert max_weights.diff(weights, other)
    np.asarray(weights.a)[3, 3] = -1
    assert [weight.name for weight in max_weights.diff(weights, other).findings] == ["a"]
    assert [weight.name for weight in max_weights.diff(other, weights).findings] == ["a"]


def test_another_tree_of_the_file_has_the_content_of_the_file(weights: WeightsNode) -> None:
    np.asarray(weights.a)[:] = 7
    other = max_weights.load_weights(max_weights.infos(weights)[0].file)
    for entry_point in ("load", "load(copy=True)", "stream", "weights.save"):
        assert np.array_equal(ENTRY_POINTS[entry_point](other), WHOLE), entry_point


def test_a_weight_that_was_read_is_a_copy_each_time_and_the_tree_keeps_its_content(
    make_file: Callable[..., Path],
) -> None:
    weights = max_weights.load_weights(make_file({"a": WHOLE, "b": np.ones(5, "f4")}), backend="read")
    np.asarray(weights.a)[:] = 7
    for entry_point in set(ENTRY_POINTS) - {"load(copy=False)"}:
        assert np.array_equal(ENTRY_POINTS[entry_point](weights), WHOLE), entry_point


def test_what_was_written_to_a_quantized_weight_is_decoded(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    weight = weights.blk[0].ffn_down.weight
    np.asarray(weight.data().to_buffer())[:] = 0
    assert not weight.data().astype("float32").to_numpy().any()
    for options in ({"dtype": "float32"}, {"dtype": "float32", "copy": True}, {"dtype": "bfloat16"}):
        (loaded,) = weight.load(**options).values()
        assert not loaded.astype("float32").to_numpy().any()
    ((_, streamed),) = weight.stream(framework="numpy", dtype="float32")
    assert not streamed.any()


def test_a_checksum_of_the_file_is_not_compared_with_what_was_written(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(100)}, tmp_path / "model.pt")
    weights = max_weights.graph.weights.PytorchWeights(tmp_path / "model.pt")
    assert max_weights.fingerprint(weights, checksums=True).checksums == 1
    np.asarray(weights.w)[:] = 7
    with refuses(ValueError):
        max_weights.fingerprint(weights, checksums=True)
    assert (
        max_weights.fingerprint(
            max_weights.graph.weights.PytorchWeights(tmp_path / "model.pt"), checksums=True
        ).checksums
        == 1
    )


def test_a_graph_is_saved_with_what_was_written(weights: WeightsNode, tmp_path: Path) -> None:
    np.asarray(weights.a)[:] = 7
    with Graph("g", input_types=()) as graph:
        graph.output(graph.add_weight(weights.a.allocate()) + 0)
    onnx.save(graph, tmp_path / "model.onnx", weights_registry=weights.allocated_weights)
    assert b"\0\0\xe0\x40" * 64 in b"".join(path.read_bytes() for path in tmp_path.glob("model.onnx*"))


ON_A_GPU = """
import numpy as np, sys, max_weights
weights = max_weights.load_weights(sys.argv[1])
np.asarray(weights.a)[10:13] = 7
wanted = np.asarray(weights.a).copy()
for options in ({}, {"backend": "mmap"}, {"backend": "read"}, {"backend": "direct"}, {"dtype": "float64"}):
    loaded = weights.load(device="cuda:0", **options)["a"].to("cpu").to_numpy()
    assert np.array_equal(loaded, wanted), options
streamed = {name: tensor.to("cpu") for name, tensor in weights.stream(device="cuda:0")}["a"].to_numpy()
assert np.array_equal(streamed, wanted)
"""


def test_a_device_gets_what_was_written(make_file: Callable[..., Path], stand_in: Path) -> None:
    path = make_file({"a": np.tile(WHOLE, (64, 1)), "b": np.ones(5, "f4")})
    run(stand_in, "-c", ON_A_GPU, str(path))
