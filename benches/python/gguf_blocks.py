"""Decode packed blocks to float32 on one thread: ours, ggml's C, and gguf-py, 64 MiB of output.

The first five types are those that ggml decodes by plain C on every machine; for all of them, its decoder to f32 is the
one that its type table names. Ours and ggml's write to the same memory again and again; gguf-py makes its arrays anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ggml_c
import harness
from report import Column, Report, Target

TITLE = "GGUF blocks"
GGUF_PY = "gguf-py"
OUTPUT = 64 << 20
# Compared as a figure to reach, then for information.
PLAIN_C = ("Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4")
OTHERS = ("Q4_0", "Q8_0", "Q4_K", "Q5_K")


def _one_thread() -> None:
    """Keep this process on one core. Before anything counts the cores: as many as there are threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


def _load(path: Path) -> tuple[str, Any, int]:
    """The type that a file is named after, its blocks in rows, and the number of their elements."""
    import gguf
    import numpy as np

    kind = path.stem
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = np.fromfile(path, np.uint8).reshape(-1, size)
    return kind, blocks, blocks.shape[0] * elements


def _ours(path: Path) -> Callable[[], object]:
    _one_thread()
    import numpy as np

    from max_weights.driver import Buffer
    from max_weights.graph.quantization import QuantizationEncoding
    from max_weights.graph.weights import WeightData

    kind, blocks, count = _load(path)
    rows = blocks.shape[0]
    shape = (rows, count // rows)
    encoding = QuantizationEncoding(kind)
    value = WeightData(Buffer.from_numpy(blocks), kind, "uint8", blocks.shape, encoding)
    out = Buffer.from_numpy(np.zeros(shape, np.float32))
    return lambda: value.astype("float32", out=out)


def _ggml(path: Path) -> Callable[[], object]:
    _one_thread()
    import gguf
    import numpy as np

    kind, blocks, count = _load(path)
    decode = ggml_c.to_float(int(gguf.GGMLQuantizationType[kind]))
    out = np.zeros(count, np.float32)
    return lambda: decode(blocks.ctypes.data, out.ctypes.data, count)


def _gguf(path: Path) -> Callable[[], object]:
    _one_thread()
    import gguf
    import numpy as np

    kind, blocks, _ = _load(path)
    np.seterr(all="ignore")  # some scales of random blocks are infinite
    return lambda: gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])


CASES: harness.Cases = {kind: {harness.OURS: _ours, ggml_c.NAME: _ggml, GGUF_PY: _gguf} for kind in (*PLAIN_C, *OTHERS)}


def measure(folder: Path, small: bool) -> Report:
    """Time every type on random blocks: any bytes are blocks."""
    import gguf
    import numpy as np

    reason = ggml_c.why_not()
    if reason:
        print(f"gguf_blocks: without {ggml_c.NAME}: {reason}", flush=True)
    effort = harness.QUICK if small else harness.Effort(least=5, most=9, seconds=10.0)
    random = np.random.default_rng(0)
    columns, samples, targets = [], {}, []
    for kind, loaders in CASES.items():
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        blocks = (1 << 20 if small else OUTPUT) // 4 // elements
        path = folder / f"{kind}.blocks"
        random.integers(0, 256, blocks * size, dtype=np.uint8).tofile(path)
        names = [name for name in loaders if not (reason and name == ggml_c.NAME)]
        timings = harness.alternate(Path(__file__), kind, names, path, effort=effort)
        path.unlink()
        values = {loader: timing.median for loader, timing in timings.items()}
        samples[kind] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(kind, "ms", values, False, blocks * elements * 4))
        if not reason and kind in PLAIN_C:
            targets.append(
                Target(f"{kind}: ours ÷ {ggml_c.NAME}", values[ggml_c.NAME] / values[harness.OURS], 1.0, "at least")
            )
    return Report(
        "gguf_blocks",
        columns,
        targets=tuple(targets),
        notes=("GB/s of output, one thread, 64 MiB of float32 from random blocks.",),
        samples=samples,
        throughput="blocks",
    )
