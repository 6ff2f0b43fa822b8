"""Write the table of verbs and their options in docs/loading.md: `python tools/option_verbs.py`.

It is generated from the signatures; a test fails if it is out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import max_weights.integrations
import max_weights.jax
import max_weights.nn
import max_weights.numpy
import max_weights.torch
from max_weights import delta

PAGE = Path(__file__).resolve().parents[1] / "docs" / "loading.md"
BEGIN, END = "<!-- made by tools/option_verbs.py -->\n", "<!-- end of what it made -->\n"
_WEIGHTS = max_weights.WeightsNode
# Functions by their names in the table. The verbs of torch are taken from their defining modules, which have
# annotations.
VERBS: dict[str, Callable[..., Any]] = {
    **{f"weights.{name}": getattr(_WEIGHTS, name) for name in ("load", "stream", "save")},
    **{
        f"torch.{name}": getattr(max_weights.torch, name)
        for name in ("load_file", "load_into", "verify_loaded", "embedding")
    },
    "numpy.load_file": max_weights.numpy.load_file,
    "jax.load_file": max_weights.jax.load_file,
    "nn.Module.load": max_weights.nn.Module.load,
    **{
        name: getattr(max_weights, name)
        for name in [
            "load_weights",
            "load_ranks",
            "lazy_state_dict",
            "plan",
            "infos",
            "stats",
            "quantized",
            "table",
            "renamed",
            "fingerprint",
            "diff",
            "validate",
            "assert_checkpoint_ok",
            "bench",
            "reshard",
            "save",
            "save_file",
            "save_sharded",
            "save_gguf",
        ]
    },
    **{f"delta.{name}": getattr(delta, name) for name in ("create", "apply", "apply_into", "fold", "follow")},
    **{name: getattr(max_weights.integrations, name) for name in ("WeightsReader", "WeightsWriter")},
}


# What the table calls several verbs that mostly take the same options.
GROUPS = {
    "loads": [
        "weights.load",
        "weights.stream",
        "torch.load_file",
        "torch.load_into",
        "numpy.load_file",
        "jax.load_file",
        "load_ranks",
        "plan",
    ],
    "saves": ["weights.save", "save", "save_file", "save_sharded", "save_gguf"],
}
MAX_MISSING = 2


def options(function: Callable[..., Any]) -> Iterator[str]:
    """The optional parameters, and those of the TypedDict of its `**options`."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for typed in re.findall(r"Unpack\[(\w+)\]", str(parameter.annotation)):
                yield from _typed_dict(typed).__optional_keys__
        elif parameter.default is not parameter.empty:
            yield name


def _typed_dict(name: str) -> Any:
    """Return the class that a signature names; its module is imported for type checkers alone there."""
    homes = [module for key, module in sys.modules.items() if key.startswith("max_weights.") and name in vars(module)]
    return getattr(homes[0], name)


def grouped(verbs: list[str]) -> Iterator[str]:
    """The verbs, with the name of a group for those of it, and which of it lack the option."""
    rest = list(verbs)
    for name, members in GROUPS.items():
        missing = [member for member in members if member not in verbs]
        if len(missing) <= MAX_MISSING:
            yield f"*{name}*" + (f" (not {', '.join(f'`{one}`' for one in missing)})" if missing else "")
            rest = [verb for verb in rest if verb not in members]
    yield from (f"`{verb}`" for verb in rest)


def table() -> str:
    """The table: an option in each row that several verbs have, with these."""
    legend = "".join(f"- *{name}*: {', '.join(f'`{one}`' for one in members)}\n" for name, members in GROUPS.items())
    verbs: dict[str, list[str]] = {}
    for verb, function in VERBS.items():
        for option in options(function):
            verbs.setdefault(option, []).append(verb)
    rows = (
        f"| `{option}` | {', '.join(grouped(takers))} |\n"
        for option, takers in sorted(verbs.items())
        if len(takers) > 1
    )
    return f"{legend}\n| option | verbs that take it |\n|---|---|\n" + "".join(rows)


def written(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
