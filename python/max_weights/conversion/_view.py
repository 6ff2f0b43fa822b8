"""The interpreter of the tables: the layout of a checkpoint, and the view of its weights in another one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from max_weights._core import _convert_weights, _first_fitting, escape, infos
from max_weights.conversion._rules import ConversionRule, Size
from max_weights.conversion._tables import LAYOUTS, MODEL_TYPES
from max_weights.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from max_weights._core import WeightsNode

__all__ = ["HUB", "Config", "conversion_rules", "converted", "converted_by", "rules_between"]

HUB = "hf"
"""The layout of the checkpoints of the Hugging Face hub, from which all tables start."""


class ModelConfig(Protocol):
    """The configuration of a transformers model: `model.config`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content of its config.json."""


Config = Mapping[str, Any] | ModelConfig | str | os.PathLike[str]
"""A model's configuration: the content of its config.json, the path of that or of its folder, or `model.config`."""

_CONFIG = "config.json"
_MAX_BYTES = 16 << 20
# The defaults for numbers that a configuration omits.
_OTHERWISE = {"num_key_value_heads": "num_attention_heads"}


def conversion_rules(layout: str, config: Config) -> list[ConversionRule]:
    """Return the rules that lead from the hub's layout to that of a library.

    Args:
        layout: `transformers5`, `vllm` or `megatron`.
        config: The model's configuration: a mapping, the path of a config.json or of its folder, or `model.config`. Its
            `model_type` selects the rules, and rules use some of its numbers.

    Raises:
        ArgumentError: another layout, or no configuration (a ValueError).
        UnsupportedError: an architecture that has no table.

    Example:
        >>> config = {"model_type": "llama", "num_attention_heads": 8}
        >>> len(max_weights.conversion.conversion_rules("vllm", config))
        2
    """
    values = _values(config)
    return _rules(layout, values, _model_type(values))


def converted(node: WeightsNode, layout: str, config: Config | None, without: Iterable[str] = ()) -> WeightsNode:
    """Return the same weights in the layout of a library; those of `without` stay unchanged. Nothing is read."""
    values = _companions(node) if config is None else _values(config)
    kept = [ConversionRule(name, name) for name in without]  # each weight belongs to the first rule that it fits
    for scheme, rules in _ways(node, layout, values):
        node = converted_by(node, [*kept, *rules], values, scheme)
    return node


def rules_between(node: WeightsNode, layout: str) -> list[list[Any]]:
    """Return the rules that lead to a layout, in the form of the compiled code, layout after layout."""
    values = _companions(node)
    return [_resolved(rules, lambda: values) for _, rules in _ways(node, layout, values)]


def _ways(node: WeightsNode, layout: str, values: Mapping[str, Any]) -> list[tuple[str, list[ConversionRule]]]:
    """Return the layouts from this one to another, each with the rules that lead there."""
    kind = _model_type(values)
    target = [] if layout == HUB else _rules(layout, values, kind)
    current = _layout_of(node, values, kind, target)
    if current == layout:
        return []
    back = [] if current == HUB else [(HUB, [rule.reverse() for rule in _rules(current, values, kind)])]
    return [*back, (layout, target)] if target else back


def _resolved(rules: Iterable[ConversionRule], values: Callable[[], Mapping[str, Any]]) -> list[Any]:
    """Return rules with the numbers of a configuration, which is opened only if a rule names one."""

    def number(size: Size) -> int:
        return size if isinstance(size, int) else sum(_number(part.strip(), values()) for part in size.split("+"))

    return [rule.resolve(number) for rule in rules]


def converted_by(
    node: WeightsNode, rules: Iterable[ConversionRule], config: Config | None, scheme: str = "rules"
) -> WeightsNode:
    """Return the same weights under these rules; nothing is read."""
    listed = tuple(rules)
    for rule in listed:
        if not isinstance(rule, ConversionRule):
            raise ArgumentError(
                f"the rules of a conversion are ConversionRule objects, not {rule!r}", rule="argument.type"
            )
    numbers: dict[str, Any] | None = None

    def values() -> dict[str, Any]:
        nonlocal numbers
        if numbers is None:
            numbers = _companions(node) if config is None else _values(config)
        return numbers

    return _convert_weights(node, scheme, _resolved(listed, values), (listed, numbers))


def _rules(layout: str, values: Mapping[str, Any], kind: str) -> list[ConversionRule]:
    if layout not in LAYOUTS:
        known = ", ".join(map(repr, (HUB, *LAYOUTS)))
        raise ArgumentError(f"there is no layout '{escape(str(layout))}'; there are {known}", rule="argument.choice")
    table = MODEL_TYPES.get(kind, {}).get(layout)
    if table is None:
        have = ", ".join(name for name, layouts in MODEL_TYPES.items() if layout in layouts)
        raise UnsupportedError(
            f"there is no table for the model type '{escape(kind)}' in the layout of {layout}; there are those of "
            f"{have}; renamed() takes a list of rules, too",
            rule="unsupported.layout",
        )
    text = values.get("text_config")
    return table(text if isinstance(text, dict) else values)


def _layout_of(node: WeightsNode, values: Mapping[str, Any], kind: str, target: Sequence[ConversionRule]) -> str:
    """Return the layout of the names: that of the hub, unless some names exist only in another one."""
    if node._scheme in (HUB, *LAYOUTS):
        return node._scheme
    if target and _fit(node, [name for rule in target if rule.steps for name in rule.sources]):
        return HUB
    for layout, table in MODEL_TYPES.get(kind, {}).items():
        rules = table(values)
        own = {name for rule in rules for name in rule.sources}
        if _fit(node, [name for rule in rules for name in rule.targets if name not in own and not _is_loose(name)]):
            return layout
    return HUB


def _is_loose(template: str) -> bool:
    """Whether a template may match names of any layout, such as `*.mlp.*`."""
    return template.startswith("*") and template.endswith("*") and template.count(".") < 3


def _fit(node: WeightsNode, templates: list[str]) -> bool:
    return bool(templates) and _first_fitting(node, templates) is not None


def _model_type(values: Mapping[str, Any]) -> str:
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise UnsupportedError(
            "the configuration has no model_type, which names the architecture", rule="unsupported.config"
        )
    return kind


def _number(name: str, values: Mapping[str, Any]) -> int:
    """Return a number of a configuration, or of that of its language model."""
    text = values.get("text_config")
    for among in (values, text if isinstance(text, dict) else {}):
        found = among.get(name)
        if found is None and name in _OTHERWISE:
            found = among.get(_OTHERWISE[name])
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 1 << 63:
            return found
    raise UnsupportedError(
        f"the configuration has no number '{escape(name)}', which a rule needs", rule="unsupported.config"
    )


def _values(config: Config) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict) and isinstance(values := to_dict(), Mapping):
        return dict(values)  # the configuration of a model of transformers
    if not isinstance(config, (str, os.PathLike)):
        raise ArgumentError(
            "config is the content of a config.json, its path or that of its folder, or the config of a model of "
            f"transformers, not a {escape(type(config).__name__)}",
            rule="argument.config",
        )
    path = os.fspath(config)
    return _read(os.path.join(path, _CONFIG) if os.path.isdir(path) else path)


def _companions(node: WeightsNode) -> dict[str, Any]:
    """Return the configuration in the folder of the weights."""
    listing = infos(node)
    folder = os.path.dirname(listing[0].file) if len(listing) else ""
    path = os.path.join(folder, _CONFIG)
    if not os.path.isfile(path):
        raise ArgumentError(
            f"{escape(path)}: not found: rules depend on the model's configuration; give config=, a mapping or a path",
            rule="argument.config",
        )
    return _read(path)


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise UnsupportedError(
            f"{escape(path)}: a configuration of more than {_MAX_BYTES} bytes is not read", rule="unsupported.config"
        )
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"{escape(path)}: not JSON: {error}", rule="unsupported.config") from None
    if not isinstance(values, dict):
        raise UnsupportedError(
            f"{escape(path)}: a configuration is an object, not {type(values).__name__}", rule="unsupported.config"
        )
    return values
