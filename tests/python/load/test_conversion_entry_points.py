"""Weights composed by rules: through each entry point, in parts, and what is refused by name."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import max_weights
from max_weights import load_weights, renamed
from max_weights.conversion import (
    Concatenate,
    ConversionRule,
    Deinterleave,
    Interleave,
    Split,
    Stack,
    Transpose,
    Unstack,
    conversion_rules,
)
from max_weights.errors import UnsupportedError
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses

Tensors = dict[str, torch.Tensor]

EXPERTS = 6
CONFIG = {"model_type": "qwen3_moe", "num_attention_heads": 4, "num_key_value_heads": 2}
PACK = ConversionRule(
    ["*.experts.#.gate_proj.weight", "*.experts.#.up_proj.weight"],
    "*.experts.gate_up_proj",
    [Stack(0), Concatenate(1)],
)


def apart(layers: int = 2, rows: int = 8, columns: int = 16) -> Tensors:
    """Return the tensors of separate experts, in bfloat16."""
    torch.manual_seed(1)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(torch.bfloat16)

    made = {}
    for layer in range(layers):
        front = f"model.layers.{layer}.mlp.experts"
        for expert in range(EXPERTS):
            made[f"{front}.{expert}.gate_proj.weight"] = tensor(rows, columns)
            made[f"{front}.{expert}.up_proj.weight"] = tensor(rows, columns)
            made[f"{front}.{expert}.down_proj.weight"] = tensor(columns, rows)
    return made | {"model.norm.weight": tensor(columns)}


def packed(tensors: Tensors) -> Tensors:
    """Pack experts by torch alone."""
    made = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for front in {name.partition(".experts.")[0] + ".experts" for name in tensors if ".experts." in name}:
        gate, up, down = (
            torch.stack([tensors[f"{front}.{number}.{name}_proj.weight"] for number in range(EXPERTS)])
            for name in ("gate", "up", "down")
        )
        made[f"{front}.gate_up_proj"], made[f"{front}.down_proj"] = torch.cat([gate, up], 1), down
    return made


def assert_equal(found: Tensors, expected: Tensors) -> None:
    """Compare names, dtypes, shapes and bits."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        bits = [one.flatten().view(torch.uint8).numpy().tobytes() for one in (found[name], tensor)]
        assert bits[0] == bits[1], name


def write(folder: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    """Write a safetensors file and its configuration."""
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file of separate experts."""
    return write(tmp_path, apart())


@pytest.mark.parametrize("rows", [8, 512])
def test_every_entry_point_has_the_packed_experts(tmp_path: Path, rows: int) -> None:
    tensors = apart(rows=rows, columns=64)
    path, expected = write(tmp_path, tensors), packed(tensors)
    view = renamed(load_weights(path), "transformers5")
    assert_equal(view.load(framework="torch"), expected)
    assert_equal(view.load(framework="torch", copy="per-tensor"), expected)
    assert_equal(load_weights(path).load(framework="torch", rename="transformers5"), expected)
    assert_equal({name: tensor.clone() for name, tensor in view.stream(framework="torch")}, expected)
    assert_equal({name: tensor[...] for name, tensor in max_weights.lazy_state_dict(view).items()}, expected)
    assert_equal({name: node.torch() for name, node in view.items()}, expected)
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    view.load(framework="torch", out=state)
    assert_equal(state, expected)
    wide = {name: tensor.float() for name, tensor in expected.items()}
    assert_equal(view.load(framework="torch", dtype="float32"), wide)
    shapes = {info.name: (tuple(info.shape), info.bytes) for info in max_weights.infos(view)}
    assert shapes == {name: (tuple(tensor.shape), tensor.nbytes) for name, tensor in expected.items()}


def test_a_view_is_saved_and_resharded_as_its_weights_are(path: Path, tmp_path: Path) -> None:
    view, expected = renamed(load_weights(path), "transformers5"), packed(load_file(path))
    view.save(tmp_path / "packed.safetensors", read_back=True)
    assert_equal(load_file(tmp_path / "packed.safetensors"), expected)
    view.save(tmp_path / "wide.safetensors", dtype="float32")
    assert_equal(load_file(tmp_path / "wide.safetensors"), {name: tensor.float() for name, tensor in expected.items()})
    # And back: converting the packed file restores the first one.
    (tmp_path / "back").mkdir()
    back = write(tmp_path / "back", expected)
    renamed(load_weights(back), "hf").save(tmp_path / "apart.safetensors")
    assert_equal(load_file(tmp_path / "apart.safetensors"), load_file(path))


def test_a_tensor_that_is_saved_in_parts_is_whole(tmp_path: Path) -> None:
    large = {f"e.{number}.w": torch.randn(1500, 6000) for number in range(4)}
    path = write(tmp_path, large)
    rule = ConversionRule("e.#.w", "e", Stack(0))
    renamed(load_weights(path), [rule]).save(tmp_path / "one.safetensors")
    assert_equal(load_file(tmp_path / "one.safetensors"), {"e": torch.stack(list(large.values()))})


def test_slices_and_shards_are_those_of_the_made_tensor_and_read_what_they_need(path: Path) -> None:
    view, expected = renamed(load_weights(path), "transformers5"), packed(load_file(path))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    node, tensor = view[name], expected[name]
    cases: list[Any] = [
        (3,), (slice(1, 4),), (slice(None), slice(5, 13)), (slice(None, None, 2), slice(3, 12, 3), slice(4)), (2, 7, 9),
        (Ellipsis, -1), (slice(4, 1, -1),), (None, 1), (slice(0, 0),),
    ]  # fmt: skip
    for index in cases:
        part = torch.from_dlpack(node[index])
        requested = torch.from_numpy(np.array(tensor.view(torch.int16).numpy()[index]))
        assert torch.equal(part.contiguous().view(torch.int16), requested), index
    for rank in range(2):
        axes = {"*.gate_up_proj": 1, "*.down_proj": 0}
        strategies = {name: ShardingStrategy.axiswise(axis, 2) for name, axis in axes.items()}
        shard = Shard(rank, 2, strategies)
        found = view.load(select="*_proj", framework="torch", shard=shard)
        for full, whole in expected.items():
            if full.endswith("_proj"):
                axis = 1 if full.endswith("gate_up_proj") else 0
                assert torch.equal(found[full], whole.chunk(2, axis)[rank]), full


def test_one_expert_of_a_packed_tensor_is_a_view_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, packed(apart()))
    view = renamed(load_weights(path), "hf")
    name = "model.layers.0.mlp.experts.3.down_proj.weight"
    first, second = view[name].numpy(), view[name].numpy()
    assert np.shares_memory(first, second)
    assert_equal(view.load(framework="torch", copy=False), apart())


def test_a_plan_says_what_a_slice_reads(path: Path) -> None:
    view = renamed(load_weights(path), "transformers5")
    plan = max_weights.plan(view, copy=True)
    total = sum(tensor.nbytes for tensor in apart().values())
    assert plan.bytes_read == total


def test_a_view_is_pickled_with_its_rules(path: Path) -> None:
    expected = packed(load_file(path))
    view = renamed(load_weights(path), "transformers5")
    assert_equal(pickle.loads(pickle.dumps(view)).load(framework="torch"), expected)
    own = renamed(load_weights(path), [PACK])
    again = pickle.loads(pickle.dumps(own["model.layers.0"]))
    assert_equal(again.load(framework="torch"), own["model.layers.0"].load(framework="torch"))
    twice = renamed(renamed(load_weights(path), "transformers5"), "hf")
    assert_equal(pickle.loads(pickle.dumps(twice)).load(framework="torch"), load_file(path))
    view.close()
    assert_equal(load_weights(path).load(framework="torch"), load_file(path))


def test_digests_and_statistics_are_of_the_made_tensors(path: Path, tmp_path: Path) -> None:
    view = renamed(load_weights(path), "transformers5")
    view.save(tmp_path / "packed.safetensors")
    assert (
        max_weights.fingerprint(view, digests=True).digests
        == max_weights.fingerprint(load_weights(tmp_path / "packed.safetensors"), digests=True).digests
    )
    assert max_weights.diff(view, tmp_path / "packed.safetensors", metadata=False)
    assert not max_weights.diff(path, tmp_path / "packed.safetensors")
    with refuses(ValueError):
        view.load(digests=max_weights.fingerprint(view, digests=True).digests)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.pop("model.layers.1.mlp.experts.4.up_proj.weight"),
        lambda t: t.pop("model.layers.0.mlp.experts.0.gate_proj.weight"),
        lambda t: t.update({"model.layers.1.mlp.experts.2.gate_proj.weight": torch.zeros(9, 16).bfloat16()}),
        lambda t: t.update({"model.layers.1.mlp.experts.2.up_proj.weight": torch.zeros(8, 16)}),
        lambda t: t.update({"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(2)}),
        lambda t: t.update({"model.layers.0.mlp.experts.01.gate_proj.weight": torch.zeros(2)}) or t.clear()
            or t.update({"model.layers.0.mlp.experts.1.gate_proj.weight": torch.zeros(2, 2)}),
    ],
)  # fmt: skip
def test_what_a_rule_cannot_take_is_refused_with_the_tensor_and_the_rule(tmp_path: Path, spoil: Any) -> None:
    tensors = apart()
    spoil(tensors)
    path = write(tmp_path, tensors)
    with refuses(UnsupportedError) as refused:
        renamed(load_weights(path), [PACK])
    assert "experts.#.gate_proj.weight, *.experts.#.up_proj.weight -> *.experts.gate_up_proj'" in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "rule",
    [
        ConversionRule("*.a", "b"),
        ConversionRule("a.#", "b"),
        ConversionRule(["a", "b"], "c"),
        ConversionRule("*#", "*#", Stack(0)),
        ConversionRule("a", ["b", "c"], Split(0, ("no_such_number", 1))),
    ],
)
def test_a_rule_that_is_none_says_why(path: Path, rule: ConversionRule) -> None:
    with refuses((ValueError, UnsupportedError)):
        renamed(load_weights(path), [rule])


def test_a_configuration_is_needed_and_not_trusted(tmp_path: Path) -> None:
    path = write(tmp_path, apart())
    weights, config = load_weights(path), tmp_path / "config.json"
    for content in (
        "[]",
        "{",
        "{}",
        '{"model_type": "no_such_model"}',
        "[" * 100_000,
    ):
        config.write_text(content)
        with refuses(UnsupportedError):
            renamed(weights, "transformers5")
    config.unlink()
    with refuses(ValueError, "argument.config"):
        renamed(weights, "transformers5")
    assert_equal(renamed(weights, "transformers5", config=CONFIG).load(framework="torch"), packed(apart()))
    with refuses(ValueError, "argument.choice"):
        renamed(weights, "vlm")
    with refuses(ValueError, "argument.part"):
        renamed(weights.model, "vllm")
    assert renamed(weights, "hf", config=CONFIG) is weights


def test_own_rules_go_before_those_of_a_table(path: Path) -> None:
    rules = [ConversionRule("model.norm.*", "final.*"), *conversion_rules("transformers5", CONFIG)]
    expected = packed(load_file(path))
    expected["final.weight"] = expected.pop("model.norm.weight")
    assert_equal(renamed(load_weights(path), rules).load(framework="torch"), expected)


def test_a_hostile_shape_makes_few_names(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40, 0, 4], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with refuses(UnsupportedError, "names.conversion"):
        renamed(load_weights(path), [ConversionRule("w", "w.#", Unstack(0))])


@st.composite
def _programs(draw: st.DrawFn) -> tuple[ConversionRule, Tensors]:
    """Draw a rule, and tensors that match it and its steps."""
    count, listed = draw(st.integers(1, 3)), draw(st.booleans())
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from([2, 4, 6])) for _ in range(rank)]
    numbers = range(draw(st.integers(1, 4))) if listed else range(1)
    names = [f"x.#.s{i}" if listed else f"x.s{i}" for i in range(count)]
    values = iter(range(10**6))

    def tensor() -> torch.Tensor:
        return torch.tensor([next(values) for _ in range(math.prod(shape))], dtype=torch.int32).reshape(shape)

    tensors = {name.replace("#", str(number)): tensor() for name in names for number in numbers}
    steps: list[Any] = []
    if listed and draw(st.booleans()):
        axis = draw(st.integers(0, rank))
        steps.append(Stack(axis))
        shape = [*shape[:axis], len(numbers), *shape[axis:]]
        listed = False
    slots = count
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.integers(0, len(shape) - 1))
        kind = draw(st.sampled_from(["concatenate", "interleave", "elements", "transpose", "split", "deinterleave"]))
        if kind == "transpose":
            other = draw(st.integers(0, len(shape) - 1))
            steps.append(Transpose(axis, other))
            shape[axis], shape[other] = shape[other], shape[axis]
        elif kind in ("concatenate", "interleave", "elements"):
            parts = tuple([1] * slots)
            groups = draw(st.sampled_from([n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0] or [1]))
            steps.append(
                Concatenate(axis, parts)
                if kind == "concatenate"
                else Interleave(axis, None if kind == "elements" else groups, parts)
            )
            shape[axis] *= slots
            slots = 1
        elif slots == 1 and shape[axis] % 2 == 0:
            groups = draw(st.sampled_from([n for n in range(1, shape[axis] // 2 + 1) if shape[axis] % (2 * n) == 0]))
            steps.append(Split(axis, (1, 1)) if kind == "split" else Deinterleave(axis, groups, (1, 1)))
            shape[axis] //= 2
            slots = 2
    targets = [f"y.#.t{i}" if listed else f"y.t{i}" for i in range(slots)]
    return ConversionRule(names, targets, steps), tensors


def _by_torch(rule: ConversionRule, tensors: Tensors) -> Tensors:
    """Apply the steps of a rule to whole tensors sequentially."""
    listed = "#" in rule.sources[0]
    count = sum(name.endswith(".s0") for name in tensors)
    slots = [[tensors[name.replace("#", str(number))] for number in range(count)] for name in rule.sources]
    for step in rule.steps:
        if isinstance(step, Stack):
            slots, listed = [[torch.stack(slot, step.axis)] for slot in slots], False
        elif isinstance(step, Transpose):
            slots = [[tensor.transpose(step.first, step.second) for tensor in slot] for slot in slots]
        elif isinstance(step, Concatenate):
            slots = [[torch.cat(tensors, step.axis) for tensors in zip(*slots, strict=True)]]
        elif isinstance(step, Split):
            slots = [list(parts) for parts in zip(*(tensor.chunk(2, step.axis) for tensor in slots[0]), strict=True)]
        elif isinstance(step, Interleave):
            slots = [[_interleaved(list(sources), step) for sources in zip(*slots, strict=True)]]
        elif isinstance(step, Deinterleave):
            whole = [
                tensor.unflatten(step.axis, (int(step.groups or 1), -1)).chunk(2, step.axis + 1) for tensor in slots[0]
            ]
            slots = [[part.flatten(step.axis, step.axis + 1) for part in parts] for parts in zip(*whole, strict=True)]
    numbers = range(count) if listed else range(1)
    return {
        name.replace("#", str(number)): slots[i][number].contiguous()
        for i, name in enumerate(rule.targets)
        for number in numbers
    }


def _interleaved(sources: list[torch.Tensor], step: Interleave) -> torch.Tensor:
    groups = sources[0].shape[step.axis] if step.groups is None else int(step.groups)
    cut = [tensor.unflatten(step.axis, (groups, -1)) for tensor in sources]
    return torch.cat(cut, step.axis + 1).flatten(step.axis, step.axis + 1)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=_programs())
def test_any_rule_is_what_torch_does_and_leads_back(tmp_path: Path, program: tuple[ConversionRule, Tensors]) -> None:
    rule, tensors = program
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    view = renamed(load_weights(path), [rule])
    expected = _by_torch(rule, tensors)
    assert_equal(view.load(framework="torch"), expected)
    for name, tensor in expected.items():
        part = torch.from_dlpack(view[name][1:, ...] if tensor.ndim == 1 else view[name][1:, :1])
        assert torch.equal(part, tensor[1:] if tensor.ndim == 1 else tensor[1:, :1])
    assert_equal(renamed(view, [rule.reverse()]).load(framework="torch"), tensors)
