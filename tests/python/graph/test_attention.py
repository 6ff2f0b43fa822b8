"""Rotary positions and attention: the results are those of torch and transformers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from layer_runs import CPU, called, filled, near
from max_weights import nn
from max_weights.engine import InferenceSession
from max_weights.errors import UnsupportedError
from max_weights.graph import Dim, Graph, TensorType, ops
from max_weights.nn import MHAMaskVariant, scaled_dot_product_attention
from max_weights.nn.attention import num_heads_for_device
from refusals import refuses

LLAMA3 = nn.Llama3RopeScalingParams(8.0, 1.0, 4.0, 8192)


def llama_rotary(x: torch.Tensor, theta: float, scaling: dict[str, Any] | None = None) -> torch.Tensor:
    """The pairs of Hugging Face's Llama: feature i and i + head_dim / 2. `x` is [batch, positions, heads, head_dim]."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    head_dim, heads = x.shape[-1], x.shape[-2]
    rope = {"rope_type": "default", "rope_theta": theta, **(scaling or {})}
    config = LlamaConfig(
        hidden_size=head_dim * heads,
        num_attention_heads=heads,
        max_position_embeddings=131072,
        rope_parameters=rope,
    )
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(x.shape[1])[None])
    by_head = x.transpose(1, 2)
    turned, _ = apply_rotary_pos_emb(by_head, by_head, cos, sin)
    return turned.transpose(1, 2)


def cohere_rotary(x: torch.Tensor, theta: float) -> torch.Tensor:
    """The pairs of Cohere, and of Meta's Llama: feature 2i and 2i + 1."""
    from transformers.models.cohere.configuration_cohere import CohereConfig
    from transformers.models.cohere.modeling_cohere import CohereRotaryEmbedding, apply_rotary_pos_emb

    head_dim, heads = x.shape[-1], x.shape[-2]
    rope = {"rope_type": "default", "rope_theta": theta}
    config = CohereConfig(hidden_size=head_dim * heads, num_attention_heads=heads, rope_parameters=rope)
    cos, sin = CohereRotaryEmbedding(config)(x, torch.arange(x.shape[1])[None])
    by_head = x.transpose(1, 2)
    turned, _ = apply_rotary_pos_emb(by_head, by_head, cos, sin)
    return turned.transpose(1, 2)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_is_that_of_transformers(theta: float, interleaved: bool) -> None:
    x = torch.randn(2, 32, 3, 16)
    rope = nn.RotaryEmbedding(48, 3, theta, 64, interleaved=interleaved)
    assert rope.head_dim == 16
    expected = cohere_rotary(x, theta) if interleaved else llama_rotary(x, theta)
    near(called(rope, x, sizes=(2, 3)), expected)


def test_llama3_rotary_embedding_is_that_of_transformers() -> None:
    x = torch.randn(1, 32, 2, 128)
    rope = nn.Llama3RotaryEmbedding(256, 2, 500000.0, 8192, interleaved=False, scaling_params=LLAMA3)
    scaling = {
        "rope_type": "llama3",
        "factor": LLAMA3.factor,
        "low_freq_factor": LLAMA3.low_freq_factor,
        "high_freq_factor": LLAMA3.high_freq_factor,
        "original_max_position_embeddings": LLAMA3.orig_max_position,
    }
    expected = llama_rotary(x, 500000.0, scaling)
    near(called(rope, x, sizes=(2, 3)), expected)
    assert not torch.allclose(expected, llama_rotary(x, 500000.0), rtol=1e-3, atol=1e-3)


def test_llama3_without_scaling_is_the_plain_one() -> None:
    x = torch.randn(1, 8, 2, 16)
    near(called(nn.Llama3RotaryEmbedding(32, 2, 10000.0, 64), x, sizes=(2, 3)), cohere_rotary(x, 10000.0))


def test_llama3_with_one_factor_for_low_and_high_has_nothing_between() -> None:
    params = nn.Llama3RopeScalingParams(8.0, 4.0, 4.0, 64)
    rope = nn.Llama3RotaryEmbedding(16, 1, 100.0, 8, scaling_params=params)
    found = called(lambda x: ops.reshape(rope.freqs_cis, [16, 8, 2])[1] + x * 0, torch.zeros(8, 2), sizes=(0, 1))
    frequencies = 100.0 ** (-torch.arange(0, 16, 2) / 16)
    angles = torch.where(frequencies * 64 / (2 * torch.pi) > 4, frequencies, frequencies / 8)
    near(found, torch.stack([angles.cos(), angles.sin()], -1))


def test_rotary_embedding_may_begin_at_any_position() -> None:
    x = torch.randn(1, 12, 2, 16)
    rope = nn.RotaryEmbedding(32, 2, 10000.0, 64)
    whole = cohere_rotary(x, 10000.0)
    near(called(lambda part: rope(part, Dim(5), Dim(7)), x[:, 5:].contiguous(), sizes=range(4)), whole[:, 5:])


def test_the_table_has_cosines_and_sines_of_twice_as_many_positions() -> None:
    rope = nn.RotaryEmbedding(32, 2, 10000.0, 8)
    with Graph("g") as graph:
        assert list(rope.freqs_cis_base().shape) == [16, 8, 2]
        table = rope.freqs_cis
        assert list(table.shape) == [16, 16]
        graph.output(table)
    found = InferenceSession().load(graph).execute()[0].to_numpy().reshape(16, 8, 2)
    angles = np.outer(np.arange(16), 10000.0 ** (-np.arange(0, 16, 2) / 16))
    np.testing.assert_allclose(found[..., 0], np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(found[..., 1], np.sin(angles), atol=1e-6)
    assert not any(hasattr(node.attributes.get("value"), "shape") for node in graph.nodes)  # no table as a constant


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_table_of_ones_own_is_used(rank: int, interleaved: bool) -> None:
    angles = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    table = np.stack([np.cos(angles), np.sin(angles)], -1)
    rope = nn.RotaryEmbedding(32, 2, 1.0, 10, _freqs_cis=table.reshape(20, 16) if rank == 2 else table)
    rope.interleaved = interleaved
    x = torch.randn(2, 12, 2, 16)
    pairs = x.reshape(2, 12, 2, 8, 2) if interleaved else torch.stack(x.chunk(2, -1), -1)
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous())
        * torch.polar(torch.ones(12, 1, 8), torch.from_numpy(angles)[:12, None])
    )
    expected = turned.flatten(-2) if interleaved else torch.cat([turned[..., 0], turned[..., 1]], -1)
    near(called(rope, x, sizes=range(4)), expected)


def test_a_class_with_a_table_of_its_own_uses_it() -> None:
    class Doubled(nn.RotaryEmbedding):
        def freqs_cis_base(self) -> Any:
            return super().freqs_cis_base() * 2

    x = torch.randn(2, 6, 2, 16)
    near(called(Doubled(32, 2, 10000.0, 8), x, sizes=range(4)), 2 * cohere_rotary(x, 10000.0))


def test_positions_are_recorded_once_in_a_graph_and_go_with_it() -> None:
    rope = nn.RotaryEmbedding(32, 2, 10000.0, 8)
    graph = Graph("g", input_types=[TensorType("float32", ["b", "n", 2, 16], CPU)])
    with graph:
        for _ in range(3):
            rope(graph.inputs[0])
    assert [node.op for node in graph.nodes].count("cos") == 1
    with Graph("h", input_types=[TensorType("float32", ["b", "n", 2, 16], CPU)]) as other:
        rope(other.inputs[0])
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


def test_half_precision_stays_half_precision() -> None:
    x = torch.randn(1, 8, 2, 16).half()
    found = called(nn.RotaryEmbedding(32, 2, 10000.0, 8), x, sizes=(2, 3))
    assert found.dtype == torch.float16
    np.testing.assert_allclose(found.float(), cohere_rotary(x.float(), 10000.0), rtol=5e-3, atol=5e-3)


def test_the_scale_of_a_rope_is_that_of_its_heads() -> None:
    rope = nn.RotaryEmbedding(32, 2, 10000.0, 8)
    assert rope.compute_scale() == 0.25
    assert rope.compute_scale(3.0) == 3.0


MASKS = {
    "bool of all heads": lambda heads, rows, columns: torch.rand(2, heads, rows, columns) > 0.3,
    "bool of one head": lambda _, rows, columns: torch.rand(2, 1, rows, columns) > 0.3,
    "bool of keys": lambda _heads, _rows, columns: torch.rand(2, 1, 1, columns) > 0.3,
    "added": lambda heads, rows, columns: torch.randn(2, heads, rows, columns),
    "added matrix": lambda _, rows, columns: torch.randn(rows, columns),
}


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_scaled_dot_product_attention_is_torchs(heads: int, kv_heads: int, symbolic: bool) -> None:
    q, k, v = torch.randn(2, heads, 5, 8), torch.randn(2, kv_heads, 7, 8), torch.randn(2, kv_heads, 7, 6)
    grouped = {"enable_gqa": heads != kv_heads}
    sizes = (1, 3) if symbolic else range(4)

    def ours(q: Any, k: Any, v: Any) -> Any:
        if symbolic:  # torch detects this at run time
            q, k, v = (
                q.rebind(["b", heads, "q", 8]),
                k.rebind(["b", kv_heads, "k", 8]),
                v.rebind(["b", kv_heads, "k", 6]),
            )
        return scaled_dot_product_attention(q, k, v)

    near(called(ours, q, k, v, sizes=sizes), F.scaled_dot_product_attention(q, k, v, **grouped))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_is_torchs(heads: int, kv_heads: int, mask: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, heads, 5, 8), torch.randn(2, kv_heads, 7, 8), torch.randn(2, kv_heads, 7, 8)
    given = MASKS[mask](heads, 5, 7)
    if given.dtype is torch.bool:
        given[..., 0] = True  # each position attends to something
    expected = F.scaled_dot_product_attention(q, k, v, given, enable_gqa=heads != kv_heads)
    near(called(scaled_dot_product_attention, q, k, v, given, sizes=range(4)), expected)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize("columns", [5, 7])
def test_the_causal_mask_is_torchs(heads: int, kv_heads: int, columns: int) -> None:
    q, k, v = torch.randn(2, heads, 5, 8), torch.randn(2, kv_heads, columns, 8), torch.randn(2, kv_heads, columns, 8)

    def ours(*values: Any) -> Any:
        return scaled_dot_product_attention(*values, mask_variant=MHAMaskVariant.CAUSAL_MASK, scale=0.3)

    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=heads != kv_heads)
    near(called(ours, q, k, v, sizes=range(4)), expected)


@pytest.mark.parametrize(
    "shapes",
    [
        ([2, 3, 5, 8], [2, 2, 5, 8], [2, 2, 5, 8]),
        ([5, 8], [5, 8], [5, 8]),
        (["h", 5, 8], [2, 5, 8], [2, 5, 8]),
        ([2, 5, "d"], [2, 5, "d"], [2, 5, 8]),
        ([2, 5, 8], [2, 6, 7], [2, 6, 7]),
        ([2, 5, 8], [2, 5, 8], [2, 5, 8], [5]),
        ((4, "t", 8), (2, "t", 8), (2, "t", 8), ("h", "t", "t")),
    ],
)
def test_operands_that_do_not_fit_say_so(shapes: Any) -> None:
    graph = Graph("g", input_types=[TensorType("float32", shape, CPU) for shape in shapes])
    with graph, refuses(ValueError, "graph.invalid"):
        scaled_dot_product_attention(*graph.inputs)


def torch_attention(
    v: dict[str, torch.Tensor],
    x: torch.Tensor,
    heads: int,
    kv_heads: int,
    *,
    theta: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """The expected result of `Attention`, by torch: projections, norms, positions, attention, output."""

    def heads_of(name: str, count: int) -> torch.Tensor:
        part = F.linear(x, v[f"{name}_proj.weight"], v.get(f"{name}_proj.bias"))
        part = part.unflatten(-1, (count, -1))
        if f"{name}_norm.weight" in v:
            part = F.rms_norm(part, part.shape[-1:], v[f"{name}_norm.weight"], 1e-6)
        if theta is not None and name != "v":
            part = llama_rotary(part, theta)
        return part.transpose(1, 2)

    q, k, value = heads_of("q", heads), heads_of("k", kv_heads), heads_of("v", kv_heads)
    out = F.scaled_dot_product_attention(q, k, value, enable_gqa=heads != kv_heads, **options)
    return F.linear(out.transpose(1, 2).flatten(-2), v["o_proj.weight"], v.get("o_proj.bias"))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("extras", [{}, {"has_bias": True, "o_proj_has_bias": True}, {"use_qk_norm": True}])
@pytest.mark.parametrize("theta", [None, 10000.0])
def test_attention_is_torchs(heads: int, kv_heads: int, extras: dict[str, Any], theta: float | None) -> None:
    rope = None if theta is None else nn.RotaryEmbedding(8 * heads, heads, theta, 64, interleaved=False)
    layer = nn.Attention(
        num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=8 * heads, rope=rope, **extras
    )
    v = filled(layer)
    x = torch.randn(2, 9, 8 * heads)
    near(called(layer, x), torch_attention(v, x, heads, kv_heads, theta=theta, is_causal=True))
    everything = called(lambda value: layer(value, mask_variant=MHAMaskVariant.NULL_MASK), x)
    near(everything, torch_attention(v, x, heads, kv_heads, theta=theta))


def test_attention_takes_a_mask_beside_the_causal_one() -> None:
    layer = nn.Attention(num_attention_heads=4, num_key_value_heads=2, hidden_size=32)
    v = filled(layer)
    x, seen = torch.randn(2, 6, 32), torch.ones(2, 1, 1, 6, dtype=torch.bool)
    seen[1, ..., 3:5] = False
    both = seen & torch.ones(6, 6, dtype=torch.bool).tril()
    expected = torch_attention(v, x, 4, 2, attn_mask=both)
    near(called(layer, x, seen, sizes=range(4)), expected)


def test_attention_with_heads_of_another_size() -> None:
    layer = nn.Attention(num_attention_heads=3, num_key_value_heads=3, hidden_size=16, head_dim=10, scale=0.7)
    v = filled(layer)
    assert list(v["q_proj.weight"].shape) == [30, 16]
    assert list(v["o_proj.weight"].shape) == [16, 30]
    x = torch.randn(2, 6, 16)
    near(called(layer, x), torch_attention(v, x, 3, 3, is_causal=True, scale=0.7))


def test_attention_with_stacked_weights_is_the_same() -> None:
    apart = nn.Attention(num_attention_heads=4, num_key_value_heads=2, hidden_size=32, has_bias=True)
    v = filled(apart)
    stacked = nn.Attention(
        num_attention_heads=4, num_key_value_heads=2, hidden_size=32, has_bias=True, stacked_qkv=True
    )
    joined = {f"qkv_proj.{part}": torch.cat([v[f"{n}_proj.{part}"] for n in "qkv"]) for part in ("weight", "bias")}
    stacked.load_state_dict({**joined, "o_proj.weight": v["o_proj.weight"]})
    x = torch.randn(2, 6, 32)
    near(called(stacked, x), called(apart, x))


def test_attention_without_a_batch() -> None:
    layer = nn.Attention(num_attention_heads=4, num_key_value_heads=2, hidden_size=32)
    v = filled(layer)
    x = torch.randn(6, 32)
    near(called(layer, x), torch_attention(v, x[None], 4, 2, is_causal=True)[0])


@pytest.mark.parametrize("stacked", [False, True])
def test_multihead_attention_is_torchs(stacked: bool) -> None:
    layer = nn.MultiheadAttention(4, 32, [CPU], qkv_has_bias=True, o_proj_has_bias=True, stacked_qkv=stacked)
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    given = {"o_proj.weight": theirs.out_proj.weight, "o_proj.bias": theirs.out_proj.bias}
    for part, value in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        rows = {f"{n}_proj": rows for n, rows in zip("qkv", value.chunk(3), strict=True)}
        given |= {f"{name}.{part}": rows for name, rows in ({"qkv_proj": value} if stacked else rows).items()}
    layer.load_state_dict({name: value.detach() for name, value in given.items()})
    x = torch.randn(2, 7, 32)
    near(called(layer, x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"num_attention_heads": 5, "num_key_value_heads": 2},
        {"num_attention_heads": 5, "num_key_value_heads": 0},
        {"num_attention_heads": 3, "num_key_value_heads": 3},
    ],
)
def test_heads_that_do_not_fit_say_so(options: dict[str, int]) -> None:
    with refuses(ValueError, "argument.layer"):
        nn.Attention(hidden_size=32, **options)


def test_multihead_attention_on_several_devices_says_what_to_do() -> None:
    with refuses(UnsupportedError, "unsupported.kernel"):
        nn.MultiheadAttention(4, 32, ["gpu:0", "gpu:1"])


def test_the_heads_of_all_devices_are_all_heads() -> None:
    for heads, devices in ((9, 4), (8, 4), (3, 5)):
        each = [num_heads_for_device(num_heads=heads, device_idx=i, num_devices=devices) for i in range(devices)]
        assert sum(each) == heads
        assert each == sorted(each, reverse=True)
        assert max(each) - min(each) <= 1
        with refuses(ValueError, "argument.devices"):
            num_heads_for_device(num_heads=heads, device_idx=devices, num_devices=devices)
