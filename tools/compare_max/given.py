"""The inputs of the programs: the folder of the model files, a scratch folder, and fingerprints to compare tensors."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

MODELS = Path(os.environ["MAX_WEIGHTS_MODELS"])
SCRATCH = Path(tempfile.mkdtemp(prefix="compare_max"))


def digest(data: bytes) -> str:
    """A short fingerprint of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def written(name: str, tensors: dict[str, Any], **options: Any) -> Path:
    """A safetensors file of NumPy arrays, in the scratch folder."""
    from safetensors.numpy import save_file

    path = SCRATCH / name
    save_file(tensors, path, **options)
    return path
