"""Time and memory of the command line are bounded for any file: many keys, tensors over few bytes."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import listed, measured, rows


def shown(*arguments: object) -> tuple[dict[str, str], int]:
    """The rows of `show` by label, and the peak memory of the process in MB."""
    done, peak = measured("show", *arguments)
    assert (done.status, done.stderr) == (0, "")
    return rows(done.stdout), peak


@pytest.mark.timeout(60)  # otherwise it is quadratic
def test_ls_json_of_many_keys_ends(make_file: Callable[..., Path]) -> None:
    metadata = {f"key {i}": "value" for i in range(16_000)}
    path = make_file({"w": np.ones(1, np.float32)}, metadata=metadata)
    assert json.loads(listed("ls", "--json", path))["metadata"] == metadata
    assert listed("show", path, "key 15999") == "value\n"


def test_a_long_key_or_dtype_pads_no_other_line(make_file: Callable[..., Path]) -> None:
    metadata = {"k" * 1_000_000: "v", **{f"key {i}": "value" for i in range(50)}}
    odd = {f"w{i}": (f"X{i}" + "x" * 100_000 * (i == 0), [1], b"abcd") for i in range(50)}
    path = make_file(odd, metadata=metadata)
    assert len(listed("show", path)) < 1_010_000
    assert len(listed("ls", path)) < 120_000


def test_show_of_an_expanded_tensor_reads_its_elements_once(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    tensor = torch.tensor([[0.0], [1.0], [float("nan")], [5.0]]).expand(4, 1 << 40)
    torch.save({"w": tensor}, path)
    found, peak = shown(path, "w")
    assert peak < 600
    assert (found["min"], found["max"], found["mean"], found["zeros"]) == ("0", "5", "2", f"{1 << 40:,} (25.00%)")
    assert found["NaN"] == f"{1 << 40:,} (25.00%)"
    assert "values" not in found


def test_show_of_a_tensor_that_overlaps_itself_takes_some_of_it_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(2_000.0).as_strided((1000, 1000, 1, 1000), (1, 1, 7, 0))}, path)
    found, _ = shown(path, "w")
    assert "values" not in found, "a million elements, each a thousand times"
    assert found["max"] == "1998"
    torch.save({"w": torch.arange(4_000.0).as_strided((1000, 1000, 2000), (1, 1, 1))}, path)
    found, peak = shown(path, "w")
    assert peak < 600
    assert found["values"].startswith("1,048,000 of them: ")
    assert (found["min"], found["max"]) == ("0", "2522")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_show_of_a_large_tensor_takes_chunks_in_every_order_of_its_axes(tmp_path: Path, order: tuple[int, ...]) -> None:
    path = tmp_path / "model.pt"
    values = torch.arange(100 * 3000 * 10.0).reshape(100, 3000, 10)
    torch.save({"w": values.permute(order), "spread": values.reshape(-1)[::1000]}, path)
    found, _ = shown(path, "w")
    assert (found["min"], found["max"], found["mean"]) == ("0", "3e+06", "1.5e+06")
    found, _ = shown(path, "spread")
    assert (found["max"], found["zeros"]) == ("2.999e+06", "1 (0.03%)")


def test_show_of_packed_blocks_decodes_some_of_them_at_a_time(tmp_path: Path) -> None:
    blocks = 8_000_000
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    header += struct.pack("<Q", 1) + b"w" + struct.pack("<IQIQ", 1, blocks * 32, 8, 0)
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        file.write(np.float16(2).tobytes() + bytes([1]) * 32)
        file.truncate((len(header) + 31) // 32 * 32 + blocks * 34)
    found, peak = shown(path, "w")
    assert (found["min"], found["max"]) == ("0", "2")
    assert found["zeros"].startswith(f"{(blocks - 1) * 32:,} (")
    assert peak < 700, "the values take 1 GB together"
