"""The command line, `max-weights`: one module per command, over the same public names that programs import.

Exit codes: 0, 1 for a problem with a checkpoint (one line on standard error), 2 for a wrong command line.
"""

from __future__ import annotations

import io
import sys

import typer

from max_weights.cli.ls import ls
from max_weights.cli.show import show

__all__ = ["app", "main"]

app = typer.Typer(
    name="max-weights",
    help="Look into checkpoint files: names, dtypes, shapes, values. Reads headers, executes nothing.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # a help text is not markup: `[ab]` stands for itself
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ls)
app.command()(show)


@app.callback()
def options() -> None:
    """Keep `ls` a command of its own while there are others."""


def main() -> None:
    """Run the command line; the entry point of the script `max-weights`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that is not UTF-8, and a path that is not: show what can be shown.
            stream.reconfigure(errors="backslashreplace")
    app()
