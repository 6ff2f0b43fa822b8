"""The page of deliberate differences, generated from their list and from the results of the programs."""

from __future__ import annotations

from comparing import Fact, Result
from differences import DIFFERENCES, GROUPS

START = """\
# From MAX: what becomes what, and what differs

Programs for Modular MAX run here with `max_weights` in place of `max` in their imports, as far as weights, tensors,
graphs and modules go. Nothing is compiled: ONNX Runtime runs [graphs](modules.md#running) on the mapped file.

```python
from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Graph, TensorType, ops
from max_weights.graph.weights import load_weights

weights = load_weights([".models/minilm.safetensors"])  # a list, as in MAX, or a path
dense = weights.pooler.dense.weight.allocate()

hidden = TensorType(DType.float32, ("batch", 384), DeviceRef.CPU())
with Graph("pooler", input_types=[hidden]) as graph:
    graph.output(ops.tanh(graph.inputs[0] @ ops.transpose(dense, 0, 1)))
print(graph.output_types)  # checked before a weight is read
```

| MAX | here |
|---|---|
| `max.graph.weights.load_weights([Path(...)])` | `max_weights.load_weights(path)`, or the same dotted path |
| `weights.model.layers[0].weight.allocate(DType.bfloat16)` | the same |
| `max.driver.Tensor`, `Buffer`, `Accelerator` | `max_weights.driver`; one class, `Buffer`, with DLPack |
| `max.nn` | `max_weights.nn` |
| `max.engine.InferenceSession()` | `max_weights.engine` (`pip install "max-weights[graph]"`) |
| `ShardingStrategy`, `shard()` | `max_weights.sharding`; the pieces are plain numbers |
| kernels, pipelines, serving | not available: an `ImportError` names the alternative |

The reference lists the [dotted paths](reference/max_paths.md).

`make compare-max` runs [the same programs](../tools/compare_max/programs) with MAX and here, compares names, dtypes,
shapes, bytes and kinds of exceptions, and writes this page; the tests compare the package with its results.
Of {facts} facts of {programs} programs, {alike} are the same. Any difference that is not listed is a defect.
"""
NOT_RUN = """\
## Signatures

`WeightData`, `Weights`, `Weight`, `layer` and `Module` have the documented signatures, except:

- `allocate(device=None)`: `None` is the CPU.
- `LayerList()` may be empty; `extend(layers)` takes several layers.
- `WeightData(…, refusal=None)`; `astype(…, saturate=False, out=None)` writes into your memory.
- `build_subgraph(inputs=…)` is `input_types` in newer versions of MAX.
- `load_state_dict(…, copy_if_misaligned=False)`; that of `LayerV2` has `strict` and `weight_alignment`, too.

## Not shown by programs

- A store to a buffer is computed as a new tensor and written when the graph has run. `ops.buffer_create` is missing.
- `Graph.weights()` has no data: its weights export the value that `load_state_dict` set.
- The shape of a weight that a graph uses cannot be changed in place or set.
- Writing to a tensor of a mapped file changes memory of this process, never the file. In MAX it ends the process.
- bfloat16 tensors of GGUF files are correct, fp8 converts on the CPU, and conversions keep denormal numbers.
- A hook is called once per call of an instance, not once more for each `super().__call__()`.

## MAX's own tests

24 files of MAX's CPU tests ran with `max` replaced by `max_weights`, without cases for GPUs, collectives and MLIR.
125 tests pass and 22 do not. Of these, 12 expect other words in an error, 5 need compiled files or MLIR, and 3 divide
bool by bool. Of the passing tests, 12 had an unused `output_types=` removed, and 17 needed `DevicePlacementPolicy`.
"""


def page(results: list[Result]) -> str:
    """The text of the page."""
    facts: dict[str, list[Fact]] = {}
    for result in results:
        for fact in result.deliberate:
            facts.setdefault(fact.mark or "", []).append(fact)
    counts = (sum(result.count for result in results), sum(result.alike for result in results))
    parts = [START.format(facts=f"{counts[0]:,}", alike=f"{counts[1]:,}", programs=len(results))]
    for group, title in GROUPS.items():
        names = [name for name, difference in DIFFERENCES.items() if difference.group == group]
        if names:
            parts.append(f"## {title}\n")
            parts.append("".join(line(name, facts.get(name, [])) for name in names))
    return "\n".join([*parts, NOT_RUN])


def line(name: str, facts: list[Fact]) -> str:
    """The sentence of one difference, with the exceptions here, or those of MAX where the sentence names ours."""
    difference = DIFFERENCES[name]
    side, values = ("in MAX", "theirs") if difference.group == "kind" else ("here", "ours")
    kinds = " or ".join(dict.fromkeys(filter(None, (raised(getattr(fact, values)) for fact in facts))))
    return f"- {difference.reason[:-1]} ({side} {kinds}).\n" if kinds else f"- {difference.reason}\n"


def raised(value: object) -> str | None:
    """The exception that a fact is."""
    return f"{value['raises'][0]}" if isinstance(value, dict) and "raises" in value else None
