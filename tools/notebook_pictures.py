"""Pictures of notebook views in Chromium, wide and narrow, light and dark, for visual review.

    python tools/notebook_pictures.py FOLDER [VIEW …]

They are not stored in the repository. Chromium is `$CHROMIUM`, or found on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import max_weights
from max_weights import nn
from max_weights._benching.result import BenchResult, BenchRow
from max_weights._progress import progress_html
from max_weights._resharding import reshard
from max_weights.driver import Buffer
from max_weights.dtype import DType
from max_weights.graph import DeviceRef

WIDTHS = {"wide": 1100, "narrow": 375}
HEIGHT = 900
# JupyterLab's colours, and its rules for the content of outputs, which views have to cope with.
THEMES = {
    "light": "--jp-content-font-color1:rgba(0,0,0,.87);--jp-layout-color0:#fff;--jp-layout-color2:#eee",
    "dark": "--jp-content-font-color1:#fff;--jp-layout-color0:#111;--jp-layout-color2:#424242",
}
PAGE = """<!doctype html><meta charset="utf-8"><title>view</title><style>
:root{{color-scheme:{scheme};{theme};--jp-brand-color1:#2196f3}}
body{{margin:{margin}px;background:var(--jp-layout-color0);color:var(--jp-content-font-color1)}}
body{{font:14px/1.5 system-ui,sans-serif}}
.out table{{border-collapse:collapse;border-spacing:0;border:none;font-size:12px;table-layout:fixed;margin:0 auto 1em}}
.out :is(td,th,tr){{vertical-align:middle;padding:.5em;line-height:normal;white-space:normal;max-width:none;border:none;
text-align:right}}
.out tbody tr:nth-child(odd){{background:var(--jp-layout-color2)}}
.out pre,.out code{{background-color:var(--jp-layout-color2)}}
</style><div class="out" style="width:{width}px">{body}</div>"""
MARGIN = 16


def checkpoint(path: Path, *, spoilt: bool = False) -> Path:
    """Write a small model of two layers; a spoilt one has NaN, another shape, and another name."""
    random = np.random.default_rng(21)
    tensors: dict[str, np.ndarray[Any, Any]] = {"embed_tokens.weight": random.normal(size=(256, 32)).astype(np.float16)}
    for layer in range(2):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            scale = random.uniform(0.02, 0.4)
            tensors[f"layers.{layer}.self_attn.{name}.weight"] = random.normal(0, scale, (32, 32)).astype(np.float32)
        tensors[f"layers.{layer}.mlp.up_proj.weight"] = random.laplace(0, 0.1, (64, 32)).astype(np.float32)
        tensors[f"layers.{layer}.norm.weight"] = np.ones(32, np.float32)
    tensors["steps"] = np.arange(7)
    if spoilt:
        tensors["layers.1.mlp.up_proj.weight"][3, :5] = np.nan
        tensors["layers.0.self_attn.q_proj.weight"] *= 1.01
        tensors["layers.0.norm.weight"] = np.ones(16, np.float32)
        tensors["model.steps"] = tensors.pop("steps")
    max_weights.save_file(tensors, path, metadata={"format": "pt", "step": "200" if spoilt else "100"})
    return path


class Model(nn.Module):
    """Two layers; the second is not shared."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64, DType.float32, DeviceRef.CPU())
        self.down = nn.Linear(64, 32, DType.float32, DeviceRef.CPU())

    def __call__(self) -> None: ...


def bench_result() -> BenchResult:
    """A possible result of a bench."""
    rows = [
        BenchRow("max_weights", "", {"call": [0.0004], "touched": [0.021], "cold": [0.11]}, peak=91_000_000),
        BenchRow("safetensors", "safetensors", {"call": [0.003], "touched": [0.034], "cold": [0.16]}, peak=182_000_000),
        BenchRow("fastsafetensors", "fastsafetensors", failed="it is not installed"),
    ]
    return BenchResult(["minilm.safetensors"], "safetensors", 91_000_000, 103, rows)


def views(folder: Path) -> dict[str, Callable[[], str]]:
    """The views, each with its source; those of real files only if these exist."""
    weights = max_weights.load_weights(checkpoint(folder / "model.safetensors"))
    spoilt = checkpoint(folder / "spoilt.safetensors", spoilt=True)
    models = Path(os.environ.get("MAX_WEIGHTS_MODELS", ".models"))
    weight = weights.layers[0].mlp.up_proj.weight
    model = Model()
    found: dict[str, Any] = {
        "tree": weights,
        "missing": weights.layer,
        "weight_data": weight.data(),
        "buffer": Buffer.from_numpy(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        "infos": max_weights.infos(weights),
        "info": max_weights.infos(weights)[2],
        "load_plan": max_weights.plan(weights, dtype={"*mlp*": "bfloat16"}),
        "statistics": max_weights.stats(weights),
        "histograms": max_weights.stats(weights, bins=24),
        "difference": max_weights.diff(weights, spoilt),
        "report": max_weights.validate(spoilt, level="content"),
        "module": model,
        "load_report": model.load_state_dict({"up.weight": np.ones((64, 32), np.float32), "x": 1}, strict=False),
        "bench": bench_result(),
    }
    if (models / "minilm.safetensors").exists():
        real = max_weights.load_weights(models / "minilm.safetensors")
        found |= {"real_tree": real, "real_histograms": max_weights.stats(real, bins=24)}
        found["reshard_plan"] = reshard(
            models / "minilm.safetensors", folder / "ranks", 4, strategies={"*": None}, plan_only=True
        )
    if (models / "smollm2-135m.Q4_1.gguf").exists():
        gguf = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
        found |= {"gguf_tree": gguf, "metadata": gguf.metadata, "packed": gguf.token_embd.weight.data()}
    made: dict[str, Callable[[], str]] = {name: value._repr_html_ for name, value in found.items()}
    return made | {"progress": lambda: progress_html(1_200_000_000, 4_000_000_000, 2.4)}


def page_of(scheme: str, width: int, *made: str) -> str:
    """A page with views, in a theme. Its width is fixed, because Chromium's window may be wider than requested."""
    inner = width - 2 * MARGIN
    return PAGE.format(scheme=scheme, theme=THEMES[scheme], margin=MARGIN, width=inner, body="".join(made))


def chromium() -> str | None:
    """Return the path of Chromium."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def browse(page: Path, width: int, *options: str) -> bytes:
    """Open a page in a window of this width, and return Chromium's output."""
    found = chromium()
    if found is None:
        raise FileNotFoundError("Chromium is not installed: name it by CHROMIUM")
    command = [found, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={width},{HEIGHT}", *options, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("views", nargs="*")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name, view in views(Path(temporary)).items():
            if given.views and name not in given.views:
                continue
            for scheme in THEMES:
                page = Path(temporary) / "page.html"
                for kind, width in WIDTHS.items():
                    page.write_text(page_of(scheme, width, view()))
                    picture = given.folder.resolve() / f"{name}-{kind}-{scheme}.png"
                    browse(page, width, f"--screenshot={picture}")
            print(name)


if __name__ == "__main__":
    main()
