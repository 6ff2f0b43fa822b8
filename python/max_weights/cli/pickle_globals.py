"""`max-weights globals`: the classes and functions that a PyTorch checkpoint names, and what is known of them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from max_weights._core import PytorchWeights, files, printable, torch_globals
from max_weights.cli.terminal import CHECKPOINT, console, errors_in_one_line, fail, plural
from max_weights.weights import load_weights

COLOURS = {"known": "green", "unknown": "yellow", "dangerous": "red"}


def list_globals(
    path: Annotated[str, typer.Argument(metavar="PATH", help=CHECKPOINT)],
) -> None:
    """List the classes and functions that a PyTorch checkpoint names, with their places and a verdict.

    `known`: plain data or a tensor is made of it, without a call. `unknown`: kept as a placeholder, never built.
    `dangerous`: likewise, and calling it could run code or reach files. Exit code 1 if any is not known.
    """
    with errors_in_one_line(), load_weights(path, strict=False) as weights:
        if not isinstance(weights, PytorchWeights):
            fail(f"{path}: this is no PyTorch file: nothing in it names code")
        found = torch_globals(weights)
        several = len(files(weights)) > 1
    screen = console()
    width = max((len(str(offset)) for _, _, offset, _ in found), default=0)
    for file, name, offset, verdict in found:
        line = Text(f"{offset:>{width}}  ").append(f"{verdict:9}", COLOURS[verdict]).append(f"  {printable(name)}")
        screen.print(line.append(f"  {printable(file)}", "dim") if several else line)
    bad = sum(verdict != "known" for _, _, _, verdict in found)
    screen.print()
    screen.print(Text(f"{plural(len(found), 'global')}, {bad:,} not known", "bold"))
    sys.stdout.flush()
    if bad:
        raise typer.Exit(1)
