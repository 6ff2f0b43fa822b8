"""`quantized` and `validate` on tensors flattened by torchao 0.18.0, against its own values; and on invalid entries.

The vectors are made by tools/make_torchao_vectors.py.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import max_weights
from max_weights import FormatError, UnsupportedError, load_weights
from refusals import refuses

VECTORS = Path(__file__).parents[2] / "data/torchao"
DECODED = ["float8_rows", "float8_whole", "int8_rows", "int8_groups", "int8_shifted", "int4_unpacked"]
Make = Callable[[str, str | None, dict[str, torch.Tensor | None]], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A file of one vector, with another entry and other parts; None removes a part."""

    def made(name: str, entry: str | None, parts: dict[str, torch.Tensor | None]) -> Path:
        changes = {f"{name}._weight_{part}": tensor for part, tensor in parts.items()}
        tensors: dict[str, torch.Tensor | None] = load_file(VECTORS / "model.safetensors") | changes
        kept = {key: one for key, one in tensors.items() if key.startswith(f"{name}.") and one is not None}
        weight = f"{name}.weight"
        metadata = {"tensor_names": json.dumps([weight])} | ({} if entry is None else {weight: entry})
        save_file(kept, tmp_path / "model.safetensors", metadata)
        return tmp_path / "model.safetensors"

    return made


def entry_of(name: str) -> dict[str, object]:
    with safe_open(VECTORS / "model.safetensors", "pt") as file:
        entry: dict[str, object] = json.loads(file.metadata()[f"{name}.weight"])
    return entry


@pytest.mark.parametrize("name", DECODED)
def test_weights_are_decoded_to_the_values_of_torchao(name: str) -> None:
    weight = max_weights.quantized(load_weights(VECTORS / "model.safetensors"), name)
    assert weight.weight_name == f"{name}.weight"
    assert weight.scheme == ("fp8" if name.startswith("float8") else "int8")
    decoded = torch.from_numpy(weight.astype("float32").to_numpy())
    assert torch.equal(decoded, load_file(VECTORS / "values.safetensors")[name])


@pytest.mark.parametrize(
    ("name", "scheme", "roles"),
    [
        ("int4_words", "torchao-int4-words", ["packed", "scales", "zero_points"]),
        ("mx", "torchao-mx", ["packed", "scales"]),
        ("nvfp4", "torchao-nvfp4", ["packed", "scales"]),
    ],
)
def test_weights_that_are_packed_for_kernels_are_described(name: str, scheme: str, roles: list[str]) -> None:
    weight = max_weights.quantized(load_weights(VECTORS / "model.safetensors"), name)
    assert (weight.scheme, list(weight.parts)) == (scheme, roles)
    with refuses(UnsupportedError, "unsupported.request"):
        weight.astype("float32")


@pytest.mark.parametrize("name", [*DECODED, "int4_words", "mx", "nvfp4"])
def test_without_an_entry_the_dtypes_tell_the_class(name: str, make: Make) -> None:
    whole = max_weights.quantized(load_weights(VECTORS / "model.safetensors"), name)
    assert max_weights.quantized(load_weights(make(name, None, {})), name).scheme == whole.scheme


def test_all_weights_of_a_file_are_found_and_it_is_clean() -> None:
    found = max_weights.quantized(load_weights(VECTORS / "model.safetensors"))
    assert sorted(found) == sorted([*DECODED, "int4_words", "mx", "nvfp4"])
    assert not max_weights.validate(VECTORS / "model.safetensors").findings


LIES = {
    "no JSON": ("{", {}, "quantized.shape", "is no JSON"),
    "no class": ("{}", {}, "quantized.shape", "has no _type"),
    "a long entry": (f"{70_034:70034}", {}, "quantized.shape", "70034 bytes; expected 65536 at most"),
    "too many names": (
        json.dumps({"_type": "Float8Tensor", "_tensor_data_names": ["a"] * 33}),
        {},
        "quantized.shape",
        "names more than 32 tensors",
    ),
    "deep": ('{"_type":' + "[" * 5000 + "]" * 5000 + "}", {}, "quantized.shape", "is no JSON"),
    "another class": (json.dumps({"_type": "Int8Tensor"}), {}, "quantized.dtype", "expected int8"),
    "blocks of another rank": (
        json.dumps({"_type": "Float8Tensor", "_data": {"block_size": [64]}}),
        {},
        "quantized.shape",
        r"block_size in __metadata__ is \[64\]",
    ),
    "blocks of nothing": (
        json.dumps({"_type": "Float8Tensor", "_data": {"block_size": [0, 64]}}),
        {},
        "quantized.shape",
        r"block_size in __metadata__ is \[0, 64\]",
    ),
    "other blocks": (
        json.dumps({"_type": "Float8Tensor", "_data": {"block_size": [1, 32]}}),
        {},
        "quantized.scale-shape",
        r"it has the shape \[24, 1\]; expected \[24, 2\] for blocks of \[1, 32\]",
    ),
    "a missing scale": (None, {"scale": None}, "quantized.scale-missing", "_weight_scale"),
    "a missing zero point": (
        json.dumps({"_type": "Float8Tensor", "_tensor_data_names": ["qdata", "scale", "zero_point"]}),
        {},
        "quantized.zero-point-missing",
        "_weight_zero_point",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_does_not_fit_is_an_error_and_is_reported(lie: str, make: Make) -> None:
    entry, parts, rule, message = LIES[lie]
    path = make("float8_rows", entry, dict(parts))
    with pytest.raises(FormatError, match=message) as error:
        max_weights.quantized(load_weights(path), "float8_rows")
    assert error.value.rule == rule
    assert rule in [finding.rule for finding in max_weights.validate(path).findings]


def test_a_class_that_is_not_known_is_named(make: Make) -> None:
    weight = max_weights.quantized(load_weights(make("mx", '{"_type": "Later\\nTensor"}', {})), "mx")
    assert weight.scheme == "torchao"
    with refuses(UnsupportedError, "unsupported.request"):
        weight.astype("float32")
