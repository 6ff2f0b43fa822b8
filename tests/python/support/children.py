"""Programs that tests start and that import helpers, as the tests do."""

import os
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent


def with_test_folders() -> dict[str, str]:
    """The environment for a program that imports helpers or tests by name."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def with_support() -> dict[str, str]:
    """The environment for a program that imports what is in this folder."""
    path = filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
