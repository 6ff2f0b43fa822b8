"""`max_weights.quantized` on files of bitsandbytes 0.50.2, against its own values; and on invalid states.

The vectors are made by tools/make_bitsandbytes_vectors.py.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import max_weights
from max_weights import FormatError, UnsupportedError, load_weights
from max_weights._weights import WeightsNode
from refusals import refuses

VECTORS = Path(__file__).parents[2] / "data/bitsandbytes.safetensors"
NAMES = [
    "int8",
    *(
        f"{kind}-{block}{nested}"
        for kind in ("nf4", "fp4")
        for block in (64, 32, 128, 4096, 256)
        for nested in ("", "-nested")
    ),
]
STATE = "weight.quant_state.bitsandbytes__nf4"
Make = Callable[[dict[str, torch.Tensor]], WeightsNode]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Open a checkpoint of the parts of one weight, `a`."""

    def made(parts: dict[str, torch.Tensor]) -> WeightsNode:
        save_file({f"a.{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors")
        return load_weights(tmp_path)

    return made


def parts_of(name: str) -> dict[str, torch.Tensor]:
    """The parts of one vector."""
    return {
        key.removeprefix(f"{name}."): tensor for key, tensor in load_file(VECTORS).items() if key.startswith(f"{name}.")
    }


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def state(**changes: Any) -> torch.Tensor:
    """The state of the vector `nf4-64-nested` with changes; `None` removes a key."""
    reported = json.loads(bytes(parts_of("nf4-64-nested")[STATE].numpy())) | changes
    return of_text(json.dumps({key: value for key, value in reported.items() if value is not None}))


def of_text(text: str | bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8).copy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_values_are_those_of_bitsandbytes(name: str, dtype: str) -> None:
    found = max_weights.quantized(load_weights(VECTORS), name)
    with safe_open(VECTORS, "pt") as file:
        expected = file.get_tensor(f"expected.{dtype}.{name}")
    decoded = torch.from_dlpack(found.astype(dtype))
    assert found.shape == list(expected.shape)
    # A zero may have either sign: the tables of the library's kernels differ for code 8 of FP4.
    assert bits(decoded + 0.0) == bits(expected + 0.0)
    out = torch.full_like(expected, math.nan)
    found.astype(dtype, out=out)
    assert bits(out) == bits(decoded)


def test_what_a_weight_says_of_itself() -> None:
    weights = load_weights(VECTORS)
    assert list(max_weights.quantized(weights)) == sorted(NAMES, key=list(max_weights.quantized(weights)).index)
    found = max_weights.quantized(weights, "nf4-128-nested")
    assert (found.scheme, found.bits, found.shape, found.group_size) == ("bitsandbytes-nf4", 4, [3, 4, 50], 128)
    assert list(found.parts) == ["packed", "scales", "codebook", "nested_scales", "nested_codebook", "state"]
    assert max_weights.quantized(weights, "fp4-64").scheme == "bitsandbytes-fp4"
    int8 = max_weights.quantized(weights, "int8")
    assert (int8.scheme, int8.bits, int8.shape, int8.block) == ("bitsandbytes-int8", 8, [12, 70], (1, 70))
    assert list(int8.parts) == ["packed", "scales", "format"]


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32, torch.int8])
def test_codes_may_be_stored_as_another_dtype(make: Make, storage: torch.dtype) -> None:
    parts = parts_of("nf4-64")
    expected = torch.from_dlpack(max_weights.quantized(load_weights(VECTORS), "nf4-64").astype())
    weights = make(parts | {"weight": parts["weight"].reshape(-1).view(storage).reshape(-1, 1)})
    assert list(max_weights.quantized(weights)) == ["a"]
    assert torch.equal(torch.from_dlpack(max_weights.quantized(weights, "a").astype()), expected)


def test_a_large_weight_is_decoded_in_parts(make: Make) -> None:
    """`dequantize_4bit` as a formula: a value of the table times the scale of its block of consecutive elements."""
    shape, generator = (1000, 4100), torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (math.prod(shape) // 2, 1), dtype=torch.uint8, generator=generator)
    absmax = torch.rand(-(-math.prod(shape) // 64), generator=generator)
    parts = parts_of("nf4-64")
    reported = of_text(json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": shape}))
    found = max_weights.quantized(make(parts | {"weight": codes, "weight.absmax": absmax, STATE: reported}), "a")
    values = parts["weight.quant_map"][torch.cat([codes >> 4, codes & 15], 1).reshape(-1).long()]
    expected = (values * absmax.repeat_interleave(64)[: values.numel()]).reshape(shape)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        decoded = torch.from_dlpack(found.astype(str(dtype).removeprefix("torch.")))
        assert torch.equal(decoded, expected.to(dtype))


def test_an_empty_weight_has_no_values(make: Make) -> None:
    parts = parts_of("nf4-64") | {STATE: state(shape=[0, 40], nested_offset=None)}
    found = make(parts | {"weight": torch.empty(0, 1, dtype=torch.uint8), "weight.absmax": torch.empty(0)})
    assert max_weights.quantized(found, "a").astype("float32").to_buffer().shape == (0, 40)


@pytest.mark.parametrize("part", ["weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax",
                                  "weight.nested_quant_map", STATE])  # fmt: skip
def test_a_part_that_is_missing_is_named(make: Make, part: str) -> None:
    parts = parts_of("nf4-64-nested")
    del parts[part]
    weights = make(parts)
    if part == "weight":
        assert not max_weights.quantized(weights)
        return
    with refuses(FormatError, "quantized.scale-missing") as caught:
        max_weights.quantized(weights, "a")
    assert caught.value.rule == "quantized.scale-missing"


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": torch.zeros(479, 1, dtype=torch.uint8)},
        {"weight.absmax": torch.zeros(14, dtype=torch.uint8)},
        {"weight.absmax": torch.zeros(15, dtype=torch.int32)},
        {"weight.quant_map": torch.zeros(15)},
        {"weight.quant_map": torch.zeros(16)},
        {"weight.quant_map": torch.full((16,), math.nan)},
        {"weight.nested_quant_map": torch.zeros(255)},
        {"weight.nested_absmax": torch.zeros(2)},
        {STATE: of_text("{")},
        {STATE: of_text("[" * 60000)},
        {STATE: of_text(b"\xff\xfe\x00")},
        {STATE: of_text("[1]")},
        {STATE: torch.zeros(70000, dtype=torch.uint8)},
        {STATE: torch.zeros(4)},
        {STATE: state(quant_type="fp4")},
        {STATE: state(quant_type="int4")},
        {STATE: state(quant_type=4)},
        {STATE: state(shape=None)},
        {STATE: state(shape=[24, 41])},
        {STATE: state(shape=[-24, -40])},
        {STATE: state(shape=[24.0, 40])},
        {STATE: state(shape=[True, 40])},
        {STATE: state(shape=[1 << 61, 1 << 61, 40])},
        {STATE: state(shape=[1 << 62])},
        {STATE: state(shape=[1] * 100)},
        {STATE: state(blocksize=None)},
        {STATE: state(blocksize=0)},
        {STATE: state(blocksize=100)},
        {STATE: state(blocksize="64" * 100)},
        {STATE: state(blocksize=128)},
        {STATE: state(nested_blocksize=0)},
        {STATE: state(nested_blocksize=None)},
        {STATE: state(nested_offset=None)},
        {STATE: state(nested_offset=1e300)},
        {STATE: state(nested_offset=math.nan)},
        {STATE: state(nested_offset=10**400)},
    ],
)
def test_parts_that_lie_are_errors_that_name_them(make: Make, changes: dict[str, Any]) -> None:
    weights = make(parts_of("nf4-64-nested") | changes)
    with refuses(FormatError) as caught:
        max_weights.quantized(weights, "a")
    assert str(caught.value.tensor).startswith("a.weight")
    assert str(caught.value.path).endswith("model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"SCB": torch.ones(11)},
        {"SCB": torch.ones(12, dtype=torch.float16)},
        {"weight": torch.zeros(12, 70, dtype=torch.uint8)},
        {"weight": torch.zeros(12, 7, 10, dtype=torch.int8)},
        {"weight_format": torch.zeros(2, dtype=torch.uint8)},
    ],
)
def test_int8_that_does_not_fit_is_an_error(make: Make, changes: dict[str, torch.Tensor]) -> None:
    weights = make(parts_of("int8") | changes)
    with refuses(FormatError):
        max_weights.quantized(weights, "a")


def test_int8_in_the_order_of_a_kernel_is_refused(make: Make) -> None:
    found = max_weights.quantized(make(parts_of("int8") | {"weight_format": torch.tensor(2, dtype=torch.uint8)}), "a")
    with refuses(UnsupportedError, "unsupported.request"):
        found.astype()


def test_int8_without_a_format_has_that_of_rows(make: Make) -> None:
    parts = parts_of("int8")
    del parts["weight_format"]
    expected = torch.from_dlpack(max_weights.quantized(load_weights(VECTORS), "int8").astype("float32"))
    assert torch.equal(torch.from_dlpack(max_weights.quantized(make(parts), "a").astype("float32")), expected)
