"""Rules that map names and tensors of one library to those of another, in steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from max_weights.errors import ArgumentError

# fmt: off
__all__ = [
    "Add", "Concatenate", "ConversionRule", "Deinterleave", "Interleave", "Size", "Split", "Stack", "Step", "Transpose",
    "Unstack",
]
# fmt: on

Size = int | str
"""A number, or its name in a model's config.json: `num_attention_heads`, or a sum, `kv_lora_rank+qk_rope_head_dim`."""
Numbers = Callable[[Size], int]
# A step in the form of the compiled code: its name, its numbers, and proportions.
_Step = tuple[str, list[int], list[int]]


@dataclass(frozen=True)
class Step:
    """A step of a conversion; one of the classes below.

    Example:
        >>> max_weights.conversion.Stack(1).reverse()
        Unstack(axis=1)
    """

    def reverse(self) -> Step:
        """Return the inverse step. Values that `Add` rounded are not restored."""
        values = (getattr(self, one.name) for one in fields(self))
        return _REVERSE[type(self)](*values)

    def resolve(self, number: Numbers) -> _Step:
        """Return the step in the form of the compiled code, with the numbers of a configuration."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        parts = values.pop("parts", ())
        numbers = [number(value) for value in values.values() if value is not None]
        # Where tensors are joined, their proportions are only for the inverse.
        cuts = isinstance(self, Split | Deinterleave)
        return type(self).__name__.lower(), numbers, [number(part) for part in parts] if cuts else []


@dataclass(frozen=True)
class Stack(Step):
    """Stack the tensors of a list along a new axis: separate experts become packed ones."""

    axis: int = 0


@dataclass(frozen=True)
class Unstack(Step):
    """Unstack a tensor: one for each position of an axis, which is removed."""

    axis: int = 0


@dataclass(frozen=True)
class Concatenate(Step):
    """Concatenate the tensors of all sources along an axis.

    For the inverse, `parts` are the proportions of the sources; default: equal ones.
    """

    axis: int = 0
    parts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Split(Step):
    """Split a tensor into `parts`, its proportions along an axis; by default, equally, one for each target."""

    axis: int = 0
    parts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Transpose(Step):
    """Swap two axes."""

    first: int
    second: int


@dataclass(frozen=True)
class Add(Step):
    """Add a whole number to each element: the weights of norms, which some libraries store with 1 added.

    The sum is computed in float32, or in float64 for float64 elements, and then rounded to the requested dtype.
    """

    amount: int


@dataclass(frozen=True)
class Interleave(Step):
    """Interleave the tensors of all sources: each is split into equal groups, which alternate along an axis.

    Without `groups`, a group is one position. For the inverse, `parts` are the proportions of the sources.
    """

    axis: int = 0
    groups: Size | None = None
    parts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Deinterleave(Step):
    """Split each of equal groups along an axis into `parts`, its proportions: one tensor for each part."""

    axis: int = 0
    groups: Size | None = None
    parts: tuple[Size, ...] = ()


_REVERSE: dict[type[Step], Callable[..., Step]] = {
    Stack: Unstack,
    Unstack: Stack,
    Concatenate: Split,
    Split: Concatenate,
    Transpose: Transpose,
    Interleave: Deinterleave,
    Deinterleave: Interleave,
    Add: lambda amount: Add(-amount),
}


@dataclass(frozen=True)
class ConversionRule:
    """Weights with the names of `sources` become weights with the names of `targets`, by `steps`.

    A name is a template: each `*` is any text, which replaces the `*` of the same number in the targets, and `#` is a
    number, such as that of an expert. Weights with the same text for `*` belong together:

        ConversionRule(
            ["*.experts.#.w1.weight", "*.experts.#.w3.weight"],
            "*.experts.gate_up_proj",
            [Stack(0), Concatenate(1)],
        )

    A rule without steps only renames.

    Example:
        >>> rule = max_weights.conversion.ConversionRule("model.*", "decoder.*")
        >>> sorted(max_weights.renamed("model.safetensors", [rule]).load())[0]
        'decoder.embed_tokens.weight'
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    steps: tuple[Step, ...] = field(default=())

    def __init__(
        self, sources: str | Sequence[str], targets: str | Sequence[str], steps: Step | Sequence[Step] = ()
    ) -> None:
        """Accept a single name, or a single step, instead of a sequence of them."""
        steps = (steps,) if isinstance(steps, Step) else tuple(steps)
        for step in steps:
            if not isinstance(step, Step):
                raise ArgumentError(
                    f"a step of a conversion is Stack(0), Concatenate(1) or the like, not {step!r}",
                    rule="argument.type",
                )
        object.__setattr__(self, "sources", (sources,) if isinstance(sources, str) else tuple(sources))
        object.__setattr__(self, "targets", (targets,) if isinstance(targets, str) else tuple(targets))
        object.__setattr__(self, "steps", steps)

    def reverse(self) -> ConversionRule:
        """Return the inverse rule.

        Example:
            >>> max_weights.conversion.ConversionRule("a.*", "b.*").reverse().sources
            ('b.*',)
        """
        return ConversionRule(self.targets, self.sources, tuple(step.reverse() for step in reversed(self.steps)))

    def resolve(self, number: Numbers) -> tuple[list[str], list[str], list[_Step]]:
        """Return the rule in the form of the compiled code.

        Args:
            number: Returns the value of a size.

        Raises:
            Exception: Any error of `number`.

        Example:
            >>> max_weights.conversion.ConversionRule("a.*", "b.*").resolve(int)
            (['a.*'], ['b.*'], [])
        """
        return list(self.sources), list(self.targets), [step.resolve(number) for step in self.steps]
