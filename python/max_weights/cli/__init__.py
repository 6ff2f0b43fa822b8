"""The command line, `max-weights`: one module per command, over the same public names that programs import.

Exit codes: 0, 1 for a problem with a checkpoint (one line on standard error), 2 for a wrong command line.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from max_weights._core import printable
from max_weights.cli.bench import bench
from max_weights.cli.ls import ls
from max_weights.cli.pickle_globals import list_globals
from max_weights.cli.show import show
from max_weights.versions import show_versions

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """The commands. What is said of a wrong command line quotes it, and a shell puts names of files into it."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the command line up to the command."""
        with safe_messages():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Read the rest, and run the command."""
        with safe_messages():
            return super().invoke(*args, **options)


@contextmanager
def safe_messages() -> Iterator[None]:
    """Make the message of an error of the command line safe to print."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = printable(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="max-weights",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # a help text is not markup: `[ab]` stands for itself
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="List weights: a tree, a table or JSON.")(ls)
app.command(short_help="Show one weight: place, statistics, histogram.")(show)
app.command(short_help="Measure loading, beside other packages.")(bench)
app.command("globals", short_help="List the code that a PyTorch file names.")(list_globals)
app.command("versions", help="Print the versions that a bug report needs.")(show_versions)


def print_version(wanted: bool) -> None:
    """Print the version and end, when `--version` was given."""
    if wanted:
        from max_weights._core import __version__

        print(f"max-weights {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look into checkpoint files: names, dtypes, shapes, values. Nothing in a file is ever executed."""


def main() -> None:
    """Run the command line; the entry point of the script `max-weights`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that is not UTF-8, and a path that is not: show what can be shown.
            stream.reconfigure(errors="backslashreplace")
    app()
