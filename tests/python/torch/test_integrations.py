"""The plug-ins for extension points of other libraries: torch's distributed checkpoints, Lightning, vLLM and others.

vLLM and sglang do not run on every machine: stand-in modules have the interface of vllm 0.33 and sglang 0.5.23, as far
as plug-ins use it.
"""

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import max_weights.torch
from max_weights._dropin.calls import Calls
from max_weights.errors import ArgumentError, FormatError
from max_weights.integrations import WeightsReader
from refusals import refuses
from torch_same import assert_same


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "b.weight": torch.randn(16, 8),
        "a.weight": torch.randn(6, 4).bfloat16(),
        "a.bias": torch.arange(5),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
    }


@pytest.fixture
def shards(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A folder of two safetensors files."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = list(tensors)
    for number, part in enumerate((names[:2], names[2:]), 1):
        file = folder / f"model-{number:05}-of-00002.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in part}, file)
    return folder


def load_distributed(path: Path, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    dcp.load(state, storage_reader=WeightsReader(path), no_dist=True)
    return state


@pytest.mark.filterwarnings("ignore")
def test_a_state_dict_is_filled_as_torchs_own_reader_fills_it(shards: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = load_distributed(shards, {name: torch.full_like(tensor, 7) for name, tensor in tensors.items()})
    theirs = {name: torch.full_like(tensor, 7) for name, tensor in tensors.items()}
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(shards)), no_dist=True)
    assert_same(found, theirs)
    assert_same(found, tensors)


@pytest.mark.filterwarnings("ignore")
def test_other_dtypes_strides_and_only_some_names(shards: Path, tensors: dict[str, torch.Tensor]) -> None:
    state = {"b.weight": torch.zeros(8, 16, dtype=torch.float64).T, "a.weight": torch.zeros(6, 4)}
    found = load_distributed(shards, state)
    for name in state:
        assert torch.equal(found[name], tensors[name].to(state[name].dtype))


@pytest.mark.filterwarnings("ignore")
def test_files_of_gguf_and_of_torch(models: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    torch.save(tensors, tmp_path / "a.pt")
    assert_same(
        load_distributed(tmp_path / "a.pt", {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}),
        tensors,
    )
    path = models / "derived/minilm-ffn-allquants.gguf"
    described = WeightsReader(path).read_metadata().state_dict_metadata
    state = {name: torch.zeros(about.size) for name, about in described.items()}  # type: ignore[union-attr]
    expected = max_weights.torch.load_file(path, dtype="float32")
    assert_same(load_distributed(path, state), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_missing_name_and_a_wrong_shape_are_errors(shards: Path) -> None:
    with pytest.raises(dcp.CheckpointException, match="no_such"):
        load_distributed(shards, {"no_such": torch.zeros(1)})
    with pytest.raises(dcp.CheckpointException, match="Size mismatch"):
        load_distributed(shards, {"b.weight": torch.zeros(3)})

    class Planner:
        def resolve_tensor(self, _: Any) -> torch.Tensor:
            return torch.zeros(2)

    item = types.SimpleNamespace(storage_index=types.SimpleNamespace(fqn="b.weight"), lengths=torch.Size([16, 8]))
    with refuses(ArgumentError, "argument.shape"):
        WeightsReader(shards).read_data(types.SimpleNamespace(items=[item]), Planner())  # type: ignore[arg-type]


WORKER = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, warnings
warnings.simplefilter("ignore")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros
from max_weights.integrations import WeightsReader
path, rendezvous, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {"b.weight": zeros(16, 8, device_mesh=mesh, placements=[Shard(0)]),
         "a.weight": zeros(6, 4, dtype=torch.bfloat16, device_mesh=mesh, placements=[Shard(1)]),
         "a.bias": zeros(5, dtype=torch.int64, device_mesh=mesh, placements=[Shard(0)])}
dcp.load(state, storage_reader=WeightsReader(path))
torch.save({name: tensor.to_local() for name, tensor in state.items()}, sys.argv[4])
dist.destroy_process_group()
"""


SAVER = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, warnings
warnings.simplefilter("ignore")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
path, rendezvous, rank, source = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = torch.load(source)
cuts = {"b.weight": Shard(0), "a.weight": Shard(1), "a.bias": Shard(0)}
state = {name: distribute_tensor(tensor, mesh, [cuts.get(name, Replicate())]) for name, tensor in state.items()}
dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path, save_distributed=True))
dist.destroy_process_group()
"""


@pytest.mark.filterwarnings("ignore")
def test_what_every_rank_saved_for_itself_is_one_checkpoint(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    folder, source = tmp_path / "distributed", tmp_path / "tensors.pt"
    folder.mkdir()
    torch.save(tensors, source)
    run_ranks(SAVER, [[str(folder), str(tmp_path / "met"), str(rank), str(source)] for rank in range(2)])
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert names == [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]
    # In one process, as torch's own reader fills it; and in two, which need other shards than were saved.
    found = load_distributed(folder, {name: torch.full_like(tensor, 7) for name, tensor in tensors.items()})
    theirs = {name: torch.full_like(tensor, 7) for name, tensor in tensors.items()}
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert_same(found, theirs)
    assert_same(found, tensors)
    outputs = [tmp_path / f"{rank}.pt" for rank in range(2)]
    run_ranks(WORKER, [[str(folder), str(tmp_path / "meet"), str(rank), str(outputs[rank])] for rank in range(2)])
    parts = [torch.load(output) for output in outputs]
    for name, axis in (("b.weight", 0), ("a.weight", 1), ("a.bias", 0)):
        assert torch.equal(torch.cat([part[name] for part in parts], axis), tensors[name])


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        "[]",
        "{}",
        '{"w": {}}',
        '{"w": {"saved_offsets": [0]}}',
        '{"w": {"saved_offsets": [0, -1]}}',
        '{"w": {"saved_offsets": [0, 18446744073709551615]}}',
        '{"w": {"saved_offsets": [1, 0]}}',
        '{"w": {"saved_offsets": [4, 0]}}',
    ],
)
def test_parts_that_do_not_say_where_they_begin_are_an_error(tmp_path: Path, message: str) -> None:
    for rank, offsets in ((1, '{"w": {"saved_offsets": [0, 0]}}'), (2, message)):
        path = tmp_path / f"shard-0000{rank}-model-00001-of-00001.safetensors"
        safetensors.torch.save_file({"w": torch.ones(2, 3)}, path, metadata={"DCP_SHARDING_INFO": offsets})
    with refuses(FormatError):
        WeightsReader(tmp_path)


def run_ranks(program: str, arguments: list[list[str]]) -> None:
    """Run a program in a process for each rank, which ends without Python's finalization.

    During finalization, unjoined threads of gloo occasionally abort the process.
    """
    program += "\nimport os\nos._exit(0)\n"
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, *one], stderr=subprocess.PIPE, text=True) for one in arguments
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=200)
        assert rank.returncode == 0, errors


def test_each_process_reads_its_own_parts(shards: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    outputs = [tmp_path / f"{rank}.pt" for rank in range(2)]
    run_ranks(WORKER, [[str(shards), str(tmp_path / "meet"), str(rank), str(outputs[rank])] for rank in range(2)])
    parts = [torch.load(output) for output in outputs]
    for name, axis in (("b.weight", 0), ("a.weight", 1), ("a.bias", 0)):
        assert torch.equal(torch.cat([part[name] for part in parts], axis), tensors[name])
        assert parts[0][name].shape[axis] == (tensors[name].shape[axis] + 1) // 2


@pytest.mark.filterwarnings("ignore")
def test_lightnings_trainer_and_fabric_load_by_the_plug_in(tmp_path: Path) -> None:
    import lightning

    from max_weights.integrations import WeightsCheckpointIO

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    def trainer(*plugins: Any, epochs: int = 1) -> Any:
        return lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path, plugins=list(plugins),
        )  # fmt: skip

    data = torch.utils.data.DataLoader([torch.ones(4)] * 4, batch_size=2)
    module, first = Module(), trainer()
    first.fit(module, data)
    first.save_checkpoint(tmp_path / "a.ckpt")
    plugin = WeightsCheckpointIO()
    again = Module()
    trainer(plugin, epochs=2).fit(again, data, ckpt_path=tmp_path / "a.ckpt", weights_only=True)
    assert plugin._counter.calls.fast >= 1
    assert plugin._counter.calls.fallback == 0

    lightnings = WeightsCheckpointIO.__mro__[1]().load_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert_same(plugin.load_checkpoint(tmp_path / "a.ckpt", weights_only=True), lightnings)
    assert_same(WeightsCheckpointIO(mmap=False).load_checkpoint(tmp_path / "a.ckpt", weights_only=True), lightnings)
    before = plugin._counter.calls
    assert_same(plugin.load_checkpoint(tmp_path / "a.ckpt", weights_only=False), lightnings)
    assert plugin._counter.calls == Calls(before.fast, before.fallback + 1)
    with pytest.raises(FileNotFoundError, match="Checkpoint file not found"):
        plugin.load_checkpoint(tmp_path / "absent.ckpt")

    fabric = lightning.Fabric(accelerator="cpu", plugins=[plugin])
    fabric.save(tmp_path / "b.ckpt", {"layer": module.layer, "step": 3})
    state: dict[str, Any] = {"layer": torch.nn.Linear(4, 2), "step": 0}
    fabric.load(tmp_path / "b.ckpt", state)
    assert state["step"] == 3
    assert torch.equal(state["layer"].weight, module.layer.weight)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_takes_mapped_tensors_as_its_map_of_weights(tmp_path: Path) -> None:
    import accelerate

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).eval()
    expected = model(torch.ones(1, 4))
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with accelerate.init_empty_weights():
        empty = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).eval()
    weights = max_weights.torch.load_file(tmp_path / "model.safetensors")
    accelerate.cpu_offload(empty, execution_device=torch.device("cpu"), state_dict=weights)
    for _ in range(2):
        assert torch.equal(empty(torch.ones(1, 4)), expected)
    assert all(parameter.is_meta for parameter in empty.parameters())


@dataclass
class LoadConfig:
    load_format: str = "max_weights"
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)
    safetensors_load_strategy: str | None = None


@dataclass
class Source:
    model_or_path: str
    revision: str | None = None
    subfolder: str | None = None
    prefix: str = ""
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list[str] | None = None
    is_unused_weight: Callable[[str], bool] | None = None


class DefaultModelLoader:
    """The parts of vLLM's class of this name that a loader made from it uses."""

    counter_before_loading_weights = 0.0

    def __init__(self, load_config: LoadConfig) -> None:
        if unknown := set(load_config.model_loader_extra_config) - {"num_threads"}:
            raise ValueError(f"Unexpected extra config keys: {unknown}")
        self.load_config = load_config
        self.local_expert_ids: set[int] | None = None
        self._encoder_only_lm_prefixes: tuple[str, ...] | None = None

    def _prepare_weights(
        self,
        model_name_or_path: str,
        subfolder: str | None,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: Any,
    ) -> tuple[str, list[str], bool, str]:
        assert self.load_config.load_format == "auto"
        assert (revision, fall_back_to_pt, allow_patterns_overrides) == (None, True, None)
        folder = Path(model_name_or_path, subfolder or "")
        files = [str(path) for path in folder.iterdir()]
        return str(folder), files, all(file.endswith(".safetensors") for file in files), "model.safetensors.index.json"

    def _get_weights_iterator(self, source: Source) -> Iterator[tuple[str, Any]]:
        yield from [(source.prefix + "by vllm", None)]


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    registered = {}
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    package = types.ModuleType("vllm.model_executor.model_loader")
    package.register_model_loader = lambda name: lambda made: registered.setdefault(name, made)  # type: ignore[attr-defined]
    module = types.ModuleType("vllm.model_executor.model_loader.default_loader")
    module.DefaultModelLoader = DefaultModelLoader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    from max_weights.integrations import register_vllm

    register_vllm()
    return registered["max_weights"]


def test_vllm_gets_all_tensors_under_its_names(
    loader: type[Any], shards: Path, tensors: dict[str, torch.Tensor]
) -> None:
    config = LoadConfig(model_loader_extra_config={"max_memory": 1 << 20, "num_threads": 2})
    ours = loader(config)
    found = dict(ours._get_weights_iterator(Source(str(shards.parent), subfolder=shards.name, prefix="model.")))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        f"model.{name}": tensor.tolist() for name, tensor in tensors.items()
    }
    assert (config.load_format, len(config.model_loader_extra_config)) == ("max_weights", 2)
    assert ours.counter_before_loading_weights > 0


def test_vllm_keeps_what_it_filters_and_other_files(loader: type[Any], shards: Path, tmp_path: Path) -> None:
    ours = loader(LoadConfig())
    assert "by vllm" not in dict(ours._get_weights_iterator(Source(str(shards))))
    ours.local_expert_ids = {1}
    assert dict(ours._get_weights_iterator(Source(str(shards)))) == {"by vllm": None}
    ours.local_expert_ids, ours._encoder_only_lm_prefixes = None, ()
    assert dict(ours._get_weights_iterator(Source(str(shards)))) == {"by vllm": None}
    unused = Source(str(shards), is_unused_weight=lambda name: name == "scalar")
    assert dict(loader(LoadConfig())._get_weights_iterator(unused)) == {"by vllm": None}
    of_torchao = loader(LoadConfig())
    of_torchao.load_config.safetensors_load_strategy = "torchao"  # as vLLM sets it when it knows the model
    assert dict(of_torchao._get_weights_iterator(Source(str(shards)))) == {"by vllm": None}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.bin").write_bytes(b"")
    assert dict(loader(LoadConfig())._get_weights_iterator(Source(str(tmp_path / "other")))) == {"by vllm": None}
    with pytest.raises(ValueError, match="no_such"):
        loader(LoadConfig(model_loader_extra_config={"no_such": 1}))


def test_vllm_goes_on_where_the_format_cannot_be_registered(caplog: pytest.LogCaptureFixture) -> None:
    assert "vllm" not in sys.modules
    from max_weights.integrations import register_vllm

    register_vllm()
    assert "vLLM does not know the load format max_weights: ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize("requested", ["1", "0"])
def test_sglang_is_hooked_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, shards: Path, tensors: dict[str, torch.Tensor], requested: str
) -> None:
    hooks = {}
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("sglang.srt.plugins.hook_registry")
    module.HookType = types.SimpleNamespace(AROUND="around")  # type: ignore[attr-defined]
    module.HookRegistry = types.SimpleNamespace(  # type: ignore[attr-defined]
        register=lambda target, hook, kind: hooks.setdefault(target, (hook, kind))
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("MAX_WEIGHTS_PATCH", requested)
    from max_weights.integrations import register_sglang

    register_sglang()
    if requested == "0":
        assert hooks == {}
        return
    files = sorted(map(str, shards.iterdir()))
    arguments = [("safetensors", ()), ("buffered_multi_thread_safetensors", (8,))]
    for name, more in arguments:
        hook, kind = hooks[f"sglang.srt.model_loader.weight_utils.{name}_weights_iterator"]
        assert kind == "around"
        found = dict(hook(None, files, *more, prefetch=True, drop_cache_after_load=True))
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            name: tensor.tolist() for name, tensor in tensors.items()
        }


@pytest.mark.parametrize("requested", ["1", "0", None])
def test_torch_patches_at_its_import_where_it_is_asked_to(installed: str, requested: str | None) -> None:
    script = """
import sys, multiprocessing
import torch
from torch import load
max_weights = sys.modules["max_weights"]
is_patched = "max_weights._core" in sys.modules and "torch.load" in max_weights.patched()
print(is_patched, load is torch.load)
"""
    environment = {name: value for name, value in os.environ.items() if name != "MAX_WEIGHTS_PATCH"}
    environment |= {"PYTHONPATH": installed} | ({"MAX_WEIGHTS_PATCH": requested} if requested else {})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(requested == "1"), "True"]


def test_an_entry_point_that_fails_does_not_fail_the_import_of_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from max_weights import _autoload as autoload
    from max_weights._dropin import patching

    def broken() -> None:
        raise RuntimeError("cannot patch")

    monkeypatch.setattr(patching, "patch", broken)
    monkeypatch.setenv("MAX_WEIGHTS_PATCH", "1")
    autoload.autoload()
    assert "the program is not patched: RuntimeError('cannot patch')" in caplog.text
