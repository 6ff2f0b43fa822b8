"""`max_weights.torch.load_into`: from a file into a module, compared with torch and transformers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from max_weights import save_gguf
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.sharding import Shard
from max_weights.torch import LoadReport, load_file, load_into
from refusals import refuses
from warm import Parent

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
    rope_theta=100000.0,
)


def bert(models: Path, device: str = "cpu") -> BertModel:
    config = BertConfig(**json.loads((models / "minilm.config.json").read_text()))
    with torch.device(device):
        return BertModel(config)


def same(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    return all(left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left)


def on_meta(module: nn.Module) -> list[str]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, tensor in tensors if tensor.is_meta]


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "saved.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


def two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_module_is_filled_in_place_as_load_state_dict_fills_it(models: Path, dtype: torch.dtype) -> None:
    path = models / "minilm.safetensors"
    expected = bert(models).to(dtype)
    expected.load_state_dict(safetensors.torch.load_file(path), strict=False)
    module = bert(models).to(dtype)
    before = {name: (parameter, parameter.data_ptr()) for name, parameter in module.named_parameters()}
    version = module.pooler.dense.weight._version
    report = load_into(module, path)
    assert same(module, expected)
    for name, parameter in module.named_parameters():
        assert parameter is before[name][0], name
        assert parameter.data_ptr() == before[name][1], name
    assert module.pooler.dense.weight._version > version
    assert set(report.loaded) == set(module.state_dict())
    assert report.non_persistent == ("embeddings.position_ids",)
    assert (report.missing, report.unexpected, report.tied) == ((), (), {})
    assert report.bytes == sum(tensor.nbytes for tensor in module.state_dict().values())
    if dtype is torch.float32:
        assert report.converted == {}
    else:
        assert set(report.converted.values()) == {(DType.float32, DType.from_torch(dtype))}


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"copy": "per-tensor"}, {"backend": "read"}])
def test_what_is_on_the_meta_device_gets_memory(models: Path, options: dict[str, Any]) -> None:
    path = models / "minilm.safetensors"
    expected, module = bert(models), bert(models, "meta")
    expected.load_state_dict(safetensors.torch.load_file(path), strict=False)
    module.pooler.requires_grad_(False)
    load_into(module, path, **options)
    assert same(module, expected)
    assert on_meta(module) == []
    assert isinstance(module.pooler.dense.weight, nn.Parameter)
    assert [module.pooler.dense.weight.requires_grad, module.embeddings.word_embeddings.weight.requires_grad] == [
        False,
        True,
    ]
    module.train()(torch.tensor([[1, 2, 3]])).last_hidden_state.sum().backward()
    assert module.embeddings.word_embeddings.weight.grad is not None
    with torch.no_grad():
        module.pooler.dense.weight.zero_()  # never written to the file
    assert load_file(path)["pooler.dense.weight"].any()


def test_a_gguf_file_fills_a_model_of_transformers(models: Path) -> None:
    path = models / "smollm2-135m.Q4_1.gguf"
    with torch.device("meta"):
        module = LlamaForCausalLM(SMOLLM2)
    report = load_into(module, path, rename="hf", dtype="bfloat16")
    expected = load_file(path, rename="hf", dtype="bfloat16")
    for name, tensor in expected.items():
        assert torch.equal(module.get_parameter(name), tensor), name
    assert on_meta(module) == []
    assert module.lm_head.weight is module.model.embed_tokens.weight
    assert report.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert report.converted["model.layers.0.self_attn.q_proj.weight"] == ("q4_1", DType.bfloat16)
    made_here = type(module.model.rotary_emb)(SMOLLM2)
    assert torch.equal(module.model.rotary_emb.inv_freq, made_here.inv_freq)
    with torch.no_grad():
        assert module(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_packed_blocks_become_what_the_module_declares(tmp_path: Path, device: str) -> None:
    save_gguf({"weight": np.random.default_rng(0).random((4, 32), np.float32)}, tmp_path / "a.gguf", quantize="q8_0")
    expected = load_file(tmp_path / "a.gguf", dtype="bfloat16")["weight"]
    module = nn.Linear(32, 4, bias=False, device=device, dtype=torch.bfloat16)
    load_into(module, tmp_path / "a.gguf")
    assert torch.equal(module.weight, expected)


@pytest.mark.parametrize("name", ["derived/layer0.bf16.pt", "derived/layer0.bf16.legacy.pt", "derived/sharded"])
def test_files_of_all_kinds_fill_a_module(models: Path, name: str) -> None:
    tensors = load_file(models / name)
    module = nn.Module()
    for full, tensor in tensors.items():
        owner = module
        *path, last = full.split(".")
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = owner._modules[step]
        owner.register_parameter(last, nn.Parameter(torch.zeros_like(tensor, dtype=torch.float32)))
    load_into(module, models / name)
    assert all(torch.equal(module.get_parameter(full), tensor.float()) for full, tensor in tensors.items())


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("given", ["0.weight", "1.weight"])
def test_tied_parameters_stay_tied_by_any_of_their_names(tmp_path: Path, given: str, device: str) -> None:
    with torch.device(device):
        module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    values = torch.arange(16.0).reshape(4, 4)
    report = load_into(module, saved(tmp_path, {given: values}))
    assert module[0].weight is module[1].weight
    assert torch.equal(module[0].weight, values)
    assert set(report.loaded) == {"0.weight", "1.weight"}
    assert list(report.tied.values()) == [given]


def test_of_two_names_of_one_parameter_the_last_counts_as_in_torch(tmp_path: Path) -> None:
    path = saved(tmp_path, {"0.weight": torch.zeros(4, 4), "1.weight": torch.ones(4, 4)})
    modules = [nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)) for _ in range(2)]
    for module in modules:
        module[1].weight = module[0].weight
    load_into(modules[0], path)
    modules[1].load_state_dict(safetensors.torch.load_file(path))
    assert same(*modules)


def test_what_a_model_declares_to_be_tied_is_tied(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    for device in ("cpu", "meta"):
        with torch.device(device):
            module = LlamaForCausalLM(config)
        module.lm_head.weight = nn.Parameter(torch.empty(32, 16, device=device))
        report = load_into(module, tmp_path / "model.safetensors")
        assert module.lm_head.weight is module.model.embed_tokens.weight
        assert report.missing == ()
        assert on_meta(module) == []


def test_one_module_under_two_names_is_filled_once(tmp_path: Path) -> None:
    linear = nn.Linear(2, 2, bias=False)
    module = nn.ModuleDict({"a": linear, "b": linear})
    load_into(module, saved(tmp_path, {"a.weight": torch.ones(2, 2), "b.weight": torch.ones(2, 2)}))
    assert torch.equal(linear.weight, torch.ones(2, 2))


def test_what_does_not_lie_in_one_piece_is_copied_to(tmp_path: Path) -> None:
    module = two()
    memory = torch.zeros(3, 4)
    module[0].weight = nn.Parameter(memory.T)
    module[1].weight.data = torch.zeros(2, 8)[:, ::2]
    values = {name: torch.randn_like(tensor).contiguous() for name, tensor in module.state_dict().items()}
    load_into(module, saved(tmp_path, values))
    assert all(torch.equal(tensor, values[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(memory, values["0.weight"].T)


def test_dtypes_that_only_torch_has_are_copied_to(tmp_path: Path) -> None:
    module = nn.ParameterDict(
        {"z": nn.Parameter(torch.zeros(2, dtype=torch.complex128)), "f": nn.Parameter(torch.zeros(2))}
    )
    values = {"z": torch.tensor([1 + 2j, 3], dtype=torch.complex128), "f": torch.ones(2)}
    torch.save(values, tmp_path / "z.pt")
    load_into(module, tmp_path / "z.pt")
    assert torch.equal(module["z"], values["z"])


def test_a_missing_dimension_of_old_files_is_no_mismatch(tmp_path: Path) -> None:
    for device in ("cpu", "meta"):
        module = nn.Module()
        module.scale = nn.Parameter(torch.zeros((), device=device))
        load_into(module, saved(tmp_path, {"scale": torch.ones(1)}))
        assert module.scale.shape == ()
        assert module.scale.item() == 1


def test_everything_that_does_not_fit_is_said_at_once_and_nothing_is_changed(tmp_path: Path) -> None:
    module = two()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    path = saved(
        tmp_path,
        {"0.weight": torch.ones(3, 4), "0.bias": torch.ones(4), "1.wieght": torch.ones(2, 4), "x": torch.ones(1)},
    )
    with pytest.raises(ArgumentError) as caught:
        load_into(module, path)
    text = str(caught.value)
    assert "the file does not fit Sequential: 2 missing, 2 unexpected, 1 that do not fit" in text
    assert "'1.weight' (did you mean '1.wieght'" in text
    assert "'1.bias'" in text
    assert "'x'" in text
    assert "'0.weight': the file has the shape [3, 4], but the module has [4, 3]" in text
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    with refuses(ValueError, "argument.mismatch"):
        load_into(module, path, strict=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    report = load_into(module, path, strict=False, rename=lambda name: None if name == "0.weight" else name)
    assert report.missing == ("0.weight", "1.weight", "1.bias")
    assert report.unexpected == ("1.wieght", "x")
    assert torch.equal(module[0].bias, torch.ones(4))


def test_names_are_selected_and_renamed(tmp_path: Path) -> None:
    path = saved(tmp_path, {f"model.{name}": torch.ones_like(tensor) for name, tensor in two().state_dict().items()})
    module = two()
    report = load_into(module, path, rename={"model.": ""})
    assert report.loaded == ("0.weight", "0.bias", "1.weight", "1.bias")
    report = load_into(two(), path, rename={"model.": ""}, select="*.bias", strict=False)
    assert report.loaded == ("0.bias", "1.bias")
    odd = nn.ParameterDict({"a[0]*": nn.Parameter(torch.zeros(2)), "a0": nn.Parameter(torch.zeros(2).half())})
    load_into(odd, saved(tmp_path, {"a[0]*": torch.ones(2), "a0": torch.ones(2)}))
    assert torch.equal(odd["a[0]*"], torch.ones(2))
    assert odd["a0"].dtype is torch.float16


def test_modules_with_a_way_of_their_own_load_themselves(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.Linear(2, 2)))

    def renamed(_module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}0.weight"] = state.pop(f"{prefix}old")

    values = {name: torch.rand_like(tensor.float()) for name, tensor in model().state_dict().items()}
    values["1.num_batches_tracked"] = torch.tensor(7)
    values["2.old"] = values.pop("2.0.weight")
    path = saved(tmp_path, values)
    modules = [model() for _ in range(3)]
    modules[2].to("meta")
    for module in modules:
        module[2].register_load_state_dict_pre_hook(renamed)
    modules[0].load_state_dict(safetensors.torch.load_file(path))
    for module in modules[1:]:
        report = load_into(module, path)
        assert same(module, modules[0])
        assert on_meta(module) == []
        assert set(report.loaded) == set(values)
    del values["1.running_mean"]
    before = modules[1][0].weight.clone()
    values["0.weight"] += 1
    with refuses(ValueError, "argument.mismatch"):
        load_into(modules[1], saved(tmp_path, values))
    assert torch.equal(modules[1][0].weight, before)
    values["1.running_mean"] = torch.zeros(3)
    with refuses(ValueError, "argument.mismatch"):
        load_into(modules[1], saved(tmp_path, values), strict=False)


def test_buffers_that_are_not_saved_keep_what_the_module_made(tmp_path: Path) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.register_buffer("frequencies", torch.arange(2.0), persistent=False)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    values = {"weight": torch.ones(2), "count": torch.tensor(5)}
    module = Rotary()
    report = load_into(module, saved(tmp_path, {**values, "frequencies": torch.zeros(2)}))
    assert report.non_persistent == ("frequencies",)
    assert module.frequencies.tolist() == [0, 1]
    assert module.count.item() == 5
    with torch.device("meta"):
        module = Rotary()
    with refuses(ValueError, "argument.mismatch"):
        load_into(module, saved(tmp_path, values))
    assert load_into(module, saved(tmp_path, values), strict=False).missing == ()
    assert on_meta(module) == ["frequencies"]
    load_into(module, saved(tmp_path, {**values, "frequencies": torch.ones(2)}))
    assert on_meta(module) == []
    assert "frequencies" not in module.state_dict()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_that_keep_their_elements_otherwise_are_refused(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    path = saved(tmp_path, {"w": torch.ones(2, 2)})
    for tensor in (
        TwoTensor(torch.zeros(2, 2), torch.zeros(2, 2)),
        torch.zeros(2, 2).to_sparse(),
        torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8),
        torch.zeros(2, 1).expand(2, 2),
    ):
        module = nn.Module()
        module.register_buffer("w", tensor)
        with refuses(ValueError, "argument.mismatch"):
            load_into(module, path)


def test_a_module_that_loads_itself_keeps_the_kind_of_its_tensors_on_the_meta_device(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(2, 2, device="meta")
            self.register_buffer("w", TwoTensor(whole, whole))

        def _load_from_state_dict(self, *arguments: Any) -> None:
            super()._load_from_state_dict(*arguments)

    module = nn.Sequential(Own())
    with refuses(ValueError, "argument.mismatch"):
        load_into(module, saved(tmp_path, {"0.w": torch.ones(2, 2)}))
    assert type(module[0].w) is TwoTensor


def test_a_distributed_module_is_filled_as_dcp_fills_it(warm: Parent, tmp_path: Path) -> None:
    saved(tmp_path, two().state_dict())
    program = """
import safetensors.torch, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from max_weights.integrations import WeightsReader
from max_weights.torch import load_into

path = "saved.safetensors"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
whole = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
whole.load_state_dict(safetensors.torch.load_file(path))
for device in ("meta", "cpu"):
    with torch.device(device):
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    report = load_into(module, path)
    assert report.loaded == ("0.weight", "0.bias", "1.weight", "1.bias"), report
    assert all(isinstance(tensor, DTensor) for tensor in module.parameters())
    assert torch.equal(module(torch.ones(1, 3)), whole(torch.ones(1, 3)))
    module.to_empty(device="cpu")
    state = module.state_dict()
    dcp.load(state, storage_reader=WeightsReader(path))
    module.load_state_dict(state)
    assert torch.equal(module(torch.ones(1, 3)), whole(torch.ones(1, 3)))
dist.destroy_process_group()
"""
    ended = warm.run(program, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_parametrised_modules_take_their_own_names(tmp_path: Path) -> None:
    class Doubled(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return 2 * value

    module = nn.Linear(2, 2, bias=False)
    nn.utils.parametrize.register_parametrization(module, "weight", Doubled())
    values = {name: torch.ones_like(tensor) for name, tensor in module.state_dict().items()}
    load_into(module, saved(tmp_path, values))
    assert torch.equal(module.weight, torch.full((2, 2), 2.0))


def test_subclasses_and_attributes_of_parameters_stay(tmp_path: Path) -> None:
    class Marked(nn.Parameter):
        pass

    module = nn.Module()
    module.w = Marked(torch.empty(2, device="meta"))
    module.w.axis = 1
    load_into(module, saved(tmp_path, {"w": torch.ones(2)}))
    assert type(module.w) is Marked
    assert module.w.axis == 1
    assert torch.equal(module.w.detach(), torch.ones(2))


def test_progress_is_one_count_over_all_ways(models: Path) -> None:
    module = bert(models)
    module.pooler.dense.weight.data = torch.zeros(384, 768)[:, ::2]
    reported: list[tuple[int, int]] = []
    load_into(module, models / "minilm.safetensors", progress=lambda done, of: reported.append((done, of)))
    assert reported == sorted(reported)
    assert reported[-1][0] == reported[-1][1]

    def fails(_done: int, _of: int) -> None:
        raise RuntimeError("no more")

    with refuses(RuntimeError):
        load_into(bert(models), models / "minilm.safetensors", progress=fails)


def test_the_report_says_in_a_few_lines_what_was_done(models: Path) -> None:
    report = load_into(bert(models).half(), models / "minilm.safetensors")
    assert repr(report).startswith("<LoadReport: ok, 103 loaded, 45.4 MB in ")
    lines = str(report).splitlines()
    assert re.fullmatch(r"103 loaded, 45\.4 MB in \d+\.\d\d s \(\d+\.\d\d GB/s\)", lines[0])
    assert lines[1].startswith("converted, float32 -> float16: embeddings.word_embeddings.weight, ")
    assert lines[1].endswith(" and 98 more")
    assert lines[2] == "non_persistent: embeddings.position_ids"
    assert isinstance(report, LoadReport)
    with pytest.raises(AttributeError):
        report.loaded = ()  # type: ignore[misc]


def test_what_is_no_module_or_no_option_is_a_type_error(models: Path) -> None:
    with refuses(TypeError):
        load_into({}, models / "minilm.safetensors")  # type: ignore[arg-type]
    with refuses(TypeError):
        load_into(bert(models), models / "minilm.safetensors", foo=1)  # type: ignore[call-arg]


def test_empty_and_many_parameters_are_filled(make_file: Callable[..., Path]) -> None:
    names = [f"p{i}" for i in range(5000)]
    path = make_file(
        {name: np.full(3, i, np.float32) for i, name in enumerate(names)} | {"empty": np.zeros((0, 2), "f4")}
    )
    module = nn.ParameterDict({name: nn.Parameter(torch.zeros(3, dtype=torch.float64)) for name in names})
    module["empty"] = nn.Parameter(torch.zeros(0, 2))
    load_into(module, path)
    assert all(module[name].tolist() == [i] * 3 for i, name in enumerate(names))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_rank_has_its_part_of_each_weight(tmp_path: Path, device: str) -> None:
    from max_weights.sharding import ShardingStrategy

    values = {"weight": torch.arange(24.0).reshape(4, 6), "bias": torch.arange(4.0)}
    path = saved(tmp_path, values)
    shard = Shard(1, 2, {"weight": ShardingStrategy.columnwise(2), "bias": None})
    module = nn.Linear(3, 4, device=device)
    load_into(module, path, shard=shard)
    assert torch.equal(module.weight, values["weight"][:, 3:])
    assert torch.equal(module.bias, values["bias"])
    whole = nn.Linear(6, 4, device=device)
    with refuses(ValueError, "argument.mismatch"):
        load_into(whole, path, shard=shard)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_function_may_cut_several_axes(tmp_path: Path, device: str) -> None:
    from max_weights.sharding import ShardingStrategy

    weight = torch.arange(48.0).reshape(6, 8)
    path = saved(tmp_path, {"weight": weight})
    module = nn.Linear(4, 3, bias=False, device=device)
    corner = ShardingStrategy(2, lambda weight, rank, ranks: weight[rank * 6 // ranks :, rank * 8 // ranks :])
    load_into(module, path, shard=Shard(1, 2, {"weight": corner}))
    assert torch.equal(module.weight, weight[3:, 4:])
