"""Whether a named test exists, and whether `make test` runs it.

A test is named by its file and its function:
`tests/python/delta/test_delta.py::test_a_base_and_deltas_are_one_checkpoint` or
`crates/check/tests/pickle/calls.rs::a_pickle_is_read_to_its_end`.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

__all__ = ["is_run", "source_of"]

ROOT = Path(__file__).parents[3]
_EXCLUDED = ("nightly", "pytest.mark.skip(", "pytest.mark.skip\n")


def is_run(test: str) -> bool:
    """Whether `make test` runs a test of this name; nightly tests do not count."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    if file.endswith(".rs"):
        return _is_run_in_rust((ROOT / file).read_text(), name)
    tree = _parsed(file)
    if any(mark in ast.unparse(node) for node in tree.body if _is_mark(node) for mark in _EXCLUDED):
        return False
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if function is None or not name.startswith("test_"):
        return False
    return not any(_leaves_out(one) for one in function.decorator_list)


def source_of(test: str) -> str:
    """The file of a test, and the programs and modules in its folder or in `support` that it names."""
    path = ROOT / test.partition("::")[0]
    text = path.read_text()
    helpers = [*path.parent.glob("*.py"), *(path.parents[1] / "support").glob("*.py")]
    companions = [other for other in helpers if re.search(rf"\b{other.stem}\b", text)]
    return "\n".join([text, *(other.read_text() for other in companions if not other.stem.startswith("test_"))])


def _leaves_out(decorator: ast.expr) -> bool:
    """Whether a test is skipped completely: single cases may be nightly."""
    text = f"{ast.unparse(decorator)}\n"
    if isinstance(decorator, ast.Call) and text.startswith("pytest.mark.parametrize("):
        cases = decorator.args[1]
        one_each = cases.elts if isinstance(cases, ast.List | ast.Tuple) else [cases]
        return all(any(mark in ast.unparse(case) for mark in _EXCLUDED) for case in one_each)
    return any(mark in text for mark in _EXCLUDED)


def _is_mark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _is_run_in_rust(text: str, name: str) -> bool:
    found = re.search(rf"((?:^[ \t]*(?:#\[.*\]|//.*)\n)*)^[ \t]*(?:async )?fn {re.escape(name)}\(", text, re.MULTILINE)
    if found is None:
        # In a macro that makes tests of names: `name: …`.
        return "proptest!" in text and re.search(rf"\bfn {re.escape(name)}\b", text) is not None
    return "#[test]" in found[1] and "#[ignore" not in found[1]


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())
