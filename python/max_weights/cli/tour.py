"""`max-weights tour`: the package in a minute, on a small checkpoint that comes with it. What is shown is what runs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.text import Text

from max_weights._core import printable
from max_weights.cli.terminal import console
from max_weights.errors import WeightsError

FILE = Path(__file__).resolve().parents[1] / "data" / "tour.safetensors"
STEPS = [
    (
        "Opening a checkpoint reads its header and nothing else. Printed, it is a tree; alike layers are folded.",
        ["import max_weights", "weights = max_weights.load_weights(path)", "print(weights)"],
    ),
    (
        "Names are attributes and indices. A hop looks nothing up; data() does, and still reads no values.",
        ["query = weights.model.layers[0].self_attn.q_proj.weight", "query.data()"],
    ),
    (
        "An array is a view of the mapped file. torch.from_dlpack(query) and jax.dlpack.from_dlpack(query) are others.",
        ["import numpy", "array = numpy.asarray(query)", "array.shape, array.dtype, float(array[0, 0])"],
    ),
    (
        "The pages are private: writing changes this memory, and never the file.",
        [
            "array[0, 0] = 42",
            "float(numpy.asarray(query)[0, 0])",
            'again = max_weights.load_weights(path)["model.layers.0.self_attn.q_proj.weight"]',
            "float(numpy.asarray(again)[0, 0])",
        ],
    ),
    (
        "A branch is walked without touching the others, in the order of the file.",
        ["[name for name, weight in weights.model.layers[1].self_attn.items()]"],
    ),
    (
        "infos() lists without making tensors: name, dtype, shape, bytes, file, offset, aligned.",
        ["sum(info.bytes for info in weights.infos())", "weights.metadata"],
    ),
    (
        "A name that is not there is answered with the nearest.",
        ["weights.model.layers[0].self_attn.query.weight.data()"],
    ),
    (
        "A damaged file is refused with where, why and what to do. This one lost its end.",
        ["max_weights.load_weights(damaged)"],
    ),
]


def tour() -> None:
    """Show the package in a minute, on a small checkpoint that comes with it."""
    screen = console()
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "damaged.safetensors"
        damaged.write_bytes(FILE.read_bytes()[:-100])
        names: dict[str, object] = {"path": str(FILE), "damaged": str(damaged)}
        for sentence, lines in STEPS:
            screen.print(Text(f"# {sentence}", "green"))
            for line in lines:
                screen.print(Text(">>> ", "dim").append(line, "bold"))
                run(line, names)
            screen.print()
    screen.print(Text("# Now yours: max-weights ls FILE, max-weights show FILE NAME", "green"))


def run(line: str, names: dict[str, object]) -> None:
    """Run one line as a Python prompt does; the errors of this package are part of the tour."""
    try:
        code = compile(line, "<tour>", "single", dont_inherit=True)
        showing, sys.displayhook = sys.displayhook, show_value
        try:
            exec(code, names)
        finally:
            sys.displayhook = showing
    except WeightsError as error:
        sys.stdout.write(f"{type(error).__name__}: {printable(str(error))}\n")
    sys.stdout.flush()


def show_value(value: object) -> None:
    """Print the value of an expression, if it has one."""
    if value is not None:
        sys.stdout.write(f"{value!r}\n")
