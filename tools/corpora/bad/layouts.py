"""Layouts of quantized checkpoints and of adapters as libraries write them, each intact and with something wrong.

Names, dtypes and shapes are those of small models written by compressed-tensors 0.20.0 with llmcompressor 0.14.0,
nvidia-modelopt 0.47.0, bitsandbytes 0.50.2 and transformers 5.23.0, peft 0.21.2. A layer has 32 outputs and 64 inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corpora.bad.quantized import AWQ, AWQ_CONFIG, GPTQ, GPTQ_CONFIG, LAYER, LORA, LORA_CONFIG, PROJECTION
from corpora.bad.sets import Tensors, text, weights
from corpora.item import CAUGHT, Item

EXPERTS = "model.layers.0.mlp.experts"


def _layer(**parts: tuple[str, tuple[int, ...]]) -> Tensors:
    return {f"{LAYER}.{part}": tensor for part, tensor in parts.items()}


def _pair(rows: int, columns: int) -> bytes:
    return rows.to_bytes(8, "little") + columns.to_bytes(8, "little")


def _compressed(layout: str, kind: str, bits: int, strategy: str, **more: object) -> dict[str, object]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "format": layout, "weights": weights}},
        "ignore": ["lm_head"],
    }


def _bnb(four: bool) -> dict[str, object]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": four,
        "load_in_8bit": not four,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": four,
        "llm_int8_skip_modules": None,
    }


# 3 bits are packed without gaps: 64 * 3 / 32 words.
INT3 = _layer(weight_packed=("I32", (32, 6)), weight_scale=("BF16", (32, 2)), weight_shape=("I64", (2,)))
ZEROS = {**INT3, f"{LAYER}.weight_zero_point": ("I32", (3, 2))}
INT4 = _layer(weight_packed=("I32", (32, 8)), weight_scale=("BF16", (32, 1)), weight_shape=("I64", (2,)))
ORDERED = {
    **_layer(weight_packed=("I32", (32, 8)), weight_scale=("BF16", (32, 2)), weight_shape=("I64", (2,))),
    f"{LAYER}.weight_g_idx": ("I32", (64,)),
}
BYTES = _layer(weight_packed=("I8", (32, 32)), weight_scale=("BF16", (32, 2)))
ROWS = _layer(weight=("F8_E4M3", (32, 64)), weight_scale=("BF16", (32, 1)))
MXFP4 = _layer(weight_packed=("U8", (32, 32)), weight_scale=("U8", (32, 2)))
MXFP6 = _layer(weight_packed=("U8", (32, 48)), weight_scale=("U8", (32, 2)))
MXFP8 = _layer(weight=("F8_E4M3", (32, 64)), weight_scale=("U8", (32, 2)))
NVFP4 = _layer(
    weight_packed=("U8", (32, 32)),
    weight_scale=("F8_E4M3", (32, 4)),
    weight_global_scale=("F32", (1,)),
    input_global_scale=("F32", (1,)),
)
MODELOPT = _layer(
    weight=("U8", (32, 32)), weight_scale=("F8_E4M3", (32, 4)), weight_scale_2=("F32", ()), input_scale=("F32", ())
)
# Weights of 256 x 128 in blocks of 128 x 128; the scales keep the reduced dimensions.
MODELOPT_BLOCKS = _layer(weight=("F8_E4M3", (256, 128)), weight_scale=("F32", (2, 1, 1, 1)))
MODELOPT_CONFIG = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    },
    "ignore": ["lm_head"],
}
# DeepSeek V4: FP4 in int8, with exponents.
FP4 = {f"{EXPERTS}.0.w1.weight": ("I8", (32, 32)), f"{EXPERTS}.0.w1.scale": ("F8_E8M0", (32, 2))}
FP4_CONFIG = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "fmt": "e4m3"}
NF4: Tensors = {
    f"{LAYER}.weight": ("U8", (1024, 1)),
    f"{LAYER}.weight.absmax": ("U8", (32,)),
    f"{LAYER}.weight.nested_absmax": ("F32", (1,)),
    f"{LAYER}.weight.nested_quant_map": ("F32", (256,)),
    f"{LAYER}.weight.quant_map": ("F32", (16,)),
    f"{LAYER}.weight.quant_state.bitsandbytes__nf4": ("U8", (170,)),
}
INT8 = _layer(weight=("I8", (32, 64)), SCB=("F32", (32,)), weight_format=("U8", ()))
GPT_OSS: Tensors = {
    f"{EXPERTS}.gate_up_proj_blocks": ("U8", (4, 32, 2, 16)),
    f"{EXPERTS}.gate_up_proj_scales": ("U8", (4, 32, 2)),
    f"{EXPERTS}.gate_up_proj_bias": ("BF16", (4, 32)),
}
INT3_CONFIG = _compressed("pack-quantized", "int", 3, "group", group_size=32)
INT4_CONFIG = _compressed("pack-quantized", "int", 4, "channel")
ORDERED_CONFIG = _compressed("pack-quantized", "int", 4, "group", group_size=32, actorder="group")
BYTES_CONFIG = _compressed("int4-quantized", "int", 4, "group", group_size=32)
ROWS_CONFIG = _compressed("float-quantized", "float", 8, "channel")
NVFP4_OF_32 = _compressed("nvfp4-pack-quantized", "float", 4, "tensor_group", group_size=32)
NVFP4_CONFIG = _compressed("nvfp4-pack-quantized", "float", 4, "tensor_group", group_size=16)

INTACT: Mapping[str, tuple[Tensors, Mapping[str, object]]] = {
    "compressed-int3": (INT3, INT3_CONFIG),
    "compressed-int3-zeros": (ZEROS, _compressed("pack-quantized", "int", 3, "group", group_size=32, symmetric=False)),
    "compressed-int4-rows": (INT4, INT4_CONFIG),
    "compressed-int4-ordered": (ORDERED, ORDERED_CONFIG),
    "compressed-int4-bytes": (BYTES, BYTES_CONFIG),
    "compressed-fp8-rows": (ROWS, ROWS_CONFIG),
    "compressed-mxfp4": (MXFP4, _compressed("mxfp4-pack-quantized", "float", 4, "group", group_size=32)),
    "compressed-mxfp6": (MXFP6, _compressed("mxfp6-pack-quantized", "float", 6, "group", group_size=32)),
    "compressed-mxfp8": (MXFP8, _compressed("mxfp8-quantized", "float", 8, "group", group_size=32)),
    "compressed-nvfp4": (NVFP4, NVFP4_CONFIG),
    "modelopt-nvfp4": (MODELOPT, MODELOPT_CONFIG),
    "modelopt-fp8-blocks": (MODELOPT_BLOCKS, {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}),
    "deepseek-fp4": (FP4, FP4_CONFIG),
    "bitsandbytes-nf4": (NF4, _bnb(four=True)),
    "bitsandbytes-int8": (INT8, _bnb(four=False)),
    "gpt-oss": (GPT_OSS, {"quant_method": "mxfp4"}),
    "gptq-ordered": (GPTQ, {**GPTQ_CONFIG, "desc_act": True}),
}


def _without(tensors: Tensors, part: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != f"{LAYER}.{part}"}


def _with(tensors: Tensors, part: str, dtype: str, *shape: int) -> Tensors:
    return {**tensors, f"{LAYER}.{part}": (dtype, shape)}


BROKEN: Mapping[str, tuple[Tensors, Mapping[str, object]]] = {
    "quantized.bits.rows": (INT4, _compressed("pack-quantized", "int", 8, "channel")),
    "quantized.bits.awq": (AWQ, {**AWQ_CONFIG, "bits": 8}),
    "quantized.group-size.rows": (INT4, _compressed("pack-quantized", "int", 4, "group", group_size=32)),
    "quantized.group-size.bytes": (BYTES, _compressed("int4-quantized", "int", 4, "group", group_size=64)),
    "quantized.group-size.nvfp4": (
        NVFP4,
        _compressed("nvfp4-pack-quantized", "float", 4, "tensor_group", group_size=32),
    ),
    "quantized.order-missing": (_without(GPTQ, "g_idx"), {**GPTQ_CONFIG, "desc_act": True}),
    "quantized.order-missing.compressed": (_without(ORDERED, "weight_g_idx"), ORDERED_CONFIG),
    "quantized.scale-missing.bitsandbytes": (_without(NF4, "weight.nested_absmax"), _bnb(four=True)),
    "quantized.scale-missing.nvfp4": (_without(MODELOPT, "weight_scale_2"), MODELOPT_CONFIG),
    "quantized.scale-shape.bitsandbytes": (_with(INT8, "SCB", "F32", 64), _bnb(four=False)),
    "quantized.scale-shape.fp4": ({**FP4, f"{EXPERTS}.0.w1.scale": ("F8_E8M0", (2, 32))}, FP4_CONFIG),
    "quantized.scale-shape.mxfp4": (
        {**GPT_OSS, f"{EXPERTS}.gate_up_proj_scales": ("U8", (4, 2, 32))},
        {"quant_method": "mxfp4"},
    ),
    "quantized.scale-shape.rows": (_with(ROWS, "weight_scale", "BF16", 1, 32), ROWS_CONFIG),
    "quantized.zero-point-shape.int3": (
        {**INT3, f"{LAYER}.weight_zero_point": ("I32", (2, 3))},
        _compressed("pack-quantized", "int", 3, "group", group_size=32, symmetric=False),
    ),
}


def _model(tensors: Tensors, config: Mapping[str, object], shape: bytes = _pair(32, 64)) -> dict[str, bytes]:
    name = f"{LAYER}.weight_shape"
    data = weights(tensors, {name: shape} if name in tensors else None)
    return {"config.json": text({"model_type": "llama", "quantization_config": config}), "model.safetensors": data}


LOHA: Tensors = {
    f"{PROJECTION}.hada_{name}": ("F32", (16, 4) if name.endswith("a") else (4, 16))
    for name in ("w1_a", "w1_b", "w2_a", "w2_b")
}
ADALORA: Tensors = {
    f"{PROJECTION}.lora_A": ("F32", (6, 16)),
    f"{PROJECTION}.lora_B": ("F32", (16, 6)),
    f"{PROJECTION}.lora_E": ("F32", (6, 1)),
}
# peft tells the kind by lora_E, which another layer has.
_OTHER = PROJECTION.replace("layers.0", "layers.1")
E_OF_ANOTHER: Tensors = {name.replace(PROJECTION, _OTHER): tensor for name, tensor in ADALORA.items()}
VERA: Tensors = {f"{PROJECTION}.vera_lambda_b": ("F32", (16,)), f"{PROJECTION}.vera_lambda_d": ("F32", (4,))}
IA3: Tensors = {f"{PROJECTION}.ia3_l": ("F32", (16, 1))}
DORA: Tensors = {**LORA, f"{PROJECTION}.lora_magnitude_vector": ("F32", (16,))}
# The first matrix has blocks for q_proj, the second for v_proj.
BLOCKS: Tensors = {f"{PROJECTION}.lora_A.weight": ("F32", (4, 16)), f"{PROJECTION}.lora_B.weight": ("F32", (16, 2))}
ATTENTION: Tensors = {
    f"base_model.model.attention{inner}.lora_{name}.weight": ("F32", shape)
    for inner in ("", ".base_layer.out_proj")
    for name, shape in (("A", (4, 16)), ("B", (16, 4)))
}


def _adapter(tensors: Tensors, **config: object) -> dict[str, bytes]:
    return {"adapter_config.json": text({**LORA_CONFIG, **config}), "adapter_model.safetensors": weights(tensors)}


ADAPTERS = {
    "good-adalora": _adapter(ADALORA, peft_type="ADALORA", r=8, init_r=6, target_r=2),
    "good-attention": _adapter(ATTENTION, target_modules=["attention"]),
    "good-blocks": _adapter(BLOCKS, use_bdlora={"target_modules_bd_b": ["q_proj"], "nblocks": 2}),
    "good-dora": _adapter(DORA, use_dora=True),
    "good-ia3": _adapter(IA3, peft_type="IA3"),
    "good-loha": _adapter(LOHA, peft_type="LOHA"),
    "good-vera": _adapter(VERA, peft_type="VERA"),
    "adalora-without-e": _adapter({**dict(list(ADALORA.items())[:2]), **E_OF_ANOTHER}, peft_type="ADALORA"),
    "dora-not-said": _adapter(DORA),
    "dora-without-vector": _adapter(LORA, use_dora=True),
    "ia3-not-a-target": _adapter(IA3, peft_type="IA3", target_modules=["v_proj"]),
    "loha-of-two-ranks": _adapter({**LOHA, f"{PROJECTION}.hada_w2_b": ("F32", (8, 16))}, peft_type="LOHA"),
    "loha-without-one": _adapter(dict(list(LOHA.items())[1:]), peft_type="LOHA"),
    "modules-not-saved": _adapter(LORA, modules_to_save=["classifier"]),
    "pattern-of-nothing": _adapter(LORA, rank_pattern={"k_proj": 2}),
    "rank-not-said": _adapter(LORA, r=None),
    "vera-of-another-rank": _adapter(VERA, peft_type="VERA", r=8),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, (tensors, config) in INTACT.items():
        yield Item(f"good-{name}", _model(tensors, config), "layouts", CAUGHT)
    for name, (tensors, config) in BROKEN.items():
        yield Item(name, _model(tensors, config), "layouts", CAUGHT, "", (".".join(name.split(".")[:2]),))
    broken = _model(INT4, INT4_CONFIG, _pair(32, 96))
    yield Item("quantized.shape.stored", broken, "layouts", CAUGHT, "", ("quantized.shape",))
    for name, files in ADAPTERS.items():
        yield Item(name, files, "layouts-adapters", CAUGHT)
