"""The page of deliberate differences, written from their list and from what the programs gave."""

from __future__ import annotations

from comparing import Fact, Result, text
from differences import DIFFERENCES, GROUPS

SHOWN = 3
"""Examples of one difference."""
LONGEST = 90
START = """\
# Where this package differs from MAX on purpose

Programs written for MAX run here with `max_weights` in place of `max` in their imports. `make compare-max` installs
MAX from PyPI, runs [one set of programs](../tools/compare_max/programs) with both, and compares the results: names,
dtypes, shapes, bytes, and the kinds of exceptions (a program that catches what MAX raises also catches what is raised
here). Any difference that is not listed here is a defect, and everything listed does differ: that run writes this
page, and the tests compare the package with its results. {facts} facts of {programs} programs were compared; {alike}
are the same.
"""
NOT_RUN = """\
## Parameters of the documents

What the documents of `WeightData`, `Weights`, `Weight`, `layer` and `Module` give as signatures is the same here, with
these exceptions:

- `allocate(device=None)`: `None` stands for the CPU.
- `LayerList()` may be empty; `extend(layers)` takes several layers.
- `WeightData(…, refusal=None)`; `astype(…, saturate=False, out=None)` writes into memory of yours.
- `build_subgraph(inputs=…)` is the name of `input_types` in newer versions of MAX.
- `load_state_dict(…, copy_if_misaligned=False)`; that of `LayerV2` has `strict` and `weight_alignment`, too.

## What no program can show

- What a graph stores in a buffer is computed as a new tensor and written to the memory when the graph has run: ONNX
  Runtime has no operations in place. `ops.buffer_create` is not here.
- `Graph.weights()` has no data: what it allocated exports the value that `load_state_dict` gave it.
- The shape of a weight that a graph uses cannot be changed in place, just as it cannot be set.
- Writing to a tensor of a mapped file changes memory of this process and never the file. In MAX it ends the process.
- The error for a name that does not exist suggests near names, in milliseconds however many names there are.
- bfloat16 tensors of GGUF files are read correctly, fp8 is converted on the CPU, and conversions keep denormal numbers.
- A hook is called once when an instance is called. In MAX it is called once more for each `super().__call__()`.
- Damaged and hostile files are refused ([security](security.md)).
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
            parts += [f"- {DIFFERENCES[name].reason}\n{examples(facts.get(name, []))}" for name in names]
    return "\n".join([*parts, NOT_RUN])


def examples(facts: list[Fact]) -> str:
    """A few facts of one difference."""
    lines = {fact.source: fact for fact in facts if not (is_long(fact.theirs) and is_long(fact.ours))}
    return "".join(
        f"  - `{cut(fact.source)}`: {cell(theirs)} in MAX, {cell(ours)} here\n"
        for fact in list(lines.values())[:SHOWN]
        for theirs, ours in [what_differs(fact.theirs, fact.ours)]
    )


def is_long(value: object) -> bool:
    """Whether a value was too long to be kept."""
    return isinstance(value, dict) and "long" in value


def what_differs(theirs: object, ours: object) -> tuple[object, object]:
    """Of two lists that differ in one item, that item."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]]
        if len(pairs) == 1:
            return pairs[0]
    return theirs, ours


def cell(value: object) -> str:
    """A value of a fact for the page."""
    if isinstance(value, dict) and "raises" in value:
        return f"{value['raises'][0]}"
    if isinstance(value, dict) and "digest" in value and "shape" in value:
        return f"a tensor of {value['dtype']} and {'×'.join(map(str, value['shape'])) or 'no dimensions'}"
    if isinstance(value, dict) and "shape" in value:
        return f"{value['dtype']} of shape {'×'.join(map(str, value['shape']))}"
    return f"`{cut(text(value))}`"


def cut(source: str) -> str:
    """A line that fits."""
    return source if len(source) <= LONGEST else source[: LONGEST - 1] + "…"
