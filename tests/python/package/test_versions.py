"""`show_versions`, and that it imports none of the listed packages."""

import json
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import max_weights
from command_line import run


def test_show_versions_prints_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    max_weights.show_versions()
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {name.strip(): version.strip() for name, version in shown.items()}
    assert shown["max_weights"] == max_weights.__version__
    assert shown["python"].startswith(sys.version.split()[0])
    for package in ("numpy", "ml-dtypes", "torch", "jax", "safetensors"):
        assert shown[package] == metadata.version(package)


def test_a_package_that_is_missing_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "NumPy-9.8.7.dist-info").mkdir()
    shutil.copytree(Path(max_weights.__file__).parent, tmp_path / "max_weights", ignore=shutil.ignore_patterns("*.py?"))
    # -S: without installed packages, -E: without PYTHONPATH.
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import max_weights; max_weights.show_versions()"
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True)
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (shown["numpy"], shown["torch"]) == ("9.8.7", "not installed")


def test_show_versions_imports_no_framework() -> None:
    script = """
import sys, max_weights
max_weights.show_versions()
print(sorted({"numpy", "torch", "jax", "ml_dtypes", "safetensors"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_command_line_prints_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    max_weights.show_versions()
    lines = capsys.readouterr().out.splitlines()
    done = run("versions")
    assert (done.status, done.stderr, done.stdout.splitlines()) == (0, "", lines)
    assert run("--version").stdout == f"max-weights {max_weights.__version__}\n"
    found = json.loads(run("versions", "--json").stdout)
    assert (found["schema"], found["max_weights"]) == ("max-weights.versions/1", max_weights.__version__)
    assert found["packages"]["numpy"] == metadata.version("numpy")
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert [found[name] for name in ("python", "platform", "cpu")] == [
        shown[name] for name in ("python", "platform", "cpu")
    ]


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="the filter is for its calls")
def test_a_sandbox_that_takes_the_guard_from_copies_is_named() -> None:
    program = """
import ctypes, struct
import max_weights

# Answers process_vm_readv with EPERM, as some sandboxes do.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 310), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0
assert prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0, ctypes.get_errno()
max_weights.show_versions()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "not guarded" in done.stdout
