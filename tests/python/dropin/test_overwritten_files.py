"""A migrated program, by import or by patch, may do to its loaded file what it did before, with the same outcome. The
table in docs/security.md lists these entry points and actions.

Each entry point is tried in a separate process: a view of a lost file ends it by SIGBUS.
"""

from pathlib import Path

import pytest

import warm as warm_processes

PROGRAM = """
import importlib, os, shutil, subprocess, sys
import numpy as np, torch

EXPECTED = np.arange(300_000, dtype=np.float32)
OTHER = {"a": EXPECTED, "b": np.ones((64, 7), np.float32)}
ZIP, STREAM, SAFETENSORS, GGUF = "checkpoint.pt", "stream.pt", "model.safetensors", "model.gguf"

def write(name):
    tensors = {key: torch.from_numpy(value.copy()) for key, value in OTHER.items()}
    if name == SAFETENSORS:
        safetensors.torch.save_file(tensors, name)
    elif name == GGUF:
        import gguf
        writer = gguf.GGUFWriter(name, "llama")
        for key, value in OTHER.items():
            writer.add_tensor(key, value)
        writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
    else:
        torch.save(tensors, name, _use_new_zipfile_serialization=name == ZIP)

import safetensors.torch, safetensors.numpy
WRITE_SAFETENSORS = safetensors.torch.save_file  # held here, where no patch finds it: it is the original

def found(module, name, way):
    # The function as a program has it: the original, the one of the same name here, or the original after patch().
    if way == "import":
        module = "max_weights." + module
    return getattr(importlib.import_module(module), name)

class Holder(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        with torch.device(device):
            self.a = torch.nn.Parameter(torch.zeros(300_000))
            self.b = torch.nn.Parameter(torch.zeros(64, 7))

def of(tensors):
    return lambda: np.asarray(tensors["a"].detach() if isinstance(tensors["a"], torch.Tensor) else tensors["a"])

def open_file(path, way):
    with open(path, "rb") as file:
        return of(found("torch", "load", way)(file))

def safe_open(framework, take):
    def load(path, way):
        file = found("safetensors", "safe_open", way)(path, framework)
        value = take(file)
        return lambda: np.asarray(value)
    return load

def slice_of(file):
    return file.get_slice("a")[:]

def filled(device, **options):
    def load(path, way):
        from max_weights.torch import load_into
        module = Holder(device)
        load_into(module, path, **options)
        return lambda: module.a.detach().numpy()
    return load

def model(path, way):
    module = Holder("cpu")
    found("safetensors.torch", "load_model", way)(module, path)
    return lambda: module.a.detach().numpy()

def native(module, **options):
    return lambda path, way: of(importlib.import_module("max_weights." + module).load_file(path, **options))

def lazy(**options):
    def load(path, way):
        import max_weights
        tensor = max_weights.lazy_state_dict(max_weights.load_weights(path), **options)["a"][...]
        return lambda: tensor.numpy()
    return load

def reader(path, way):
    import gguf
    tensors = gguf.GGUFReader(path).tensors
    return lambda: np.asarray(tensors[0].data)

def module_load(path, way):
    from max_weights.dtype import DType
    from max_weights.graph import DeviceRef, Weight
    from max_weights.nn import Module
    class Own(Module):
        def __init__(self):
            super().__init__()
            self.a = Weight("a", DType.float32, [300_000], DeviceRef.CPU())
    own = Own()
    own.load(path, strict=False)
    return lambda: np.asarray(own.state_dict()["a"])

THEIRS, OURS = ("original", "import", "patch"), ("import",)
# Copies keep everything; a view survives everything except changes of its bytes.
OWN = {
    "torch.load": (ZIP, THEIRS, lambda path, way: of(found("torch", "load", way)(path))),
    "torch.load, the older format": (STREAM, THEIRS, lambda path, way: of(found("torch", "load", way)(path))),
    "torch.load of an open file": (ZIP, THEIRS, open_file),
    "safetensors.torch.load_file(backend='pread')": (
        SAFETENSORS, THEIRS, lambda path, way: of(found("safetensors.torch", "load_file", way)(path, backend="pread"))),
    "safetensors.torch.load": (
        SAFETENSORS, THEIRS, lambda path, way: of(found("safetensors.torch", "load", way)(open(path, "rb").read()))),
    "safetensors.torch.load_model": (SAFETENSORS, THEIRS, model),
    "safetensors.numpy.load_file": (
        SAFETENSORS, THEIRS, lambda path, way: of(found("safetensors.numpy", "load_file", way)(path))),
    "safe_open(framework='np').get_tensor": (SAFETENSORS, THEIRS, safe_open("np", lambda file: file.get_tensor("a"))),
    "safe_open(framework='np').get_tensors": (
        SAFETENSORS, THEIRS, safe_open("np", lambda file: file.get_tensors()["a"])),
    "safe_open(framework='np').get_slice": (SAFETENSORS, THEIRS, safe_open("np", slice_of)),
    "safetensors.flax.load_file": (
        SAFETENSORS, THEIRS, lambda path, way: of(found("safetensors.flax", "load_file", way)(path))),
    "load_into, memory that the module has": (SAFETENSORS, OURS, filled("cpu")),
    "load_into, the meta device, a PyTorch file": (ZIP, OURS, filled("meta")),
    "load_into(copy=True), the meta device": (SAFETENSORS, OURS, filled("meta", copy=True)),
    "max_weights.torch.load_file(copy=True)": (ZIP, OURS, native("torch", copy=True)),
    "max_weights.numpy.load_file(copy=True)": (SAFETENSORS, OURS, native("numpy", copy=True)),
    "lazy_state_dict(copy=True)": (SAFETENSORS, OURS, lazy(copy=True)),
}
VIEWS = {
    "torch.load(mmap=True)": (ZIP, THEIRS, lambda path, way: of(found("torch", "load", way)(path, mmap=True))),
    "safetensors.torch.load_file": (
        SAFETENSORS, THEIRS, lambda path, way: of(found("safetensors.torch", "load_file", way)(path))),
    "safe_open(framework='pt').get_tensor": (SAFETENSORS, THEIRS, safe_open("pt", lambda file: file.get_tensor("a"))),
    "safe_open(framework='pt').get_slice": (SAFETENSORS, THEIRS, safe_open("pt", slice_of)),
    "gguf.GGUFReader": (GGUF, ("original", "patch"), reader),
    "load_into, the meta device, another file": (SAFETENSORS, OURS, filled("meta")),
    "max_weights.torch.load_file": (ZIP, OURS, native("torch")),
    "max_weights.numpy.load_file": (SAFETENSORS, OURS, native("numpy")),
    "lazy_state_dict": (SAFETENSORS, OURS, lazy()),
    "Module.load": (SAFETENSORS, OURS, module_load),
}

def appended(path):
    with open(path, "ab") as file:
        file.write(b"x" * 10_000)

def renamed_over(path):
    with open("another", "wb") as file:
        file.write(b"another")
    os.replace("another", path)

def deleted(path):
    os.unlink(path)

def opened_for_writing(path):
    open(path, "wb").close()

def written_in_place(path):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.write(bytes(size))

def truncated(path):
    os.truncate(path, 4096)

def copied_over(path):
    with open("another", "wb") as file:
        file.write(b"another")
    shutil.copy("another", path)

def emptied_by_another_process(path):
    subprocess.run(["truncate", "-s", "0", path], check=True)

def saved_over(path, values):
    # From what was loaded, as a program that resumes does; what was saved is loaded again.
    tensors = {"a": torch.from_numpy(values()) if values().flags.writeable else torch.tensor(values())}
    if path == SAFETENSORS:
        importlib.import_module("safetensors.torch").save_file(tensors, path)
    elif path != GGUF:
        torch.save(tensors, path, _use_new_zipfile_serialization=path == ZIP)
    else:
        return
    again = safetensors.numpy.load_file(path) if path == SAFETENSORS else torch.load(path)
    assert np.array_equal(np.asarray(again["a"]), EXPECTED)

KEPT_BY_VIEWS = (appended, renamed_over, deleted)
LOST_BY_VIEWS = (opened_for_writing, written_in_place, truncated, copied_over, emptied_by_another_process)

file, ways, load = (OWN if KIND == "own" else VIEWS)[DOOR]
acts = KEPT_BY_VIEWS + (LOST_BY_VIEWS if KIND == "own" else ())
for way in ways:
    if way == "patch":
        import max_weights
        max_weights.patch()
    for act in (*acts, saved_over):
        # torch.save writes in place: the original also loses a view of its own file.
        if act is saved_over and KIND == "views" and file == ZIP:
            continue
        write(file)
        values = load(file, way)
        print(way, act.__name__, flush=True)
        act(file, values) if act is saved_over else act(file)
        assert np.array_equal(values(), EXPECTED), "other values"
print("done")
"""

OWN = [
    "torch.load",
    "torch.load, the older format",
    "torch.load of an open file",
    "safetensors.torch.load_file(backend='pread')",
    "safetensors.torch.load",
    "safetensors.torch.load_model",
    "safetensors.numpy.load_file",
    "safe_open(framework='np').get_tensor",
    "safe_open(framework='np').get_tensors",
    "safe_open(framework='np').get_slice",
    "safetensors.flax.load_file",
    "load_into, memory that the module has",
    "load_into, the meta device, a PyTorch file",
    "load_into(copy=True), the meta device",
    "max_weights.torch.load_file(copy=True)",
    "max_weights.numpy.load_file(copy=True)",
    "lazy_state_dict(copy=True)",
]
VIEWS = [
    "torch.load(mmap=True)",
    "safetensors.torch.load_file",
    "safe_open(framework='pt').get_tensor",
    "safe_open(framework='pt').get_slice",
    "gguf.GGUFReader",
    "load_into, the meta device, another file",
    "max_weights.torch.load_file",
    "max_weights.numpy.load_file",
    "lazy_state_dict",
    "Module.load",
]


def run(warm: warm_processes.Parent, folder: Path, kind: str, entry_point: str) -> None:
    done = warm.run(f"KIND, DOOR = {kind!r}, {entry_point!r}\n{PROGRAM}", folder)
    assert done.returncode == 0, f"ended by {done.returncode} after {done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("entry_point", OWN)
def test_what_the_original_read_survives_everything_that_is_done_to_its_file(
    warm: warm_processes.Parent, tmp_path: Path, entry_point: str
) -> None:
    run(warm, tmp_path, "own", entry_point)


@pytest.mark.parametrize("entry_point", VIEWS)
def test_a_view_survives_what_is_not_done_to_its_bytes(
    warm: warm_processes.Parent, tmp_path: Path, entry_point: str
) -> None:
    run(warm, tmp_path, "views", entry_point)


RESUME = """
import sys, torch
load = torch.load
if WAY == "import":
    from max_weights.torch import load
elif WAY == "patch":
    import max_weights
    max_weights.patch()
    load = torch.load
torch.manual_seed(0)

def begun():
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 256)).square().mean().backward()
    optimizer.step()

def save(model, optimizer, epoch):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "ck.pt")

model, optimizer = begun()
step(model, optimizer)
save(model, optimizer, 0)
for epoch in range(1, 4):  # each time as after a restart
    straight = [parameter.detach().clone() for parameter in model.parameters()]
    model, optimizer = begun()
    checkpoint = load("ck.pt")
    assert checkpoint["epoch"] == epoch - 1
    model.load_state_dict(checkpoint["model"], assign=True)
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert all(map(torch.equal, model.parameters(), straight))
    step(model, optimizer)
    save(model, optimizer, epoch)
print("resumed", epoch, len(load("ck.pt")["optimizer"]["state"]))
"""


@pytest.mark.parametrize("way", ["original", "import", "patch"])
def test_a_program_resumes_from_its_checkpoint_and_saves_over_it(
    warm: warm_processes.Parent, tmp_path: Path, way: str
) -> None:
    done = warm.run(f"WAY = {way!r}\n{RESUME}", tmp_path)
    assert (done.returncode, done.stdout) == (0, "resumed 3 4\n"), done.stderr


TRANSFORMERS = """
import torch
from transformers import BertConfig, BertModel
if WAY == "patch":
    import max_weights
    max_weights.patch()
config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
BertModel(config).save_pretrained("model")
model = BertModel.from_pretrained("model")
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
model.save_pretrained("model")
again = BertModel.from_pretrained("model")
for name, tensor in before.items():
    assert torch.equal(model.state_dict()[name], tensor)
    assert torch.equal(again.state_dict()[name], tensor)
print("saved over")
"""


@pytest.mark.parametrize("way", ["original", "patch"])
def test_a_model_of_transformers_is_saved_over_the_files_that_it_came_from(
    warm_transformers: warm_processes.Parent, tmp_path: Path, way: str
) -> None:
    done = warm_transformers.run(f"WAY = {way!r}\n{TRANSFORMERS}", tmp_path)
    assert (done.returncode, done.stdout) == (0, "saved over\n"), done.stderr
