"""The exception classes: their bases, and that they can be pickled between processes."""

import copy
import errno
import pickle
import re
from pathlib import Path

import pytest

from conftest import ROOT
from max_weights import errors, graph
from max_weights._error_codes import CODES
from refusals import refuses

BUILT_IN = {
    errors.WeightNotFoundError: KeyError,
    errors.WeightAttributeError: AttributeError,
    errors.FormatError: ValueError,
    errors.UnsupportedError: NotImplementedError,
    errors.FileChangedError: OSError,
    errors.DeviceError: RuntimeError,
    errors.MissingFileError: FileNotFoundError,
    errors.ClosedError: ValueError,
    errors.ArgumentError: ValueError,
    errors.InternalError: RuntimeError,
    errors.RankError: RuntimeError,
    errors.VerificationError: ValueError,
    graph.GraphError: ValueError,
    graph.GraphIndexError: IndexError,
    graph.NoGraphError: LookupError,
}


def test_the_table_of_this_test_is_complete() -> None:
    classes = {getattr(errors, name) for name in errors.__all__}
    classes |= {graph.GraphError, graph.GraphIndexError, graph.NoGraphError}
    assert classes == {errors.WeightsError, *BUILT_IN}


@pytest.mark.parametrize(("kind", "built_in"), BUILT_IN.items(), ids=lambda kind: kind.__name__)
def test_each_error_is_caught_as_ours_and_as_the_built_in_class(kind: type, built_in: type) -> None:
    for caught in (errors.WeightsError, built_in):
        with pytest.raises(caught, match=r"^what went wrong$"):
            raise kind("what went wrong")


def test_a_missing_file_is_a_value_error_too() -> None:
    with refuses(ValueError, "file.missing"):
        raise errors.MissingFileError("nothing here")


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_keep_message_and_attributes(kind: type[errors.WeightsError], again: object) -> None:
    error = kind("it's broken\n")
    error.rule, error.path, error.tensor, error.offset, error.help = "a.rule", "model.gguf", "w", 8, "mend it"
    other = again(error)  # type: ignore[operator]
    assert type(other) is kind
    assert str(other) == str(error) == "it's broken\n"
    assert (other.rule, other.path, other.tensor, other.offset, other.help) == (
        "a.rule",
        "model.gguf",
        "w",
        8,
        "mend it",
    )


def test_attributes_are_none_until_they_are_set() -> None:
    error = errors.FormatError("bad")
    assert (error.path, error.tensor, error.offset, error.help) == (None,) * 4


def test_every_error_has_a_code() -> None:
    assert errors.FormatError("bad").rule == "file.invalid"
    error = errors.ArgumentError("bad", rule="argument.mesh")
    assert (error.args, error.rule, repr(error)) == (("bad",), "argument.mesh", "ArgumentError('bad')")
    assert pickle.loads(pickle.dumps(error)).rule == "argument.mesh"
    missing = errors.MissingFileError(errno.ENOENT, "no such file", "model.gguf")
    assert (missing.rule, missing.filename) == ("file.missing", "model.gguf")


def test_the_table_of_codes_is_that_of_the_package_and_of_the_page() -> None:
    package = Path(errors.__file__).parent
    raised = set()
    for path in package.rglob("*.py"):
        raised |= set(re.findall(r'\brule = "([^"]+)"|\brule: str = "([^"]+)"', path.read_text()))
        raised |= set(re.findall(r'\brule="([^"]+)"()', path.read_text()))
    codes = {one or other for one, other in raised}
    rules = set(re.findall(r"^### (\S+)$", (ROOT / "docs/rules.md").read_text(), re.MULTILINE))
    assert codes - set(CODES) <= rules
    assert set(CODES) <= codes - rules
    page = (ROOT / "docs/reference/errors.md").read_text()
    assert dict(re.findall(r"^\| `(\S+)` \| (.*) \|$", page, re.MULTILINE)) == CODES
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", code) for code in CODES)


@pytest.mark.parametrize("kind", [errors.MissingFileError, errors.FileChangedError])
def test_os_errors_carry_errno_and_filename(kind: type[OSError]) -> None:
    error = pickle.loads(pickle.dumps(kind(errno.ENOENT, "no such file or directory", "model.gguf")))
    assert (error.errno, error.strerror, error.filename) == (errno.ENOENT, "no such file or directory", "model.gguf")
    assert "model.gguf" in str(error)


def test_a_name_not_found_is_shown_without_quotes() -> None:
    assert str(errors.WeightNotFoundError("no weight named 'a'")) == "no weight named 'a'"
    assert str(KeyError("no weight named 'a'")) != "no weight named 'a'"
