"""`Shape`: a list that holds nothing but `Dim`."""

import copy
import operator
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from max_weights.graph.dim import Dim
from max_weights.graph.shape import Shape

n = Dim("n")


def only_dims(shape: list[Dim]) -> bool:
    return type(shape) is Shape and all(isinstance(dim, Dim) for dim in shape)


@pytest.mark.parametrize(
    "dims", [[2, 3], (2, 3), iter([2, 3]), np.array([2, 3]), [np.int32(2), Dim(3)], Shape([2, 3]), range(2, 4)]
)
def test_any_iterable_of_sizes_makes_a_shape(dims: list[int]) -> None:
    shape = Shape(dims)
    assert only_dims(shape)
    assert shape == [2, 3]
    assert shape == (2, 3)
    assert shape == Shape([2, 3])
    assert (2, 3) == shape  # noqa: SIM300
    assert [2, 3] == shape  # noqa: SIM300
    assert not shape != (2, 3)  # noqa: SIM202
    assert shape != (2, 4)
    assert shape != (2,)
    assert shape != "ab"


def test_rank_and_static_dims() -> None:
    assert (Shape().rank, Shape().static_dims, Shape().is_static) == (0, [], True)
    shape = Shape([2, "n", 3])
    assert (shape.rank, shape.static_dims, shape.is_static) == (3, [2, 3], False)
    assert all(type(size) is int for size in shape.static_dims)
    assert Shape([2, 3]).is_static
    assert shape == [2, "n", 3]
    assert 3 in shape
    assert "n" in shape
    assert shape.index("n") == 1


def test_repr_is_that_of_a_list() -> None:
    assert repr(Shape([2, "n"])) == "[Dim(2), Dim('n')]"
    assert str(Shape([2, 3])) == "[Dim(2), Dim(3)]"


def test_a_static_shape_serves_where_ints_do() -> None:
    assert np.zeros(Shape([2, 3])).shape == (2, 3)
    assert np.zeros(6).reshape(Shape([2, 3])).shape == (2, 3)
    with pytest.raises(TypeError):
        np.zeros(Shape([2, "n"]))


def added_in_place(shape: Shape) -> None:
    shape += (4, "n")


CHANGES: dict[str, tuple[Callable[[Shape], object], list[object]]] = {
    "append": (lambda shape: shape.append(4), [2, 3, 4]),
    "insert": (lambda shape: shape.insert(0, "n"), ["n", 2, 3]),
    "extend": (lambda shape: shape.extend(iter([4, np.int64(5)])), [2, 3, 4, 5]),
    "assign": (lambda shape: shape.__setitem__(-1, n + 1), [2, n + 1]),
    "assign a slice": (lambda shape: shape.__setitem__(slice(0, 1), ("n", 7)), ["n", 7, 3]),
    "+=": (added_in_place, [2, 3, 4, "n"]),
    "extend by itself": (lambda shape: shape.extend(shape), [2, 3, 2, 3]),
    "*=": (lambda shape: shape.__imul__(2), [2, 3, 2, 3]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_converts(change: str) -> None:
    shape = Shape([2, 3])
    act, expected = CHANGES[change]
    act(shape)
    assert only_dims(shape)
    assert shape == expected


@pytest.mark.parametrize("dims", [[4, -1], [4, 1.5], [4, "a b"], [4, True]])
def test_a_failed_change_changes_nothing(dims: list[int]) -> None:
    shape = Shape([2, 3])
    for change in (
        shape.extend,
        shape.__iadd__,
        lambda dims: shape.__setitem__(slice(None), dims),
        lambda dims: shape + dims,
    ):
        with pytest.raises((ValueError, TypeError)):
            change(dims)
        assert shape == [2, 3]
    with pytest.raises((ValueError, TypeError)):
        shape.append(dims[1])
    assert shape == [2, 3]


def test_whatever_is_made_of_a_shape_is_a_shape() -> None:
    shape = Shape([2, "n", 4])
    made = {
        "slice": (shape[1:], ["n", 4]),
        "copy": (shape.copy(), [2, "n", 4]),
        "copy.copy": (copy.copy(shape), [2, "n", 4]),
        "copy.deepcopy": (copy.deepcopy(shape), [2, "n", 4]),
        "pickle": (pickle.loads(pickle.dumps(shape)), [2, "n", 4]),
        "+ list": (operator.add(shape, [5]), [2, "n", 4, 5]),
        "+ tuple": (operator.add(shape, (5,)), [2, "n", 4, 5]),
        "list +": (operator.add([5], shape), [5, 2, "n", 4]),
        "tuple +": (operator.add((5,), shape), [5, 2, "n", 4]),
        "*": (shape[:1] * 2, [2, 2]),
        "* reflected": (2 * shape[:1], [2, 2]),
    }
    for how, (result, expected) in made.items():
        assert only_dims(result), how
        assert result == expected, how
        assert result is not shape
    assert shape[1] is shape[1:][0]


def test_a_text_or_a_number_is_no_shape() -> None:
    with pytest.raises(TypeError, match=r"write \['nm'\]"):
        Shape("nm")
    with pytest.raises(TypeError):
        Shape(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Shape([2]) + 3


def test_a_shape_can_change_so_it_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Shape([2]))


def test_parameters_are_the_symbols_of_all_dimensions() -> None:
    n, m = Dim("n"), Dim("m")
    assert Shape([2, n, n + m]).parameters == [n, n, m]
    assert Shape([2]).parameters == []


def test_is_static_is_a_function_of_the_class_too() -> None:
    assert Shape.is_static(Shape([2, 3])) is True
    assert Shape.is_static([2, "n"]) is False
    assert Shape([2, 3]).is_static is True
    assert Shape([2, "n"]).is_static is False
