"""Load separate experts as packed ones, compared with loading the file unchanged and packing with torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import files
import harness
import rivals
from report import Column, Report, Target

TITLE = "Experts packed during the load"
PLAIN = "the file unchanged"
TORCH = "safetensors, torch.stack and torch.cat"
CONFIG = {"model_type": "qwen3_moe", "num_attention_heads": 8, "num_key_value_heads": 8}


def _open(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: max_weights.renamed(max_weights.load_weights(path), "transformers5", config=CONFIG)


def _open_plain(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: max_weights.load_weights(path)


def _load(path: Path) -> Callable[[], object]:
    import max_weights

    def run() -> object:
        view = max_weights.renamed(max_weights.load_weights(path), "transformers5", config=CONFIG)
        tensors = view.load(framework="torch", copy=True)
        rivals.touch(tensors)
        return tensors

    return run


def _load_plain(path: Path) -> Callable[[], object]:
    import max_weights

    def run() -> object:
        tensors = max_weights.load_weights(path).load(framework="torch", copy=True)
        rivals.touch(tensors)
        return tensors

    return run


def _pack_with_torch(path: Path) -> Callable[[], object]:
    import torch
    from safetensors.torch import load_file

    def run() -> object:
        tensors = load_file(path)
        layers = {name.partition(".experts.")[0] for name in tensors if ".experts." in name}
        for layer in layers:
            count = sum(name.startswith(f"{layer}.experts.") for name in tensors) // 3

            def stacked(name: str, layer: str = layer, count: int = count) -> torch.Tensor:
                return torch.stack([tensors.pop(f"{layer}.experts.{i}.{name}.weight") for i in range(count)])

            gate, up = stacked("gate_proj"), stacked("up_proj")
            tensors[f"{layer}.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
            tensors[f"{layer}.experts.down_proj"] = stacked("down_proj")
        rivals.touch(tensors)
        return tensors

    return run


CASES: harness.Cases = {
    "open": {harness.OURS: _open, PLAIN: _open_plain},
    "load": {harness.OURS: _load, PLAIN: _load_plain, TORCH: _pack_with_torch},
}


def measure(folder: Path, small: bool) -> Report:
    """Time opening a view of f, and loading the experts of e."""
    bench = Path(__file__)
    effort = harness.QUICK if small else harness.Effort()
    paths = {"open": files.make(folder, "f", small=small), "load": files.make(folder, "e", small=small)}
    columns, samples = [], {}
    values: dict[str, dict[str, float]] = {}
    for case, loaders in CASES.items():
        timings = harness.alternate(bench, case, loaders, paths[case], effort=effort)
        values[case] = {loader: timing.median for loader, timing in timings.items()}
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(case, "ms", values[case]))
    targets = [
        Target(f"{case}: packed ÷ {PLAIN}", values[case][harness.OURS] / values[case][PLAIN], bound, "at most")
        for case, bound in (("open", 1.2), ("load", 1.1))
    ]
    return Report(
        "experts",
        columns,
        targets=tuple(targets),
        notes=(
            "*Open*: the 18,432 expert tensors of f as two packed ones for each of 48 layers. *Load*: the experts of "
            "e, copied into packed tensors.",
        ),
        samples=samples,
    )
