"""The truth value of every result with a verdict is its `ok`: `assert verify_loaded(...)` fails on errors."""

from __future__ import annotations

import inspect
import json
import pkgutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import max_weights
from max_weights import InvalidCheckpointError, fingerprint
from max_weights.errors import ArgumentError, VerificationError
from max_weights.nn import LoadReport
from max_weights.tasks import TasksResult
from max_weights.torch import VerificationReport, load_into, verify_loaded
from max_weights.types import Finding, FingerprintComparison, Result
from refusals import refuses
from test_views import seen

ONE = np.ones((2, 3), dtype="float32")
TWO = np.full((2, 3), 2, dtype="float32")


def _module() -> torch.nn.Module:
    module = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.ones_(module.weight)
    return module


def _path(folder: Path, **tensors: np.ndarray) -> Path:
    reported = [f"{name}-{one.flat[0]}-{len(one)}" for name, one in tensors.items()]
    path = folder / f"{'-'.join(reported)}.safetensors"
    save_file(tensors, path)
    return path


def _damaged(folder: Path) -> Path:
    path = _path(folder, weight=ONE)
    path.write_bytes(path.read_bytes()[:-1])
    return path


# {result: (a good one, bad ones)}
RESULTS: dict[str, tuple[Callable[[Path], Any], tuple[Callable[[Path], Any], ...]]] = {
    "VerificationReport": (
        lambda folder: verify_loaded(_module(), _path(folder, weight=ONE)),
        (
            lambda folder: verify_loaded(_module(), _path(folder, weight=TWO)),
            lambda folder: verify_loaded(_module(), _path(folder, weight=ONE, other=ONE)),
            lambda folder: verify_loaded(_module(), _path(folder, other=ONE)),
            lambda folder: verify_loaded(torch.nn.ReLU(), _path(folder, weight=ONE), ignore="weight"),
        ),
    ),
    "FingerprintComparison": (
        lambda _: fingerprint({"a": ONE}).compare(fingerprint({"a": ONE.astype("float64")})),
        (
            lambda _: fingerprint({"a": ONE}).compare(fingerprint({"a": TWO})),
            lambda _: fingerprint({"a": ONE}).compare(fingerprint({"b": ONE})),
            lambda _: fingerprint({"a": ONE}).compare(fingerprint({"a": ONE, "b": ONE})),
            lambda _: fingerprint({"a": ONE}).compare(fingerprint({"a": ONE}), require_digests=True),
            lambda _: fingerprint({}).compare(fingerprint({})),
        ),
    ),
    "Difference": (
        lambda folder: max_weights.diff(_path(folder, a=ONE), _path(folder, a=ONE)),
        (
            lambda folder: max_weights.diff(_path(folder, a=ONE), _path(folder, a=TWO)),
            lambda folder: max_weights.diff(_path(folder, a=ONE), _path(folder, b=ONE)),
            lambda folder: max_weights.diff(_path(folder, a=ONE), _path(folder, a=ONE, b=ONE)),
            lambda folder: max_weights.diff(_path(folder, a=ONE), _path(folder, a=ONE.reshape(3, 2))),
        ),
    ),
    "Report": (
        lambda folder: max_weights.validate(_path(folder, weight=ONE)),
        (lambda folder: max_weights.validate(_damaged(folder)),),
    ),
    "LoadReport": (
        lambda folder: load_into(_module(), _path(folder, weight=ONE)),
        (
            lambda folder: load_into(_module(), _path(folder, other=ONE), strict=False),
            lambda folder: load_into(_module(), _path(folder, weight=ONE, other=ONE), strict=False),
        ),
    ),
    "TasksResult": (lambda _: TasksResult(0, None, []), (lambda _: TasksResult(1, None, ["it failed"]),)),
}


def _wraps_native(kind: type) -> bool:
    return kind.__module__ == "max_weights._core"


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_is_true_exactly_if_it_is_ok(kind: str, tmp_path: Path) -> None:
    good, bad = RESULTS[kind]
    result = good(tmp_path)
    assert type(result).__name__ == kind
    assert result.ok is True
    assert bool(result) is True
    for number, make in enumerate(bad):
        result = make(tmp_path)
        assert type(result).__name__ == kind
        assert result.ok is False, number
        assert bool(result) is False, number


def test_every_result_with_a_verdict_has_both() -> None:
    """A class of the package with `ok` has that truth value, and is in the table above."""
    found = set()
    for info in pkgutil.walk_packages(max_weights.__path__, "max_weights."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = import_module(info.name)
        except ImportError:  # of a library that is not installed
            continue
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__.startswith("max_weights.") and hasattr(kind, "ok") and not _wraps_native(kind):
                if kind is Result:
                    continue
                assert issubclass(kind, Result) or "__bool__" in vars(kind), kind
                found.add(name)
    assert found == set(RESULTS)


@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind not in ("TasksResult", "Report")])
def test_a_failing_assert_begins_with_what_is_wrong(kind: str, tmp_path: Path) -> None:
    """In pytest: it shows the first characters of the representation, on one line."""
    for make in RESULTS[kind][1]:
        result = make(tmp_path)
        shown = repr(result)[:110]
        assert any(word in shown for word in ("not ok", "missing", "unexpected")), shown
        assert not (is_dataclass(result) and shown.startswith(f"{kind}({fields(result)[0].name}=")), shown


def test_a_comparison_says_how_many_differ_and_how_many_one_side_alone_has() -> None:
    one_sided = fingerprint({"a": ONE}).compare(fingerprint({"b": ONE}))
    assert str(one_sided).splitlines()[0] == "no tensor was compared; only one side has 2"
    assert "not ok, no tensor was compared; only one side has 2; 'a': the other side has no such tensor" in repr(
        one_sided
    )
    mixed = fingerprint({"a": ONE, "b": ONE, "c": ONE}).compare(fingerprint({"a": ONE, "b": TWO, "d": ONE}))
    assert str(mixed).splitlines()[0] == "2 tensors were compared, 1 differ; only one side has 2"
    assert str(FingerprintComparison((), 3)) == "3 tensors were compared, 0 differ"
    report = VerificationReport((), ("a", "b"), 1, 0.0, 2)
    assert str(report) == "2 parameters and buffers were compared, 0 findings"


def test_a_report_of_a_load_that_left_buffers_alone_is_ok() -> None:
    assert LoadReport((), (), non_persistent=("computed",))
    assert not LoadReport(("a",), ())
    assert not LoadReport((), ("a",))


@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind != "TasksResult"])
def test_a_result_says_the_same_as_text_as_json_and_in_a_notebook(kind: str, tmp_path: Path) -> None:
    good, bad = RESULTS[kind]
    result = good(tmp_path)
    assert isinstance(result, Result)
    assert result.findings == ()
    assert result.raise_if_not_ok() is result
    record = json.loads(result.to_json())
    assert (record["result"], record["ok"], record["findings"]) == (kind, True, [])
    assert record["summary"] == str(result).splitlines()[0]
    assert repr(result) == f"<{kind}: ok, {record['summary']}>"
    assert f"{kind}: ok" in seen(result)
    for make in bad:
        result = make(tmp_path)
        text, page, record = str(result), seen(result), json.loads(result.to_json())
        assert "\n" not in repr(result)
        assert repr(result).startswith(f"<{kind}: not ok, {text.splitlines()[0]}")
        assert f"{kind}: not ok" in page
        assert record["ok"] is False
        assert len(record["findings"]) == len(result.findings)
        for finding, listed in zip(result.findings, record["findings"], strict=True):
            assert result.by_kind(finding.kind)
            assert (listed["message"], listed.get("name"), listed["kind"]) == (
                finding.message,
                finding.name,
                finding.kind,
            )
            assert str(finding) in text
            for part in (finding.name, finding.message, finding.place, finding.kind):
                assert part is None or part in page
        with pytest.raises((VerificationError, InvalidCheckpointError)) as raised:
            result.raise_if_not_ok()
        assert all(str(finding) in str(raised.value) for finding in result.findings)
        with refuses(ArgumentError, "argument.choice"):
            result.by_kind("nothing")


def test_a_finding_of_a_file_and_of_a_rank_begins_with_it() -> None:
    assert str(Finding("a\n", "it differs", "rank 1")) == "rank 1: 'a\\n': it differs"
    file = Finding(
        None, "it ends early", "a.pt!/data.pkl", "broken", code="MW-1", rule="zip.end", help="fetch it again"
    )
    assert str(file) == "a.pt!/data.pkl: it ends early [MW-1 zip.end]"


def test_many_findings_are_counted_and_the_first_ones_listed() -> None:
    comparison = FingerprintComparison(tuple(Finding(f"t{number}", "<no>") for number in range(300)), 300)
    assert len(repr(comparison)) < 200
    assert str(comparison).splitlines()[-2:] == ["'t99': <no>", "and 200 more"]
    with refuses(VerificationError, "model.differs") as raised:
        comparison.raise_if_not_ok()
    assert raised.value.findings == comparison.findings
    assert raised.value.tensor == "t0"
    assert comparison._repr_html_().count("&lt;no&gt;") == 100
    assert len(json.loads(comparison.to_json())["findings"]) == 300


def test_a_validation_counts_notes_if_it_is_asked_to(tmp_path: Path) -> None:
    path = _path(tmp_path, weight=np.full((2, 3), np.nan, "float32"))
    report = max_weights.validate(path, level="content")
    report.raise_if_not_ok("error")
    with refuses(InvalidCheckpointError, "checkpoint.invalid") as raised:
        report.raise_if_not_ok("note")
    assert raised.value.report is report
    assert "help: " in str(report)
    with refuses(ArgumentError, "argument.choice"):
        report.raise_if_not_ok("bogus")  # type: ignore[arg-type]


def test_a_difference_keeps_what_was_measured(tmp_path: Path) -> None:
    one = _path(tmp_path, a=ONE, b=ONE.reshape(6), c=np.arange(5.0), gone=np.ones(7, "float16"))
    two = tmp_path / "two.safetensors"
    save_file({"a": TWO, "b": ONE, "d": np.arange(5.0)}, two, metadata={"k": "v"})
    found = max_weights.diff(one, two)
    gone, renamed, shape, value, key = found.findings
    assert (gone.kind, gone.dtypes, gone.shapes) == ("removed", ("float16",), ((7,),))
    assert gone.message == "only the first has it: float16 [7], 14 bytes"
    assert (renamed.kind, renamed.name, renamed.other) == ("renamed", "c", "d")
    assert (shape.kind, shape.shapes) == ("changed", ((6,), (2, 3)))
    assert value.values is not None
    assert (value.values["largest"], value.values["at"]) == (1.0, [1.0, 2.0])
    assert (key.kind, key.name) == ("metadata", "k")
    assert found.metadata == {"k": (None, "v")}
    assert json.loads(found.to_json())["findings"][3]["values"]["differing"] == 6
    assert [finding.kind for finding in max_weights.diff({"a": ONE}, {"a": ONE, "b": TWO}).findings] == ["added"]
    assert max_weights.diff(_module(), {"weight": ONE}, threads=1)
    assert max_weights.diff(two, max_weights.load_weights(two).load(), metadata=True)  # memory has no metadata


def test_what_has_no_files_is_not_validated(tmp_path: Path) -> None:
    path = _path(tmp_path, weight=ONE)
    data = path.read_bytes()
    source = max_weights.remote.source(lambda ranges: [data[a:b] for a, b in ranges], len(data), name=str(path))
    weights = max_weights.load_weights(path)
    closed = max_weights.load_weights(path)
    closed.close()
    for given in (str(path), [path], weights, weights.weight, [weights, path]):
        assert max_weights.validate(given)
        assert max_weights.assert_checkpoint_ok(given).files
    for wrong in (source, max_weights.load_weights(source), {"weight": ONE}, _module(), 3, None, b"a"):
        with refuses(ArgumentError, "argument.type"):
            max_weights.validate(wrong)  # type: ignore[arg-type]
    with pytest.raises(max_weights.ClosedError):
        max_weights.validate(closed)
    with refuses(ArgumentError, "argument.type"):
        max_weights.bench({"weight": ONE})  # type: ignore[arg-type]
