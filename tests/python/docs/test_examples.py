"""The examples run, and print the documented results."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import sharded_llama
from conftest import ROOT


def test_the_sharded_llama_reads_a_part_of_the_file_for_each_rank() -> None:
    command = [sys.executable, Path(sharded_llama.__file__)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    size = int(re.search(r"([\d,]+) bytes, 4 ranks", shown)[1].replace(",", ""))  # type: ignore[index]
    ranks = re.findall(r"rank (\d): ([\d,]+) bytes of shards .*, ([\d,]+) bytes read", shown)
    assert [rank for rank, _, _ in ranks] == ["0", "1", "2", "3"]
    for rank, held, read in ranks:
        # A quarter of the block (the file without the embedding), and two norms.
        assert int(held.replace(",", "")) == pytest.approx((size - 8192 * 2048 * 2) / 4, rel=1e-3)
        # On a fresh machine, the first rank also reads library pages for the first time.
        assert int(read.replace(",", "")) < (0.6 if rank == "0" else 0.4) * size
    assert re.search(r"q_proj\.weight\[0\] +\[512, 2048\] +view", shown)
    assert re.search(r"down_proj\.weight\[0\] +\[2048, 1408\] +gathered", shown)


def test_the_shards_of_the_sharded_llama_rebuild_the_block(tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    sharded_llama.write_block(path)
    whole = safetensors.torch.load_file(path)
    ranks = [sharded_llama.shards_of(path, rank) for rank in range(4)]
    for name, strategy in sharded_llama.STRATEGIES.items():
        full = f"model.layers.0.{name}"
        parts = [torch.from_dlpack(shards[f"{full}[{i}]"]) for i, shards in enumerate(ranks)]
        rebuilt = parts[3] if strategy.is_replicate else torch.cat(parts, dim=strategy.sharded_axis)
        np.testing.assert_array_equal(rebuilt.view(torch.int16), whole[full].view(torch.int16), name)


@pytest.mark.parametrize("way", [[], ["tp"]], ids=["fsdp2", "tensor_parallel"])
def test_two_ranks_have_their_parts_and_compute_the_same(way: list[str], models: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "examples" / "fsdp2.py"), str(models / "minilm.safetensors"), *way]
    environment = os.environ | {"MAX_WEIGHTS_MODELS": str(models), "OMP_NUM_THREADS": "1"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    ranks = re.findall(r"rank (\d) of 2: ([\d,]+) bytes, ([\d.]+)", shown)
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1"]
    assert len({norm for _, _, norm in ranks}) == 1
    size = (models / "minilm.safetensors").stat().st_size
    assert all(int(part.replace(",", "")) < 0.9 * size for _, part, _ in ranks)
