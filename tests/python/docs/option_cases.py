"""Building blocks of `option_table.py`: kinds of rows, the files of a case, and calls of verbs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import max_weights
import max_weights.delta
import max_weights.torch
from max_weights.integrations import WeightsWriter
from max_weights.sharding import Shard, ShardingStrategy

HALF = Shard(0, 2, {"a": ShardingStrategy.rowwise(2)})


@dataclass(frozen=True)
class Changes:
    """This value changes the result."""

    value: Any


@dataclass(frozen=True)
class Refused:
    """This value is an error, whose message has these words."""

    value: Any
    message: str


@dataclass(frozen=True)
class Called:
    """The given function is called."""


@dataclass(frozen=True)
class Kept:
    """A separate test covers it."""

    test: str


Row = Changes | Refused | Called | Kept


class Case:
    """Files and trees for one call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "model.safetensors"
        self.tensors = {"a.weight": np.arange(64, dtype="f4").reshape(8, 8) / 8, "b": np.array([1, 1, 0], "f4")}
        max_weights.save_file(self.tensors, self.path, {"format": "pt"})
        self.weights = max_weights.load_weights(self.path)
        self.out = folder / "out.safetensors"


@dataclass(frozen=True)
class Verb:
    """A public function, how it is called, and its options."""

    function: Any
    rows: Mapping[str, Row]
    run: Callable[[Case, dict[str, Any]], Any] | None = None
    """Calls it with options, and returns a comparable result."""
    keywords: tuple[Any, ...] = field(default=())
    """The TypedDicts of its `**options`."""


def embedded(module: Any) -> Any:
    """What an embedding is, what it gives, and what its cache has then."""
    rows = module(torch.tensor([3, 5]))
    return repr(module), str(rows.dtype), str(rows.device), repr(module.table.cache_counts)


def seen(tensors: Mapping[str, Any]) -> Any:
    """Observed properties of tensors: kinds, dtypes, shapes, whether they are views, and bytes."""
    return [
        (name, type(one).__name__, str(one.dtype), list(one.shape), getattr(one, "is_mapped", None), _bytes(one))
        for name, one in tensors.items()
    ]


def _bytes(tensor: Any) -> bytes:
    return (tensor.numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)).tobytes()


def written(case: Case) -> Any:
    """The content of the output folder."""
    paths = sorted(path for path in case.folder.rglob("*") if path.is_file() and path != case.path)
    return [(str(path.relative_to(case.folder)), path.read_bytes()) for path in paths]


def saved(save: Callable[..., object]) -> Callable[[Case, dict[str, Any]], Any]:
    """How a verb that writes is called."""

    def run(case: Case, options: dict[str, Any]) -> Any:
        save(case, options)
        return written(case)

    return run


def into(case: Case, options: dict[str, Any]) -> Any:
    module = torch.nn.Module()
    module.register_parameter("b", torch.nn.Parameter(torch.zeros(3)))
    module.a = torch.nn.Linear(8, 8, bias=False, device="meta" if "dtype" in options else None)
    report = max_weights.torch.load_into(module, case.path, **options)
    return seen({name: one.detach() for name, one in module.state_dict().items()}), report.missing, report.unexpected


def fingerprinted(case: Case, options: dict[str, Any]) -> Any:
    return max_weights.fingerprint(case.weights, **options).to_json()


def other(case: Case, **changed: Any) -> Path:
    """Another checkpoint, with some tensors changed."""
    path = case.folder / "other.safetensors"
    max_weights.save_file({**case.tensors, **changed}, path, {"format": "other"})
    return path


def diffed(case: Case, options: dict[str, Any]) -> Any:
    changed = {"a.weight": case.tensors["a.weight"] * 1.001, "b": np.array([1, 1, -0.0], "f4")}
    return max_weights.diff(case.path, other(case, **changed), **options)


def made_delta(case: Case) -> Path:
    path = case.folder / "delta.safetensors"
    max_weights.delta.create(case.path, {**case.tensors, "b": np.zeros(3, "f4")}, path)
    return path


def applied(case: Case, options: dict[str, Any]) -> Any:
    tensors = {name: one.copy() for name, one in case.tensors.items()}
    return max_weights.delta.apply_into(tensors, made_delta(case), **options)


def scaled(values: Any, options: dict[str, Any]) -> Any:
    given = {"dtype": "float8_e4m3fn", "block": (8, 8)} | options
    return max_weights.scale_blocks(values, np.full((1, 1), 1e5, "f4"), **given).view("uint8")


def saved_by_torch(case: Case, options: dict[str, Any]) -> None:
    state = {name: torch.from_numpy(one) for name, one in case.tensors.items()}
    writer = WeightsWriter(**options)
    writer.set_up_storage_writer()  # if `save` calls it, its error is no Exception
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is only one process
        dcp.save(state, storage_writer=writer, no_dist=True)


def written_by_writer(case: Case, options: dict[str, Any]) -> None:
    with max_weights.SafetensorsWriter(case.out, {"b": ("float32", (3,))}, **options) as writer:
        writer.write("b", case.tensors["b"])
