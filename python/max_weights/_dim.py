"""`Dim`: one dimension of a shape, static (`3`), symbolic (`n`) or algebraic (`n + 1`).

An algebraic dimension is a polynomial with integer coefficients over symbols and floor divisions, stored as its sum of
products. Two polynomials are the same exactly if their sums are, so `n + 1 + 2 == n + 3` and `n - n == 0` need no
special rules.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, final

if TYPE_CHECKING:
    from typing import Self

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim", "factors_of", "terms_of", "to_dim"]

_MAX = 2**63 - 1

# Weights repeat few sizes, and a dimension cannot change, so the objects are shared, as many as a large model has.
_MAX_SHARED = 4096


class _Static(dict[int, "StaticDim"]):
    """The dimensions of known sizes, by size."""

    def __missing__(self, size: int) -> StaticDim:
        if size < 0:
            raise ValueError(f"a dimension must not be negative; found {size}")
        if size > _MAX:
            raise ValueError(f"a dimension must fit a signed 64-bit integer; found {size}")
        dim = object.__new__(StaticDim)
        dim._size = size
        if len(self) < _MAX_SHARED:
            self[size] = dim
        return dim


_STATIC = _Static()


class Dim:
    """One dimension of a shape.

    `Dim(3)` is a `StaticDim`, `Dim("n")` a `SymbolicDim`, and `+ - * //` of them give an `AlgebraicDim` if a symbol is
    left. Dimensions are immutable; a static one equals its int, a symbolic one its name.

    Args:
        value: An int of 0 to 2**63 - 1 (NumPy's too), an identifier, or a `Dim`, which is returned unchanged.
            ValueError for an int out of range or a string that is not an identifier, TypeError for anything else,
            including floats and bools.
    """

    __slots__ = ()

    def __new__(cls, value: DimLike) -> Self:
        """Return the dimension, of the subclass that fits the value."""
        dim = to_dim(value)
        if not isinstance(dim, cls):
            raise TypeError(f"{value!r} makes a {type(dim).__name__}, not a {cls.__name__}")
        return dim

    def __add__(self, other: DimLike) -> Dim:
        terms = _terms(other)
        return NotImplemented if terms is None else _from_terms(_sum(terms_of(self), terms))

    def __radd__(self, other: DimLike) -> Dim:
        terms = _int_terms(other)
        return NotImplemented if terms is None else _from_terms(_sum(terms, terms_of(self)))

    def __sub__(self, other: DimLike) -> Dim:
        terms = _terms(other)
        return NotImplemented if terms is None else _from_terms(_sum(terms_of(self), terms, -1))

    def __rsub__(self, other: DimLike) -> Dim:
        terms = _int_terms(other)
        return NotImplemented if terms is None else _from_terms(_sum(terms, terms_of(self), -1))

    def __mul__(self, other: DimLike) -> Dim:
        terms = _terms(other)
        return NotImplemented if terms is None else _from_terms(_product(terms_of(self), terms))

    def __rmul__(self, other: DimLike) -> Dim:
        terms = _int_terms(other)
        return NotImplemented if terms is None else _from_terms(_product(terms, terms_of(self)))

    def __floordiv__(self, other: DimLike) -> Dim:
        terms = _terms(other)
        return NotImplemented if terms is None else _quotient(terms_of(self), terms)

    def __rfloordiv__(self, other: DimLike) -> Dim:
        terms = _int_terms(other)
        return NotImplemented if terms is None else _quotient(terms, terms_of(self))

    @property
    def parameters(self) -> list[SymbolicDim]:
        """The symbols that the dimension is computed from, each once; empty for a static one."""
        symbols: dict[SymbolicDim, None] = {}
        for product in terms_of(self):
            for atom in product:
                sides = (atom,) if isinstance(atom, Dim) else atom
                for side in sides:
                    symbols.update(dict.fromkeys([side] if isinstance(side, SymbolicDim) else side.parameters))
        return list(symbols)

    def substitute(self, mapping: Mapping[str, DimLike]) -> Dim:
        """Return the dimension with symbols replaced by other dimensions; symbols that are not in `mapping` stay.

        Args:
            mapping: Ints, names or `Dim` by the names of symbols.

        Returns:
            The dimension.

        Raises:
            ValueError: The result is negative.

        Example:
            >>> (max_weights.graph.Dim("n") + 1).substitute({"n": 2})
            Dim(3)
        """
        total: _Sum = {}
        for product, coefficient in terms_of(self).items():
            term: _Sum = {(): coefficient}
            for atom in product:
                term = _product(term, terms_of(_substituted(atom, mapping)))
            total = _sum(total, term)
        return _from_terms(total)

    def __neg__(self) -> Dim:
        return _from_terms(_sum({}, terms_of(self), -1))

    def __int__(self) -> int:
        raise TypeError(f"the dimension {self} is not static, so it has no int")


@final
class StaticDim(Dim):
    """A dimension of known size; usable wherever an int is."""

    __slots__ = ("_size",)
    __match_args__ = ("dim",)
    _size: int

    @property
    def dim(self) -> int:
        """The size."""
        return self._size

    def substitute(self, _mapping: Mapping[str, DimLike]) -> Dim:
        return self

    def __int__(self) -> int:
        return self._size

    def __index__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return self._size != 0

    def __eq__(self, other: object) -> bool:
        size = _int_of(other)
        return NotImplemented if size is None else self._size == size

    def __hash__(self) -> int:
        return hash(self._size)

    def __lt__(self, other: SupportsIndex) -> bool:
        size = _int_of(other)
        return NotImplemented if size is None else self._size < size

    def __le__(self, other: SupportsIndex) -> bool:
        size = _int_of(other)
        return NotImplemented if size is None else self._size <= size

    def __gt__(self, other: SupportsIndex) -> bool:
        size = _int_of(other)
        return NotImplemented if size is None else self._size > size

    def __ge__(self, other: SupportsIndex) -> bool:
        size = _int_of(other)
        return NotImplemented if size is None else self._size >= size

    def __repr__(self) -> str:
        return f"Dim({self._size})"

    def __str__(self) -> str:
        return str(self._size)

    def __reduce__(self) -> tuple[type[Dim], tuple[int]]:
        return Dim, (self._size,)


@final
class SymbolicDim(Dim):
    """A dimension known only by its name."""

    __slots__ = ("_name",)
    __match_args__ = ("name",)
    _name: str

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicDim):
            return self._name == other._name
        if isinstance(other, str):
            return self._name == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"Dim({self._name!r})"

    def __str__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[type[Dim], tuple[str]]:
        return Dim, (self._name,)


@final
class AlgebraicDim(Dim):
    """A dimension computed from symbolic ones, such as `Dim("n") + 1`; created by arithmetic only."""

    __slots__ = ("_sum",)
    _sum: _Sum

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AlgebraicDim):
            return self._sum == other._sum
        return NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._sum.items()))

    def __repr__(self) -> str:
        return _show(self._sum, repr)

    def __str__(self) -> str:
        return _show(self._sum, str)

    def __reduce__(self) -> tuple[Callable[[_Sum], Dim], tuple[_Sum]]:
        return _from_terms, (dict(self._sum),)


DimLike: TypeAlias = int | str | Dim | SupportsIndex
"""A value that can be converted to a dimension: a size, the name of a symbol, or a `Dim`."""

# A product of atoms in the order of their text, repeated for powers; empty for the constant. An atom is a symbol, or a
# floor division as its two sides.
_Atom: TypeAlias = SymbolicDim | tuple[Dim, Dim]
_Product: TypeAlias = tuple[_Atom, ...]
# Products with their coefficients, none of which is 0.
_Sum: TypeAlias = Mapping[_Product, int]


def to_dim(value: DimLike) -> Dim:
    """Return `Dim(value)`, faster in loops."""
    if type(value) is int:
        return _STATIC[value]
    if isinstance(value, Dim):
        return value
    if isinstance(value, str):
        if not value.isidentifier():
            raise ValueError(
                f"the name of a dimension must be an identifier, such as 'n' or 'batch_size'; found {value!r}"
            )
        symbolic = object.__new__(SymbolicDim)
        symbolic._name = str(value)
        return symbolic
    size = _int_of(value)
    if size is None:
        raise TypeError(f"a dimension must be an int or a name, not {value!r} of type {type(value).__name__}")
    return to_dim(size)


def factors_of(dim: Dim) -> tuple[int, list[Dim]]:
    """Split a dimension into an int times dimensions that are not products; a sum loses its common divisor."""
    terms = terms_of(dim)
    if len(terms) == 1:
        ((product, coefficient),) = terms.items()
        return coefficient, [atom if isinstance(atom, Dim) else _from_terms({(atom,): 1}) for atom in product]
    if not terms:
        return 0, []
    common = math.gcd(*terms.values())
    return common, [_from_terms({product: coefficient // common for product, coefficient in terms.items()})]


def _int_of(value: object) -> int | None:
    """Return the int that a value stands for; `None` for bools, which are ints only by inheritance, and all else."""
    if isinstance(value, StaticDim):
        return value._size
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _int_terms(value: object) -> _Sum | None:
    # The left side of a reflected operation: a string there means a string operation, as in "-" * Dim(3).
    size = _int_of(value)
    if size is None:
        return None
    return {(): size} if size else {}


def _terms(value: object) -> _Sum | None:
    if isinstance(value, str):
        value = to_dim(value)
    if isinstance(value, Dim):
        return terms_of(value)
    return _int_terms(value)


def terms_of(dim: Dim) -> _Sum:
    """Return a dimension as a sum of products with their coefficients.

    A product is a tuple of symbols and of floor divisions (as their two sides); the empty product is the constant.
    """
    if isinstance(dim, AlgebraicDim):
        return dim._sum
    if isinstance(dim, SymbolicDim):
        return {(dim,): 1}
    return {(): int(dim)} if int(dim) else {}


def _from_terms(terms: _Sum) -> Dim:
    if not terms.keys() - {()}:
        return to_dim(terms.get((), 0))
    if len(terms) == 1:
        ((product, coefficient),) = terms.items()
        if coefficient == 1 and len(product) == 1 and isinstance(product[0], SymbolicDim):
            return product[0]
    dim = object.__new__(AlgebraicDim)
    dim._sum = terms
    return dim


def _sum(left: _Sum, right: _Sum, sign: int = 1) -> _Sum:
    total = dict(left)
    for product, coefficient in right.items():
        total[product] = total.get(product, 0) + sign * coefficient
    return {product: coefficient for product, coefficient in total.items() if coefficient}


def _product(left: _Sum, right: _Sum) -> _Sum:
    total: dict[_Product, int] = {}
    for left_product, left_coefficient in left.items():
        for right_product, right_coefficient in right.items():
            product = left_product + right_product
            if left_product and right_product:
                product = tuple(sorted(product, key=_text))
            total[product] = total.get(product, 0) + left_coefficient * right_coefficient
    return {product: coefficient for product, coefficient in total.items() if coefficient}


def _quotient(left: _Sum, right: _Sum) -> Dim:
    if not right:
        raise ZeroDivisionError(f"{_show(left, str)} // 0: a dimension divided by zero")
    if left == right:
        return to_dim(1)
    divisor = right.get((), 0) if not right.keys() - {()} else None
    if divisor is None:
        rest, whole = left, {}
    elif divisor < 0:
        raise ValueError(f"a dimension must be divided by a positive number; found {divisor}")
    else:
        # Terms that the divisor divides may leave the floor: (4n + m) // 4 == n + m // 4.
        whole = {product: coefficient // divisor for product, coefficient in left.items() if not coefficient % divisor}
        rest = {product: coefficient for product, coefficient in left.items() if coefficient % divisor}
        if not rest.keys() - {()}:
            floor = rest.get((), 0) // divisor
            return _from_terms(_sum(whole, {(): floor} if floor else {}))
    if not rest:
        return _from_terms(whole)
    return _from_terms(_sum(whole, {((_from_terms(rest), _from_terms(right)),): 1}))


def _substituted(atom: _Atom, mapping: Mapping[str, DimLike]) -> Dim:
    if isinstance(atom, SymbolicDim):
        return to_dim(mapping.get(atom.name, atom))
    left, right = (side.substitute(mapping) for side in atom)
    return left // right


def _text(atom: _Atom, show: Callable[[Dim], str] = str) -> str:
    if isinstance(atom, Dim):
        return show(atom)
    left, right = (f"({show(side)})" if isinstance(side, AlgebraicDim) else show(side) for side in atom)
    return f"{left} // {right}"


def _show(terms: _Sum, show: Callable[[Dim], str]) -> str:
    shown = ""
    # Higher powers first, the constant last.
    for product, coefficient in sorted(terms.items(), key=lambda term: (-len(term[0]), [*map(_text, term[0])])):
        factors = [str(abs(coefficient))] if abs(coefficient) != 1 or not product else []
        for atom in product:
            text = _text(atom, show)
            factors.append(
                text if isinstance(atom, Dim) or len(product) == len(terms) == abs(coefficient) == 1 else f"({text})"
            )
        if shown:
            shown += " - " if coefficient < 0 else " + "
        elif coefficient < 0:
            shown += "-"
        shown += "*".join(factors)
    return shown or "0"
