"""`show_versions`, and that it imports none of the packages it speaks of."""

import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

import max_weights
from max_weights import versions
from max_weights.cli import app


def test_show_versions_prints_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    max_weights.show_versions()
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {name.strip(): version.strip() for name, version in shown.items()}
    assert shown == versions.versions()
    assert shown["max_weights"] == max_weights.__version__
    assert shown["python"].startswith(sys.version.split()[0])
    for package in ("numpy", "ml-dtypes", "torch", "jax", "safetensors"):
        assert shown[package] == metadata.version(package)


def test_a_package_that_is_missing_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PACKAGES", ("numpy", "no-such-package-anywhere"))
    assert versions.versions()["no-such-package-anywhere"] == "not installed"


def test_show_versions_imports_no_framework() -> None:
    script = """
import sys, max_weights
max_weights.show_versions()
print(sorted({"numpy", "torch", "jax", "ml_dtypes", "rich", "typer", "safetensors"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_command_line_prints_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    max_weights.show_versions()
    assert CliRunner().invoke(app, ["versions"]).stdout == capsys.readouterr().out
    assert CliRunner().invoke(app, ["--version"]).stdout == f"max-weights {max_weights.__version__}\n"
