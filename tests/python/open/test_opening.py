"""Opening: mistakes in paths and arguments, diagnostics, and the arguments of MAX's constructors."""

import fcntl
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import max_weights
from max_weights import MissingFileError, load_weights
from max_weights._quantization import QuantizationEncoding
from max_weights._weights import WeightInfo
from max_weights.errors import ArgumentError
from max_weights.graph.weights import GGUFWeights, PytorchWeights, SafetensorWeights
from refusals import refuses

Make = Callable[..., Path]


@pytest.mark.parametrize("wrong", [3, None, b"a.safetensors", [3], {"a": 1}.values(), 2.5])
def test_what_is_no_path_is_a_clear_error(wrong: object) -> None:
    with refuses(ArgumentError, "argument.type"):
        load_weights(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [SafetensorWeights, GGUFWeights, PytorchWeights])
@pytest.mark.parametrize("wrong", [3, None, [3]])
def test_the_classes_say_what_is_no_path_too(kind: Callable[[object], object], wrong: object) -> None:
    with refuses(TypeError):
        kind(wrong)


def test_a_mistyped_file_name_gives_near_names_of_its_folder(make_file: Make, tmp_path: Path) -> None:
    make_file({"a": np.zeros(1, np.float32)})
    with refuses(MissingFileError, "file.missing"):
        load_weights(tmp_path / "modle.safetensors")
    with pytest.raises(MissingFileError, match=rf"did you mean {tmp_path}\?"):
        load_weights(str(tmp_path) + "x/model.safetensors")
    with pytest.raises(MissingFileError) as caught:
        load_weights(tmp_path / "utterly-different")
    assert "did you mean" not in str(caught.value)
    assert caught.value.filename == str(tmp_path / "utterly-different")


def test_a_mistyped_path_advises_no_download(make_file: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    make_file({"a": np.zeros(1, np.float32)}, name="models/model.safetensors")
    for path in ("models/x.safetensors", "nowhere/x.gguf", "models/modl"):
        with pytest.raises(MissingFileError) as caught:
            load_weights(path)
        assert "download" not in str(caught.value)
    with refuses(MissingFileError, "file.missing"):
        load_weights("org/model")


def test_a_snapshot_of_the_cache_need_not_be_named_by_forty_digits(
    make_file: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model = tmp_path / "hub" / "models--org--tiny"
    for folder in ("refs", "snapshots/local-copy"):
        (model / folder).mkdir(parents=True)
    shutil.copy(make_file({"a": np.zeros(1, np.float32)}), model / "snapshots" / "local-copy")
    (model / "refs" / "main").write_text("local-copy")
    assert len(load_weights("org/tiny")) == len(load_weights("org/tiny@local-copy")) == 1
    (model / "refs" / "main").write_text("../../..")
    with refuses(MissingFileError, "file.missing"):
        load_weights("org/tiny")


def test_a_lone_shard_of_any_suffix_is_told(tmp_path: Path) -> None:
    import torch

    for suffix in ("bin", "pt", "pth"):
        path = tmp_path / f"model-00001-of-00002.{suffix}"
        torch.save({"a": torch.zeros(1)}, path)
        assert any(
            "shard 1 of 2, opened alone" in warning for warning in max_weights.infos(load_weights(path)).warnings
        )


def test_what_strict_false_accepts_is_said_in_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from conftest import safetensors_bytes

    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"": ("F32", [1], bytes(4)), "b": ("F32", [1], bytes(4))}))
    with caplog.at_level(logging.WARNING, "max_weights"):
        weights = load_weights(path, strict=False)
        weights.b.data()
    assert max_weights.infos(weights).warnings
    assert [record.getMessage() for record in caplog.records] == [max_weights.infos(weights).warnings[0]]


def test_renamed_that_changes_nothing_says_so(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("nobody.knows.this", np.zeros(4, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    weights = load_weights(tmp_path / "m.gguf")
    with pytest.warns(UserWarning, match="knows no other name for any of the 1 weights") as caught:
        max_weights.renamed(weights, "hf")
    assert caught[0].filename == __file__


def test_metadata_print_as_python_values(models: Path) -> None:
    metadata = load_weights(models / "smollm2-135m.Q4_1.gguf").metadata
    text = repr(metadata)
    assert "'general.architecture': 'llama'" in text
    assert "'llama.block_count': 30" in text
    assert "'tokenizer.ggml.tokens': ['" in text
    assert "49152 values]" in text
    assert not any(word in text for word in ("String(", "U32(", "F32(", "Array("))
    assert len(text) < 4000


def test_a_record_of_a_listing_has_the_fields_of_a_named_tuple(make_file: Make) -> None:
    (info,) = max_weights.infos(load_weights(make_file({"a": np.zeros((2, 3), np.float32)})))
    assert WeightInfo._fields == info._fields == ("name", "dtype", "shape", "bytes", "file", "offset", "aligned")
    assert info._asdict() == dict(zip(info._fields, info, strict=True))
    assert info._asdict()["shape"] == (2, 3)


def test_allocate_keeps_the_stored_encoding_of_a_mixed_file_and_warns(models: Path) -> None:
    weights = load_weights(models / "smollm2-135m.Q4_1.gguf")
    name = next(info.name for info in max_weights.infos(weights) if info.encoding is QuantizationEncoding.Q4_1)
    with pytest.warns(UserWarning, match=r"Q4_K was asked for; weights stored as Q4_1 stay that way") as caught:
        weight = weights[name].allocate(quantization_encoding=QuantizationEncoding.Q4_K)
    assert caught[0].filename == __file__
    assert weight.quantization_encoding is QuantizationEncoding.Q4_1
    with refuses(ValueError):
        weights[name].allocate(quantization_encoding=QuantizationEncoding.GPTQ)
    plain = next(info.name for info in max_weights.infos(weights) if info.encoding is None)
    with refuses(ValueError):
        weights[plain].allocate(quantization_encoding=QuantizationEncoding.Q4_K)


def test_shapes_in_messages_are_written_as_shapes(make_file: Make) -> None:
    weights = load_weights(make_file({"w": np.zeros((384, 384), np.float32)}))
    with refuses(ValueError):
        weights.w.allocate(shape=(384, 2))


def test_a_prefix_is_the_name_that_the_tree_begins_at(make_file: Make, tmp_path: Path) -> None:
    make_file({"model.layers.0.weight": np.ones(2, np.float32), "head": np.zeros(1, np.float32)})
    weights = SafetensorWeights(tmp_path / "model.safetensors", prefix="model.layers")
    assert weights.name == "model.layers"
    assert [name for name, _ in weights.items()] == ["model.layers.0.weight"]
    assert weights[0].weight.name == "model.layers.0.weight"
    np.testing.assert_array_equal(weights[0].weight.numpy(), [1, 1])


def test_gguf_weights_take_a_reader_of_gguf_py(models: Path) -> None:
    import gguf

    path = models / "smollm2-135m.Q4_1.gguf"
    weights = GGUFWeights(gguf.GGUFReader(path))
    assert [info.name for info in max_weights.infos(weights)] == [
        info.name for info in max_weights.infos(load_weights(path))
    ]
    assert max_weights.graph.weights.GGUFWeights(gguf.GGUFReader(path), prefix="blk")[0].attn_q.weight.exists()


def test_a_file_that_another_program_has_under_a_lease_is_waited_for(make_file: Make) -> None:
    path = make_file({"a": np.arange(3, dtype=np.float32)})
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the signal that asks the holder of the lease to release it
    holder = os.open(path, os.O_RDWR)
    try:
        try:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"this file system gives no leases: {error}")
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        gives_up = threading.Timer(0.1, fcntl.fcntl, (holder, fcntl.F_SETLEASE, fcntl.F_UNLCK))
        gives_up.start()
        assert load_weights(path).a.data().to_numpy().tolist() == [0, 1, 2]
        gives_up.join()
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)
