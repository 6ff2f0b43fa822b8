"""Interactive documentation: `help()`, `?` and completion have a text for every public name."""

import importlib
import inspect
from collections.abc import Iterator

import pytest

import max_weights
import option_verbs
from max_weights import _core

MODULES = [
    "max_weights",
    "max_weights._buffer",
    "max_weights._devices",
    "max_weights._dropin",
    "max_weights.dtype",
    "max_weights.errors",
    "max_weights.graph",
    "max_weights.graph.ops",
    "max_weights._hub_folder",
    "max_weights.jax",
    "max_weights.nn",
    "max_weights.numpy",
    "max_weights._planning",
    "max_weights._quantization",
    "max_weights._resharding",
    "max_weights._saving",
    "max_weights.sharding",
    "max_weights._streaming",
    "max_weights.torch",
    "max_weights._weights",
]


def public_members(kind: type) -> Iterator[tuple[str, object]]:
    """The methods and properties that a class itself defines; not its data, which the class's own text explains."""
    for name, value in vars(kind).items():
        if not name.startswith("_") and (
            callable(value)
            or isinstance(value, property | classmethod | staticmethod)
            or inspect.isgetsetdescriptor(value)
            or inspect.ismethoddescriptor(value)
        ):
            yield name, value


def undocumented(owner: str, names: list[str], home: object) -> Iterator[str]:
    for name in names:
        value = getattr(home, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        module = getattr(value, "__module__", "") or ""
        if inspect.getdoc(value) is None:
            yield f"{owner}.{name}"
        if inspect.isclass(value) and module.startswith("max_weights"):
            # Members documented by a base class need no text.
            yield from (f"{owner}.{name}.{key}" for key, _ in public_members(value) if not text_of(value, key))


def text_of(kind: type, key: str) -> str | None:
    found = (inspect.getdoc(vars(base)[key]) for base in kind.__mro__ if key in vars(base))
    return next((text for text in found if text), None)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_text_at_run_time(module: str) -> None:
    home = importlib.import_module(module)
    names = getattr(home, "__all__", None) or [name for name in vars(home) if not name.startswith("_")]
    assert list(undocumented(module, list(names), home)) == []


def test_every_public_name_of_the_core_has_a_text_and_a_signature() -> None:
    names = [name for name in dir(_core) if not name.startswith("_")]
    assert list(undocumented("_core", names, _core)) == []
    for name in names:
        value = getattr(_core, name)
        routines = [value] if inspect.isroutine(value) else []
        if inspect.isclass(value):
            routines = [member for key, member in vars(value).items() if not key.startswith("_") and callable(member)]
        for routine in routines:
            assert inspect.signature(routine) is not None


def test_signatures_name_the_arguments_and_their_defaults() -> None:
    assert str(inspect.signature(max_weights.graph.weights.SafetensorWeights)).startswith("(filepaths, *,")
    assert "backend='auto'" in str(inspect.signature(max_weights.graph.weights.GGUFWeights))
    assert str(inspect.signature(max_weights.Buffer.view)) == "(self, /, dtype, shape=None)"
    signature = inspect.signature(max_weights.graph.weights.SafetensorWeights.load)
    assert signature.parameters["copy"].default is None
    assert signature.parameters["options"].default is None


def test_help_says_what_an_argument_means_and_what_is_raised() -> None:
    for method, part in [
        (max_weights.Buffer.astype, "saturate: Give the largest finite value"),
        (max_weights.graph.weights.SafetensorWeights.data, "WeightNotFoundError"),
        (max_weights.Buffer.element_size, "Bytes of one element"),
    ]:
        assert part in (inspect.getdoc(method) or "")


def test_editors_find_the_first_paragraph_of_each_text_in_the_stub() -> None:
    from stub_texts import STUBS, outdated

    assert [name for stub in STUBS for name in outdated(stub.read_text())] == []  # tools/stub_texts.py writes them


def test_the_table_of_options_is_that_of_the_signatures() -> None:
    page = option_verbs.PAGE.read_text(encoding="utf-8")
    assert page == option_verbs.written(page), "run tools/option_verbs.py"
