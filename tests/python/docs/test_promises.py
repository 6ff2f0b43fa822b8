"""Each paragraph of the documentation names the tests that check its promise, and `make test` runs them.

They are named after a paragraph, a bullet or a table, in an invisible comment:

    <!-- kept by: tests/python/delta/test_delta.py::test_name, crates/check/tests/x.rs::name -->
    <!-- no promise -->

A paragraph that introduces others ends with a colon, and needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kept_by import is_run

DOCS = Path(__file__).parents[3] / "docs"
WHOLE = ["delta.md", "saving.md", "security.md", "verify_loaded.md"]
"""Pages whose every paragraph names its tests."""
BEGUN: list[str] = []
"""Pages with some such paragraphs."""
_COMMENT = re.compile(r"<!-- (?:(kept by: )(.*?)|(no promise)) -->", re.DOTALL)


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, bullets with their indented content, and tables, each with the comment after it."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    block: list[str] = []
    for line in [*text.splitlines(), "# end"]:
        is_comment = line.startswith("<!-- ")
        if is_comment and block:
            yield "\n".join([*block, line])
            block = []
        elif line.startswith(("- ", "#")) and not is_comment:
            yield from ["\n".join(block)] if block else []
            block = [] if line.startswith("#") else [line]
        elif line.strip():
            begins = block and block[-1] == "" and not line.startswith("  ")
            yield from ["\n".join(block).rstrip()] if begins else []
            block = [line] if begins or not block else [*block, line]
        elif block:
            block.append("")


def kept_by(text: str) -> list[str]:
    return [test for found in _COMMENT.finditer(text) if found[1] for test in found[2].replace("\n", " ").split(", ")]


@pytest.mark.parametrize("page", WHOLE)
def test_every_paragraph_says_which_test_keeps_it(page: str) -> None:
    unspecified = [
        block
        for block in blocks((DOCS / page).read_text())
        if not _COMMENT.search(block) and not block.rstrip().endswith(":")
    ]
    assert not unspecified, "add `<!-- kept by: tests/…::test_name -->` or `<!-- no promise -->`:\n\n" + "\n\n".join(
        unspecified
    )


@pytest.mark.parametrize("page", WHOLE + BEGUN)
def test_every_test_that_a_page_names_is_run(page: str) -> None:
    text = (DOCS / page).read_text()
    tests = kept_by(text)
    assert tests
    assert text.count("<!-- kept by") + text.count("<!-- no promise") == len(_COMMENT.findall(text)), (
        "a comment is misspelt"
    )
    assert [test for test in tests if not is_run(test)] == []


def test_a_test_that_is_not_there_or_not_run_is_none() -> None:
    assert is_run("tests/python/docs/test_promises.py::test_a_test_that_is_not_there_or_not_run_is_none")
    # The night runs more cases of it.
    assert is_run(
        "tests/python/load/test_mutations.py::test_nothing_is_said_of_random_modules_that_were_loaded_rightly"
    )
    assert is_run("tests/project/limits.rs::docs_give_every_limit_with_its_value")
    for test in (
        "tests/python/docs/test_promises.py::test_nothing",
        "tests/python/docs/test_promises.py::blocks",
        "tests/python/docs/test_nothing.py::test_nothing",
        "tests/project/limits.rs::nothing",
        "tests/python/validate/test_composed_files.py::test_nothing",
        "tests/python/delta/test_delta_trust.py::test_a_hundred_thousand_flipped_bits_are_named_or_harmless",
    ):
        assert not is_run(test), test


def test_paragraphs_bullets_and_tables_are_told_apart() -> None:
    text = """
# A

One.
Two. <!-- no promise -->

- b
  c
- d <!-- kept by: x -->

| a |
|---|

<!-- no promise -->

```
code
```

Last.
"""
    assert [block.split("\n")[0] for block in blocks(text)] == [
        "One.",
        "- b",
        "- d <!-- kept by: x -->",
        "| a |",
        "Last.",
    ]
