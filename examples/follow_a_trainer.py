"""A trainer that writes a delta after each step, and an engine that follows it: two processes, every version verified.

python examples/follow_a_trainer.py [SECONDS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from max_weights import delta, save_file

STEPS_EACH_SECOND = 2


def model() -> torch.nn.Module:
    """A stand-in for a language model."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512, dtype=torch.bfloat16) for _ in range(8)]
    return torch.nn.Sequential(*layers)


def train(folder: Path, steps: int) -> None:
    """Changes some weights, and writes the delta."""
    module = model()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter[torch.rand(parameter.shape) < 0.02] *= 1.01
        path = folder / "deltas" / f"step-{step:06}.safetensors"
        now = module.state_dict()
        delta.create(before, now, path, sync=False)
        for name, tensor in now.items():
            before[name].copy_(tensor)
        time.sleep(1 / STEPS_EACH_SECOND)


def serve(folder: Path, steps: int) -> None:
    """Applies each delta to a loaded model, and compares the result with the checkpoint of the chain."""
    engine = model()
    for number, version in enumerate(delta.follow(folder / "base.safetensors", folder / "deltas", timeout=30), 1):
        start = time.perf_counter()
        delta.apply_into(engine, version.deltas[-1])
        milliseconds = 1e3 * (time.perf_counter() - start)
        expected = version.weights().load(framework="torch")
        for name, tensor in engine.state_dict().items():
            if not torch.equal(tensor, expected[name]):
                sys.exit(f"version {number}: {name} is not what the trainer wrote")
        size = version.deltas[-1].stat().st_size
        print(f"version {number} ({version.identity[:8]}): {size / 1e3:.0f} kB, applied in {milliseconds:.1f} ms")
        if number == steps:
            return


def main() -> None:
    """Runs both."""
    steps = int(float(sys.argv[1] if len(sys.argv) > 1 else 3) * STEPS_EACH_SECOND)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "deltas").mkdir()
        save_file(dict(model().state_dict()), folder / "base.safetensors")
        with subprocess.Popen([sys.executable, __file__, "--train", name, str(steps)]) as trainer:
            serve(folder, steps)
        sys.exit(trainer.returncode)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
