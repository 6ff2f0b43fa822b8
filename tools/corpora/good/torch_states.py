"""Plain states that PyTorch writes: modules, optimizers, schedulers, generators, and tensors of all kinds."""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from corpora.good.written import by_folder, saved, single
from corpora.item import Item

MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 4),
    "conv1d": lambda: nn.Conv1d(2, 3, 5),
    "conv2d": lambda: nn.Conv2d(2, 3, 3),
    "conv-transpose3d": lambda: nn.ConvTranspose3d(2, 3, 2),
    "batch-norm": lambda: nn.BatchNorm2d(4),
    "layer-norm": lambda: nn.LayerNorm(4),
    "group-norm": lambda: nn.GroupNorm(2, 4),
    "embedding": lambda: nn.Embedding(7, 4, padding_idx=0),
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 16),
    "sequential": lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.PReLU(), nn.Linear(3, 2)),
    "without-weights": lambda: nn.Sequential(nn.ReLU(), nn.Dropout()),
    "weight-norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    "spectral-norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
}


def modules() -> Iterator[Item]:
    """State dicts of modules, in every protocol and both formats."""
    for number, (name, make) in enumerate(MODULES.items()):
        state = make().state_dict()
        yield single("torch-modules", f"{name}.pt", saved(state, protocol=2 + number % 4))
        yield single("torch-modules", f"{name}-legacy.pth", saved(state, new=False, protocol=2 + number % 4))
    tied = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    tied["b"].weight = tied["a"].weight
    yield single("torch-modules", "tied.bin", saved(tied.state_dict()))
    parallel = {f"module.{name}": tensor for name, tensor in MODULES["sequential"]().state_dict().items()}
    yield single("torch-modules", "data-parallel.bin", saved(parallel))
    yield single("torch-modules", "parameters.pt", saved(dict(MODULES["linear"]().named_parameters())))
    yield single("torch-modules", "empty.pt", saved({}))
    many = {f"layers.{number}.weight": torch.zeros(1) for number in range(3000)}
    yield single("torch-modules", "three-thousand.pt", saved(many))
    yield single("torch-modules", "three-thousand-legacy.pth", saved(many, new=False))


def _same(step: int) -> float:
    return float(step >= 0)


def optimizers() -> Iterator[Item]:
    """State dicts of every optimizer and scheduler of torch, after some steps."""
    names = [name for name, thing in vars(torch.optim).items() if inspect.isclass(thing) and name != "Optimizer"]
    for name in sorted(names):
        parameters = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(4, 2))]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
            if name == "SparseAdam":
                parameter.grad = parameter.grad.to_sparse()
        optimizer.step(lambda: 0.0)
        state = optimizer.state_dict()
        yield single("torch-optimizers", f"{name}.pt", saved(state))
        yield single("torch-optimizers", f"{name}-legacy.pt", saved(state, new=False))
    schedules: dict[str, dict[str, Any]] = {
        "ConstantLR": {},
        "CosineAnnealingLR": {"T_max": 5},
        "CosineAnnealingWarmRestarts": {"T_0": 5},
        "CyclicLR": {"base_lr": 0.1, "max_lr": 1.0, "cycle_momentum": False},
        "ExponentialLR": {"gamma": 0.9},
        "LambdaLR": {"lr_lambda": _same},
        "LinearLR": {},
        "MultiStepLR": {"milestones": [2, 4]},
        "MultiplicativeLR": {"lr_lambda": _same},
        "OneCycleLR": {"max_lr": 0.1, "total_steps": 10},
        "PolynomialLR": {},
        "ReduceLROnPlateau": {},
        "StepLR": {"step_size": 2},
    }
    for name, arguments in schedules.items():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
        scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **arguments)
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        yield single("torch-schedulers", f"{name}.pt", saved(scheduler.state_dict()))
    averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    yield single("torch-schedulers", "averaged-model.pt", saved(averaged.state_dict()))


def training() -> Iterator[Item]:
    """Further state that training scripts save with the weights."""
    random.seed(1)
    generators = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    yield single("torch-training", "rng_state.pth", saved(generators))
    yield single("torch-training", "rng_state-legacy.pth", saved(generators, new=False))
    yield single("torch-training", "generator.pt", saved(torch.Generator().get_state()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler("cpu", enabled=True)
    yield single("torch-training", "scaler.pt", saved(scaler.state_dict()))
    model = MODULES["sequential"]()
    optimizer = torch.optim.AdamW(model.parameters())
    whole = {
        "epoch": 3,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loss": 0.5,
        "best": float("inf"),
        "args": {"lr": 1e-3, "name": "résumé", "layers": [1, 2, 3], "flag": True, "none": None},
        "history": [(1, 0.5), (2, 0.25)],
    }
    for protocol in range(2, 6):
        yield single("torch-training", f"checkpoint-{protocol}.tar", saved(whole, protocol=protocol))
    containers = {
        "ordered": OrderedDict(a=1),
        "counter": Counter("abca"),
        "default": defaultdict(list, {"a": [1]}),
        "set": {1, 2},
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "bytes": b"\x80\x04cos\nsystem\n.",
        "bytearray": bytearray(b"abc"),
        "complex": 1 + 2j,
        "big": 1 << 100,
        "text": "a" * 300,
    }
    yield single("torch-training", "containers.pt", saved(containers))
    yield single("torch-training", "containers-4.pt", saved(containers, protocol=4))
    yield single("torch-training", "numpy.pt", saved({"a": np.arange(4.0), "b": np.float32(1), "c": np.int64(2)}))
    yield single("torch-training", "numpy-legacy.pt", saved({"a": np.arange(4), "b": np.bool_(1)}, new=False))


def tensors() -> Iterator[Item]:
    """Tensors of every kind and of odd shapes."""
    group = "torch-tensors"
    dtypes = [thing for thing in vars(torch).values() if isinstance(thing, torch.dtype)]
    names = sorted({str(dtype).removeprefix("torch.") for dtype in dtypes})
    for name in names:
        if re.match(r"q|bits|u?int[1-7]$", name):
            continue  # none of these can be saved, or has its own file below
        data = {"weight": torch.zeros(8, dtype=torch.uint8).repeat(8).view(getattr(torch, name))}
        yield single(group, f"{name}.pt", saved(data))
    base = torch.arange(24.0)
    shapes = {
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0),
        "empty-with-strides": torch.zeros(3, 0, 5),
        "rank-16": torch.zeros((1,) * 16),
        "transposed": base.view(4, 6).t(),
        "expanded": torch.ones(1).expand(1000, 1000),
        "channels-last": torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "two-views": [base[:12], base[6:]],
        "last-element": base[-1:],
        "every-third": base[::3],
        "conjugated": torch.zeros(3, dtype=torch.complex64).conj(),
        "negated": torch.zeros(3, dtype=torch.complex64).conj().imag,
        "needs-gradient": torch.zeros(3, requires_grad=True),
        "parameter": nn.Parameter(torch.zeros(3)),
        "buffer": nn.Buffer(torch.zeros(3)),
        "meta": torch.zeros(3, 4, device="meta"),
        "meta-huge": torch.empty(1 << 20, 1 << 20, device="meta"),
        "storage": torch.zeros(3).untyped_storage(),
        "typed-storage": torch.FloatStorage(3),
        "sparse-coo": torch.eye(3).to_sparse(),
        "sparse-csr": torch.eye(3).to_sparse_csr(),
        "sparse-csc": torch.eye(3).to_sparse_csc(),
        "sparse-bsr": torch.eye(4).to_sparse_bsr((2, 2)),
        "sparse-bsc": torch.eye(4).to_sparse_bsc((2, 2)),
        "quantized": torch.quantize_per_tensor(base, 0.1, 3, torch.quint8),
        "quantized-signed": torch.quantize_per_tensor(base, 0.1, 0, torch.qint8),
        "quantized-int32": torch.quantize_per_tensor(base, 0.1, 0, torch.qint32),
        "quantized-by-channel": torch.quantize_per_channel(
            base.view(4, 6), torch.ones(4), torch.zeros(4, dtype=torch.long), 0, torch.qint8
        ),
        "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        "pickle-in-bytes": torch.frombuffer(bytearray(b"\x80\x04cposix\nsystem\n(S'true'\ntR."), dtype=torch.uint8),
        "zip-in-bytes": torch.frombuffer(bytearray(saved({"a": 1})), dtype=torch.uint8),
    }  # fmt: skip
    for name, thing in shapes.items():
        yield single(group, f"{name}.pt", saved({"weight": thing}))
        # The zip archive would end the file, which would be two formats at once.
        if name not in ("storage", "nested", "meta-huge", "sparse-bsc", "zip-in-bytes"):
            yield single(group, f"{name}-legacy.pt", saved({"weight": thing}, new=False))
    yield single(group, "alone.pt", saved(base))
    yield single(group, "list.pt", saved([base, base]))


def distributed() -> Iterator[Item]:
    """Folders of torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as checkpoint

    model = MODULES["sequential"]()
    optimizer = torch.optim.Adam(model.parameters())

    def write(state: dict[str, Any]) -> Item:
        return by_folder(
            "torch-distributed", f"{len(state)}-parts", lambda path: checkpoint.save(state, checkpoint_id=path)
        )

    yield write({"model": model.state_dict()})
    yield write({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    yield write({"model": model.state_dict(), "step": 3, "args": {"a": [1, 2]}})


def items() -> Iterator[Item]:
    """All of them."""
    torch.manual_seed(0)
    for group in (modules, optimizers, training, tensors, distributed):
        yield from group()
