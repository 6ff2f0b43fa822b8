"""Uses real models in the usual ways, and prints the results; test_dropin_models.py runs it.

    matrix_program.py MODELS after     with the libraries imported: unpatched; patched then; in a forked process
    matrix_program.py MODELS spawn     in a spawned process, which is patched before it imports them, by its environment

MODELS is the folder that `tools/get_models.py` fills.
"""

import contextlib
import copy
import hashlib
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# The loader of a model and its place: the folder, or its files under their names in MODELS.
MODELS: dict[str, tuple[str, dict[str, str]]] = {
    "minilm": ("AutoModel", {"config.json": "minilm.config.json", "model.safetensors": "minilm.safetensors"}),
    "antiberty": ("AutoModel", {}),
    "iglm": ("AutoModelForCausalLM", {}),
    "rxnfp": ("AutoModelForSequenceClassification", {}),
    "rxnmapper": ("AutoModel", {}),
}
DTYPES = (None, "auto", "bfloat16")
LIBRARIES = ("transformers", "accelerate", "peft", "diffusers")


def placed(models: Path, name: str, folder: Path) -> Path:
    """The folder of a model, as `from_pretrained` wants it."""
    files = MODELS[name][1]
    if not files:
        return models / "pretrained" / name
    (folder / name).mkdir(exist_ok=True)
    for file, kept in files.items():
        (folder / name / file).symlink_to(models / kept)
    return folder / name


def bits(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def digest(state: Mapping[str, Any]) -> str:
    """Digest of names, dtypes, shapes and bits."""
    whole = hashlib.sha256()
    for name, tensor in state.items():
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.device}".encode())
        whole.update(bits(tensor).numpy())
    return whole.hexdigest()


def same(state: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they are equal bit for bit."""
    import torch

    return list(state) == list(other) and all(
        tensor.dtype == other[name].dtype
        and tensor.shape == other[name].shape
        and torch.equal(bits(tensor), bits(other[name]))
        for name, tensor in state.items()
    )


def tied(state: Mapping[str, Any]) -> list[list[str]]:
    """The names that share a tensor."""
    names: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(tensor.data_ptr(), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def checksums(folder: Path) -> dict[str, int]:
    """Digests of the files in a folder."""
    return {path.name: zlib.crc32(path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file()}


def outcome(where: Path, loader: Any, dtype: Any, folder: Path) -> dict[str, Any]:
    """The results of one model with one dtype."""
    import torch

    ids = torch.arange(1, 17)[None]
    found: dict[str, Any] = {}
    before = checksums(where)
    model = loader.from_pretrained(where, dtype=dtype).eval()
    state = model.state_dict()
    found |= {"state": digest(state), "names": len(state), "tied": tied(state)}
    with torch.no_grad():
        output = model(input_ids=ids)[0]
    found["output"] = digest({"output": output})

    offloaded = loader.from_pretrained(where, dtype=dtype, device_map={"": "disk"}, offload_folder=folder / "offload")
    opened = served("safetensors.safe_open")
    with torch.no_grad():
        steps = [offloaded.eval()(input_ids=ids)[0] for _ in range(2)]
    found["opened at two steps"] = served("safetensors.safe_open") - opened
    found["offloaded"] = [digest({"output": step}) for step in steps]
    found["offloaded is close"] = all(torch.allclose(step, output, rtol=1e-2, atol=1e-3) for step in steps)
    if dtype == "auto":  # float32 for all of these models, as without a dtype
        return found

    copied = copy.deepcopy(model).state_dict()
    found["copied"] = same(copied, state)

    model.save_pretrained(folder / "saved")
    found["saved"] = checksums(folder / "saved")
    found["loaded again"] = same(loader.from_pretrained(folder / "saved", dtype=dtype).state_dict(), state)

    torch.save(state, folder / "state.pt")
    found["bytes of torch.save"] = (folder / "state.pt").stat().st_size
    for mmap in (False, True):
        found[f"of torch.save, mmap={mmap}"] = same(torch.load(folder / "state.pt", mmap=mmap), state)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
        found["written"] = digest(model.state_dict())
        found["other one"] = same(loader.from_pretrained(where, dtype=dtype).state_dict(), copied)
    model.share_memory()
    found["shared"] = all(tensor.is_shared() for tensor in model.state_dict().values())
    found["written and shared"] = digest(model.state_dict()) == found["written"]
    found["files unchanged"] = checksums(where) == before
    return found


def calls() -> Mapping[str, Any]:
    """Of what is patched."""
    max_weights = sys.modules.get("max_weights")
    return max_weights.patched() if max_weights is not None else {}


def served(name: str) -> int:
    return calls()[name].fast if name in calls() else 0


def outcomes(models: Path, dtypes: tuple[str | None, ...] = (None,)) -> dict[str, Any]:
    """The results of every model with these dtypes, which replacements served it, and the bindings of the libraries."""
    import transformers

    for library in LIBRARIES:
        importlib.import_module(library)
    found: dict[str, Any] = {}
    for name, (loader, _) in MODELS.items():
        before = {function: tuple(count) for function, count in calls().items()}
        results = {}
        for dtype in dtypes:
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made)
                where = placed(models, name, folder)
                results[str(dtype)] = outcome(where, getattr(transformers, loader), dtype, folder)
        handled = {
            function: [now - then for now, then in zip(count, before.get(function, (0, 0)), strict=True)]
            for function, count in calls().items()
        }
        found[name] = {"results": results, "calls": handled}
    return found | {"bound": bound()}


def bound() -> list[str]:
    """Where the libraries bind the current functions of safetensors and torch, as `module.name`."""
    import safetensors
    import safetensors.torch
    import torch

    functions = (safetensors.safe_open, safetensors.torch.load_file, safetensors.torch.load, torch.load)
    requested = {id(function) for function in functions}
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in LIBRARIES and isinstance(module, ModuleType):
            found += [f"{name}.{key}" for key, value in list(vars(module).items()) if id(value) in requested]
    return sorted(found)


def after(models: Path) -> dict[str, Any]:
    found = {"stock": outcomes(models, DTYPES)}
    import max_weights

    max_weights.patch()
    found["after"] = outcomes(models, DTYPES)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found["fork"] = pool.apply(outcomes, (models,))
    return found


def spawn(models: Path) -> dict[str, Any]:
    assert "torch" not in sys.modules
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return {"spawn": pool.apply(outcomes, (models,))}


if __name__ == "__main__":
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # A process whose torch has started threads cannot be forked.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        output = {"after": after, "spawn": spawn}[sys.argv[2]](Path(sys.argv[1]))
    print(json.dumps(output))
