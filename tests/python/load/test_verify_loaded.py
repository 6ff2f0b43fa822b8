"""`verify_loaded`: wrongly loaded weights are found and named, without false alarms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import max_weights
from max_weights import load_weights
from max_weights.torch import _verification, load_into, verify_loaded
from max_weights.types import Fingerprint
from refusals import refuses
from test_conversion import _CONFIGS, _model

Parameters = dict[str, torch.Tensor]
LAYER = "model.layers.0"


def _row(parameters: Parameters, name: str, row: int) -> torch.Tensor:
    return parameters[name].reshape(-1, parameters[name].shape[-1])[row]


def _one_bit(parameters: Parameters) -> tuple[str, str]:
    name = f"{LAYER}.input_layernorm.weight"
    parameters[name].view(torch.int16)[3] ^= 1
    return name, "rows differ"


def _one_row(parameters: Parameters) -> tuple[str, str]:
    name = f"{LAYER}.self_attn.o_proj.weight"
    _row(parameters, name, 7).mul_(1.5)
    return name, "1 of 32 rows differ"


def _stale(parameters: Parameters) -> tuple[str, str]:
    name = f"{LAYER}.self_attn.o_proj.weight"
    parameters[name].copy_(parameters["model.layers.1.self_attn.o_proj.weight"])
    return name, "it holds 'model.layers.1.self_attn.o_proj.weight'"


def _other_rows(parameters: Parameters) -> tuple[str, str]:
    name = f"{LAYER}.self_attn.o_proj.weight"
    parameters[name][:16] = parameters[name][16:].clone()
    return name, f"rows 0-15 hold rows 16-31 of '{name}'"


def _next_shard(parameters: Parameters) -> tuple[str, str]:
    name = "model.embed_tokens.weight"
    parameters[name].copy_(parameters[name].roll(1, 0))
    return name, f"rows 1-47 hold rows 0-46 of '{name}'"


def _not_loaded(parameters: Parameters) -> tuple[str, str]:
    name = "lm_head.weight"
    parameters[name][24:] = 0
    return name, "the rows 24-47 are zeros"


def _nan(parameters: Parameters) -> tuple[str, str]:
    name = f"{LAYER}.post_attention_layernorm.weight"
    parameters[name][5] = torch.nan
    return name, "1 of its values are NaN"


def _transposed(parameters: Parameters) -> tuple[str, str]:
    name = f"{LAYER}.self_attn.o_proj.weight"
    assert parameters[name].shape[0] == parameters[name].shape[1]
    parameters[name].copy_(parameters[name].t().clone())
    return name, f"it is '{name}' transposed"


def _wrong_expert(parameters: Parameters) -> tuple[str, str]:
    name = next(name for name in parameters if "experts" in name and parameters[name].ndim == 3)
    parameters[name][0] = parameters[name][1].clone()
    rows = parameters[name].shape[1]
    return name, f"rows 0-{rows - 1} hold rows {rows}-{2 * rows - 1} of '{name}'"


def _swapped(parameters: Parameters) -> tuple[str, str]:
    one, other = f"{LAYER}.self_attn.k_proj.weight", f"{LAYER}.self_attn.v_proj.weight"
    before = parameters[one].clone()
    parameters[one].copy_(parameters[other])
    parameters[other].copy_(before)
    return one, f"it holds '{other}'"


MUTATIONS: tuple[Callable[[Parameters], tuple[str, str]], ...] = (
    _one_bit, _one_row, _stale, _other_rows, _next_shard, _not_loaded, _nan, _transposed, _wrong_expert, _swapped,
)  # fmt: skip


@pytest.fixture(scope="module", params=_CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of each architecture, and the folder where transformers saved it."""
    folder = tmp_path_factory.mktemp(request.param)
    model = _model(request.param, _CONFIGS[request.param])
    model.save_pretrained(folder)
    return model, folder


def test_every_mutation_is_found_and_named_and_nothing_else_is(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    load_into(model, folder, rename="transformers5")
    with load_weights(folder) as weights:
        clean = verify_loaded(model, weights, rename="transformers5")
        assert clean.ok, clean
        assert set(clean.verified) == set(model.state_dict())
        applied = []
        for mutate in MUTATIONS:
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            with torch.no_grad():
                try:
                    name, message = mutate(dict(model.state_dict()))
                except (
                    KeyError,
                    StopIteration,
                    AssertionError,
                ):  # an architecture without experts, or with other shapes
                    model.load_state_dict(state)
                    continue
            applied.append(mutate)
            report = verify_loaded(model, weights, rename="transformers5")
            assert not report.ok
            reported = {finding.name: finding.message for finding in report.findings}
            assert message in reported[name], (mutate.__name__, report)
            assert len(reported) == (2 if mutate is _swapped else 1), report
            model.load_state_dict(state)
        assert verify_loaded(model, weights, rename="transformers5").ok
    assert len(applied) >= len(MUTATIONS) - 3, applied


def test_every_bit_of_a_parameter_counts(tmp_path: Path) -> None:
    module = torch.nn.Linear(5, 3)
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    weights = load_weights(tmp_path / "a.safetensors")
    for bit in range(5 * 3 * 32):
        with torch.no_grad():
            codes = module.weight.view(torch.int32).reshape(-1)
            codes[bit // 32] ^= -(1 << 31) if bit % 32 == 31 else 1 << bit % 32
            assert not verify_loaded(module, weights).ok, bit
            codes[bit // 32] ^= -(1 << 31) if bit % 32 == 31 else 1 << bit % 32
    assert verify_loaded(module, weights).ok


def test_parameters_of_another_dtype_are_compared_with_the_converted_weights(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.LayerNorm(30))
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    weights = load_weights(tmp_path / "a.safetensors")
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        module.to(torch.float32).load_state_dict(weights.load(framework="torch"))
        module.to(dtype)
        assert verify_loaded(module, weights).ok, dtype
    with torch.no_grad():
        module[0].weight[0, 0] += 1
    assert "1 of 30 rows" in str(verify_loaded(module, weights))


def test_a_fingerprint_is_enough_where_the_files_are_not_at_hand(tmp_path: Path) -> None:
    module = torch.nn.ModuleDict({"q": torch.nn.Linear(16, 256, bias=False), "k": torch.nn.Linear(16, 256, bias=False)})
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    own = Fingerprint.from_json(max_weights.fingerprint(load_weights(tmp_path / "a.safetensors")).to_json())
    assert verify_loaded(module, own).ok
    assert verify_loaded(module, own, rename=lambda name: name).ok
    with torch.no_grad():
        module["q"].weight[9, 3] += 1
    assert "the blocks of rows 8-11" in str(verify_loaded(module, own))
    with torch.no_grad():
        module["q"].weight.copy_(module["k"].weight)
    assert "it holds 'k.weight'" in str(verify_loaded(module, own))
    with refuses(ValueError, "argument.packed"):
        verify_loaded(module, own, rename="vllm")


def test_tied_and_missing_and_other_shapes_are_findings(tmp_path: Path) -> None:
    module = torch.nn.ModuleDict({"one": torch.nn.Linear(4, 4), "two": torch.nn.Linear(4, 4)})
    module["two"].weight = module["one"].weight
    save_file({"one.weight": module["one"].weight.detach(), "one.bias": torch.zeros(5)}, tmp_path / "a.safetensors")
    report = verify_loaded(module, load_weights(tmp_path / "a.safetensors"))
    reported = {finding.name: finding.message for finding in report.findings}
    assert reported.keys() == {"one.bias", "two.bias"}
    assert "[4], and that of the weight [5]" in reported["one.bias"]
    assert "no weight of this name" in reported["two.bias"]
    assert {"one.weight", "two.weight"} <= set(report.verified)


def test_modules_that_load_themselves_are_compared_too(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    weights = load_weights(tmp_path / "a.safetensors")
    report = verify_loaded(module, weights)
    assert report.ok, report
    assert set(report.verified) == set(module.state_dict())
    module[1].running_mean[3] += 1
    assert [finding.name for finding in verify_loaded(module, weights).findings] == ["1.running_mean"]


def test_packed_blocks_are_decoded(models: Path) -> None:
    weights = load_weights(models / "smollm2-135m.Q4_1.gguf")
    module = torch.nn.ModuleDict({"q": torch.nn.Linear(576, 576, bias=False)}).to(torch.bfloat16)
    rename = {"blk.0.attn_q.weight": "q.weight"}
    load_into(module, models / "smollm2-135m.Q4_1.gguf", rename=rename, select=list(rename))
    report = verify_loaded(module, weights, rename=lambda name: rename.get(name))
    assert report.ok, report


def _module_of_views(path: Path) -> tuple[torch.nn.Module, Any]:
    """A module whose parameters are the pages of a file, and the weights that they are views of."""
    save_file({"weight": torch.randn(300, 300), "bias": torch.randn(300)}, path)
    weights = load_weights(path)
    with torch.device("meta"):
        module = torch.nn.Linear(300, 300)
    module.load_state_dict(weights.load(framework="torch", copy=False), assign=True)
    return module, weights


def test_parameters_that_are_pages_of_the_file_are_equal_until_they_are_written_to(tmp_path: Path) -> None:
    module, weights = _module_of_views(tmp_path / "a.safetensors")
    assert verify_loaded(module, load_weights(tmp_path / "a.safetensors")).ok
    with torch.no_grad():
        module.weight[7, 5] += 1
    report = verify_loaded(module, load_weights(tmp_path / "a.safetensors"))
    assert [finding.rows for finding in report.findings] == [(range(7, 8),)]
    # The weights share the overwritten pages, so they no longer have the file's values.
    with refuses(ValueError):
        verify_loaded(module, weights)


def test_pages_of_the_file_at_another_place_or_of_another_file_are_a_finding(tmp_path: Path) -> None:
    save_file({"one": torch.randn(64, 64), "two": torch.randn(64, 64)}, tmp_path / "a.safetensors")
    weights = load_weights(tmp_path / "a.safetensors")
    module = torch.nn.ParameterDict({name: torch.nn.Parameter(weights[name].torch()) for name in ("one", "two")})
    other = load_weights(tmp_path / "a.safetensors")
    assert verify_loaded(module, other).ok
    module["one"], module["two"] = module["two"], module["one"]
    assert {str(finding) for finding in verify_loaded(module, other).findings} == {
        "'one': it holds 'two'", "'two': it holds 'one'"
    }  # fmt: skip
    save_file({"one": torch.randn(64, 64), "two": torch.randn(64, 64)}, tmp_path / "b.safetensors")
    assert len(verify_loaded(module, load_weights(tmp_path / "b.safetensors")).findings) == 2


def test_a_parameter_of_integers_is_never_equal_to_a_weight_of_floats(tmp_path: Path) -> None:
    save_file({"one": torch.ones(4), "two": torch.ones(4, dtype=torch.int32)}, tmp_path / "a.safetensors")
    module = torch.nn.Module()
    module.register_buffer("one", torch.ones(4, dtype=torch.int64))
    module.register_buffer("two", torch.ones(4))
    weights = load_weights(tmp_path / "a.safetensors")
    for expected in (weights, max_weights.fingerprint(weights)):
        report = verify_loaded(module, expected)
        assert {finding.name for finding in report.findings} == {"one", "two"}
        assert "float" in str(report.findings[0])


def test_a_fingerprint_of_another_model_and_parameters_of_another_shape_are_findings() -> None:
    module = torch.nn.Linear(4, 6)
    other = max_weights.fingerprint({"weight": torch.nn.Linear(5, 6).weight, "bias": torch.zeros(6, 1)})
    report = verify_loaded(module, other)
    assert {finding.name for finding in report.findings} == {"weight", "bias"}
    assert all("its shape is" in finding.message or " [6" in finding.message for finding in report.findings)
    unknown = verify_loaded(module, max_weights.fingerprint({"x": torch.zeros(3)}))
    assert not unknown.ok
    assert [(finding.name, finding.kind) for finding in unknown.findings] == [
        ("weight", "unfilled"),
        ("bias", "unfilled"),
        ("x", "unused"),
    ]


def test_a_module_that_is_changed_while_it_is_verified_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    held = _verification.weights_are_held

    def _slow(*arguments: Any) -> list[bool]:
        result = held(*arguments)
        with torch.no_grad():
            module[0].weight[3] += 1
        module[1].bias = torch.nn.Parameter(torch.zeros(8))
        return result

    monkeypatch.setattr(_verification, "weights_are_held", _slow)
    report = verify_loaded(module, load_weights(tmp_path / "a.safetensors"))
    assert {finding.name for finding in report.findings} == {"0.weight", "1.bias"}
    assert all("it was changed while it was verified" in finding.message for finding in report.findings)


def test_bad_arguments_are_errors(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, tmp_path / "a.safetensors")
    weights = load_weights(tmp_path / "a.safetensors")
    with refuses(TypeError):
        verify_loaded({}, weights)  # type: ignore[arg-type]
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    with refuses(ValueError, "argument.meta"):
        verify_loaded(module, weights)
    (tmp_path / "a.safetensors").write_bytes(b"")
    with pytest.raises(max_weights.FileChangedError):
        verify_loaded(torch.nn.Linear(2, 2), weights)
