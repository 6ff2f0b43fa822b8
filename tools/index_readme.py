#!/usr/bin/env python3
"""Make the README's links absolute for package indexes, which show it without the linked files.

    index_readme.py [--write]     prints it, or rewrites README.md

In the repository its links are relative, so that they work in every clone. The release workflow runs this before it
builds, in a temporary checkout. The address is `project.urls.Source`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = (".svg", ".png")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z][a-z0-9+.-]*:|#)([^)\s]+)(?=\))")


def absolute(page: str, source: str) -> str:
    """Return a page of the repository's root with relative links resolved against `source`, the repository's address.

    Pictures link to their raw bytes, other files to the page that shows them. Code is unchanged.
    """
    raw = source.replace("github.com", "raw.githubusercontent.com")

    def led(match: re.Match[str]) -> str:
        path: str = match[1]
        return f"{raw}/main/{path}" if path.endswith(PICTURES) else f"{source}/blob/main/{path}"

    # A link's text may be code: only a link that starts within code is unchanged.
    spans = [(code.start(), code.end()) for code in _CODE.finditer(page)]
    return _LINK.sub(
        lambda match: match[0] if any(start <= match.start() < end for start, end in spans) else led(match), page
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite README.md instead of printing it")
    options = parser.parse_args(arguments)
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    path = ROOT / "README.md"
    page = absolute(path.read_text(encoding="utf-8"), source)
    if options.write:
        path.write_text(page, encoding="utf-8", newline="\n")
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
