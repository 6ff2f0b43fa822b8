"""`python -m max_weights.run script.py …`: run a program as Python would, with its loading functions replaced.

Processes that the program starts are patched too, as soon as they import torch.
"""

import os as _os
import runpy as _runpy
import sys as _sys

from max_weights._dropin import patch as _patch

__all__: list[str] = []

_USAGE = "usage: python -m max_weights.run (script.py | -m module) [arguments of the program]"


def _main(arguments: list[str]) -> None:
    """Patch, and run the program that these arguments name, as `__main__`."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(_USAGE, file=_sys.stdout if arguments[:1] in (["-h"], ["--help"]) else _sys.stderr)
        raise SystemExit(0 if arguments and arguments[0] != "-m" else 2)
    _os.environ["MAX_WEIGHTS_PATCH"] = "1"  # for the processes that it starts
    _patch()
    if arguments[0] == "-m":
        _sys.argv = arguments[1:]
        _runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        _sys.argv = arguments
        if not _sys.flags.safe_path:
            _sys.path[0] = _os.path.dirname(_os.path.realpath(arguments[0]))
        _runpy.run_path(_os.path.abspath(arguments[0]), run_name="__main__")


if __name__ == "__main__":
    _main(_sys.argv[1:])
