"""A GGUF file into a model of transformers, and its tokenizer: `from_pretrained(gguf_file=...)`, patched and not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import harness
from report import Column, Report, Target

TITLE = "A GGUF file into a model of transformers"
STOCK = "transformers"
FILE = "smollm2-135m.Q4_1.gguf"


def _stock(path: Path, kind: str) -> Callable[[], object]:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    # Everything that the call would import, which both pay alike.
    import gguf  # noqa: F401
    import transformers.integrations.gguf
    import transformers.modeling_gguf_pytorch_utils
    import transformers.models.gpt2.tokenization_gpt2
    import transformers.models.llama.modeling_llama

    of = getattr(transformers, kind)
    return lambda: of.from_pretrained(path.parent, gguf_file=path.name)


def _patched(path: Path, kind: str) -> Callable[[], object]:
    import max_weights

    max_weights.patch()
    return _stock(path, kind)


def _both(kind: str) -> dict[str, harness.Loader]:
    return {harness.OURS: lambda path: _patched(path, kind), STOCK: lambda path: _stock(path, kind)}


CASES: harness.Cases = {"model": _both("AutoModelForCausalLM"), "tokenizer": _both("AutoTokenizer")}


def measure(folder: Path, small: bool) -> Report:  # noqa: ARG001 (the file is a real one)
    """Time the real SmolLM2 file, which `tools/get_models.py` fetches: the first call of fresh processes."""
    path = Path(os.environ.get("MAX_WEIGHTS_MODELS", ".models")) / FILE
    if not path.exists():
        raise harness.BenchError(f"{path} is missing: fetch it with `python tools/get_models.py {path.parent}`")
    here = Path(__file__)
    columns, samples = [], {}
    for case, loaders in CASES.items():
        timings = harness.first_calls(here, case, loaders, path, rounds=1 if small else 3)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(case, "ms", {loader: timing.median for loader, timing in timings.items()}))
    memory = harness.peak_memory(here, "model", CASES["model"], path, runs=1)
    peaks = {loader: float(one.peak) for loader, one in memory.items()}
    columns.append(Column("model, peak memory", "MB", peaks, charted=False))
    model = columns[0].values
    return Report(
        "gguf_pretrained",
        columns,
        targets=(
            Target("model: from_pretrained, patched ÷ not", model[harness.OURS] / model[STOCK], 0.15, "at most"),
            Target("peak memory: patched ÷ not", peaks[harness.OURS] / peaks[STOCK], 1.1, "at most"),
        ),
        notes=(
            "`AutoModelForCausalLM.from_pretrained(folder, gguf_file=...)` of SmolLM2 135M, and `AutoTokenizer` "
            "likewise: the first call of a fresh process, after its imports. The max_weights row follows "
            "`max_weights.patch()`. Both produce the same float32 model of 540 MB.",
        ),
        samples=samples,
    )
