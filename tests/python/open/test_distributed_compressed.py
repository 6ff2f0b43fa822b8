"""Checkpoints that torch wrote through its extension for zstd: every tensor has the saved values, in bounded memory."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import StreamTransformExtension

import max_weights
from command_line import run
from max_weights import load_weights
from max_weights.errors import FormatError, UnsupportedError
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses
from torch_same import assert_same

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        shutil.which("zstd") is None,
        reason="the program zstd is not installed; the tests in Rust have other streams",
    ),
]


class Program(StreamTransformExtension):
    """Replaces torch's `ZStandard` by the program zstd, which writes the same streams, instead of a Python package."""

    def __init__(self, *options: str, descriptor: str = "stream.zstd/1") -> None:
        self.options = options
        self.descriptor = descriptor

    @staticmethod
    def registry_name() -> str:
        return "stream.zstd"

    @staticmethod
    def from_descriptor(version: str) -> "Program":
        raise NotImplementedError(version)

    def get_descriptor(self) -> str:
        return self.descriptor

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        options = self.options

        class Writer(io.BytesIO):
            def close(self) -> None:
                command = ["zstd", "-c", "-q", *options]
                output.write(subprocess.run(command, input=self.getvalue(), capture_output=True, check=True).stdout)
                super().close()

        return cast("IO[bytes]", Writer())

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        raise NotImplementedError


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "rows": torch.randn(300, 64, generator=generator),
        "turned": torch.randn(40, 30, generator=generator).t(),
        "half": torch.randn(33, generator=generator).bfloat16(),
        "float8": torch.randn(16, 16, generator=generator).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(7),
        "zeros": torch.zeros(512, 512),
        "note": "two words",
        "step": 17,
    }


def save(folder: Path, content: dict[str, Any], extension: Program) -> Path:
    dcp.save(content, storage_writer=dcp.FileSystemWriter(folder, _extensions=[extension]), no_dist=True)
    return folder


@pytest.mark.parametrize("options", [(), ("-19",), ("-1", "--no-check"), ("--long=24",), ("--fast",)], ids=str)
def test_every_tensor_and_value_is_what_was_saved(tmp_path: Path, options: tuple[str, ...]) -> None:
    content = state()
    folder = save(tmp_path / "saved", content, Program(*options))
    weights = load_weights(folder)
    loaded = weights.load(framework="torch")
    tensors = {name: tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)}
    assert sorted(loaded) == sorted(tensors)
    for name, tensor in tensors.items():
        assert_same(loaded[name], tensor.contiguous())
        assert_same(weights[name].torch(), tensor.contiguous())
    found = dict(max_weights.infos(weights).objects.items())
    assert found == {"note": "two words", "step": 17}
    assert_same(weights.rows[17:200:7, 3:9].torch(), content["rows"][17:200:7, 3:9].contiguous())
    assert_same(weights.turned[5:7].torch(), content["turned"][5:7].contiguous())
    shard = Shard(1, 4, {"rows": ShardingStrategy.columnwise(4)})
    assert_same(weights.load("rows", shard=shard, framework="torch")["rows"], content["rows"][:, 16:32].contiguous())
    assert_same(dict(weights.stream("zeros", framework="torch"))["zeros"], content["zeros"])
    done = run("validate", folder, "--json")
    assert json.loads(done.stdout)["answer"] in {"clean", "accepted"}, done.stdout


def test_a_checkpoint_is_converted(tmp_path: Path) -> None:
    content = state()
    folder = save(tmp_path / "saved", content, Program())
    load_weights(folder).save(tmp_path / "out.safetensors", select="*")
    for name, tensor in load_weights(tmp_path / "out.safetensors").load(framework="torch").items():
        assert_same(tensor, content[name].contiguous())


MEASURE = """
import resource, sys, max_weights
weights = max_weights.load_weights(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for row in (7, 1, 0, 6):
    assert (weights.w[row, 1000:2000].numpy() == row).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def test_an_item_larger_than_what_is_kept_of_it_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """256 MiB, whose rows are read forwards, and from the start again."""
    tensor = torch.arange(8.0)[:, None].expand(8, 8 << 20).contiguous()
    folder = save(tmp_path / "saved", {"w": tensor}, Program("-1"))
    done = subprocess.run([sys.executable, "-c", MEASURE, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 192 << 20
    assert_same(load_weights(folder).w.torch(), tensor)


def test_a_stream_that_is_damaged_or_belongs_to_another_save_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"a": torch.randn(1000), "b": torch.randn(1000)}, Program())
    file = next(folder.glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 0xFF
    file.write_bytes(content)
    with refuses(FormatError, "distributed.item"):
        load_weights(folder).load()
    assert run("validate", folder).status != 0
    other = save(tmp_path / "other", {"a": torch.randn(10)}, Program(descriptor="stream.zstd/2"))
    with refuses(UnsupportedError, "distributed.transform"):
        load_weights(other).load()
