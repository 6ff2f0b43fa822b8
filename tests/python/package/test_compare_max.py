"""This package against the results of MAX that `make compare-max` stored: the programs run here, without MAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compare import one_fact_a_line
from comparing import Fact, Result, compare, same
from differences import DIFFERENCES, GROUPS
from page import page

from conftest import ROOT

TOOL = ROOT / "tools" / "compare_max"


def test_what_max_did_is_kept_a_fact_a_line() -> None:
    text = (TOOL / "max.json").read_text()
    facts = json.loads(text)
    assert text == one_fact_a_line(facts)
    lines_around = 2 + 2 * len(facts)
    assert len(text.splitlines()) == sum(map(len, facts.values())) + lines_around


@pytest.fixture(scope="module")
def results(models: Path) -> list[Result]:
    """The results of the programs here, compared with those under MAX."""
    theirs = json.loads((TOOL / "max.json").read_text())
    command = [sys.executable, TOOL / "runner.py", "max_weights"]
    environment = {**os.environ, "MAX_WEIGHTS_MODELS": str(models)}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    return [compare(program, theirs[program], facts) for program, facts in json.loads(done.stdout).items()]


def test_what_differs_from_max_is_explained(results: list[Result]) -> None:
    assert [str(fact) for result in results for fact in result.unexplained] == []


def test_what_is_listed_as_a_difference_still_differs(results: list[Result]) -> None:
    assert [str(fact) for result in results for fact in result.gone] == []
    shown = {fact.mark for result in results for fact in result.deliberate}
    assert set(DIFFERENCES) == shown


def test_the_page_of_differences_is_what_the_list_and_the_programs_say(results: list[Result]) -> None:
    assert (ROOT / "docs" / "max_differences.md").read_text() == page(results)


def test_every_difference_is_of_a_group_and_has_a_sentence() -> None:
    for name, difference in DIFFERENCES.items():
        assert difference.group in GROUPS, name
        assert difference.reason.endswith("."), name


@pytest.mark.parametrize(
    ("theirs", "ours", "alike"),
    [
        ({"raises": ["ValueError"]}, {"raises": ["FileNotFoundError", "OSError", "ValueError"]}, True),
        ({"raises": ["Exception"]}, {"raises": ["KeyError", "LookupError"]}, True),
        ({"raises": ["KeyError", "LookupError"]}, {"raises": ["ValueError"]}, False),
        ({"raises": ["ValueError"]}, 3, False),
        ([1, 2], [1, 2], True),
    ],
)
def test_exceptions_are_alike_if_what_catches_one_catches_the_other(theirs: object, ours: object, alike: bool) -> None:
    assert same(theirs, ours) is alike


def test_a_fact_says_where_it_stands_and_what_came() -> None:
    fact = Fact("shapes", 12, "x", "Dim(x)", "negative", 1, {"raises": ["ValueError"]})
    assert str(fact).splitlines() == [
        "shapes.py:12: Dim(x)  # x  (negative)",
        "    MAX   1",
        "    here  raises ValueError",
    ]
