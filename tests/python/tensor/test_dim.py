"""`Dim`: static, symbolic and algebraic dimensions."""

import copy
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from max_weights.graph.dim import AlgebraicDim, Dim, StaticDim, SymbolicDim
from refusals import refuses

n, m = Dim("n"), Dim("m")


def test_the_value_decides_the_class() -> None:
    assert type(Dim(3)) is StaticDim
    assert type(Dim("n")) is SymbolicDim
    assert type(n + 1) is AlgebraicDim
    assert Dim(n) is n
    assert Dim(3).dim == 3
    assert n.name == "n"
    for kind, value in ((StaticDim, "n"), (SymbolicDim, 3), (AlgebraicDim, 3)):
        with pytest.raises(TypeError, match=kind.__name__):
            kind(value)


@pytest.mark.parametrize("size", [0, 1, 2**63 - 1, np.int64(7), np.uint8(7), Dim(5)])
def test_static_dims_stand_for_their_int(size: int) -> None:
    dim = Dim(size)
    assert dim == size
    assert size == dim
    assert int(dim) == operator.index(dim) == int(size)
    assert hash(dim) == hash(int(size))
    assert bool(dim) == (int(size) != 0)
    assert np.zeros(3)[: Dim(2)].shape == (2,)


def test_static_dims_are_ordered_like_ints() -> None:
    assert Dim(2) < 3 <= Dim(3) < Dim(4)
    assert Dim(4) > 3 >= Dim(3) > Dim(2)
    with pytest.raises(TypeError):
        _ = Dim(2) < n


@pytest.mark.parametrize("size", [-1, np.int64(-1), 2**63, -(2**70)])
def test_sizes_out_of_range_are_value_errors(size: int) -> None:
    with refuses(ValueError):
        Dim(size)


@pytest.mark.parametrize("value", [1.0, np.float32(1), True, np.bool_(True), None, b"n", [1]])
def test_what_is_no_dimension_is_a_type_error(value: object) -> None:
    with refuses(TypeError):
        Dim(value)


def test_a_known_size_does_not_let_a_bool_or_float_through() -> None:
    assert Dim(1) == 1
    for value in (True, 1.0):
        with pytest.raises(TypeError):
            Dim(value)
    assert Dim(1) != True  # noqa: E712


@pytest.mark.parametrize("name", ["", "1n", "a b", "batch-size", "n.m", "n\n"])
def test_names_are_identifiers(name: str) -> None:
    with refuses(ValueError):
        Dim(name)


def test_symbolic_dims_equal_their_name_and_have_no_int() -> None:
    assert n == "n"
    assert "n" == n  # noqa: SIM300
    assert n != "m"
    assert n != m
    assert n != 3
    assert hash(n) == hash("n")
    assert {n: 1}["n"] == 1
    for dim in (n, n + 1):
        with refuses(TypeError):
            int(dim)
        with pytest.raises(TypeError):
            operator.index(dim)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (n + 0, n),
        (0 + n, n),
        (n + 1 + 2, n + 3),
        (1 + n, n + 1),
        (n * 1, n),
        (2 * n, n * 2),
        (n + n, 2 * n),
        (n - n, 0),
        (n * 0, 0),
        (n + m - n, m),
        (n - 5 + 5, n),
        ((n + 1) * (n - 1), n * n - 1),
        ((n + m) * (n + m), n * n + 2 * n * m + m * m),
        (n * m, m * n),
        (5 - n, -n + 5),
        (n // 1, n),
        (n // n, 1),
        (2 * n // 2, n),
        ((4 * n + m + 8) // 4, n + m // 4 + 2),
        ((2 * n + 3) // 2, n + 1),
        (n // 2 * 2, 2 * (n // 2)),
        (n + "m", n + m),
        (Dim(7) // 2, 3),
        (7 // Dim(2), 3),
        (Dim(2) + Dim(3), 5),
        (2 * Dim(3), 6),
        (3 - Dim(1), 2),
        (Dim(0) // n, 0),
    ],
)
def test_equal_expressions_are_equal_and_hash_alike(left: Dim, right: Dim) -> None:
    assert left == right
    assert hash(left) == hash(right)


@pytest.mark.parametrize(
    ("left", "right"), [(n + 1, n), (n + 1, n + 2), (n // 2, n), (n // 2 * 2, n), (n // 2, n // 3), (n + 1, "n + 1")]
)
def test_different_expressions_differ(left: object, right: object) -> None:
    assert left != right


@pytest.mark.parametrize(
    "expression", [n + 1, n * m - 2, n // 2, (n + m) // (m + 1) * 3, (n // 2) // 3, 5 - n, n * n // 2]
)
def test_expressions_survive_repr_pickle_and_copy(expression: Dim) -> None:
    assert type(expression) is AlgebraicDim
    assert eval(repr(expression), {"Dim": Dim}) == expression
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert copy.deepcopy(expression) == expression


def test_text() -> None:
    assert [repr(dim) for dim in (Dim(3), n, n + 1)] == ["Dim(3)", "Dim('n')", "Dim('n') + 1"]
    assert [str(dim) for dim in (Dim(3), n, 2 * n * m - n + 1, (n + 1) // 2)] == [
        "3",
        "n",
        "2*m*n - n + 1",
        "(n + 1) // 2",
    ]
    assert f"{Dim(3)}" == "3"
    assert pickle.loads(pickle.dumps([Dim(3), n])) == [3, "n"]


def test_arithmetic_that_makes_no_dimension_fails() -> None:
    with refuses(ValueError):
        Dim(2) - 3
    with refuses(ValueError):
        Dim(2**62) * 2
    with refuses(ValueError):
        n // -2
    for divide in (lambda: n // 0, lambda: Dim(3) // 0, lambda: 3 // Dim(0), lambda: n // (n - n)):
        with pytest.raises(ZeroDivisionError):
            divide()
    for other in (1.0, True, None):
        for operation in (operator.add, operator.sub, operator.mul, operator.floordiv):
            with pytest.raises(TypeError):
                operation(n, other)
            with pytest.raises(TypeError):
                operation(other, n)


def test_sequences_repeat_by_a_static_dim() -> None:
    assert [0] * Dim(2) == [0, 0]
    assert "-" * Dim(3) == "---"


def test_dims_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Dim(3).dim = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        n.other = 1  # type: ignore[attr-defined]


values = st.integers(1, 50)
steps = st.lists(
    st.tuples(st.sampled_from("+-*/"), st.one_of(values, st.sampled_from(["n", "m"]))), min_size=1, max_size=6
)


@given(steps, values, values)
def test_an_expression_means_the_same_with_numbers_put_in(
    steps: list[tuple[str, int | str]], n_size: int, m_size: int
) -> None:
    """The oracle is the same arithmetic on ints; the expression's own text is evaluated with the symbols' sizes."""
    sizes = {"n": n_size, "m": m_size}
    dim, number = n, n_size
    for sign, operand in steps:
        other = sizes[operand] if isinstance(operand, str) else operand
        right = Dim(operand)
        if sign == "/":
            dim, number = dim // right, number // other
        elif sign == "+":
            dim, number = dim + right, number + other
        elif sign == "*":
            dim, number = dim * right, number * other
        else:
            # Adds what it subtracts: a single number could otherwise become negative.
            dim, number = dim + 50 - right, number + 50 - other
    assert eval(str(dim), {}, sizes) == number


def test_parameters_are_the_symbols_of_a_dimension() -> None:
    n, m = Dim("n"), Dim("m")
    assert Dim(3).parameters == []
    assert n.parameters == [n]
    assert (n * 2 + m).parameters == [n, m]
    assert (n * n + 1).parameters == [n]
    assert ((n + 1) // m).parameters == [n, m]


def test_symbols_are_replaced_by_dimensions() -> None:
    n, m = Dim("n"), Dim("m")
    assert n.substitute({"n": 3}) == 3
    assert n.substitute({}) == n
    assert Dim(3).substitute({"n": 1}) == 3
    assert (n * 2 + m).substitute({"n": 3}) == m + 6
    assert (n * 2 + m).substitute({"n": "k", "m": n + 1}) == Dim("k") * 2 + n + 1
    assert (n + m).substitute({"n": m, "m": n}) == n + m
    assert (1 - n + n * n).substitute({"n": 3}) == 7
    assert (n * 2 + m // n).substitute({"n": 2, "m": 9}) == 8
    with refuses(ValueError):
        (n - 2).substitute({"n": 1})
