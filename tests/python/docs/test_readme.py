"""The Python snippets of the README and the docs pages run unchanged."""

import re
from pathlib import Path

import pytest

from conftest import ROOT
from warm import Parent

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(snippet, id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES
    for match in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for snippet in [match[1]]
]


# For snippets that import transformers, directly or indirectly.
NEEDS_TRANSFORMERS = re.compile(r"transformers|hub_folder|config\.json|patch\(\)")


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet: str, models: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / ".models").symlink_to(models)
    parent: Parent = request.getfixturevalue("warm_transformers" if NEEDS_TRANSFORMERS.search(snippet) else "warm")
    ended = parent.run(snippet, tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if str(one.id).startswith("README")])
def test_a_snippet_of_the_readme_runs_in_an_empty_folder(snippet: str, warm: Parent, tmp_path: Path) -> None:
    ended = warm.run(snippet, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_there_are_snippets() -> None:
    assert any("README" in str(parameter.id) for parameter in SNIPPETS)
