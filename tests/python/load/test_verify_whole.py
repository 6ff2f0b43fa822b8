"""`verify_loaded` is strict: ties, unused weights, unfilled parameters, and values that do not fit a dtype."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import max_weights
from max_weights import DType, WeightNotFoundError, load_weights
from max_weights.errors import ArgumentError
from max_weights.torch import VerificationReport, load_into, verify_loaded
from max_weights.types import Finding
from refusals import refuses

pytest_plugins = ("pytester",)

Source = Callable[[Path], Any]

SOURCES: dict[str, Source] = {
    "path": lambda path: path,
    "weights": load_weights,
    "fingerprint": lambda path: max_weights.fingerprint(load_weights(path)),
}
"""References to compare a module with."""

every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


class Tied(torch.nn.Module):
    """An embedding whose head is tied to it, or should not be."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


def _saved(tensors: dict[str, torch.Tensor], path: Path) -> Path:
    save_file({name: tensor.detach().clone() for name, tensor in tensors.items()}, path / "a.safetensors")
    return path / "a.safetensors"


def _buffers(**tensors: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


# Ties


@every_source
@pytest.mark.parametrize("order", ["embed first", "head first"])
def test_a_head_that_is_tied_by_mistake_is_a_finding(source: Source, order: str, tmp_path: Path) -> None:
    module = Tied()
    own, other = module.embed.weight, torch.randn(6, 4)
    values = {"embed.weight": own, "head.weight": other}
    if order == "head first":
        values = {"embed.weight": other, "head.weight": own}
    report = verify_loaded(module, source(_saved(values, tmp_path)))
    wrong = "head.weight" if order == "embed first" else "embed.weight"
    assert not report.ok
    assert [finding.name for finding in report.findings] == [wrong]
    assert [finding.other for finding in report.findings] == [wrong]


@every_source
def test_tied_parameters_are_ok_whichever_of_their_names_the_checkpoint_has(source: Source, tmp_path: Path) -> None:
    module = Tied()
    for names in (["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]):
        path = _saved(dict.fromkeys(names, module.embed.weight), tmp_path)
        report = verify_loaded(module, source(path))
        assert report.ok, report
        assert set(report.verified) == {"embed.weight", "head.weight"}
        assert (report.unused, report.unfilled) == ((), ())


@every_source
def test_a_tie_that_a_model_declares_and_does_not_have_is_a_finding(source: Source, tmp_path: Path) -> None:
    module = Tied()
    vars(module)["all_tied_weights_keys"] = {"head.weight": "embed.weight"}
    path = _saved({"embed.weight": module.embed.weight}, tmp_path)
    module.head.weight = torch.nn.Parameter(module.embed.weight.detach().clone())
    assert verify_loaded(module, source(path)).ok
    with torch.no_grad():
        module.head.weight[2, 1] += 1
    assert [finding.name for finding in verify_loaded(module, source(path)).findings] == ["head.weight"]


@every_source
def test_a_module_that_is_there_twice_is_compared_under_both_names(source: Source, tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(3)  # loads itself
    module = torch.nn.ModuleDict({"one": norm, "two": norm})
    state = module.state_dict()
    assert verify_loaded(module, source(_saved(state, tmp_path))).ok
    assert verify_loaded(module, source(_saved({k: v for k, v in state.items() if "one" in k}, tmp_path))).ok
    state["two.weight"] = torch.zeros(3)
    assert [f.name for f in verify_loaded(module, source(_saved(state, tmp_path))).findings] == ["two.weight"]


# Everything, and nothing else


@every_source
def test_a_weight_that_no_parameter_holds_is_unused_and_not_ok(source: Source, tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3)
    path = _saved({**module.state_dict(), "extra.weight": torch.ones(2)}, tmp_path)
    report = verify_loaded(module, source(path))
    assert not report.ok
    assert not report.by_kind("differs", "unfilled", "not compared")
    assert report.unused == ("extra.weight",)
    assert "'extra.weight': no parameter or buffer holds this weight" in str(report)
    assert "extra.weight" in repr(report)


@every_source
def test_a_parameter_or_saved_buffer_that_no_weight_fills_is_unfilled_and_not_ok(
    source: Source, tmp_path: Path
) -> None:
    module = torch.nn.Linear(4, 3)
    module.register_buffer("saved", torch.ones(2))
    module.register_buffer("computed", torch.ones(2), persistent=False)
    report = verify_loaded(module, source(_saved({"weight": module.weight}, tmp_path)))
    assert not report.ok
    assert report.unfilled == ("bias", "saved")
    assert {finding.name for finding in report.findings} == {"bias", "saved"}


@every_source
def test_a_weight_of_a_buffer_that_is_not_saved_is_excused(source: Source, tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3)
    module.register_buffer("computed", torch.ones(2), persistent=False)
    report = verify_loaded(module, source(_saved({**module.state_dict(), "computed": torch.zeros(2)}, tmp_path)))
    assert report.ok, report


def test_a_model_with_some_of_its_layers_is_not_ok(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(num_hidden_layers=6, **sizes)).save_pretrained(tmp_path)
    module = BertModel(BertConfig(num_hidden_layers=2, **sizes))
    load_into(module, tmp_path, strict=False)
    report = verify_loaded(module, tmp_path)
    assert not report.ok
    assert {finding.kind for finding in report.findings} == {"unused"}
    assert {name.split(".")[2] for name in report.unused} == {"2", "3", "4", "5"}
    assert verify_loaded(module, tmp_path, ignore=re.compile(r"encoder\.layer\.[2-5]\..*")).ok


def test_a_module_that_was_quantized_is_not_ok(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    path = _saved(module.state_dict(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer way
        quantized = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    report = verify_loaded(quantized, path)
    assert not report.ok
    assert set(report.unused) == {"0.weight", "0.bias"}
    assert set(report.verified) == {"1.weight", "1.bias"}


@every_source
def test_what_ignore_names_is_excused(source: Source, tmp_path: Path) -> None:
    module = torch.nn.ModuleDict({"body": torch.nn.Linear(4, 3), "head": torch.nn.Linear(3, 2)})
    values = {**module["body"].state_dict(prefix="body."), "pooler.weight": torch.ones(2), "pooler.bias": torch.ones(1)}
    path = _saved(values, tmp_path)
    for ignore in (["pooler", "head"], ["pooler.*", re.compile("head.*")], ("pooler.weight", "pooler.bias", "head.*")):
        report = verify_loaded(module, source(path), ignore=ignore)
        assert report.ok, report
        assert set(report.verified) == {"body.weight", "body.bias"}
    partly = verify_loaded(module, source(path), ignore="head")
    assert not partly.ok
    assert partly.unused == ("pooler.bias", "pooler.weight")
    assert not partly.unfilled


@every_source
def test_a_pattern_of_ignore_that_excuses_nothing_is_an_error(source: Source, tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3)
    path = _saved({**module.state_dict(), "pooler.weight": torch.ones(2)}, tmp_path)
    with refuses(ArgumentError, "argument.no-effect"):
        verify_loaded(module, source(path), ignore=[])
    with refuses(WeightNotFoundError, "weight.not-found"):
        verify_loaded(module, source(path), ignore=["pooler", "poler.weight"])
    with torch.no_grad():
        module.weight[0] = 0  # a difference is never excused
    with refuses(ArgumentError, "argument.no-effect"):
        verify_loaded(module, source(path), ignore=["pooler", "weight"])
    with refuses(TypeError):
        verify_loaded(module, source(path), ignore=[3])  # type: ignore[list-item]


@every_source
def test_weights_that_a_rename_leaves_out_are_not_unused(source: Source, tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3)
    path = _saved({"a.weight": module.weight, "a.bias": module.bias, "b.bias": torch.ones(2)}, tmp_path)
    assert verify_loaded(module, source(path), rename={"a.weight": "weight", "a.bias": "bias"}.get).ok
    for table in ({"a.weight": "weight", "a.bias": "bias"}, {"a.*": "*"}):
        report = verify_loaded(module, source(path), rename=table)
        assert report.unused == ("b.bias",)
        assert len(report.findings) == 1
    with pytest.raises(WeightNotFoundError):
        verify_loaded(module, source(path), rename={"c.weight": "weight"})


@every_source
def test_a_module_without_anything_to_compare_is_not_ok(source: Source, tmp_path: Path) -> None:
    path = _saved({"a": torch.ones(2)}, tmp_path)
    assert not verify_loaded(torch.nn.ReLU(), source(path), ignore="a").ok


def test_what_is_no_checkpoint_is_an_error_that_says_what_is(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3)
    path = _saved(module.state_dict(), tmp_path)
    for given in (path, str(path), [path], load_weights(path)):
        assert verify_loaded(module, given)
    with pytest.raises(FileNotFoundError):
        verify_loaded(module, tmp_path / "b.safetensors")
    other = torch.nn.Linear(4, 3)
    for tensors in (module, module.state_dict()):
        assert verify_loaded(module, tensors)
        assert len(verify_loaded(other, tensors).by_kind("differs")) == 2
    for wrong in (3, None, b"a.safetensors", [], [3]):
        with refuses(ArgumentError, "argument.type"):
            verify_loaded(module, wrong)  # type: ignore[arg-type]
    with refuses(TypeError):
        verify_loaded(path, path)  # type: ignore[arg-type]


# Dtypes, values, shapes


def _torch_dtypes() -> list[torch.dtype]:
    found = []
    for dtype in DType:
        try:
            found.append(dtype.to_torch())
        except (ValueError, AttributeError, ImportError):
            continue
    return found


@every_source
@pytest.mark.parametrize("dtype", _torch_dtypes(), ids=str)
def test_parameters_of_every_dtype_are_ok_and_what_differs_is_reported(
    dtype: torch.dtype, source: Source, tmp_path: Path
) -> None:
    codes = torch.arange(1, 33, dtype=torch.uint8).reshape(4, 8) % (2 if dtype is torch.bool else 120)
    value = codes.view(dtype) if dtype.itemsize == 1 else codes.to(dtype)
    module = _buffers(a=value.clone())
    path = _saved({"a": value}, tmp_path)
    report = verify_loaded(module, source(path))
    assert report.ok, report
    raw = module.get_buffer("a").view(torch.uint8)
    raw[2, 3 * dtype.itemsize] ^= 1
    report = verify_loaded(module, source(path))
    assert [finding.name for finding in report.findings] == ["a"], report
    assert report.findings[0].kind == "differs"
    raw[:] = 0
    assert not verify_loaded(module, source(path)).ok


@every_source
@pytest.mark.parametrize(
    ("weight", "of", "dtype", "became"),
    [
        (300, torch.int32, torch.int8, 44),
        (-1, torch.int8, torch.uint8, 255),
        (2**40 + 5, torch.int64, torch.int32, 5),
        (2, torch.int32, torch.bool, 1),
        (70000, torch.int64, torch.int16, 4464),
        (-1, torch.int64, torch.uint32, 2**32 - 1),
    ],
)
def test_an_integer_that_wrapped_is_a_finding(
    weight: int, of: torch.dtype, dtype: torch.dtype, became: int, source: Source, tmp_path: Path
) -> None:
    expected = torch.tensor([1, weight, 0], dtype=of)
    module = _buffers(a=expected.to(dtype))
    assert int(module.get_buffer("a")[1]) == became
    report = verify_loaded(module, source(_saved({"a": expected}, tmp_path)))
    assert not report.ok
    if not isinstance(source(tmp_path / "a.safetensors"), max_weights.types.Fingerprint):
        name = str(dtype).removeprefix("torch.")
        assert f"1 values of the weight do not fit {name}: {weight} became {became}" in str(report)


@pytest.mark.parametrize("signed", [torch.int64, torch.int32, torch.int8])
def test_an_unsigned_integer_above_the_signed_ones_is_not_the_negative_one_of_the_same_bits(
    signed: torch.dtype, tmp_path: Path
) -> None:
    negative = torch.tensor([3, -1], dtype=signed)
    unsigned = negative.to(torch.int64).view(torch.uint64)
    for own, weight in ((negative, unsigned), (unsigned, negative)):
        report = verify_loaded(_buffers(a=own.clone()), _saved({"a": weight}, tmp_path))
        assert [finding.name for finding in report.findings] == ["a"]


@every_source
def test_integers_of_another_dtype_that_holds_them_are_ok(source: Source, tmp_path: Path) -> None:
    path = _saved({"a": torch.tensor([1, -5, 100], dtype=torch.int64), "b": torch.tensor([0, 1])}, tmp_path)
    module = _buffers(a=torch.tensor([1, -5, 100], dtype=torch.int8), b=torch.tensor([False, True]))
    report = verify_loaded(module, source(path))
    assert report.ok, report


@every_source
@pytest.mark.parametrize(
    ("value", "of", "dtype"),
    [
        (1e30, torch.float32, torch.float16),
        (-3.4e38, torch.float32, torch.bfloat16),
        (1e300, torch.float64, torch.float32),
        (1e5, torch.bfloat16, torch.float8_e5m2),
    ],
)
def test_a_float_that_became_infinite_is_a_finding(
    value: float, of: torch.dtype, dtype: torch.dtype, source: Source, tmp_path: Path
) -> None:
    expected = torch.tensor([[1.0, value], [0.5, 2.0]], dtype=of)
    module = _buffers(a=expected.to(dtype))
    assert not module.get_buffer("a").float().isfinite().all()
    report = verify_loaded(module, source(_saved({"a": expected}, tmp_path)))
    assert not report.ok


def test_a_float_that_became_infinite_is_named_with_its_value(tmp_path: Path) -> None:
    path = _saved({"a": torch.tensor([1.0, 1e30, -torch.inf])}, tmp_path)
    report = verify_loaded(_buffers(a=torch.tensor([1.0, torch.inf, -torch.inf], dtype=torch.float16)), path)
    assert "1 values of the weight 'a' do not fit float16, and are not finite in it: 1e+30 became inf" in str(report)


@every_source
def test_infinities_and_nan_of_the_weight_itself_are_ok(source: Source, tmp_path: Path) -> None:
    values = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])
    path = _saved({"a": values}, tmp_path)
    for dtype in (torch.float16, torch.float64):
        report = verify_loaded(_buffers(a=values.to(dtype)), source(path))
        assert report.ok, (dtype, report)


@every_source
@pytest.mark.parametrize(("own", "weight"), [((), (1,)), ((1,), ()), ((2, 3), (3, 2)), ((6,), (2, 3))])
def test_another_shape_is_a_finding_also_of_one_element(
    own: tuple[int, ...], weight: tuple[int, ...], source: Source, tmp_path: Path
) -> None:
    values = torch.arange(6.0)[: torch.Size(own).numel()]
    path = _saved({"a": values.reshape(weight)}, tmp_path)
    report = verify_loaded(_buffers(a=values.reshape(own).clone()), source(path))
    assert [finding.name for finding in report.findings] == ["a"]


@every_source
def test_a_complex_buffer_is_never_equal_to_a_real_weight(source: Source, tmp_path: Path) -> None:
    path = _saved({"a": torch.ones(3), "b": torch.ones(3, dtype=torch.complex64)}, tmp_path)
    module = _buffers(a=torch.ones(3, dtype=torch.complex64), b=torch.ones(3))
    assert {finding.name for finding in verify_loaded(module, source(path)).findings} == {"a", "b"}


@every_source
def test_what_cannot_be_compared_is_a_finding_that_ignore_excuses(source: Source, tmp_path: Path) -> None:
    path = _saved({"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(2), "d": torch.ones(2)}, tmp_path)
    module = _buffers(a=torch.ones(1).expand(3), b=torch.ones(3), c=torch.ones(2, dtype=torch.complex128))
    module.d = torch.nn.UninitializedParameter()
    report = verify_loaded(module, source(path))
    assert {finding.name: finding.kind for finding in report.findings} == dict.fromkeys("acd", "not compared")
    assert not report.unused
    assert verify_loaded(module, source(path), ignore=["a", "c", "d"]).ok


# The output of a failing test


def test_a_failing_assert_of_a_report_says_what_is_wrong(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from safetensors.torch import save_file
        from max_weights.torch import verify_loaded

        def test_loaded(tmp_path):
            module = torch.nn.Linear(4, 3)
            state = module.state_dict()
            path = tmp_path / "a.safetensors"
            save_file({"bias": state["bias"], "weight": torch.zeros(3, 4), "b": torch.ones(2)}, path)
            assert verify_loaded(module, path)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    (line,) = [line for line in result.outlines if line.startswith("E       AssertionError: assert <")]
    assert "not ok, 2 parameters and buffers were compared, 2 findings (1 differs, 1 unused);" in line
    assert "'weight': 3 of 3 rows differ" in line


def test_a_report_quotes_the_first_of_many_findings() -> None:
    report = VerificationReport(tuple(Finding(f"w{n}", "no", kind="unused") for n in range(1000)), (), 0, 0.0, 1)
    assert not report
    assert len(repr(report)) < 250
    assert str(report).endswith("and 900 more")
