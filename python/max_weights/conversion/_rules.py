"""Rules that say which names of one library become which of another, and by which steps the tensors do."""

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
# A step as the compiled code takes it: its name, its numbers, and proportions.
_Step = tuple[str, list[int], list[int]]


@dataclass(frozen=True)
class Step:
    """What is done to tensors; one of the classes below.

    Example:
        >>> max_weights.conversion.Stack(1).reverse()
        Unstack(axis=1)
    """

    def reverse(self) -> Step:
        """Return the step that undoes this one. What `Add` lost by rounding does not come back."""
        values = (getattr(self, one.name) for one in fields(self))
        return _REVERSE[type(self)](*values)

    def resolve(self, number: Numbers) -> _Step:
        """Return the step as the compiled code takes it, with the numbers that a configuration says."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        parts = values.pop("parts", ())
        numbers = [number(value) for value in values.values() if value is not None]
        # Where tensors are joined, their proportions are only for the way back.
        cuts = isinstance(self, Split | Deinterleave)
        return type(self).__name__.lower(), numbers, [number(part) for part in parts] if cuts else []


@dataclass(frozen=True)
class Stack(Step):
    """The tensors of a list become one, along a new axis: experts that lie apart are packed."""

    axis: int = 0


@dataclass(frozen=True)
class Unstack(Step):
    """A tensor becomes a list: one for each position of an axis, which goes."""

    axis: int = 0


@dataclass(frozen=True)
class Concatenate(Step):
    """The tensors of all sources become one, one behind the other along an axis.

    `parts` are the proportions of the sources, for the reverse; equal ones, if there are none.
    """

    axis: int = 0
    parts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Split(Step):
    """A tensor becomes one for each of the `parts`, its proportions along an axis; without them, for each target."""

    axis: int = 0
    parts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Transpose(Step):
    """Two axes change places."""

    first: int
    second: int


@dataclass(frozen=True)
class Add(Step):
    """A whole number is added to each element: the weights of norms, which some libraries store with 1 added.

    The sum is that of float32, or of float64 for float64 elements; it is rounded from there to the dtype in which the
    tensor is taken.
    """

    amount: int


@dataclass(frozen=True)
class Interleave(Step):
    """The tensors of all sources become one: each is cut into equal groups, which take turns along an axis.

    Without `groups`, a group is one position. `parts` are the proportions of the sources, for the reverse.
    """

    axis: int = 0
    groups: Size | None = None
    parts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Deinterleave(Step):
    """A tensor becomes one for each of the `parts`: its proportions in each of equal groups along an axis."""

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

    A name is a template: each `*` is any text, which the targets have for their `*` of the same number, and `#` is the
    number of one of several, as of experts. Weights belong together whose names have the same text for `*`:

        ConversionRule(
            ["*.experts.#.w1.weight", "*.experts.#.w3.weight"],
            "*.experts.gate_up_proj",
            [Stack(0), Concatenate(1)],
        )

    A rule without steps gives weights other names.

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
        """Accept one name, or one step, in the place of a sequence of them."""
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
        """Return the rule that leads back.

        Example:
            >>> max_weights.conversion.ConversionRule("a.*", "b.*").reverse().sources
            ('b.*',)
        """
        return ConversionRule(self.targets, self.sources, tuple(step.reverse() for step in reversed(self.steps)))

    def resolve(self, number: Numbers) -> tuple[list[str], list[str], list[_Step]]:
        """Return the rule as the compiled code takes it.

        Args:
            number: Returns the number that a size stands for.

        Raises:
            Exception: What `number` raises.

        Example:
            >>> max_weights.conversion.ConversionRule("a.*", "b.*").resolve(int)
            (['a.*'], ['b.*'], [])
        """
        return list(self.sources), list(self.targets), [step.resolve(number) for step in self.steps]
