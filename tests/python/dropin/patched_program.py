"""Loads small models with widely used libraries, and prints the results; test_patch_libraries.py runs it in several
ways.

    patched_program.py FOLDER HOW LIBRARY...

HOW is one of four ways. With `after`, the models are saved, then loaded unpatched, patched with everything imported,
and unpatched again. With `fork`, a child loads them that was forked from this process patched, before the imports. With
`spawn`, a spawned process loads them. With `none`, this process loads them, patched or not by its environment.
"""

import copy
import hashlib
import io
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
warnings.simplefilter("ignore")


def digest(state: Any) -> str:
    """Digest of names, dtypes, shapes and bits; other operations of loaded tensors are tried, too."""
    import torch

    whole = hashlib.sha256()
    for name, tensor in state.items():
        assert tensor.device.type == "cpu"
        plain = tensor.detach().contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    copied = copy.deepcopy(dict(state))
    saved = io.BytesIO()
    torch.save(copied, saved)
    for tensor in state.values():
        tensor.detach().share_memory_()
        tensor.detach().zero_()
    saved.seek(0)
    for name, tensor in torch.load(saved).items():
        assert torch.equal(tensor, copied[name])
    return whole.hexdigest()


def make_transformers(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=200
    )
    model = BertModel(config)
    model.save_pretrained(folder / "bert")
    model.save_pretrained(folder / "sharded", max_shard_size="30KB")
    (folder / "bin").mkdir()
    config.save_pretrained(folder / "bin")
    torch.save(model.state_dict(), folder / "bin/pytorch_model.bin")
    GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=200, n_positions=32)).save_pretrained(
        folder / "tied"
    )


def load_transformers(folder: Path) -> dict[str, str]:
    import torch
    from transformers import AutoModel, GPT2LMHeadModel

    found = {}
    for name in ("bert", "sharded", "bin"):
        for dtype in (None, "auto", torch.bfloat16):
            found[f"{name} {dtype}"] = digest(AutoModel.from_pretrained(folder / name, dtype=dtype).state_dict())
    tied = GPT2LMHeadModel.from_pretrained(folder / "tied")
    assert tied.lm_head.weight is tied.transformer.wte.weight
    tied.save_pretrained(folder / f"again{os.getpid()}")
    found["tied"] = digest(GPT2LMHeadModel.from_pretrained(folder / f"again{os.getpid()}").state_dict())
    return found


def network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()


def make_accelerate(folder: Path) -> None:
    import safetensors.torch

    safetensors.torch.save_file(network().state_dict(), folder / "network.safetensors", {"format": "pt"})


def load_accelerate(folder: Path) -> dict[str, str]:
    import accelerate
    import torch

    found = {}
    for name, places in (("dispatch", {"": "cpu"}), ("offload", {"0": "cpu", "1": "cpu", "2": "disk"})):
        with accelerate.init_empty_weights():
            empty = network()
        offload = str(folder / f"offload{os.getpid()}")
        model = accelerate.load_checkpoint_and_dispatch(
            empty, str(folder / "network.safetensors"), device_map=places, offload_folder=offload
        )
        with torch.no_grad():
            found[name] = digest({"output": model(torch.ones(2, 8)), "again": model(torch.ones(2, 8))})
    return found


def make_peft(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(network(), LoraConfig(target_modules=["0"], init_lora_weights=False)).save_pretrained(
        folder / "lora"
    )


def load_peft(folder: Path) -> dict[str, str]:
    import torch
    from peft import PeftModel

    torch.manual_seed(3)
    model = PeftModel.from_pretrained(network(), folder / "lora")
    return {"lora": digest({name: tensor for name, tensor in model.state_dict().items() if "lora" in name})}


def make_timm(folder: Path) -> None:
    import safetensors.torch
    import timm
    import torch

    state = timm.create_model("test_vit", num_classes=3).state_dict()
    safetensors.torch.save_file(state, folder / "vit.safetensors")
    torch.save(state, folder / "vit.pth")


def load_timm(folder: Path) -> dict[str, str]:
    import timm

    files = ("vit.safetensors", "vit.pth")
    return {
        file: digest(timm.create_model("test_vit", num_classes=3, checkpoint_path=str(folder / file)).state_dict())
        for file in files
    }


def make_diffusers(folder: Path) -> None:
    from diffusers import UNet2DModel

    unet = UNet2DModel(
        sample_size=8, block_out_channels=(8, 8), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    unet.save_pretrained(folder / "unet")
    unet.save_pretrained(folder / "unet bin", safe_serialization=False)


def load_diffusers(folder: Path) -> dict[str, str]:
    from diffusers import UNet2DModel

    return {
        "mapped": digest(UNet2DModel.from_pretrained(folder / "unet").state_dict()),
        "read": digest(UNet2DModel.from_pretrained(folder / "unet", disable_mmap=True).state_dict()),
        "bin": digest(UNet2DModel.from_pretrained(folder / "unet bin", use_safetensors=False).state_dict()),
    }


def make_gguf(folder: Path) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    import gguf_models

    gguf_models.write(folder / "model.gguf")
    gguf_models.write_lfm2(folder / "lfm2.gguf")


def load_gguf(folder: Path) -> dict[str, Any]:
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    file = {"gguf_file": "model.gguf"}
    tokenizer = AutoTokenizer.from_pretrained(folder, **file)
    found: dict[str, Any] = {
        str(dtype): digest(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **file).state_dict())
        for dtype in (None, torch.bfloat16)
    }
    found["lfm2"] = digest(AutoModelForCausalLM.from_pretrained(folder, gguf_file="lfm2.gguf").state_dict())
    tensors = {
        tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in gguf.GGUFReader(folder / "model.gguf").tensors
    }
    return found | {
        "config": AutoConfig.from_pretrained(folder, **file).to_dict(),
        "tokens": tokenizer("then in an inn").input_ids,
        "vocabulary": tokenizer.get_vocab(),
        "tensors": digest(tensors),
    }


def make_sentence_transformers(folder: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    embedding = StaticEmbedding(tokenizer, embedding_weights=torch.randn(3, 8).numpy())
    SentenceTransformer(modules=[embedding], device="cpu").save(str(folder / "sentences"))


def load_sentence_transformers(folder: Path) -> dict[str, str]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder / "sentences"), device="cpu")
    return {"encoded": digest({"output": model.encode(["one two", "two"], convert_to_tensor=True).clone()})}


MAKERS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("make_"): value for name, value in list(globals().items()) if name.startswith("make_")
}
LOADERS: dict[str, Callable[[Path], dict[str, str]]] = {
    name.removeprefix("load_"): value for name, value in list(globals().items()) if name.startswith("load_")
}


def load(folder: Path, libraries: list[str]) -> dict[str, Any]:
    """The results of every library, and which of our replacements served a call."""
    found: dict[str, Any] = {library: LOADERS[library](folder) for library in libraries}
    dropin = sys.modules.get("max_weights._dropin")
    calls = dropin.patched() if dropin is not None else {}
    return found | {"served": sorted(name for name, call in calls.items() if call.fast)}


def after(folder: Path, libraries: list[str]) -> dict[str, Any]:
    """All in one process, because the libraries are slow to import."""
    import safetensors.numpy
    import safetensors.torch
    import torch

    torch.manual_seed(0)
    for library in libraries:
        MAKERS[library](folder)
    found = {"none": load(folder, libraries)}
    # Where the package is installed, torch has imported its entry point, which imports no more.
    assert not {"max_weights._core", "max_weights._dropin"} & sys.modules.keys()
    import max_weights

    originals = [torch.load, safetensors.safe_open, safetensors.torch.load_file, safetensors.numpy.load]
    max_weights.patch()
    found["after"] = load(folder, libraries)
    counted = dict(max_weights.patched())
    max_weights.unpatch()
    assert originals == [torch.load, safetensors.safe_open, safetensors.torch.load_file, safetensors.numpy.load]
    found["again"] = load(folder, libraries)
    max_weights.patch()
    assert dict(max_weights.patched()) == counted
    return found


def main(folder: Path, how: str, libraries: list[str]) -> dict[str, Any]:
    """Run it in this way."""
    if how == "after":
        return after(folder, libraries)
    if how == "fork":
        import max_weights

        max_weights.patch()
    if how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            return pool.apply(load, (folder, libraries))
    return load(folder, libraries)


if __name__ == "__main__":
    output = json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    print(f"\n{output}")
