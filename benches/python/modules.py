"""Models of 500, 5,000 and 50,000 modules with four weights each: names, state dicts, and the error when all names are
slightly wrong. The figures per module show whether the work is linear.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import harness
from report import Column, Report, Target

TITLE = "Modules"
SIZES = (500, 5_000, 50_000)
WEIGHTS = 4
NAMED = "named_modules"
RAW = "raw_state_dict"
ARRAYS = "load_state_dict, arrays"
BUFFERS = "load_state_dict, Buffers"
MISSING = "error: every name a little wrong"
TORCH = "torch, load_state_dict(assign=True)"
# MAX 26.7 takes 78 ms for 5,000 modules.
BOUND_MS = 60.0


@cache
def _model(size: int) -> Any:
    from max_weights.graph import DeviceRef, Weight
    from max_weights.nn import LayerList, Module

    class Leaf(Module):
        def __init__(self) -> None:
            for name in ("query", "key", "value", "output"):
                setattr(self, name, Weight(name, "float32", (4, 8), DeviceRef.CPU()))

    class Block(Module):
        def __init__(self) -> None:
            self.parts = LayerList(Leaf() for _ in range(9))

    class Model(Module):
        def __init__(self) -> None:
            self.blocks = LayerList(Block() for _ in range(size // 10))
            self.rest = LayerList(Leaf() for _ in range(size - 9 * (size // 10)))

    return Model()


def _arrays(size: int) -> dict[str, Any]:
    import numpy as np

    return {name: np.ones((4, 8), np.float32) for name in _model(size).raw_state_dict()}


def _named(size: int) -> Callable[[], object]:
    model = _model(size)
    return lambda: sum(1 for _ in model.named_modules())


def _raw(size: int) -> Callable[[], object]:
    return _model(size).raw_state_dict  # type: ignore[no-any-return]


def _load(size: int) -> Callable[[], object]:
    model, given = _model(size), _arrays(size)
    return lambda: model.load_state_dict(given)


def _load_buffers(size: int) -> Callable[[], object]:
    from max_weights import Buffer

    model, given = _model(size), {name: Buffer.from_numpy(array) for name, array in _arrays(size).items()}
    return lambda: model.load_state_dict(given)


def _wrong(size: int) -> Callable[[], object]:
    model, given = _model(size), {name.replace("query", "qurey"): array for name, array in _arrays(size).items()}

    def run() -> str:
        try:
            model.load_state_dict(given)
        except ValueError as error:
            return str(error)
        raise harness.BenchError("modules: names that are wrong were accepted")

    return run


def _torch(size: int) -> Callable[[], object]:
    import torch

    class Leaf(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("query", "key", "value", "output"):
                setattr(self, name, torch.nn.Parameter(torch.ones(4, 8)))

    model = torch.nn.ModuleList(Leaf() for _ in range(size))
    given = {name: torch.ones(4, 8) for name in model.state_dict()}
    return lambda: model.load_state_dict(given, assign=True)


def _of(loader: Callable[[int], Callable[[], object]], size: int) -> harness.Loader:
    return lambda _path: loader(size)


LOADERS = {NAMED: _named, RAW: _raw, ARRAYS: _load, BUFFERS: _load_buffers, MISSING: _wrong}
CASES: harness.Cases = {
    f"{size:,}": {
        **{name: _of(loader, size) for name, loader in LOADERS.items()},
        **({TORCH: _of(_torch, size)} if size == SIZES[0] else {}),
    }
    for size in SIZES
}


def measure(folder: Path, small: bool) -> Report:
    """Time each size, and compare the largest with the smaller ones."""
    effort = harness.QUICK if small else harness.Effort(least=3, most=11, seconds=8.0)
    columns: list[Column] = []
    samples: dict[str, dict[str, list[float]]] = {}
    for size in SIZES[: 1 if small else None]:
        timings = harness.alternate(Path(__file__), f"{size:,}", CASES[f"{size:,}"], folder, effort=effort)
        samples[f"{size:,}"] = {loader: timing.seconds for loader, timing in timings.items()}
        values = {loader: timing.median for loader, timing in timings.items()}
        columns.append(Column(f"{size:,} modules, {WEIGHTS * size:,} weights", "ms", values, charted=False))
    targets = []
    if not small:
        medium, large = columns[1].values, columns[2].values
        targets = [
            Target("load_state_dict of 5,000 modules", medium[ARRAYS] * 1e3, BOUND_MS, "at most", "ms"),
            *(
                Target(f"{name}: 50,000 modules ÷ 5,000", large[name] / medium[name], 20.0, "at most")
                for name in (NAMED, RAW, ARRAYS)
            ),
        ]
    return Report("modules", columns, targets=targets, samples=samples)
