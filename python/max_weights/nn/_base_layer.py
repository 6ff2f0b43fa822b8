"""`Layer`, and the hooks that see the arguments and the outputs of every layer.

If a class defines `__call__`, it is wrapped once, when the class is created. Without hooks, the wrapper costs one
comparison, so layers need no switch for debugging, and debugging costs nothing when it is off.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["Layer", "LayerHook", "add_layer_hook", "clear_hooks", "remove_layer_hook"]

LayerHook: TypeAlias = Callable[["Layer", tuple[Any, ...], dict[str, Any], Any], object]

# A tuple, because a running call keeps the old one.
_hooks: tuple[LayerHook, ...] = ()
_lock = threading.Lock()


def add_layer_hook(fn: LayerHook) -> None:
    """Call a function after each call of a layer, from now on, in every thread and task.

    Hooks run in the order they were added, and those of inner layers before those of outer ones. An exception in a hook
    reaches the caller of the layer.

    Args:
        fn: Called as `fn(layer, args, kwargs, outputs)`. Parameters that can be given by position are in `args`,
            however they were given; `kwargs` has the rest. If it returns a value other than `None`, that replaces the
            outputs, also for later hooks.

    Raises:
        TypeError: `fn` cannot be called.

    Example:
        >>> nn.add_layer_hook(lambda layer, args, kwargs, outputs: print(type(layer).__name__))
        >>> nn.Identity()(1)
        Identity
        1
        >>> nn.clear_hooks()
    """
    global _hooks
    if not callable(fn):
        raise TypeError(f"a hook must be a function of (layer, args, kwargs, outputs), not {fn!r}")
    with _lock:
        _hooks = (*_hooks, fn)


def remove_layer_hook(fn: LayerHook) -> None:
    """Remove a hook, however often it was added."""
    global _hooks
    with _lock:
        _hooks = tuple(hook for hook in _hooks if hook is not fn)


def clear_hooks() -> None:
    """Remove all hooks.

    Example:
        >>> nn.clear_hooks()
    """
    global _hooks
    with _lock:
        _hooks = ()


class Layer:
    """The base class of everything that is called with values and returns values; it has hooks, and no weights.

    One call of an instance runs the hooks once, even if its `__call__` calls that of its base class.
    """

    if TYPE_CHECKING:
        __call__: Callable[..., Any]

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        # The nearest `__call__`: that of a layer already has the hooks, that of a class that is no layer does not yet.
        home = next((base for base in cls.__mro__ if "__call__" in vars(base)), Layer)
        call = vars(home).get("__call__")
        if home is not cls:
            call = None if issubclass(home, Layer) else _inherited(cls, call)
        if callable(call) and not isinstance(call, (staticmethod, classmethod)):
            setattr(cls, "__call__", _with_hooks(call))  # noqa: B010 (mypy takes an assignment for one to a method)


def _inherited(cls: type, call: Any) -> Callable[..., object]:
    """Return what `cls` would do without its `__call__`: call the next one in the method resolution order."""

    @functools.wraps(call)
    def inherited(self: object, /, *args: object, **kwargs: object) -> object:
        following: Any = super(cls, self)
        return following.__call__(*args, **kwargs)

    return inherited


def _with_hooks(call: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(call)
    def hooked(self: Layer, /, *args: object, **kwargs: object) -> object:
        outputs = call(self, *args, **kwargs)
        hooks = _hooks
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

    It may be wrapped again later, for example by a decorator that copies the attributes of the method.
    """
    for base in cls.__mro__:
        call = vars(base).get("__call__")
        if call is not None:
            wrapper: object = getattr(call, "_max_weights_wrapper", None)
            if wrapper is not None:
                return wrapper
    return None


def _bound(
    call: Callable[..., object], layer: Layer, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments, with everything that can be positional in the first part."""
    if not kwargs:
        return args, kwargs
    signature = _signature(call)
    if signature is None:
        return args, kwargs
    bound = signature.bind(layer, *args, **kwargs)
    return bound.args[1:], bound.kwargs


@functools.lru_cache(maxsize=1024)
def _signature(call: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):  # a callable written in C, without a signature
        return None
