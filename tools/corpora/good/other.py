"""ONNX models, archives, configurations and texts of model repositories."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx import TensorProto

from corpora.archives import tarred, zipped
from corpora.formats import FLOATS, entry, safetensors
from corpora.good.written import NOT_BAD, TRUST, by_folder, by_path, single
from corpora.item import Item

WEIGHTS = safetensors({"weight": entry("F32", [4], 0, 16)}, FLOATS)


def _model(**weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    initialisers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    nodes = [onnx.helper.make_node("Add", ["x", name], [f"y{number}"]) for number, name in enumerate(weights)]
    inputs = [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    outputs = [onnx.helper.make_tensor_value_info("y0", TensorProto.FLOAT, [4])]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", inputs, outputs, initialisers))


def onnx_files() -> Iterator[Item]:
    """ONNX, with weights inside and in a separate file."""
    array = np.zeros(4, np.float32)
    yield by_path("onnx", "small.onnx", lambda path: onnx.save(_model(w=array), path))
    many = {f"w{number}": array for number in range(50)}
    yield by_path("onnx", "many.onnx", lambda path: onnx.save(_model(**many), path))
    big = np.zeros(4096, np.float32)

    def companions(path: Path) -> None:
        onnx.save(_model(w=big), path / "model.onnx", save_as_external_data=True, location="model.onnx_data")

    def each(path: Path) -> None:
        onnx.save(_model(w=big, v=big), path / "model.onnx", save_as_external_data=True, all_tensors_to_one_file=False)

    yield by_folder("onnx", "external-data", companions)
    yield by_folder("onnx", "external-data-each", each)


def texts() -> Iterator[Item]:
    """Repositories with further files."""
    group = "repositories"
    config = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()
    plain: dict[str, bytes] = {"model.safetensors": WEIGHTS}
    folders: dict[str, dict[str, bytes]] = {
        "card": {
            "README.md": b"---\nlicense: mit\n---\n# x\n",
            "LICENSE": b"MIT",
            ".gitattributes": b"*.bin filter=lfs\n",
        },
        "pictures": {
            "x.png": b"\x89PNG\r\n\x1a\n" + bytes(40),
            "y.jpg": b"\xff\xd8\xff\xe0" + bytes(40),
            "z.gif": b"GIF89a" + bytes(20),
        },
        "yaml": {"hparams.yaml": b"lr: 0.1\nlayers: [1, 2]\nname: 'x'\n", "config.yml": b"a: &x 1\nb: *x\n"},
        "tokenizer": {
            "vocab.json": b'{"a": 0}',
            "merges.txt": b"#version: 0.2\n",
            "added_tokens.json": b"{}",
            "vocab.txt": b"a\nb\n",
        },
        "training": {
            "trainer_state.json": b'{"global_step": 1, "log_history": []}',
            "all_results.json": b'{"loss": 1.0}',
        },
        "notes": {"notes.txt": b"import os\nos.system('true')\n", "usage.md": b"```python\neval('1')\n```\n"},
        "windows-text": {"readme.txt": b"a\r\nb\r\n", "utf16.txt": "text".encode("utf-16")},
        "generation": {
            "generation_config.json": b'{"temperature": 0.7, "do_sample": true}',
        },
        "nested": {"fp16/model.safetensors": WEIGHTS, "fp16/config.json": config},
        "csv": {"labels.csv": b"id,label\n0,cat\n", "imagenet_classes.txt": b"tench\ngoldfish\n"},
    }
    for name, files in folders.items():
        yield Item(name, {"config.json": config, **plain, **files}, group, frozenset({"clean"}))
    numbers = {"a": [1, 2.5, -1e10, None, True], "é": "\u2028"}
    yield single(group, "table.json", json.dumps(numbers).encode())
    program = {
        "config.json": config,
        **plain,
        "modeling_x.py": b"import torch\n\n\nclass X(torch.nn.Module):\n    pass\n",
    }
    mapped = {**program, "config.json": json.dumps({"auto_map": {"AutoModel": "modeling_x.X"}}).encode()}
    yield Item("remote-code", mapped, "needs-trust", TRUST)
    yield Item("program-beside", program, "needs-trust", NOT_BAD)
    target = b"model:\n  _target_: torch.nn.Linear\n  in_features: 2\n"
    yield Item("hydra", {**plain, "config.yaml": target}, "needs-trust", NOT_BAD)


def archives() -> Iterator[Item]:
    """Archives of harmless things."""
    texts = {"a/readme.txt": b"hello\n", "a/config.json": b"{}"}
    yield single("archives", "texts.zip", zipped(texts))
    yield single("archives", "weights.zip", zipped({"model.safetensors": WEIGHTS}))
    yield single("archives", "texts.tar", tarred(texts))
    yield single("archives", "texts.tar.gz", tarred(texts, "w:gz"))
    yield single("archives", "weights.tar", tarred({"model/model.safetensors": WEIGHTS}))
    yield single("archives", "text.txt.gz", gzip.compress(b"hello\n", mtime=0))
    yield single("archives", "empty.zip", zipped({}))


def items() -> Iterator[Item]:
    """All of them."""
    yield from onnx_files()
    yield from texts()
    yield from archives()
