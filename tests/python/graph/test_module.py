"""`Module`: the names of registered weights and submodules, after any change of attributes."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from max_weights import Buffer, DType
from max_weights.errors import ArgumentError
from max_weights.graph import DeviceRef, Graph, ShardingStrategy, TensorType, Weight, ops
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.nn import LayerList, Module, Shardable, recursive_named_layers
from module_trees import MLP, Holder, Linear, values, weight
from refusals import refuses


def test_full_names_are_attribute_path_and_weight_name() -> None:
    model = Holder(enc=Holder(any_attribute=weight("w")), odd=weight("b"))
    assert list(model.raw_state_dict()) == ["b", "enc.w"]
    assert [found.name for found in model.raw_state_dict().values()] == ["b", "w"]


def test_super_init_may_be_skipped() -> None:
    assert list(MLP().raw_state_dict()) == ["up.weight", "gate.weight", "down.weight"]


def test_lists_tuples_and_dicts_are_walked_with_index_and_key() -> None:
    model = Holder(
        blocks=[Linear(1, 1), Linear(1, 1)],
        pair=(Linear(1, 1),),
        experts={"a": Linear(1, 1), 7: [Linear(1, 1)]},
        nothing=[1, 2, "x"],
    )
    assert set(model.raw_state_dict()) == {
        "blocks.0.weight",
        "blocks.1.weight",
        "pair.0.weight",
        "experts.a.weight",
        "experts.7.0.weight",
    }
    assert list(model.sublayers) == ["blocks.0", "blocks.1", "pair.0", "experts.a", "experts.7.0"]


def test_replacing_and_deleting_unregisters_also_after_names_were_finalised() -> None:
    model: Any = MLP()
    model.state_dict()
    model.up = Linear(2, 2)
    del model.gate
    model.down = None
    assert list(model.raw_state_dict()) == ["up.weight"]
    model.up.weight = weight("other")
    assert list(model.raw_state_dict()) == ["up.other"]
    del model.up.weight
    assert model.raw_state_dict() == {}
    assert model.up.layer_weights == {}


def test_a_module_that_moves_takes_its_values_to_its_new_name() -> None:
    model: Any = MLP()
    model.load_state_dict(values(model))
    kept = model.state_dict()["up.weight"]
    model.top, _ = model.up, delattr(model, "up")
    assert list(model.raw_state_dict()) == ["gate.weight", "down.weight", "top.weight"]
    assert model.state_dict(auto_initialize=False)["top.weight"] is kept
    assert model.top.weight.name == "top.weight"
    assert model.top.state_dict()["weight"] is kept


def test_the_walk_is_breadth_first_each_module_once_by_its_first_path() -> None:
    shared = Linear(1, 1)
    model = Holder(deep=Holder(one=Holder(two=shared)), late=shared)
    assert [prefix for prefix, _ in model.named_modules()] == ["", "deep.", "late.", "deep.one."]
    assert list(model.raw_state_dict()) == ["late.weight"]
    assert [path for path, _ in recursive_named_layers(model.deep, "x")] == ["x", "x.one", "x.one.two"]


def test_cycles_end() -> None:
    model: Any = MLP()
    model.up.parent = model
    model.around = [model]
    model.around.append(model.around)
    assert len(list(model.named_modules())) == 4
    assert "the same as" in str(model)


def test_two_different_weights_of_one_full_name_are_refused() -> None:
    model = Holder(a=weight("w"), b=weight("w"))
    for attempt in (
        model.raw_state_dict,
        model.state_dict,
        lambda: model.load_state_dict({}),
        lambda: model.layer_weights,
    ):
        with refuses(ValueError, "argument.name-twice"):
            attempt()
    dots = Holder(x={"a.b": Linear(1, 1), "a": Holder(b=Linear(1, 1))})
    with refuses(ValueError, "argument.name-twice"):
        dots.raw_state_dict()
    assert "w'" in str(model)  # but it can be printed


def test_one_weight_in_two_attributes_is_one_weight() -> None:
    one = weight("w")
    assert list(Holder(a=one, b=one).raw_state_dict()) == ["w"]


def test_a_weight_of_two_modules_has_its_first_name_and_is_found_by_either() -> None:
    embed, head = Linear(2, 2), Linear(2, 2)
    head.weight = embed.weight
    model = Holder(embed=embed, head=head)
    array = np.ones((2, 2), np.float32)
    for name in ("embed.weight", "head.weight"):
        assert list(model.raw_state_dict()) == ["embed.weight"]
        model.load_state_dict({name: array * 2})
        assert float(model.state_dict()["embed.weight"][0, 0]) == 2
    model.load_state_dict({"embed.weight": array, "head.weight": array})


def test_layer_weights_are_the_modules_own_by_their_names_in_it() -> None:
    model: Any = MLP()
    for _ in range(2):
        assert model.layer_weights == {}
        assert list(model.up.layer_weights) == ["weight"]
        model.state_dict()


def test_raw_state_dict_changes_nothing_and_state_dict_names_weights_fully() -> None:
    model = MLP()
    assert {found.name for found in model.raw_state_dict().values()} == {"weight"}
    model.state_dict()
    model.state_dict()
    assert [found.name for found in model.raw_state_dict().values()] == ["up.weight", "gate.weight", "down.weight"]


def test_a_weight_that_is_renamed_after_loading_has_the_new_name() -> None:
    model: Any = MLP()
    model.state_dict()
    model.up.weight.name = "kernel"
    assert next(iter(model.raw_state_dict())) == "up.kernel"


def test_state_dict_gives_zeros_and_remembers_them() -> None:
    model = MLP()
    first = model.state_dict()
    assert repr(first["up.weight"]) == "Buffer([5, 10])"
    assert not np.asarray(first["up.weight"]).any()
    assert all(value is first[name] for name, value in model.state_dict(auto_initialize=False).items())


def test_state_dict_without_values_says_which_and_changes_nothing() -> None:
    model = MLP()
    with refuses(ValueError, "weight.no-value"):
        model.state_dict(auto_initialize=False)
    symbolic = Holder(a=weight("a"), b=weight("b", ["n", 2]))
    with refuses(ValueError, "weight.no-value"):
        symbolic.state_dict()
    with refuses(ValueError, "weight.no-value"):
        symbolic.state_dict(auto_initialize=False)


def test_shared_weights_are_left_out_and_may_replace_the_attribute() -> None:
    embed, head = Linear(2, 2), Linear(2, 2)
    model = Holder(embed=embed, head=head)
    model.state_dict()  # works after loading
    head.set_shared_weight("weight", embed.weight)
    assert head.weight is embed.weight
    assert list(model.raw_state_dict()) == ["embed.weight"]
    assert head.raw_state_dict() == head.state_dict() == {}
    head.load_state_dict({})
    assert "shared" in str(model)


def test_a_shared_weight_never_displaces_an_own_one_of_its_name() -> None:
    embed, head = Linear(2, 2), Linear(2, 2)
    model, own = Holder(embed=embed, head=head), head.weight
    head.set_shared_weight("tied", embed.weight)
    assert list(model.raw_state_dict()) == ["embed.weight", "head.weight"]
    assert model.raw_state_dict()["head.weight"] is own
    assert head.layer_weights == {"weight": own}
    head.tied = weight("mine")  # reassigned: its own one
    assert "head.mine" in model.raw_state_dict()
    with refuses(TypeError):
        head.set_shared_weight("x", embed)  # type: ignore[arg-type]


def test_shards_are_no_weights_of_their_own() -> None:
    part = weight("weight[0]")
    part.shard_idx = 0
    assert list(Holder(a=weight("weight"), part=part).raw_state_dict()) == ["weight"]


class Pair(NamedTuple):
    left: Any
    right: Any


def test_replace_module_reaches_every_place() -> None:
    model: Any = Holder(
        one=Linear(1, 1),
        layers=LayerList([Linear(1, 1), Holder(inner=Linear(1, 1))]),
        plain=[Linear(1, 1)],
        nested=(0, [Linear(1, 1)], Linear(1, 1)),
        pair=Pair(Linear(1, 1), 1),
        keys={"a": Linear(1, 1), 2: Linear(1, 1)},
    )
    model.state_dict()
    names = [name for name, found in model.named_modules() if isinstance(found, Linear)]
    assert len(names) == 9
    for name in names:
        model.replace_module(name, Linear(3, 3))
        assert dict(model.named_modules())[name].weight.shape == [3, 3]
    assert isinstance(model.pair, Pair)
    assert isinstance(model.nested, tuple)
    assert {tuple(found.shape) for found in model.raw_state_dict().values()} == {(3, 3)}


def test_replace_module_takes_the_prefixes_of_named_modules() -> None:
    model: Any = Holder(layers=LayerList([Linear(1, 1), Linear(1, 1)]))
    for prefix, module in model.named_modules():
        if isinstance(module, Linear):
            model.replace_module(prefix, Linear(3, 3))
    assert [found.shape for found in model.raw_state_dict().values()] == [[3, 3], [3, 3]]


def test_replace_module_says_what_is_near() -> None:
    model = MLP()
    with refuses(KeyError, "layer.not-found"):
        model.replace_module("gat", Linear(1, 1))
    for name in ("", "up.weight", "up..", "."):
        with pytest.raises(KeyError):
            model.replace_module(name, Linear(1, 1))
    with refuses(TypeError):
        model.replace_module("up", 3)  # type: ignore[arg-type]


def test_named_modules_gives_prefixes_that_end_with_a_dot() -> None:
    """As in MAX: programs append to the names."""
    model = MLP()
    assert [prefix for prefix, _ in model.named_modules()] == ["", "up.", "gate.", "down."]
    joined = {prefix + name for prefix, module in model.named_modules() for name in module.layer_weights}
    assert joined == set(model.raw_state_dict())
    assert [path for path, _ in recursive_named_layers(model)] == ["", "up", "gate", "down"]  # as in document 003


class Strategy:
    num_devices = 2


def test_to_sets_device_and_strategy_of_every_weight_below() -> None:
    model = MLP()
    model.to(DeviceRef.GPU(1))
    assert {str(found.device) for found in model.raw_state_dict().values()} == {"gpu:1"}
    strategy = Strategy()
    model.to("gpu:0", "gpu:1", sharding_strategy=strategy)
    assert {found.sharding_strategy for found in model.raw_state_dict().values()} == {strategy}


@pytest.mark.parametrize(
    ("devices", "strategy"),
    [
        ((), None),
        (("gpu:0", "gpu:1"), None),
        (("gpu:0",), Strategy()),
        (("tpu",), None),
    ],
)
def test_to_refuses_what_makes_no_sense_and_changes_nothing(devices: Any, strategy: Any) -> None:
    model = MLP()
    with refuses(ValueError):
        model.to(*devices, sharding_strategy=strategy)
    assert {str(found.device) for found in model.raw_state_dict().values()} == {"cpu:0"}


def test_weights_below_are_sharded_over_the_devices_that_to_was_given() -> None:
    model: Any = MLP()
    devices = [DeviceRef.GPU(i) for i in range(3)]
    model.to(*devices, sharding_strategy=ShardingStrategy.rowwise(3))
    model.state_dict()
    shards = model.down.weight.shard(devices)
    assert [(shard.name, shard.shape[0], shard.device) for shard in shards] == [
        ("down.weight[0]", 4, devices[0]),
        ("down.weight[1]", 3, devices[1]),
        ("down.weight[2]", 3, devices[2]),
    ]
    model.to("cpu")
    assert model.down.weight.device == DeviceRef.CPU()


def test_to_changes_nothing_once_one_weight_is_in_a_graph() -> None:
    model: Any = MLP()
    with Graph("g") as graph:
        graph.add_weight(model.down.weight)
    strategy = ShardingStrategy.rowwise(2)
    with refuses(ValueError):
        model.to("gpu:0", "gpu:1", sharding_strategy=strategy)
    found = model.raw_state_dict().values()
    assert {(str(one.device), one.sharding_strategy) for one in found} == {("cpu:0", None)}
    model.to("cpu:0", sharding_strategy=ShardingStrategy.replicate(1))  # where it is already


def devices_of(model: Module) -> set[str]:
    return {str(found.device) for found in model.raw_state_dict().values()}


def test_to_is_inherited_by_children_that_are_attached_later() -> None:
    strategy = ShardingStrategy.rowwise(2)
    model: Any = Holder(up=Linear(4, 4), layers=LayerList([Linear(4, 4)]))
    model.to("gpu:0", "gpu:1", sharding_strategy=strategy)
    model.one = Linear(4, 4)
    model.inner = Holder(deep=[Linear(4, 4)])
    model.inner.more = Linear(4, 4)  # it was notified, too
    model.several = {"a": Linear(4, 4), "b": (Linear(4, 4),)}
    model.layers.append(Linear(4, 4))
    model.layers.insert(0, Linear(4, 4))
    model.layers += [Linear(4, 4)]
    model.layers.extend([LayerList([Linear(4, 4)])])
    model.layers[0] = Linear(4, 4)
    model.plain = [Linear(1, 1)]
    model.replace_module("plain.0", Linear(4, 4))
    assert len(model.raw_state_dict()) == 12
    assert devices_of(model) == {"gpu:0"}
    assert {found.sharding_strategy for found in model.raw_state_dict().values()} == {strategy}
    model.to("cpu")
    model.last = Linear(4, 4)
    assert devices_of(model) == {"cpu:0"}


def test_a_child_that_was_told_itself_where_it_is_wanted_stays_there() -> None:
    model, child = MLP(), Linear(1, 1)
    model.to("gpu:0")
    child.to("gpu:3")
    model.own = child  # type: ignore[attr-defined]
    assert devices_of(child) == {"gpu:3"}
    model.to("gpu:0")
    assert devices_of(model) == {"gpu:0"}


def test_weights_that_are_attached_later_are_where_they_say() -> None:
    """Every `Weight` has an explicit device, and a shared one belongs to another module."""
    model: Any = MLP()
    model.to("gpu:0")
    model.own, other = weight("own"), weight("other")
    model.set_shared_weight("shared", other)
    assert (str(model.own.device), str(other.device)) == ("cpu:0", "cpu:0")


def test_a_child_that_cannot_follow_is_not_attached() -> None:
    model, child = MLP(), Linear(1, 1)
    model.to("gpu:0")
    with Graph("g") as graph:
        graph.add_weight(child.weight)
    with refuses(ValueError):
        model.own = child  # type: ignore[attr-defined]
    assert "own" not in vars(model)


def test_a_copied_module_passes_on_what_it_was_told() -> None:
    model = MLP()
    model.to("gpu:1")
    for again in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        again.more = Linear(1, 1)
        assert devices_of(again) == {"gpu:1"}


def test_weights_and_layers_are_shardable() -> None:
    class Split(Module):
        sharding_strategy = None

        def shard(self, devices: Any) -> list[Any]:
            return [self for _ in devices]

    assert isinstance(weight(), Shardable)
    assert isinstance(Split(), Shardable)
    assert not isinstance(MLP(), Shardable)


def test_copy_shares_weights_and_deepcopy_and_pickle_do_not() -> None:
    model: Any = MLP()
    model.tied = model.up
    model.load_state_dict(values(model))
    assert copy.copy(model).up is model.up
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.tied is again.up
        assert again.up.weight is not model.up.weight
        mine, other = model.state_dict(), again.state_dict(auto_initialize=False)
        assert list(mine) == list(other)
        for name, value in mine.items():
            assert np.array_equal(value, other[name])
        other["up.weight"][:] = 99
        assert mine["up.weight"][0, 0] == 1
    fresh = pickle.loads(pickle.dumps(MLP()))
    assert isinstance(fresh.state_dict()["up.weight"], Buffer)


def test_a_subgraph_may_have_shared_weights_alone() -> None:
    """They belong to another module, and keep its names, independent of the prefix of the subgraph's own weights."""

    class Product(Linear):
        def __call__(self, x: Any) -> Any:
            return x @ self.weight

    class Head(Product):
        def __init__(self, embedding: Weight) -> None:
            self.set_shared_weight("weight", embedding)

    class Tied(Module):
        def __init__(self) -> None:
            self.embed = Product(3, 3)
            self.heads = LayerList([Head(self.embed.weight), Head(self.embed.weight)])

        def __call__(self, x: Any) -> Any:
            head = self.heads[0].build_subgraph("head", [x], weight_prefix="heads.0.")
            for number in range(2):
                (x,) = ops.call(head, x, prefix=f"heads.{number}.")
            return x

    model = Tied()
    model.state_dict()
    graph = model.trace(TensorType(DType.float32, ["n", 3], DeviceRef.CPU()))
    assert list(graph.parameters) == ["embed.weight"]
    with Graph("g", input_types=graph.input_types) as around, refuses(ValueError, "graph.invalid"):
        model.embed.build_subgraph("x", list(around.inputs), weight_prefix="other.")


def test_arguments_of_a_subgraph_are_looked_at_first() -> None:
    model = MLP()
    with refuses(TypeError):
        model.build_subgraph("block", 3)  # type: ignore[arg-type]
    with refuses(TypeError):
        model.build_subgraph("block", [[(2, 3)]])  # type: ignore[list-item]
    with refuses(TypeError):
        model.build_subgraph(3, [])  # type: ignore[arg-type]
    with refuses(ValueError, "graph.absent"):
        model.build_subgraph("block", [])
    with refuses(ValueError, "graph.absent"):
        model.build_subgraph("block", inputs=[])
    for arguments in ({}, {"input_types": [], "inputs": []}):
        with refuses(TypeError):
            model.build_subgraph("block", **arguments)  # type: ignore[arg-type]


def test_print_shows_a_tree_with_counts_and_folds_equal_layers() -> None:
    packed = weight("q", [4, 18], "uint8", quantization_encoding=QuantizationEncoding.Q4_0)
    model = Holder(b=weight("b", ["n"]), layers=LayerList(Linear(2, 3) for _ in range(3)), packed=Holder(q=packed))
    assert str(model).splitlines() == [
        "Holder  90 + 1 of symbolic shape parameters",
        "├─ b: float32 [n]",
        "├─ layers: LayerList  18",
        "│  └─ 0 to 2: 3 x Linear  6",
        "│     └─ weight: float32 [2, 3]",
        "└─ packed: Holder  72",
        "   └─ q: Q4_0 [4, 18]",
    ]
    assert repr(MLP()) == "MLP(4 modules, 150 parameters)"


def test_summary_is_a_table() -> None:
    model = MLP()
    model.up.state_dict()
    out = io.StringIO()
    model.summary(file=out)
    heads, total, *others = out.getvalue().splitlines()
    assert heads.split() == ["module", "type", "parameters", "MB", "dtype", "device", "loaded"]
    assert total.split() == ["(all)", "MLP", "150", "0.0", "float32", "cpu:0", "1/3"]
    assert any(line.startswith("gate ") for line in others)
    out.truncate(0)
    model.summary(depth=0, file=out)
    assert "gate" not in out.getvalue()
    with refuses(ValueError):
        model.summary(depth=-1)


names = st.sampled_from(["a", "b", "c", "w", "a.b"])


def build(tree: Any) -> Any:
    if isinstance(tree, dict):
        return Holder(**{name.replace(".", "_"): build(value) for name, value in tree.items()})
    if isinstance(tree, tuple):
        kind, parts = tree
        built = [build(part) for part in parts]
        return {
            "list": list(built),
            "tuple": tuple(built),
            "layers": LayerList(part for part in built if isinstance(part, Module)),
            "dict": {("a.b" if i == 1 else i): part for i, part in enumerate(built)},
        }[kind]
    return weight(tree) if isinstance(tree, str) else tree


trees = st.recursive(
    names | st.integers(),
    lambda below: (
        st.dictionaries(names, below, max_size=4)
        | st.tuples(st.sampled_from(["list", "tuple", "layers", "dict"]), st.lists(below, max_size=3))
    ),
    max_leaves=20,
)


@given(tree=st.dictionaries(names, trees, max_size=5), data=st.data())
@settings(max_examples=300)
def test_random_trees_keep_names_unique_and_round_trip(tree: Any, data: st.DataObject) -> None:
    model = build(tree)
    if data.draw(st.booleans()):  # share a module
        found = [module for _, module in model.named_modules()]
        setattr(data.draw(st.sampled_from(found)), "again", data.draw(st.sampled_from(found)))  # noqa: B010
    raw = None
    with contextlib.suppress(ArgumentError):
        raw = model.raw_state_dict()
    if raw is None:
        with pytest.raises(ValueError, match="have the name"):
            model.raw_state_dict()
        return
    weights = {id(w): w for _, module in model.named_modules() for w in vars(module).values() if isinstance(w, Weight)}
    assert {id(w) for w in raw.values()} == set(weights)
    assert len(raw) == len(weights)
    assert len({id(module) for _, module in model.named_modules()}) == len(list(model.named_modules()))
    arrays = values(model)
    model.load_state_dict(arrays)
    again = model.state_dict(auto_initialize=False)
    assert list(again) == list(arrays)
    assert all(again[name] is arrays[name] for name in arrays)
    assert all(w.name == name for name, w in model.raw_state_dict().items())
    str(model)
    other = build(tree)
    if len(other.raw_state_dict()) == len(arrays):
        other.load_state_dict(again, strict=False)
