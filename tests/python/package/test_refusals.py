"""The texts of errors that tests compare with snapshots: what is written, what fails, and what is left out of them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import refusals
from max_weights.errors import ArgumentError
from refusals import refuses, stable

TEST = "tests/python/x/test_x.py::test_a[1]"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of a file of tests, in a separate folder."""
    for name in ("_times", "_known", "_new", "_collected", "_passed"):
        monkeypatch.setattr(refusals, name, type(getattr(refusals, name))(*_factory(name)))
    monkeypatch.setattr(refusals, "ROOT", tmp_path)
    monkeypatch.setattr(refusals, "OVERWRITE", False)
    folder = tmp_path / "tests/python/x"
    folder.mkdir(parents=True)
    return folder / "messages/test_x.json"


def _factory(name: str) -> list[Any]:
    return {"_new": [dict], "_collected": [set], "_passed": [set]}.get(name, [])


def refused(text: str, rule: str | None = None) -> None:
    with refuses(ValueError, rule):
        raise ArgumentError(text) if rule else ValueError(text)


def test_texts_are_written_compared_and_dropped(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{TEST} (call)")
    file, item = texts.parents[1] / "test_x.py", SimpleNamespace(path=texts.parents[1] / "test_x.py", nodeid=TEST)
    monkeypatch.setattr(refusals, "OVERWRITE", True)
    refused("first")
    refused("second", "argument.value")
    refusals.collect([item])  # type: ignore[list-item]
    refusals.passed(TEST)
    refusals.finish(file, is_whole=True)
    assert json.loads(texts.read_text()) == {"test_a[1]": "first", "test_a[1] #2": "second"}

    monkeypatch.setattr(refusals, "OVERWRITE", False)
    for name in ("_times", "_known", "_new"):
        getattr(refusals, name).clear()
    refused("first")
    with pytest.raises(AssertionError, match=r"no error has these texts.*SNAPSHOTS=overwrite.*#2"):
        refusals.finish(file, is_whole=True)
    with pytest.raises(AssertionError, match=r"changed.*\nother\ninstead of:\nsecond"):
        refused("other")
    with pytest.raises(AssertionError, match=r"no text is known for 'test_a.1. #3'.*SNAPSHOTS=overwrite"):
        refused("third")
    monkeypatch.setattr(refusals, "OVERWRITE", True)
    refusals.finish(file, is_whole=True)
    assert json.loads(texts.read_text()) == {"test_a[1]": "first", "test_a[1] #2": "other", "test_a[1] #3": "third"}


def test_a_code_is_compared_or_stands_in_front_of_the_text(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{TEST} (call)")
    texts.parent.mkdir()
    texts.write_text(json.dumps({"test_a[1]": "argument.value: a", "test_a[1] #2": "a"}))
    with refuses(ArgumentError):
        raise ArgumentError("a")
    with refuses(ArgumentError, "argument.value"):
        raise ArgumentError("a")
    with pytest.raises(AssertionError, match=r"'argument\.value' is the code, not 'argument\.mesh'"):
        refused("a", "argument.mesh")


def test_what_differs_from_run_to_run_is_left_out(tmp_path: Path) -> None:
    assert stable(f"'{tmp_path}/a.gguf'") == "'<tmp>/a.gguf'"
    assert stable("http://127.0.0.1:4711/a: 3 tries in 0.4 s") == "http://127.0.0.1:<port>/a: 3 tries in … s"
    assert stable(f"<object at 0x7f0123456789> (at {__file__}:12)") == (
        "<object at 0x…> (at <repository>/tests/python/package/test_refusals.py:<line>)"
    )
