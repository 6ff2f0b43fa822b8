"""Programs that load as ComfyUI, huggingface_hub, keras-hub, open_clip and spandrel do, patched and unpatched.

huggingface_hub itself is installed; for the others, the tests repeat their calls.
"""

import json
import mmap
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

import max_weights
from safetensors_files import BROKEN
from torch_same import assert_same

DAMAGED = {
    "truncated": "MetadataIncompleteBuffer",
    "trailing": "MetadataIncompleteBuffer",
    "a pickle": "HeaderTooLarge",
    "a page": "HeaderTooLarge",
    "gguf": "HeaderTooLarge",
}


@pytest.fixture(autouse=True)
def unpatched_again() -> Iterator[None]:
    assert not max_weights.patched()
    yield
    max_weights.unpatch()


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"layer.weight": torch.randn(6, 4), "layer.bias": torch.randn(6), "scale": torch.tensor(0.5).half()}


@pytest.fixture
def folder(tmp_path: Path, state: dict[str, torch.Tensor]) -> Path:
    safetensors.torch.save_file(state, tmp_path / "a.safetensors", {"format": "pt", "prompt": "{}"})
    torch.save(state, tmp_path / "a.pt")
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "b.ckpt")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "disguised.safetensors").write_bytes((tmp_path / "a.pt").read_bytes())
    for name in DAMAGED:
        (tmp_path / f"{name}.safetensors").write_bytes(BROKEN[name])
    return tmp_path


def patch() -> Callable[[str], int]:
    """Patch, and return a function that counts the calls of a function that we have served since."""
    max_weights.patch()
    before = max_weights.patched()
    return lambda name: max_weights.patched()[name].fast - before[name].fast


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, Any]:
    try:
        return "value", function(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)


def as_comfyui(path: Path, copies: bool = False) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """A checkpoint of any kind, with an explanation where safetensors finds it damaged; DynamicVRAM is off."""
    if path.suffix not in (".safetensors", ".sft"):
        return torch.load(path, map_location=torch.device("cpu"), weights_only=True, mmap=True), None
    try:
        with safetensors.safe_open(str(path), framework="pt", device=torch.device("cpu").type) as file:
            tensors = {}
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                tensor = file.get_tensor(name)
                tensors[name] = tensor.to(device="cpu", copy=True) if copies else tensor
            return tensors, file.metadata()
    except Exception as error:
        message = error.args[0]
        for token, explanation in (("HeaderTooLarge", "is no such file"), ("MetadataIncompleteBuffer", "is cut off")):
            if token in message:
                raise ValueError(f"{message}: {path} {explanation}") from error
        raise


def as_comfyui_with_dynamic_vram(path: Path) -> dict[str, torch.Tensor]:
    """A safetensors file, mapped by ComfyUI itself."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(mapped[:8], "little")
    tensors = {}
    for name, of in json.loads(mapped[8:start]).items():
        if name != "__metadata__":
            begin, end = of["data_offsets"]
            dtype = {"F32": torch.float32, "F16": torch.float16}[of["dtype"]]
            part = torch.frombuffer(mapped, dtype=torch.uint8, count=end - begin, offset=start + begin)
            tensors[name] = part.view(dtype).view(of["shape"])
    return tensors


def test_comfyui_with_dynamic_vram_maps_its_files_itself(folder: Path) -> None:
    expected = as_comfyui(folder / "a.safetensors")[0]
    served = patch()
    found = as_comfyui_with_dynamic_vram(folder / "a.safetensors")
    assert served("safetensors.safe_open") == 0
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("file", ["a.safetensors", "a.pt", "b.ckpt"])
def test_comfyui_loads_the_same(folder: Path, file: str, copies: bool) -> None:
    expected = as_comfyui(folder / file, copies)
    served = patch()
    found = as_comfyui(folder / file, copies)
    assert_same(found[0], expected[0])
    assert found[1] == expected[1]
    assert served("safetensors.safe_open" if file == "a.safetensors" else "torch.load") >= 1
    for tensor in found[0].get("state_dict", found[0]).values():
        tensor.untyped_storage().of_comfyui = True
        assert tensor.is_contiguous()
        assert tensor.storage_offset() == 0


@pytest.mark.parametrize("file", [*DAMAGED, "disguised"])
def test_comfyui_explains_damaged_files(folder: Path, file: str) -> None:
    path = folder / f"{file}.safetensors"
    before = outcome(as_comfyui, path)
    assert before[0] == "SafetensorError"  # whose message lacks ComfyUI's pattern since 0.6
    patch()
    kind, message = outcome(as_comfyui, path)
    assert kind == "ValueError"
    assert message.startswith(before[1])
    assert DAMAGED.get(file, "HeaderTooLarge") in message
    assert message.endswith("is cut off" if "Incomplete" in message else "is no such file")


def test_comfyui_builds_no_objects(folder: Path) -> None:
    (folder / "code.ckpt").write_bytes(pickle.dumps(Path("x")))
    expected = outcome(as_comfyui, folder / "code.ckpt")
    patch()
    assert outcome(as_comfyui, folder / "code.ckpt") == expected
    assert expected[0] != "value"


@pytest.mark.parametrize("name", BROKEN)
def test_errors_of_broken_files_begin_as_without(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(BROKEN[name])
    calls = [
        (safetensors.safe_open, (path, "pt")),
        (safetensors.torch.load_file, (path,)),
        (safetensors.torch.load, (BROKEN[name],)),
    ]
    expected = [outcome(function, *arguments) for function, arguments in calls]
    patch()
    functions = [safetensors.safe_open, safetensors.torch.load_file, safetensors.torch.load]
    for function, (_, arguments), (kind, text) in zip(functions, calls, expected, strict=True):
        found = outcome(function, *arguments)
        assert found[0] == kind == "SafetensorError"
        assert found[1].startswith(": ".join(text.split(": ")[:2]))


class Model(torch.nn.Module, huggingface_hub.PyTorchModelHubMixin):
    """A model that the hub's mixin saves and loads."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 6)
        self.head = torch.nn.Linear(width, 6)
        self.head.weight = self.layer.weight


def test_a_model_of_the_hubs_mixin_is_saved_and_loaded_the_same(tmp_path: Path) -> None:
    torch.manual_seed(1)
    Model(5).save_pretrained(tmp_path / "model")
    expected = Model.from_pretrained(tmp_path / "model").state_dict()
    served = patch()
    found = Model.from_pretrained(tmp_path / "model")
    assert served("safetensors.torch.load_file") == 1  # by load_model of the package
    assert_same(found.state_dict(), expected)
    assert found.head.weight is found.layer.weight
    found.save_pretrained(tmp_path / "again")
    assert_same(Model.from_pretrained(tmp_path / "again").state_dict(), expected)


def test_shards_of_the_hub_are_loaded_the_same(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    huggingface_hub.save_torch_state_dict(state, tmp_path, max_shard_size=64)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    def loaded() -> dict[str, torch.Tensor]:
        model = torch.nn.Module()
        model.layer = torch.nn.Linear(4, 6)
        model.register_buffer("scale", torch.tensor(0.0).half())
        assert not any(huggingface_hub.load_torch_model(model, tmp_path, strict=True))
        return dict(model.state_dict())

    expected = loaded()
    assert torch.equal(expected["layer.weight"], state["layer.weight"])
    served = patch()
    assert_same(loaded(), expected)
    assert served("safetensors.torch.load_file") > 1
    # Loaded tensors have separate storages: they are split and saved as before.
    found = huggingface_hub.load_state_dict_from_file(next(tmp_path.glob("*.safetensors")))
    assert huggingface_hub.split_torch_state_dict_into_shards(found).filename_to_tensors.popitem()[1] == list(found)


@pytest.mark.parametrize("file", ["a.safetensors", "a.pt", "b.ckpt", "old.pth", "disguised.safetensors", "absent"])
@pytest.mark.parametrize("options", [{}, {"safe": False}, {"safe": False, "mmap": True}, {"map_location": "meta"}])
def test_the_hub_refuses_pickles_where_it_is_asked_to(folder: Path, file: str, options: dict[str, Any]) -> None:
    expected = outcome(huggingface_hub.load_state_dict_from_file, folder / file, **options)
    patch()
    found = outcome(huggingface_hub.load_state_dict_from_file, folder / file, **options)
    assert found[0] == expected[0]
    if found[0] == "value":
        assert_same(found[1], expected[1])
    elif found[0] != "SafetensorError":
        assert found[1] == expected[1]
    if "safe" not in options and file != "a.safetensors":
        assert found[0] == ("FileNotFoundError" if file == "absent" else "ValueError")


def as_keras_hub(paths: dict[str, Path]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by handles that are open at the same time; each one lists the names again."""
    found = {}
    with ExitStack() as stack:
        files = {name: stack.enter_context(safetensors.safe_open(path, framework="np")) for name, path in paths.items()}
        for key in ("layer.weight", "layer.bias", "scale"):
            for name, file in files.items():
                if key in file.keys() and key in list(file.keys()):  # noqa: SIM118 (not a mapping)
                    found[f"{name}/{key}"] = file.get_tensor(key)
    return found


def test_keras_hub_gets_the_same_arrays(folder: Path) -> None:
    paths = {"one": folder / "a.safetensors", "two": folder / "a.safetensors"}
    expected = as_keras_hub(paths)
    served = patch()
    found = as_keras_hub(paths)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].flags.writeable) == (array.dtype, True)
    assert served("safetensors.safe_open") == 2


class Restricted(pickle.Unpickler):
    """A custom unpickler, as in spandrel."""

    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith(("torch", "collections")):
            raise pickle.UnpicklingError(f"{module}.{name} is not wanted")
        return super().find_class(module, name)


class RestrictedPickle:
    """A pickle module for torch.load."""

    __name__ = "restricted"
    Unpickler = Restricted

    @staticmethod
    def load(file: Any) -> Any:
        return Restricted(file).load()


def as_open_clip(path: Path) -> Any:
    """A state dict without the prefix of a parallel model."""
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path, device="cpu")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        found = torch.load(path, map_location="cpu")
    found = found.get("state_dict", found)
    return {name.removeprefix("module."): tensor for name, tensor in found.items()}


def as_spandrel(path: Path) -> Any:
    """By the suffix: with safetensors, or with a custom unpickler."""
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(str(path), device=str(torch.device("cpu")))
    return torch.load(path, map_location=torch.device("cpu"), pickle_module=RestrictedPickle)


@pytest.mark.parametrize("load", [as_open_clip, as_spandrel])
@pytest.mark.parametrize("file", ["a.safetensors", "a.pt", "b.ckpt", "old.pth", "disguised.safetensors"])
def test_open_clip_and_spandrel_get_the_same(folder: Path, load: Callable[[Path], Any], file: str) -> None:
    expected = outcome(load, folder / file)
    served = patch()
    found = outcome(load, folder / file)
    assert found[0] == expected[0]
    if found[0] == "value":
        assert_same(found[1], expected[1])
    by_itself = load is as_spandrel and file != "a.safetensors"
    ours = found[0] == "value" and not by_itself
    assert served("torch.load") + served("safetensors.torch.load_file") == ours
