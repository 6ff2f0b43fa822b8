"""Fingerprints of tensors in memory and of a file, and `from_pretrained` with verification, against plain reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import files
import harness
from report import Column, Report, Target

TITLE = "Fingerprints"
PLAIN = "reading the same bytes"
CASES: harness.Cases = {}
DTYPES = ("bfloat16", "float16", "float32", "uint8")


def _alternate(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turn, so that what else the machine does hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _fingerprint(source: Any) -> None:
    """As the first time: what is known of the file is forgotten."""
    import max_weights
    from max_weights._fingerprint_cache import fingerprint_cache

    fingerprint_cache.clear()
    max_weights.fingerprint(source)


def _read(path: Path, threads: int) -> None:
    """Read a file with plain calls of the system, into memory that is reused."""
    size = path.stat().st_size
    share = -(-size // threads)

    def part(number: int) -> None:
        memory = memoryview(bytearray(1 << 20))
        with path.open("rb", buffering=0) as file:
            file.seek(number * share)
            left = min(share, size - number * share)
            while left > 0:
                left -= file.readinto(memory[: min(left, len(memory))]) or left

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))


def _model(folder: Path, small: bool) -> Path:
    """A model of transformers, of 2 GB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    path = folder / f"verified{'_small' if small else ''}"
    if not path.exists():
        hidden, feed_forward, layers = (64, 128, 2) if small else (2048, 5632, 20)
        sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": feed_forward, "num_hidden_layers": layers}
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=16, num_key_value_heads=4))
        model.to(torch.bfloat16).save_pretrained(path)
    return path


def _load(path: Path, dtype: str, *, verify: bool) -> Callable[[], None]:
    import max_weights

    def run() -> None:
        from transformers import AutoModelForCausalLM

        max_weights.patch(verify=verify)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        for parameter in model.parameters():
            parameter.detach().view(-1)[:: 4096 // parameter.element_size()].float().sum()
        max_weights.unpatch()

    return run


def _in_memory(dtype: str, size: int) -> dict[str, Callable[[], object]]:
    import torch

    kind = getattr(torch, dtype)
    tensor = torch.randint(0, 100, (size // kind.itemsize // 4096, 4096)).to(kind)
    return {harness.OURS: lambda: _fingerprint({"x": tensor}), PLAIN: tensor.view(torch.int64).numpy().max}


def measure(folder: Path, small: bool) -> Report:
    """Time each, and a plain read of the same bytes."""
    import max_weights

    rounds, size = (1, 1 << 20) if small else (7, 1 << 28)
    samples: dict[str, dict[str, list[float]]] = {}
    targets: list[Target] = []

    def take(label: str, calls: Mapping[str, Callable[[], object]]) -> tuple[float, float]:
        samples[label] = _alternate(calls, rounds)
        own, plain = (statistics.median(samples[label][row]) for row in (harness.OURS, PLAIN))
        return own, plain

    max_weights.set_threads(1)
    for dtype in DTYPES:
        own, _ = take(f"256 MB of {dtype} in memory, one core", _in_memory(dtype, size))
        targets.append(Target(f"{dtype} in memory, one core", size / 1e9 / own, 8.0, "at least", "GB/s"))
    max_weights.set_threads(None)
    path = files.make(folder, "a", small=small)
    weights = max_weights.load_weights(path)
    calls: dict[str, Callable[[], object]] = {
        harness.OURS: lambda: _fingerprint(weights),
        PLAIN: lambda: _read(path, 2),
    }
    own, plain = take("1.9 GB from the page cache, two cores", calls)
    targets.append(Target("fingerprints of a file ÷ reading it", own / plain, 1.15, "at most"))
    model = _model(folder, small)
    for dtype in ("auto", "float16"):
        calls = {harness.OURS: _load(model, dtype, verify=True), PLAIN: _load(model, dtype, verify=False)}
        own, plain = take(f"2 GB by from_pretrained(dtype={dtype!r}), verified", calls)
        targets.append(Target(f"from_pretrained(dtype={dtype!r}), verified ÷ not", own / plain, 1.25, "at most"))
    columns = []
    for label, rows in samples.items():
        columns.append(Column(label, "ms", {row: statistics.median(of) for row, of in rows.items()}, charted=False))
    return Report(
        "fingerprint",
        columns,
        targets=targets,
        limits=frozenset({PLAIN}),
        notes=(
            f"**{PLAIN}**: memory by NumPy, as the largest 64-bit word; a file by plain reads on two threads into "
            "reused memory; from_pretrained patched, without verification. The model is bfloat16: with "
            "`dtype='auto'` its parameters are pages of the file, with float16 all are converted. from_pretrained "
            "ends when one element of every page has been read.",
        ),
        samples=samples,
    )
