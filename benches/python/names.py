"""Names at 50,000 tensors: the error for a name that is nearly right, and the items of one layer out of 64."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
from report import Column, Report, Target

TITLE = "Names"
LAYER = 17
# One typo in each kind of component, and a name without near matches.
TYPOS = (
    "model.layers.17.mlp.experts.100.gate_prj.weight",
    "model.layer.17.mlp.experts.100.gate_proj.weight",
    "model.layers.170.mlp.experts.100.gate_proj.weight",
    "model.layers.17.mlp.experts.100.gate_proj.wieght",
    "transformer.h.17.attn.c_attn.bias",
)
DIFFLIB = "difflib.get_close_matches"
SCAN = "a list of names, scanned by prefix"
WALK = "max_weights, a walk over all"


def _opened(path: Path) -> Any:
    import max_weights

    return max_weights.load_weights(path)


def _names(path: Path) -> list[str]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return list(header)


def _missing(path: Path, typo: str) -> Callable[[], object]:
    weights = _opened(path)

    def run() -> str:
        try:
            weights[typo].data()
        except KeyError as error:
            return str(error)
        raise harness.BenchError(f"names: {typo} is not in the file, and yet it was found")

    return run


def _close_matches(path: Path, typo: str) -> Callable[[], object]:
    import difflib

    names = _names(path)
    return lambda: difflib.get_close_matches(typo, names)


def _layer(path: Path) -> Callable[[], object]:
    layer = _opened(path).model.layers[LAYER]
    return lambda: list(layer.items())


def _all(path: Path) -> Callable[[], object]:
    weights = _opened(path)
    return lambda: list(weights.items())


def _scan(path: Path) -> Callable[[], object]:
    names = _names(path)
    prefix = f"model.layers.{LAYER}."
    return lambda: [name for name in names if name.startswith(prefix)]


def _for_typo(loader: Callable[[Path, str], Callable[[], object]], typo: str) -> harness.Loader:
    return lambda path: loader(path, typo)


CASES: harness.Cases = {
    **{typo: {harness.OURS: _for_typo(_missing, typo), DIFFLIB: _for_typo(_close_matches, typo)} for typo in TYPOS},
    "items": {harness.OURS: _layer, WALK: _all, SCAN: _scan},
}


def measure(folder: Path, small: bool) -> Report:
    """Time the slowest of the near-name errors, and the items of one layer against a walk over all."""
    bench, c = Path(__file__), files.make(folder, "c", small=small)
    effort = harness.QUICK if small else harness.Effort(least=3, most=15, seconds=4.0)
    samples: dict[str, dict[str, list[float]]] = {}
    errors: list[dict[str, float]] = []
    for case, loaders in CASES.items():
        timings = harness.alternate(bench, case, loaders, c, effort=effort)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        if case in TYPOS:
            errors.append({loader: timing.median for loader, timing in timings.items()})
    slowest = max(errors, key=lambda values: values[harness.OURS])
    items = {loader: timing.median for loader, timing in timings.items()}
    return Report(
        "names",
        [Column("KeyError with near names", "ms", slowest), Column("items() of one layer of 64", "ms", items)],
        targets=(
            Target(
                "KeyError with near names, the slowest of 5 slips", slowest[harness.OURS] * 1e3, 5.0, "at most", "ms"
            ),
            Target("a walk over all ÷ items() of one layer", items[WALK] / items[harness.OURS], 30.0, "at least"),
        ),
        samples=samples,
    )
