"""The Python snippets of the README and the docs pages run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(snippet, id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES
    for match in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for snippet in [match[1]]
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet: str, models: Path, tmp_path: Path) -> None:
    (tmp_path / ".models").symlink_to(models)
    done = subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_are_snippets() -> None:
    assert any("README" in str(parameter.id) for parameter in SNIPPETS)
