"""Test a machine's GPU: `python tests/gpu [NAME...]`, with any Python that can import max_weights.

The exit status is 0 when all tests passed, 1 when one failed, and 2 when there is no GPU or nothing to test it with.
"""

from __future__ import annotations

import argparse
import json
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


def missing() -> str:
    """What keeps the tests from running, or ""."""
    try:
        import numpy  # noqa: F401

        import max_weights
    except ImportError as error:
        return f"{error.name} cannot be imported ({error}): install NumPy and the wheel of dist/"
    import gpu_support

    if reason := gpu_support.no_device():
        return reason
    print(f"max_weights {max_weights.__version__} of {Path(max_weights.__file__).parent}")
    if reason := gpu_support.no_torch():
        print(f"what needs torch is skipped: {reason}")
    return ""


def main() -> int:
    """Run the tests of this folder."""
    parser = argparse.ArgumentParser(prog="tests/gpu", description=__doc__)
    parser.add_argument("names", nargs="*", help="of modules, classes or tests, as unittest takes them")
    parser.add_argument("--report", type=Path, help="where to write what was skipped, and how many tests ran, as JSON")
    parser.add_argument("--verbose", "-v", action="store_true", help="a line for each test")
    options = parser.parse_args()
    if reason := missing():
        print(f"tests/gpu: {reason}", file=sys.stderr)
        return 2
    loader = unittest.TestLoader()
    tests = loader.loadTestsFromNames(options.names) if options.names else loader.discover(str(HERE))
    result = unittest.TextTestRunner(verbosity=2 if options.verbose else 1).run(tests)
    skipped: dict[str, int] = {}
    for _, reason in result.skipped:
        skipped[reason] = skipped.get(reason, 0) + 1
    for reason, count in skipped.items():
        print(f"skipped {count}: {reason}")
    if options.report is not None:
        failed = [str(test) for test, _ in [*result.errors, *result.failures]]
        found = {"ran": result.testsRun, "skipped": skipped, "failed": failed}
        options.report.write_text(json.dumps(found, indent=1))
    return 0 if result.wasSuccessful() and (result.testsRun or result.skipped) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
