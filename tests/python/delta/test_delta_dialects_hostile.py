"""Errors in deltas of other libraries are named: chains, frames, positions, checksums, indexes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from safetensors.numpy import load_file, save_file

import delta_dialects as dialects
from delta_dialects import INDEX, Tensors, publish
from max_weights import delta, load_weights, save_sharded
from max_weights.errors import FormatError, UnsupportedError
from refusals import refuses
from test_delta_dialects import Chain, assert_same, chain, copied, numbers

__all__ = ["chain"]


# --- what is wrong -------------------------------------------------------------------------------------------------


def test_chains_of_folders_that_are_none_are_named(chain: Chain, tmp_path: Path) -> None:
    def refused(*paths: Path) -> str:
        with pytest.raises(FormatError) as error:
            load_weights(list(paths))
        return str(error.value)

    one, two, three = chain.deltas()
    assert "one between them is missing [delta.chain]" in refused(chain.base, one, three)
    assert "it is the same change as" in refused(chain.base, one, one)
    assert "it builds on" in refused(chain.base, three, two, one)
    fork = publish(tmp_path / "fork", *chain.versions[0:2], "000009", "000000")
    assert "the chain forks" in refused(chain.base, one, fork)
    own = tmp_path / "own.safetensors"
    delta.create([chain.base, one, two], chain.versions[3], own, sync=False)
    assert "of the form max-weights" in refused(chain.base, one, two, own)
    whole = tmp_path / "weight_v000010"
    save_sharded(chain.versions[2], whole, max_shard_size="200KB", sync=False)
    index = json.loads((whole / INDEX).read_text())
    dialects.write_index(whole, {"version": "000010"}, index["weight_map"])
    assert_same(load_weights(whole).load(framework="numpy"), chain.versions[2])
    assert "the base is the version 000010, but the first delta changes 000002" in refused(whole, three)


def test_a_wrong_base_is_named_before_a_value_of_it_is_used(chain: Chain, tmp_path: Path) -> None:
    other = copied(chain.versions[0])
    other["a.weight"].view(np.uint16)[3, 4] ^= 1
    save_file(other, tmp_path / "other.safetensors")
    weights = load_weights([tmp_path / "other.safetensors", *chain.deltas()])
    with refuses(FormatError, "delta.base"):
        weights.a.weight[0:1].to_numpy()
    assert np.array_equal(np.asarray(weights.b.weight), chain.versions[3]["b.weight"])


class Damage:
    """A folder in which something is changed, and the resulting error."""

    def __init__(self, folder: Path) -> None:
        self.old = {"w": np.arange(1000, dtype=np.uint8), "v": np.arange(10)}
        self.new = {**self.old, "w": self.old["w"] + np.uint8(1)}
        self.base, self.folder = folder / "base.safetensors", folder / "delta"
        save_file(self.old, self.base)

    def refused(self, encoding: str = "xor", *, kind: str = "adler32", **changes: Any) -> str:
        """`raw`: compressed bytes; `frame`: their replacement; `sum`; `name`; `message`: index entries; `map`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        publish(self.folder, self.old, self.new, "2", "1", encoding, kind=kind)
        file = next(self.folder.glob("*.safetensors"))
        frame = load_file(file)["w"].tobytes()
        if "raw" in changes:
            frame = zstandard.ZstdCompressor().compress(changes["raw"])
        frame = changes.get("frame", lambda frame: frame)(frame)
        name = changes.get("name", "w")
        sums = {name: changes.get("sum", dialects.checksum(kind, self.new["w"].tobytes()))}
        stored = changes.get("stored", np.frombuffer(frame, np.uint8))
        save_file({name: stored}, file, metadata={} if changes.get("sum", "") is None else sums)
        index = json.loads((self.folder / INDEX).read_text())
        index["metadata"] |= changes.get("message", {})
        for key in changes.get("without", ()):
            del index["metadata"][key]
        dialects.write_index(self.folder, index["metadata"], changes.get("map", {name: file.name}))
        with pytest.raises((FormatError, UnsupportedError, FileNotFoundError)) as error:
            load_weights([self.base, self.folder]).load(framework="numpy")
        return str(error.value)


@pytest.fixture
def damage(tmp_path: Path) -> Damage:
    return Damage(tmp_path)


def test_frames_that_are_damaged_are_named(damage: Damage) -> None:
    flipped = lambda frame: frame[:-3] + bytes([frame[-3] ^ 1]) + frame[-2:]  # noqa: E731
    for change in (flipped, lambda frame: frame[:-1], lambda _: b"", lambda _: b"no frame"):
        message = damage.refused(frame=change)
        assert "tensor 'w'" in message
        assert "[delta.changes]" in message or "[delta.base]" in message
    assert "bytes follow its frame" in damage.refused(frame=lambda frame: frame + b"\0")
    assert "bytes follow its frame" in damage.refused(frame=lambda frame: frame + frame)
    assert "bytes follow its frame" in damage.refused(frame=lambda frame: b"\x50\x2a\x4d\x18\x01\0\0\0a" + frame)
    # The size that the frame declares.
    assert "complete zstd frame" in damage.refused(frame=lambda frame: frame[:5] + bytes([frame[5] ^ 1]) + frame[6:])
    with_sum = zstandard.ZstdCompressor(write_checksum=True).compress(bytes([1] * 1000))
    wrong = with_sum[:-1] + bytes([with_sum[-1] ^ 1])
    assert "not a complete zstd frame: Restored data doesn't match checksum" in damage.refused(frame=lambda _: wrong)
    assert "unpack to 999 bytes, but the tensor has 1000" in damage.refused(raw=bytes(999))
    assert "unpack to more than the 1000 bytes of the tensor" in damage.refused(raw=bytes(1001))


def test_a_frame_that_unpacks_to_much_more_takes_no_memory(damage: Damage) -> None:
    frame = zstandard.ZstdCompressor(level=19).compressobj(size=1 << 30)
    bomb = b"".join(frame.compress(bytes(1 << 20)) for _ in range(1 << 10)) + frame.flush()
    assert len(bomb) < 200_000
    for encoding in ("xor", "overwrite"):
        message = damage.refused(encoding, frame=lambda _: bomb)
        assert "more than the 1000 bytes" in message or "more follows its 0 places" in message


def test_a_frame_whose_window_is_large_is_refused(damage: Damage) -> None:
    def packed(window_log: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return compressor.compress(b"\x01" * 1001) + compressor.flush()

    assert "more than the 1000 bytes" in damage.refused(frame=lambda _: packed(25))
    assert "Frame requires too much memory" in damage.refused(frame=lambda _: packed(26))


def test_places_that_are_wrong_are_named(damage: Damage) -> None:
    def refused(raw: bytes) -> str:
        message = damage.refused("overwrite", raw=raw)
        assert "[delta.changes]" in message
        return message

    assert "the byte 7, is there twice" in refused(numbers(2, 7, 7) + b"ab")
    assert "the byte 6, is there out of order" in refused(numbers(2, 7, 6) + b"ab")
    assert "is the byte 1000, but the tensor has 1000" in refused(numbers(1, 1000) + b"a")
    assert "1001 bytes are replaced" in refused(numbers(1001))
    assert "4294967295 bytes are replaced" in refused(numbers(0xFFFFFFFF, 1))
    assert "1 places and 0 bytes" in refused(numbers(1, 1))
    assert "more follows" in refused(numbers(1, 1) + b"ab")
    assert "unpacks to nothing" in refused(b"ab")


def test_checksums_that_are_wrong_are_named(damage: Damage) -> None:
    assert "does not have the checksum 00000000 (adler32)" in damage.refused(sum="00000000")
    assert "is none of adler32, which has 8" in damage.refused(sum="0" * 32)
    assert "is none of blake3, which has 64" in damage.refused(message={"checksum_format": "blake3"})
    assert "have no checksum of it" in damage.refused(sum=None)
    assert "checksum_format 'md5'" in damage.refused(message={"checksum_format": "md5"})


def test_indexes_that_are_wrong_are_named(damage: Damage) -> None:
    assert "delta_encoding 'sum'" in damage.refused(message={"delta_encoding": "sum"})
    assert "compression_format 'lz4'" in damage.refused(message={"compression_format": "lz4"})
    assert "have no base_version" in damage.refused(without=["base_version"])
    assert "have no version" in damage.refused(message={"version": {"a": [1]}})
    assert "into itself" in damage.refused(message={"version": "1"})
    file = "model-00000-of-00001.safetensors"
    assert "it is in no file" in damage.refused(map={"w": file, "v": file})
    assert "does not put it into this file" in damage.refused(map={"v": file})
    assert "another.safetensors" in damage.refused(map={"w": "another.safetensors"})


def test_tensors_that_do_not_fit_are_named(damage: Damage) -> None:
    assert "'nothing': it changed, but is missing" in damage.refused(name="nothing")
    assert "float32 elements in the shape [2]" in damage.refused(stored=np.zeros(2, np.float32))
    assert "uint8 elements in the shape [2, 3]" in damage.refused(stored=np.zeros((2, 3), np.uint8))


def test_sparse_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    old = {"w": np.arange(1000, dtype=np.float32)}
    base, path = tmp_path / "base.safetensors", tmp_path / "delta.safetensors"
    save_file(old, base)

    def refused(tensors: Tensors, *, encoding: str = "raw", **more: str) -> str:
        metadata = {"format": "sparse_weight_patch", "version": "1", "model_version": "1", "encoding": encoding}
        save_file(tensors, path, metadata=metadata | more)
        with pytest.raises((FormatError, UnsupportedError)) as error:
            load_weights([base, path]).load(framework="numpy")
        return str(error.value)

    def pair(places: list[int], values: object = None, dtype: Any = np.int32) -> Tensors:
        own = np.zeros(len(places), np.float32) if values is None else values
        return {"w.idx": np.array(places, dtype), "w.val": np.asarray(own)}

    assert "the element 3, is there twice" in refused(pair([3, 3]))
    assert "the element 2, is there out of order" in refused(pair([3, 2]))
    assert "the element 1000, but the tensor has 1000" in refused(pair([3, 1000]))
    assert "but the tensor has 1000" in refused(pair([-1]))
    assert "but the tensor has 1000" in refused(pair([500, 600], dtype=np.uint32), encoding="gap_delta")
    assert "its places are float32" in refused(pair([3], dtype=np.float32))
    assert "uint16 or uint32, as gaps are" in refused(pair([3]), encoding="gap_delta")
    assert "each is a row, of one length" in refused(pair([3], np.zeros(2, np.float32)))
    assert "but float16 in [1000] changed" in refused(pair([3], np.zeros(1, np.float16)))
    assert "places of 0 tensors" in refused({"w.val": np.zeros(1, np.float32)})
    assert "nvcomp_cascaded" in refused(pair([3]), encoding="nvcomp_cascaded")
    assert "it changed, but is missing" in refused({"x.idx": np.zeros(1, np.int32), "x.val": np.zeros(1, np.float32)})
