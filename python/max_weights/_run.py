"""`python -m max_weights run script.py …`: run a program as Python would, with its loading functions replaced.

Processes that the program starts are patched too, as soon as they import torch.
"""

from __future__ import annotations

import os
import runpy
import sys

from max_weights._dropin import patch

__all__ = ["main"]

_USAGE = "usage: python -m max_weights run (script.py | -m module) [arguments of the program]"


def main(arguments: list[str]) -> int:
    """Patch, and run the named program as `__main__`. Return 0, or 2 if no program is named."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        requested = arguments[:1] in (["-h"], ["--help"])
        print(_USAGE, file=sys.stdout if requested else sys.stderr)
        return 0 if requested else 2
    os.environ["MAX_WEIGHTS_PATCH"] = "1"  # for the processes that it starts
    patch()
    is_module = arguments[0] == "-m"
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(arguments[0]))
    sys.argv = arguments[is_module:]
    if is_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(arguments[0]), run_name="__main__")
    return 0
