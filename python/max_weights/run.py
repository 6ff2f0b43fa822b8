"""`python -m max_weights.run script.py …`: run a program as Python would, with its loading functions replaced.

Processes that the program starts are patched too, as soon as they import torch.
"""

from __future__ import annotations

import os
import runpy
import sys

from max_weights._dropin import patch

__all__ = ["main"]

_USAGE = "usage: python -m max_weights.run (script.py | -m module) [arguments of the program]"


def main(arguments: list[str]) -> None:
    """Patch, and run the program that these arguments name, as `__main__`."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(_USAGE, file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        raise SystemExit(0 if arguments and arguments[0] != "-m" else 2)
    os.environ["MAX_WEIGHTS_PATCH"] = "1"  # for the processes that it starts
    patch()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        runpy.run_path(os.path.abspath(arguments[0]), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
