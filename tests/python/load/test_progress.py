"""`progress`: the calls of the function, and the line on standard error for `progress=True`."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import max_weights
from max_weights import _progress as progress
from max_weights._progress import progress_of


def test_what_is_not_wanted_is_nothing_and_a_function_is_itself() -> None:
    for nothing in (None, False):
        reported, end = progress_of(nothing)
        assert reported is None
        end()

    def mine(_done: int, _total: int) -> None: ...

    reported, end = progress_of(mine)
    assert reported is mine
    end()


def test_the_line_is_written_over_and_ends_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 1.05, 2.0, 2.01])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    reported, end = progress_of(True)
    assert reported is not None
    reported(0, 4_000_000_000)
    reported(500_000_000, 4_000_000_000)  # a twentieth of a second later: no new line
    reported(2_000_000_000, 4_000_000_000)
    reported(4_000_000_000, 4_000_000_000)  # the last one always
    end()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    begun, half, done = err.rstrip("\n").split("\r")[1:]
    assert begun.startswith(f"[{' ' * 30}] 0.00 of 4.00 GB")
    assert half.startswith(f"[{'#' * 15}{' ' * 15}] 2.00 of 4.00 GB, 1.0 GB/s")
    assert done.startswith(f"[{'#' * 30}] 4.00 of 4.00 GB")


def test_a_shorter_line_covers_the_longer_one_before_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 0.2, 100.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    reported, end = progress_of(True)
    assert reported is not None
    reported(99_000_000_000, 100_000_000_000)
    reported(100_000_000_000, 100_000_000_000)
    end()
    longer, shorter = capsys.readouterr().err.rstrip("\n").split("\r")[1:]
    assert len(shorter) == len(longer)


def test_work_without_bytes_is_done_and_nothing_told_ends_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    reported, end = progress_of(True)
    assert reported is not None
    end()
    assert capsys.readouterr().err == ""
    reported(0, 0)
    assert "#" * 30 in capsys.readouterr().err


def test_a_load_tells_its_progress_on_standard_error(models: Path) -> None:
    caught = io.StringIO()
    with contextlib.redirect_stderr(caught), max_weights.load_weights(models / "minilm.safetensors") as weights:
        weights.load(progress=True)
    assert "] 90.86 of 90.86 MB" in caught.getvalue()
    assert caught.getvalue().endswith("\n")


def test_the_line_of_a_stream_ends_once_when_the_stream_is_closed(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with weights.stream(progress=True) as stream:
        next(stream)
        assert not capsys.readouterr().err.endswith("\n")
        stream.close()
    del stream
    assert capsys.readouterr().err == "\n"
    for _ in weights.stream(progress=True):
        pass
    assert capsys.readouterr().err.count("\n") == 1


class Outputs:
    """The content of a notebook cell, by the calls of IPython's displays."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, dict[str, str]]] = []

    def display(self, page: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(("display", page))

    def update(self, page: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(("update", page))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """Simulate the kernel of a notebook."""
    outputs = Outputs()
    shell = SimpleNamespace(kernel=object())
    display: Any = SimpleNamespace(DisplayHandle=lambda: outputs)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return outputs


def test_a_notebook_has_one_bar_that_is_shown_anew(
    notebook: Outputs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 1.05, 2.0, 2.01])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    reported, end = progress_of(True)
    assert reported is not None
    for done in (0, 500_000_000, 2_000_000_000, 4_000_000_000):
        reported(done, 4_000_000_000)
    end()
    assert [kind for kind, _ in notebook.shown] == ["display", "update", "update"]
    begun, half, done = (page["text/html"] for _, page in notebook.shown)
    assert '<progress value="0" max="4000000000">' in begun
    assert '<progress value="2000000000" max="4000000000">' in half
    assert "2.00 of 4.00 GB, 1.0 GB/s" in half
    assert "<progress" not in done
    assert notebook.shown[-1][1]["text/plain"] == "4.00 of 4.00 GB, 2.0 GB/s"
    assert capsys.readouterr().err == ""


def test_a_shell_of_ipython_without_a_kernel_has_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for shell in (None, SimpleNamespace()):
        found = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", found)  # type: ignore[arg-type]
        reported, _ = progress_of(True)
        assert reported is not None
        reported(1, 1)
        assert "#" * 30 in capsys.readouterr().err


def test_nobody_imports_ipython_for_a_bar() -> None:
    script = "import sys; from max_weights._progress import progress_of; progress_of(True)[0](1, 1)"
    script += "; sys.exit('IPython' in sys.modules or 'max_weights._html' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_small_work_is_told_in_small_units(capsys: pytest.CaptureFixture[str]) -> None:
    bar, close = progress_of(True)
    assert bar is not None
    bar(1_500, 1_500)
    bar(12, 12)
    close()
    reported = capsys.readouterr().err
    assert "1.50 of 1.50 kB" in reported
    assert "12 of 12 B" in reported
    assert "0.00 of 0.00" not in reported
