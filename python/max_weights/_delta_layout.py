"""Tensors in memory in the layout of a library, by their names in the hub's checkpoints: views of the same memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from max_weights._core import escape
from max_weights.conversion import ConversionRule, Split, Transpose, Unstack, conversion_rules
from max_weights.conversion._tables import LAYOUTS
from max_weights.errors import ArgumentError, UnsupportedError

__all__ = ["fitting_layout", "in_hub_layout"]


def in_hub_layout(tensors: Mapping[str, Any], layout: str, config: Any) -> dict[str, Any]:
    """Return the tensors by the names, and in the layout, of the hub: each is a view of one that was given.

    Args:
        tensors: Tensors in the layout of a library, by their names there.
        layout: `transformers5`, `vllm` or `megatron`.
        config: The model's configuration: a mapping, a path, or the `config` of a module of transformers.

    Raises:
        ArgumentError: another layout, or no configuration.
        UnsupportedError: a joined or changed tensor cannot be split without a copy.
    """
    if layout not in LAYOUTS:
        layouts = ", ".join(map(repr, LAYOUTS))
        raise ArgumentError(f"there is no layout '{escape(layout)}'; there are {layouts}", rule="argument.choice")
    if config is None:
        raise ArgumentError(
            f"rename={layout!r} depends on the model's configuration: give the module, whose config it has, "
            "or a mapping or function of names",
            rule="argument.config",
        )
    values = config.to_dict() if hasattr(config, "to_dict") else config
    rules = [rule.reverse() for rule in conversion_rules(layout, values)]
    made: dict[str, Any] = {}
    for name, tensor in tensors.items():
        for own, part in _made(rules, name, tensor, values):
            if own in made:
                raise ArgumentError(
                    f"'{escape(own)}' would be two tensors in the layout of the hub", rule="argument.name-twice"
                )
            made[own] = part
    return made


def fitting_layout(names: Sequence[str], tensors: Mapping[str, Any], config: Any) -> str | None:
    """Return the layout in which most of these names of a checkpoint name tensors; None if none fits better."""
    requested = set(names)
    best, most = None, len(requested & set(tensors))
    for layout in LAYOUTS:
        try:
            found = len(requested & set(in_hub_layout(tensors, layout, config)))
        except (ArgumentError, UnsupportedError, OSError, ValueError):
            continue
        if found > most:
            best, most = layout, found
    return best


def _made(rules: Sequence[ConversionRule], name: str, tensor: Any, values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that the first matching rule makes of a tensor."""
    for rule in rules:
        for source in rule.sources:
            texts = _match(source, name)
            if texts is None:
                continue
            if len(rule.sources) != 1:
                raise _refused(rule)
            yield from _parts(rule, tensor, texts, values)
            return
    yield name, tensor


def _parts(rule: ConversionRule, tensor: Any, texts: Sequence[str], values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a rule makes of a tensor, by their new names."""
    if hasattr(tensor, "device_mesh") and rule.steps:
        raise UnsupportedError(
            "distributed tensors are not split: give rename= as a mapping or a function", rule="unsupported.layout"
        )
    columns: list[list[Any]] = [[tensor]]
    is_list = False
    for step in rule.steps:
        if isinstance(step, Split):
            columns = [
                list(rows)
                for column in columns
                for rows in zip(*(_split(one, step, rule, values) for one in column), strict=True)
            ]
        elif isinstance(step, Unstack):
            is_list = True
            columns = [
                [one[(*(slice(None),) * step.axis, number)] for one in column for number in range(one.shape[step.axis])]
                for column in columns
            ]
        elif isinstance(step, Transpose):
            columns = [[one.swapaxes(step.first, step.second) for one in column] for column in columns]
        else:
            raise _refused(rule)
    for template, column in zip(rule.targets, columns, strict=True):
        for number, part in enumerate(column):
            yield _filled(template, texts, number if is_list else None), part


def _split(tensor: Any, step: Split, rule: ConversionRule, values: Any) -> list[Any]:
    from max_weights.conversion._view import _number

    def size(part: int | str) -> int:
        return part if isinstance(part, int) else sum(_number(one.strip(), values) for one in part.split("+"))

    shares = [size(part) for part in step.parts] or [1] * len(rule.targets)
    length, total = tensor.shape[step.axis], sum(shares)
    if length % total:
        raise UnsupportedError(
            f"an axis of {length} has no parts in the proportions {shares}: {rule.sources[0]}",
            rule="unsupported.layout",
        )
    parts, at = [], 0
    for share in shares:
        end = at + length // total * share
        parts.append(tensor[(*(slice(None),) * step.axis, slice(at, end))])
        at = end
    return parts


def _refused(rule: ConversionRule) -> UnsupportedError:
    steps = ", ".join(type(step).__name__ for step in rule.steps)
    return UnsupportedError(
        f"'{escape(rule.sources[0])}' is not taken apart in memory ({steps}): "
        'save the tensors and give renamed(load_weights(path), "hf")',
        rule="unsupported.layout",
    )


def _match(template: str, name: str) -> list[str] | None:
    """Return the texts of the `*` of a template; None for a name that it does not match."""
    pattern = "".join({"*": "(.*)", "#": "[0-9]+"}.get(part, re.escape(part)) for part in re.split(r"([*#])", template))
    found = re.fullmatch(pattern, name, re.DOTALL)
    return None if found is None else list(found.groups())


def _filled(template: str, texts: Sequence[str], number: int | None) -> str:
    rest = iter(texts)
    return "".join(
        next(rest) if part == "*" else str(number) if part == "#" else part for part in re.split(r"([*#])", template)
    )
