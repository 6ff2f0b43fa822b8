"""Very many tensors: bounded memory, and a configurable cap."""

import json
import subprocess
import sys
from pathlib import Path

import max_weights
from refusals import refuses

# Opens and lists a file in a separate process; prints the number of tensors, and the growth of its peak memory in
# bytes.
SCRIPT = """
import sys, max_weights
from max_weights import graph
max_weights.load_weights(sys.argv[1])
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
weights = max_weights.load_weights(sys.argv[2])
infos = max_weights.infos(weights)
total = sum(info.bytes for info in infos)
print(len(infos), status("VmHWM") - before)
"""


def write(path: Path, count: int, entry: str, item: int) -> int:
    """A file of `count` tensors of `item` bytes each; returns the length of its header."""
    parts = []
    for i in range(count):
        parts.append(entry % (i, i * item, (i + 1) * item))
    header = ("{" + ",".join(parts) + "}").encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + count * item)
    return len(header)


def measured(tmp_path: Path, path: Path) -> tuple[int, int]:
    small = tmp_path / "small.safetensors"
    write(small, 1, '"t%d":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}', 8)
    done = subprocess.run([sys.executable, "-c", SCRIPT, small, path], capture_output=True, text=True, check=True)
    count, memory = done.stdout.split()
    return int(count), int(memory)


def test_250_000_tensors_open_within_four_times_the_header(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    length = write(path, 250_000, '"model.layers.%d.weight":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}', 8)
    count, memory = measured(tmp_path, path)
    assert count == 250_000
    assert memory < 4 * length


def test_a_header_of_92_megabytes_of_empty_tensors_opens_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    length = write(path, 1_600_000, '"t%08d":{"dtype":"U8","shape":[0],"data_offsets":[%d,%d]}', 0)
    assert length > 90_000_000
    count, memory = measured(tmp_path, path)
    assert count == 1_600_000
    assert memory < 4 * length


def test_the_cap_on_headers_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    length = write(path, 3, '"t%d":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}', 8)
    assert len(max_weights.load_weights(path, max_header_bytes=length)) == 3
    with refuses(max_weights.FormatError, "safetensors.header-too-long"):
        max_weights.load_weights(path, max_header_bytes=length - 1)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {f"t{i}": "small.safetensors" for i in range(3)}}))
    with refuses(max_weights.FormatError, "index.too-long"):
        max_weights.load_weights(index, max_header_bytes=50)


def test_printing_many_tensors_is_short(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    write(path, 100_000, '"t%d":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}', 8)
    weights = max_weights.load_weights(path)
    assert len(str(weights).splitlines()) < 70
    assert len(repr(weights).splitlines()) == 1
    assert "100,000 weights" in repr(weights)
    assert "more branches" in str(weights)
    assert len(weights._repr_html_()) < 100_000
