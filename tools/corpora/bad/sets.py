"""Folders whose files do not fit each other: indices, shards, configurations, tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from corpora.formats import safetensors
from corpora.item import CAUGHT, Item

SIZES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "I64": 8,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "BOOL": 1,
    "F64": 8,
}
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def weights(tensors: Tensors, data: Mapping[str, bytes] | None = None, metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of tensors by dtype and shape; a pattern of small numbers where no bytes are given."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    body = b""
    for name, (dtype, shape) in tensors.items():
        count = 1
        for size in shape:
            count *= size
        length = count * SIZES[dtype]
        content = (data or {}).get(name)
        if content is None:  # numbers that differ, and are small in every dtype
            content = bytes((number * 7 + len(body)) % 48 for number in range(length))
        if len(content) != length:
            raise ValueError(f"{name}: {len(content)} bytes for {length}")
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + length]}
        body += content
    return safetensors(header, body)


A, B = {"a": ("F32", (4,))}, {"b": ("F32", (4,))}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
MAP = {"a": FIRST, "b": SECOND}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 1,
}


def text(thing: object) -> bytes:
    """JSON."""
    return json.dumps(thing).encode()


def _index(weight_map: object = MAP, total: int = 32) -> bytes:
    return text({"metadata": {"total_size": total}, "weight_map": weight_map})


def _set(**changed: bytes | None) -> dict[str, bytes]:
    files: dict[str, bytes | None] = {
        "config.json": text({"model_type": "x"}),
        INDEX: _index(),
        FIRST: weights(A),
        SECOND: weights(B),
    }
    names = {"index": INDEX, "first": FIRST, "second": SECOND, "config": "config.json"}
    files.update({names[key]: data for key, data in changed.items()})
    return {name: data for name, data in files.items() if data is not None}


def _model(config: Mapping[str, object] | None = None, **files: bytes) -> dict[str, bytes]:
    tensors: Tensors = {
        "model.embed_tokens.weight": ("F32", (8, 4)),
        "model.layers.0.self_attn.q_proj.weight": ("F32", (4, 4)),
        "model.norm.weight": ("F32", (4,)),
        "lm_head.weight": ("F32", (8, 4)),
    }
    named = {name.replace("__", "."): data for name, data in files.items()}
    return {
        "config.json": text({**CONFIG, **(config or {})}),
        "model.safetensors": weights(tensors),
        "tokenizer.json": text({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}}}),
        **named,
    }


FOLDERS: dict[str, dict[str, bytes]] = {
    "index.delta": _set(
        index=text({"metadata": {"base_version": "000001", "delta_encoding": "xor"}, "weight_map": MAP})
    ),
    "index.duplicate-name": _set(
        index=b'{"metadata":{"total_size":32},"weight_map":{"a":"%s","a":"%s","b":"%s"}}'
        % (FIRST.encode(), FIRST.encode(), SECOND.encode())
    ),
    "index.duplicate-tensor": _set(second=weights({**A, **B})),
    "index.json": _set(index=b'{"weight_map": '),
    "index.json.page": _set(index=b"<!DOCTYPE html><html></html>"),
    "index.json.list": _set(index=b"[]"),
    "index.metadata": _set(index=b'{"metadata":{},"metadata":{},"weight_map":' + text(MAP) + b"}"),
    "index.missing-shard": _set(second=None),
    "index.missing-tensor": _set(index=_index({**MAP, "c": FIRST})),
    "index.other-shard": _set(index=_index({"a": SECOND, "b": FIRST})),
    "index.shard-name": _set(index=_index({**MAP, "b": "../" + SECOND})),
    "index.shard-name.absolute": _set(index=_index({**MAP, "b": "/" + SECOND})),
    "index.shard-name.number": _set(index=_index({**MAP, "b": 2})),
    "index.total-size": _set(index=_index(total=33)),
    "index.unindexed-tensor": _set(second=weights({**B, "c": ("F32", (4,))})),
    "index.utf8": _set(index=_index().replace(b'"a"', b'"\xff"')),
    "index.weight-map": _set(index=text({"metadata": {"total_size": 32}})),
    "index.weight-map.twice": _set(index=b'{"weight_map":' + text(MAP) + b',"weight_map":' + text(MAP) + b"}"),
    "directory.missing-shards": _set(index=None, second=None),
    "directory.empty": {"config.json": text({"model_type": "x"}), "tokenizer.json": b"{}"},
    "directory.partial": {"config.json": text({"model_type": "x"}), "model.safetensors.incomplete": weights(A)},
    "set.config-missing": {"model.safetensors": weights(A)},
    "set.dtype": _model({"dtype": "bfloat16"}),
    "set.dtype.old-key": _model({"torch_dtype": "float16"}),
    "set.file-and-index": {**_set(), "model.safetensors": weights({**A, **B})},
    "set.hidden-size": _model({"hidden_size": 6}),
    "set.indexes": {**_set(), "model.fp16.safetensors.index.json": _index()},
    "set.json": _model(generation_config__json=b'{"a": '),
    "set.json.config": {**_model(), "config.json": b'{"model_type": "llama",}'},
    "set.json-key": {
        **_model(),
        "config.json": text(CONFIG).replace(b'"vocab_size"', b'"vocab_size": 8, "vocab_size"'),
    },
    "set.layers": _model({"num_hidden_layers": 3}),
    "set.layers-more": _model({"num_hidden_layers": 0}),
    "set.no-index": _set(index=None),
    "set.orphan-shard": {**_set(), "model-00003-of-00003.safetensors": weights({"c": ("F32", (4,))})},
    "set.shard-dtype": _set(second=weights({"b": ("F16", (8,))})),
    "set.shard-metadata": _set(
        first=weights(A, metadata={"format": "pt"}), second=weights(B, metadata={"format": "np"})
    ),
    "set.tied": _model({"tie_word_embeddings": True}),
    "set.tokenizer-missing": {name: data for name, data in _model().items() if name != "tokenizer.json"},
    "set.tokenizer-size": _model(
        tokenizer__json=text(
            {"version": "1.0", "model": {"type": "WordLevel", "vocab": {f"w{n}": n for n in range(20)}}}
        )
    ),
    "set.vocabulary": _model({"vocab_size": 10}),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, files in FOLDERS.items():
        yield Item(name, files, "sets", CAUGHT, "", (".".join(name.split(".")[:2]),))
