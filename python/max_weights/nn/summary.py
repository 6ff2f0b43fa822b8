"""`model.summary()`: the modules as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._core import shown
from max_weights.nn.census import Census
from max_weights.nn.walk import ModuleNode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def table(root: ModuleNode, depth: int | None = None) -> Table:
    """A row for each module, breadth first, and the sum."""
    from rich.table import Table

    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):
        raise ValueError(f"depth is a number of components from 0, not {depth!r}")
    census = Census(root)
    counts = census.below(depth)
    found = Table(title=type(root).__name__)
    found.add_column("module", overflow="fold")
    found.add_column("type")
    for column in ("parameters", "MB"):
        found.add_column(column, justify="right", no_wrap=True)
    for column in ("dtype", "device"):
        found.add_column(column)
    found.add_column("loaded", justify="right", no_wrap=True)
    for path, module in census.modules:
        count = counts.get(path)
        if count is not None:
            found.add_row(
                shown(path) or "(all)",
                type(module).__name__,
                count.text,
                f"{count.bytes / 1e6:,.1f}",
                ", ".join(sorted(count.dtypes)),
                ", ".join(sorted(count.devices)),
                f"{count.loaded:,}/{count.weights:,}" if count.weights else "",
            )
    return found


def print_summary(root: ModuleNode, depth: int | None, console: Console | None) -> None:
    """Print the table."""
    from rich.console import Console

    (console or Console()).print(table(root, depth))
