"""Every verb takes every kind of checkpoint, and gives the same for each: a tree, paths, a URL, a source, tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
import max_weights.delta
import max_weights.integrations
import max_weights.jax
import max_weights.nn
import max_weights.numpy
from fault_server import FaultServer
from max_weights import WeightsNode
from max_weights.remote import source
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses

TENSORS = {
    "a.weight": np.arange(64, dtype="f4").reshape(8, 8) / 8,
    "b": np.array([1, 1, 0], "f4"),
    "c": np.arange(6, dtype="i8").reshape(2, 3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    max_weights.save_file(TENSORS, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


def module() -> torch.nn.Module:
    made = torch.nn.Module()
    made.a = torch.nn.Linear(8, 8, bias=False)
    made.register_parameter("b", torch.nn.Parameter(torch.zeros(3)))
    made.register_buffer("c", torch.zeros(2, 3, dtype=torch.int64))
    return made


def filled() -> torch.nn.Module:
    made = module()
    made.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in TENSORS.items()})
    return made


def of_source(path: Path) -> Any:
    content = path.read_bytes()
    return source(lambda ranges: [content[start:end] for start, end in ranges], len(content), name="model.safetensors")


# The arguments made from the file or its URL.
CHECKPOINTS: dict[str, Callable[[Path, FaultServer], Any]] = {
    "str": lambda path, _: str(path),
    "path": lambda path, _: path,
    "list": lambda path, _: [path],
    "folder": lambda path, _: path.parent,
    "URL": lambda _, server: server.file("model.safetensors"),
    "source": lambda path, _: of_source(path),
}
IN_MEMORY: dict[str, Callable[[], Any]] = {
    "arrays": lambda: TENSORS,
    "tensors": lambda: {name: torch.from_numpy(array) for name, array in TENSORS.items()},
    "module": filled,
}


def arrays(tensors: Any) -> Any:
    return {name: (np.asarray(one).dtype.str, np.asarray(one).tolist()) for name, one in sorted(tensors.items())}


def loaded_into(checkpoint: Any) -> Any:
    made = module()
    assert max_weights.load_into(made, checkpoint)
    return arrays(made.state_dict())


def loaded_layer(checkpoint: Any) -> Any:
    layer = max_weights.nn.Linear(8, 8, max_weights.DType.float32, max_weights.DeviceRef.CPU(), name="a")
    layer.load(checkpoint, rename={"a.": ""}, strict=False)
    return arrays(layer.state_dict())


def read_by_dcp(checkpoint: Any) -> Any:
    import torch.distributed.checkpoint as dcp

    state = module().state_dict()
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    dcp.load(state, storage_reader=max_weights.integrations.WeightsReader(checkpoint), no_dist=True)
    return arrays(state)


def delta_made(checkpoint: Any, out: Path) -> Any:
    new = {**TENSORS, "b": np.array([1, 2, 0], "f4")}
    summary = max_weights.delta.create(checkpoint, new, out / "delta.safetensors")
    return summary.base, summary.target, (out / "delta.safetensors").read_bytes()


def followed(checkpoint: Any, out: Path) -> Any:
    max_weights.delta.create(TENSORS, {**TENSORS, "b": np.array([1, 2, 0], "f4")}, out / "delta.safetensors")
    return [version.identity for version in max_weights.delta.follow(checkpoint, out, timeout=0.0)]


def resharded(checkpoint: Any, out: Path) -> Any:
    columns = {"a.weight": ShardingStrategy.columnwise(2)}
    max_weights.reshard(checkpoint, out, 2, strategies=columns)
    return sorted((path.name, path.read_bytes()) for path in out.rglob("*.safetensors"))


def saved(name: str) -> Callable[[Any, Path], Any]:
    def save(checkpoint: Any, out: Path) -> Any:
        paths = getattr(max_weights, name)(
            checkpoint, out / {"save_gguf": "m.gguf", "save_sharded": "m"}.get(name, "m.safetensors")
        )
        weights = max_weights.load_weights([path for path in paths if not path.name.endswith(".json")])
        return arrays(weights.load(framework="numpy"))

    return save


def benched(checkpoint: Any) -> Any:
    result = max_weights.bench(checkpoint, against=[], cold=False, seconds=0.01)
    return bool(result.rows) if hasattr(result, "rows") else result is not None


# No GPU is needed: the checkpoint reaches its plan, and then the device is refused.
def of_ranks(checkpoint: Any) -> Any:
    with pytest.raises((max_weights.DeviceError, ValueError)) as refused:
        max_weights.load_ranks(checkpoint, [Shard(0, 1, {"a": ShardingStrategy.rowwise(1)})], ["cuda:77"])
    return str(refused.value)


VERBS: dict[str, Callable[[Any], Any]] = {
    "infos": lambda one: [tuple(info)[:4] for info in max_weights.infos(one)],
    "plan": lambda one: [(part.offset, part.bytes, part.names) for part in max_weights.plan(one, copy=True).ranges],
    "quantized": lambda one: list(max_weights.quantized(one)),
    "table": lambda one: max_weights.table(one, "a.weight").take([5, 0, 5]).to_numpy().tolist(),
    "torch.embedding": lambda one: max_weights.torch.embedding(one, "a.weight")(torch.tensor([[7]])).tolist(),
    "renamed": lambda one: arrays(
        max_weights.renamed(one, [max_weights.conversion.ConversionRule("b", "x")]).load(framework="numpy")
    ),
    "lazy_state_dict": lambda one: arrays({name: lazy[...] for name, lazy in max_weights.lazy_state_dict(one).items()}),
    "load_ranks": of_ranks,
    "load_file": lambda one: arrays(max_weights.load_file(one)),
    "torch.load_file": lambda one: arrays(max_weights.torch.load_file(one)),
    "numpy.load_file": lambda one: arrays(max_weights.numpy.load_file(one)),
    "jax.load_file": lambda one: arrays(max_weights.jax.load_file(one, select=["a", "b"])),
    "load_into": loaded_into,
    "nn.Module.load": loaded_layer,
    "verify_loaded": lambda one: (
        str(bool(max_weights.verify_loaded(filled(), one))) + str(bool(max_weights.verify_loaded(module(), one)))
    ),
    "validate": lambda one: max_weights.validate(one, severity="error").ok,
    "assert_checkpoint_ok": lambda one: bool(max_weights.assert_checkpoint_ok(one)),
    "bench": benched,
    "WeightsReader": read_by_dcp,
}
OF_TENSORS: dict[str, Callable[[Any], Any]] = {
    "stats": lambda one: sorted_columns(max_weights.stats(one)),
    "fingerprint": lambda one: {
        name: (tensor.kind, tensor.shape, tensor.blocks, tensor.digest)
        for name, tensor in sorted(max_weights.fingerprint(one, digests=True).items())
    },
    "diff": lambda one: (
        bool(max_weights.diff(one, TENSORS, metadata=False)),
        max_weights.diff(TENSORS, one, metadata=False).same,
    ),
}
WRITING: dict[str, Callable[[Any, Path], Any]] = {
    "reshard": resharded,
    "delta.follow": followed,
}
WRITING_TENSORS: dict[str, Callable[[Any, Path], Any]] = {
    "delta.create": delta_made,
    "save": saved("save"),
    "save_file": saved("save_file"),
    "save_sharded": saved("save_sharded"),
    "save_gguf": saved("save_gguf"),
}


def sorted_columns(statistics: Any) -> dict[str, list[Any]]:
    order = sorted(range(len(statistics["name"])), key=statistics["name"].__getitem__)
    return {name: [column[at] for at in order] for name, column in statistics.items()}


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("verb", [*VERBS, *OF_TENSORS])
def test_every_kind_of_checkpoint_gives_what_its_tree_gives(
    folder: Path, server: FaultServer, verb: str, kind: str
) -> None:
    path = folder / "model.safetensors"
    call = (VERBS | OF_TENSORS)[verb]
    if verb in ("validate", "assert_checkpoint_ok", "bench") and kind == "source":
        with refuses(max_weights.errors.ArgumentError, "argument.type"):
            call(CHECKPOINTS[kind](path, server))
        return
    with max_weights.load_weights(path) as weights:
        expected = call(weights)
        assert call(weights) == expected, "the tree stays open"
        assert call(CHECKPOINTS[kind](path, server)) == expected


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("verb", [*WRITING, *WRITING_TENSORS])
def test_every_kind_of_checkpoint_is_written_as_its_tree_is(
    folder: Path, server: FaultServer, tmp_path: Path, verb: str, kind: str
) -> None:
    path = folder / "model.safetensors"
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    call = (WRITING | WRITING_TENSORS)[verb]
    if verb == "delta.follow" and kind == "source":
        with refuses(max_weights.errors.ArgumentError, "argument.conflict"):
            call(CHECKPOINTS[kind](path, server), tmp_path / "one")
        return
    with max_weights.load_weights(path) as weights:
        expected = call(weights, tmp_path / "one")
        assert weights.b.exists()
    assert call(CHECKPOINTS[kind](path, server), tmp_path / "other") == expected


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("verb", [*OF_TENSORS, *WRITING_TENSORS])
def test_tensors_in_memory_give_what_their_file_gives(folder: Path, tmp_path: Path, verb: str, kind: str) -> None:
    path = folder / "model.safetensors"
    if verb in OF_TENSORS:
        assert OF_TENSORS[verb](IN_MEMORY[kind]()) == OF_TENSORS[verb](path)
        return
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    expected = WRITING_TENSORS[verb](path, tmp_path / "one")
    assert WRITING_TENSORS[verb](IN_MEMORY[kind](), tmp_path / "other") == expected


@pytest.mark.parametrize("wrong", [3, None, b"model.safetensors", [], [3]], ids=repr)
@pytest.mark.parametrize("verb", [*VERBS, *OF_TENSORS])
def test_what_is_no_checkpoint_is_an_error_that_says_what_is_one(verb: str, wrong: Any) -> None:
    if verb == "load_ranks" or (verb == "WeightsReader" and wrong is None):
        return  # devices are checked first, and DCP gives a reader its path
    with refuses((TypeError, ValueError), "argument.type"):
        (VERBS | OF_TENSORS)[verb](wrong)


@pytest.mark.parametrize("verb", [*VERBS, *OF_TENSORS])
def test_a_branch_that_is_not_there_is_an_error_with_near_names(folder: Path, verb: str) -> None:
    if verb in ("load_ranks", "diff", "renamed", "validate", "assert_checkpoint_ok", "bench", "WeightsReader"):
        return  # of whole trees, or of devices first
    weights = max_weights.load_weights(folder / "model.safetensors")
    with refuses(max_weights.WeightNotFoundError, "weight.not-found"):
        (VERBS | OF_TENSORS)[verb](weights.a.wieght)


USES: dict[str, Callable[[WeightsNode], Any]] = {
    "load": lambda node: node.load(),
    "stream": lambda node: node.stream(),
    "save": lambda node: node.save("not_there.safetensors"),
    "items": lambda node: node.items(),
    "len": len,
    "children": lambda node: node.children(),
    "data": lambda node: node.data(),
    "numpy": lambda node: node.numpy(),
    "slice": lambda node: node[:1],
    "allocate": lambda node: node.allocate(),
}


@pytest.mark.parametrize("use", USES)
def test_a_node_that_is_not_there_says_so_when_it_is_used(folder: Path, use: str) -> None:
    weights = max_weights.load_weights(folder / "model.safetensors")
    with refuses(max_weights.WeightNotFoundError, "weight.not-found"):
        USES[use](weights.a.weihgt)
    assert not weights.a.weihgt.exists()
    assert "weihgt" not in weights.a
    assert weights.a.weight.children() == []
