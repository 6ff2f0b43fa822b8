"""Re-exports that are imported when they are first used, so that `import max_weights` costs next to nothing.

A package lists its names twice: for people and type checkers as imports under `TYPE_CHECKING`, and for Python as a
table of the modules that they live in. A test compares the two.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def exports(package: str, homes: dict[str, str]) -> "tuple[Callable[[str], object], Callable[[], list[str]]]":
    """The `__getattr__` and `__dir__` of a package whose names live in other modules.

    Args:
        package: The package's full name.
        homes: Name -> module that defines it; a submodule of the package is its own home.
    """

    def __getattr__(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        __import__(home)
        module = sys.modules[home]
        value: object = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # found directly from now on
        return value

    def __dir__() -> list[str]:
        return sorted({*homes, *vars(sys.modules[package])})

    return __getattr__, __dir__
