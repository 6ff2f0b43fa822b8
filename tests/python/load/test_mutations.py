"""Wrongly loaded weights are found and named on all ranks, without false alarms.

The first test has the figures of docs/verify_loaded.md, made by mutations_program.py; the second uses random modules.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import max_weights
from children import with_test_folders
from max_weights import load_weights
from max_weights.torch import verify_loaded
from mutations_program import MUTATIONS

PROGRAM = Path(__file__).with_name("mutations_program.py")


@pytest.mark.parametrize(
    ("sizes", "kinds", "cases"),
    [
        ("1,2", ["llama", "qwen3_moe", "gpt_oss"], 90),
        pytest.param("1,2,4,8", [], 600, marks=pytest.mark.nightly),
    ],
    ids=["three architectures", "all"],
)
def test_every_mutation_is_found_on_all_ranks_and_named_and_said_to_be_what_it_is(
    sizes: str, kinds: list[str], cases: int, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), sizes, *kinds],
        capture_output=True, text=True, check=False, timeout=1500, env=with_test_folders(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    ranks = max(map(int, sizes.split(",")))
    lines: list[dict[str, Any]] = []
    for rank in range(ranks):
        lines += map(json.loads, (tmp_path / f"found{rank}").read_text().splitlines())
    clean = [line for line in lines if line["mutation"] == "none"]
    assert all(line["findings"] == 0 and line["compared"] > 5 for line in clean)
    mutated = [line for line in lines if line["mutation"] != "none"]
    assert {line["mutation"] for line in mutated} == {mutate.__name__ for mutate in MUTATIONS}
    for line in mutated:
        assert line["found"], line
        assert line["named"], line
        assert line["said"], line
        assert line["elsewhere"] == 0, line
    assert (
        len([line for line in mutated if line["ranks"] == 1])
        + len(
            {
                (line["architecture"], line["layout"], line["ranks"], line["mutation"])
                for line in mutated
                if line["ranks"] > 1
            }
        )
        >= cases
    )


EXACT = {
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64),
    torch.float16: (torch.float16, torch.float32, torch.float64, torch.bfloat16),
    torch.float32: (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    torch.float64: (torch.float64,),
    torch.int8: (torch.int8,),
    torch.uint8: (torch.uint8,),
    torch.int64: (torch.int64,),
}
"""Dtypes of a weight's parameter: exact conversions, and some that round."""


def _random_run(generator: np.random.Generator, folder: Path) -> None:
    """Write random tensors to a file of a random format, load them in a random layout, and verify."""
    state: dict[str, torch.Tensor] = {}
    for number in range(generator.integers(1, 4)):
        shape = tuple(int(size) for size in generator.integers(0, 40, generator.integers(0, 4)))
        dtype = list(EXACT)[generator.integers(len(EXACT))]
        values = torch.from_numpy(np.asarray(generator.standard_normal(shape) * 30))
        state[f"layers.{number}.weight"] = values.to(dtype)
    way = generator.integers(3)
    if way == 0:
        save_file(state, folder / "a.safetensors")
        weights = load_weights(folder / "a.safetensors")
    elif way == 1:
        strided = {name: one.t().contiguous().t() if one.ndim == 2 else one for name, one in state.items()}
        torch.save(strided, folder / "a.pt")
        weights = load_weights(folder / "a.pt")
    else:
        half = len(state) // 2
        save_file(dict(list(state.items())[:half]), folder / "b-00001-of-00002.safetensors")
        save_file(dict(list(state.items())[half:]), folder / "b-00002-of-00002.safetensors")
        paths = [folder / f"b-0000{part}-of-00002.safetensors" for part in (1, 2)]
        weights = load_weights(paths if half else paths[1:], strict=False)
    module = torch.nn.Module()
    for name, tensor in state.items():
        choices = EXACT[tensor.dtype]
        own = tensor.to(choices[generator.integers(len(choices))])
        if own.ndim == 2 and generator.integers(2):
            own = own.t().contiguous().t()
        module.register_buffer(name.replace(".", "_"), own)
    report = verify_loaded(module, weights, rename=lambda name: name.replace(".", "_"))
    assert report.ok, (report, {name: (tensor.dtype, tensor.shape) for name, tensor in state.items()})
    assert len(report.verified) == len(state)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor.long() for name, tensor in state.items()}
    comparison = max_weights.fingerprint(weights).compare(max_weights.fingerprint(wide))
    assert comparison.ok, comparison


@pytest.mark.parametrize("runs", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_nothing_is_said_of_random_modules_that_were_loaded_rightly(runs: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(runs)
    for _ in range(runs):
        _random_run(generator, tmp_path)
