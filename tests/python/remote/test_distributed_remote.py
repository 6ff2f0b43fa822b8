"""Checkpoints of `torch.distributed.checkpoint` on a server, and deltas of them: the same values as from a disk, in few
requests.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import max_weights
from fault_server import FaultServer
from max_weights import delta, fingerprint, load_weights
from max_weights.errors import FormatError
from refusals import refuses
from test_distributed_checkpoints import save as save_by_ranks
from test_distributed_compressed import Program
from test_distributed_compressed import save as save_compressed
from test_distributed_compressed import state as compressed
from torch_same import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

LAYERS = 40
KINDS = ["one", "placements", "compressed"]


def layers() -> dict[str, torch.Tensor]:
    """Many short tensors, one with an item too long for a single read, and rare forms."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"layers.{i}.weight": torch.randn(64, 256, generator=generator) for i in range(LAYERS)}
    return tensors | {
        "long": torch.randn(1100, 2048, generator=generator),
        "turned": torch.randn(96, 48, generator=generator).t(),
        "complex": torch.randn(8, 8, generator=generator, dtype=torch.complex64),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(layers(), checkpoint_id=folder / "one", no_dist=True)
        save_compressed(folder / "compressed", compressed(), Program())
    save_by_ranks(folder, 2, "placements")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


def served(server: FaultServer, kind: str, name: str = ".metadata") -> str:
    return server.file(f"{kind}/{name}")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert sorted(left) == sorted(right)
    for name, tensor in left.items():
        assert_same(tensor, right[name])


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_what_it_gives_on_a_disk(server: FaultServer, folder: Path, kind: str) -> None:
    url, here = served(server, kind), load_weights(folder / kind)
    expected = here.load(framework="torch")
    same(load_weights(url).load(framework="torch"), expected)
    there = load_weights(url)
    for _ in range(2):  # the place of the elements is looked up with the first
        same(there.load(framework="torch"), expected)
        same(dict(there.stream(framework="torch")), expected)
    for name in expected:
        assert_same(load_weights(url)[name].torch(), expected[name])
    floats = [name for name, tensor in expected.items() if tensor.dtype.is_floating_point]
    halves = load_weights(url).load(floats, dtype="float16", framework="torch")
    same(halves, here.load(floats, dtype="float16", framework="torch"))
    assert max_weights.diff(load_weights(url), here).ok
    assert fingerprint(load_weights(url), digests=True).digests == fingerprint(here, digests=True).digests


def test_parts_of_tensors_are_those_of_the_whole(server: FaultServer) -> None:
    url, tensors = served(server, "one"), layers()
    for name, part in [
        ("long", np.s_[7:900:13, 5:2000:3]),
        ("turned", np.s_[3:40, 7]),
        ("layers.3.weight", np.s_[::-1]),
        ("layers.3.weight", np.s_[9:9]),
        ("complex", np.s_[2:5]),
    ]:
        expected = tensors[name].numpy()[part]
        found = load_weights(url)[name][part].torch().numpy()
        np.testing.assert_array_equal(found, expected)


def test_short_items_are_read_together_and_as_a_whole(server: FaultServer) -> None:
    opened = load_weights(served(server, "one"))
    server.reset_counts()
    opened.load([f"layers.{i}.weight" for i in range(LAYERS)], framework="numpy")
    counts = server.counts()
    assert counts["requests"] <= 3, counts
    assert counts["bytes"] <= LAYERS * (64 * 256 * 4 + 2000), counts
    server.reset_counts()
    opened.load(["long"], framework="numpy")
    assert server.counts()["bytes"] <= 1.2 * 1100 * 2048 * 4, server.counts()


def test_many_long_items_are_looked_into_at_the_same_time(tmp_path: Path) -> None:
    tensors = {f"w{i}": torch.full((1 << 18, 9), float(i)) for i in range(12)}
    dcp.save(tensors, checkpoint_id=tmp_path / "long", no_dist=True)
    with FaultServer(tmp_path, latency_ms=30) as server:
        opened = load_weights(server.file("long/.metadata"))
        server.reset_counts()
        same(opened.load(framework="torch"), tensors)
        assert server.counts()["most_at_once"] >= len(tensors), server.counts()


def test_a_digest_is_of_the_whole_weight_also_where_it_is_in_pieces(server: FaultServer, folder: Path) -> None:
    here = load_weights(folder / "placements")
    digests = fingerprint(here, digests=True).digests
    expected = here.load(framework="torch")
    for opened in (here, load_weights(served(server, "placements"))):
        same(opened.load(framework="torch", digests=digests), expected)
        same(dict(opened.stream(framework="torch", digests=digests)), expected)
        half = opened.load(["columns"], dtype="float16", framework="torch", digests=digests)
        assert_same(half["columns"], expected["columns"].half())
        wrong = digests | {"columns": digests["rows"]}
        with refuses(FormatError, "tensor.digest"):
            opened.load(framework="torch", digests=wrong)


@pytest.mark.parametrize("kind", ["one", "placements"])
def test_a_delta_builds_on_pieces(folder: Path, tmp_path: Path, kind: str) -> None:
    base = load_weights(folder / kind)
    plain = {name: tensor.clone() for name, tensor in base.load(framework="torch").items() if not tensor.is_complex()}
    base.save(tmp_path / "base.safetensors", select=list(plain))
    for name in list(plain)[::2]:
        if plain[name].numel() and plain[name].dtype.is_floating_point:
            plain[name].view(-1)[::3] = 1.0
    max_weights.save(plain, tmp_path / "new.safetensors")
    if kind == "placements":  # all of its dtypes are those of deltas
        delta.create(base, tmp_path / "new.safetensors", tmp_path / "delta.safetensors")
    else:
        delta.create(tmp_path / "base.safetensors", tmp_path / "new.safetensors", tmp_path / "delta.safetensors")
        saved = {name: tensor for name, tensor in layers().items() if not tensor.is_complex()}
        dcp.save(saved, checkpoint_id=tmp_path / "base", no_dist=True)
    pieces = folder / kind if kind == "placements" else tmp_path / "base"
    together = load_weights([pieces, tmp_path / "delta.safetensors"])
    same(together.load(framework="torch"), plain)
    for name in plain:
        assert_same(together[name].torch(), plain[name])
    assert max_weights.diff(together, tmp_path / "new.safetensors").ok
    with FaultServer(pieces) as base_server, FaultServer(tmp_path) as delta_server:
        urls = [base_server.file(".metadata"), delta_server.file("delta.safetensors")]
        same(load_weights(urls).load(framework="torch"), plain)
        same(load_weights([pieces, urls[1]]).load(framework="torch"), plain)
        same(load_weights([urls[0], tmp_path / "delta.safetensors"]).load(framework="torch"), plain)


def test_a_delta_is_not_applied_to_pieces_of_another_version(folder: Path, tmp_path: Path) -> None:
    base = load_weights(folder / "placements").load(framework="torch")
    base["rows"] = base["rows"] + 1
    max_weights.save(base, tmp_path / "other.safetensors")
    base["rows"] = base["rows"] + 1
    max_weights.save(base, tmp_path / "new.safetensors")
    delta.create(tmp_path / "other.safetensors", tmp_path / "new.safetensors", tmp_path / "delta.safetensors")
    with refuses(FormatError, "delta.base"):
        load_weights([folder / "placements", tmp_path / "delta.safetensors"])


def test_what_is_wrong_in_an_item_names_the_weight_and_the_file(folder: Path, tmp_path: Path) -> None:
    source = folder / "one"
    (tmp_path / ".metadata").write_bytes((source / ".metadata").read_bytes())
    for file in source.glob("*.distcp"):
        bytes_ = bytearray(file.read_bytes())
        at = bytes_.index(b"PK\x01\x02")  # the directory of the first item
        bytes_[at : at + 4] = bytes(4)
        (tmp_path / file.name).write_bytes(bytes_)
    with FaultServer(tmp_path) as server, pytest.raises(FormatError) as caught:
        load_weights(server.file(".metadata")).load(framework="numpy")
    message = str(caught.value)
    assert all(word in message for word in (".distcp", "layers.", "torch.save")), message


def test_a_header_that_moves_the_elements_is_refused(tmp_path: Path) -> None:
    dcp.save({"a": torch.arange(12.0).reshape(3, 4)}, checkpoint_id=tmp_path, no_dist=True)
    (file,) = tmp_path.glob("*.distcp")
    content = file.read_bytes()
    at = content.index(b"archive/data/0") - 2  # the length of the extra fields of the elements' entry
    for flip in range(1, 256):
        damaged = bytearray(content)
        damaged[at] ^= flip
        file.write_bytes(damaged)
        if content[at] ^ flip:  # other programs write none at all
            with pytest.raises(FormatError):
                load_weights(tmp_path).load(framework="numpy")


def test_a_file_that_changes_is_noticed(folder: Path, tmp_path: Path) -> None:
    for file in (folder / "one").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with FaultServer(tmp_path) as server:
        opened: Any = load_weights(server.file(".metadata"))
        for file in tmp_path.glob("*.distcp"):
            file.write_bytes(file.read_bytes() + b"more")
        with refuses(max_weights.errors.WeightsError, "file.changed"):
            opened.load(framework="numpy")
