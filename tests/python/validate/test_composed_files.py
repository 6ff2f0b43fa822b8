"""Files put together at random: no attack is clean and no good file is flagged."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from command_line import run
from corpora import composed
from corpora.item import CLEAN, Item, write

ANSWERS = ["unknown", CLEAN, "broken", "needs-trust", "malicious"]
NOTHING = ("unknown", CLEAN)
# The files of a run; the nightly run has another seed.
SEED, NIGHTLY = 1, 2


def answers(items: Iterable[Item], folder: Path, *options: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The worst answer about each item by its path, and the rules that it breaks beyond a note."""
    written = write(items, folder)
    output = folder / "report.json"
    groups = sorted({item.group for item in written})
    done = run("validate", *options, "--output", f"json={output}", *(folder / group for group in groups), timeout=500)
    assert output.exists(), done.stderr
    assert "panicked" not in done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    worst = {item.path: "unknown" for item in written}
    rules: dict[str, set[str]] = {}
    for message in (*report["files"], *report["findings"]):
        path = "/".join(Path(message["path"]).relative_to(folder).parts[:2])
        worst[path] = max(
            worst[path], message["answer"], key=lambda answer: ANSWERS.index(answer) if answer in ANSWERS else 0
        )
        if message.get("severity", "note") != "note":
            rules.setdefault(path, set()).add(message["rule"])
    return worst, rules


def missed(count: int, seed: int, folder: Path) -> list[str]:
    """The attacks without findings."""
    worst, _ = answers(composed.attacks(count, seed), folder, "--select", "security")
    assert len(worst) == count
    return [path for path, answer in worst.items() if answer in NOTHING]


def flagged(count: int, seed: int, folder: Path) -> dict[str, object]:
    """The good files with findings."""
    worst, rules = answers(composed.good(count, seed), folder)
    assert len(worst) == count
    return {path: rules.get(path) or answer for path, answer in worst.items() if path in rules or answer not in NOTHING}


def test_no_composed_attack_is_clean(tmp_path: Path) -> None:
    assert missed(300, SEED, tmp_path) == []


def test_no_composed_good_file_is_flagged(tmp_path: Path) -> None:
    assert flagged(200, SEED, tmp_path) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_none_of_ten_thousand_composed_attacks_is_clean(part: int, tmp_path: Path) -> None:
    assert missed(1000, NIGHTLY + part, tmp_path) == []


@pytest.mark.nightly
def test_none_of_two_thousand_composed_good_files_is_flagged(tmp_path: Path) -> None:
    assert flagged(2000, NIGHTLY, tmp_path) == {}
