"""Validation of checkpoints and of their folders: that they are complete, safe, and what they claim to be.

No code of a file is ever executed, and which packages are installed does not change the verdict.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from max_weights import _core
from max_weights._core import WeightsNode, escape
from max_weights._finding import Finding
from max_weights._html import count, details, table
from max_weights._progress import progress_of
from max_weights._result import Result, error_lines
from max_weights._saved_paths import place_text
from max_weights._threads import threads_of_call
from max_weights.errors import ArgumentError, WeightsError

if TYPE_CHECKING:
    from typing import Self

    from max_weights._checkpoints import Checkpoint
    from max_weights._finding import Severity
    from max_weights._progress import Progress
    from max_weights._typing import JSONObject

__all__ = ["InvalidCheckpointError", "Report", "assert_checkpoint_ok", "files_of", "validate"]

StrPath = str | os.PathLike[str]
Level = Literal["header", "structure", "content"]
Verdict = Literal["clean", "accepted", "unknown", "faulty", "broken", "needs-trust", "malicious"]
Format = Literal["text", "json", "junit", "sarif", "github", "gitlab", "html"]

_SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
_SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".json": "json",
    ".xml": "junit",
    ".sarif": "sarif",
    ".html": "html",
}


class GlobalUse(NamedTuple):
    """A class or function that a pickle names."""

    module: str
    name: str
    safety: Literal["innocuous", "suspicious", "dangerous"]


class FileReport(NamedTuple):
    """The result for one file."""

    path: str
    kind: str
    """The kind of the file, recognised by its bytes, such as `safetensors`, `PyTorch`, `pickle`."""
    bytes: int
    depth: Literal["not_looked_at", "recognised", "header", "structure", "content"]
    """How deeply it was examined."""
    answer: Verdict
    """The worst of its findings. If none has one: "faulty" with a warning, "accepted" with one that is excluded,
    "unknown" if the file was not examined, and "clean" otherwise."""
    note: str | None
    """Why it was not examined more deeply."""
    tensors: int | None
    parameters: int | None
    globals: tuple[GlobalUse, ...]


class Report(Result):
    """The result of a validation: `files`, and `findings` by file, the worst of each first.

    Kinds of findings: "malicious", "needs-trust", "broken", "faulty", "note". It is ok if there are only notes.
    """

    _KINDS = ("malicious", "needs-trust", "broken", "faulty", "note")

    def __init__(self, report: _core.Report) -> None:
        self._report = report
        data: JSONObject = json.loads(report.render("json"))
        self.level: Level = data["level"]
        self.answer: Verdict = data["answer"]
        """The overall verdict: "malicious", "needs-trust", "broken", "faulty" (a warning about something else),
        "accepted" (nothing but what `rules`, `ignore` or `severity` exclude), "unknown" (no file was examined) or
        "clean"."""
        self.files: tuple[FileReport, ...] = tuple(map(_file, data["files"]))
        """Each file: `path`, `kind` (recognised by its bytes, such as `safetensors`), `bytes`, `depth` (how deeply it
        was examined, and in `note` why not more deeply), `answer` (the worst of its findings), the numbers of `tensors`
        and `parameters`, and `globals`: `module`, `name` and `safety` of what pickles name."""
        self.findings: tuple[Finding, ...] = tuple(map(_finding, data["findings"]))

    @property
    def ok(self) -> bool:
        """Whether nothing worse than notes was found: `answer` is "clean", "accepted" or "unknown"."""
        return self._report.is_ok

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of this severity and above.

        Args:
            severity: The lowest severity to return: "note", "warning" or "error".

        Returns:
            Those findings, the worst of each file first.

        Raises:
            ArgumentError: Another severity (a ValueError).

        Example:
            >>> max_weights.validate("model.safetensors").at_least("error")
            ()
        """
        if severity not in _SEVERITIES:
            raise ArgumentError(
                f"a severity is {', '.join(map(repr, _SEVERITIES))}, not {severity!r}", rule="argument.choice"
            )
        least = _SEVERITIES.index(severity)
        return tuple(finding for finding in self.findings if _SEVERITIES.index(finding.severity) >= least)

    def raise_if_not_ok(self, fail_on: Severity = "warning") -> Self:
        """Raise an error that lists the findings, if there are any of this severity.

        Args:
            fail_on: The lowest severity that counts: "note", "warning" or "error".

        Returns:
            The report itself.

        Raises:
            InvalidCheckpointError: There is such a finding.
            ArgumentError: Another severity (a ValueError).

        Example:
            >>> max_weights.validate("model.safetensors").raise_if_not_ok()
            <Report: ok, 1 file, 0 findings: clean>
        """
        __tracebackhide__ = True
        if wrong := self.at_least(fail_on):
            raise InvalidCheckpointError(error_lines(count(len(wrong), "finding"), wrong), self)
        return self

    def render(self, format: Format = "text") -> str:
        """Return the report as `max-weights validate --output FORMAT` writes it.

        Args:
            format: "text", "json", "junit", "sarif", "github", "gitlab" or "html".

        Returns:
            The report.

        Raises:
            ValueError: Another format.

        Example:
            >>> max_weights.validate("model.safetensors").render("junit")
            '<?xml version="1.0" ...
        """
        return self._report.render(format)

    def write(self, path: StrPath, format: Format | None = None) -> None:
        """Write the report to a file. A checked file, or one that is not text, is not replaced.

        Args:
            path: The file.
            format: As for `render`; `None` chooses by the suffix: .txt, .json, .xml (JUnit), .sarif, .html.

        Raises:
            ValueError: Another suffix or format.
            OSError: The file cannot be written.

        Example:
            >>> max_weights.validate("model.safetensors").write("report.sarif")
        """
        path = Path(path)
        if format is None:
            format = _SUFFIXES.get(path.suffix.lower())
        if format is None:
            raise ValueError(
                f"the suffix of {path} does not name a format: give format=, or one of {', '.join(_SUFFIXES)}"
            )
        place_text(path, self.render(format), (file.path for file in self.files))

    def _summary(self) -> str:
        return f"{count(len(self.files), 'file')}, {count(len(self.findings), 'finding')}: {self.answer}"

    def _facts(self) -> dict[str, object]:
        files = [file._asdict() | {"globals": [use._asdict() for use in file.globals]} for file in self.files]
        return {"level": self.level, "answer": self.answer, "files": files}

    def _parts(self) -> Iterator[str]:
        files = table(
            ("file", "kind", "bytes", "looked at", "answer"),
            ((file.path, file.kind, file.bytes, file.depth.replace("_", " "), file.answer) for file in self.files),
            total=len(self.files),
            numbers=("bytes",),
            code=("file",),
        )
        yield details("files", "", files, is_open=False)


class InvalidCheckpointError(WeightsError, AssertionError):
    """A checkpoint has faults; `report` has the findings."""

    rule = "checkpoint.invalid"

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def validate(
    *checkpoints: Checkpoint,
    level: Level = "structure",
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    severity: Severity = "note",
    threads: int | None = None,
    max_memory: int | None = None,
    timeout: float | None = None,
    progress: Progress | bool | None = None,
) -> Report:
    """Validate every file below these paths. The content of a file decides its format, not its name.

    Nothing in the files is executed, and one bad file does not hide another.

    Args:
        checkpoints: Files, folders, indexes, URLs of these, or `ORG/MODEL[@REVISION]` in the local Hugging Face cache;
            lists of them; trees, whose files are validated.
        level: How deep to look. The headers of weights are "header"; "structure" adds everything but the values:
            pickles, archives, configurations; "content" adds every byte.
        rules: Check only these rules: full codes (`MW-EX-101`), prefixes of codes (`MW-EX`), names of rules, or
            "security".
        ignore: Rules that are not checked, in the same form.
        severity: Exclude findings below this severity: "note", "warning" or "error".
        threads: How many files are examined at the same time; `None` for the number of processors.
        max_memory: Bytes of memory for unpacked data; more goes to a temporary file.
        timeout: Seconds after which the remaining files are listed as not examined.
        progress: True for a bar on standard error or in a notebook, or a function of the bytes done and the total.

    Returns:
        The findings, by file; true if nothing is worse than a note. Its `answer` is the overall verdict.

    Raises:
        OSError: A path does not exist.
        ArgumentError: Something without files, such as tensors in memory or a source (a ValueError).
        ValueError: An unknown rule, level or severity.

    Example:
        >>> max_weights.validate("model.safetensors", level="content")
        <Report: ok, 1 file, 0 findings: clean>
    """
    paths = [path for checkpoint in checkpoints for path in files_of(checkpoint, "validate")]
    if not paths:
        raise ArgumentError("validate needs a checkpoint", rule="argument.type")
    report, finish = progress_of(progress)
    try:
        with threads_of_call(threads):
            result = _core.validate_files(
                paths,
                level=level,
                select=_words(rules),
                ignore=_words(ignore),
                severity=severity,
                jobs=threads,
                max_memory=max_memory,
                timeout=timeout,
                progress=report,
            )
    finally:
        finish()
    return Report(result)


def assert_checkpoint_ok(*checkpoints: Checkpoint, fail_on: Severity = "warning", **options: Any) -> Report:
    """Raise an `InvalidCheckpointError` (an `AssertionError`) if these checkpoints have faults; for use in tests.

    Args:
        checkpoints: As for `validate`.
        fail_on: The lowest severity that counts as a fault: "note", "warning" or "error".
        options: Those of `validate`.

    Returns:
        The report.

    Raises:
        InvalidCheckpointError: There is a fault.
        ArgumentError: `fail_on` is no severity, or as for `validate` (a ValueError).

    Example:
        >>> max_weights.assert_checkpoint_ok("model.safetensors", level="content").answer
        'clean'
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and not those of this function
    return validate(*checkpoints, **options).raise_if_not_ok(fail_on)


def files_of(checkpoint: Checkpoint, verb: str) -> list[StrPath]:
    """Return the paths of a checkpoint; for a tree those of its files.

    Raises:
        ArgumentError: it has no paths that can be opened again.
    """
    if isinstance(checkpoint, (str, os.PathLike)):
        return [checkpoint]
    without = f"{verb} examines files, and a {escape(type(checkpoint).__name__)} has none"
    if isinstance(checkpoint, WeightsNode):
        _core.infos(checkpoint)  # raises WeightNotFoundError for a name that does not exist
        paths = _core.files(checkpoint)
        for path, (_, is_object, _) in zip(paths, _core.file_identities(checkpoint), strict=True):
            if is_object and ("://" not in path or path.startswith("memory:")):
                raise ArgumentError(
                    f"{without}: it reads from '{escape(path)}', which is in memory or a source", rule="argument.type"
                )
        return list(paths)
    if isinstance(checkpoint, (bytes, bytearray, Mapping)) or not isinstance(checkpoint, Iterable):
        raise ArgumentError(f"{without}: give a path, a list of paths, a URL or a tree", rule="argument.type")
    return [path for one in checkpoint for path in files_of(one, verb)]


def _words(words: str | Iterable[str]) -> list[str]:
    return words.split(",") if isinstance(words, str) else list(words)


def _file(entry: JSONObject) -> FileReport:
    uses = tuple(GlobalUse(use["module"], use["name"], use["safety"]) for use in entry.get("pickleImports") or ())
    values = [entry.get(name) for name in FileReport._fields if name != "globals"]
    return FileReport._make([*values, uses])


def _finding(entry: JSONObject) -> Finding:
    severity, answer, member = entry["severity"], entry["answer"], entry.get("member")
    known: JSONObject = {
        name: entry.get(name) for name in ("code", "rule", "path", "member", "offset", "help", "evidence")
    }
    place = entry["path"] + (f"!/{member}" if member else "")
    kind = "note" if severity == "note" else answer
    return Finding(entry.get("tensor"), entry["message"], place, kind, severity, **known)
