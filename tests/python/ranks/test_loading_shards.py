"""`load(shard=…)`: each rank has the shards of its strategies, and all of them together have the whole."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import max_weights
from max_weights import Buffer
from max_weights.errors import ArgumentError
from max_weights.sharding import Segment, Shard, ShardingStrategy, Table, experts
from max_weights.sharding._shares import DeviceShare
from refusals import refuses
from test_loading import FILES, raw

S = ShardingStrategy
WORLD = 3


def by_shape(weights: Any) -> Callable[[str], ShardingStrategy | None]:
    """Rows for names with an odd number of letters, columns for others; tensors without that axis are replicated."""

    def strategy(name: str) -> ShardingStrategy | None:
        shape = weights[name].shape
        axis = len(name) % 2 if len(shape) > 1 else 0
        encoding = weights[name].data().quantization_encoding
        if not shape or (axis == 1 and encoding is not None and shape[1] // encoding.block_size % WORLD):
            return None
        return S.axiswise(axis, WORLD)

    return strategy


@pytest.mark.parametrize("backend", ["mmap", "read"])
@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("name", FILES)
def test_a_rank_has_what_its_strategy_takes_of_each_weight(
    models: Path, name: str, copy: bool | None, backend: Any
) -> None:
    weights = max_weights.load_weights(models / name, backend=backend)
    strategies = by_shape(weights)
    names = [info.name for info in max_weights.infos(weights)][:60]
    for rank in range(WORLD):
        loaded = weights.load(names, shard=Shard(rank, WORLD, strategies), packed="keep", copy=copy)
        assert list(loaded) == names
        for path, tensor in loaded.items():
            strategy, data = strategies(path), weights[path].data()
            expected = data.to_buffer() if strategy is None else strategy.take(data, rank).to_buffer()
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), path
            assert raw(tensor) == raw(expected), path
            assert strategy is None or tensor.is_contiguous


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["minilm.safetensors", "derived/layer0.bf16.pt", "derived/minilm-ffn-allquants.gguf"])
def test_the_dtype_comes_after_the_cut(models: Path, name: str, dtype: str) -> None:
    weights = max_weights.load_weights(models / name)
    strategies = by_shape(weights)
    names = [info.name for info in max_weights.infos(weights)][:40]
    whole = weights.load(names, dtype=dtype)
    for rank in range(WORLD):
        for path, tensor in weights.load(names, shard=Shard(rank, WORLD, strategies), dtype=dtype).items():
            strategy = strategies(path)
            expected = whole[path] if strategy is None else strategy.take(whole[path], rank)
            assert (tensor.dtype, tensor.shape, raw(tensor)) == (expected.dtype, expected.shape, raw(expected)), path


def joined(ranks: list[Buffer], whole: Buffer) -> Any:
    arrays = [rank.to_numpy() for rank in ranks]
    axes = [axis for axis in range(len(whole.shape)) if arrays[0].shape[axis] != whole.shape[axis]]
    return np.concatenate(arrays, axes[0]) if axes else arrays[0]


def test_the_ranks_of_a_gguf_model_have_the_whole_together(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    layer = ["model.embed_tokens", "model.layers.0", "model.layers.29"]
    whole = weights.load(layer, rename="hf", dtype="float32")
    ranks = [weights.load(layer, rename="hf", dtype="float32", shard=Shard(rank, 3, "auto")) for rank in range(3)]
    for name, tensor in whole.items():
        np.testing.assert_array_equal(joined([rank[name] for rank in ranks], tensor), tensor.to_numpy(), name)
    assert ranks[0]["model.layers.0.self_attn.k_proj.weight"].shape == (64, 576)  # one of three heads
    assert ranks[0]["model.layers.0.self_attn.o_proj.weight"].shape == (576, 192)
    assert ranks[0]["model.embed_tokens.weight"].shape == (16384, 576)
    with refuses(ArgumentError, "argument.strategy"):
        weights.load(shard=Shard(0, 3, "llama"))
    with refuses(ArgumentError, "argument.strategy"):
        weights.load("model.layers.0.self_attn.q_proj", rename="hf", shard=Shard(0, 2, "llama"))


TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 80,
    "max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 6, "moe_intermediate_size": 16, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
LATENT = {
    "num_key_value_heads": 8,
    "n_routed_experts": 4,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "n_group": 1,
    "topk_group": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "phi3": {"pad_token_id": 0},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": EXPERTS | {"head_dim": 8},
    "mixtral": {"num_local_experts": 4},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small models as transformers saves them."""
    import torch
    import transformers

    made: dict[str, Path] = {}

    def save(model: str) -> Path:
        if model not in made:
            torch.manual_seed(0)
            config = transformers.AutoConfig.for_model(model, **TINY | MODELS[model])
            made[model] = tmp_path_factory.mktemp(model)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made[model])
        return made[model]

    return save


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_the_table_of_a_model_is_that_of_transformers(saved: Any, model: str, world: int) -> None:
    import transformers

    weights = max_weights.load_weights(saved(model))
    ranks = [weights.load(shard=Shard(rank, world, "auto")) for rank in range(world)]
    config = transformers.AutoConfig.from_pretrained(saved(model))
    # transformers only knows its in-memory names of experts.
    plan = {
        "*.experts.*.gate_proj": "colwise",
        "*.experts.*.up_proj": "colwise",
        "*.experts.*.w[13]": "colwise",
        "*.experts.*.down_proj": "rowwise",
        "*.experts.*.w2": "rowwise",
        "*.shared_expert.gate_proj": "colwise",
        "*.shared_expert.up_proj": "colwise",
        "*.shared_expert.down_proj": "rowwise",
        "lm_head": "colwise",
        "embed_tokens": "colwise",
    }
    if model == "deepseek_v3":  # it has no plan for attention, unlike the previous one
        plan |= {f"*.self_attn.{name}_proj": "colwise" for name in ("q", "q_b", "kv_b")} | {"*.o_proj": "rowwise"}
    plan |= config.base_model_tp_plan
    patterns = [(re.compile(".*" + key.replace(".", r"\.").replace("*", r".+")), how) for key, how in plan.items()]
    for name, tensor in weights.load().items():
        shards = [rank[name] for rank in ranks]
        module, _, kind = name.rpartition(".")
        how = next((how for pattern, how in patterns if pattern.fullmatch(module)), "")
        axis = 0 if how.startswith("colwise") else 1 if how.startswith("rowwise") and kind == "weight" else None
        shape = list(tensor.shape)
        if axis is not None:
            shape[axis] //= world
        assert [list(shard.shape) for shard in shards] == [shape] * world, name
        if not name.endswith(("qkv_proj.weight", "gate_up_proj.weight")):
            np.testing.assert_array_equal(joined(shards, tensor), tensor.to_numpy(), name)


def test_heads_of_keys_are_repeated_where_they_are_fewer_than_ranks(saved: Any) -> None:
    weights = max_weights.load_weights(saved("llama"))
    keys = weights.model.layers[0].self_attn.k_proj.weight.numpy()  # 4 heads of 4
    for rank in range(8):
        loaded = weights.load("model.layers.0", shard=Shard(rank, 8, "llama"))
        head = rank // 2
        np.testing.assert_array_equal(
            loaded["model.layers.0.self_attn.k_proj.weight"].to_numpy(), keys[4 * head : 4 * head + 4]
        )
        assert loaded["model.layers.0.self_attn.q_proj.weight"].shape == (4, 32)
    with refuses(ArgumentError, "argument.strategy"):
        weights.load(shard=Shard(0, 16, "llama"))


def test_fused_projections_are_split_part_by_part(saved: Any) -> None:
    weights = max_weights.load_weights(saved("phi3"))
    layer = weights.model.layers[0]
    qkv, gate_up = layer.self_attn.qkv_proj.weight.numpy(), layer.mlp.gate_up_proj.weight.numpy()
    queries, keys, values = qkv[:32], qkv[32:48], qkv[48:]
    for world in (2, 8):
        for rank in range(world):
            loaded = weights.load("model.layers.0", shard=Shard(rank, world, "auto"), framework="numpy")
            q, head = 32 // world, 4 * (rank * 4 // world)
            k = slice(head, head + 16 // min(world, 4))
            expected = np.concatenate([queries[rank * q : (rank + 1) * q], keys[k], values[k]])
            np.testing.assert_array_equal(loaded["model.layers.0.self_attn.qkv_proj.weight"], expected)
            share = 64 // world
            expected = np.concatenate(
                [half[rank * share : (rank + 1) * share] for half in (gate_up[:64], gate_up[64:])]
            )
            np.testing.assert_array_equal(loaded["model.layers.0.mlp.gate_up_proj.weight"], expected)


@pytest.mark.parametrize("transposed", [False, True])
def test_stacked_experts_are_split_inside_or_among_ranks(make_file: Any, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    gate_up, down = rng.random((6, 16, 10), np.float32), rng.random((6, 10, 8), np.float32)  # hidden size 10
    if transposed:
        gate_up, down = gate_up.swapaxes(1, 2).copy(), down.swapaxes(1, 2).copy()
    names = ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"]
    weights = max_weights.load_weights(make_file(dict(zip(names, (gate_up, down), strict=True))))
    axis = 2 if transposed else 1
    for rank in range(4):
        table = Table("qwen", 4, num_heads=4, hidden_size=10)
        loaded = weights.load(shard=Shard(rank, 4, table), framework="numpy")
        halves = np.split(gate_up, 2, axis)
        expected = np.concatenate([np.split(half, 4, axis)[rank] for half in halves], axis)
        np.testing.assert_array_equal(loaded[names[0]], expected)
        np.testing.assert_array_equal(loaded[names[1]], np.split(down, 4, 3 - axis)[rank])
        whole = Table("qwen", 4, num_heads=4, expert_parallel=True)
        loaded = weights.load(shard=Shard(rank, 4, whole), framework="numpy")
        np.testing.assert_array_equal(loaded[names[0]], np.array_split(gate_up, 4)[rank])
    with refuses(ArgumentError, "argument.strategy"):
        weights.load(shard=Shard(0, 4, Table("qwen", 4, num_heads=4)))
    with refuses(ArgumentError, "argument.strategy"):
        weights.load(experts(0, 4))


def with_experts(make_file: Any, count: int) -> Any:
    tensors = {"model.embed_tokens.weight": np.zeros((4, 4), np.float32)}
    for layer in range(2):
        tensors[f"model.layers.{layer}.mlp.shared_experts.up_proj.weight"] = np.ones((4, 4), np.float32)
        for number in range(count):
            name = f"model.layers.{layer}.mlp.experts.{number}.up_proj.weight"
            tensors[name] = np.full((4, 4), number, np.float32)
    return max_weights.load_weights(make_file(tensors))


def test_each_rank_has_its_experts_whole_and_no_others(make_file: Any) -> None:
    weights = with_experts(make_file, 60)
    found = []
    for rank in range(8):
        loaded = weights.load(experts(rank, 8))
        mine = [name for name in loaded if ".experts." in name]
        assert len(loaded) - len(mine) == 3
        assert list(weights.load(select=experts(rank, 8, only=True))) == mine
        assert len(mine) == 2 * (8 if rank < 4 else 7)
        found += mine
    assert sorted(found) == sorted(info.name for info in max_weights.infos(weights) if ".experts." in info.name)
    first = np.array_split(np.arange(60), 8)[5]
    loaded = weights.load(experts(5, 8, only=True), framework="numpy")
    assert sorted({int(array[0, 0]) for array in loaded.values()}) == first.tolist()


def test_experts_that_cannot_be_shared_out_are_an_error_by_name(make_file: Any) -> None:
    weights = with_experts(make_file, 3)
    with refuses(ArgumentError, "argument.number"):
        experts(3, 3)
    with refuses(ArgumentError, "argument.strategy"):
        weights.model.embed_tokens.load(experts(0, 2))
    gap = {f"mlp.experts.{number}.w1.weight": np.zeros(1, np.float32) for number in (0, 1, 3)}
    weights = max_weights.load_weights(make_file(gap))
    with refuses(ArgumentError, "argument.strategy"):
        weights.load(experts(0, 2))


def test_scales_go_where_their_weights_go(make_file: Any) -> None:
    rng = np.random.default_rng(0)
    layer = "model.layers.0."
    arrays = {
        layer + "mlp.up_proj.weight": rng.integers(0, 99, (512, 256), np.int8),
        layer + "mlp.up_proj.weight_scale_inv": rng.random((4, 2), np.float32),
        layer + "mlp.down_proj.weight": rng.integers(0, 99, (256, 512), np.int8),
        layer + "mlp.down_proj.weight_scale_inv": rng.random((2, 4), np.float32),
        layer + "mlp.gate_proj.weight": rng.integers(0, 99, (512, 256), np.int8),
        layer + "mlp.gate_proj.weight_scale": rng.random((512, 1), np.float32),
        layer + "mlp.gate_proj.input_scale": np.full((), 2, np.float32),
        layer + "mlp.gate_up_proj.weight": rng.integers(0, 99, (512, 256), np.int8),
        layer + "mlp.gate_up_proj.weight_scale_inv": rng.random((4, 2), np.float32),
    }
    weights = max_weights.load_weights(make_file(arrays))
    for rank in range(2):
        loaded = weights.load(shard=Shard(rank, 2, Table("llama", 2, num_heads=4)), framework="numpy")
        for name, axis in (
            ("up_proj.weight_scale_inv", 0),
            ("down_proj.weight_scale_inv", 1),
            ("gate_proj.weight_scale", 0),
        ):
            expected = np.split(arrays[f"{layer}mlp.{name}"], 2, axis)[rank]
            np.testing.assert_array_equal(loaded[f"{layer}mlp.{name}"], expected)
        scales = arrays[layer + "mlp.gate_up_proj.weight_scale_inv"]
        np.testing.assert_array_equal(loaded[layer + "mlp.gate_up_proj.weight_scale_inv"], scales[[rank, 2 + rank]])
        assert loaded[layer + "mlp.gate_proj.input_scale"] == 2
    message = r"up_proj\.weight_scale_inv' .* cannot be split as '.*up_proj\.weight' is: .* inside a block of 128"
    with pytest.raises(ArgumentError, match=message):
        weights.load(layer + "mlp.up_proj", shard=Shard(0, 8, Table("llama", 8, num_heads=8)))


@pytest.mark.parametrize(
    "last", ["qweight", "qzeros", "scales", "g_idx", "weight.absmax", "weight.quant_state.bitsandbytes__nf4"]
)
def test_layers_that_are_packed_otherwise_are_refused_by_name(make_file: Any, last: str) -> None:
    name = f"model.layers.0.mlp.up_proj.{last}"
    weights = max_weights.load_weights(make_file({name: np.zeros((8,), np.int32)}))
    with refuses(ArgumentError, "argument.strategy") as error:
        weights.load(shard=Shard(0, 2, Table("llama", 2, num_heads=2)))
    assert error.value.tensor == name
    own = {name: S.rowwise(2)} | Table("llama", 2, num_heads=2)
    assert weights.load(shard=Shard(0, 2, own))[name].shape == (4,)


def test_rows_of_ones_own_come_before_those_of_a_table(make_file: Any) -> None:
    arrays = {
        "model.layers.0.mlp.up_proj.weight": np.zeros((4, 4), np.float32),
        "visual.patch.weight": np.zeros((4, 4), np.float32),
    }
    weights = max_weights.load_weights(make_file(arrays))
    table = Table("llama", 2, num_heads=2)
    with refuses(ArgumentError, "argument.strategy") as error:
        weights.load(shard=Shard(0, 2, table))
    assert error.value.tensor == "visual.patch.weight"
    own = {"visual": None, "*.up_proj.weight": S.columnwise(2)} | table
    assert isinstance(own, Table)
    loaded = weights.load(shard=Shard(0, 2, own))
    assert [tensor.shape for tensor in loaded.values()] == [(4, 2), (4, 4)]
    plain = {re.compile(r".*up_proj\.weight"): S.rowwise(2)}  # custom mapping: tensors without a row are replicated
    assert [tensor.shape for tensor in weights.load(shard=Shard(1, 2, plain)).values()] == [(2, 4), (4, 4)]


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        (
            (0, 2, {}),
            r"a max_weights\.sharding\.Shard\(rank, world_size, strategies\), not \(0, 2, \{\}\)",
        ),
        ("llama", r"shard must be a max_weights\.sharding\.Shard\(rank, world_size, strategies\)"),
        (Shard(2, 2, {}), "no rank 2 of 2"),
        (Shard(-1, 2, {}), "no rank -1 of 2"),
        (Shard(0, 0, {}), "no rank 0 of 0"),
        (Shard(True, 2, {}), "the rank of shard must be an int, not True"),
        (Shard(0, 2.0, {}), r"the world_size of shard must be an int, not 2\.0"),
        (Shard(0, 2, "lama"), "there is no table of strategies called 'lama'; there are 'llama', 'qwen'"),
        (Shard(0, 2, "llama"), r"needs the number of heads, but there is no '.*config\.json'"),
        (Shard(0, 2, 7), "a function of the name, or the name of a table, not 7"),
        (Shard(0, 2, {"pooler": "rowwise"}), r"'pooler' must map to a ShardingStrategy, or None .* not 'rowwise'"),
        (Shard(0, 2, lambda _: 3), r"'.*' must map to a ShardingStrategy, or None .* not 3"),
        (
            Shard(0, 2, {"pooler": S.rowwise(4)}),
            r"'pooler\.dense\.bias' .* strategy for 4 devices, but there are 2",
        ),
        (
            Shard(0, 2, {"pooler": S.columnwise(2)}),
            r"'pooler\.dense\.bias' of shape \[384\] cannot be .* no axis 1",
        ),
        (
            Shard(0, 2, {"pooler": S.tensor_parallel(2)}),
            r"'pooler\.dense\.bias' .* tensor_parallel is for",
        ),
        (Shard(0, 2, {"pooler": S(2, lambda *_: 1)}), r"'pooler\.dense\.bias' .* must return a slice"),
        (Shard(0, 5, {"pooler": S.gate_up(5, 0), "*": None}), None),
        (
            Shard(0, 7, {"*.dense.weight": S(7, DeviceShare(-2))}),
            "axis 0 of size 384 does not divide into 7 equal shares",
        ),
    ],
)
def test_a_shard_that_makes_no_sense_is_an_error_at_once(models: Path, shard: Any, message: Any) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    if message is None:
        assert weights.load(["pooler", "encoder.layer.0"], shard=shard)["pooler.dense.bias"].shape == (78,)
        return
    called: list[int] = []
    with refuses(ArgumentError):
        weights.load(shard=shard, progress=lambda *_: called.append(1))
    assert not called


def test_an_edge_inside_a_packed_block_is_an_error_by_name(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    name = "blk.0.attn_output.weight"
    cases: tuple[Literal["keep"] | None, ...] = (None, "keep")
    for packed in cases:
        with refuses(ArgumentError, "argument.strategy") as error:
            weights.load(name, shard=Shard(0, 4, {name: S.columnwise(4)}), packed=packed)
        assert error.value.tensor == name


def test_types_that_are_not_known_are_loaded_whole_alone(make_file: Any) -> None:
    weights = max_weights.load_weights(make_file({"w": ("F5_E2M2", [4, 4], bytes(10)), "b": np.array([True, False])}))
    with refuses(ArgumentError, "argument.strategy"):
        weights.load(shard=Shard(0, 2, S.rowwise(2)))
    loaded = weights.load(shard=Shard(1, 2, {"b": S.rowwise(2), "w": None}))
    assert loaded["b"].to_numpy().tolist() == [False]
    assert loaded["w"].shape == weights.w.data().shape


def test_types_that_only_torch_has_are_split(tmp_path: Path) -> None:
    import torch

    values = torch.arange(12.0).reshape(4, 3).to(torch.complex128)
    torch.save({"z": values}, tmp_path / "z.pt")
    for axis in (0, 1):
        shard = Shard(1, 2, S.axiswise(axis, 2))
        loaded = max_weights.load_weights(tmp_path / "z.pt").load(shard=shard, framework="torch")
        assert torch.equal(loaded["z"], values[2:] if axis == 0 else values[:, 2:])


def test_bytes_of_a_rank_land_in_the_callers_memory(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    name = "pooler.dense.weight"
    whole = weights[name].numpy()
    for axis, expected in ((0, whole[96:192]), (1, whole[:, 96:192])):
        shard = Shard(1, 4, S.axiswise(axis, 4))
        for dtype in (None, "float16"):
            out = np.zeros(expected.shape, dtype or np.float32)
            loaded = weights.load(name, shard=shard, dtype=dtype, out={name: out})
            np.testing.assert_array_equal(out, expected.astype(out.dtype))
            assert loaded[name]._data_ptr() == out.ctypes.data
        with refuses(ValueError):
            weights.load(name, shard=shard, out={name: np.zeros(whole.shape, np.float32)})


def test_a_configuration_that_does_not_say_enough_is_an_error_by_path(saved: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((saved("llama") / "model.safetensors").read_bytes())
    config = tmp_path / "config.json"
    weights = max_weights.load_weights(tmp_path / "model.safetensors")
    for text, message in (
        ("{", r"config\.json' is not valid JSON"),
        ("[]", r"config\.json' is not a JSON object"),
        (json.dumps({"model_type": "gpt2"}), "the model type 'gpt2' in .*; choose 'llama'"),
        (json.dumps({"model_type": "llama"}), "num_attention_heads is None in"),
        (json.dumps({"model_type": "llama", "num_attention_heads": "8"}), "num_attention_heads is '8' in"),
    ):
        config.write_text(text)
        with pytest.raises(ArgumentError, match=message):
            weights.load(shard=Shard(0, 2, "auto"))
    with refuses(ArgumentError, "argument.config"):
        Table("llama", 2, num_heads=8, num_kv_heads=3)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_a_function_may_cut_several_axes(models: Path, dtype: str | None) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    name = "pooler.dense.weight"
    expected = weights[name].numpy()[192:, 96:192].astype(dtype or np.float32)
    strategies = {name: S(2, lambda weight, i, n: weight[i * 192 : (i + 1) * 192, n * 48 : n * 96])}
    loaded = weights.load("pooler", shard=Shard(1, 2, strategies), dtype=dtype, framework="numpy")
    np.testing.assert_array_equal(loaded[name], expected)
    assert loaded["pooler.dense.bias"].shape == (384,)
    out = np.zeros_like(expected)
    weights.load(name, shard=Shard(1, 2, strategies), dtype=dtype, out={name: out})
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("copy", [None, True])
def test_columns_of_long_rows_are_read_without_what_is_between(make_file: Any, dtype: Any, copy: bool | None) -> None:
    values = np.random.default_rng(0).standard_normal((3, 64, 9000)).astype(np.float16)
    weights = max_weights.load_weights(make_file({"w": ("F16", list(values.shape), values.tobytes())}))
    expected = values.astype(dtype or np.float16)
    for rank, part in enumerate(np.split(expected, 4, 2)):
        shard = Shard(rank, 4, S.axiswise(2, 4))
        assert raw(weights.load(shard=shard, dtype=dtype, copy=copy)["w"]) == part.tobytes()
    for rank in range(3):
        halves = [expected[:, :, start + 1500 * rank : start + 1500 * (rank + 1)] for start in (0, 4500)]
        shard = Shard(rank, 3, S.segmented(3, 2, [Segment.even(4500)] * 2))
        assert raw(weights.load(shard=shard, dtype=dtype, copy=copy)["w"]) == np.concatenate(halves, 2).tobytes()
        corner = S(3, lambda weight, i, n: weight[:, i * 20 : i * 20 + 21, i * n * 1000 : i * n * 1000 + 700])
        shard = Shard(rank, 3, {"w": corner})
        out = np.zeros((3, 21, 700), expected.dtype)
        weights.load(shard=shard, dtype=dtype, out={"w": out})
        np.testing.assert_array_equal(out, expected[:, rank * 20 : rank * 20 + 21, rank * 3000 : rank * 3000 + 700])


def test_elements_of_half_a_byte_are_split_between_bytes(make_file: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 255, (6, 4), np.uint8)
    weights = max_weights.load_weights(make_file({"w": ("F4", [6, 8], values.tobytes())}))
    for axis, count in ((0, 3), (1, 2)):
        for rank in range(count):
            loaded = weights.load(shard=Shard(rank, count, S.axiswise(axis, count)))["w"]
            assert raw(loaded) == np.split(values, count, axis)[rank].tobytes()
    with refuses(ValueError):
        weights.load(shard=Shard(0, 3, S.columnwise(3)))
