"""The weights of a model by their full names, and the values that they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from max_weights._core import Buffer, shown
from max_weights.errors import ArgumentError
from max_weights.graph.weight import Weight
from max_weights.nn.walk import ModuleNode, Walk


class NamedWeights:
    """One look at the weights of a model.

    Raises:
        ArgumentError: two different weights have one full name; a ValueError.
    """

    __slots__ = ("_others", "weights")

    weights: dict[str, Weight]
    """Each weight by its full name: the first one, if it stands in several modules."""

    def __init__(self, root: ModuleNode) -> None:
        found = Walk(root)
        self.weights = dict(zip(found.names, found.weights, strict=True))
        self._others: dict[str, list[str]] = {}
        if len(self.weights) < len(found.weights):
            _require_one_each(root, found)
        if len(set(map(id, found.weights))) < len(found.weights):
            self._tell_apart()

    def _tell_apart(self) -> None:
        first: dict[int, str] = {}
        for name, weight in list(self.weights.items()):
            known = first.setdefault(id(weight), name)
            if known != name:
                del self.weights[name]
                self._others.setdefault(known, []).append(name)

    def by_other_name(self, name: str, get: Callable[[str, object], Any], default: object) -> Any:
        """What `get` has for another name of the weight of this name, if it stands in several modules."""
        for other in self._others.get(name, ()):
            found = get(other, default)
            if found is not default:
                return found
        return default

    def known(self) -> set[str]:
        """Every name that stands for a weight."""
        return {*self.weights, *(other for names in self._others.values() for other in names)}


def layer_weights(module: ModuleNode) -> dict[str, Weight]:
    """The weights of one module alone, by their names within it."""
    own = Walk(module, only=True)
    found = dict(zip(own.names, own.weights, strict=True))
    if len(found) < len(own.weights):
        _require_one_each(module, own)
    return found


def _require_one_each(root: ModuleNode, found: Walk) -> None:
    """Refuse a name that stands for two weights; one weight may come by its name more than once."""
    first: dict[str, Weight] = {}
    for name, weight in zip(found.names, found.weights, strict=True):
        if first.setdefault(name, weight) is not weight:
            raise _clash(root, name, first[name], weight)


def _clash(root: ModuleNode, name: str, first: Weight, second: Weight) -> ArgumentError:
    return ArgumentError(
        f"two weights of {type(root).__name__} have the name '{shown(name)}': {first} and {second}; name one of them "
        "differently, or make the same Weight of both"
    )


def state_dict(root: ModuleNode, auto_initialize: bool) -> dict[str, Any]:
    """The values by full names; weights without one get zeros, unless that is not wanted. Nothing is changed before
    everything is known.
    """
    weights = NamedWeights(root).weights
    values: dict[str, Any] = {}
    for name, weight in weights.items():
        value = weight.value
        if value is not None:
            values[name] = value
        elif auto_initialize:
            values[name] = _zeros(name, weight)
        else:
            raise ArgumentError(
                f"weight '{shown(name)}' has no value: load_state_dict gives it one, auto_initialize=True gives "
                "it zeros"
            )
    hand_over(list(weights.values()), list(values.values()), list(weights))
    return values


def hand_over(
    weights: list[Weight],
    values: list[Any],
    names: list[str],
    change: Callable[[], None] | None = None,
) -> None:
    """Give every weight its value and its full name; an interrupt in between is answered by taking all back.

    `change` changes more of the weights before that.
    """
    before = [weight.snapshot() for weight in weights]
    try:
        if change is not None:
            change()
        # The last in here, so that no interrupt can come when all is done. The local names stay.
        for weight, value, name in zip(weights, values, names, strict=True):
            weight.load(value, name)
    except BaseException:
        for weight, snapshot in zip(weights, before, strict=True):
            weight.restore(snapshot)
        raise


def _zeros(name: str, weight: Weight) -> Buffer:
    if not weight.shape.is_static:
        raise ArgumentError(
            f"weight '{shown(name)}' has the symbolic shape [{', '.join(map(str, weight.shape))}], so there are "
            "no zeros of its size: load a value for it"
        )
    return Buffer.zeros(weight.shape.static_dims, weight.dtype)
