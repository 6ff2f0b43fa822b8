"""An option that has no effect is an error: every option of every verb has a row in `option_table.py`, which is
checked.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import max_weights
import max_weights._core
from kept_by import is_run, source_of
from option_cases import Called, Case, Changes, Kept, Refused, Verb
from option_table import VERBS, WITHOUT_OPTIONS
from refusals import refuses

TESTS = Path(__file__).parents[1]


def options(verb: Verb) -> set[str]:
    """The optional parameters."""
    names: set[str] = set()
    for name, parameter in inspect.signature(verb.function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            names.update(*(keywords.__optional_keys__ for keywords in verb.keywords))
        elif parameter.default is not parameter.empty:
            names.add(name)
    return names


@pytest.mark.parametrize("name", VERBS)
def test_every_option_of_a_verb_has_a_row(name: str) -> None:
    verb = VERBS[name]
    without = options(verb) - set(verb.rows)
    assert not without, f"give these a row in tests/python/docs/option_table.py: {sorted(without)}"
    assert set(verb.rows) <= options(verb), "rows of removed options"


def test_every_public_function_is_in_the_table() -> None:
    listed = {verb.function for verb in VERBS.values()}
    public = {name: getattr(max_weights, name) for name in max_weights.__all__}
    functions = {name for name, value in public.items() if inspect.isroutine(value)}
    missing = {name for name in functions if public[name] not in listed and name not in WITHOUT_OPTIONS}
    assert not missing, f"give these a table in tests/python/docs/option_table.py: {sorted(missing)}"


def rows(kind: type) -> list[Any]:
    return [
        pytest.param(verb, option, row, id=f"{name}-{option}")
        for name, verb in VERBS.items()
        for option, row in verb.rows.items()
        if isinstance(row, kind)
    ]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.delenv("MAX_WEIGHTS_BACKEND", raising=False)
    made = Case(tmp_path)
    with made.weights:
        yield made


def run(verb: Verb, case: Case, given: dict[str, Any]) -> Any:
    assert verb.run is not None
    return verb.run(case, given)


@pytest.mark.parametrize(("verb", "option", "row"), rows(Changes))
def test_an_option_changes_the_result(verb: Verb, option: str, row: Changes, case: Case, tmp_path: Path) -> None:
    value = row.value(case) if callable(row.value) else row.value
    before = run(verb, case, {})
    (tmp_path / "again").mkdir()
    again = Case(tmp_path / "again")
    changed = run(verb, again, {option: value})
    assert repr(before).replace(str(tmp_path), "") != repr(changed).replace(str(again.folder), "")


@pytest.mark.parametrize(("verb", "option", "row"), rows(Refused))
def test_an_option_that_cannot_be_is_an_error_that_says_why(verb: Verb, option: str, row: Refused, case: Case) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (the words are looked for below)
        run(verb, case, {option: row.value})
    assert row.message in str(raised.value)
    assert not isinstance(raised.value, AttributeError)


@pytest.mark.parametrize(("verb", "option", "row"), rows(Called))
def test_a_function_that_is_given_is_called(verb: Verb, option: str, row: Called, case: Case) -> None:
    assert dataclasses.asdict(row) == {}
    calls: list[tuple[int, int]] = []
    run(verb, case, {option: lambda *counts: calls.append(counts)})
    assert calls


@pytest.mark.parametrize(("verb", "option", "row"), rows(Kept))
def test_a_test_that_keeps_an_option_is_run_and_names_it(verb: Verb, option: str, row: Kept) -> None:
    assert verb.function is not None
    (file,) = TESTS.glob(f"*/{row.test.partition('::')[0]}")
    test = f"tests/python/{file.parent.name}/{row.test}"
    assert is_run(test), row.test
    if verb.function is not max_weights.load_ranks:
        assert option in source_of(test), f"{row.test} does not name {option}"


def test_options_of_validation_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    original = max_weights._core.validate_files

    def validate_files(paths: list[Path], **options: Any) -> Any:
        given.append(options)
        return original(paths, **options)

    monkeypatch.setattr(max_weights._core, "validate_files", validate_files)
    (tmp_path / "model.safetensors").write_bytes(b"")
    max_weights.validate(tmp_path, threads=1, max_memory=1 << 20)
    assert (given[0]["jobs"], given[0]["max_memory"]) == (1, 1 << 20)
    (tmp_path / "model.safetensors").unlink()
    case = Case(tmp_path)
    max_weights.save_file(case.tensors, case.path, tied="copy")
    max_weights.assert_checkpoint_ok(case.path, fail_on="note")
    with refuses(ValueError, "argument.choice"):
        max_weights.assert_checkpoint_ok(case.path, fail_on="bogus")  # type: ignore[arg-type]
