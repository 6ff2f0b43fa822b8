"""Make the seeds of the fuzz targets that come from real files: `python tools/make_fuzz_seeds.py .models`.

They are small: headers without their data, the same tensors with every dimension cut to 2, and first bytes. The other
seeds in `fuzz/corpus` are the cases of `tests/safetensors_hostile.rs`, each under the name of its test.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
SNIFFED = 512
"""Bytes of a file that its format is recognised by."""


def read_header(path: Path) -> tuple[bytes, int]:
    """The header of a safetensors file, and the bytes of its data."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length), path.stat().st_size - 8 - length


def cut(header: bytes) -> tuple[bytes, int]:
    """The header of the same tensors with every dimension cut to 2, and the bytes of their data."""
    entries: dict[str, Any] = json.loads(header)
    end = 0
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        begin, stop = entry["data_offsets"]
        elements = 1
        for dim in entry["shape"]:
            elements *= dim
        shape = [min(dim, 2) for dim in entry["shape"]]
        size = (stop - begin) // elements
        for dim in shape:
            size *= dim
        entry["shape"], entry["data_offsets"] = shape, [end, end + size]
        end += size
    return json.dumps(entries, separators=(",", ":")).encode(), end


def write(target: str, name: str, *parts: bytes) -> None:
    """One seed."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(parts))


def main() -> None:
    """Write the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="the folder that tools/get_models.py fills")
    models: Path = parser.parse_args().models
    for name in ("minilm", "silero_vad_16k"):
        header, data = read_header(models / f"{name}.safetensors")
        write("safetensors_header", name, struct.pack("<Q", data), header)
        header, data = cut(header)
        write("safetensors_header", f"{name}-cut", struct.pack("<Q", data), header)
        payload = (bytes(range(256)) * (data // 256 + 1))[:data]
        write("safetensors_open", f"{name}-cut", struct.pack("<Q", len(header)), header, payload)
    for name in ("minilm.safetensors", "smollm2-135m.Q4_1.gguf", "crepe-tiny.pth", "lpips-v0.1-vgg.legacy.pth"):
        with (models / name).open("rb") as file:
            write("sniff", name, file.read(SNIFFED))


if __name__ == "__main__":
    main()
