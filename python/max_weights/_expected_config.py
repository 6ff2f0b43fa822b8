"""What a `config.json` says about a checkpoint: the names and shapes of the model that transformers builds from it.

The model is built on torch's device "meta": it has no values and takes no memory. No code of the repository is
executed: a class that transformers itself does not have is an error, and so is a configuration that would make it fetch
code or weights.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from max_weights._core import escape
from max_weights.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    import os
    from types import ModuleType

    from transformers import PreTrainedModel

    from max_weights._typing import JSONObject

__all__ = ["expectation_of_config", "quiet"]

SCHEMA = "max-weights.expectation/1"
# A larger file is not a configuration.
_MAX_BYTES = 16 << 20
# A model with more layers takes minutes to build, and no real model has as many.
_MAX_LAYERS = 10_000
# Settings that would make transformers fetch code or weights from the hub.
_FETCHED = ("attn_implementation", "experts_implementation", "kernel_config", "auto_map", "custom_pipelines")
_WEIGHTS = ("use_pretrained_backbone",)


class TensorSpecification(TypedDict):
    """The specification of one tensor."""

    shape: list[int]
    optional: NotRequired[bool]


class Specification(TypedDict):
    """The specification of a checkpoint, for `max-weights validate --expect`."""

    schema: str
    tensors: dict[str, TensorSpecification]
    allow_extra: list[str]
    ties: NotRequired[list[list[str]]]


def expectation_of_config(path: str | os.PathLike[str]) -> Specification:
    """Return the specification (`max-weights.expectation/1`) of a checkpoint for a model's configuration.

    It has the names and shapes of all parameters and saved buffers. Dtypes are left open, since a checkpoint may be
    saved in any. Of tied weights, one is required. Names that only old versions saved are optional.

    Args:
        path: A `config.json`, or the folder that contains it.

    Returns:
        The content of a file for `max-weights validate --expect`.

    Raises:
        ImportError: transformers or torch is missing.
        ArgumentError: this is not the configuration of a model (a ValueError).
        UnsupportedError: a class that transformers does not have, or that it cannot build; packed weights.

    Example:
        >>> import json
        >>> with open("config.json", "w") as file:
        ...     json.dump({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16}, file)
        >>> max_weights.expectation_of_config("config.json")["tensors"]["h.0.attn.c_attn.weight"]
        {'shape': [8, 24]}
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    settings = _settings(file)
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(
            "turning a configuration into an expectation needs transformers: pip install transformers torch"
        ) from error
    model_class = _model_class(file, settings, transformers)
    with quiet(transformers):
        try:
            config = model_class.config_class.from_dict(_without_code(settings))
            config._attn_implementation = "eager"  # needs only torch
            with torch.device("meta"):
                model = model_class(config)
            model.tie_weights()
            return _specification(model)
        except Exception as error:  # whatever transformers raises for these settings
            reason = escape(f"{type(error).__name__}: {error}")
            name = model_class.__name__
            raise UnsupportedError(
                f"{escape(str(file))}: transformers cannot build {name} from it: {reason}",
                rule="unsupported.architecture",
            ) from error


def _settings(file: Path) -> JSONObject:
    """Return the configuration, after checking that it can be trusted."""
    with file.open("rb") as opened:
        text = opened.read(_MAX_BYTES + 1)
    at = escape(str(file))
    if len(text) > _MAX_BYTES:
        raise ArgumentError(f"{at}: a configuration has at most {_MAX_BYTES} bytes", rule="argument.config")
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{at}: this is not valid JSON: {escape(str(error))}", rule="argument.config") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise ArgumentError(
            f"{at}: this is not the configuration of a model: there is no 'model_type'", rule="argument.config"
        )
    for key, value in _numbers(settings):
        if key.endswith(("layer", "layers", "depth", "blocks")) and value > _MAX_LAYERS:
            raise ArgumentError(
                f"{at}: {escape(key)} is {value}; more than {_MAX_LAYERS} layers are not built", rule="argument.config"
            )
    if settings.get("quantization_config"):
        raise UnsupportedError(
            f"{at}: the weights are packed (quantization_config), and have other names and shapes than the model; "
            "write a specification of a good checkpoint, and expect that",
            rule="unsupported.architecture",
        )
    return settings


def _numbers(value: object) -> Iterator[tuple[str, int]]:
    """Iterate over the integers in the configuration and in those nested in it, by key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, int):
                yield key, inner
            else:
                yield from ((f"{key}.{name}", number) for name, number in _numbers(inner))


def _model_class(file: Path, settings: JSONObject, transformers: ModuleType) -> Any:
    """Return the transformers class that the configuration names; the model without a head if it names none."""
    kind, named = settings["model_type"], settings.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    at = escape(str(file))
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in mapping:
        raise UnsupportedError(
            f"{at}: transformers has no model_type {escape(repr(kind))}{_remote(settings)}",
            rule="unsupported.architecture",
        )
    if name is None:
        models = transformers.models.auto.modeling_auto.MODEL_MAPPING
        if mapping[kind] not in models:
            raise ArgumentError(
                f"{at}: there are no 'architectures', so the class of the model is unknown", rule="argument.config"
            )
        return models[mapping[kind]]
    model_class = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
    if not is_model or getattr(model_class, "config_class", None) is None:
        raise UnsupportedError(
            f"{at}: transformers has no class {escape(repr(name))}{_remote(settings)}", rule="unsupported.architecture"
        )
    return model_class


def _remote(settings: JSONObject) -> str:
    return "; the code of the repository (auto_map) is not executed" if "auto_map" in settings else ""


def _without_code(settings: Any) -> Any:
    """Return the settings without those that name code or weights to fetch."""
    if isinstance(settings, list):
        return [_without_code(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    safe = {key: _without_code(value) for key, value in settings.items() if not key.strip("_").startswith(_FETCHED)}
    return safe | {key: False for key in _WEIGHTS if key in safe}


def _specification(model: PreTrainedModel) -> Specification:
    """Return the specification of a model on the device "meta"."""
    saved = model.state_dict(keep_vars=True)  # the parameters themselves, by which tied ones are recognised
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5, a model has the names of its files
        pass
    else:
        saved = revert_weight_conversion(model, saved)
    tensors: dict[str, TensorSpecification] = {}
    same: dict[int, list[str]] = {}
    for name, tensor in saved.items():
        tensors[_escaped(name)] = {"shape": list(tensor.shape)}
        same.setdefault(id(tensor), []).append(name)
    ties = [names for names in same.values() if len(names) > 1]
    for names in ties:
        for name in names[1:]:
            tensors[_escaped(name)]["optional"] = True
    spec: Specification = {"schema": SCHEMA, "tensors": tensors, "allow_extra": _extra(model, set(saved))}
    if ties:
        spec["ties"] = ties
    return spec


def _extra(model: PreTrainedModel, saved: set[str]) -> list[str]:
    """Return the names that may be in a file in addition to the model's weights.

    These are buffers that older versions saved, and names that the class itself says it ignores.
    """
    buffers = [_escaped(name) for name, _ in model.named_buffers() if name not in saved]
    ignored = map(_glob, sorted(model._keys_to_ignore_on_load_unexpected or ()))
    return [*buffers, *filter(None, ignored)]


def _escaped(name: str) -> str:
    """Return the name as a pattern that matches nothing else."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def _glob(expression: str) -> str | None:
    """Return a regular expression for searching as a pattern of whole names; `None` if it has no such form."""
    text = expression.removeprefix("^").removesuffix("$")
    text = text.replace(r"\.", "\0").replace(r"\d+", "*").replace(".*", "*").replace(".", "?").replace("\0", ".")
    if re.search(r"[^\w.*?-]", text):
        return None
    before = "" if expression.startswith("^") else "*"
    return f"{before}{text}{'' if expression.endswith('$') else '*'}"


@contextlib.contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Silence the remarks of transformers about settings."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


if __name__ == "__main__":
    import sys

    try:
        json.dump(expectation_of_config(sys.argv[1]), sys.stdout)
    except (ImportError, ArgumentError, UnsupportedError, OSError) as error:
        sys.exit(str(error).removeprefix(f"{escape(sys.argv[1])}: "))  # the caller names the file
