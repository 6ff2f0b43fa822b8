"""The script `max-weights`, and `python -m max_weights` if that is not on the path: the native command line."""

import sys

from max_weights._core import command_line


def main() -> int:
    """Run the command line of this process, and return the exit status."""
    return command_line(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
