"""`Layer`, and the hooks that see the arguments and the outputs of every layer.

If a class defines `__call__`, it is wrapped once, when the class is created. Without hooks, the wrapper costs one
lookup of a context variable, so layers need no switch for debugging, and debugging costs nothing when it is off.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from max_weights.nn.module import Module

__all__ = ["Layer", "LayerHook", "PrintHook", "add_layer_hook", "clear_hooks"]

_log = logging.getLogger("max_weights.nn")

LayerHook: TypeAlias = Callable[["Layer", tuple[Any, ...], dict[str, Any], Any], Any]

# A tuple, so that a copied context (of a task, or given to a thread) has a list of its own.
_HOOKS: ContextVar[tuple[LayerHook, ...]] = ContextVar("max_weights_layer_hooks", default=())


def add_layer_hook(fn: LayerHook) -> None:
    """Call a function after each call of a layer, from now on and in this context only.

    A context is a task of asyncio or a thread. A new task inherits the hooks of the one that creates it; a new thread
    starts without any (unless it runs in `contextvars.copy_context()`). Hooks run in the order they were added, and
    those of inner layers before those of outer ones. An exception in a hook reaches the caller of the layer.

    Args:
        fn: Called as `fn(layer, args, kwargs, outputs)`. Parameters that can be given by position are in `args`,
            however they were given; `kwargs` has the rest. If it returns a value other than `None`, that replaces the
            outputs, also for later hooks.
    """
    if not callable(fn):
        raise TypeError(f"a hook must be a function of (layer, args, kwargs, outputs), not {fn!r}")
    _HOOKS.set((*_HOOKS.get(), fn))


def clear_hooks() -> None:
    """Remove all hooks of this context."""
    _HOOKS.set(())


class Layer:
    """The base class of everything that is called with values and returns values; it has hooks, and no weights.

    One call of an instance runs the hooks once, even if its `__call__` calls that of its base class.
    """

    if TYPE_CHECKING:
        __call__: Callable[..., Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The nearest `__call__`: that of a layer already has the hooks, that of a class beside the layers does not yet.
        home = next((base for base in cls.__mro__ if "__call__" in vars(base)), Layer)
        call = vars(home).get("__call__")
        if home is not cls:
            call = None if issubclass(home, Layer) else _inherited(cls, call)
        if callable(call) and not isinstance(call, (staticmethod, classmethod)):
            setattr(cls, "__call__", _with_hooks(call))  # noqa: B010 (mypy takes an assignment for one to a method)


def _inherited(cls: type, call: Any) -> Callable[..., Any]:
    """Return what `cls` would do without a `__call__` of its own: call the next one in the method resolution order."""

    @functools.wraps(call)
    def inherited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        following: Any = super(cls, self)
        return following.__call__(*args, **kwargs)

    return inherited


def _with_hooks(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def hooked(self: Layer, /, *args: Any, **kwargs: Any) -> Any:
        outputs = call(self, *args, **kwargs)
        hooks = _HOOKS.get()
        if hooks and _outermost(type(self)) is hooked:
            args, kwargs = _bound(call, self, args, kwargs)
            for hook in hooks:
                replaced = hook(self, args, kwargs, outputs)
                if replaced is not None:
                    outputs = replaced
        return outputs

    hooked._max_weights_wrapper = hooked  # type: ignore[attr-defined]
    return hooked


def _outermost(cls: type) -> object:
    """Return the wrapper that a call of an instance enters first; those of base classes are entered through `super()`.

    It may be below something put around it later, such as a decorator that keeps the attributes of what it decorates.
    """
    for base in cls.__mro__:
        call = vars(base).get("__call__")
        if call is not None:
            found: object = getattr(call, "_max_weights_wrapper", None)
            if found is not None:
                return found
    return None


def _bound(
    call: Callable[..., Any], layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, with everything that can be positional in the first part."""
    if not kwargs:
        return args, kwargs
    signature = _signature(call)
    if signature is None:
        return args, kwargs
    bound = signature.bind(layer, *args, **kwargs)
    return bound.args[1:], bound.kwargs


@functools.lru_cache(maxsize=1024)
def _signature(call: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):  # a callable written in C, without a signature
        return None


class PrintHook:
    """A hook that prints the inputs and outputs of each layer when the graph is run.

    It is added when it is created, in the current context, and records `print` operations in the graphs that are built
    from then on. The labels are those of MAX: `model.up-input_0`, `model.up-input_mask`, `model.up-output`,
    `model.up-output_1` for one of several. A layer without a name is labelled by its class.

    Args:
        export_path: Nothing is written: tensors are only printed, and a path gives a warning.
        filter: The names of the layers to print; default: all.
    """

    def __init__(self, export_path: str | None = None, filter: Iterable[str] | None = None) -> None:
        if export_path is not None:
            _log.warning("PrintHook does not write files, so nothing goes to %s: tensors are printed", export_path)
        self.filter = None if filter is None else frozenset(filter)
        self.labels: list[str] = []
        """The labels recorded since the last `step`."""
        self._step = 0
        # The layer is kept, because the id of one that is gone may be given to another.
        self._names: dict[int, tuple[Layer, str]] = {}
        add_layer_hook(self)

    def name_layers(self, model: Module) -> None:
        """Name a model and all layers below it by their paths: `model`, `model.layers.0`."""
        for prefix, layer in model.named_modules():
            self.add_layer(layer, f"model.{prefix}".removesuffix("."))

    def add_layer(self, layer: Layer, name: str) -> None:
        """Name one layer."""
        self._names[id(layer)] = layer, name

    def __call__(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        """Record print operations for one call's tensors."""
        name = self._name(layer)
        if self.filter is not None and name not in self.filter:
            return
        for key, value in (*enumerate(args), *kwargs.items()):
            self.print_value(f"{name}-input_{key}", value)
        if isinstance(outputs, (list, tuple)):
            for index, value in enumerate(outputs):
                self.print_value(f"{name}-output_{index}", value)
        else:
            self.print_value(f"{name}-output", outputs)

    def _name(self, layer: Layer) -> str:
        if id(layer) not in self._names:
            taken = {name for _, name in self._names.values()}
            kind = type(layer).__name__
            numbered = itertools.chain([kind], (f"{kind}{number}" for number in itertools.count(2)))
            self.add_layer(layer, next(name for name in numbered if name not in taken))
        return self._names[id(layer)][1]

    def print_value(self, name: str, value: Any) -> bool:
        """Print a value under a label; return False if it is not a tensor of a graph."""
        from max_weights.graph.value import TensorValue

        if not isinstance(value, TensorValue):
            return False
        value.print(name)
        self.labels.append(name)
        return True

    def step(self) -> None:
        """Restart the count from zero, as for the next graph."""
        self._step += 1
        self.labels.clear()

    def summarize(self) -> None:
        """Print the number of tensors."""
        print(f"Printed {len(self.labels)} tensors for step {self._step}.")

    def remove(self) -> None:
        """Stop printing."""
        _HOOKS.set(tuple(hook for hook in _HOOKS.get() if hook is not self))
