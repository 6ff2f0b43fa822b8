"""The layers of models: their results are those of torch, their names and errors those of MAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from layer_runs import CPU, called, filled, near
from max_weights import DType, nn
from max_weights._quantization import dequantize
from max_weights._weights import load_weights
from max_weights.errors import UnsupportedError
from max_weights.graph import Graph, TensorType, Weight
from max_weights.nn.activation import activation_function_from_name
from refusals import refuses


@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 5, 16), (2, 3, 5, 16)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_is_torchs(shape: tuple[int, ...], has_bias: bool) -> None:
    layer = nn.Linear(16, 8, "float32", CPU, has_bias=has_bias)
    values = filled(layer)
    assert list(values) == ["weight", "bias"][: 1 + has_bias]
    x = torch.randn(shape)
    near(called(layer, x), F.linear(x, values["weight"], values.get("bias")))


def test_linear_loads_the_state_dict_of_torch_linear() -> None:
    theirs = torch.nn.Linear(4, 3)
    ours = nn.Linear(in_dim=4, out_dim=3, dtype="float32", device=CPU, has_bias=True)
    ours.load_state_dict({name: value.detach() for name, value in theirs.state_dict().items()})
    x = torch.randn(2, 4)
    near(called(ours, x), theirs(x))


def test_linear_of_float64_and_float16() -> None:
    for dtype, tolerance in (("float64", 1e-12), ("float16", 2e-3)):
        layer = nn.Linear(16, 8, dtype, CPU)
        weight = filled(layer)["weight"]
        x = torch.randn(4, 16).to(weight.dtype)
        found = called(layer, x)
        assert found.dtype == weight.dtype
        np.testing.assert_allclose(found, x @ weight.T, rtol=tolerance, atol=tolerance)


def test_linear_clips_its_weight() -> None:
    layer = nn.Linear(16, 8, "float32", CPU, clip_weight=0.1)
    weight = filled(layer)["weight"]
    assert weight.abs().max() > 0.1
    x = torch.randn(3, 16)
    near(called(layer, x), x @ weight.clamp(-0.1, 0.1).T)


def test_linear_names_its_weights_by_a_stem() -> None:
    layer = nn.Linear(4, 3, "float32", CPU, has_bias=True, name="lm_head")
    assert list(layer.raw_state_dict()) == ["lm_head.weight", "lm_head.bias"]


def test_linear_of_another_size_names_both_shapes() -> None:
    layer = nn.Linear(4, 3, "float32", CPU)
    with (
        Graph("g", input_types=[TensorType("float32", [2, 5], CPU)]) as graph,
        refuses(ValueError, "graph.invalid"),
    ):
        layer(graph.inputs[0])


def test_a_layer_called_with_no_tensor_says_which_layer() -> None:
    with Graph("g"), refuses(TypeError):
        nn.Linear(4, 3, "float32", CPU)("x")  # type: ignore[arg-type]


def test_a_quant_config_is_refused_with_what_to_do() -> None:
    given: Any = {"dtype": "float32", "quant_config": object()}
    with refuses(UnsupportedError, "unsupported.kernel"):
        nn.Linear(4, 3, device=CPU, **given)
    with refuses(UnsupportedError, "unsupported.kernel"):
        nn.MLP(quantization_encoding=None, hidden_dim=4, feed_forward_length=8, devices=[CPU], **given)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_mlp_is_the_gated_block_of_torch(name: str, has_bias: bool) -> None:
    layer = nn.MLP("float32", None, 8, 20, [CPU], has_bias=has_bias, activation_function=name)
    v = filled(layer)
    assert sorted({key.rpartition(".")[0] for key in v}) == ["down_proj", "gate_proj", "up_proj"]
    function: Any = {"gelu_tanh": lambda t: F.gelu(t, approximate="tanh")}.get(name) or getattr(F, name)
    x = torch.randn(2, 3, 8)
    gate, up = (F.linear(x, v[f"{part}_proj.weight"], v.get(f"{part}_proj.bias")) for part in ("gate", "up"))
    near(called(layer, x), F.linear(function(gate) * up, v["down_proj.weight"], v.get("down_proj.bias")))


def test_mlp_limits_both_factors() -> None:
    layer = nn.MLP("float32", None, 8, 20, [CPU], swiglu_limit=0.05)
    v = filled(layer)
    x = torch.randn(3, 8) * 3
    gate = F.silu(x @ v["gate_proj.weight"].T).clamp(max=0.05)
    up = (x @ v["up_proj.weight"].T).clamp(-0.05, 0.05)
    near(called(layer, x), gate * up @ v["down_proj.weight"].T)


def test_an_unknown_activation_function_lists_those_that_there_are() -> None:
    with refuses(ValueError, "argument.choice"):
        activation_function_from_name("swish")


@pytest.mark.parametrize(("low", "high"), [(None, None), (-0.5, None), (None, 0.5), (-0.5, 0.25)])
def test_clamp_is_torchs(low: float | None, high: float | None) -> None:
    x = torch.randn(3, 4)
    expected = x if low is None and high is None else x.clamp(low, high)
    near(called(lambda value: nn.clamp(value, low, high), x), expected)


@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
def test_embedding_is_torchs(dtype: str) -> None:
    layer = nn.Embedding(vocab_size=10, hidden_dim=6, dtype="float32", device=CPU)
    table = filled(layer)["weight"]
    numbers = torch.tensor([[0, 9, 3], [3, 3, 1]])
    near(called(layer, numbers.to(getattr(torch, dtype))), F.embedding(numbers, table))


def test_the_name_of_an_embedding_is_that_of_its_weight() -> None:
    assert list(nn.Embedding(4, 2, "float32", CPU, name="wte").raw_state_dict()) == ["wte"]


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0.1])
def test_layer_norm_is_torchs(use_bias: bool, eps: float) -> None:
    layer = nn.LayerNorm(12, [CPU], "float32", eps=eps, use_bias=use_bias)
    v = filled(layer)
    x = torch.randn(2, 5, 12) * 4 + 1
    near(called(layer, x), F.layer_norm(x, (12,), v["weight"], v.get("bias"), eps))


@pytest.mark.parametrize("dims", [12, (12,)])
def test_layer_norm_without_weights_is_torchs(dims: Any) -> None:
    for dtype, tolerance in (("float32", 1e-5), ("float16", 1e-3)):
        layer = nn.ConstantLayerNorm(dims, CPU, DType(dtype), eps=1e-3)
        assert layer.state_dict() == {}
        x = (torch.randn(2, 5, 12) * 4 + 1).to(DType(dtype).to_torch())
        found = called(layer, x)
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found.float(), F.layer_norm(x.float(), (12,), eps=1e-3), rtol=0, atol=tolerance)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm_is_torchs(eps: float) -> None:
    layer = nn.RMSNorm(12, "float32", eps)
    weight = filled(layer)["weight"]
    x = torch.randn(2, 5, 12) * 4
    near(called(layer, x), F.rms_norm(x, (12,), weight, eps))


def test_rms_norm_adds_its_offset_to_the_weight() -> None:
    layer = nn.RMSNorm(12, "float32", weight_offset=1.0)
    weight = filled(layer)["weight"]
    x = torch.randn(5, 12)
    near(called(layer, x), F.rms_norm(x, (12,), weight + 1, 1e-6))


@pytest.mark.parametrize("multiply_before_cast", [True, False])
def test_rms_norm_of_half_precision_is_rounded_where_it_says(multiply_before_cast: bool) -> None:
    layer = nn.RMSNorm(64, "float32", multiply_before_cast=multiply_before_cast)
    weight = filled(layer)["weight"].half()  # the layer takes its weight as the input's dtype
    x = torch.randn(100, 64).half()
    wide = x.float()
    normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    expected = (normalised * weight.float()).half() if multiply_before_cast else normalised.half() * weight
    found = called(layer, x)
    assert (found == expected).float().mean() > 0.999  # the last bit of a sum may differ


def test_layer_norm_of_half_precision_is_computed_as_float32() -> None:
    layer = nn.LayerNorm(64, [CPU], "float16")
    v = filled(layer)
    x = (torch.randn(100, 64) * 50 + 1000).half()
    wide = F.layer_norm(x.float(), (64,), v["weight"].float(), v["bias"].float())
    np.testing.assert_allclose(called(layer, x).float(), wide, rtol=1e-3, atol=1e-3)


def test_a_norm_of_another_size_names_both_shapes() -> None:
    for layer in (nn.RMSNorm(4, "float32"), nn.LayerNorm(4, [CPU], "float32")):
        with (
            Graph("g", input_types=[TensorType("float32", [2, 5], CPU)]) as graph,
            refuses(ValueError, "graph.invalid"),
        ):
            layer(graph.inputs[0])


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 5, 4)])
def test_group_norm_is_torchs(affine: bool, shape: tuple[int, ...]) -> None:
    layer = nn.GroupNorm(3, 6, eps=1e-3, affine=affine, device=CPU)
    v = filled(layer)
    x = torch.randn(shape) * 4 + 1
    expected = F.group_norm(x, 3, v.get("weight"), v.get("bias"), 1e-3)
    near(called(layer, x, sizes=range(1, 4)), expected)
    with refuses(ValueError, "argument.layer"):
        nn.GroupNorm(4, 6)
    assert {weight.device for weight in nn.GroupNorm(3, 6).raw_state_dict().values()} == {CPU}


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"padding": (1, 0, 2, 1), "num_groups": 2, "has_bias": True},
    {"num_groups": 4, "dilation": 2, "has_bias": True},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("permute", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_conv2d_is_torchs(options: dict[str, Any], permute: bool, symbolic: bool) -> None:
    layer = nn.Conv2d((3, 2), 4, 8, "float32", permute=permute, **options)
    v = filled(layer)
    channels = 4 // layer.num_groups
    assert list(v["weight"].shape) == ([8, channels, 3, 2] if permute else [3, 2, channels, 8])
    x = torch.randn(2, 4, 9, 10)
    above, below, left, right = layer.padding
    padded = F.pad(x, (left, right, above, below))
    weight = v["weight"] if permute else v["weight"].permute(3, 2, 0, 1)
    expected = F.conv2d(padded, weight, v.get("bias"), layer.stride, 0, layer.dilation, layer.num_groups)
    sizes = (1 if permute else 3,) if symbolic else range(4)  # the channels have to be known
    if permute:
        near(called(layer, x, sizes=sizes), expected)
    else:
        near(called(layer, x.permute(0, 2, 3, 1).contiguous(), sizes=sizes), expected.permute(0, 2, 3, 1))


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1, "has_bias": True}, {"padding": (4, 0), "dilation": 2, "num_groups": 2}],
)
@pytest.mark.parametrize("permute", [False, True])
def test_conv1d_is_torchs(options: dict[str, Any], permute: bool) -> None:
    layer = nn.Conv1D(3, 4, 8, "float32", permute=permute, **options)
    v = filled(layer)
    x = torch.randn(2, 4, 11)
    weight = v["weight"] if permute else v["weight"].permute(2, 1, 0)
    expected = F.conv1d(
        F.pad(x, layer.padding), weight, v.get("bias"), layer.stride, 0, layer.dilation, layer.num_groups
    )
    found = called(layer, x, sizes=(1,)) if permute else called(layer, x.permute(0, 2, 1).contiguous())
    near(found, expected if permute else expected.permute(0, 2, 1))


def test_layers_can_be_nested_and_named_by_their_paths() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.RMSNorm(8, "float32")
            self.mlp = nn.MLP("float32", None, 8, 16, [CPU])

        def __call__(self, x: Any) -> Any:
            return x + self.mlp(self.norm(x))

    model = nn.Sequential(nn.Embedding(10, 8, "float32", CPU), Block(), Block(), nn.Linear(8, 10, "float32", CPU))
    v = filled(model)
    assert list(v)[:3] == ["0.weight", "3.weight", "1.norm.weight"]
    numbers = torch.tensor([[1, 2, 9]])
    hidden = v["0.weight"][numbers]
    for block in ("1", "2"):
        normed = F.rms_norm(hidden, (8,), v[f"{block}.norm.weight"], 1e-6)
        gate, up, down = (v[f"{block}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        hidden = hidden + F.silu(normed @ gate.T) * (normed @ up.T) @ down.T
    near(called(model, numbers), hidden @ v["3.weight"].T)


def test_an_identity_returns_what_it_is_called_with() -> None:
    x = torch.randn(2, 3)
    near(called(nn.Sequential(nn.Identity(), nn.Identity()), x), x)


def test_what_a_layer_is_made_with_can_be_read_off_it() -> None:
    norm = nn.LayerNorm(4, ["cpu"], "float16", use_bias=False)
    assert (norm.dim, norm.dtype.name, norm.bias, norm.devices) == (4, "float16", None, [CPU])
    conv = nn.Conv2d(3, 4, 8, "float32", padding=(1, 2))
    assert (conv.kernel_size, conv.stride, conv.padding, conv.device) == ((3, 3), (1, 1), (1, 1, 2, 2), None)
    assert nn.Conv1D(3, 4, 8, "float32", padding=2).padding == (2, 2)
    assert isinstance(nn.Linear(4, 3, "float32", "cpu").weight, Weight)


def packed(layer: Any, weight: Any) -> Any:
    """The layer with a weight of a GGUF file, which has its packing."""
    layer.load_state_dict({"weight": weight})
    return layer


def test_packed_layers_record_products_with_their_blocks(models: Path) -> None:
    weights = load_weights(models / "smollm2-135m.Q4_1.gguf")
    linear = packed(nn.Linear(576, 192, "float32", CPU, quantization_encoding="Q4_1"), weights.blk[0].attn_k.weight)
    table = packed(nn.Embedding(49152, 576, "float32", CPU, "Q8_0"), weights.token_embd.weight)
    types = [TensorType("float32", ["b", "n", 576], CPU), TensorType("int64", ["b", "n"], CPU)]
    with Graph("g", input_types=types) as graph:
        made = linear(graph.inputs[0])
        table.weight.name = "table"  # both are parts of no model
        rows = table(graph.inputs[1])
    assert [node.op for node in graph.nodes[2:]] == ["weight", "qmatmul", "weight", "gather", "dequantize"]
    assert [str(dim) for dim in made.shape] == ["b", "n", "192"]
    assert [str(dim) for dim in rows.shape] == ["b", "n", "576"]
    assert rows.dtype.name == "float32"


def test_a_packed_weight_without_a_value_says_what_it_is_not() -> None:
    layer = nn.Linear(64, 4, "float32", CPU, quantization_encoding="Q4_0")
    with (
        Graph("g", input_types=[TensorType("float32", [2, 64], CPU)]) as graph,
        refuses(TypeError),
    ):
        layer(graph.inputs[0])
    with refuses(ValueError, "argument.layer"):
        nn.Linear(64, 4, "float32", CPU, quantization_encoding="Q4_0", clip_weight=1.0)


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_packed_layers_give_what_their_decoded_weights_give(models: Path, encoding: str) -> None:
    weights = load_weights(models / "derived" / "minilm-ffn-allquants.gguf")
    (weight,) = [node for name, node in weights.items() if f".{encoding}." in name]
    elements = torch.from_dlpack(dequantize(weight, encoding))
    rows, columns = elements.shape
    linear = packed(nn.Linear(columns, rows, "float32", CPU, quantization_encoding=encoding), weight)
    x = torch.randn(2, 3, columns)
    near(called(linear, x), x @ elements.T)
    table = packed(nn.Embedding(rows, columns, "float32", CPU, encoding), weight)
    numbers = torch.tensor([[0, rows - 1], [3, 3]])
    assert torch.equal(called(table, numbers), elements[numbers])
