"""Commands on the pages have the shown output; docs/cli.md has all commands, and all keys of the JSON."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import COMMAND, environment, run
from conftest import ROOT, safetensors_bytes

PAGE = (ROOT / "docs" / "cli.md").read_text()
OPTIONS = (ROOT / "docs" / "commands.md").read_text()
# A block of commands, which share a folder. Not `make` and `pip install`, which CI runs.
EXAMPLES = [
    pytest.param(commands, id=f"{page.relative_to(ROOT)}: {commands[0][0]}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for commands in [re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]
    if not commands[0][0].startswith(("make ", "pip install "))
]


@pytest.mark.parametrize("commands", EXAMPLES)
def test_a_command_prints_what_the_page_says(commands: list[tuple[str, str]], models: Path, tmp_path: Path) -> None:
    (tmp_path / ".models").symlink_to(models)
    script = tmp_path / "bin" / "max-weights"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    script.chmod(0o755)
    variables = environment(PATH=f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    for command, expected in commands:
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=variables, capture_output=True, encoding="utf-8")
        printed = done.stdout + done.stderr
        # A line of `...` matches any lines.
        pattern = "".join("(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in expected.splitlines(True))
        assert re.fullmatch(pattern, printed), printed


def commands() -> list[str]:
    """All commands, as the help lists them."""
    listing = run("--help").stdout.split("Commands:")[1].split("Options:")[0]
    return [name for name in re.findall(r"^  (\w+) ", listing, re.MULTILINE) if name != "help"]


def test_the_pages_have_a_section_of_every_command_and_each_of_its_options() -> None:
    assert {"ls", "show", "globals", "diff", "bench", "versions", "completions"} <= set(commands())
    for name in commands():
        assert f"\n## {name}\n" in PAGE, name
        for option in sorted(set(re.findall(r"--[a-z][a-z-]+", run(name, "--help").stdout)) - {"--help"}):
            assert option in OPTIONS, option


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_help_of_every_command_fits_a_screen(columns: str) -> None:
    for arguments in ([], *([name] for name in commands())):
        done = run(*arguments, "--help", COLUMNS=columns)
        assert (done.status, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert len(lines) <= 50, arguments
        assert max(map(len, lines)) <= 100, arguments


class Call:
    """Its pickle would call something."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("called",)


def keys(value: Any) -> Iterator[str]:
    """The keys of an object and of nested ones, except keys that come from a file."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in ("metadata", "dtypes", "packages"):
                yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_every_key_of_the_json_is_on_the_page(tmp_path: Path) -> None:
    entry = ("F32", [2], np.ones(2, np.float32).tobytes())
    odd, pickled = tmp_path / "odd.safetensors", tmp_path / "a.pt"
    odd.write_bytes(safetensors_bytes({"": entry, "w": entry}, metadata={"note": "text"}))
    torch.save({"w": torch.ones(2), "epoch": 3, "call": Call()}, pickled)
    before, after = tmp_path / "before.safetensors", tmp_path / "after.safetensors"
    number, complex_number = ("F32", [1], bytes(4)), ("C64", [1], bytes(8))
    of_a = {"changed": number, "old": entry, "gone": number, "complex": number}
    of_b = {"changed": ("F32", [1], b"abcd"), "new": entry, "come": ("I8", [1], b"a"), "complex": complex_number}
    before.write_bytes(safetensors_bytes(of_a))
    after.write_bytes(safetensors_bytes(of_b, metadata={"note": "another"}))
    page = PAGE.replace("\n", " ")
    manifest = tmp_path / "manifest.json"
    run("manifest", "create", odd, "-o", manifest)
    for arguments in (
        ["ls", "--json", "--no-strict", odd],
        ["ls", "--json", "--no-strict", odd, "--memory", "80GB"],
        ["ls", "--json", odd],
        ["show", "--json", "--no-strict", odd],
        ["show", "--json", "--no-strict", odd, "w"],
        ["show", "--json", "--no-strict", odd, "x"],
        ["show", "--json", "--no-strict", odd, "note"],
        ["show", "--json", pickled],
        ["show", "--json", pickled, "epoch"],
        ["globals", "--json", pickled],
        ["diff", "--json", before, after],
        ["manifest", "create", odd],
        ["manifest", "check", "--json", manifest, pickled],
        ["versions", "--json"],
    ):
        found = json.loads(run(*arguments).stdout)
        assert next(iter(found)) == "schema", arguments
        assert f"`{found['schema']}`" in page, arguments
        missing = sorted({key for key in keys(found) if f"`{key}`" not in page})
        assert missing == [], arguments
