"""Weight files of packages on PyPI, fetched on demand: real published files."""

from __future__ import annotations

import hashlib
import io
import json
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

# Each with the files that run code when they are loaded.
WHEELS: dict[str, tuple[str, ...]] = {
    "lpips==0.1.4": (),
    "torchmetrics==1.9.0": (),
    "facenet-pytorch==2.6.0": (),
    "dists-pytorch==0.1": (),
    "invisible-watermark==0.2.0": (),
    "resemblyzer==0.1.4": (),
    "openwakeword==0.4.0": (),
    "silero-vad==6.2.3": ("silero_vad.jit",),
    "basic-pitch==0.4.0": (),
    "chgnet==0.4.2": (),
}
SUFFIXES = (".pt", ".pth", ".tar", ".jit", ".onnx", ".tflite", ".safetensors", ".pb", ".bin", ".lz4", ".h5", ".npz")
SECONDS = 60


def _read(address: str) -> bytes:
    request = urllib.request.Request(address, headers={"Accept": "application/vnd.pypi.simple.v1+json, */*"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        data: bytes = answer.read()
    return data


def fetch(wheel: str, folder: Path) -> list[Path]:
    """Fetch the weight files of a wheel into a separate folder, once, and return them.

    Raises OSError where the index cannot be reached.
    """
    name, version = wheel.split("==")
    target = folder / wheel
    if not target.is_dir():
        listing = f"https://pypi.org/simple/{name}/"
        files = json.loads(_read(listing))["files"]
        file = next(each for each in files if f"-{version}-" in each["filename"] and each["filename"].endswith(".whl"))
        data = _read(urllib.parse.urljoin(listing, file["url"]))
        if hashlib.sha256(data).hexdigest() != file["hashes"]["sha256"]:
            raise OSError(f"{wheel}: not the file that the index names")
        being_made = folder / f"{wheel}.part"
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                if member.endswith(SUFFIXES):
                    archive.extract(member, being_made)
        being_made.rename(target)
    return sorted(path for path in target.rglob("*") if path.is_file())
