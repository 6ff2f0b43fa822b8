"""Files that only `max_weights.torch.load` or only torch loads: the differences listed in docs/pytorch.md."""

import argparse
import datetime
import pickle
import random
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from max_weights._weights import Placeholder
from max_weights.errors import FormatError, UnsupportedError
from max_weights.torch import load
from refusals import refuses
from torch_same import assert_same


@pytest.fixture(params=["zip", "legacy"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def save(value: Any) -> Path:
        path = tmp_path / "value.pt"
        torch.save(value, path, _use_new_zipfile_serialization=request.param == "zip")
        return path

    return save


class Own:
    """An unknown class."""

    def __init__(self) -> None:
        self.rate = 0.5


def test_classes_that_are_not_known_are_placeholders_where_that_is_asked_for(saved: Any) -> None:
    module = torch.nn.Linear(2, 2)
    arguments = argparse.Namespace(rate=0.1, names=["a"])
    path = saved(
        {
            "weight": torch.ones(3),
            "arguments": arguments,
            "own": [Own(), Own],
            "module": module,
            "counts": defaultdict(Own, a=1),
            "step": 7,
        }
    )
    with refuses(UnsupportedError, "torch.global"):
        load(path)
    found = load(path, unknown="placeholder")
    assert torch.equal(found["weight"], torch.ones(3))
    assert found["step"] == 7
    assert found["counts"] == {"a": 1}
    assert found["counts"].default_factory is None
    for place, name in (
        (found["arguments"], "argparse.Namespace"),
        (found["own"][0], "test_torch_differences.Own"),
        (found["own"][1], "test_torch_differences.Own"),
        (found["module"], "torch.nn.modules.linear.Linear"),
    ):
        assert isinstance(place, Placeholder)
        assert place.global_name == name
    assert found["arguments"].states == [{"rate": 0.1, "names": ["a"]}]
    with refuses(ValueError, "argument.choice"):
        load(path, unknown="skip")  # type: ignore[arg-type]


def test_a_default_that_is_no_plain_class_is_refused(saved: Any) -> None:
    path = saved({"counts": defaultdict(torch.Tensor, a=1)})
    with refuses(UnsupportedError, "torch.global"):
        load(path)
    assert load(path, unknown="placeholder") == {"counts": {"a": 1}}


# docs/pytorch.md names each of these differences.
ONLY_HERE = {
    "empty bytes": b"",
    "an integer of more than 255 bytes": 1 << 3000,
    "a frozenset": frozenset([1, 2]),
    "a defaultdict": defaultdict(list, a=[1]),
    "a scalar of NumPy": np.float32(1.5),
    "an array of NumPy": np.arange(3),
    "a dtype of NumPy": np.dtype("f4"),
}
ONLY_TORCH = {
    "a class": OrderedDict,
    "a function": torch._utils._rebuild_tensor_v2,
    "half of a surrogate pair": "\ud800",
}


@pytest.mark.parametrize("name", [*ONLY_HERE, *ONLY_TORCH])
def test_the_differences_from_torch_are_those_that_are_documented(saved: Any, name: str) -> None:
    path = saved([ONLY_HERE.get(name, ONLY_TORCH.get(name))])
    if name in ONLY_HERE:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(path, weights_only=True)
        assert_same(load(path), [ONLY_HERE[name]])
    else:
        assert torch.load(path, weights_only=True) == [ONLY_TORCH[name]]
        with pytest.raises((UnsupportedError, FormatError)):
            load(path)


LEAVES: dict[str, Callable[[random.Random], Any]] = {
    "none": lambda _: None,
    "bool": lambda numbers: numbers.random() < 0.5,
    "int": lambda numbers: numbers.randrange(-(1 << 80), 1 << 80) >> numbers.randrange(80),
    "float": lambda numbers: numbers.choice([0.0, -1.5, float("inf")]),
    "text": lambda numbers: numbers.choice(["", "é", "\U0001f600", "x" * 300]),
    "bytes": lambda _: b"ab\xff",
    "bytearray": lambda _: bytearray(b"xy"),
    "complex": lambda _: 1 + 2j,
    "set": lambda _: {1, "a", None, (1, 2), torch.float32},
    "dtype": lambda _: torch.float8_e4m3fn,
    "device": lambda _: torch.device("cuda", 1),
    "layout": lambda _: torch.sparse_csr,
    "size": lambda _: torch.Size([1, 2]),
    "ordered": lambda _: OrderedDict(a=1),
    "counter": lambda _: Counter("aab"),
    "tensor": lambda _: torch.arange(6.0).reshape(2, 3).T,
    "parameter": lambda _: torch.nn.Parameter(torch.ones(2)),
    "meta": lambda _: torch.empty(2, device="meta"),
    "sparse": lambda _: torch.eye(3).to_sparse(),
    "keys": lambda _: {None: 1, 1.5: 2, (1, 2): 3, b"a": 4, 1j: 5, torch.float32: 6, True: 7},
    "deque": lambda _: deque([1]),
    "range": lambda _: range(3),
    "date": lambda _: datetime.date(2020, 1, 1),
}


def graph(numbers: random.Random, depth: int, seen: list[Any]) -> Any:
    """A random value; parts of it may be shared."""
    if seen and numbers.random() < 0.15:
        return numbers.choice(seen)
    if depth == 0 or numbers.random() < 0.3:
        value = LEAVES[numbers.choice(list(LEAVES))](numbers)
    else:
        parts = [graph(numbers, depth - 1, seen) for _ in range(numbers.randrange(5))]
        kind = numbers.randrange(4)
        value = (parts, tuple(parts), dict(enumerate(parts)), OrderedDict((str(i), p) for i, p in enumerate(parts)))[
            kind
        ]
        if kind == 0 and numbers.random() < 0.1:
            parts.append(parts)
    seen.append(value)
    return value


def loaded(function: Callable[..., Any], path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(path)
    except Exception:
        return NotImplemented


def test_random_graphs_are_loaded_where_torch_loads_them_and_refused_where_it_refuses_them(tmp_path: Path) -> None:
    numbers, outcomes = random.Random(5), Counter[bool]()
    for _ in range(150):
        value = [graph(numbers, 4, [])]
        path = tmp_path / "graph.pt"
        try:
            torch.save(value, path)
        except RecursionError:  # of a tuple that is in itself
            continue
        theirs = loaded(lambda path: torch.load(path, weights_only=True), path)
        torch._utils._get_sparse_tensors_to_validate().clear()  # which torch leaves there after an error
        ours = loaded(load, path)
        assert (ours is NotImplemented) == (theirs is NotImplemented), value
        outcomes[ours is NotImplemented] += 1
        if ours is not NotImplemented:
            assert_same(ours, theirs)
    assert min(outcomes[True], outcomes[False]) > 20
