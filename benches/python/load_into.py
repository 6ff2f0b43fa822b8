"""A sharded checkpoint into a model of transformers: `from_pretrained`, `load_into`, and `lazy_state_dict`.

The clock stops when every page of every parameter has been touched: otherwise views would defer their cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import files
import harness
from report import Column, Report, Target

TITLE = "A sharded checkpoint into a model of transformers"
STOCK = "from_pretrained"
PATCHED = "from_pretrained, after patch()"
LAZY = "from_pretrained(state_dict=lazy_state_dict())"
CASE = "model"


def _config(path: Path) -> dict[str, object]:
    """The config of the model that a file of this bench is of."""
    small = "small" in path.name
    layers, hidden, kv, feed_forward = (4, 64, 32, 128) if small else (files.LAYERS_A, 1536, 512, 4500)
    heads = hidden // (32 if small else 128)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": 32_000,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv * heads // hidden,
        "tie_word_embeddings": False,
    }


def write_config(path: Path) -> None:
    """Add the config that `from_pretrained` needs to a folder of shards."""
    (path / "config.json").write_text(json.dumps(_config(path)))


def _touched(model: object) -> object:
    """Return the model after reading a byte of each page of its parameters."""
    import torch

    assert isinstance(model, torch.nn.Module)
    for parameter in model.parameters():
        int(parameter.detach().view(-1).view(torch.uint8)[::4096].sum())
    return model


def _stock(path: Path) -> Callable[[], object]:
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return lambda: _touched(LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16))


def _patched(path: Path) -> Callable[[], object]:
    import max_weights

    max_weights.patch()
    return _stock(path)


def _lazy(path: Path) -> Callable[[], object]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    import max_weights

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def run() -> object:
        state = max_weights.lazy_state_dict(max_weights.load_weights(path))
        config = LlamaConfig.from_pretrained(path)
        return _touched(LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state, dtype=torch.bfloat16))

    return run


def _into(path: Path, **options: object) -> Callable[[], object]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from max_weights.torch import load_into

    def run() -> object:
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig.from_pretrained(path))
        load_into(model, path, **options)  # type: ignore[arg-type]
        return _touched(model)

    return run


def _into_own(path: Path) -> Callable[[], object]:
    return _into(path, copy=True)


OWN = "load_into(copy=True)"
CASES: harness.Cases = {CASE: {harness.OURS: _into, OWN: _into_own, LAZY: _lazy, PATCHED: _patched, STOCK: _stock}}


def measure(folder: Path, small: bool) -> Report:
    """Time b into a model, warm and cold, and take the memory."""
    effort = harness.QUICK if small else harness.Effort(least=3, most=9, seconds=60.0)
    b = files.make(folder, "b", small=small)
    write_config(b)
    size = sum(file.stat().st_size for file in b.glob("*.safetensors"))
    here = Path(__file__)
    columns, samples = [], {}
    for label, cold in (("warm", False), ("cold", True)):
        timings = harness.alternate(here, CASE, CASES[CASE], b, effort=effort, cold=cold and not small)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    memory = harness.peak_memory(here, CASE, CASES[CASE], b, runs=1)
    peaks = {loader: float(one.peak) for loader, one in memory.items()}
    columns.append(Column("peak memory", "MB", peaks, charted=False))
    cold_values = columns[1].values
    targets = []
    for loader, name in ((harness.OURS, "load_into"), (LAZY, "lazy_state_dict"), (PATCHED, PATCHED)):
        targets += [
            Target(f"cold: {name} ÷ {STOCK}", cold_values[loader] / cold_values[STOCK], 0.6, "at most"),
            Target(f"peak memory of {name} ÷ the files", peaks[loader] / size, 1.1, "at most"),
        ]
    return Report(
        "load_into",
        columns,
        targets=tuple(targets),
        notes=(
            "Each run ends when one byte of every page of the parameters has been read. With `from_pretrained` and "
            "`load_into`, the parameters are views of the files; with `copy=True` they are not.",
        ),
        samples=samples,
    )
