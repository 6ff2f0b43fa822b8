"""Validation from Python: the report as data, and in assertions of tests."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import max_weights
from conftest import safetensors_bytes
from max_weights._checking import Report, validate
from refusals import refuses


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("true",)


def good(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("F32", [2, 2], bytes(16))}))
    return path


def test_a_good_file_is_clean(tmp_path: Path) -> None:
    report = max_weights.validate(good(tmp_path))
    assert (report.ok, report.answer, report.findings) == (True, "clean", ())
    (file,) = report.files
    assert (file.kind, file.bytes, file.depth, file.tensors, file.parameters) == ("safetensors", 96, "structure", 1, 4)
    assert repr(report) == "<Report: ok, 1 file, 0 findings: clean>"


def test_a_payload_is_malicious_wherever_it_lies_and_hides_nothing_else(tmp_path: Path) -> None:
    good(tmp_path)
    payload = pickle.dumps(Payload())
    (tmp_path / "training_args.bin").write_bytes(payload)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("inner/hook.pkl", payload)
    (tmp_path / "optimizer.pt").write_bytes(archive.getvalue())
    (tmp_path / "empty.bin").write_bytes(b"")
    report = validate(tmp_path, rules="security")
    answers = {Path(file.path).name: file.answer for file in report.files}
    assert answers == {
        "empty.bin": "broken",
        "model.safetensors": "clean",
        "optimizer.pt": "malicious",
        "training_args.bin": "malicious",
    }
    assert report.answer == "malicious"
    calls = [finding for finding in report.findings if finding.kind == "malicious"]
    assert any("system('true')" in (finding.evidence or "") for finding in calls)
    assert {finding.member for finding in calls} >= {"inner/hook.pkl", None}


def test_reports_are_written_by_their_suffix(tmp_path: Path) -> None:
    report = validate(good(tmp_path))
    report.write(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "max-weights.validate/1"
    report.write(tmp_path / "report.sarif")
    assert json.loads((tmp_path / "report.sarif").read_text())["version"] == "2.1.0"
    with refuses(ValueError):
        report.write(tmp_path / "report.docx")
    assert "1 file" in str(report)
    assert "<details" in report._repr_html_()


def test_a_test_says_what_is_wrong(tmp_path: Path, checkpoint_ok: Callable[..., Report]) -> None:
    path = good(tmp_path)
    assert checkpoint_ok(path).ok
    path.write_bytes(path.read_bytes()[:-4])
    with refuses(AssertionError, "checkpoint.invalid") as caught:
        checkpoint_ok(path)
    assert isinstance(caught.value, max_weights.InvalidCheckpointError)
    assert caught.value.report.answer == "broken"


def test_wrong_arguments(tmp_path: Path) -> None:
    path = good(tmp_path)
    with refuses(FileNotFoundError, "file.missing"):
        validate(tmp_path / "modell.safetensors")
    with refuses(ValueError):
        validate(path, rules=["MW-XX"])
    with refuses(ValueError):
        validate(path, level="deep")  # type: ignore[arg-type]
    with refuses(ValueError, "argument.type"):
        validate()


def test_a_link_that_leads_nowhere_is_a_finding_beside_the_others(tmp_path: Path) -> None:
    good(tmp_path)
    (tmp_path / "weights.bin").symlink_to(tmp_path / "gone")
    report = validate(tmp_path)
    (finding,) = report.at_least("warning")
    assert (finding.rule, finding.kind, Path(str(finding.path)).name) == ("file.unreadable", "broken", "weights.bin")
    assert [file.depth for file in report.files] == ["structure", "not_looked_at"]


def test_progress_and_its_exception(tmp_path: Path) -> None:
    path = good(tmp_path)
    reported: list[tuple[int, int]] = []
    validate(path, progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (96, 96)

    def stop(_done: int, _total: int) -> None:
        raise RuntimeError("enough")

    with refuses(RuntimeError):
        validate(path, progress=stop)


def test_statistics_are_columns_that_tables_take(tmp_path: Path) -> None:
    values = np.array([[1, -2, 0], [np.nan, np.inf, 4]], dtype="float32")
    path = tmp_path / "model.safetensors"
    entries = {"a.w": ("F32", [2, 3], values.tobytes()), "b": ("I8", [2], b"\x03\xff"), "c": ("F6_X", [4], bytes(3))}
    path.write_bytes(safetensors_bytes(entries))
    weights = max_weights.load_weights(path)
    table = max_weights.stats(weights)
    first, second, third = table.rows()
    assert (first["name"], first["dtype"], first["shape"]) == ("a.w", "float32", (2, 3))
    assert [first[key] for key in ("count", "zeros", "subnormals", "nans", "infinities")] == [6, 1, 0, 1, 1]
    assert (first["minimum"], first["maximum"], first["mean"]) == (-2.0, 4.0, 0.75)
    assert first["std"] == pytest.approx(np.std([1, -2, 0, 4]))
    assert (second["minimum"], second["maximum"], second["mean"], second["note"]) == (-1, 3, 1.0, None)
    assert third["count"] is None
    assert "F6_X" in third["note"]
    assert max_weights.stats(weights.a)["name"] == ["a.w"]
    assert max_weights.stats(weights, "b")["maximum"] == [3]
    assert repr(table).startswith("<WeightStatistics of 3 weights: name, dtype, shape, count")
    assert ">a.w</td>" in table._repr_html_()
    with pytest.raises(max_weights.WeightNotFoundError):
        max_weights.stats(weights, "d")


def test_diff_of_trees_and_paths(tmp_path: Path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    one = np.arange(6, dtype="float32")
    other = one + np.array([0, 0, 0, 0.5, 0, 0], dtype="float32")
    gone, same = ("I8", [2], b"ab"), ("U8", [1], b"z")
    moved = ("F32", [2], bytes([0, 0, 0, 63, 0, 0, 0, 64]))
    a.write_bytes(safetensors_bytes({"w": ("F32", [6], one.tobytes()), "gone": gone, "same": same, "old": moved}))
    b.write_bytes(safetensors_bytes({"w": ("F32", [6], other.tobytes()), "same": same, "new": moved}))
    found = max_weights.diff(max_weights.load_weights(a), b)
    assert not found
    assert not found.ok
    assert found.same == 1
    assert [weight.name for weight in found.by_kind("removed")] == ["gone"]
    assert [(weight.name, weight.other) for weight in found.by_kind("renamed")] == [("old", "new")]
    (changed,) = found.by_kind("changed")
    assert changed.values is not None
    assert (changed.name, changed.message) == ("w", "1 of 6 values differ, by 0.5 at most")
    assert (changed.values["differing"], changed.values["largest"], changed.values["index"]) == (1, 0.5, [3])
    assert changed.values["at"] == [3.0, 3.5]
    close = max_weights.diff(a, b, atol=0.5)
    assert (close.by_kind("changed"), close.close) == ((), 1)
    assert max_weights.diff(a, a)
    assert ">gone</td>" in found._repr_html_()


def test_diff_of_shards_and_one_file(models: Path) -> None:
    tree = max_weights.load_weights(models / "minilm.safetensors")
    assert max_weights.diff(tree, max_weights.load_weights(models / "derived" / "sharded"))


def test_notebooks_show_the_beginning_of_long_lists(tmp_path: Path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    broken = np.array([np.nan, 1], dtype="float32").tobytes()
    a.write_bytes(safetensors_bytes({f"<b>{number}": ("F32", [2], broken) for number in range(300)}))
    b.write_bytes(safetensors_bytes({"other": ("F32", [2], bytes(8))}))
    text = max_weights.diff(a, b)._repr_html_()
    assert text.count("<tr>") == 1 + 100
    assert "… and 201 more" in text
    assert "<b>0" not in text
    report = validate(a, level="content")
    assert len(report.findings) <= 200
    report.findings *= 5
    text = report._repr_html_()
    assert text.count("<tr>") == 1 + 100 + 1 + len(report.files)
    assert f"… and {len(report.findings) - 100:,} more" in text
    assert "<b>0" not in text
