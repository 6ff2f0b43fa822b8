"""The configuration of a checkpoint's model, with the keys of Hugging Face's `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from max_weights._core import WeightsNode, escape, infos, printable
from max_weights.errors import ArgumentError

__all__ = ["model_config"]

_GGUF = {
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "hidden_size": "embedding_length",
}


def model_config(node: WeightsNode) -> tuple[Mapping[str, object] | None, str]:
    """Return the configuration (`None` if there is none), and where it is or was expected.

    It is the metadata of a GGUF file; for other formats it is `config.json` in the folder of the first file.

    Raises:
        ArgumentError: the file is not a JSON object (a ValueError).
    """
    architecture = node.metadata.get("general.architecture")
    if isinstance(architecture, str):
        settings = {name: node.metadata.get(f"{architecture}.{key}") for name, key in _GGUF.items()}
        return {"model_type": architecture} | settings, "the metadata of the file"
    first = next(iter(infos(node)), None)
    if first is None:
        return {}, "a checkpoint without weights"
    path = Path(first.file).parent / "config.json"
    place = f"'{printable(path)}'"
    if not path.is_file():
        return None, place
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{place} is not valid JSON: {escape(error)}", rule="argument.config") from error
    if not isinstance(config, dict):
        raise ArgumentError(f"{place} is not a JSON object", rule="argument.config")
    text = config.get("text_config")  # of models with vision or audio too
    return text if isinstance(text, dict) else config, place
