"""Plans: the reads of a load before it runs, their order, destinations and memory."""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
import plan_picture
from max_weights._planning import LoadPlan
from max_weights.dtype import DType
from refusals import refuses
from test_loading import FILES

Make = Callable[..., Path]


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float16"}, {"packed": "keep"}], ids=str)
@pytest.mark.parametrize("name", FILES)
def test_a_plan_has_every_weight_and_the_bytes_that_the_load_counts(
    models: Path, name: str, options: dict[str, Any]
) -> None:
    weights = max_weights.load_weights(models / name)
    if isinstance(weights, max_weights.graph.weights.GGUFWeights) and not options.keys() & {"dtype", "packed"}:
        options = options | {"dtype": "float32"}
    plan = max_weights.plan(weights, **options)
    assert isinstance(plan, LoadPlan)
    reported: list[int] = []
    loaded = weights.load(progress=lambda _, of: reported.append(of), **options)
    assert list(plan.names) == list(loaded)
    assert {name for part in plan.ranges for name in part.names} == set(loaded)
    assert plan.bytes_read == reported[-1]
    own = sum(tensor.nbytes for tensor in loaded.values() if not tensor.is_mapped)
    assert own <= plan.bytes_in_memory <= own + 64 * (len(loaded) + 1)
    order = [(plan.files.index(part.file), part.offset) for part in plan.ranges]
    assert order == sorted(order)


@pytest.mark.parametrize("name", FILES)
def test_the_ranges_of_a_plan_lie_apart_and_in_their_files(models: Path, name: str) -> None:
    plan = max_weights.plan(max_weights.load_weights(models / name), copy=True, dtype="float32")
    for before, part in pairwise(plan.ranges):
        assert before.file != part.file or before.offset + before.bytes <= part.offset
    for part in plan.ranges:
        assert part.offset + part.bytes <= Path(part.file).stat().st_size
    for dtype, size in plan.arenas.items():
        there = sorted((part.at, part.memory) for part in plan.ranges if part.to == f"arena of {dtype.name}")
        assert all(at + memory <= after for (at, memory), (after, _) in pairwise(there))
        assert there[-1][0] + there[-1][1] <= size


def test_a_plan_says_what_is_done_and_where_it_goes(make_file: Make) -> None:
    path = make_file(
        {
            "a": np.ones(1000, np.float32),
            "b": np.ones(2000, np.float32),
            "c": np.ones(500, np.int64),
            "d": np.ones(100, np.float32),
        }
    )
    weights = max_weights.load_weights(path)
    start = max_weights.infos(weights)[0].offset

    def rows(**options: Any) -> list[tuple[Any, ...]]:
        plan = max_weights.plan(weights, **options)
        return [(part.offset - start, part.bytes, part.names, part.action, part.to, part.at) for part in plan.ranges]

    assert rows() == [(0, 16400, ("a", "b", "c", "d"), "fetch pages", "mapping", 0)]
    assert rows(copy=True, select=["a", "b", "c"]) == [
        (0, 4000, ("a",), "read", "arena of float32", 0),
        (4000, 8000, ("b",), "read", "arena of float32", 4032),
        (12000, 4000, ("c",), "read", "arena of int64", 0),
    ]
    converted = "read, convert float32 to float16"
    assert rows(dtype="float16", rename={"d": "e"}, select=["c", "d"]) == [
        (12000, 4000, ("c",), "fetch pages", "mapping", 0),
        (16000, 400, ("e",), converted, "arena of float16", 0),
    ]
    out = np.zeros(1000, np.float32)
    assert rows(out={"a": out}, select="a") == [(0, 4000, ("a",), "read", "out", 0)]
    assert not out.any(), "a plan reads nothing"
    assert max_weights.plan(weights, "a", out={"a": out}).bytes_in_memory == 0
    assert max_weights.plan(weights, copy=True).arenas == {DType.float32: 4032 + 8000 + 400, DType.int64: 4000}
    assert max_weights.plan(weights, backend="direct", threads=3).how.startswith("direct, 3 threads")
    assert max_weights.plan(weights).how.startswith("mmap")


def test_rows_that_change_places_are_one_range(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    plan = max_weights.plan(weights, "model.layers.0.self_attn", rename="hf", dtype="float32")
    assert [part.names for part in plan.ranges] == [
        (f"model.layers.0.self_attn.{name}_proj.weight",) for name in ("k", "o", "q", "v")
    ]


def test_what_is_compressed_stands_in_the_plan(models: Path, tmp_path: Path) -> None:
    import zipfile

    source = models / "derived" / "layer0.bf16.pt"
    with zipfile.ZipFile(source) as stored, zipfile.ZipFile(tmp_path / "d.pt", "w") as deflated:
        for name in stored.namelist():
            deflated.writestr(name, stored.read(name), zipfile.ZIP_DEFLATED, 1)
    plan = max_weights.plan(max_weights.load_weights(tmp_path / "d.pt"), dtype="float32")
    size = sum(info.bytes for info in max_weights.infos(max_weights.load_weights(source)))
    assert {part.action for part in plan.ranges} == {"read, inflate, convert bfloat16 to float32"}
    assert {part.to for part in plan.ranges} == {"arena of float32"}
    assert plan.bytes_read < size
    assert plan.bytes_in_memory == 2 * size


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"framework": "tf"}, ValueError),
        ({"select": "poolr"}, KeyError),
        ({"out": {"nothing": 1}}, KeyError),
        ({"rename": lambda _: "x"}, ValueError),
        ({"backend": "fast"}, ValueError),
        ({"copy": False, "drop_cache": True}, ValueError),
        ({"copy": True, "max_memory": 1000}, ValueError),
        ({"nothing": 1}, TypeError),
    ],
)
def test_a_bad_option_is_refused_as_by_load(models: Path, options: Any, error: Any) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with refuses(error):
        max_weights.plan(weights, **options)
    with refuses(error):
        weights.load(**options)


def test_a_plan_prints_as_a_table_and_does_not_change(models: Path, make_file: Make) -> None:
    weights = max_weights.load_weights(models / "derived" / "sharded")
    plan = max_weights.plan(weights, copy=True)
    lines = str(plan).splitlines()
    assert lines[0] == "104 weights, 86.6 MiB of 4 files in 5 ranges, 86.6 MiB of memory"
    assert lines[1] == plan.how
    assert [line for line in lines if line in plan.files] == list(plan.files)
    assert lines[3].split() == ["offset", "bytes", "what", "is", "done", "where", "to", "weights"]
    assert lines[4].split()[:3] == ["144", "46,881,792", "read"]
    assert repr(plan) == str(plan)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.how = ""  # type: ignore[misc]
    many = str(max_weights.plan(weights, "*.bias", dtype="bfloat16"))
    assert "and 26 more ranges: see .ranges" in many
    assert str(max_weights.plan(max_weights.load_weights(make_file({})))).startswith(
        "0 weights, 0 bytes of 0 files in 0 ranges"
    )
    strange = make_file({"a\x1b[31m": np.ones(3, np.float32)})
    assert "\x1b" not in str(max_weights.plan(max_weights.load_weights(strange)))


def test_the_picture_in_the_documentation_is_that_of_the_plan(models: Path) -> None:
    assert plan_picture.PICTURE.read_text() == plan_picture.picture(plan_picture.plan_of(models))


def test_a_copy_that_there_is_not_is_refused_by_plans_and_loads(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    for ask in (max_weights.plan, max_weights.WeightsNode.load):
        with refuses(ValueError, "argument.choice"):
            ask(weights, "pooler", copy="heap")  # type: ignore[arg-type]
