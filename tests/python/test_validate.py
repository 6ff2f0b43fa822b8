"""Validation from Python: the report as data, and what tests say of it."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import max_weights
from conftest import safetensors_bytes
from max_weights.checking import Report, validate


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
    assert (file.kind, file.bytes, file.depth, file.tensors, file.parameters) == ("safetensors", 88, "structure", 1, 4)
    assert repr(report) == "<Report: 1 files, 0 findings, clean>"


def test_a_payload_is_malicious_wherever_it_lies_and_hides_nothing_else(tmp_path: Path) -> None:
    good(tmp_path)
    payload = pickle.dumps(Payload())
    (tmp_path / "training_args.bin").write_bytes(payload)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("inner/hook.pkl", payload)
    (tmp_path / "optimizer.pt").write_bytes(archive.getvalue())
    (tmp_path / "empty.bin").write_bytes(b"")
    report = validate(tmp_path, select="security")
    answers = {Path(file.path).name: file.answer for file in report.files}
    assert answers == {
        "empty.bin": "broken",
        "model.safetensors": "clean",
        "optimizer.pt": "malicious",
        "training_args.bin": "malicious",
    }
    assert report.answer == "malicious"
    calls = [finding for finding in report.findings if finding.answer == "malicious"]
    assert any("system('true')" in (finding.evidence or "") for finding in calls)
    assert {finding.member for finding in calls} >= {"inner/hook.pkl", None}


def test_reports_are_written_by_their_suffix(tmp_path: Path) -> None:
    report = validate(good(tmp_path))
    report.write(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "max-weights.validate/1"
    report.write(tmp_path / "report.sarif")
    assert json.loads((tmp_path / "report.sarif").read_text())["version"] == "2.1.0"
    with pytest.raises(ValueError, match="says no format"):
        report.write(tmp_path / "report.docx")
    assert "1 file" in str(report)
    assert "<details" in report._repr_html_()


def test_a_test_says_what_is_wrong(tmp_path: Path, checkpoint_ok: Callable[..., Report]) -> None:
    path = good(tmp_path)
    assert checkpoint_ok(path).ok
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(AssertionError, match=r"model\.safetensors.*MW-ST-\d+ safetensors") as caught:
        checkpoint_ok(path)
    assert isinstance(caught.value, max_weights.InvalidCheckpointError)
    assert caught.value.report.answer == "broken"


def test_wrong_arguments(tmp_path: Path) -> None:
    path = good(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"did you mean .*model\.safetensors"):
        validate(tmp_path / "modell.safetensors")
    with pytest.raises(ValueError, match="no rule is called 'MW-XX'"):
        validate(path, select=["MW-XX"])
    with pytest.raises(ValueError, match="level is"):
        validate(path, level="deep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a path"):
        validate()


def test_a_link_that_leads_nowhere_is_a_finding_beside_the_others(tmp_path: Path) -> None:
    good(tmp_path)
    (tmp_path / "weights.bin").symlink_to(tmp_path / "gone")
    report = validate(tmp_path)
    (finding,) = report.findings
    assert (finding.rule, finding.answer, Path(finding.path).name) == ("file.unreadable", "broken", "weights.bin")
    assert [file.depth for file in report.files] == ["structure", "not_looked_at"]


def test_progress_and_its_exception(tmp_path: Path) -> None:
    path = good(tmp_path)
    told: list[tuple[int, int]] = []
    validate(path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (88, 88)

    def stop(_done: int, _total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        validate(path, progress=stop)
