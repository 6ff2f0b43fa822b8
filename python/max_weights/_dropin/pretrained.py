"""`MAX_WEIGHTS_VERIFY=1`: models that other libraries load are compared with the files that they were loaded from.

Two methods are wrapped: the class method that a program calls, such as `PreTrainedModel.from_pretrained`, and the one
that it calls with the model and its files, which tells what to compare.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from max_weights._core import escape, infos, printable
from max_weights._html import count
from max_weights._typing import known
from max_weights.errors import FileChangedError, FormatError, UnsupportedError, VerificationError, WeightsError

if TYPE_CHECKING:
    from max_weights._core import WeightsNode
    from max_weights._finding import Finding
    from max_weights.torch import VerificationReport

__all__ = ["LIBRARIES", "restore", "wrap"]

_logger = logging.getLogger("max_weights.dropin")
_LISTED = 20
"""How many findings an error lists."""


class _Library(NamedTuple):
    """A class that loads models: the method that programs call, and the one that loads."""

    class_name: str
    called: str
    loads: str
    load_of: Callable[..., _Load | None]
    """Builds the record from the result and the arguments of the second method."""


@dataclass
class _Load:
    """A model, and what it was loaded from."""

    model: Any
    files: list[str]
    names: Callable[[WeightsNode], dict[str, str | None]]
    """For each weight its name in the model; `None` for one that others are composed of."""
    quantized: str | None = None
    """The method of quantization, if parameters may be quantized."""
    resized: frozenset[str] = frozenset()
    """Parameters whose shape differs from that of their weights on purpose."""


class _Loads(threading.local):
    """The loads of the calls that are running, the innermost call last."""

    def __init__(self) -> None:
        self.stack: list[list[_Load]] = []


_loads = _Loads()


def _of_transformers(
    result: tuple[Any, ...],
    model: Any,
    _: object,
    files: list[str] | None,
    load_config: Any,
    *__: object,
    **___: object,
) -> _Load | None:
    if not files:
        return None
    resized = frozenset(str(key[0]) for key in getattr(result[0], "mismatched_keys", ()))
    names = functools.partial(_names_in_transformers, model, load_config.weight_mapping or ())
    method = None if _is_gguf(files) else _method(load_config.hf_quantizer)
    return _Load(model, files, names, method, resized)


def _is_gguf(files: Iterable[str]) -> bool:
    return any(Path(file).suffix == ".gguf" for file in files)


def _method(quantizer: Any) -> str | None:
    if quantizer is None:
        return None
    method = quantizer.quantization_config.quant_method
    return str(getattr(method, "value", method))


def _names_in_transformers(model: Any, mapping: Sequence[Any], weights: WeightsNode) -> dict[str, str | None]:
    """The names that transformers gives weights, as `convert_and_load_state_dict_in_model` finds them."""
    from transformers import core_model_loading as library

    if _is_gguf(info.file for info in infos(weights)):
        mapping = ()
    renamings = [one for one in mapping if isinstance(one, library.WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, library.WeightConverter)]
    prefix, parameters = model.base_model_prefix, model.state_dict()
    names: dict[str, str | None] = {}
    for name in (info.name for info in infos(weights)):
        new, pattern = library.rename_source_key(name, renamings, converters, prefix, parameters)
        if new not in parameters and name in parameters:
            new, pattern = library.rename_source_key(name, [], [], prefix, parameters)
        names[name] = None if pattern is not None and new in parameters else new
    return names


def _of_diffusers(
    _: object, __: type, model: Any, ___: object, files: list[str] | None, *____: object, **options: Any
) -> _Load | None:
    if not files:
        return None
    method = _method(options.get("hf_quantizer"))
    return _Load(model, files, lambda weights: {info.name: info.name for info in infos(weights)}, method)


LIBRARIES: Mapping[str, _Library] = {
    "transformers.modeling_utils": _Library(
        "PreTrainedModel", "from_pretrained", "_load_pretrained_model", _of_transformers
    ),
    "diffusers.models.modeling_utils": _Library(
        "ModelMixin", "from_pretrained", "_load_pretrained_model", _of_diffusers
    ),
}
"""By the module that defines the class."""

_originals: dict[str, dict[str, Any]] = {}


def wrap(module: str) -> None:
    """Wrap the methods of a library that is imported; a version without them stays unchanged, which is logged."""
    library = LIBRARIES[module]
    kind = getattr(sys.modules[module], library.class_name, None)
    names = (library.called, library.loads)
    if module in _originals:
        return
    if kind is None or not all(isinstance(vars(kind).get(name), classmethod | staticmethod) for name in names):
        _logger.warning("what %s loads is not verified: this version is not known", module.partition(".")[0])
        return
    originals = {name: vars(kind)[name] for name in names}
    _originals[module] = originals
    for name, wrapper in zip(names, (_called, _loading), strict=True):
        original = originals[name]
        setattr(kind, name, type(original)(wrapper(original.__func__, library)))


def restore() -> None:
    """Restore the originals."""
    for module, originals in _originals.items():
        kind = getattr(sys.modules[module], LIBRARIES[module].class_name)
        for name, original in originals.items():
            setattr(kind, name, original)
    _originals.clear()


def _loading(original: Callable[..., Any], library: _Library) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if _loads.stack and (one := library.load_of(result, *arguments, **options)) is not None:
            _loads.stack[-1].append(one)
        return result

    return load


def _called(original: Callable[..., Any], _: _Library) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        _loads.stack.append([])
        try:
            result = original(*arguments, **options)
        finally:
            loads = _loads.stack.pop()
        if not loads:
            _logger.warning("a model was not verified: the files that it was loaded from are not known")
        for load in loads:
            _verify(load)
        return result

    return from_pretrained


@dataclass
class _LoadOutcome:
    verified: list[str] = field(default_factory=list)
    seconds: float = 0.0
    differences: list[Finding] = field(default_factory=list)
    unverified: dict[str, str] = field(default_factory=dict)
    """Names of parameters, and the reasons."""
    unused: list[str] = field(default_factory=list)
    """Names of weights that the class of the model has no parameter for."""

    def add(self, report: VerificationReport, load: _Load) -> None:
        """Add the results of a report."""
        unequal = {found.name for found in report.findings}
        for found in report.findings:
            name = known(found.name)
            if found.kind != "differs":
                self.unverified[name] = found.message.removeprefix("it was not compared: ")
            elif name in load.resized:
                self.unverified[name] = "its shape differs, as ignore_mismatched_sizes allows"
            elif load.quantized is not None:
                self.unverified[name] = f"it is quantized ({load.quantized})"
            else:
                self.differences.append(found)
        self.verified += [name for name in report.verified if name not in unequal]
        self.seconds += report.seconds

    def remaining(self, parameters: Iterable[str]) -> set[str]:
        """Return the parameters without a result."""
        return set(parameters).difference(self.verified, self.unverified, (found.name for found in self.differences))


def _verify(load: _Load) -> None:
    """Compare a model with its files; log one line, or raise the error that lists what differs."""
    from max_weights._weights import load_weights

    name = type(load.model).__name__
    place = escape(str(Path(load.files[0]).parent if len(load.files) > 1 else load.files[0]))
    try:
        with load_weights([Path(file) for file in load.files], strict=False) as weights:
            outcome = _compare(load, weights)
    except (FormatError, UnsupportedError) as error:
        _logger.warning("%s was not verified: %s", name, printable(error))
        return
    if outcome.differences:
        raise _error(name, place, outcome)
    line = f"{name}: {len(outcome.verified)} parameters and buffers are equal to {place} ({outcome.seconds:.2f} s)"
    if outcome.unused:
        line += f"; unused: {count(len(outcome.unused), 'weight')} of the files ('{escape(outcome.unused[0])}' first)"
    if not outcome.unverified:
        # The class decides which weights it ignores, such as a head: this is no error, as for the library itself.
        (_logger.warning if outcome.unused else _logger.info)("%s", line)
        return
    by_reason: dict[str, list[str]] = {}
    for one, reason in outcome.unverified.items():
        by_reason.setdefault(reason, []).append(one)
    declared = [f"{len(names)} ('{escape(names[0])}' first): {reason}" for reason, names in by_reason.items()]
    _logger.warning("%s; not verified: %s", line, "; ".join(declared))


def _error(name: str, place: str, outcome: _LoadOutcome) -> VerificationError:
    listed, more = outcome.differences[:_LISTED], len(outcome.differences) - _LISTED
    head = f"{name} is not what {place} holds: {len(outcome.differences)} parameters differ"
    lines = [f"{head}, {len(outcome.verified)} are equal", *map(str, listed)]
    error = VerificationError("\n".join((*lines, *([f"and {more} more"] if more > 0 else []))))
    error.tensor = outcome.differences[0].name
    error.findings = tuple(outcome.differences)
    return error


def _compare(load: _Load, weights: WeightsNode) -> _LoadOutcome:
    from max_weights._renaming import renamed
    from max_weights.torch._verification import verify_some

    outcome, parameters = _LoadOutcome(), set(load.model.state_dict())
    if _is_gguf(load.files):
        weights = renamed(weights, "hf")
    names = load.names(weights)
    plain = {name: new for name, new in names.items() if new in parameters}
    outcome.unused = [
        name for name, new in names.items() if not (new is None or new in parameters or _is_ignored(load.model, name))
    ]
    if plain:
        outcome.add(verify_some(load.model, weights, set(filter(None, plain.values())), rename=plain.get), load)
    if None in names.values():
        _compare_made(load, weights, outcome)
    for name in sorted(outcome.remaining(parameters)):
        outcome.unverified[name] = "the files do not have it"
    return outcome


def _is_ignored(model: Any, name: str) -> bool:
    """Whether the class of a model declares that files may have this weight, and that it ignores it."""
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def _compare_made(load: _Load, weights: WeightsNode, outcome: _LoadOutcome) -> None:
    """Compare the parameters that transformers composes of several weights."""
    from max_weights._renaming import renamed
    from max_weights.torch._verification import verify_some

    made = outcome.remaining(load.model.state_dict())
    try:
        layout = renamed(weights, "transformers5", config=load.model.config.to_dict())
        prefix = f"{load.model.base_model_prefix}."
        names: dict[str, str] = {}
        for name in (info.name for info in infos(layout)):
            alike = (name, prefix + name, name.removeprefix(prefix))
            names.update((name, new) for new in alike if new in made)
        if names:
            outcome.add(verify_some(load.model, layout, set(names.values()), rename=names.get), load)
        why = "the table of layouts does not have it, and the files have other names than its own"
    except WeightsError as error:
        if isinstance(error, FileChangedError):
            raise
        why = f"it is composed of several weights, in a way unknown for this architecture: {printable(error)}"
    if load.quantized is not None:
        why = f"it is quantized ({load.quantized})"
    outcome.unverified |= dict.fromkeys(outcome.remaining(made), why)
