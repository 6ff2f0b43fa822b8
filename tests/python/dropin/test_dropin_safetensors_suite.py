"""The safetensors package's own Python tests, with `max_weights.safetensors` in its place."""

import sys
from pathlib import Path

import pytest

from safetensors_tests import SdistError, compared, main, unpacked

SDIST = Path(sys.prefix) / "sdists" / "safetensors-0.8.0.tar.gz"


@pytest.mark.timeout(600)
def test_what_passes_over_the_package_passes_over_ours(tmp_path: Path) -> None:
    assert SDIST.is_file(), f"{SDIST} is missing: run `make test`, or tools/safetensors_tests.py --fetch {SDIST.parent}"
    theirs, ours = compared(SDIST, tmp_path)
    passed = {test for test, outcome in theirs.items() if outcome == "passed"}
    assert len(passed) >= 60
    assert {test for test in passed if ours.get(test) != "passed"} == set()


def test_an_archive_without_tests_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tarfile

    empty = tmp_path / "empty.tar.gz"
    with tarfile.open(empty, "w:gz"):
        pass
    with pytest.raises(SdistError, match="has no bindings/python/tests"):
        unpacked(empty, tmp_path)
    monkeypatch.setattr("sys.argv", ["safetensors_tests.py", "--sdist", str(empty)])
    assert main() == 2
