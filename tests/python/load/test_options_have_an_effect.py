"""Nothing silent: an option of a load has its documented effect, or is an error with the reason."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights._weights import WeightsNode
from max_weights.errors import ArgumentError, FormatError, WeightNotFoundError
from max_weights.sharding import Shard, ShardingStrategy, Table
from max_weights.types import ReadOptions
from refusals import refuses

WHOLE = np.arange(400 * 300, dtype="f4").reshape(400, 300)
# Splits two axes at once, which the engine does not support.
QUARTER = ShardingStrategy(2, lambda weight, i, _: weight[i * 200 : i * 200 + 200, 0:150])


@pytest.fixture
def weights(make_file: Callable[..., Path]) -> WeightsNode:
    return max_weights.load_weights(make_file({"model.a.weight": WHOLE, "model.b.weight": np.ones(8, "f4")}))


ENTRY_POINTS: dict[str, Callable[..., Any]] = {
    "load": lambda w, **options: w.load(**options),
    "plan": lambda w, **options: max_weights.plan(w, **options),
    "stream": lambda w, **options: dict(w.stream(**options)),
    "lazy_state_dict": lambda w, **options: max_weights.lazy_state_dict(w, **options),
    "save": lambda w, **options: w.save(f"{max_weights.infos(w)[0].file}.safetensors", **options),
    "numpy.load_file": lambda w, **options: max_weights.numpy.load_file(max_weights.infos(w)[0].file, **options),
}
HALF = ShardingStrategy.rowwise(2)
WITHOUT_EFFECT: dict[str, tuple[dict[str, Any], str]] = {
    "dtype, a name": ({"dtype": {"model.a.wieght": "float16"}}, "dtype names 'model.a.wieght'.*'model.a.weight'"),
    "dtype, a pattern": ({"dtype": {"*.bias": "float16"}}, r"dtype names '\*\.bias'"),
    "dtype, one of two": ({"dtype": {"model": "float16", "modle.a": "float16"}}, "dtype names 'modle.a'"),
    "dtype, empty": ({"dtype": {}}, "dtype is empty"),
    "rename, a name": ({"rename": {"model.a.wieght": "x"}}, "model.a.wieght"),
    "rename, a prefix": ({"rename": {"encoder.": ""}}, r"encoder\."),
    "rename, a prefix without its dot": ({"rename": {"model": ""}}, "model"),
    "rename, empty": ({"rename": {}}, "rename"),
    "shard, a pattern": ({"shard": Shard(0, 2, {"*.wieght": HALF})}, r"shard .*\*\.wieght"),
    "shard, empty": ({"shard": Shard(0, 2, {})}, "shard is empty"),
    "select": ({"select": "modle"}, "select asks for 'modle'"),
}


# Lazy tensors have no shard: they are indexed.
@pytest.mark.parametrize(
    ("entry_point", "case"),
    [
        (entry_point, case)
        for entry_point in ENTRY_POINTS
        for case, (options, _) in WITHOUT_EFFECT.items()
        if entry_point != "lazy_state_dict" or "shard" not in options
    ],
)
def test_an_option_without_effect_is_an_error(weights: WeightsNode, entry_point: str, case: str) -> None:
    options, message = WITHOUT_EFFECT[case]
    with pytest.raises((ArgumentError, WeightNotFoundError), match=message):
        ENTRY_POINTS[entry_point](weights, **options)


def test_a_table_for_the_whole_checkpoint_is_good_for_each_part_of_it(weights: WeightsNode) -> None:
    dtypes, names = {"model.a": "float16", "model.b": "float64"}, {"model.a.": "x.", "model.b.": "y."}
    for layer in weights.model.children():
        shard = Shard(0, 2, {"model.a": HALF, "model.b": None})
        (loaded,) = layer.load(dtype=dtypes, rename=names, shard=shard).items()
        assert loaded[0] in ("x.weight", "y.weight")
        assert loaded[1].dtype.name in ("float16", "float64")
    assert list(weights.load("model.a", rename=names)) == ["x.weight"]


def test_a_table_for_many_models_need_not_fit_all_of_one(make_file: Callable[..., Path]) -> None:
    weights = max_weights.load_weights(make_file({"model.layers.0.mlp.up_proj.weight": WHOLE}))
    (loaded,) = weights.load(shard=Shard(0, 2, Table("llama", 2, num_heads=4))).values()
    assert loaded.shape == (200, 300)


@pytest.mark.parametrize("backend", ["direct", "read", "mmap", "auto"])
def test_views_are_views_whatever_the_environment_says(
    weights: WeightsNode, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("MAX_WEIGHTS_BACKEND", backend)
    assert all(tensor.is_mapped for tensor in weights.load(copy=False).values())
    assert all(part.to == "mapping" for part in max_weights.plan(weights, copy=False).ranges)
    opened = max_weights.load_weights(max_weights.infos(weights)[0].file, backend="read")
    assert all(tensor.is_mapped for tensor in opened.load(copy=False).values())


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float16"},
        {"shard": Shard(0, 2, {"model.a": ShardingStrategy.columnwise(2)})},
        {"shard": Shard(0, 2, {"model.a": QUARTER})},
        {"backend": "direct"},
        {"drop_cache": True},
        {"digests": {}},
    ],
)
@pytest.mark.parametrize("entry_point", [WeightsNode.load, max_weights.plan])
def test_what_cannot_be_a_view_says_why(weights: WeightsNode, entry_point: Any, options: Any) -> None:
    with refuses(ValueError):
        entry_point(weights, copy=False, **options)


def test_what_is_not_aligned_is_no_view(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    path.write_bytes((len(header)).to_bytes(8, "little") + header + bytes(8))
    weights = max_weights.load_weights(path)
    assert (8 + len(header)) % 4
    assert not weights.load()["a"].is_mapped
    with refuses(ValueError):
        weights.load(copy=False)


def test_parts_of_several_axes_count_in_the_memory_of_a_load(weights: WeightsNode) -> None:
    shard = Shard(1, 2, {"model.a": QUARTER})
    part = 200 * 150 * 4
    with refuses(ValueError):
        weights.load(shard=shard, max_memory=1000)
    with refuses(ValueError):
        max_weights.plan(weights, shard=shard, max_memory=1000)
    loaded = weights.load(shard=shard, max_memory=3 * part)
    assert np.array_equal(loaded["model.a.weight"].to_numpy(), WHOLE[200:400, 0:150])


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_parts_of_several_axes_are_in_the_plan_and_in_the_progress(weights: WeightsNode, dtype: str | None) -> None:
    shard = Shard(0, 2, {"model.a": QUARTER})
    plan = max_weights.plan(weights, shard=shard, dtype=dtype)
    (of_part,) = [part for part in plan.ranges if "model.a.weight" in part.names]
    read = 199 * 1200 + 600  # the gaps between the rows are small, so reads coalesce
    assert (of_part.bytes, of_part.memory) == (read, 120_000 if dtype is None else 60_000)
    assert plan.bytes_read == read + 32
    reported: list[tuple[int, int]] = []
    loaded = weights.load(shard=shard, dtype=dtype, progress=lambda done, of: reported.append((done, of)))
    assert np.array_equal(loaded["model.a.weight"].to_numpy(), WHOLE[:200, :150].astype(dtype or "f4"))
    assert reported[-1] == (plan.bytes_read, plan.bytes_read)
    assert reported == sorted(reported)

    def stop(done: int, of: int) -> None:
        if done == of:
            raise KeyError("enough")

    with refuses(KeyError):
        weights.load(shard=shard, progress=stop)


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize("shard", [None, HALF, ShardingStrategy.columnwise(2), QUARTER])
def test_what_is_verified_is_what_is_returned(
    weights: WeightsNode, shard: ShardingStrategy | None, dtype: str | None, out: bool
) -> None:
    options: dict[str, Any] = {"dtype": dtype}
    if shard is not None:
        options["shard"] = Shard(1, 2, {"model.a": shard})
    requested = {name: tensor.to_numpy().copy() for name, tensor in weights.load(**options).items()}
    digests = max_weights.fingerprint(weights, digests=True).digests
    outs = {name: np.zeros_like(array) for name, array in requested.items()} if out else None
    loaded = weights.load(digests=digests, out=outs, **options)
    for name, array in requested.items():
        assert np.array_equal(loaded[name].to_numpy(), array)
        assert not loaded[name].is_mapped  # so that no later change of the file reaches it
        assert outs is None or np.array_equal(outs[name], array)
    outs = {name: np.zeros_like(array) for name, array in requested.items()} if out else None
    with refuses(FormatError, "tensor.digest"):
        weights.load(digests={**digests, "model.b.weight": digests["model.a.weight"]}, out=outs, **options)
    assert outs is None or not any(array.any() for array in outs.values())


def test_a_verified_load_reads_each_byte_once(tmp_path: Path) -> None:
    max_weights.save_file({"a": np.ones(4 << 20, "f4")}, tmp_path / "model.safetensors")
    program = """
import max_weights
weights = max_weights.load_weights("model.safetensors", backend="read")
digests = max_weights.fingerprint(weights, digests=True).digests
read = lambda: int(open("/proc/self/io").read().split("rchar: ")[1].split()[0])
before = read()
weights.load(digests=digests, dtype="float16")
print(read() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert 16 << 20 <= int(done.stdout) < 20 << 20


def test_a_verified_gguf_is_decoded_from_what_was_compared(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    verified = weights.load(
        "blk.0", digests=max_weights.fingerprint(weights, "blk.0", digests=True).digests, dtype="bfloat16"
    )
    for name, tensor in weights.load("blk.0", dtype="bfloat16").items():
        assert np.array_equal(verified[name].view("uint8").to_numpy(), tensor.view("uint8").to_numpy()), name


def test_how_files_are_read_is_one_object_or_keywords(weights: WeightsNode) -> None:
    how = ReadOptions(backend="read", max_memory="1MB", threads=1)
    assert how.max_memory == 1_000_000
    for read in (
        lambda **options: weights.load(**options)["model.a.weight"],
        lambda **options: dict(weights.stream(**options))["model.a.weight"],
    ):
        assert not read(options=how).is_mapped
        with refuses(ValueError):
            read(options=how, max_memory=1000)  # a keyword counts before the object
    assert "read" in max_weights.plan(weights, options=how).how
    whole = max_weights.numpy.load_file(max_weights.infos(weights)[0].file, options=how)["model.a.weight"]
    assert (whole == WHOLE).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"thread": 2}, TypeError),
        ({"options": {"threads": 2}}, TypeError),
        ({"max_memory": 0}, ArgumentError),
        ({"max_memory": "a lot"}, ArgumentError),
    ],
)
def test_what_is_no_way_of_reading_is_refused(
    weights: WeightsNode, options: dict[str, Any], error: type[Exception]
) -> None:
    with refuses(error):
        weights.load(**options)
