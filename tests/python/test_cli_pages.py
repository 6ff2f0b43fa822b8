"""Shell completion, and the examples of docs/cli.md: each command there prints what the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

SCRIPT = Path(sys.executable).with_name("max-weights")
PAGE = (ROOT / "docs" / "cli.md").read_text()
EXAMPLES = [
    pytest.param(command, expected, id=command)
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for command, expected in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def complete(shell: str, *words: str) -> list[str]:
    """What a shell would offer for the last word."""
    environment = {
        **os.environ,
        "_MAX_WEIGHTS_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": shlex.join(["max-weights", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_names_complete_one_component_at_a_time(models: Path) -> None:
    path = str(models / "minilm.safetensors")
    assert complete("bash", "show", path, "") == ["embeddings.", "encoder.", "pooler."]
    assert complete("bash", "show", path, "enc") == ["encoder."]
    assert complete("bash", "show", path, "pooler.dense.") == ["pooler.dense.bias", "pooler.dense.weight"]
    assert complete("bash", "show", path, "embeddings.p") == [
        "embeddings.position_embeddings.",
        "embeddings.position_ids",
    ]


@pytest.mark.parametrize("content", [None, b"not a checkpoint"])
def test_a_file_that_does_not_open_completes_to_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    assert complete("bash", "show", str(path), "enc") == []


def test_commands_and_options_complete() -> None:
    assert complete("bash", "") == ["ls", "show", "bench", "globals", "versions"]
    assert complete("bash", "ls", "--fl") == ["--flat"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_completes_max_weights(shell: str) -> None:
    environment = {**os.environ, "_MAX_WEIGHTS_COMPLETE": f"source_{shell}"}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert f"complete_{shell}" in done.stdout
    assert "max-weights" in done.stdout


@pytest.mark.parametrize(("command", "expected"), EXAMPLES)
def test_an_example_of_the_page_prints_what_the_page_says(
    command: str, expected: str, models: Path, tmp_path: Path
) -> None:
    (tmp_path / ".models").symlink_to(models)
    environment = {**os.environ, "PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    printed = done.stdout + done.stderr
    # A line of `...` stands for any lines.
    pattern = "".join("(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in expected.splitlines(True))
    assert re.fullmatch(pattern, printed), printed


def test_the_page_has_an_example_of_every_command() -> None:
    commands = [str(parameter.values[0]) for parameter in EXAMPLES]
    for name in ("ls", "show", "versions"):
        assert any(f"max-weights {name}" in command for command in commands), name
    helps = [subprocess.run([SCRIPT, name, "--help"], capture_output=True, text=True).stdout for name in ("ls", "show")]
    for option in sorted(set(re.findall(r"--[a-z][a-z-]+", "".join(helps))) - {"--help"}):
        assert f"`{option}" in PAGE, option
