"""Quantized checkpoints whose parts do not fit each other, and adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corpora.bad.sets import Tensors, text, weights
from corpora.item import CAUGHT, Item

LAYER = "model.layers.0.mlp.up_proj"
# A layer of 64 columns and 32 rows, in groups of 32.
GPTQ: Tensors = {
    f"{LAYER}.qweight": ("I32", (8, 32)),
    f"{LAYER}.qzeros": ("I32", (2, 4)),
    f"{LAYER}.scales": ("F16", (2, 32)),
    f"{LAYER}.g_idx": ("I32", (64,)),
}
GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ: Tensors = {
    f"{LAYER}.qweight": ("I32", (64, 4)),
    f"{LAYER}.qzeros": ("I32", (2, 4)),
    f"{LAYER}.scales": ("F16", (2, 32)),
}
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
FP8: Tensors = {f"{LAYER}.weight": ("F8_E4M3", (256, 128)), f"{LAYER}.weight_scale_inv": ("F32", (2, 1))}
FP8_CONFIG = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
PACKED: Tensors = {
    f"{LAYER}.weight_packed": ("I32", (32, 8)),
    f"{LAYER}.weight_scale": ("F16", (32, 2)),
    f"{LAYER}.weight_shape": ("I64", (2,)),
}
SHAPE = {f"{LAYER}.weight_shape": (32).to_bytes(8, "little") + (64).to_bytes(8, "little")}
_GROUP = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
PACKED_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _GROUP}},
    "ignore": ["lm_head"],
}
PLAIN: Tensors = {f"{LAYER}.weight": ("F16", (32, 64))}


def _model(
    tensors: Tensors, config: Mapping[str, object] | None, data: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    whole = {"model_type": "llama", **({} if config is None else {"quantization_config": config})}
    return {"config.json": text(whole), "model.safetensors": weights(tensors, data)}


def _with(tensors: Tensors, part: str, dtype: str, *shape: int) -> Tensors:
    return {**tensors, f"{LAYER}.{part}": (dtype, shape)}


def _less(tensors: Tensors, part: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != f"{LAYER}.{part}"}


FOLDERS = {
    "quantized.bits": _model(GPTQ, {**GPTQ_CONFIG, "bits": 8}),
    "quantized.config-missing": _model(GPTQ, None),
    "quantized.config-missing.fp8": _model(FP8, None),
    "quantized.dtype": _model(_with(GPTQ, "qweight", "F32", 8, 32), GPTQ_CONFIG),
    "quantized.dtype.scales": _model(_with(GPTQ, "scales", "I32", 2, 32), GPTQ_CONFIG),
    "quantized.excluded": _model(PACKED, {**PACKED_CONFIG, "ignore": [LAYER]}, SHAPE),
    "quantized.group-size": _model(GPTQ, {**GPTQ_CONFIG, "group_size": 16}),
    "quantized.group-size.awq": _model(AWQ, {**AWQ_CONFIG, "group_size": 64}),
    "quantized.method": _model(GPTQ, FP8_CONFIG),
    "quantized.method.awq": _model(FP8, AWQ_CONFIG),
    "quantized.scale-missing": _model(_less(GPTQ, "scales"), GPTQ_CONFIG),
    "quantized.scale-missing.awq": _model(_less(AWQ, "scales"), AWQ_CONFIG),
    "quantized.scale-missing.fp8": _model(_less(FP8, "weight_scale_inv"), FP8_CONFIG),
    "quantized.scale-missing.packed": _model(_less(PACKED, "weight_scale"), PACKED_CONFIG, SHAPE),
    "quantized.scale-orphan": _model(_less(FP8, "weight"), FP8_CONFIG),
    "quantized.scale-orphan.packed": _model(_less(PACKED, "weight_packed"), PACKED_CONFIG, SHAPE),
    "quantized.scale-shape": _model(_with(GPTQ, "scales", "F16", 2, 30), GPTQ_CONFIG),
    "quantized.scale-shape.fp8": _model(_with(FP8, "weight_scale_inv", "F32", 1, 2), FP8_CONFIG),
    "quantized.shape": _model(_with(GPTQ, "g_idx", "I32", 60), GPTQ_CONFIG),
    "quantized.unused": _model(PLAIN, GPTQ_CONFIG),
    "quantized.unused.fp8": _model(PLAIN, FP8_CONFIG),
    "quantized.zero-point-missing": _model(_less(GPTQ, "qzeros"), {**GPTQ_CONFIG, "sym": False}),
    "quantized.zero-point-missing.awq": _model(_less(AWQ, "qzeros"), AWQ_CONFIG),
    "quantized.zero-point-shape": _model(_with(GPTQ, "qzeros", "I32", 2, 5), GPTQ_CONFIG),
    "quantized.zero-point-shape.awq": _model(_with(AWQ, "qzeros", "I32", 3, 4), AWQ_CONFIG),
}
GOOD = {
    "good-gptq": _model(GPTQ, GPTQ_CONFIG),
    "good-awq": _model(AWQ, AWQ_CONFIG),
    "good-fp8": _model(FP8, FP8_CONFIG),
    "good-compressed": _model(PACKED, PACKED_CONFIG, SHAPE),
}

PROJECTION = "base_model.model.model.layers.0.self_attn.q_proj"
LORA: Tensors = {f"{PROJECTION}.lora_A.weight": ("F32", (4, 16)), f"{PROJECTION}.lora_B.weight": ("F32", (16, 4))}
LORA_CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "x/y",
}


def _adapter(tensors: Tensors = LORA, **config: object) -> dict[str, bytes]:
    return {"adapter_config.json": text({**LORA_CONFIG, **config}), "adapter_model.safetensors": weights(tensors)}


_A, _B = f"{PROJECTION}.lora_A.weight", f"{PROJECTION}.lora_B.weight"
ADAPTERS = {
    "rank-of-the-configuration": _adapter(r=8),
    "rank-pattern": _adapter(rank_pattern={"q_proj": 2}),
    "ranks-of-the-two": _adapter({**LORA, _B: ("F32", (16, 8))}),
    "b-missing": _adapter({_A: LORA[_A]}),
    "a-missing": _adapter({_B: LORA[_B]}),
    "target-not-there": _adapter(target_modules=["q_proj", "v_proj"]),
    "not-a-target": _adapter(target_modules=["v_proj"]),
    "no-tensors": _adapter({}),
    "no-configuration": {"adapter_model.safetensors": weights(LORA)},
    "no-weights": {"adapter_config.json": text(LORA_CONFIG)},
    "configuration-is-no-json": {**_adapter(), "adapter_config.json": b"{"},
    "rank-zero": _adapter(r=0),
    "rank-is-text": _adapter(r="four"),
    "names-of-another-model": _adapter({"transformer.h.0.attn.weight": ("F32", (4, 4))}),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, files in FOLDERS.items():
        yield Item(name, files, "quantized", CAUGHT, "", (".".join(name.split(".")[:2]),))
    for name, files in GOOD.items():
        yield Item(name, files, "quantized", CAUGHT)
    for name, files in ADAPTERS.items():
        yield Item(name, files, "adapters", CAUGHT)
