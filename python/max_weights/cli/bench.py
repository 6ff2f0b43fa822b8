"""`max-weights bench`: how long a checkpoint takes to load, here and by other packages."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from max_weights._core import printable
from max_weights.benching import bench as measure
from max_weights.cli.terminal import CHECKPOINT, console, errors_in_one_line
from max_weights.errors import ArgumentError


def bench(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help=CHECKPOINT)],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Of safetensors, torch, gguf, runai, fastsafetensors, and for a GPU instanttensor, with commas "
            "between them; without this, those that are installed and read the format; '' for none.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, each run in it.")] = False,
    cold: Annotated[
        bool, typer.Option("--cold/--no-cold", help="Drop the files from the page cache to read them from the disk.")
    ] = True,
    seconds: Annotated[float, typer.Option(min=1, help="Stop after this time, whatever is left to do.")] = 60.0,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="A GPU to load to, such as cuda or cuda:1.")
    ] = None,
) -> None:
    """Measure how long a checkpoint takes to load, here and by the other packages that are installed."""
    names = None if against is None else [name.strip() for name in against.split(",") if name.strip()]
    with errors_in_one_line():
        screen = console(stderr=True)
        with screen.status("") as status:
            try:
                result = measure(
                    paths,
                    names,
                    cold=cold,
                    seconds=seconds,
                    progress=lambda now: status.update(printable(now)),
                    device=device,
                )
            except ArgumentError as error:
                raise typer.BadParameter(str(error), param_hint="--against") from None
        print(dumps(result.as_dict(), indent=1) if json else result)
