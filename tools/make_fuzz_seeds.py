"""Make the seeds of the fuzz targets that come from real files: `python tools/make_fuzz_seeds.py .models`.

They are small: headers without their data, the same tensors with every dimension cut to 2, GGUF files of a few blocks
of each type, and first bytes. Those of `torch_open`, `names`, `buffer` and `groups` are generated. The other seeds in
`fuzz/corpus` are the cases of `tests/format/safetensors_hostile.rs` and `tests/format/gguf_hostile`, each
under the name of its test.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
SNIFFED = 512
"""Bytes of a file from which its format is detected."""
SHORT = 8192
"""Maximum bytes of a whole file."""


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


def cut_gguf(path: Path, folder: Path) -> tuple[bytes, int]:
    """A GGUF file with the first two blocks (or elements) of one tensor of each type, and with the first four values of
    each array; and the bytes of its data.
    """
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(path)
    target = folder / "cut.gguf"
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value, inner = field.contents(), field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, value[:4] if inner is not None else value, field.types[0], inner)
    data = 0
    for kind in sorted({tensor.tensor_type for tensor in reader.tensors}):
        tensor = next(tensor for tensor in reader.tensors if tensor.tensor_type == kind)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        part = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)[: 2 * size].copy()
        packed = part.reshape(2, size) if elements > 1 else part.view(tensor.data.dtype)
        writer.add_tensor(tensor.name, packed, raw_dtype=kind if elements > 1 else None)
        data += -(-part.nbytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target.read_bytes(), data


def write(target: str, name: str, *parts: bytes) -> None:
    """One seed."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(parts))


def packed(archive: bytes) -> bytes:
    """The same archive with every member compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), old.read(name), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def torch_seeds() -> None:
    """The output of torch.save in each form, and compressed."""
    import torch

    row = torch.arange(24.0)
    values = {
        "plain": {"a.weight": row, "b": torch.ones(3, dtype=torch.int8)},
        "views": {"whole": row, "part": row[4:8], "turned": row.reshape(4, 6).t(), "one": row[5].expand(3, 2)},
        "wide": {"x": torch.ones(1).expand(1 << 20, 1 << 20)},
        "dtypes": {str(dtype): torch.ones(4).to(dtype) for dtype in (torch.bfloat16, torch.float64, torch.bool)},
        "complex": {"c": torch.ones(2, dtype=torch.complex128), "i": torch.ones(2, dtype=torch.int64)},
        "nested": {"a": [row[:2], (row[2:4], {"b": row[4:6]})], "text": "x" * 40},
        "parameter": torch.nn.Linear(2, 3).state_dict(),
        "large": {"zeros": torch.zeros(300_000)},
    }
    for name, value in values.items():
        for form in ("zip", "legacy"):
            out = io.BytesIO()
            torch.save(value, out, _use_new_zipfile_serialization=form == "zip")
            if form == "legacy" or len(out.getvalue()) <= SHORT:
                write("torch_open", f"{name}-{form}", out.getvalue()[:SHORT])
            if form == "zip":
                write("torch_open", f"{name}-packed", packed(out.getvalue()))


def name_seeds() -> None:
    """Names of each kind, as files of each format."""
    names = {
        "plain": [b"file", b"encoder.0.weight", b"encoder.0.bias", b"encoder.1.weight"],
        "escapes": [b"a\x1b[31mb", b"\x1b]0;x\x07.weight", b"x\ry", b"\xc2\x9b2J"],
        "directions": ["a\u202eb".encode(), "\u2066x.y".encode(), "\u200f".encode(), "z\u061c".encode()],
        "markup": [b"<b>", b"<script>alert(1)</script>.w", b'"><img src=x>', b"&amp;"],
        "bytes": [b"\xc3\x28", b"\xe2\x80.x", b"\xf0\x9f", b"a\x80b"],
        "hidden": ["\u200b".encode(), "a\u00adb".encode(), "\ufeff.x".encode(), "\U000e0041".encode()],
        "scripts": ["模型.权重".encode(), "שם".encode(), "e\u0301".encode(), "नमस्ते".encode()],
    }
    for name, texts in names.items():
        for kind in range(3):
            first = bytes([kind, 2 if kind == 2 else kind]) + texts[0]
            write("names", f"{name}-{kind}", b"\xff".join([first, *texts]))


def program_seeds() -> None:
    """Rows of arbitrary choices."""
    for target, seed in (("buffer", 11), ("groups", 12), ("delta_dialects", 13)):
        choose = random.Random(seed)
        for number in range(40):
            write(target, f"{number:02}", choose.randbytes(20 + 4 * number))


def main() -> None:
    """Write the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="the folder that tools/get_models.py fills")
    torch_seeds()
    name_seeds()
    program_seeds()
    models: Path = parser.parse_args().models
    for name in ("minilm", "silero_vad_16k"):
        header, data = read_header(models / f"{name}.safetensors")
        write("safetensors_header", name, struct.pack("<Q", data), header)
        header, data = cut(header)
        write("safetensors_header", f"{name}-cut", struct.pack("<Q", data), header)
        payload = (bytes(range(256)) * (data // 256 + 1))[:data]
        write("safetensors_open", f"{name}-cut", struct.pack("<Q", len(header)), header, payload)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("smollm2-135m.Q4_1.gguf", "derived/minilm-ffn-allquants.gguf"):
            content, data = cut_gguf(models / name, Path(folder))
            stem = f"{Path(name).stem}-cut"
            write("gguf_open", stem, content)
            write("gguf_header", stem, struct.pack("<Q", data), content[: len(content) - data])
    for name in ("minilm.safetensors", "smollm2-135m.Q4_1.gguf", "crepe-tiny.pth", "lpips-v0.1-vgg.legacy.pth"):
        with (models / name).open("rb") as file:
            write("sniff", name, file.read(SNIFFED))


if __name__ == "__main__":
    main()
