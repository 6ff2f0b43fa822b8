"""What the command line takes of time and memory, whatever a file says: many keys, tensors over few bytes."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from max_weights.cli import app

MEASURED = """
import sys
from typer.testing import CliRunner
from max_weights.cli import app
result = CliRunner().invoke(app, sys.argv[1:])
status = open("/proc/self/status").read()  # of this program alone: getrusage counts what the process was before it, too
print(result.output, int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""


def shown(*arguments: object) -> tuple[dict[str, str], int]:
    """The rows of `show` by label, and the most memory that the process held, in MB."""
    command = [sys.executable, "-c", MEASURED, "show", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=120)
    *lines, peak = done.stdout.splitlines()
    rows = dict(line.strip().split("  ", 1) for line in lines if line.startswith("  ") and "  " in line.strip())
    return {label: text.strip() for label, text in rows.items()}, int(peak)


@pytest.mark.timeout(60)  # it takes the square of their number otherwise
def test_ls_json_of_many_keys_ends(make_file: Callable[..., Path]) -> None:
    metadata = {f"key {i}": "value" for i in range(16_000)}
    path = make_file({"w": np.ones(1, np.float32)}, metadata=metadata)
    result = CliRunner().invoke(app, ["ls", "--json", str(path)])
    assert json.loads(result.stdout)["metadata"] == metadata


def test_a_long_key_or_dtype_pads_no_other_line(make_file: Callable[..., Path]) -> None:
    metadata = {"k" * 1_000_000: "v", **{f"key {i}": "value" for i in range(50)}}
    odd = {f"w{i}": (f"X{i}" + "x" * 100_000 * (i == 0), [1], b"abcd") for i in range(50)}
    path = make_file(odd, metadata=metadata)
    assert len(CliRunner().invoke(app, ["show", str(path)]).stdout) < 1_010_000
    assert len(CliRunner().invoke(app, ["ls", str(path)]).stdout) < 120_000


def test_show_of_an_expanded_tensor_reads_its_elements_once(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    tensor = torch.tensor([[0.0], [1.0], [float("nan")], [5.0]]).expand(4, 1 << 40)
    torch.save({"w": tensor}, path)
    rows, peak = shown(path, "w")
    assert peak < 600
    assert (rows["min"], rows["max"], rows["mean"], rows["zeros"]) == ("0", "5", "2", f"{1 << 40:,} (25.00%)")
    assert rows["NaN"] == f"{1 << 40:,} (25.00%)"
    assert "values" not in rows


def test_show_of_a_tensor_that_overlaps_itself_takes_some_of_it_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(2_000.0).as_strided((1000, 1000, 1, 1000), (1, 1, 7, 0))}, path)
    rows, _ = shown(path, "w")
    assert "values" not in rows, "a million elements, each a thousand times"
    assert rows["max"] == "1998"
    torch.save({"w": torch.arange(4_000.0).as_strided((1000, 1000, 2000), (1, 1, 1))}, path)
    rows, peak = shown(path, "w")
    assert peak < 600
    assert rows["values"].startswith("1,048,000 of them: ")
    assert (rows["min"], rows["max"]) == ("0", "2522")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_show_of_a_large_tensor_takes_chunks_in_every_order_of_its_axes(tmp_path: Path, order: tuple[int, ...]) -> None:
    path = tmp_path / "model.pt"
    values = torch.arange(100 * 3000 * 10.0).reshape(100, 3000, 10)
    torch.save({"w": values.permute(order), "spread": values.reshape(-1)[::1000]}, path)
    rows, _ = shown(path, "w")
    assert (rows["min"], rows["max"], rows["mean"]) == ("0", "3e+06", "1.5e+06")
    rows, _ = shown(path, "spread")
    assert (rows["max"], rows["zeros"]) == ("2.999e+06", "1 (0.03%)")


def test_show_of_packed_blocks_decodes_some_of_them_at_a_time(tmp_path: Path) -> None:
    blocks = 8_000_000
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    header += struct.pack("<Q", 1) + b"w" + struct.pack("<IQIQ", 1, blocks * 32, 8, 0)
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        file.write(np.float16(2).tobytes() + bytes([1]) * 32)
        file.truncate((len(header) + 31) // 32 * 32 + blocks * 34)
    rows, peak = shown(path, "w")
    assert (rows["min"], rows["max"]) == ("0", "2")
    assert rows["zeros"].startswith(f"{(blocks - 1) * 32:,} (")
    assert peak < 700, "the values take 1 GB together"
