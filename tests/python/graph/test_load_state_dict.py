"""`load_state_dict` and `Module.load`: accepted and refused values, and atomicity."""

from __future__ import annotations

import collections
import logging
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import max_weights
from max_weights import Buffer, DeviceError, WeightData, load_weights
from max_weights.driver import virtual_devices
from max_weights.dtype import DType
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.nn import LayerList, LayerV2, Module
from module_trees import MLP, Holder, Linear, state, values, weight
from refusals import refuses

Q4_0 = QuantizationEncoding.Q4_0
Q8_0 = QuantizationEncoding.Q8_0


def array(shape: Any = (2,), dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def off(shape: Any = (2,), by: int = 1) -> Any:
    """An array that lies `by` bytes past a multiple of 64."""
    size = int(np.prod(shape)) * 4
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64 + by
    return raw[start : start + size].view(np.float32).reshape(shape)


def test_every_kind_of_value_is_kept_as_it_is() -> None:
    kinds = {
        "numpy": array(),
        "buffer": Buffer.from_numpy(array()),
        "torch": torch.ones(2),
        "weight_data": WeightData.from_numpy(array(), "any"),
        "read_only": np.frombuffer(bytes(8), np.float32),
    }
    model = Holder(**{name: weight(name) for name in kinds})
    model.load_state_dict(kinds)
    for name, value in model.state_dict().items():
        assert value is (kinds[name] if name != "weight_data" else kinds[name].data)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "kind",
    [lambda a: a, Buffer.from_numpy, lambda a: WeightData.from_numpy(a, ""), torch.from_numpy],
    ids=["ndarray", "Buffer", "WeightData", "torch"],
)
@pytest.mark.parametrize("good", [True, False])
def test_the_short_way_and_the_long_way_agree(kind: Callable[[Any], Any], good: bool) -> None:
    model = MLP()
    given = {name: kind(value) for name, value in values(model).items()}
    if not good:
        given["gate.weight"] = kind(array((10, 5), np.float64))
        with refuses(ValueError, "argument.mismatch"):
            model.load_state_dict(given)
        return
    model.load_state_dict(given)
    assert np.array_equal(np.asarray(model.state_dict()["down.weight"]), values(model)["down.weight"])


def test_one_error_lists_missing_with_near_names_unexpected_and_all_problems() -> None:
    model = MLP()
    with refuses(ValueError, "argument.mismatch") as caught:
        model.load_state_dict({"up.wieght": array(), "gate.weight": array((5, 11), np.float64), "zzz": array()})
    assert str(caught.value).splitlines() == [
        "the state dict does not fit MLP, and nothing in it was changed: 2 missing, 2 unexpected, 1 that do not fit",
        "missing:",
        "  'up.weight' (did you mean 'up.wieght'?)",
        "  'down.weight'",
        "unexpected:",
        "  'up.wieght'",
        "  'zzz'",
        "does not fit:",
        "  'gate.weight': the shape is [5, 11], declared is [5, 10]; the dtype is float64, declared is float32",
        "(strict=False takes what fits, and reports the rest)",
    ]


def test_not_strict_reports_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    model = MLP()
    given = values(model)
    del given["up.weight"]
    given["more"] = array()
    with caplog.at_level(logging.WARNING, "max_weights.nn"):
        report = model.load_state_dict(given, strict=False)
    assert (report.missing, report.unexpected) == (("up.weight",), ("more",))
    assert "gate.weight" in report.loaded
    assert "up.weight" in caplog.text
    assert "more" in caplog.text
    assert model.state_dict()["gate.weight"] is given["gate.weight"]
    with refuses(ValueError, "argument.mismatch"):  # what is there has to fit all the same
        model.load_state_dict({"up.weight": array((1, 1))}, strict=False)
    assert model.load_state_dict(values(model)) is None  # type: ignore[func-returns-value]


def test_symbolic_dimensions_match_anything() -> None:
    model = Holder(w=weight("w", ["n", 3]))
    model.load_state_dict({"w": array((7, 3))})
    for shape in ((7, 4), (7, 3, 1), (3,)):
        with refuses(ValueError, "argument.mismatch"):
            model.load_state_dict({"w": array(shape)})


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1.0, 2.0],
        np.array(["a", "b"]),
        array(dtype=">f4"),
        array(4)[::2],
        torch.ones(4)[::2],
        Buffer.from_numpy(array(4))[::2],
        off(),
        np.float32(3),
        np.ones(2, ml_dtypes.bfloat16),
    ],
    ids=str,
)
def test_refused_values(value: Any) -> None:
    model = Holder(w=weight("w"))
    before = state(model)
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": value})
    assert state(model) == before


def test_scalars_and_empty_weights() -> None:
    model = Holder(a=weight("a", []), b=weight("b", [0, 3]))
    model.load_state_dict({"a": np.float32(3), "b": array((0, 3))})
    assert model.state_dict()["a"] == 3


def test_alignment_of_the_call_of_the_weight_and_of_the_dtype() -> None:
    model = Holder(w=weight("w", align=64))
    for by, weight_alignment, fits in (
        (0, None, True),
        (4, None, False),
        (4, 4, True),
        (1, 1, True),
        (4, 8, False),
        (0, 64, True),
    ):
        model.w.align = 64
        given = {"w": off(by=by)}
        if fits:
            model.load_state_dict(given, weight_alignment=weight_alignment)
            assert model.w.align == (weight_alignment or 64)
        else:
            with refuses(ValueError, "argument.mismatch"):
                model.load_state_dict(given, weight_alignment=weight_alignment)
            assert model.w.align == 64
    for bad in (0, 3, -4, 1.5, True):
        with refuses(ValueError):
            model.load_state_dict({"w": array()}, weight_alignment=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("align", [4, 64, 4096])
@pytest.mark.parametrize("kind", [lambda a: a, lambda a: Buffer.from_numpy(a), torch.from_numpy])
def test_copy_if_misaligned_copies_only_then(align: int, kind: Callable[[Any], Any]) -> None:
    model = Holder(w=weight("w", (3, 5), align=align))
    crooked = off((3, 5), by=2)
    crooked[:] = np.arange(15).reshape(3, 5)
    if kind is not torch.from_numpy:  # torch takes no such memory
        model.load_state_dict({"w": kind(crooked)}, copy_if_misaligned=True)
        found = model.state_dict()["w"]
        assert found._data_ptr() % align == 0
        assert np.array_equal(np.asarray(found), crooked)
    straight = kind(off((3, 5), by=0))
    if align <= 64:
        model.load_state_dict({"w": straight}, copy_if_misaligned=True)
        assert model.state_dict()["w"] is straight


def test_a_scalar_and_one_element_interchange_for_weight_data(make_file: Callable[..., Path]) -> None:
    one, none = array([1]), array([])
    model = Holder(scale=weight("scale", []), flat=weight("flat", [1]))
    model.load_state_dict({"scale": WeightData.from_numpy(one, ""), "flat": WeightData.from_numpy(none, "")})
    assert (model.scale.shape, model.flat.shape) == ([], [1])
    model.load(make_file({"scale": one, "flat": none}))
    for given in (
        {"scale": one, "flat": one},  # the array itself reports that it is no scalar
        {"scale": none, "flat": none},
        {"scale": WeightData.from_numpy(array([1, 1]), ""), "flat": one},
        {"scale": WeightData.from_numpy(np.ones(1), ""), "flat": one},
    ):
        with refuses(ValueError, "argument.mismatch"):
            model.load_state_dict(given)
    with refuses(ValueError, "argument.mismatch"):
        Holder(w=weight("w", ["n"])).load_state_dict({"w": WeightData.from_numpy(none, "")})


def test_messages_list_shapes_as_people_write_them() -> None:
    model = Holder(w=weight("w", (8, 8)))
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": array((8, 9))})


def test_data_of_a_virtual_conversion_is_taken_by_dtype_and_shape() -> None:
    model = Holder(w=weight("w", dtype="bfloat16"))
    with virtual_devices():
        data = WeightData.from_numpy(array(), "w").astype("bfloat16")
        model.load_state_dict({"w": data})
    assert repr(model.state_dict()["w"]) == "NoData()"
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict(model.state_dict())  # alone it has no dtype


class Interrupted(Mapping[str, Any]):
    """A state dict that is interrupted at one of its values."""

    def __init__(self, given: dict[str, Any], at: int) -> None:
        self._given, self._left = given, at

    def __getitem__(self, name: str) -> Any:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def packed(shape: Any, encoding: QuantizationEncoding | None, **options: Any) -> WeightData:
    return WeightData(np.zeros(shape, np.uint8), "w", DType.uint8, shape, encoding, **options)


def loaded_model() -> Any:
    return Holder(
        layers=LayerList(Linear(2, 2) for _ in range(3)),
        q=weight("q", [4, 64], quantization_encoding=Q4_0),
    )


def given_values() -> dict[str, Any]:
    return {**{f"layers.{i}.weight": array((2, 2)) for i in range(3)}, "q": packed((4, 36), Q4_0)}


@pytest.mark.parametrize("before", [False, True], ids=["fresh", "loaded before"])
def test_an_interrupt_at_each_value_leaves_the_model_unchanged(before: bool) -> None:
    model = loaded_model()
    if before:
        model.load_state_dict(given_values())
    unchanged = state(model)
    for at in range(4):
        with pytest.raises(KeyboardInterrupt):
            model.load_state_dict(Interrupted(given_values(), at))
        assert state(model) == unchanged
    model.load_state_dict(Interrupted(given_values(), 4))


@pytest.mark.parametrize("alignment", [None, 1])
@pytest.mark.parametrize("before", [False, True], ids=["fresh", "loaded before"])
def test_an_interrupt_at_each_line_leaves_all_or_nothing(before: bool, alignment: int | None) -> None:
    """As by Ctrl-C: between any two lines of the whole call, including the handover."""
    model = loaded_model()
    if before:
        model.load_state_dict(given_values())
    interrupted = 0
    for at in range(10_000):
        given, unchanged = given_values(), state(model)
        left = at

        def trace(frame: types.FrameType, event: str, _argument: Any) -> Any:
            nonlocal left
            if "max_weights/nn/" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        tracing = sys.gettrace()
        sys.settrace(trace)
        try:
            model.load_state_dict(given, weight_alignment=alignment)
        except KeyboardInterrupt:
            interrupted += 1
            after = state(model)
            whole = [w.value for w in model.raw_state_dict().values()]
            if after != unchanged:  # only once everything was handed over
                assert all(any(value is g for g in [*given.values(), given["q"].data]) for value in whole)
                assert all(w.name == name for name, w in model.raw_state_dict().items())
        else:
            break
        finally:
            sys.settrace(tracing)
    assert interrupted > 50
    assert model.state_dict()["layers.2.weight"] is given["layers.2.weight"]


def test_a_failing_value_leaves_the_model_unchanged() -> None:
    class Failing:
        def __dlpack__(self, **_: Any) -> Any:
            raise OSError("the disk is gone")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    model = MLP()
    model.load_state_dict(values(model))
    before = state(model)
    with refuses(OSError):
        model.load_state_dict({**values(model, 5), "down.weight": Failing()})
    assert state(model) == before


def test_mappings_of_any_kind() -> None:
    model = MLP()
    given = values(model)
    for mapping in (collections.ChainMap(given), types.MappingProxyType(given), collections.defaultdict(list, given)):
        model.load_state_dict(mapping)
    short = collections.defaultdict(lambda: array(), {"up.weight": given["up.weight"]})
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict(short)
    assert list(short) == ["up.weight"]
    with refuses(TypeError):
        model.load_state_dict("model.safetensors")  # type: ignore[arg-type]


def test_a_checkpoint_is_taken_from_the_node_on_and_only_what_is_needed(make_file: Callable[..., Path]) -> None:
    path = make_file({f"model.{name}": value for name, value in values(MLP()).items()} | {"other.x": array()})
    model = MLP()
    weights = load_weights(path)
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict(weights)
    model.load_state_dict(weights.model)
    found = model.state_dict()["gate.weight"]
    assert isinstance(found, Buffer)
    assert found.is_mapped
    assert np.array_equal(np.asarray(found), values(MLP())["gate.weight"])
    assert isinstance(weights.model, max_weights.Weights)
    model.load_state_dict(dict(weights["model"].items()) and {n[6:]: w for n, w in weights.model.items()})


def test_only_the_tensors_that_the_model_has_are_made() -> None:
    taken: list[str] = []

    class Node:
        """A minimal `Weights`."""

        def __init__(self, name: str) -> None:
            self.name = name

        def exists(self) -> bool:
            return bool(self.name)

        def items(self) -> Iterator[tuple[str, Any]]:
            return iter([(name, Node(name)) for name in ("w", "unused")])

        def allocate(self) -> None: ...

        def data(self) -> WeightData:
            taken.append(self.name)
            return WeightData.from_numpy(array(), self.name)

    Holder(w=weight("w")).load_state_dict(Node(""), strict=False)  # type: ignore[arg-type]
    assert taken == ["w"]


class OldLinear(LayerV2):
    def __init__(self) -> None:
        self.weight = weight("weight", (2, 2), "bfloat16")


def test_version_2_layers_ignore_unexpected_names_and_convert(make_file: Callable[..., Path]) -> None:
    model = OldLinear()
    for given in (
        {"weight": array((2, 2)) * 1.5, "more": 3},
        {"weight": Buffer.from_numpy(array((2, 2)) * 1.5)},
        {"weight": WeightData.from_numpy(array((2, 2)) * 1.5, "x")},
        {"weight": torch.ones(2, 2) * 1.5},
        load_weights(make_file({"weight": array((2, 2)) * 1.5, "more": array()})),
    ):
        model.load_state_dict(given)  # type: ignore[arg-type]
        value = model.state_dict()["weight"]
        assert value.dtype is DType.bfloat16
        assert np.asarray(value).astype(np.float32).tolist() == [[1.5, 1.5], [1.5, 1.5]]
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"wieght": array((2, 2))})
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"weight": array((2, 3))})
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"weight": 3})


def test_version_2_layers_say_what_they_converted_and_cut_off_no_fractions(caplog: pytest.LogCaptureFixture) -> None:
    model = OldLinear()
    with caplog.at_level(logging.WARNING, "max_weights.nn"):
        model.load_state_dict({"weight": array((2, 2)) * 1.5})
    assert [record.message for record in caplog.records] == [
        "OldLinear: values were converted to the dtypes of the weights: 1 from float32 to bfloat16"
    ]
    caplog.clear()
    model.load_state_dict({"weight": model.state_dict()["weight"]})
    assert caplog.records == []
    model.weight = weight("weight", (2, 2), "int8")
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"weight": array((2, 2)) * 1.5})
    model.load_state_dict({"weight": array((2, 2), np.int64)})
    assert np.asarray(model.state_dict()["weight"]).tolist() == [[1, 1], [1, 1]]


def test_a_missing_device_is_no_misfit_of_a_value() -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise DeviceError("no device gpu:99")

    with refuses(DeviceError, "device.failed"):
        Holder(w=weight("w")).load_state_dict({"w": Elsewhere()})


def test_load_takes_path_dtype_and_rename(make_file: Callable[..., Path]) -> None:
    arrays = {f"model.{name}": value for name, value in values(MLP()).items()}
    path = make_file(arrays)
    half = Holder(up=Linear(5, 10, DType.float16), gate=Linear(5, 10, DType.float16), down=Linear(10, 5, DType.float16))
    for rename in (
        {"model.": ""},
        {name: name[6:] for name in arrays},
        lambda name: name.removeprefix("model."),
    ):
        model = MLP()
        assert model.load(path, rename=rename).missing == ()  # type: ignore[arg-type]
        assert np.array_equal(np.asarray(model.state_dict()["gate.weight"]), arrays["model.gate.weight"])
        half.load(path, "float16", rename)  # type: ignore[arg-type]
        value = half.state_dict()["gate.weight"]
        assert "not converted yet" in repr(value)
        assert np.array_equal(np.asarray(value), arrays["model.gate.weight"].astype(np.float16))
    with refuses(ValueError, "argument.mismatch"):
        half.load(path, rename={"model.": ""})
    partial = MLP().load(path, rename=lambda name: name[6:] if "up" in name else None, strict=False)
    assert partial.missing == ("gate.weight", "down.weight")
    with refuses(ValueError, "argument.name-twice"):
        MLP().load(path, rename=lambda _name: "x")
    with refuses(ValueError, "argument.mismatch"):
        MLP().load(path)


def test_load_leaves_integers_and_honours_adapters(make_file: Callable[..., Path]) -> None:
    path = make_file({"ids": np.arange(3), "w": array()})
    model = Holder(ids=weight("ids", [3], "int64"), w=weight("w", dtype="float16"))
    model.load(path, "float16")
    assert np.asarray(model.state_dict()["ids"]).tolist() == [0, 1, 2]

    def adapter(state_dict: Mapping[str, Any], **_: Any) -> dict[str, WeightData]:
        return {name.upper(): value.data() for name, value in state_dict.items() if name != "ids"}

    upper = Holder(w=weight("W"))
    upper.load(path, adapter=adapter)
    assert list(upper.state_dict()) == ["W"]
    Holder(w=weight("W", dtype="bfloat16")).load(path, "bfloat16", adapter=adapter)
    with refuses(TypeError):
        upper.load(path, adapter=lambda _: [])  # type: ignore[arg-type,return-value]


def test_load_renames_gguf_by_hugging_face_names(models: Path) -> None:
    model = Holder(model=Holder(norm=Holder(w=weight("weight", [576]))))
    report = model.load(models / "smollm2-135m.Q4_1.gguf", rename="hf", strict=False)
    assert report.missing == ()


def test_near_names_are_found_fast_among_many() -> None:
    def names(prefix: str) -> list[str]:
        return [f"{prefix}layers.{i}.mlp.experts.{j}.{k}.weight" for i in range(40) for j in range(128) for k in "abcd"]

    class Named(Module):
        def __init__(self) -> None:
            for i, name in enumerate(names("model.")):
                setattr(self, f"w{i}", weight(name))

    model, given = Named(), dict.fromkeys(names(""), array())
    began = time.process_time()
    with refuses(ValueError, "argument.mismatch") as caught:
        model.load_state_dict(given)
    assert time.process_time() - began < 5  # difflib takes minutes
    assert "and 20,460 more" in str(caught.value)
    assert len(str(caught.value)) < 10_000
