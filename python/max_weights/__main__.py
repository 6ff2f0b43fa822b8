"""The script `max-weights`, and `python -m max_weights` if that is not on the path: the native command line.

`run`, which patches a Python program and runs it, is Python itself.
"""

import sys


def main() -> int:
    """Run the command line of this process, and return the exit status."""
    if sys.argv[1:2] == ["run"]:
        from max_weights._run import main as run

        return run(sys.argv[2:])
    from max_weights._core import command_line

    return command_line(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
