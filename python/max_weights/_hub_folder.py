"""What `from_pretrained` of transformers needs beside the weights of a GGUF file, and the names of the weights.

    python -m max_weights._hub_folder names GGUF...
    python -m max_weights._hub_folder files GGUF FOLDER [--dtype bfloat16]
    python -m max_weights._hub_folder rules LAYOUT PATH...

The configuration and the tokenizer are made by transformers' own readers of GGUF metadata. The network is never used,
and no other file beside the GGUF file is read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max_weights._checkpoints import opened
from max_weights._core import GGUFWeights, infos, place_file, shown
from max_weights._dtype import DType
from max_weights._expected_config import expectation_of_config, quiet
from max_weights._renaming import from_gguf, left_out
from max_weights._shape import listed
from max_weights._weights import load_weights
from max_weights.conversion._view import rules_between
from max_weights.errors import ArgumentError, UnsupportedError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from transformers import PretrainedConfig

    from max_weights._buffer import Array
    from max_weights._checkpoints import Checkpoint
    from max_weights._dtype import DTypeLike
    from max_weights._typing import JSONObject
    from max_weights._weights import WeightsNode

__all__ = ["names_of", "write_hub_files"]

StrPath = str | os.PathLike[str]

# Architectures whose GGUF files have other values or shapes than a Hugging Face checkpoint, which new names do not
# undo.
_DECAY = "A_log is stored as -exp(A_log)"
_ROWS = "the rows of queries and keys are in a different order"
_FUSED = "queries, keys and values of a fused matrix are in a different order"
_CHANGED = {
    **dict.fromkeys(("mamba", "mamba2", "jamba", "falcon-h1", "granitehybrid", "nemotron_h", "plamo2"), _DECAY),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), f"1 is added to the weights of norms, and {_DECAY}"),
    **dict.fromkeys(("baichuan", "deci", "granite", "granitemoe", "internlm2", "minicpm", "xverse"), _ROWS),
    **dict.fromkeys(("bloom", "gptneox"), _FUSED),
    **dict.fromkeys(("lfm2", "lfm2moe"), "the kernels of convolutions have one axis fewer"),
    "gpt2": "matrices are transposed",
}
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down|gate_up)_exps\.(?:weight|bias)")
# The dtypes that a model can have.
_DTYPES = ("bfloat16", "float16", "float32", "float64")
# What a file without a tokenizer says.
_NO_TOKENIZER = (None, "none", "no_vocab")
# The settings by which transformers records how it read the tokenizer.
_OF_READING = ("is_local", "local_files_only", "name_or_path")
_INSTALL = "pip install transformers torch gguf"


def names_of(checkpoint: Checkpoint) -> JSONObject:
    """Return the names of the weights of a GGUF file in a Hugging Face checkpoint.

    `names`: {name in the file: name}; `heads`: {name in the file: number of heads} of the weights whose rows are in
    another order in the file, with pairs of rows where a checkpoint has halves of a head; `amounts`: {name in the file:
    what is added to its elements}; `left_out`: the weights that such a checkpoint does not have.
    """
    with opened(checkpoint, "convert") as node:
        if not isinstance(node, GGUFWeights):
            raise UnsupportedError(
                "this is not a GGUF file; names in other files are already those of Hugging Face",
                rule="unsupported.architecture",
            )
        names = [info.name for info in infos(node)]
        _check_values(node, names)
        without = left_out(names)
        names = [name for name in names if name not in set(without)]
        new, heads, amounts = from_gguf(node, names)
    for name, count in heads.items():
        if count < 1:
            raise ArgumentError(
                f"'{shown(name)}': the metadata does not give the number of heads, which is needed to order its rows",
                rule="argument.config",
            )
    old_names: dict[str, str] = {}
    for name in names:
        other = old_names.setdefault(new.get(name, name), name)
        if other != name:
            raise ArgumentError(
                f"'{shown(other)}' and '{shown(name)}' are both '{shown(new.get(name, name))}'",
                rule="argument.name-twice",
            )
    return {
        "names": {name: new.get(name, name) for name in names},
        "heads": heads,
        "amounts": amounts,
        "left_out": without,
    }


def _check_values(node: WeightsNode, names: list[str]) -> None:
    """Check that a Hugging Face checkpoint differs only in the names."""
    architecture = node.metadata.get("general.architecture")
    why = _CHANGED.get(architecture) if isinstance(architecture, str) else None
    if architecture == "falcon" and node.metadata.get("falcon.attention.head_count_kv", 1) != 1:
        why = _FUSED
    experts = next((name for name in names if _EXPERTS.fullmatch(name)), None)
    if why is None and experts is not None:
        why = f"the experts of a layer are one tensor, '{shown(experts)}', where a checkpoint has one for each"
    if why is not None:
        raise UnsupportedError(
            f"the architecture {shown(repr(architecture))} differs from Hugging Face's in more than the names: {why}. "
            "transformers converts it, in memory: AutoModelForCausalLM.from_pretrained(FOLDER, "
            "gguf_file=FILE).save_pretrained(...)",
            rule="unsupported.architecture",
        )


def write_hub_files(path: StrPath, folder: StrPath, dtype: DTypeLike | None = None, *, sync: bool = True) -> JSONObject:
    """Write the configuration and the tokenizer that `from_pretrained` needs beside the weights of a GGUF file.

    They are made first and then put in place, each as a whole; `config.json` is the last. `files`: their names;
    `left_out`: the weights that a checkpoint does not have; `not_loaded`: those that the model does not have, so that
    transformers does not load them; `notes`: facts that the configuration cannot express, as sentences.
    """
    kind = None if dtype is None else str(DType(dtype).name)
    if kind not in (None, *_DTYPES):
        raise ArgumentError(f"a model must be in one of {', '.join(_DTYPES)}, not {kind}", rule="argument.dtype")
    with load_weights(path) as node:
        named = names_of(node)
        shapes = {named["names"].get(info.name): list(info.logical_shape) for info in infos(node)}
        shapes.pop(None, None)
        metadata = dict(node.metadata)
        blocks = metadata.get(f"{metadata.get('general.architecture')}.block_count", 0)
        if isinstance(blocks, int) and blocks > len(shapes):  # transformers would make lists of this length
            raise ArgumentError(
                f"the metadata says {blocks} blocks, but the file has {len(shapes)} weights", rule="argument.config"
            )
        scaling = {name: node[name].data().astype(DType.float32).to_numpy() for name in named["left_out"]}
        first = next((info.file for info in infos(node)), os.fspath(path))
    transformers, torch = _libraries()
    target = Path(folder)
    with (
        tempfile.TemporaryDirectory(prefix="max-weights-") as temporary,
        quiet(transformers),
        contextlib.redirect_stdout(sys.stderr),
    ):
        source, out = Path(temporary, "gguf"), Path(temporary, "out")
        source.mkdir()
        # Alone in a folder, so that nothing beside it is taken for a part of the model.
        (source / "model.gguf").symlink_to(Path(_first_of_set(first)).resolve())
        config = _config(transformers, source, metadata)
        # Of a set, transformers looks only at the names in the first file.
        config.tie_word_embeddings = "output.weight" not in named["names"] or config.model_type == "falcon"
        notes = _set_scaling(config, scaling)
        config.dtype = None if kind is None else getattr(torch, kind)
        config.save_pretrained(out)
        not_loaded = _compare(out / "config.json", shapes)
        if metadata.get("tokenizer.ggml.model") not in _NO_TOKENIZER:
            _save_tokenizer(transformers, source, out)
        _save_generation(transformers, config, out)
        target.mkdir(parents=True, exist_ok=True)
        files = sorted((file for file in out.iterdir() if file.is_file()), key=lambda file: file.name == "config.json")
        for file in files:
            place_file(target / file.name, file.read_bytes(), sync=sync)
    names = [file.name for file in files]
    return {"files": names, "left_out": named["left_out"], "not_loaded": not_loaded, "notes": notes}


def _first_of_set(path: str) -> str:
    """Return the file of a set that has the metadata."""
    return re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"-00001\1", path)


def _libraries() -> tuple[ModuleType, ModuleType]:
    try:
        import gguf  # noqa: F401
        import torch
        import transformers
    except ImportError as error:
        raise ImportError(
            f"making the configuration and the tokenizer needs transformers: {_INSTALL} ({error})"
        ) from error
    return transformers, torch


def _config(transformers: ModuleType, source: Path, metadata: Mapping[str, object]) -> PretrainedConfig:
    """Return the configuration that transformers makes from the metadata, with the class of the model."""
    architecture = shown(repr(metadata.get("general.architecture")))
    try:
        config: PretrainedConfig = transformers.AutoConfig.from_pretrained(
            source, gguf_file="model.gguf", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever its code makes of this metadata
        raise UnsupportedError(
            f"transformers {transformers.__version__} cannot read the architecture {architecture} from GGUF files: "
            f"{_reason(error)}",
            rule="unsupported.architecture",
        ) from error
    mappings = transformers.models.auto.modeling_auto
    classes = getattr(config, "architectures", None) or [
        class_name
        for mapping in (
            mappings.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            mappings.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
            mappings.MODEL_MAPPING_NAMES,
        )
        if isinstance(class_name := mapping.get(config.model_type), str)
    ]
    if not classes:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no model of type {config.model_type}",
            rule="unsupported.architecture",
        )
    config.architectures = classes[:1]
    if hasattr(config, "_model_name_or_path"):
        del config._model_name_or_path  # the name of the model, which is not a path
    return config


def _set_scaling(config: PretrainedConfig, factors: Mapping[str, Array]) -> list[str]:
    """Set how positions are scaled, by the rule that gives the file's divisors; note those of no known rule."""
    notes = []
    for name, divisors in factors.items():
        if (divisors == 1).all():
            continue
        settings = getattr(config, "rope_parameters", None) or {}
        rule = _llama3_rule(divisors, settings.get("rope_theta")) if name == "rope_freqs.weight" else None
        if rule is None:
            notes.append(
                f"'{shown(name)}' scales positions, but the configuration does not; set rope_parameters in config.json"
            )
        else:
            config.rope_parameters = settings | rule
    return notes


def _llama3_rule(divisors: Array, theta: object) -> JSONObject | None:
    """Return the settings of Llama 3.1 and later by which llama.cpp's converter computes these divisors, if it does."""
    import numpy as np

    if not isinstance(theta, int | float) or not divisors.size:
        return None
    factor, context, low, high = float(divisors.max()), 8192, 1.0, 4.0
    lengths = 2 * math.pi * float(theta) ** (np.arange(divisors.size) / divisors.size)
    smooth = np.clip((context / lengths - low) / (high - low), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), divisors.reshape(-1), rtol=1e-4):
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }


def _compare(config: Path, shapes: Mapping[str, list[int]]) -> list[str]:
    """Check that the renamed weights are those of the model, and return the names of those that it does not have."""
    expected = expectation_of_config(config)
    tensors = expected["tensors"]
    tied = [names for names in expected.get("ties", []) if any(name in shapes for name in names)]
    optional = {name for names in tied for name in names}
    optional |= {name for name, entry in tensors.items() if entry.get("optional")}
    missing = [name for name in tensors if name not in shapes and name not in optional]
    if missing:
        raise UnsupportedError(
            f"transformers' model has {len(missing)} weights that the file does not have under Hugging Face's names, "
            f"such as '{shown(missing[0])}'; the names in the file do not belong only to that model",
            rule="unsupported.architecture",
        )
    for name, shape in shapes.items():
        if name in tensors and tensors[name]["shape"] != shape:
            raise UnsupportedError(
                f"'{shown(name)}' has the shape {listed(shape)} in the file and {listed(tensors[name]['shape'])} in "
                "transformers' model, which renaming does not change",
                rule="unsupported.architecture",
            )
    return [name for name in shapes if name not in tensors]


def _save_tokenizer(transformers: ModuleType, source: Path, out: Path) -> None:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, gguf_file="model.gguf", local_files_only=True, trust_remote_code=False
        )
        tokenizer.save_pretrained(out)
    except Exception as error:  # whatever its code makes of this metadata
        raise UnsupportedError(
            f"transformers {transformers.__version__} cannot make a tokenizer from the metadata: {_reason(error)}",
            rule="unsupported.architecture",
        ) from error
    file = out / "tokenizer_config.json"
    settings = json.loads(file.read_bytes())
    for key in _OF_READING:
        settings.pop(key, None)
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def _save_generation(transformers: ModuleType, config: Any, out: Path) -> None:
    """Write the tokens at which generation begins and ends, for a model that generates."""
    (name,) = config.architectures
    model_class = getattr(transformers, name)
    ids = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    if model_class.can_generate() and any(one is not None for one in ids):
        transformers.GenerationConfig.from_model_config(config).save_pretrained(out)


def _reason(error: Exception) -> str:
    """Return the message of another library's error in one line."""
    return shown(" ".join(f"{type(error).__name__}: {error}".split())[:300])


def _rules_of(paths: list[str], layout: str) -> JSONObject:
    """Return the rules that lead from the layout of files to that of a library."""
    with load_weights(paths if len(paths) > 1 else paths[0]) as node:
        if isinstance(node, GGUFWeights):
            raise ArgumentError(
                f"--rename {layout}: this is a GGUF file: convert it with --rename hf to a folder first",
                rule="argument.format",
            )
        try:
            return {"rules": rules_between(node, layout)}
        except ArgumentError as error:  # of the shell, a configuration is none of the arguments
            raise ArgumentError(
                str(error).replace("give config=, a mapping or a path", "put it there"), rule="argument.config"
            ) from None


def _main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("python -m max_weights._hub_folder", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("names").add_argument("gguf", nargs="+")
    rules = actions.add_parser("rules")
    rules.add_argument("layout")
    rules.add_argument("path", nargs="+")
    files = actions.add_parser("files")
    files.add_argument("gguf")
    files.add_argument("folder")
    files.add_argument("--dtype")
    files.add_argument("--no-sync", dest="sync", action="store_false")
    options = parser.parse_args(arguments)
    try:
        if options.action == "names":
            result = names_of(options.gguf)
        elif options.action == "rules":
            result = _rules_of(options.path, options.layout)
        else:
            result = write_hub_files(options.gguf, options.folder, options.dtype, sync=options.sync)
    except (ImportError, WeightsError, ValueError, OSError) as error:
        sys.exit(" ".join(str(error).split()))
    print(json.dumps(result))


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when huggingface_hub is imported
    _main(sys.argv[1:])
