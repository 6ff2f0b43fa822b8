"""Every result that can be bad is true exactly if it is `ok`: `assert verify_loaded(...)` fails where it should."""

from __future__ import annotations

import inspect
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
from max_weights import fingerprint
from max_weights.nn import LoadReport
from max_weights.tasks import TasksResult
from max_weights.torch import VerificationReport, load_into, verify_loaded
from max_weights.types import FingerprintComparison

ONE = np.ones((2, 3), dtype="float32")
TWO = np.full((2, 3), 2, dtype="float32")


def _module() -> torch.nn.Module:
    module = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.ones_(module.weight)
    return module


def _path(folder: Path, **tensors: np.ndarray) -> Path:
    said = [f"{name}-{one.flat[0]}-{len(one)}" for name, one in tensors.items()]
    path = folder / f"{'-'.join(said)}.safetensors"
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
    """A class of the package that has `ok` has its truth as well, and is in the table above."""
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
                assert "__bool__" in vars(kind), kind
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
    report = VerificationReport((), ("a", "b"), 1, 0.0, compared=2)
    assert str(report) == "2 parameters and buffers were compared, 0 findings"


def test_a_report_of_a_load_that_left_buffers_alone_is_ok() -> None:
    assert LoadReport((), (), non_persistent=("computed",))
    assert not LoadReport(("a",), ())
    assert not LoadReport((), ("a",))
