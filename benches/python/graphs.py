"""Graphs: MiniLM from its file to a result, its speed and its memory; and a Llama of 80 layers, only recorded and
lowered, with and without its layers as calls of one subgraph.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import harness
from report import Column, Report, Target, best

TITLE = "Graphs"
FILE, CONFIG = "minilm.safetensors", "minilm.config.json"
FAST = "max_weights, memory='fast'"
TORCH = "transformers + torch"
DYNAMO = "onnxruntime, file of torch.onnx.export"
SCRIPT = "onnxruntime, file of torch.onnx.export(dynamo=False)"
SAVED = "onnxruntime, file of graph.onnx.save"
EXPORTED = (DYNAMO, SCRIPT)
MEMORY = "memory"
FIRST, WHOLE = "first result", "first result, with imports"
SIZES = ((1, 16), (1, 128), (8, 16), (8, 128))
BUILT, LOWERED = "built", "lowered"
SUBGRAPH, FLAT = "one subgraph", "no subgraph"
LAYERS = 80
_SIZES_OF_LLAMA = {
    "llama.embedding_length": 8192,
    "llama.feed_forward_length": 28_672,
    "llama.attention.head_count": 64,
    "llama.attention.head_count_kv": 8,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.block_count": LAYERS,
    "llama.context_length": 8192,
    "llama.rope.freq_base": 500_000.0,
    "llama.vocab_size": 128_256,
}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))  # the models are those of the examples


@cache
def _ids(batch: int, tokens: int) -> tuple[Any, Any]:
    import numpy as np

    return np.random.default_rng(0).integers(1000, 30000, (batch, tokens)), np.ones((batch, tokens), np.int64)


def _model(folder: Path, memory: str) -> Any:
    module, types = _minilm(folder)
    return module.compile(*types, memory=memory)


def _minilm(folder: Path) -> tuple[Any, list[Any]]:
    """The module of the example, with the weights of its file, and the types of what it takes."""
    import minilm

    from max_weights.graph import TensorType

    module = minilm.MiniLM()
    module.load(folder / "model.safetensors", rename=minilm.renamed)
    return module, [TensorType("int64", ["batch", "tokens"], minilm.CPU)] * 2


def _pretrained(folder: Path) -> Any:
    """The same as a module of torch."""
    import torch
    from transformers import AutoModel

    class Sentences(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(folder)

        def forward(self, tokens: Any, mask: Any) -> Any:
            hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
            share = mask.to(hidden.dtype).unsqueeze(-1)
            return torch.nn.functional.normalize((hidden * share).sum(1) / share.sum(1))

    return Sentences().eval()


def _imports(names: str) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for name in names.split():
        importlib.import_module(name)


_OURS = "onnx_ir onnxruntime minilm max_weights.engine"
_THEIRS = "torch transformers.models.bert.modeling_bert"


def _first_of_ours(memory: str, before: str) -> harness.Loader:
    def prepare(folder: Path) -> Callable[[], object]:
        _imports(before)

        def run() -> object:
            model = _model(folder, memory)
            return model, model.execute(*_ids(1, 16))

        return run

    return prepare


def _first_of_torch(before: str) -> harness.Loader:
    def prepare(folder: Path) -> Callable[[], object]:
        _imports(before)

        def run() -> object:
            import torch

            model = _pretrained(folder)
            ids, mask = map(torch.from_numpy, _ids(1, 16))
            with torch.inference_mode():
                return model, model(ids, mask)

        return run

    return prepare


def _run_of_ours(memory: str, size: tuple[int, int]) -> harness.Loader:
    def prepare(folder: Path) -> Callable[[], object]:
        model = _model(folder, memory)
        return lambda: model.execute(*_ids(*size))

    return prepare


def _run_of_torch(size: tuple[int, int]) -> harness.Loader:
    def prepare(folder: Path) -> Callable[[], object]:
        import torch

        model = _pretrained(folder)
        ids, mask = map(torch.from_numpy, _ids(*size))

        def run() -> object:
            with torch.inference_mode():
                return model(ids, mask)

        return run

    return prepare


def _run_of_runtime(file: str, size: tuple[int, int]) -> harness.Loader:
    def prepare(folder: Path) -> Callable[[], object]:
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / file)
        given = dict(zip((entry.name for entry in session.get_inputs()), _ids(*size), strict=True))
        return lambda: session.run(None, given)

    return prepare


def _llama(subgraph: bool) -> Any:
    """The module of the other example with the sizes of Llama 3 70B."""
    import smollm

    class Flat(smollm.Llama):
        def __call__(self, tokens: Any) -> Any:
            hidden = self.words(tokens)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.norm(hidden[:, -1]) @ self.words.weight.T

    module = (smollm.Llama if subgraph else Flat)(_SIZES_OF_LLAMA)
    for name, weight in module.raw_state_dict().items():
        weight.load(None, name)  # only the full name, as in load_state_dict
    return module


def _recorded(module: Any) -> Any:
    from max_weights.graph import DeviceRef, TensorType

    return module.trace(TensorType("int64", ["batch", "tokens"], DeviceRef.CPU()))


def _build(subgraph: bool) -> harness.Loader:
    def prepare(_folder: Path) -> Callable[[], object]:
        module = _llama(subgraph)
        return lambda: _recorded(module)

    return prepare


def _lower(subgraph: bool) -> harness.Loader:
    def prepare(_folder: Path) -> Callable[[], object]:
        graph = _recorded(_llama(subgraph))
        return lambda: _onnx(graph)

    return prepare


def _onnx(graph: Any) -> bytes:
    """The model without the data of its weights."""
    from max_weights.graph._lowering.model import lower

    shapes = {name: [int(dim) for dim in weight.shape] for name, weight in graph.parameters.items()}
    return lower(graph, shapes, initializers=True).serialize()


def _held_by_ours(memory: str) -> harness.Loader:
    """Compute the first result, and read every weight: a result of a few tokens does not."""

    def prepare(folder: Path) -> Callable[[], object]:
        first = _first_of_ours(memory, _OURS)(folder)

        def run() -> object:
            model: Any = first()
            for value in model[0]._weights.values():
                value.view("uint8", [value.nbytes]).to_numpy()[::4096].sum()
            return model

        return run

    return prepare


def _held_by_torch(folder: Path) -> Callable[[], object]:
    first = _first_of_torch(_THEIRS)(folder)

    def run() -> object:
        model: Any = first()
        for value in model[0].parameters():
            value.detach().sum()
        return model

    return run


_SHAPES = {f"{batch} x {tokens}": (batch, tokens) for batch, tokens in SIZES}
CASES: harness.Cases = {
    FIRST: {
        harness.OURS: _first_of_ours("shared", _OURS),
        FAST: _first_of_ours("fast", _OURS),
        TORCH: _first_of_torch(_THEIRS),
    },
    WHOLE: {
        harness.OURS: _first_of_ours("shared", ""),
        FAST: _first_of_ours("fast", ""),
        TORCH: _first_of_torch(""),
    },
    MEMORY: {harness.OURS: _held_by_ours("shared"), FAST: _held_by_ours("fast"), TORCH: _held_by_torch},
    **{
        name: {
            harness.OURS: _run_of_ours("shared", size),
            FAST: _run_of_ours("fast", size),
            DYNAMO: _run_of_runtime("dynamo.onnx", size),
            SCRIPT: _run_of_runtime("script.onnx", size),
            SAVED: _run_of_runtime("saved.onnx", size),
            TORCH: _run_of_torch(size),
        }
        for name, size in _SHAPES.items()
    },
    BUILT: {SUBGRAPH: _build(True), FLAT: _build(False)},
    LOWERED: {SUBGRAPH: _lower(True), FLAT: _lower(False)},
}


def _export(folder: Path) -> None:
    """Write the files of plain ONNX Runtime."""
    import torch

    axes = {0: "batch", 1: "tokens"}
    names: Any = {"input_names": ["tokens", "mask"], "output_names": ["embeddings"]}
    model, given = _pretrained(folder), tuple(map(torch.from_numpy, _ids(2, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, given, folder / "dynamo.onnx", dynamic_shapes=(axes, axes), verbose=False, **names)
        scripted: Any = {"dynamo": False, "dynamic_axes": {"tokens": axes, "mask": axes}}
        torch.onnx.export(model, given, str(folder / "script.onnx"), **scripted, **names)
    from max_weights.graph import onnx

    module, types = _minilm(folder)
    module.state_dict()
    onnx.save(module.trace(*types), folder / "saved.onnx")


def _weights(folder: Path) -> int:
    """The bytes of the weights that the model has."""
    return sum(weight.value.nbytes for weight in _minilm(folder)[0].raw_state_dict().values())


def _folder(folder: Path) -> Path:
    """A folder as transformers wants it, with the exported files."""
    models = Path(os.environ.get("MAX_WEIGHTS_MODELS", ".models"))
    made = folder / "minilm"
    made.mkdir(exist_ok=True)
    for source, name in ((models / FILE, "model.safetensors"), (models / CONFIG, "config.json")):
        if not source.exists():
            raise harness.BenchError(f"{source} is missing: fetch it with `python tools/get_models.py {models}`")
        target = made / name
        target.unlink(missing_ok=True)
        target.symlink_to(source.resolve())
    _imports("")
    _export(made)
    return made


def measure(folder: Path, small: bool) -> Report:
    """Time MiniLM, whose file `tools/get_models.py` fetches, and the Llama."""
    here = Path(__file__)
    effort = harness.QUICK if small else harness.Effort(least=5, most=25, seconds=10.0)
    made = _folder(folder)
    columns: list[Column] = []
    samples: dict[str, dict[str, list[float]]] = {}
    median: dict[str, dict[str, float]] = {}
    for case, loaders in CASES.items():
        if case == MEMORY:
            continue
        if case in (FIRST, WHOLE):
            timings = harness.first_calls(here, case, loaders, made, rounds=1 if small else 3)
        else:
            timings = harness.alternate(here, case, loaders, made, effort=effort)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        median[case] = {loader: timing.median for loader, timing in timings.items()}
        if case not in (BUILT, LOWERED):
            columns.append(Column(case, "ms", median[case], charted=case not in (FIRST, WHOLE)))
    memory = harness.peak_memory(here, MEMORY, CASES[MEMORY], made, runs=1)
    for label, part in (("resident", "held"), ("peak", "peak")):
        columns.append(Column(label, "MB", {name: getattr(one, part) for name, one in memory.items()}, charted=False))
    weights = _weights(made)
    first, held = median[FIRST], memory[harness.OURS].held
    saved = ", ".join(f"{median[case][FAST] / median[case][SAVED]:.2f}x ({case})" for case in _SHAPES)
    size = len(_onnx(_recorded(_llama(subgraph=True))))
    targets = [
        Target(f"build, load and first result ÷ {TORCH}", first[harness.OURS] / first[TORCH], 0.5, "at most"),
        *(
            Target(
                f"{case}: memory='fast' ÷ plain ONNX Runtime on the best exported file",
                median[case][FAST] / median[case][best(median[case], EXPORTED)],
                1.15,
                "at most",
            )
            for case in _SHAPES
        ),
        Target("memory='shared': resident ÷ bytes of the weights", held / weights, 1.3, "at most"),
        *(
            Target(f"{LAYERS} layers, {name}: {case}", median[case][name] * 1e3, bound, "at most", "ms")
            for case, bound in ((BUILT, 150.0), (LOWERED, 500.0))
            for name in (SUBGRAPH, FLAT)
        ),
        Target(
            f"{LAYERS} layers, {SUBGRAPH}: ONNX without data",
            size / 1e6,
            1.0,
            "at most",
            "MB",
        ),
    ]
    notes = (
        f"MiniLM (`examples/minilm.py`), with {weights / 1e6:.1f} MB of weights; a result is the embeddings of batch "
        "x tokens. Its six layers are calls of one subgraph. The weights stay in the mapped file; `memory='fast'` "
        "rearranges them, as plain ONNX Runtime does. Compared with plain ONNX Runtime on the file of "
        f"`graph.onnx.save` (the same graph), `memory='fast'` took {saved}. *First result* is the first call of a "
        "fresh process with 1 x 16: create the modules, load, build, lower and run; for transformers, "
        "`AutoModel.from_pretrained` and one call. Memory is what that adds, with the pages of the mapped file.",
        f"The model of {LAYERS} layers is `examples/smollm.py` with the sizes of Llama 3 70B: 722 weights, never "
        "allocated. The clock starts after the modules exist; MAX 26.7 takes 1,370 ms for such a graph.",
        f"ONNX Runtime {importlib.metadata.version('onnxruntime')}, transformers "
        f"{importlib.metadata.version('transformers')}.",
    )
    return Report("graphs", columns, targets=targets, notes=notes, samples=samples)
