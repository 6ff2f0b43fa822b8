"""`LayerList`: a Python list in every way, whose layers stay registered after every operation."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from max_weights.nn import Layer, LayerList, LayerV2, MissingLayer, Sequential
from module_trees import Holder, Linear
from refusals import refuses


def model(number: int = 4) -> Any:
    return Holder(layers=LayerList(Linear(i + 1, 1) for i in range(number)))


def sizes(holder: Any) -> dict[str, int]:
    """The registered paths of weights, with an identity of the layer."""
    return {name: int(found.shape[0]) for name, found in holder.raw_state_dict().items()}


def expected(*numbers: int) -> dict[str, int]:
    return {f"layers.{i}.weight": number for i, number in enumerate(numbers)}


def test_layers_are_named_by_their_index() -> None:
    assert sizes(model()) == expected(1, 2, 3, 4)
    assert list(model(2).layers.sublayers) == ["0", "1"]
    assert list(model(2).sublayers) == ["layers"]


def set_slice(layers: Any) -> None:
    layers[1:3] = [Linear(9, 1)]


def multiply(layers: Any) -> None:
    layers *= 2


def add(layers: Any) -> None:
    layers += [Linear(9, 1)]


CHANGES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "append": (lambda x: x.append(Linear(9, 1)), (1, 2, 3, 4, 9)),
    "insert": (lambda x: x.insert(1, Linear(9, 1)), (1, 9, 2, 3, 4)),
    "insert at a negative index": (lambda x: x.insert(-1, Linear(9, 1)), (1, 2, 3, 9, 4)),
    "extend": (lambda x: x.extend([Linear(8, 1), Linear(9, 1)]), (1, 2, 3, 4, 8, 9)),
    "extend by a generator": (lambda x: x.extend(Linear(i, 1) for i in (8, 9)), (1, 2, 3, 4, 8, 9)),
    "del": (lambda x: x.__delitem__(0), (2, 3, 4)),
    "del of a slice": (lambda x: x.__delitem__(slice(None, None, 2)), (2, 4)),
    "set": (lambda x: x.__setitem__(-1, Linear(9, 1)), (1, 2, 3, 9)),
    "set a slice": (set_slice, (1, 9, 4)),
    "set an extended slice": (
        lambda x: x.__setitem__(slice(None, None, 2), [Linear(8, 1), Linear(9, 1)]),
        (8, 2, 9, 4),
    ),
    "pop": (lambda x: x.pop(), (1, 2, 3)),
    "pop an index": (lambda x: x.pop(1), (1, 3, 4)),
    "remove": (lambda x: x.remove(x[2]), (1, 2, 4)),
    "reverse": (lambda x: x.reverse(), (4, 3, 2, 1)),
    "sort": (lambda x: x.sort(key=lambda layer: -layer.weight.shape[0].dim), (4, 3, 2, 1)),
    "clear": (lambda x: x.clear(), ()),
    "+=": (add, (1, 2, 3, 4, 9)),
}


def test_layers_are_added_by_the_names_of_the_arguments_too() -> None:
    layers, (first, second, third) = LayerList(), [Linear(number, 1) for number in range(3)]
    layers.append(layer=second)
    layers.insert(i=0, layer=first)
    layers.extend(layers=[third])
    assert layers == [first, second, third]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("finalised", [False, True], ids=["fresh", "after names were finalised"])
def test_registration_stays_right_through(change: str, finalised: bool) -> None:
    holder = model()
    if finalised:
        holder.state_dict()
    do, numbers = CHANGES[change]
    do(holder.layers)
    assert sizes(holder) == expected(*numbers)


@pytest.mark.parametrize("change", CHANGES)
def test_a_plain_list_is_walked_as_it_is_now(change: str) -> None:
    holder = model()
    holder.layers = list(holder.layers)
    holder.state_dict()
    do, numbers = CHANGES[change]
    do(holder.layers)
    assert sizes(holder) == expected(*numbers)


def test_a_layer_that_is_there_twice_counts_once() -> None:
    holder = model(2)
    multiply(holder.layers)
    assert len(holder.layers) == 4
    assert sizes(holder) == expected(1, 2)


def test_slices_sums_and_copies_are_layer_lists_of_the_same_layers() -> None:
    layers = model().layers
    for made, numbers in (
        (layers[1:], (2, 3, 4)),
        (layers[::-1], (4, 3, 2, 1)),
        (layers + [Linear(9, 1)], (1, 2, 3, 4, 9)),  # noqa: RUF005
        ([Linear(9, 1)] + layers, (9, 1, 2, 3, 4)),  # noqa: RUF005
        (layers.copy(), (1, 2, 3, 4)),
        (copy.copy(layers), (1, 2, 3, 4)),
    ):
        assert type(made) is LayerList
        assert sizes(Holder(layers=made)) == expected(*numbers)
    assert (layers * 2)[4] is (2 * layers)[0] is layers[0]
    assert len(layers) == 4


def test_it_is_a_list() -> None:
    layers = model().layers
    first = layers[0]
    assert isinstance(layers, list)
    assert first in layers
    assert layers.index(layers[2]) == 2
    assert layers.count(first) == 1
    assert [*reversed(layers)] == layers[::-1]
    assert layers == [*layers]
    assert layers != layers[1:]
    assert not LayerList()
    assert LayerList([]) == []
    with pytest.raises(IndexError):
        layers[4]


def test_what_is_no_layer_is_refused_at_every_entry_point_and_nothing_changes() -> None:
    layers = model(2).layers
    bad: Any = 3
    for attempt in (
        lambda: LayerList([bad]),
        lambda: layers.append(bad),
        lambda: layers.insert(0, bad),
        lambda: layers.extend([Linear(1, 1), bad]),
        lambda: layers.__setitem__(0, bad),
        lambda: layers.__setitem__(slice(0, 1), [Linear(1, 1), bad]),
        lambda: layers.__iadd__([bad]),
        lambda: layers + [bad],  # noqa: RUF005
        lambda: layers.extend(Linear(1, 1)),
    ):
        with pytest.raises(TypeError):
            attempt()
    assert len(layers) == 2


def test_lists_in_lists_and_weights_beside_the_items() -> None:
    inner = LayerList([Linear(1, 1)])
    holder = Holder(layers=LayerList([inner, Linear(2, 1)]))
    assert sizes(holder) == {"layers.1.weight": 2, "layers.0.0.weight": 1}
    inner.extra = Linear(3, 1)
    assert sizes(holder)["layers.0.extra.weight"] == 3


def test_layers_without_weights_may_stand_in_it() -> None:
    class Silu(Layer):
        pass

    layers = LayerList([Silu(), Linear(1, 1)])
    assert list(layers.sublayers) == ["1"]


def test_copies_are_independent_and_pickle_keeps_all() -> None:
    layers = model(3).layers
    for again in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers))):
        assert type(again) is LayerList
        assert sizes(Holder(layers=again)) == expected(1, 2, 3)
        assert again[0] is not layers[0]


def test_sequential_takes_a_list_or_layers_and_names_them_by_index() -> None:
    a, b = Linear(1, 1), Linear(2, 1)
    for made in (
        Sequential(a, b),
        Sequential([a, b]),
        Sequential(layers=[a, b]),
        Sequential(LayerList([a, b])),
        Sequential(iter([a, b])),
    ):
        assert sizes(made) == {"0.weight": 1, "1.weight": 2}
    assert sizes(Sequential(Sequential(a))) == {"0.0.weight": 1}


class Times(Layer):
    """Returns its arguments, and its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.number, args, kwargs


def test_a_layer_list_calls_its_layers_one_after_the_other() -> None:
    """As in MAX: the first gets all arguments, each further one the previous result."""
    assert LayerList([Times(1), Times(2)])(5, 6, k=7) == (2, ((1, (5, 6), {"k": 7}),), {})
    with refuses(ValueError, "argument.layer"):
        LayerList()(1)


def test_a_missing_layer_keeps_the_names_of_those_around_it() -> None:
    layers = LayerList([Linear(1, 1), MissingLayer(1), Linear(3, 1)])
    assert list(layers.raw_state_dict()) == ["0.weight", "2.weight"]
    assert [prefix for prefix, _ in layers.named_modules()] == ["", "0.", "1.", "2."]
    with refuses(RuntimeError):
        layers(1)


def test_sublayers_of_version_2_layers() -> None:
    class Old(LayerV2):
        pass

    one = Old()
    assert LayerList([one]).sublayers == {"0": one}
