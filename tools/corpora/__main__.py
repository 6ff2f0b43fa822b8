"""Write the corpora: `PYTHONPATH=tools python -m corpora attacks|good|bad FOLDER`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from corpora.item import write


def main() -> None:
    """Write one corpus."""
    parser = argparse.ArgumentParser(prog="corpora", description=__doc__)
    parser.add_argument("corpus", choices=("attacks", "good", "bad"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    module = importlib.import_module(f"corpora.{options.corpus}")
    options.folder.mkdir(parents=True, exist_ok=True)
    items = write(module.items(), options.folder)
    groups = sorted({item.group for item in items})
    print(f"{len(items)} items in {len(groups)} groups")


if __name__ == "__main__":
    main()
