"""The tree of names: hops, prefixes, errors, closing, and tools that probe objects."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
import max_weights.driver
from max_weights import DType, WeightNotFoundError, Weights
from max_weights._quantization import QuantizationEncoding
from max_weights.graph import DeviceRef, Shape
from max_weights.graph.weights import RESERVED, SafetensorWeights
from refusals import refuses

Make = Callable[..., Path]


@pytest.fixture
def weights(make_file: Make) -> Any:
    names = [f"model.layers.{i}.{kind}.weight" for i in (0, 1, 10) for kind in ("attn", "mlp")] + [
        "model.layers.1",
        "lm_head.weight",
    ]
    return max_weights.load_weights(make_file({name: np.full((2, 3), i, np.float32) for i, name in enumerate(names)}))


def test_a_tree_of_weights_satisfies_the_protocol(weights: Any) -> None:
    assert isinstance(weights, Weights)
    assert isinstance(weights, SafetensorWeights)
    assert isinstance(weights.model.layers[0], SafetensorWeights)


def test_hops_by_attribute_index_and_dotted_string_name_the_same_weight(weights: Any) -> None:
    node = weights.model.layers[10].attn.weight
    assert node.name == "model.layers.10.attn.weight"
    assert weights["model.layers.10.attn.weight"].name == node.name
    assert weights["model"]["layers"][np.int64(10)]["attn.weight"].name == node.name
    assert np.array_equal(node.data(), weights["model.layers.10.attn.weight"].data())


def test_exists_is_for_the_exact_name_only(weights: Any) -> None:
    assert weights.lm_head.weight.exists()
    assert not weights.lm_head.exists()
    assert not weights.nothing.here.exists()
    assert weights.model.layers[1].exists(), "a name may be a weight and a prefix"


def test_a_prefix_matches_whole_components(weights: Any) -> None:
    names = [name for name, _ in weights.model.layers[1].items()]
    assert sorted(names) == ["model.layers.1", "model.layers.1.attn.weight", "model.layers.1.mlp.weight"]
    assert len(weights.model.layers[1]) == 3
    with refuses(WeightNotFoundError, "weight.not-found"):
        weights.nothing.items()


def test_containment_looks_below_the_node(weights: Any) -> None:
    assert "lm_head.weight" in weights
    assert "lm_head" not in weights
    assert "attn.weight" in weights.model.layers[0]
    assert 1 in weights.model.layers
    assert None not in weights


def test_a_missing_name_gives_near_names(weights: Any) -> None:
    with refuses(WeightNotFoundError, "weight.not-found") as caught:
        weights.model.layers[0].atn.weight.data()
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith("'"), "KeyError would quote the message"
    with refuses(WeightNotFoundError, "weight.not-found"):
        weights.lm_head.data()


def test_data_gives_views_of_the_same_memory(weights: Any) -> None:
    first, second = weights.lm_head.weight.data(), weights.lm_head.weight.data()
    assert np.shares_memory(np.asarray(first), np.asarray(second))
    assert first.dtype == DType.float32
    assert first.shape == [2, 3]
    assert first.name == "lm_head.weight"
    assert first.quantization_encoding is None


def test_a_tensor_outlives_its_weights_its_file_and_close(make_file: Make) -> None:
    path = make_file({"a": np.arange(6, dtype=np.float32)})
    weights = max_weights.load_weights(path)
    array = np.asarray(weights.a.data())
    weights.close()
    path.unlink()
    with refuses(max_weights.ClosedError, "checkpoint.closed"):
        weights.a.data()
    del weights
    assert array.tolist() == [0, 1, 2, 3, 4, 5]


def test_close_leaves_the_listing_readable(weights: Any) -> None:
    with weights as opened:
        infos = max_weights.infos(opened)
    assert len(infos) == 8
    assert infos[0].dtype == DType.float32
    assert len(weights.model) == 7


def test_a_closed_checkpoint_unmaps_the_file(make_file: Make) -> None:
    path = make_file({"a": np.arange(6, dtype=np.float32)})
    weights = max_weights.load_weights(path)
    value = weights.a.data()
    weights.close()
    assert str(path) in Path("/proc/self/maps").read_text(), "a tensor is still held"
    del value
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_an_entry_of_the_listing_unpacks(make_file: Make) -> None:
    path = make_file({"a": np.zeros((2, 5), np.float16)})
    info = max_weights.infos(max_weights.load_weights(path))[0]
    name, dtype, shape, size, file, offset, aligned = info
    assert (name, dtype, shape, size, file, aligned) == ("a", DType.float16, (2, 5), 20, str(path), True)
    assert (info.name, info.dtype, info.shape, info.bytes, info.file, info.offset) == (
        name,
        dtype,
        shape,
        size,
        file,
        offset,
    )
    assert info[-1] is True
    assert "name='a'" in repr(info)


def test_the_listing_is_a_sequence(weights: Any) -> None:
    infos = max_weights.infos(weights)
    assert [info.name for info in infos] == [infos[i].name for i in range(len(infos))]
    assert infos[-1].name == [info.name for info in infos][-1]
    assert [info.name for info in infos[::-2]] == [info.name for info in list(infos)[::-2]]
    with pytest.raises(IndexError):
        infos[len(infos)]


def test_tools_that_probe_objects_are_not_answered_with_children(weights: Any) -> None:
    for name in ("__array_interface__", "__wrapped__", "_ipython_canary_method_should_not_exist_", "_repr_mimebundle_"):
        with pytest.raises(AttributeError):
            getattr(weights, name)
    assert copy.copy(weights) is weights
    assert copy.deepcopy(weights.model) is not None
    for probe in ("__array__", "__dlpack__", "__dlpack_device__"):
        assert hasattr(weights.nothing, probe), "looking is harmless"


@pytest.mark.parametrize(
    "take", [np.asarray, np.array, torch.from_dlpack, np.from_dlpack, max_weights.driver.Buffer.from_dlpack]
)
def test_a_slip_in_a_name_is_an_error_with_near_names(weights: Any, take: Callable[[Any], Any]) -> None:
    with refuses(WeightNotFoundError, "weight.not-found"):
        take(weights.lm_head.wieght)
    with refuses(WeightNotFoundError, "weight.not-found"):
        take(weights.model.layers[0])
    assert take(weights.lm_head.weight).shape == (2, 3)


def test_a_slip_in_a_name_is_printed_with_near_names(weights: Any) -> None:
    missing = repr(weights.lm_head.wieght)
    assert missing.endswith("no weight named 'lm_head.wieght'; did you mean 'lm_head.weight'?>")
    assert "\n" not in missing
    assert "did you mean 'lm_head.weight'?" in weights.lm_head.wieght._repr_html_()
    assert "1 weight" in repr(weights.lm_head)


def test_what_an_array_has_is_not_the_name_of_a_child_of_a_weight(make_file: Make, weights: Any) -> None:
    for name in ("T", "astype", "to", "size"):
        with refuses(AttributeError):
            getattr(weights.lm_head.weight, name)
        assert not hasattr(weights.lm_head.weight, name)
        assert getattr(weights.lm_head, name).name == f"lm_head.{name}"
    real = max_weights.load_weights(make_file({"norm": np.ones(1, np.float32), "norm.shape": np.ones(2, np.float32)}))
    assert real.norm.shape.exists()


def test_an_index_below_zero_counts_numbered_children_from_the_end(make_file: Make, weights: Any) -> None:
    assert [weights.model.layers[i].name for i in (-1, -2, -3)] == [f"model.layers.{i}" for i in (10, 1, 0)]
    assert weights.model.layers[np.int64(-1)].attn.weight.exists()
    with refuses(IndexError):
        weights.model.layers[-4]
    with refuses(IndexError):
        weights.lm_head[-1]
    with pytest.raises(IndexError):
        weights[-(10**30)]
    odd = max_weights.load_weights(make_file({"-1": np.ones(1, np.float32), "2": np.ones(2, np.float32)}))
    assert odd[-1].name == "-1"


def test_probing_a_name_that_is_none_is_harmless(weights: Any) -> None:
    for node in (weights.nothing, weights.model, weights):
        for name in (
            "__array_interface__",
            "__array_struct__",
            "__array_ufunc__",
            "_repr_pretty_",
            "_ipython_display_",
        ):
            assert not hasattr(node, name)
        assert copy.copy(node) is node
        assert copy.deepcopy(node) is node
        assert pickle.loads(pickle.dumps(node)).name == node.name
        assert "data" in dir(node)
        assert (node == 1, node != 1) == (False, True)
        assert isinstance(repr(node) + str(node) + node._repr_html_(), str)
        assert node.exists() is False


def test_iterating_raises_and_does_not_run_forever(weights: Any) -> None:
    with refuses(TypeError):
        iter(weights)
    with refuses(TypeError):
        weights[1.5]


def test_dir_lists_children_for_completion(weights: Any) -> None:
    assert {"model", "lm_head", "data", "items"} <= set(dir(weights))
    assert {"0", "1", "10"} <= set(dir(weights.model.layers))


def test_a_weight_of_a_reserved_name_is_reached_by_index(make_file: Make) -> None:
    weights = max_weights.load_weights(
        make_file({f"x.{name}": np.zeros(1, np.float32) for name in (*RESERVED, "_hidden")})
    )
    for name in RESERVED:
        assert weights.x[name].exists(), name
        attribute = getattr(weights.x, name, None)
        assert not isinstance(attribute, SafetensorWeights), name
    assert weights.x._hidden.exists(), "a child whose name begins with an underscore"


def test_text_metadata(make_file: Make) -> None:
    path = make_file({"a": np.zeros(1, np.float32)}, metadata={"format": "pt", "note": "ü"})
    assert max_weights.load_weights(path).metadata == {"format": "pt", "note": "ü"}


def test_several_files_are_one_tree_and_a_name_may_stand_in_one_only(make_file: Make) -> None:
    first = make_file({"a": np.zeros(1, np.float32), "b": np.ones(1, np.float32)}, "1.safetensors")
    second = make_file({"c": np.full(1, 2, np.float32)}, "2.safetensors")
    weights = max_weights.load_weights([first, second])
    assert [float(np.asarray(weight.data())[0]) for _, weight in weights.items()] == [0, 1, 2]
    third = make_file({"b": np.zeros(1, np.float32)}, "3.safetensors")
    with refuses(max_weights.FormatError, "checkpoint.duplicate") as caught:
        max_weights.load_weights([first, third])
    assert caught.value.tensor == "b"


def test_allocate_records_the_value(weights: Any) -> None:
    weight = weights.lm_head.weight.allocate(shape=("rows", 3), device=DeviceRef.GPU(1))
    assert repr(weight) == "Weight(lm_head.weight, DType.float32, [Dim(2), Dim(3)], gpu:1)"
    assert list(weights.allocated_weights) == ["lm_head.weight"]
    assert weights.model.allocated_weights is weights.allocated_weights
    assert np.array_equal(
        np.asarray(weights.allocated_weights["lm_head.weight"]), np.asarray(weights.lm_head.weight.data())
    )


def test_allocate_refuses_a_wrong_shape_and_records_nothing(weights: Any) -> None:
    with refuses(ValueError):
        weights.lm_head.weight.allocate(shape=(3, 2))
    with refuses(ValueError):
        weights.lm_head.weight.allocate(quantization_encoding=QuantizationEncoding.Q4_K)
    with pytest.raises(KeyError):
        weights.lm_head.allocate()
    assert weights.allocated_weights == {}


def test_allocate_as_bytes_scales_the_last_dimension(make_file: Make) -> None:
    weights = max_weights.load_weights(make_file({"m": np.zeros((2, 3), np.float32), "s": np.zeros((), np.float64)}))
    assert weights.m.allocate_as_bytes().shape == Shape([2, 12])
    assert weights.s.allocate_as_bytes().shape == Shape([8])
    assert weights.m.allocate_as_bytes().dtype == DType.uint8
    with refuses(ValueError):
        weights.m.allocate_as_bytes(DType.int32)


def test_a_dtype_from_the_future_does_not_block_the_file(make_file: Make) -> None:
    path = make_file({"new": ("F3_E1M1", [8], b"\x01\x02\x03"), "old": np.ones(2, np.float32)})
    weights = max_weights.load_weights(path)
    assert {info.name: info.dtype for info in max_weights.infos(weights)} == {"new": "F3_E1M1", "old": DType.float32}
    raw = weights.new.data()
    assert raw.dtype == DType.uint8
    assert bytes(raw.data) == b"\x01\x02\x03"
    assert "F3_E1M1" in str(weights)


def test_only_a_misaligned_tensor_is_copied(make_file: Make) -> None:
    path = make_file({"odd": np.arange(3, dtype=np.uint8), "late": np.arange(4, dtype=np.float32)})
    weights = max_weights.load_weights(path)
    assert {info.name: info.aligned for info in max_weights.infos(weights)} == {"odd": True, "late": False}
    late = weights.late.data()
    assert late.data.aligned
    assert not late.data.is_mapped
    assert weights.odd.data().data.is_mapped
    assert np.asarray(late).tolist() == [0, 1, 2, 3]
    assert not np.shares_memory(np.asarray(late), np.asarray(weights.late.data())), "each take is a copy of its own"


def test_names_with_control_characters_do_not_reach_the_terminal(make_file: Make) -> None:
    weights = max_weights.load_weights(make_file({"\x1b[31mred<b>": np.zeros(1, np.float32)}))
    assert "\x1b" not in repr(weights)
    assert "red&lt;b&gt;" in weights._repr_html_()
    with pytest.raises(KeyError) as caught:
        weights["\x1b[31mrad<b>"].data()
    assert "\x1b" not in str(caught.value)
