#!/usr/bin/env python3
"""Check that every link in the project's Markdown pages that stays inside the project leads somewhere.

    check_links.py [ROOT]

Files and folders must exist, and `#anchors` must be headings of the page they point into. Links to other sites are not
opened, so that the check needs no network and always says the same.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "fuzz/**/*.md")

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_NAMED_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings as GitHub spells them, and those given by hand."""
    prose = _FENCE.sub("", text)
    found = set(_NAMED_ANCHOR.findall(prose))
    for heading in _HEADING.findall(prose):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        numbered, count = slug, 0
        while numbered in found:
            count += 1
            numbered = f"{slug}-{count}"
        found.add(numbered)
    return found


def broken_links(root: Path) -> list[str]:
    """Return one line per broken link of the pages under `root`: page, line, link, and what is wrong."""
    wrong: list[str] = []
    pages = sorted({page for pattern in PAGES for page in root.glob(pattern)})
    for page in pages:
        text = page.read_text(encoding="utf-8")
        # Code keeps its line breaks, so that line numbers stay true.
        prose = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
        prose = _CODE.sub("", prose)
        for match in _LINK.finditer(prose):
            link = match[1] or match[2]
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            place = f"{page.relative_to(root)}:{prose.count(chr(10), 0, match.start()) + 1}"
            path, _, anchor = link.partition("#")
            target = page if not path else (page.parent / path)
            if not target.exists():
                wrong.append(f"{place}: {link}: there is no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                wrong.append(f"{place}: {link}: {target.name} has no heading of that name")
    return wrong


def main() -> int:
    """Print the broken links; return 1 if there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    wrong = broken_links(root)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
