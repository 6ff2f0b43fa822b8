"""A name, pattern or option without effect is an error with similar names, in Python and in the shell."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import max_weights
from command_line import run as command
from max_weights import DType, WeightNotFoundError, load_weights, save_gguf
from max_weights._resharding import reshard
from max_weights._selection import Pattern, fits, require_effect
from max_weights.sharding import Shard, Table
from max_weights.sharding._strategies import ShardingStrategy
from refusals import refuses

Make = Callable[..., Path]


@pytest.fixture
def model(make_file: Make) -> Path:
    return make_file(
        {
            "embed.weight": np.ones((8, 32), np.float32),
            "layers.0.attn.weight": np.ones((8, 32), np.float32),
            "layers.1.attn.weight": np.full((8, 32), 2, np.float32),
            "head.bias": np.ones(8, np.float32),
        }
    )


def test_one_syntax_renames_everywhere(model: Path, tmp_path: Path) -> None:
    table = {"layers.*.attn.*": "blk.*.self.*", "embed.": "e.", "head.bias": "b"}
    expected = ["b", "blk.0.self.weight", "blk.1.self.weight", "e.weight"]
    weights = load_weights(model)
    assert sorted(weights.load(rename=table)) == expected
    weights.save(tmp_path / "python.safetensors", rename=table)
    options = [text for pair in table.items() for text in ("--rename", "=".join(pair))]
    done = command("convert", str(model), str(tmp_path / "shell.safetensors"), *options)
    assert done.status == 0, done.stderr
    for name in ("python", "shell"):
        path = tmp_path / f"{name}.safetensors"
        assert sorted(info.name for info in max_weights.infos(load_weights(path))) == expected
        same = command("diff", str(model), str(path), *options, "--no-metadata")
        assert same.status == 0, same.stdout


@pytest.mark.parametrize("key", ["emb.*", "layer.", "head.biass"])
def test_a_key_of_rename_that_matches_nothing_is_an_error_with_near_names(
    model: Path, tmp_path: Path, key: str
) -> None:
    table = {key: "x.*" if "*" in key else "x"}
    weights = load_weights(model)
    for call in (
        lambda: weights.load(rename=table),
        lambda: weights.save(tmp_path / "out.safetensors", rename=table),
        lambda: max_weights.lazy_state_dict(weights, rename=table),
    ):
        with refuses(WeightNotFoundError, "weight.not-found"):
            call()
    # Of all names, not only of those that are selected.
    assert list(weights.load("layers.0", rename={"head.": "x."})) == ["layers.0.attn.weight"]
    done = command("convert", str(model), str(tmp_path / "out.safetensors"), "--rename", f"{key}={table[key]}")
    assert done.status == 2
    assert "--rename" in done.stderr
    assert "did you mean" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_a_pattern_of_shard_that_matches_nothing_is_an_error_with_near_names(model: Path) -> None:
    rows = ShardingStrategy.rowwise(2)
    weights = load_weights(model)
    with refuses(WeightNotFoundError, "weight.not-found"):
        weights.load(shard=Shard(0, 2, {"embed": rows, "layer.*.weight": rows}))
    with refuses(WeightNotFoundError, "weight.not-found"):
        weights.load(shard=Shard(0, 2, {"visual": None} | Table("llama", 2, num_heads=4)))
    part = weights.load(shard=Shard(0, 2, {"embed": rows, "layers.*.weight": rows}))
    assert [part[name].shape[0] for name in ("embed.weight", "layers.1.attn.weight", "head.bias")] == [4, 4, 8]


def test_quantize_that_packs_nothing_is_an_error(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    arrays = {"a.w": np.ones((8, 32), np.float32)}
    for tensors in (arrays, load_weights(model)):
        with refuses(WeightNotFoundError, "weight.not-found"):
            save_gguf(tensors, out, quantize={"x.weight": "q8_0"})
    with refuses(ValueError):
        save_gguf(arrays, out, quantize="q4_0")
    done = command("convert", str(model), str(out), "--quantize", "q4_0", "--select", "head.*")
    assert done.status == 2
    assert "no tensor would be packed as Q4_0" in done.stderr
    assert not out.exists()


def test_a_filter_or_selection_of_the_shell_that_matches_nothing_is_an_error(model: Path, tmp_path: Path) -> None:
    for arguments in (
        ["ls", str(model), "--filter", "head.*", "--filter", "layer.*"],
        ["convert", str(model), str(tmp_path / "out.safetensors"), "--select", "head.*", "--select", "layer.*"],
    ):
        done = command(*arguments)
        assert done.status == 2
        assert "layer.*: no name matches; did you mean 'layers'?" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_floats_do_not_become_integers_on_their_way_to_a_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    for dtype in ("int8", {"embed": DType.int32}):
        with refuses(ValueError, "argument.tensor"):
            load_weights(model).save(out, dtype=dtype)
    done = command("convert", str(model), str(out), "--dtype", "int8")
    assert done.status == 2
    assert "floats would lose their fractions" in done.stderr
    assert not out.exists()


def test_some_shards_of_a_set_do_not_become_a_model_without_a_word(make_file: Make, tmp_path: Path) -> None:
    one = make_file({"a": np.ones(4, np.float32)}, "model-00001-of-00004.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    for arguments in (["merge", str(one)], ["convert", str(one)], ["split", str(one)]):
        out = tmp_path / ("parts" if arguments[0] == "split" else f"{arguments[0]}.safetensors")
        done = command(*arguments, str(out))
        assert done.status == 2
        assert "this is shard 1 of 4, opened alone, and would become a model without the others" in done.stderr
        assert not out.exists()
        done = command(*arguments, str(out), "--no-strict")
        assert done.status == 0
        assert "warning: " in done.stderr
    with refuses(ValueError, "argument.path"):
        reshard(one, tmp_path / "ranks", 2, strategies="llama")
    assert not (tmp_path / "ranks").exists()


def test_a_file_of_a_set_is_not_written_over_with_the_set(make_file: Make, tmp_path: Path) -> None:
    shards = [
        make_file({name: np.ones(4, np.float32)}, f"model-0000{at}-of-00002.safetensors")
        for at, name in ((1, "a"), (2, "b"))
    ]
    before = [shard.read_bytes() for shard in shards]
    weights = load_weights(tmp_path)
    for call in (
        lambda: weights.save(shards[0]),
        lambda: weights.save(shards[1], select="a"),
        lambda: max_weights.save_file(weights, shards[0]),
    ):
        with refuses(ValueError):
            call()
    for arguments in (["merge"], ["convert", "--select", "a"]):
        done = command(*arguments, str(tmp_path), str(shards[0]))
        assert done.status == 2
        assert "it is one of several files of the checkpoint" in done.stderr
    assert [shard.read_bytes() for shard in shards] == before


def test_a_key_of_metadata_that_is_not_there_has_near_ones(tmp_path: Path) -> None:
    save_gguf({"a": np.ones(4, np.float32)}, tmp_path / "a.gguf", {"llama.block_count": 2})
    metadata = load_weights(tmp_path / "a.gguf").metadata
    with refuses(KeyError):
        metadata["llama.block_cont"]
    with refuses(KeyError):
        metadata["nothing like it"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ftp://host/model.safetensors", "ftp:// is not opened by this build: download it"),
        ("file:///models/x.safetensors", "give the path, /models/x.safetensors"),
        ("~/x.safetensors", f"give {Path.home()}/x.safetensors"),
    ],
)
def test_what_is_no_path_says_what_to_give_instead(path: str, message: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        load_weights(path)
    assert message in str(raised.value)
    assert "did you mean" not in str(raised.value)
    done = command("ls", path)
    assert done.status == 3
    assert message in done.stderr


def test_a_short_name_has_no_near_ones_that_are_others() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        load_weights("/nope")
    assert "did you mean" not in str(raised.value)


def test_a_table_of_many_names_is_looked_up_and_not_compared() -> None:
    names = [f"layers.{i}.weight" for i in range(1000)]
    compared: list[object] = []

    def counting(pattern: Pattern) -> Callable[[str], bool]:
        compared.append(pattern)
        return fits(pattern)

    require_effect("rename", names, names, fits=counting)
    assert not compared
    require_effect("rename", [*names, "layers.*"], names, fits=counting)
    assert compared == ["layers.*"]
    with refuses(WeightNotFoundError, "weight.not-found"):
        require_effect("rename", [*names, "layers.1000.weight"], names, fits=counting)
    # A name with a bracket is also a pattern, which matches another name.
    with pytest.raises(WeightNotFoundError):
        require_effect("select", ["a[0]"], ["a[0]"])
