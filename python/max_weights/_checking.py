"""Validation of checkpoints and of their folders: that they are complete, safe, and what they claim to be.

No code of a file is ever executed, and which packages are installed does not change the verdict.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from max_weights import _core
from max_weights._core import shown
from max_weights._html import bad, count, details, table, view
from max_weights._progress import progress_of
from max_weights._saved_paths import place_text
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._progress import Progress
    from max_weights._typing import JSONObject

__all__ = ["FileReport", "Finding", "GlobalUse", "InvalidCheckpointError", "Report", "assert_checkpoint_ok", "validate"]

StrPath = str | os.PathLike[str]
Level = Literal["header", "structure", "content"]
Severity = Literal["note", "warning", "error"]
Answer = Literal["clean", "faulty", "broken", "needs-trust", "malicious"]
Verdict = Answer | Literal["unknown", "accepted"]
Format = Literal["text", "json", "junit", "sarif", "github", "gitlab", "html"]

_SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
_SHOWN = 20
"""How many findings the message of an error quotes."""
_SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".json": "json",
    ".xml": "junit",
    ".sarif": "sarif",
    ".html": "html",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule, and where it was broken."""

    code: str
    """The code of the rule, such as `MW-ST-014`; `max-weights explain CODE` says more about it."""
    rule: str
    """The name of the rule, such as `safetensors.overlap`."""
    severity: Severity
    answer: Answer
    """What is to be said of the file by this finding alone; "clean" by a note."""
    path: str
    member: str | None
    """The member of an archive; members of archives within it follow after `!/`."""
    tensor: str | None
    offset: int | None
    """The position in bytes in the file, or in the member if there is one."""
    message: str
    help: str
    """What to do about it."""
    evidence: str | None
    """What the file contains there, such as the call as Python would write it."""


@dataclass(frozen=True, slots=True)
class GlobalUse:
    """A class or function that a pickle names."""

    module: str
    name: str
    safety: Literal["innocuous", "suspicious", "dangerous"]


@dataclass(frozen=True, slots=True)
class FileReport:
    """What was found out about one file."""

    path: str
    kind: str
    """The kind of the file, recognised by its bytes, such as `safetensors`, `PyTorch`, `pickle`."""
    bytes: int
    depth: Literal["not_looked_at", "recognised", "header", "structure", "content"]
    """How deeply it was examined."""
    answer: Verdict
    """The worst answer among its findings; without one "faulty" with a warning, "accepted" with one that is left out,
    "unknown" if the file was not examined, and "clean" otherwise."""
    note: str | None
    """Why it was not examined more deeply."""
    tensors: int | None
    parameters: int | None
    globals: tuple[GlobalUse, ...]


class Report:
    """The result of a validation: `files`, and `findings` by file, the worst of each first.

    A report is true if it is `ok`. `str(report)` is the text that the command line prints; a notebook shows a table.
    """

    def __init__(self, report: _core.Report) -> None:
        self._report = report
        data: JSONObject = json.loads(report.render("json"))
        self.level: Level = data["level"]
        self.answer: Verdict = data["answer"]
        """What it comes to: "malicious", "needs-trust", "broken", "faulty" (a warning about something else), "accepted"
        (nothing but what `select`, `ignore` or `severity` leave out), "unknown" (no file was examined) or "clean"."""
        self.files: tuple[FileReport, ...] = tuple(_file(entry) for entry in data["files"])
        self.findings: tuple[Finding, ...] = tuple(_of(Finding, entry) for entry in data["findings"])

    @property
    def ok(self) -> bool:
        """Whether nothing worse than notes was found: `answer` is "clean", "accepted" or "unknown"."""
        return self._report.is_ok

    def __bool__(self) -> bool:
        return self.ok

    def at_least(self, severity: Severity) -> Iterator[Finding]:
        """Return the findings of this severity and above: "note", "warning" or "error".

        Raises:
            ArgumentError: Another severity (a ValueError).
        """
        if severity not in _SEVERITIES:
            raise ArgumentError(f"a severity is {', '.join(map(repr, _SEVERITIES))}, not {severity!r}")
        least = _SEVERITIES.index(severity)
        return (finding for finding in self.findings if _SEVERITIES.index(finding.severity) >= least)

    def render(self, format: Format = "text") -> str:
        """Return the report as `max-weights validate --output FORMAT` writes it."""
        return self._report.render(format)

    def write(self, path: StrPath, format: Format | None = None) -> None:
        """Write the report to a file.

        Without a format, the suffix decides: .txt, .json, .xml (JUnit), .sarif, .html. A file that was checked, or that
        is no text, is not replaced.
        """
        path = Path(path)
        if format is None:
            format = _SUFFIXES.get(path.suffix.lower())
        if format is None:
            raise ValueError(
                f"the suffix of {path} does not name a format: give format=, or one of {', '.join(_SUFFIXES)}"
            )
        place_text(path, self.render(format), (file.path for file in self.files))

    def __str__(self) -> str:
        return self.render("text")

    def __repr__(self) -> str:
        return f"<Report: {count(len(self.files), 'file')}, {count(len(self.findings), 'finding')}, {self.answer}>"

    def _repr_html_(self) -> str:
        rows = ((_word(finding), *_row(finding), shown(finding.evidence or "")) for finding in self.findings)
        columns, long = ("", "rule", "where", "what", "evidence"), ("where", "what", "evidence")
        findings = table(columns, rows, total=len(self.findings), code=("rule", "evidence"), long=long)
        files = table(
            ("file", "kind", "bytes", "looked at", "answer"),
            ((file.path, file.kind, file.bytes, file.depth.replace("_", " "), file.answer) for file in self.files),
            total=len(self.files),
            numbers=("bytes",),
            code=("file",),
        )
        about = f"{count(len(self.files), 'file')}, {count(len(self.findings), 'finding')}"
        title = self.answer if self.ok else bad(self.answer)
        return view(title, about, findings, details("files", "", files, is_open=False))


class InvalidCheckpointError(AssertionError):
    """Raised for a checkpoint that is not as it should be; `report` has the findings."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def validate(
    *paths: StrPath,
    level: Level = "structure",
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    severity: Severity = "note",
    jobs: int | None = None,
    max_memory: int | None = None,
    timeout: float | None = None,
    progress: Progress | bool | None = None,
) -> Report:
    """Validate every file below these paths, recognised by its bytes.

    Nothing in the files is executed, and one bad file does not hide another.

    Args:
        paths: Files, folders, indexes, URLs of these, or `ORG/MODEL[@REVISION]` in the local Hugging Face cache.
        level: "header" (what the headers of weights say), "structure" (everything but the values: pickles, archives,
            configurations) or "content" (every byte).
        select: Check only these rules: codes (`MW-EX-101`), beginnings of codes (`MW-EX`), names, or "security".
        ignore: Do not check these rules.
        severity: Leave out findings below this severity: "note", "warning" or "error".
        jobs: How many files are examined at the same time; `None` for the number of processors.
        max_memory: Bytes of memory for unpacked data; whatever needs more goes to a temporary file.
        timeout: Seconds after which the remaining files are listed as not examined.
        progress: True for a bar on standard error or in a notebook, or a function of the bytes done and the total.

    Raises:
        OSError: A path does not exist.
        ArgumentError: Something that is not a path (a ValueError).
        ValueError: An unknown rule, level or severity.
    """
    if not paths:
        raise ValueError("validate needs a path")
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(
                f"validate examines files, before they are opened, not a {shown(type(path).__name__)}: give the paths "
                "of the files or folders"
            )
    report, finish = progress_of(progress)
    try:
        result = _core.validate_files(
            list(paths),
            level=level,
            select=_words(select),
            ignore=_words(ignore),
            severity=severity,
            jobs=jobs,
            max_memory=max_memory,
            timeout=timeout,
            progress=report,
        )
    finally:
        finish()
    return Report(result)


def assert_checkpoint_ok(*paths: StrPath, fail_on: Severity = "warning", **options: Any) -> Report:
    """Raise an `InvalidCheckpointError` (an `AssertionError`) if these paths have faults; for use in tests.

    Args:
        paths: As for `validate`.
        fail_on: The lowest severity that counts as a fault: "note", "warning" or "error".
        options: Those of `validate`.

    Raises:
        InvalidCheckpointError: There is a fault.
        ArgumentError: `fail_on` is no severity, or a path is none (a ValueError).
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and not those of this function
    report = validate(*paths, **options)
    wrong = list(report.at_least(fail_on))
    if wrong:
        lines = [f"{_place(finding)}: {finding.message} [{finding.code} {finding.rule}]" for finding in wrong[:_SHOWN]]
        if len(wrong) > _SHOWN:
            lines.append(f"… and {len(wrong) - _SHOWN} more")
        raise InvalidCheckpointError("\n".join([f"{count(len(wrong), 'finding')}:", *lines]), report)
    return report


def _words(words: str | Iterable[str]) -> list[str]:
    return words.split(",") if isinstance(words, str) else list(words)


_T = TypeVar("_T", FileReport, Finding, GlobalUse)


def _of(kind: type[_T], entry: JSONObject) -> _T:
    values: JSONObject = {field.name: entry.get(field.name) for field in fields(kind)}
    return kind(**values)


def _file(entry: JSONObject) -> FileReport:
    uses: Sequence[JSONObject] = entry.get("pickleImports") or ()
    return _of(FileReport, entry | {"globals": tuple(_of(GlobalUse, use) for use in uses)})


def _place(finding: Finding) -> str:
    member = f"!/{finding.member}" if finding.member else ""
    tensor = f": tensor '{shown(finding.tensor)}'" if finding.tensor else ""
    return f"{_core.printable(finding.path)}{member}{tensor}"


def _word(finding: Finding) -> object:
    """Return what a finding is, in a word: the answer about safety, or else how severe it is."""
    if finding.answer in ("malicious", "needs-trust"):
        return bad(finding.answer.replace("-", " "))
    return bad(finding.severity) if finding.severity == "error" else finding.severity


def _row(finding: Finding) -> tuple[str, str, str]:
    return f"{finding.code} {finding.rule}", _place(finding), finding.message
