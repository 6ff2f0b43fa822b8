"""`python -m max_weights._benching PATH…`: the program behind `max-weights bench`."""

from __future__ import annotations

import argparse
import sys
from json import dumps

from max_weights._benching import bench
from max_weights._command_errors import report_error
from max_weights._core import printable
from max_weights.errors import WeightsError


def main() -> int:
    """Measure, print the result, and return the exit status."""
    parser = argparse.ArgumentParser("max-weights bench", allow_abbrev=False)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--against")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-cold", dest="cold", action="store_false")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device")
    options = parser.parse_args()
    names = None if options.against is None else [name.strip() for name in options.against.split(",") if name.strip()]
    line = _MeasuredLine()
    try:
        result = bench(
            options.paths,
            names,
            cold=options.cold,
            seconds=options.seconds,
            progress=line.tell,
            device=options.device,
        )
    except (WeightsError, ImportError, OSError) as error:
        line.clear()
        return report_error(error, as_json=options.json)
    except KeyboardInterrupt:
        line.clear()
        return 130
    line.clear()
    print(dumps({"schema": "max-weights.bench/1", **result.as_dict()}, indent=1) if options.json else result)
    return 0


class _MeasuredLine:
    """The current step, in one line of a terminal; nothing is written to a pipe."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def tell(self, now: str) -> None:
        if self._is_terminal:
            print("\r\x1b[K" + printable(now), end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
