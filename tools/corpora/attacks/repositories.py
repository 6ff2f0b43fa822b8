"""Classes 34 to 36: repositories of models, whose files point at code or at each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from corpora.assembler import POP, call, payload, pickled, system, value
from corpora.formats import FLOATS, entry, safetensors, state_dict, torch_zip
from corpora.item import BROKEN, CAUGHT, CODE, HARM, MALICIOUS, NEEDS_TRUST, Item

INNER = payload()
WEIGHTS = safetensors({"weight": entry("F32", [4], 0, 16)}, FLOATS)
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
HARMLESS = b"import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n"


def text(config: object) -> bytes:
    """JSON."""
    return json.dumps(config, indent=1).encode()


def _repository(files: Mapping[str, bytes] | None = None, **config: Any) -> dict[str, bytes]:
    return {"config.json": text({**CONFIG, **config}), "model.safetensors": WEIGHTS, **(files or {})}


PROGRAMS = {
    "os-system": "import os\nos.system('true')\n",
    "subprocess": "import subprocess\nsubprocess.run(['true'], check=True)\n",
    "exec": "exec(compile('1', 'x', 'exec'))\n",
    "eval-of-decoded": "import base64\neval(base64.b64decode('MQ=='))\n",
    "network": "import urllib.request\nurllib.request.urlopen('https://example.invalid/x')\n",
    "socket": "import socket\nsocket.create_connection(('example.invalid', 80))\n",
    "import-by-text": "__import__('o' + 's').system('true')\n",
    "getattr-of-module": "import os\ngetattr(os, 'sys' + 'tem')('true')\n",
    "ctypes": "import ctypes\nctypes.CDLL(None).system(b'true')\n",
    "import-renamed": "from os import system as s\ns('true')\n",
    "pickle-load": "import pickle\npickle.loads(b'N.')\n",
    "in-a-class": "class Model:\n    import os\n    x = os.popen('true')\n",
    "not-python": "import os\nos.system('true'\n",
}


def remote_code() -> Iterator[Item]:
    """Class 34."""
    group = "34-repositories"
    auto_map = {"AutoModel": "modeling_x.Model", "AutoConfig": "configuration_x.Config"}
    for name, program in PROGRAMS.items():
        files = _repository({"modeling_x.py": program.encode(), "configuration_x.py": HARMLESS}, auto_map=auto_map)
        yield Item(f"auto-map-{name}", files, group, CODE if name != "not-python" else CAUGHT, "", ("auto_map",))
    elsewhere = {"AutoModel": "other/repository--modeling_x.Model"}
    yield Item("auto-map-elsewhere", _repository(auto_map=elsewhere), group, CODE, "", ("other/repository",))
    both = _repository({"helper.py": PROGRAMS["os-system"].encode()}, auto_map=elsewhere)
    yield Item("auto-map-elsewhere-and-program", both, group, CODE)
    harmless = _repository({"modeling_x.py": HARMLESS}, auto_map={"AutoModel": "modeling_x.Model"})
    yield Item("auto-map-harmless", harmless, group, CODE, NEEDS_TRUST, ("modeling_x",))
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_x.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    files = _repository({"tokenizer_config.json": text(tokenizer), "tokenization_x.py": HARMLESS})
    yield Item("tokenizer-auto-map", files, group, CODE, NEEDS_TRUST)
    missing = _repository(auto_map={"AutoModel": "modeling_missing.Model"})
    yield Item("auto-map-missing-file", missing, group, CAUGHT)
    yield Item("trust-remote-code", _repository(trust_remote_code=True), group, CODE, NEEDS_TRUST)
    nested = _repository(text_config={"auto_map": elsewhere}, vision_config={"model_type": "x"})
    yield Item("auto-map-nested", nested, group, CODE)
    for name in (
        "preprocessor_config.json",
        "processor_config.json",
        "image_processor_config.json",
        "generation_config.json",
        "adapter_config.json",
    ):
        config = {"auto_map": {"AutoProcessor": "other/repository--processing_x.Processor"}}
        yield Item(f"auto-map-in-{name.split('.')[0]}", _repository({name: text(config)}), group, CODE)
    yield Item(
        "custom-generate", _repository({"custom_generate/generate.py": PROGRAMS["os-system"].encode()}), group, CODE
    )
    pipelines = {"custom_pipelines": {"x": {"impl": "pipeline_x.Pipeline", "pt": ["AutoModel"]}}}
    yield Item("custom-pipelines", _repository({"pipeline_x.py": HARMLESS}, **pipelines), group, CODE)
    index = {"_class_name": ["pipeline_x", "Pipeline"], "unet": ["modeling_x", "Model"]}
    yield Item(
        "diffusers",
        {"model_index.json": text(index), "unet/modeling_x.py": HARMLESS, "unet/m.safetensors": WEIGHTS},
        group,
        CODE,
    )
    modules = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]
    yield Item(
        "sentence-transformers", _repository({"modules.json": text(modules), "custom_st.py": HARMLESS}), group, CODE
    )
    yield Item("handler", _repository({"handler.py": PROGRAMS["os-system"].encode()}), group, CODE)
    yield Item("setup", _repository({"setup.py": PROGRAMS["subprocess"].encode()}), group, CODE)
    yield Item("hubconf", _repository({"hubconf.py": PROGRAMS["network"].encode()}), group, CODE)
    yield Item("path-in-auto-map", _repository(auto_map={"AutoModel": "../../evil.Model"}), group, CAUGHT)
    backbone = _repository(
        backbone="other/repository", use_timm_backbone=True, auto_map={"AutoBackbone": "other/r--x.Y"}
    )
    yield Item("backbone", backbone, group, CODE)


TARGETS = {
    "os-system": "os.system",
    "builtins-exec": "builtins.exec",
    "eval": "builtins.eval",
    "subprocess": "subprocess.run",
    "torch-load": "torch.load",
    "partial": "functools.partial",
    "import": "importlib.import_module",
    "popen": "subprocess.Popen",
    "remove": "shutil.rmtree",
    "unknown": "evil.module.run",
    "get-method": "hydra.utils.get_method",
}


def hydra() -> Iterator[Item]:
    """Class 35."""
    group = "35-hydra"
    for name, target in TARGETS.items():
        body = f"model:\n  _target_: {target}\n  _args_: ['true']\n".encode()
        best = NEEDS_TRUST if name == "unknown" else MALICIOUS
        yield Item(name, {"model_config.yaml": body, "model.safetensors": WEIGHTS}, group, CODE, best, (target,))
    plain = text({"model": {"_target_": "os.system", "_args_": ["true"]}})
    yield Item("in-json", {"config.json": plain, "model.safetensors": WEIGHTS}, group, CODE, MALICIOUS, ("os.system",))
    flow = b"{model: {'_target_': \"os.system\", _args_: ['true']}}\n"
    yield Item("flow-style", {"model_config.yaml": flow}, group, CODE, MALICIOUS, ("os.system",))
    escaped = b'model:\n  "\\x5ftarget_": "os\\x2esystem"\n'
    yield Item("escaped", {"model_config.yaml": escaped}, group, CODE, MALICIOUS, ("os.system",))
    anchor = b"x: &t os.system\nmodel:\n  _target_: *t\n"
    yield Item("anchor", {"model_config.yaml": anchor}, group, CODE, MALICIOUS, ("os.system",))
    tag = b"model: !!python/object/apply:os.system ['true']\n"
    yield Item("python-tag", {"config.yaml": tag}, group, CODE, MALICIOUS, ("os.system",))
    new = b"model: !!python/object/new:subprocess.Popen [['true']]\n"
    yield Item("python-tag-new", {"config.yml": new}, group, CODE, MALICIOUS, ("subprocess.Popen",))
    old = b"model:\n  cls: os.system\n  target: os.system\n  params: {}\n"
    yield Item("target-without-marks", {"model_config.yaml": old}, group, CODE)
    resolver = b"model:\n  path: ${oc.env:HOME}\n  _target_: ${evil}\nevil: os.system\n"
    yield Item("interpolated", {"model_config.yaml": resolver}, group, CODE)


def side_files() -> Iterator[Item]:
    """Class 36."""
    group = "36-side-files"
    hidden = torch_zip(pickled(system(), POP, state_dict()))
    for name in (
        "pytorch_model.bin",
        "optimizer.pt",
        "training_args.bin",
        "rng_state.pth",
        "scheduler.pt",
        "scaler.pt",
        "adapter_model.bin",
        "global_step1/mp_rank_00_model_states.pt",
        "global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "vocab.pkl",
        "tokenizer.model",
        "tf_model.h5",
        "flax_model.msgpack",
        "random_states_0.pkl",
        "onnx/model.onnx",
        "spiece.model",
        "cache.pkl.gz",
        "latest",
        "zero_to_fp32.bin",
        "events.out.tfevents.1",
        ".ipynb_checkpoints/model.pkl",
    ):
        data = hidden if name.endswith((".bin", ".pt", ".pth")) else INNER
        yield Item(
            name.replace("/", "-"),
            _repository({name: data}),
            group,
            CAUGHT,
            MALICIOUS,
            ("posix.system",) if "gz" not in name else (),
        )
    yield Item(
        "adapter-is-a-pickle",
        {"adapter_config.json": text({"peft_type": "LORA"}), "adapter_model.safetensors": INNER},
        group,
        CAUGHT,
        MALICIOUS,
    )
    base = {"peft_type": "LORA", "base_model_name_or_path": "../../../etc", "r": 8, "target_modules": ["q"]}
    adapter = {"adapter_config.json": text(base), "adapter_model.safetensors": WEIGHTS}
    yield Item("adapter-base-path", adapter, group, CAUGHT, NEEDS_TRUST, ("../../../etc",))
    absolute = text({**base, "base_model_name_or_path": "/etc"})
    yield Item("adapter-base-absolute", {**adapter, "adapter_config.json": absolute}, group, CAUGHT, NEEDS_TRUST)
    remote = text(
        {
            **base,
            "base_model_name_or_path": "other/repository",
            "auto_mapping": {"base_model_class": "X", "parent_library": "evil.module"},
        }
    )
    yield Item("adapter-parent-library", {**adapter, "adapter_config.json": remote}, group, CAUGHT)
    for name, path in {
        "up": "../../secret.safetensors",
        "absolute": "/etc/passwd",
        "hidden-up": "a/../../b.safetensors",
        "backslash": "..\\x.safetensors",
        "empty": "",
        "address": "https://example.invalid/x",
    }.items():
        index = text({"metadata": {"total_size": 16}, "weight_map": {"weight": path}})
        yield Item(f"index-{name}", {"config.json": text(CONFIG), "model.safetensors.index.json": index}, group, CAUGHT)
    index = text({"metadata": {"total_size": 16}, "weight_map": {"weight": "model-00001-of-00001.safetensors"}})
    linked = {"config.json": text(CONFIG), "model.safetensors.index.json": index}
    yield Item("index-link", linked, group, CAUGHT, links={"model-00001-of-00001.safetensors": "/etc/passwd"})
    yield Item(
        "index-pickle-shard",
        {**linked, "model-00001-of-00001.safetensors": INNER},
        group,
        CAUGHT,
        MALICIOUS,
        ("posix.system",),
    )
    bin_index = text({"metadata": {}, "weight_map": {"weight": "pytorch_model-00001-of-00001.bin"}})
    shard = {"pytorch_model.bin.index.json": bin_index, "pytorch_model-00001-of-00001.bin": hidden}
    yield Item("index-bin-shard", _repository(shard), group, HARM, named=("posix.system",))
    yield Item("path-file", _repository({"evil.pth": b"import os; os.system('true')\n"}), group, CAUGHT, MALICIOUS)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1234567\n"
    page = b"<!DOCTYPE html><html><body>404</body></html>"
    for name, data in {
        "pointer": pointer,
        "empty": b"",
        "page": page,
        "zeros": bytes(4096),
        "json-error": b'{"error": "not found"}',
        "cut": WEIGHTS[:40],
    }.items():
        yield Item(
            f"{name}-safetensors", {"config.json": text(CONFIG), "model.safetensors": data}, group, frozenset({BROKEN})
        )
        yield Item(f"{name}-bin", {"config.json": text(CONFIG), "pytorch_model.bin": data}, group, frozenset({BROKEN}))
    yield Item(
        "empty-beside-payload",
        _repository({"a.pt": b"", "b.pt": hidden, "c.bin": b"not a pickle"}),
        group,
        HARM,
        named=("posix.system",),
    )
    yield Item("dangling-link", _repository(), group, CAUGHT, links={"pytorch_model.bin": "/no/such/file"})
    prefers = _repository(
        {
            "model.fp16.safetensors": WEIGHTS,
            "consolidated.00.pth": hidden,
            "tokenizer.pkl": pickled(call("os", "getcwd")),
        }
    )
    yield Item("which-is-preferred", prefers, group, CODE, MALICIOUS)
    shell = _repository({"install.sh": b"#!/bin/sh\ntrue\n", "lib/x.so": b"\x7fELF\x02\x01\x01" + bytes(57)})
    yield Item("native-library", shell, group, CAUGHT)
    yield Item(
        "notebook",
        _repository(
            {
                "demo.ipynb": text({"cells": [{"cell_type": "code", "source": ["!true"]}]}),
                "model.pkl": pickled(value({"a": system()})),
            }
        ),
        group,
        CODE,
        MALICIOUS,
    )


def items() -> Iterator[Item]:
    """All of them."""
    yield from remote_code()
    yield from hydra()
    yield from side_files()
