"""Open and list a real GGUF file (with its tokenizer's arrays), decode its blocks, and load it as tensors of torch."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ggml_c
import harness
from report import Column, Report, Target, ratio

TITLE = "GGUF"
RIVAL = "gguf-py"
# Listing by ctypes has a call of Python for each field, so the C alone is measured too.
C_LISTED, C_ALONE = f"{ggml_c.NAME}, listed by ctypes", f"{ggml_c.NAME}, opened only"
TRANSFORMERS = "transformers"
READ_AND_WRITE = "read the file, write the bytes of the tensors, 1 thread"
FILE = "smollm2-135m.Q4_1.gguf"


def _ours(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: [
        (info.name, info.encoding, info.logical_shape) for info in max_weights.infos(max_weights.load_weights(path))
    ]


def _gguf(path: Path) -> Callable[[], object]:
    import gguf

    return lambda: [(tensor.name, tensor.tensor_type, tensor.shape) for tensor in gguf.GGUFReader(path).tensors]


def _ggml(path: Path) -> Callable[[], object]:
    return lambda: ggml_c.listing(path)


def _ggml_only_open(path: Path) -> Callable[[], object]:
    return lambda: ggml_c.only_open(path)


def _ours_decoded(path: Path) -> Callable[[], object]:
    import max_weights

    nodes = [weight for _, weight in max_weights.load_weights(path).items()]
    return lambda: [node.data().astype("float32") for node in nodes]


def _gguf_decoded(path: Path) -> Callable[[], object]:
    import gguf

    tensors: list[Any] = gguf.GGUFReader(path).tensors
    return lambda: [gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors]


def _ours_in_torch(path: Path) -> Callable[[], object]:
    from max_weights.torch import load_file

    return lambda: load_file(path, dtype="bfloat16", rename="hf")


def _transformers(path: Path) -> Callable[[], object]:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    untyped: Any = transformers
    load: Any = load_gguf_checkpoint
    with contextlib.redirect_stdout(io.StringIO()), torch.device("meta"):
        config = untyped.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        model = untyped.AutoModelForCausalLM.from_config(config)
    return lambda: load(path, return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16)


def _read_and_write(path: Path) -> Callable[[], object]:
    import numpy as np

    import max_weights

    block = bytearray(1 << 20)
    sizes = [info.logical_shape for info in max_weights.infos(max_weights.load_weights(path))]
    out = np.ones(sum(2 * int(np.prod(tuple(map(int, shape)))) for shape in sizes), np.uint8)

    def run() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass
        out.fill(1)

    return run


CASES: harness.Cases = {
    "open": {harness.OURS: _ours, C_LISTED: _ggml, C_ALONE: _ggml_only_open, RIVAL: _gguf},
    "decode": {harness.OURS: _ours_decoded, RIVAL: _gguf_decoded},
    "torch": {harness.OURS: _ours_in_torch, TRANSFORMERS: _transformers, READ_AND_WRITE: _read_and_write},
}


def measure(folder: Path, small: bool) -> Report:  # noqa: ARG001 (the file is a real one)
    """Time the real SmolLM2 file, which `tools/get_models.py` fetches."""
    path = Path(os.environ.get("MAX_WEIGHTS_MODELS", ".models")) / FILE
    if not path.exists():
        raise harness.BenchError(f"{path} is missing: fetch it with `python tools/get_models.py {path.parent}`")
    effort = harness.QUICK if small else harness.Effort(least=3, most=9, seconds=20.0)
    reason = ggml_c.why_not()
    if reason:
        print(f"gguf_files: without {ggml_c.NAME}: {reason}", flush=True)
    columns, samples = [], {}
    cases = {"open + list": "open", "decode to float32": "decode", "as bfloat16 tensors of torch": "torch"}
    for label, case in cases.items():
        loaders = [name for name in CASES[case] if not (reason and name in (C_LISTED, C_ALONE))]
        timings = harness.alternate(Path(__file__), case, loaders, path, effort=effort)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    c = (
        ()
        if reason
        else (Target(f"open + list: {C_ALONE} ÷ ours", ratio(columns[0].values, C_ALONE), 1.0, "at least"),)
    )
    return Report(
        "gguf_files",
        columns,
        targets=(
            *c,
            Target(f"open + list: {RIVAL} ÷ ours", ratio(columns[0].values, RIVAL), 100.0, "at least"),
            Target(f"decode: {RIVAL} ÷ ours", ratio(columns[1].values, RIVAL), 1.0, "at least"),
            Target(f"to torch: {TRANSFORMERS} ÷ ours", ratio(columns[2].values, TRANSFORMERS), 20.0, "at least"),
            Target("to torch: ours ÷ the limit", 1 / ratio(columns[2].values, READ_AND_WRITE), 1.3, "at most"),
        ),
        limits=frozenset({READ_AND_WRITE}),
        notes=("The file has 272 tensors, 135 M elements, and a tokenizer of 49,152 strings.",),
        samples=samples,
    )
