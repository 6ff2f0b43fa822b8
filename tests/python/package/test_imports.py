"""The package has no import cycles, including imports in functions and for types."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from conftest import ROOT

PACKAGE = ROOT / "python" / "max_weights"


def modules(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """All modules that a file imports: at its top, in functions, and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module


def circle(package: Path) -> list[str]:
    """A cycle of modules that import each other, or empty."""
    files = modules(package)
    known = {*files, f"{package.name}._core"}  # the extension is no file of Python
    graph = {name: {other for other in imported(path, known) if other != name} & known for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_of_the_package_is_in_a_circle_of_imports() -> None:
    assert circle(PACKAGE) == []
    assert len(modules(PACKAGE)) > 150


def test_a_circle_is_seen_wherever_its_imports_are(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "low.py").write_text("def later():\n    from package.middle import one\n    return one\n")
    (package / "middle.py").write_text("import package.high\none = 1\n")
    (package / "high.py").write_text("from typing import TYPE_CHECKING\n")
    assert circle(package) == []
    (package / "high.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import low\n"
    )
    assert sorted(set(circle(package))) == ["package.high", "package.low", "package.middle"]
