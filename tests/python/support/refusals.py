"""Errors in tests: their class, their code and their text.

    with refuses(FormatError, "safetensors.overlap") as caught:
        load_weights(path)

The text is compared with a snapshot, `messages/test_x.json` for `test_x.py`, by the test and, from its second error
on, by their number. `SNAPSHOTS=overwrite pytest …` writes the texts of the tests that it runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from max_weights.errors import WeightsError

__all__ = ["PLACES", "collect", "finish", "passed", "refuses", "stable", "text_file"]

ROOT = Path(__file__).resolve().parents[3]
OVERWRITE = os.environ.get("SNAPSHOTS") == "overwrite"
HOW = "if it is right, write it with `SNAPSHOTS=overwrite pytest {}`"

PLACES = {
    str(ROOT): "<repository>",
    os.environ.get("MAX_WEIGHTS_MODELS", str(ROOT / ".models")): "<models>",
    sys.prefix: "<python>",
    tempfile.gettempdir(): "<tmp>",
}
"""Folders of this machine, and what stands for them."""
# What differs from run to run: folders of tests, ports, addresses of objects, lines of tests, durations, and
# digests of random data.
_VOLATILE = [
    (re.compile(r"<tmp>/(\w+\d+|tmp\w{8})(?![\w.])"), "<tmp>"),
    (re.compile(r"\b(127\.0\.0\.1|localhost):\d+"), r"\1:<port>"),
    (re.compile(r"\b0x[0-9a-f]{8,}\b"), "0x…"),
    (re.compile(r"\b(test_\w+\.py):\d+"), r"\1:<line>"),
    (re.compile(r"\b\d+\.\d+ s\b"), "… s"),
    (re.compile(r"\bsha256:[0-9a-f]{64}\b"), "sha256:…"),
]

_times: Counter[str] = Counter()
_known: dict[Path, dict[str, str]] = {}
_new: defaultdict[Path, dict[str, str]] = defaultdict(dict)
_collected: defaultdict[Path, set[str]] = defaultdict(set)
_passed: defaultdict[Path, set[str]] = defaultdict(set)


class refuses:
    """Check that the block raises such an error, with this code and the text of the snapshot.

    Without a code here, that of an error of this package is in the snapshot, in front of its text.
    """

    # No generator with contextlib: its frame would be in the traceback, and keep the error and its memory in a circle.
    def __init__(self, kind: type[BaseException] | tuple[type[BaseException], ...], rule: str | None = None) -> None:
        self._raises, self._rule = pytest.raises(kind), rule

    def __enter__(self) -> pytest.ExceptionInfo[BaseException]:
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(self, *raised: Any) -> bool:
        if not self._raises.__exit__(*raised):
            return False
        error = self._caught.value
        del self._caught
        text, found = str(error), error.rule if isinstance(error, WeightsError) else None
        if self._rule is not None:
            assert found == self._rule, f"{found!r} is the code, not {self._rule!r}: {text}"
        elif found is not None:
            text = f"{found}: {text}"
        _compare(stable(text))
        return True


def stable(text: str) -> str:
    """The text without what differs from run to run, or from machine to machine."""
    for place in sorted(PLACES, key=len, reverse=True):
        text = text.replace(place, PLACES[place])
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    return text


def text_file(test_file: Path) -> Path:
    """The snapshot of a file of tests."""
    return test_file.parent / "messages" / f"{test_file.stem}.json"


def _compare(text: str) -> None:
    node = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    name, _, test = node.partition("::")
    file = text_file(ROOT / name)
    _times[node] += 1
    key = test if _times[node] == 1 else f"{test} #{_times[node]}"
    _new[file][key] = text
    if OVERWRITE:
        return
    expected = _texts(file).get(key)
    assert expected is not None, f"no text is known for {key!r}; {HOW.format(name)}:\n{text}"
    assert text == expected, f"the text of {key!r} changed; {HOW.format(name)}:\n{text}\ninstead of:\n{expected}"


def _texts(file: Path) -> dict[str, str]:
    if file not in _known:
        _known[file] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return _known[file]


def collect(items: Iterable[pytest.Item]) -> None:
    """Note all tests of the files that are run, before some are left out."""
    for item in items:
        _collected[text_file(item.path)].add(item.nodeid.partition("::")[2])


def passed(item: str) -> None:
    """Note a test whose errors are all known now."""
    name, _, test = item.partition("::")
    _passed[text_file(ROOT / name)].add(test)


def finish(test_file: Path, *, is_whole: bool) -> None:
    """At the end of a file of tests: write its texts, or check that each one was used."""
    file = text_file(test_file)
    known, new = _texts(file), _new[file]
    tests = {key: re.sub(r" #\d+$", "", key) for key in known}
    unused = {
        key
        for key, test in tests.items()
        if key not in new and (test in _passed[file] or (is_whole and test not in _collected[file]))
    }
    if not OVERWRITE:
        assert not unused, f"no error has these texts; {HOW.format(test_file.name)}: {sorted(unused)}"
        return
    kept = {key: text for key, text in known.items() if key not in unused} | new
    if kept == known:
        return
    if kept:
        file.parent.mkdir(exist_ok=True)
        text = json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False)
        file.write_text(f"{text}\n", encoding="utf-8")
    else:
        file.unlink(missing_ok=True)
