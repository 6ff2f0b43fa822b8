"""`patch()` and the GGUF reader of transformers itself: blocks that are decoded in the dtype of the model."""

import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers.integrations.gguf.dequant as transformers_dequant
from transformers.integrations.gguf import kernels

import gguf_models
import max_weights
from max_weights._dropin import Calls
from max_weights._dropin.calls import Counter
from max_weights._dropin.gguf_tensors import dequantize
from test_patch import outcome
from test_patch_gguf import loaded, offline, since

__all__ = ["offline"]

NAME = "transformers.integrations.gguf.dequant.dequantize"
TYPES: dict[int, tuple[int, int]] = transformers_dequant.GGML_BLOCK
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Those whose values are one product, which float32 holds exactly.
PRODUCTS = {gguf.GGMLQuantizationType[name].value for name in ("Q4_0", "Q8_0", "IQ4_NL")}
# Held where no sweep finds it: outside module attributes.
ORIGINAL = {"dequantize": transformers_dequant.dequantize}


@pytest.fixture(autouse=True)
def unpatched_again() -> Iterator[None]:
    assert not max_weights.patched()
    yield
    max_weights.unpatch()
    assert transformers_dequant.dequantize is kernels.dequantize is ORIGINAL["dequantize"]


@pytest.fixture
def patched() -> None:
    max_weights.patch()
    assert transformers_dequant.dequantize is kernels.dequantize is not ORIGINAL["dequantize"]


def decoded(*arguments: Any, **options: Any) -> tuple[str, Any]:
    """The result of the function: its properties and its bits; or the error."""
    kind, value = outcome(transformers_dequant.dequantize, *arguments, **options)
    if kind != "value":
        return kind, value
    about = (type(value), value.dtype, value.shape, value.stride(), value.requires_grad, value.is_inference())
    return kind, (about, value.contiguous().view(torch.uint8).numpy().tobytes())


def is_served(ggml_type: int, dtype: Any) -> bool:
    return dtype == torch.float32 or (dtype == torch.float16 and ggml_type in PRODUCTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("file", ["derived/minilm-ffn-allquants.gguf", "smollm2-135m.Q4_1.gguf"])
def test_tensors_of_every_type_are_decoded_as_without_bit_for_bit(models: Path, file: str, dtype: Any) -> None:
    tensors = [tensor for tensor in gguf.GGUFReader(models / file).tensors if tensor.tensor_type in TYPES][-24:]
    types = {int(tensor.tensor_type) for tensor in tensors}
    assert types == (TYPES.keys() if "allquants" in file else {gguf.GGMLQuantizationType.Q4_1})
    for tensor in tensors:
        arguments = torch.from_numpy(np.array(tensor.data)), int(tensor.tensor_type), dtype
        expected = decoded(*arguments)
        max_weights.patch()
        before = max_weights.patched()
        assert decoded(*arguments) == expected, tensor.name
        served = is_served(int(tensor.tensor_type), dtype)
        assert since(NAME, before) == Calls(served, not served), tensor.name
        max_weights.unpatch()


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ggml_type", TYPES)
def test_any_bytes_are_decoded_as_without(ggml_type: int, dtype: Any) -> None:
    # Of thousands of blocks, some have scales that are infinite or NaN.
    size = 3000 * TYPES[ggml_type][1]
    data = torch.from_numpy(np.random.default_rng(ggml_type).integers(0, 256, size, np.uint8))
    for blocks in (data, data[: size // 3000], data.reshape(3, -1)):
        found = decoded(blocks, ggml_type, dtype)
        max_weights.unpatch()
        assert found == decoded(blocks, ggml_type, dtype)
        max_weights.patch()


BLOCKS = torch.arange(4 * 2 * 34, dtype=torch.int64).to(torch.uint8).reshape(4, -1)
Q8_0 = 8
CALLS: dict[str, tuple[Any, ...]] = {
    "turned": (BLOCKS.T, Q8_0),
    "columns": (BLOCKS[:, :34], Q8_0),
    "no whole block": (BLOCKS[0, :33], Q8_0),
    "nothing": (BLOCKS[:0], Q8_0),
    "no axis": (BLOCKS[0, 0], Q8_0),
    "signed bytes": (BLOCKS.view(torch.int8), Q8_0),
    "floats": (torch.ones(34), Q8_0),
    "an array": (BLOCKS.numpy(), Q8_0),
    "None": (None, Q8_0),
    "float64": (BLOCKS, Q8_0, torch.float64),
    "an integer dtype": (BLOCKS, Q8_0, torch.int32),
    "a name for the dtype": (BLOCKS, Q8_0, "float32"),
    "a type that it does not decode": (torch.zeros(22, dtype=torch.uint8), 6),
    "floats of 16 bits": (BLOCKS, 1),
    "an unknown type": (BLOCKS, 99),
    "a name for the type": (BLOCKS, "Q8_0"),
    "a type that has no hash": (BLOCKS, []),
    "no values": (BLOCKS.to("meta"), Q8_0),
    "too few": (BLOCKS,),
    "too many": (BLOCKS, Q8_0, torch.float32, 1),
}


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("name", CALLS)
def test_calls_that_are_not_ours_have_the_outcome_that_they_have_without(name: str) -> None:
    before = max_weights.patched()
    if name == "no values":
        assert transformers_dequant.dequantize(*CALLS[name]).device.type == "meta"
    else:
        found = decoded(*CALLS[name])
        max_weights.unpatch()
        assert found == decoded(*CALLS[name])
        max_weights.patch()
    assert since(NAME, before).fast == 0


@pytest.mark.usefixtures("patched")
def test_parameters_types_by_name_and_arguments_by_name_are_served() -> None:
    weight = torch.nn.Parameter(BLOCKS, requires_grad=False)
    before = max_weights.patched()
    found = [
        decoded(weight, gguf.GGMLQuantizationType.Q8_0),
        decoded(data=BLOCKS, ggml_type=Q8_0),
        decoded(BLOCKS, Q8_0, dtype=torch.float16),
    ]
    assert since(NAME, before) == Calls(3, 0)
    max_weights.unpatch()
    assert found == [
        decoded(weight, Q8_0),
        decoded(BLOCKS, Q8_0),
        decoded(BLOCKS, Q8_0, torch.float16),
    ]


@pytest.mark.usefixtures("patched")
def test_what_is_decoded_is_memory_of_its_own_that_torch_can_grow() -> None:
    first, second = (transformers_dequant.dequantize(BLOCKS, Q8_0) for _ in range(2))
    expected = ORIGINAL["dequantize"](BLOCKS, Q8_0)
    first.zero_()
    assert torch.equal(second, expected)
    assert first.resize_(1000).shape == (1000,)


@pytest.mark.usefixtures("patched")
def test_modes_and_compiled_functions_see_the_operations_of_torch() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    before = max_weights.patched()
    traced = make_fx(lambda data: transformers_dequant.dequantize(data, Q8_0))(BLOCKS)
    compiled = torch.compile(lambda data: kernels.dequantize(data, Q8_0), backend="eager", fullgraph=True)(BLOCKS)
    with FakeTensorMode() as mode:
        assert type(transformers_dequant.dequantize(mode.from_tensor(BLOCKS), Q8_0)) is not torch.Tensor
    assert since(NAME, before).fast == 0
    other = BLOCKS.flip(0).contiguous()
    assert torch.equal(traced(other), ORIGINAL["dequantize"](other, Q8_0))
    assert torch.equal(compiled, ORIGINAL["dequantize"](BLOCKS, Q8_0))


def test_types_that_a_version_of_transformers_decodes_to_other_values_are_its_own() -> None:
    def later(data: Any, ggml_type: int, dtype: Any = torch.float32) -> Any:
        return ORIGINAL["dequantize"](data, ggml_type, dtype) * (2 if ggml_type == Q8_0 else 1)

    counter = Counter("later")
    ours = dequantize(later, counter)
    assert torch.equal(ours(BLOCKS, Q8_0), later(BLOCKS, Q8_0))
    assert counter.calls == Calls(fast=0, fallback=1)
    assert torch.equal(ours(BLOCKS[:, :36].contiguous(), 2), later(BLOCKS[:, :36].contiguous(), 2))
    assert counter.calls == Calls(fast=1, fallback=1)


def test_a_version_whose_function_has_other_parameters_stays_as_it_is() -> None:
    program = """
        import logging
        import max_weights
        from transformers.integrations.gguf import dequant

        logging.basicConfig(level=logging.INFO, format="%(message)s")

        def dequantize(data, ggml_type, device, dtype=None): ...
        dequantize.__module__ = dequant.__name__
        dequant.dequantize = dequantize
        max_weights.patch()
        assert dequant.dequantize is dequantize
        assert not any("dequant.dequantize" in name for name in max_weights.patched())
        del dequant.dequantize
        max_weights.unpatch()
        max_weights.patch()
        assert not any("dequant.dequantize" in name for name in max_weights.patched())
        assert not hasattr(dequant, "dequantize")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{NAME}: fell back to the original: ValueError: " in done.stderr
    assert "other parameters" in done.stderr


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("dtype", [None, "auto", *DTYPES], ids=str)
def test_models_are_the_same_in_every_dtype(
    tmp_path: Path, dtype: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_models.write_lfm2(tmp_path / "model.gguf")
    types: list[tuple[int, Any]] = []

    def recorded(data: Any, ggml_type: int, dtype: Any = torch.float32) -> Any:
        types.append((ggml_type, dtype))
        return ORIGINAL["dequantize"](data, ggml_type, dtype)

    with monkeypatch.context() as context:
        context.setattr(kernels, "dequantize", recorded)
        expected = loaded(tmp_path, "model.gguf", dtype=dtype)
    assert len(types) == 11
    max_weights.patch()
    before = max_weights.patched()
    with caplog.at_level(logging.INFO, "max_weights.dropin"):
        assert loaded(tmp_path, "model.gguf", dtype=dtype) == expected
    served = sum(is_served(*each) for each in types)
    assert since(NAME, before) == Calls(served, len(types) - served)
    assert served == {torch.float16: 8, torch.bfloat16: 0}.get(dtype, len(types))
    max_weights.unpatch()
    assert loaded(tmp_path, "model.gguf", dtype=dtype) == expected
