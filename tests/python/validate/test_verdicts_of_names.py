"""One list of names: a class or function named by a file has one verdict at every entry point."""

import _compat_pickle
import json
from pathlib import Path

import pytest

import max_weights
from command_line import run
from corpora import attacks, composed
from corpora.item import write
from max_weights._core import torch_globals

# The words of the Hugging Face hub for the verdicts.
SAFETY = {"harmless": "innocuous", "library": "suspicious", "needs-trust": "suspicious", "runs-code": "dangerous"}
# A function that unpickles its argument may run code; scan follows the argument, and reports its content.
FOLLOWED = "torch.storage._load_from_bytes"


def now(name: str) -> str:
    """Return the Python 3 name of a Python 2 name, as scan reports it for pickles of every protocol."""
    module, _, last = name.rpartition(".")
    pair = _compat_pickle.NAME_MAPPING.get((module, last))
    return ".".join(pair or (_compat_pickle.IMPORT_MAPPING.get(module, module), last))


@pytest.mark.filterwarnings("ignore")
def test_every_entry_point_has_one_verdict_on_a_name(tmp_path: Path) -> None:
    write(attacks.items(), tmp_path / "attacks")
    write(composed.attacks(60, 3), tmp_path / "composed")
    write(composed.good(40, 3), tmp_path / "good")
    listed: dict[str, dict[str, set[str]]] = {}
    listing = run("globals", "--json", tmp_path, timeout=280)
    for entry in json.loads(listing.stdout)["globals"]:
        listed.setdefault(entry["file"], {}).setdefault(entry["name"], set()).add(entry["verdict"])
    # A report has the same verdicts in the words of the hub.
    output = tmp_path / "report.json"
    run(
        "scan",
        "--output",
        f"json={output}",
        tmp_path / "attacks",
        tmp_path / "composed",
        tmp_path / "good",
        timeout=280,
    )
    reported: dict[str, dict[str, set[str]]] = {}
    for file in json.loads(output.read_text(encoding="utf-8"))["files"]:
        for use in file["pickleImports"]:
            names = reported.setdefault(file["path"], {})
            names.setdefault(f"{use['module']}.{use['name']}", set()).add(use["safety"])
    assert reported == {
        file: {name: {SAFETY[verdict] for verdict in verdicts} for name, verdicts in names.items()}
        for file, names in listed.items()
    }
    # Opening a file uses another pickle machine, but the same list.
    opened, differs = 0, []
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()):
        try:
            weights = max_weights.load_weights(path)
        except (max_weights.WeightsError, OSError):
            continue
        for file, name, _, verdict in torch_globals(weights):
            opened += 1
            names = listed.get(str(file), {})
            scanned = names.get(name) or names.get(now(name), {"not listed"})
            if verdict not in scanned and name != FOLLOWED:
                differs.append((file, name, verdict, scanned))
        weights.close()
    assert differs == []
    assert opened > 200, "hardly any file was opened"
