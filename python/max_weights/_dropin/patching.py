"""`patch` and `unpatch`: replace functions in every loaded module, and in modules that are imported later."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from max_weights._core import escape
from max_weights._dropin.calls import Calls, Counter, log
from max_weights._fork_lock import ForkLock
from max_weights._switches import is_on

__all__ = ["patch", "patched", "unpatch"]


class PatchTarget(NamedTuple):
    """A name of another library, and the function that makes its replacement."""

    module: str
    """The module whose import defines the name."""
    name: str
    factory: str
    """`module:function`, called with the original and a `Counter`."""
    defined_in: tuple[str, ...]
    """The modules that define the original; a function from any other is a third-party replacement."""

    @property
    def full_name(self) -> str:
        """The name in the form in which a program writes it."""
        return f"{self.module}.{self.name}"


_GGUF = "max_weights._dropin.gguf_functions"
_VALUES = "transformers.integrations.ggml"
_TENSORS = "transformers.integrations.gguf.dequant"
_SAFETENSORS = "max_weights._dropin.safetensors_functions"
TARGETS = (
    PatchTarget("safetensors", "safe_open", f"{_SAFETENSORS}:safe_open", ("builtins", "safetensors._safetensors_rust")),
    PatchTarget("safetensors.torch", "load_file", f"{_SAFETENSORS}:load_file", ("safetensors.torch",)),
    *(
        PatchTarget(module, name, f"{_SAFETENSORS}:function", (home,))
        for module, home, names in (
            ("safetensors", "safetensors._safetensors_rust", "serialize serialize_file"),
            ("safetensors.torch", "safetensors.torch", "load save_file save save_model"),
            ("safetensors.numpy", "safetensors.numpy", "load_file load save_file save"),
        )
        for name in names.split()
    ),
    PatchTarget("torch", "load", "max_weights._dropin.torch_load:replacement", ("torch.serialization",)),
    PatchTarget("gguf", "GGUFReader", "max_weights._dropin.gguf_reader:replacement", ("gguf.gguf_reader",)),
    PatchTarget("gguf", "dequantize", f"{_GGUF}:dequantize", ("gguf.quants",)),
    PatchTarget("gguf", "get_tensor_name_map", f"{_GGUF}:get_tensor_name_map", ("gguf.tensor_mapping",)),
    PatchTarget(_VALUES, "_gguf_parse_value", f"{_GGUF}:parse_value", (_VALUES,)),
    PatchTarget(_TENSORS, "dequantize", "max_weights._dropin.gguf_tensors:dequantize", (_TENSORS,)),
)

_LOAD_MODELS = ("transformers.modeling_utils", "diffusers.models.modeling_utils")
"""The modules whose classes load models that can be verified."""


class Pair(NamedTuple):
    """An original and its replacement."""

    original: object
    replacement: object
    counter: Counter


class _State:
    """The functions that are replaced in this process."""

    def __init__(self) -> None:
        self.lock = ForkLock()
        self.active = False
        self.verify = False
        """Whether models that other libraries load are compared with their files."""
        self.pairs: dict[str, Pair] = {}
        """By full name; created once, so that a second `patch` installs the same objects."""


_state = _State()


def patch(*, verify: bool | None = None) -> None:
    """Make this program load and save its checkpoints with max_weights, by replacing functions of other libraries.

    These functions of safetensors are replaced: `safe_open`, `serialize` and `serialize_file`; `load_file`, `load`,
    `save_file` and `save` of its modules for torch and NumPy, which its other modules call; and `save_model`. So are
    `torch.load`, `gguf.GGUFReader`, and what else transformers needs for a GGUF file. Functions are replaced in every
    loaded module, under whatever name it imported them, and in their libraries when these are imported later.

    An unsupported call goes to the original, and has its result or error: another device than the CPU,
    `weights_only=False`, a damaged file, tensors that cannot be saved, and others. Each reason is logged once, by
    `max_weights.dropin` at level INFO. Calling `patch` again changes nothing. Forked processes are patched too; for
    spawned ones set `MAX_WEIGHTS_PATCH=1`.

    Args:
        verify: Compare the models that `from_pretrained` of transformers and of diffusers loads with their files: one
            line of that logger says what is equal; a parameter that differs is a `VerificationError`. Default: whether
            the environment has `MAX_WEIGHTS_VERIFY=1`.

    Raises:
        ArgumentError: `MAX_WEIGHTS_VERIFY` is neither on nor off (a ValueError).

    Example:
        >>> max_weights.patch(verify=False)
        >>> max_weights.unpatch()
    """
    verifies = is_on("MAX_WEIGHTS_VERIFY") if verify is None else verify
    with _state.lock:
        _state.active = True
        _state.verify = verifies
        _unwrap()
        for module in _LOAD_MODELS:
            if _state.verify and module in sys.modules:
                importlib.import_module(module)
                _wrap(module)
        for pair in _state.pairs.values():
            pair.counter.active = True
        for module in dict.fromkeys(target.module for target in TARGETS):
            if module in sys.modules:
                importlib.import_module(module)  # waits where another thread is importing it
                _make_pairs(module)
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        _swap({id(pair.original): pair.replacement for pair in _state.pairs.values()})


def unpatch() -> None:
    """Restore the originals, wherever a loaded module has one of our replacements.

    Open handles and readers keep working. Replacements that others have installed since stay, and call the originals.

    Example:
        >>> max_weights.unpatch()
        >>> dict(max_weights.patched())
        {}
    """
    with _state.lock:
        _state.active = False
        _unwrap()
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        for pair in _state.pairs.values():
            pair.counter.active = False
        _swap({id(pair.replacement): pair.original for pair in _state.pairs.values()})


def patched() -> Mapping[str, Calls]:
    """Return the replaced functions of this process, and how many calls fell back to the original.

    Returns:
        {full name, such as `torch.load`: counts}, without libraries that are not imported yet; empty if nothing is.

    Example:
        >>> max_weights.patch(verify=False)
        >>> max_weights.patched()["torch.load"]
        Calls(fast=..., fallback=...)
        >>> max_weights.unpatch()
    """
    with _state.lock:
        pairs = _state.pairs if _state.active else {}
        return MappingProxyType({name: pair.counter.calls for name, pair in pairs.items()})


def _wrap(module: str) -> None:
    from max_weights._dropin import pretrained

    pretrained.wrap(module)


def _unwrap() -> None:
    """Restore the methods that verification wraps, if it was ever enabled."""
    pretrained = sys.modules.get("max_weights._dropin.pretrained")
    if pretrained is not None:
        pretrained.restore()


def _make_pairs(module: str) -> None:
    """Create the replacements for the functions of a loaded module."""
    for target in TARGETS:
        if target.module != module or target.full_name in _state.pairs:
            continue
        original = getattr(sys.modules[module], target.name, None)
        if getattr(original, "__module__", None) not in target.defined_in:
            if original is not None:
                origin = escape(f"{getattr(original, '__module__', None)}.{getattr(original, '__qualname__', '?')}")
                log("%s is not replaced: it is %s, which is not the library's own", target.full_name, origin)
            continue
        where, _, function = target.factory.partition(":")
        counter = Counter(target.full_name)
        try:
            replacement = getattr(importlib.import_module(where), function)(original, counter)
        except Exception as error:
            # A version of the library that we do not know: the program continues with its functions.
            counter.count_fallback(error)
            continue
        _state.pairs[target.full_name] = Pair(original, replacement, counter)


def _swap(by_id: Mapping[int, object], modules: Sequence[str] | None = None) -> None:
    """Replace values by identity in the namespaces of all loaded modules, or of these."""
    ids = by_id.keys()
    for name in list(sys.modules) if modules is None else modules:
        module = sys.modules.get(name)
        # Our own modules keep the originals that they call. Some entries are not modules.
        if name.partition(".")[0] == "max_weights" or not isinstance(module, ModuleType):
            continue
        namespace = vars(module)
        if ids.isdisjoint(map(id, list(namespace.values()))):
            continue
        for key, value in list(namespace.items()):
            if id(value) in ids:
                namespace[key] = by_id[id(value)]


def _imported(module: str) -> None:
    """Replace the functions of a library that was just imported, so that no other module has them yet."""
    with _state.lock:
        if _state.active:
            if _state.verify and module in _LOAD_MODELS:
                _wrap(module)
            _make_pairs(module)
            package = module.partition(".")[0]
            inside = [name for name in list(sys.modules) if name.partition(".")[0] == package]
            _swap({id(pair.original): pair.replacement for pair in _state.pairs.values()}, inside)


class _Finder:
    """Finds nothing itself: it makes sure that a library is patched when it has been imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of the other finders, with a loader that calls us."""
        if name not in _LIBRARIES or name in _finding.names:
            return None
        _finding.names.add(name)
        try:
            spec = find_spec(name)
        finally:
            _finding.names.discard(name)
        if spec is not None and spec.loader is not None:
            _wrap_loader(spec.loader, name)
        return spec


class _ModuleSearch(threading.local):
    def __init__(self) -> None:
        self.names: set[str] = set()


_finding = _ModuleSearch()
_LIBRARIES = frozenset((*(target.module for target in TARGETS), *_LOAD_MODELS))


def _wrap_loader(loader: Any, name: str) -> None:
    """Make a loader call us when it has run the module."""
    run: Callable[[ModuleType], None] = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        _imported(name)

    loader.exec_module = exec_module
