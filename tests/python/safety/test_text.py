"""Text from a file or a path, in every output: none of it controls a terminal, reverses a line, or becomes markup.

One hostile checkpoint of each format, below a hostile folder, goes through every output: `repr`, trees, pages, errors,
warnings, logs and the command line. Return values of the API are unchanged.
"""

import json
import logging
import os
import pickle
import pty
import re
import struct
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
import max_weights.torch
from command_line import COMMAND, environment, run
from conftest import safetensors_bytes
from max_weights import DType, nn
from max_weights._core import escape, printable, torch_globals, tree
from max_weights.driver import Buffer
from max_weights.graph import DeviceRef, Graph, ShardingStrategy, Weight
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.graph.weights import WeightData, weights_format
from test_pytorch_hostile import archive, stacked_call

MARKUP = "<img src=x>"
SIGNS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\u200b\u200e\ufeff\u2028\n\r\x7f\xad"
HOSTILE = f"{SIGNS}{MARKUP}\0"
FOLDER = f"{SIGNS}{MARKUP}"
NAME = f"layers.{HOSTILE}.w"
# Limits of GGUF and of an index: names of 64 bytes, and shard names without control characters.
SHORT = "\x1b]0;o\x07\x1b[2J\u202e\u200b\ufeff\n\x7f<img>"
SHARD = "model\u202e\u2066\u200b\ufeff<img src=x>.safetensors"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
RAW = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def raw(text: str) -> list[str]:
    """The unprintable characters of a text, except newlines."""
    return sorted({c for c in text if unicodedata.category(c) in RAW and c != "\n"})


def check(where: str, text: str) -> None:
    assert isinstance(text, str), where
    assert raw(text) == [], f"{where}: {text!r}"
    assert f"\n\r{MARKUP}" not in text, f"{where}: a line of its own: {text!r}"
    assert not re.search(r"^\W*<img", text, re.MULTILINE), f"{where}: a line of its own: {text!r}"


def numbers(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / FOLDER
    made.mkdir()
    return made


def single(folder: Path) -> Path:
    path = folder / f"{FOLDER}.safetensors"
    tensors = {
        NAME: ("F32", [2], numbers(1, 2)),
        f"odd.{HOSTILE}": (f"X{HOSTILE}", [1], b"abcd"),
        "layers.w": ("F32", [1], numbers(3)),
    }
    path.write_bytes(safetensors_bytes(tensors, metadata={HOSTILE: HOSTILE, "format": "pt"}))
    return path


def sharded(folder: Path) -> Path:
    (folder / SHARD).write_bytes(safetensors_bytes({NAME: ("F32", [2], numbers(1, 2))}))
    weight_map = {NAME: SHARD, f"gone.{HOSTILE}": f"gone{SHARD}"}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def gguf(folder: Path) -> Path:
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, 2)
    header += gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text(HOSTILE)
    header += gguf_text(HOSTILE) + struct.pack("<II", 9, 8) + struct.pack("<Q", 1) + gguf_text(HOSTILE)
    header += gguf_text(SHORT) + struct.pack("<IQIQ", 1, 8, 0, 0)
    header += gguf_text(f"odd{SHORT}") + struct.pack("<IQIQ", 1, 8, 142, 32)
    path = folder / f"{FOLDER}.gguf"
    path.write_bytes(header + bytes(-len(header) % 32) + numbers(*range(8)) + bytes(32))
    return path


def pytorch(folder: Path) -> Path:
    path = folder / f"{FOLDER}.pt"
    view = torch.zeros(1).expand(3)
    torch.save({NAME: torch.ones(2), "plain": view, f"text.{HOSTILE}": HOSTILE, "deep": [{HOSTILE: [HOSTILE]}]}, path)
    return path


def pytorch_with_code(folder: Path) -> Path:
    path = folder / f"code{FOLDER}.pt"
    argument = b"X" + struct.pack("<I", len(HOSTILE.encode())) + HOSTILE.encode()
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        b"X\x01\x00\x00\x000" + argument + b"K\x04tQK\x00K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
    )
    return archive(
        path,
        b"\x80\x02}(" + argument + stacked_call(HOSTILE, HOSTILE, HOSTILE) + b"X\x01\x00\x00\x00w" + tensor + b"u.",
    )


FORMATS = {maker.__name__: maker for maker in (single, sharded, gguf, pytorch, pytorch_with_code)}


@pytest.fixture(params=list(FORMATS))
def file(request: pytest.FixtureRequest, folder: Path) -> Path:
    return FORMATS[request.param](folder)


def message(action: Callable[[], Any]) -> str:
    """The error of this call, as printed in a traceback."""
    try:
        action()
    except Exception as error:
        caught = error
    else:
        pytest.fail("no error")
    assert type(caught).__module__ in ("max_weights.errors", "max_weights.graph._errors", "builtins"), caught
    return "\n".join([str(caught), repr(caught), getattr(caught, "help", None) or ""])


def printed_by_weight(weights: Any, info: Any) -> Iterator[tuple[str, str]]:
    """The output of one weight."""
    yield "info", repr(info)
    node = weights[info.name]
    yield "node", repr(node)
    yield "node html", node._repr_html_()
    value = node.data()
    yield from (("value", repr(value)), ("value", str(value)), ("buffer", repr(value.to_buffer())))
    yield from (("info html", info._repr_html_()), ("value html", value._repr_html_()))
    yield "buffer html", value.to_buffer()._repr_html_()
    yield "allocated", repr(node.allocate())
    yield "recorded", repr(weights.allocated_weights[info.name])
    yield "shape", message(lambda: node.allocate(shape=[9, 9]))
    yield "encoding", message(lambda: node.allocate(quantization_encoding=QuantizationEncoding.Q4_0))
    yield "bytes", message(lambda: node.allocate_as_bytes(DType.complex64))
    yield "near", message(lambda: weights[info.name + "x"].data())
    yield "below", message(lambda: weights[info.name.rpartition(".")[0] or f"{info.name}.x"].data())
    if isinstance(info.dtype, str):
        yield "unknown type", message(lambda: value.astype("float32"))
    else:
        yield "converted", repr(node.allocate(dtype=DType.float64))


def printed_by_weights(weights: Any) -> Iterator[tuple[str, str]]:
    """Every output of a tree, its nodes, records and values."""
    yield "repr", repr(weights)
    yield "str", str(weights)
    yield "html", weights._repr_html_()
    yield "tree", tree(weights, fold=False)
    yield "metadata", repr(weights.metadata)
    yield "infos", repr(max_weights.infos(weights))
    yield "infos html", max_weights.infos(weights)._repr_html_()
    yield "statistics html", max_weights.stats(weights, bins=4)._repr_html_()
    if hasattr(weights.metadata, "_repr_html_"):
        yield "metadata html", weights.metadata._repr_html_()
    for i, warning in enumerate(max_weights.infos(weights).warnings):
        yield f"warning {i}", warning
    for info in max_weights.infos(weights):
        yield from printed_by_weight(weights, info)
    yield "private", message(lambda: getattr(weights, f"_{HOSTILE}"))
    yield "not there", message(lambda: weights[HOSTILE][HOSTILE].data())
    if hasattr(weights, "objects"):
        found = max_weights.infos(weights).objects
        yield "objects", repr(found)
        yield from (("object", repr(found[name])) for name in found)
        yield "no object", message(lambda: found[f"no{HOSTILE}"])
    first = weights[next(iter(max_weights.infos(weights))).name]
    weights.close()
    yield "closed", message(first.data)


def test_trees_records_values_warnings_and_errors_are_safe_to_print(file: Path) -> None:
    outputs = list(printed_by_weights(max_weights.load_weights(file, strict=False)))
    assert len(outputs) > 20
    for where, text in outputs:
        check(where, text)
        assert "html" not in where or "<img" not in text, where


def test_errors_of_opening_are_safe_to_print(folder: Path) -> None:
    damaged = single(folder)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    twice = [folder / f"{SIGNS}{i}.safetensors" for i in "ab"]
    for path in twice:
        path.write_bytes(safetensors_bytes({NAME: ("F32", [2], numbers(1, 2))}))
    index = sharded(folder)
    bad_shard = folder / "bad.safetensors.index.json"
    bad_shard.write_text(json.dumps({"weight_map": {NAME: f"{HOSTILE}.safetensors"}}))
    for name in ("empty", "other", "partial", "missing", "distributed"):
        (folder / name).mkdir()
    (folder / "other" / f"{FOLDER}.onnx").touch()
    (folder / "empty" / f"{FOLDER}.txt").touch()
    (folder / "partial" / f"{FOLDER}.part").touch()
    (folder / "missing" / f"{FOLDER}-00001-of-00002.safetensors").touch()
    (folder / "distributed" / "x.distcp").touch()
    (folder / f"{FOLDER}.gguf").write_bytes(b"GGUF" + bytes(64))
    (folder / f"{FOLDER}.pt").write_bytes(b"PK" + HOSTILE.encode() * 9)
    (folder / FOLDER).write_bytes(HOSTILE.encode() * 9)
    bad = [
        damaged,
        twice,
        index,
        bad_shard,
        folder,
        folder / f"{FOLDER}.gguf",
        folder / f"{FOLDER}.pt",
        folder / FOLDER,
    ]
    bad += [folder / name for name in ("empty", "other", "partial", "missing", "distributed", FOLDER + "gone")]
    bad += [[damaged, folder / SHARD], f"org/{HOSTILE}", "org/model@main\n"]
    for paths in bad:
        check(repr(paths), message(partial(max_weights.load_weights, paths)))
    check("suffix", message(lambda: weights_format([f"{HOSTILE}.x"])))
    check("suffixes", message(lambda: weights_format([f"{HOSTILE}.pt", f"{HOSTILE}.gguf"])))


def test_the_names_in_the_hub_cache_are_safe_to_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / FOLDER))
    check("no model", message(lambda: max_weights.load_weights("org/model")))
    (tmp_path / FOLDER / "models--org--model" / "refs" / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "models--org--model" / "refs" / FOLDER / FOLDER).touch()
    check("no revision", message(lambda: max_weights.load_weights("org/model")))


@pytest.mark.parametrize("maker", [pytorch, pytorch_with_code])
def test_loading_like_torch_says_what_is_safe_to_print(folder: Path, maker: Callable[[Path], Path]) -> None:
    path = maker(folder)
    if maker is pytorch_with_code:
        check("global", message(lambda: max_weights.torch.load(path)))
        torch_file = max_weights.load_weights(path)
        assert any(HOSTILE in name for _, name, _, _ in torch_globals(torch_file)), "data stays as it is"
        place = b"X" + struct.pack("<I", len(HOSTILE.encode())) + HOSTILE.encode()
        tensor = path.with_name("location.pt")
        pickled = (
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
            b"X\x01\x00\x00\x000" + place + b"K\x04tQK\x00K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR."
        )
        check("location", message(lambda: max_weights.torch.load(archive(tensor, pickled), None)))
    else:
        check("damaged", message(lambda: max_weights.torch.load(folder / FOLDER)))
        (folder / "cut.pt").write_bytes(path.read_bytes()[:-30])
        check("cut", message(lambda: max_weights.torch.load(folder / "cut.pt")))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Weight(NAME, DType.float32, [2], DeviceRef.CPU())
        self.two = Weight(f"{NAME}2", DType.float32, [3], DeviceRef.CPU())

    def __call__(self) -> None: ...


def test_graphs_and_modules_say_what_is_safe_to_print(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    for text in (repr(model), str(model), repr(model.one)):
        check("module", text)
    near = {NAME + "y": np.ones(2, np.float32), f"{NAME}2": np.ones(9, np.float32), HOSTILE: 3}
    check("misfit", message(lambda: model.load_state_dict(near)))
    check("no value", message(lambda: model.state_dict(auto_initialize=False)))
    with caplog.at_level(logging.DEBUG):
        report = model.load_state_dict({NAME + "y": np.ones(2, np.float32)}, strict=False)
    assert caplog.messages
    for text in (*caplog.messages, repr(report), report._repr_html_(), model._repr_html_()):
        check("report", text)
        assert "<img" not in text or not text.startswith("<div"), text
    check("rename", message(lambda: Model().load(single(folder), rename=lambda _: NAME)))
    with Graph(HOSTILE) as graph:
        graph.add_weight(model.one)
        check("twice", message(lambda: graph.add_weight(Weight(NAME, DType.float32, [2], DeviceRef.CPU()))))
        declared = graph.weights()[NAME]
        check("declared", message(declared.allocate))
        check("declared", message(declared.data))
        declared.allocate(DType.float32, [2])
        check("declared", message(lambda: declared.allocate(DType.float32, [2])))
        check("declared", repr(declared) + repr(graph.weights()))
    check("graph", str(graph))
    check("graph", repr(graph))
    check("changed", message(lambda: setattr(model.one, "dtype", DType.int8)))
    check("no strategy", message(lambda: model.two.shard([DeviceRef.CPU()])))
    model.two.sharding_strategy = ShardingStrategy.rowwise(1)
    shard = model.two.shard([DeviceRef.CPU()])[0]
    for text in (repr(shard), message(lambda: shard.shard([DeviceRef.CPU()]))):
        check("shard", text)
    data = WeightData(Buffer.from_numpy(np.ones(2, np.float32)), NAME, DType.float32, [2])
    check("data", repr(data))
    with max_weights.driver.virtual_devices():
        check("virtual", message(lambda: np.asarray(data.astype("float16"))))


def test_a_log_of_a_file_that_cannot_be_mapped_is_safe_to_print(folder: Path) -> None:
    # With this limit on the address space, the system refuses to map the file.
    path = folder / f"{FOLDER}.safetensors"
    size = 1 << 33
    header = json.dumps(
        {
            "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
            "v": {"dtype": "U8", "shape": [1], "data_offsets": [size, size + 1]},
        }
    ).encode()
    with path.open("wb") as made:
        made.write(struct.pack("<Q", len(header)) + header)
        made.truncate(8 + len(header) + size + 1)
    script = (
        "import resource, sys, max_weights; resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)); "
        "max_weights.load_weights(sys.argv[1]).v.data()"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert "cannot be mapped" in done.stderr
    check("log", done.stderr)


def commands(path: Path) -> Iterator[list[str]]:
    yield ["ls", str(path)]
    yield ["ls", "--flat", str(path)]
    yield ["ls", "--json", str(path)]
    yield ["ls", "--format", "jsonl", str(path)]
    yield ["ls", "--filter", f"*{SIGNS}*", str(path)]
    yield ["ls", "--filter", f"[{SIGNS}", str(path)]
    yield ["show", str(path)]
    yield ["show", "--json", str(path)]
    yield ["globals", str(path)]
    yield ["globals", "--json", str(path)]
    for info in max_weights.infos(max_weights.load_weights(path, strict=False)):
        if "\0" not in info.name:
            yield ["show", str(path), info.name]
            yield ["show", "--json", str(path), info.name]
    yield ["show", str(path), SIGNS]
    for command in ("ls", "show", "globals", "bench"):
        yield [command, f"{path}x"]
    yield ["globals", "--json", f"{path}x"]
    yield ["bench", "--against", SIGNS, str(path)]


def on_a_terminal(arguments: list[str]) -> str:
    """The output of a command on a terminal."""
    found = b""
    end, terminal = pty.openpty()
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment()):
        os.close(terminal)
        while True:
            try:
                part = os.read(end, 1 << 16)
            except OSError:  # the other side was closed
                break
            if not part:
                break
            found += part
    os.close(end)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("strict", [True, False])
def test_what_the_command_line_prints_is_safe(file: Path, strict: bool) -> None:
    for arguments in commands(file):
        option = ["--no-strict"] if not strict and arguments[0] in ("ls", "show") else []
        done = run(*arguments, *option)
        assert 0 <= done.status <= 3, (arguments, done.stderr)
        assert "panicked" not in done.stderr
        check(str(arguments), done.stdout)
        check(str(arguments), done.stderr)


def test_what_the_command_line_prints_on_a_terminal_is_safe(folder: Path) -> None:
    path = single(folder)
    csv = ["ls", "--no-strict", "--format", "csv", str(path)]
    for arguments in (["ls", str(path)], ["show", str(path)], ["show", str(path), SIGNS], ["ls", f"--{SIGNS}"], csv):
        text = on_a_terminal(arguments)
        assert text
        check(str(arguments), STYLE.sub("", text))


@pytest.mark.parametrize(
    "arguments",
    [[f"--{SIGNS}"], [SIGNS], ["ls", f"--{SIGNS}"], ["ls", "--lines", SIGNS, "x"], ["show", "a", "b", SIGNS]],
)
def test_a_wrong_command_line_is_quoted_safely(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.status, done.stdout) == (2, "")
    check("usage", done.stderr)


def test_what_a_program_asks_for_stays_as_it_is(folder: Path) -> None:
    path = single(folder)
    weights = max_weights.load_weights(path, strict=False)
    info = next(info for info in max_weights.infos(weights) if info.name == NAME)
    assert weights[NAME].name == weights[NAME].data().name == info[0] == NAME
    assert info.file == str(path)
    assert weights.metadata == {HOSTILE: HOSTILE, "format": "pt"}
    assert pickle.loads(pickle.dumps(weights[NAME])).name == NAME
    listing = json.loads(run("ls", "--json", "--no-strict", path).stdout)
    assert NAME in [weight["name"] for weight in listing["weights"]]
    assert listing["metadata"][HOSTILE] == HOSTILE
    with pytest.raises(max_weights.FormatError) as caught:
        max_weights.load_weights(path)
    assert (caught.value.path, caught.value.tensor) == (str(path), NAME)


def test_python_asks_the_core_what_can_be_printed() -> None:
    for code in range(0x110000):
        c = chr(code)
        if unicodedata.category(c) in RAW:
            assert re.fullmatch(r"\\([tnr]|x\w{2}|u\w{4}|U\w{8})", printable(c)), hex(code)
        elif unicodedata.category(c)[0] in "LMNPS":
            assert printable(c) == c, hex(code)
    assert printable("a\ud800\udcffb") == "a\\ud800\\udcffb"
    assert escape("x" * 1000) == "x" * 200 + "…"
    assert printable("x" * 1000) == "x" * 1000


def shortened(view: str) -> str:
    """A view without its style element."""
    return re.sub("<style>.*?</style>", "", view, flags=re.DOTALL)


def test_names_of_a_megabyte_do_not_bury_a_message(make_file: Callable[..., Path]) -> None:
    name = "layer." + "x" * 1_000_000
    weights = max_weights.load_weights(make_file({name: np.ones(2, np.float32), "w": ("X" * 1_000_000, [1], b"abcd")}))
    node = weights[name]
    texts = [
        repr(weights),
        shortened(weights._repr_html_()),
        shortened(max_weights.infos(weights)._repr_html_()),
        shortened(node.data()._repr_html_()),
        repr(node),
        repr(node.data()),
        repr(node.allocate()),
        *max_weights.infos(weights).warnings,
    ]
    texts += [repr(info) for info in max_weights.infos(weights)]
    texts += [
        message(weights[name + "x"].data),
        message(lambda: node.allocate(shape=[3])),
        message(weights[f"{name}.y"].data),
    ]
    texts += [message(lambda: weights.w.data().astype("float32"))]
    assert max(map(len, texts)) < 5_000


def test_what_is_quoted_in_a_message_is_made_safe() -> None:
    """The convention behind the test above: quoted placeholders use `escape`, `printable`, or `!r`."""
    quoted = re.compile(r"'\{(?!escape\(|printable\()[^{}]*(?<!!r)\}'")
    allowed = ("'{what}'",)
    for path in sorted(Path(max_weights.__file__).parent.rglob("*.py")):
        for line in path.read_text().splitlines():
            assert not [found for found in quoted.findall(line) if found not in allowed], f"{path}: {line.strip()}"
