"""Folders of models: transformers, peft, diffusers, sentence-transformers, Lightning and accelerate."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corpora.good.written import TRUST, by_folder, by_path, saved, single
from corpora.item import Item

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
CLASSES: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": SMALL,
    "RobertaModel": {**SMALL, "pad_token_id": 1},
    "GPT2LMHeadModel": {
        "vocab_size": 32,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 16,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "LlamaForCausalLM": SMALL,
    "MistralForCausalLM": SMALL,
    "Qwen2ForCausalLM": SMALL,
    "Qwen3ForCausalLM": {**SMALL, "head_dim": 8},
    "GemmaForCausalLM": {**SMALL, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "MixtralForCausalLM": {**SMALL, "num_local_experts": 2},
    "T5ForConditionalGeneration": {
        "vocab_size": 32,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
    },
    "ViTForImageClassification": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    },
    "WhisperForConditionalGeneration": {
        "vocab_size": 32,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    "MambaForCausalLM": {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
}
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_"
        "end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama-2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message "
        "= messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false"
        " %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % "
        "2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') "
        "}}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + sys"
        "tem_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] "
        "%}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST"
        "]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif "
        "%}{% endfor %}"
    ),
    "tools": (
        "{%- macro json_to_python_type(json_spec) %}{%- set basic_type_map = {'string': 'str', 'number': 'flo"
        "at'} %}{%- if basic_type_map[json_spec.type] is defined %}{{- basic_type_map[json_spec.type] }}{%- e"
        "lse %}{{- 'Any' }}{%- endif %}{%- endmacro %}{%- set ns = namespace(found=false, last=none) %}{%- fo"
        "r message in messages %}{%- if message.tool_calls is defined and message.tool_calls is not none %}{%"
        "- for tool in message.tool_calls %}{%- set ns.found = true %}{{- tool.function.name }}{{- tool.funct"
        "ion.arguments | tojson(indent=2) }}{%- endfor %}{%- else %}{{- message.content | trim }}{%- endif %}"
        "{%- endfor %}{%- if tools %}{{- tools | map(attribute='function') | list | tojson }}{%- endif %}{{- "
        "strftime_now('%Y-%m-%d') }}{%- if ns.found %}{{- messages | selectattr('role', 'equalto', 'user') | "
        "list | length }}{%- endif %}{%- for key, value in (documents or {}).items() %}{{- key ~ ': ' ~ value"
        " }}{%- endfor %}"
    ),
    "thinking": (
        "{%- if messages[-1].role == 'assistant' %}{%- set content = messages[-1].content.split('</think>')[-"
        "1].lstrip('\\n') %}{{- content }}{%- endif %}{%- for m in messages[::-1] %}{%- if m.content is string"
        " and not(m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}{{- m.content | replace"
        "('<s>', '') }}{%- endif %}{%- endfor %}"
    ),
}


def _model(name: str) -> Any:
    import transformers

    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**CLASSES[name]))


def _tokenizer(template: str | None = None) -> Any:
    import tokenizers
    import transformers

    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", "a", "b"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def transformers_folders() -> Iterator[Item]:
    """Files written by save_pretrained."""
    group = "transformers"
    for name in CLASSES:
        yield by_folder(group, name, lambda path, name=name: _model(name).save_pretrained(path))
    yield by_folder(
        group, "sharded", lambda path: _model("LlamaForCausalLM").save_pretrained(path, max_shard_size="4KB")
    )
    yield by_folder(group, "half", lambda path: _model("LlamaForCausalLM").half().save_pretrained(path))
    for name, template in TEMPLATES.items():

        def write(path: Path, template: str = template) -> None:
            _model("LlamaForCausalLM").save_pretrained(path)
            _tokenizer(template).save_pretrained(path)
            (path / "README.md").write_text("---\nlicense: mit\n---\n# A model\n\n```python\nimport os\n```\n")
            (path / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")

        yield by_folder(group, f"with-tokenizer-{name}", write)

    def old_names(path: Path) -> None:
        _model("BertForMaskedLM").save_pretrained(path)
        torch.save(_model("BertForMaskedLM").state_dict(), path / "pytorch_model.bin")
        (path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
        (path / "merges.txt").write_text("#version: 0.2\na b\n")
        (path / "special_tokens_map.json").write_text('{"unk_token": "[UNK]"}')
        (path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')

    yield by_folder(group, "old-names", old_names)


def peft_folders() -> Iterator[Item]:
    """Adapters."""
    import peft

    targets = ["q_proj", "v_proj"]
    configs = {
        "lora": peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"),
        "lora-all-linear": peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
        "lora-ranks": peft.LoraConfig(
            r=4, target_modules=targets, rank_pattern={"q_proj": 2}, alpha_pattern={"q_proj": 8}
        ),
        "lora-regex": peft.LoraConfig(r=4, target_modules=r".*\.(q|k)_proj"),
        "lora-with-head": peft.LoraConfig(r=4, target_modules=targets, modules_to_save=["lm_head"]),
        "dora": peft.LoraConfig(r=4, target_modules=targets, use_dora=True),
        "rs-lora": peft.LoraConfig(r=4, target_modules=targets, use_rslora=True, bias="all"),
        "lora-embedding": peft.LoraConfig(r=4, target_modules=["embed_tokens"]),
        "ia3": peft.IA3Config(target_modules=targets, feedforward_modules=[]),
        "loha": peft.LoHaConfig(r=4, target_modules=targets),
        "lokr": peft.LoKrConfig(r=4, target_modules=targets),
        "vera": peft.VeraConfig(r=4, target_modules=["q_proj"]),
        "ada-lora": peft.AdaLoraConfig(target_modules=targets, total_step=10),
        "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    }
    for name, config in configs.items():

        def write(path: Path, config: Any = config, safe: bool = True) -> None:
            model = peft.get_peft_model(_model("LlamaForCausalLM"), config)
            model.save_pretrained(path, safe_serialization=safe)

        yield by_folder("peft", name, write)
        if name == "lora":
            yield by_folder("peft", "lora-bin", lambda path, write=write: write(path, safe=False))


class Net(nn.Module):
    """A module of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


def lightning_files() -> Iterator[Item]:
    """Checkpoints of Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        """A module that has hyperparameters."""

        def __init__(self, rate: float = 0.1, layers: tuple[int, ...] = (1, 2)) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.rate, self.layer = rate, nn.Linear(2, layers[1])

        def training_step(self, batch: Any) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def write(path: Path) -> None:
        callbacks = [
            lightning.pytorch.callbacks.ModelCheckpoint(dirpath=path.parent / "kept"),
            lightning.pytorch.callbacks.EarlyStopping("x", check_on_train_epoch_end=False),
        ]
        trainer = lightning.Trainer(
            max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=callbacks[:1], default_root_dir=path.parent, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2, 2)))
        trainer.save_checkpoint(path)

    yield by_path("lightning", "model.ckpt", write)
    state = {
        "state_dict": nn.Linear(2, 2).state_dict(),
        "epoch": 0,
        "pytorch-lightning_version": "2.0.0",
        "hyper_parameters": {"lr": 0.1},
    }
    yield single("lightning", "by-hand.ckpt", saved(state))


def other_folders() -> Iterator[Item]:
    """diffusers, sentence-transformers, accelerate and timm."""
    import accelerate
    import diffusers
    import sentence_transformers
    import timm
    import transformers

    def unet(path: Path) -> None:
        blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,)}
        model = diffusers.UNet2DModel(sample_size=8, layers_per_block=1, norm_num_groups=4, **blocks)
        diffusers.DDPMPipeline(model, diffusers.DDPMScheduler()).save_pretrained(path)

    yield by_folder("folders", "diffusers", unet)

    def sentences(path: Path) -> None:
        inner = path.parent / "inner"
        _model("BertForMaskedLM").bert.save_pretrained(inner)
        _tokenizer().save_pretrained(inner)
        from sentence_transformers import models

        word = models.Transformer(str(inner))
        model = sentence_transformers.SentenceTransformer(modules=[word, models.Pooling(16)])
        model.save(str(path), create_model_card=False)

    yield by_folder("folders", "sentence-transformers", sentences)

    def state(path: Path) -> None:
        accelerator = accelerate.Accelerator(cpu=True)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        accelerator.prepare(model, optimizer, scheduler)
        accelerator.save_state(str(path))

    yield by_folder("folders", "accelerate", state)
    for name in ("resnet10t", "mobilenetv3_small_050"):

        def vision(path: Path, name: str = name) -> None:
            model = timm.create_model(name, num_classes=2)
            torch.save(model.state_dict(), path / "pytorch_model.bin")
            (path / "config.json").write_text(json.dumps({"architecture": name, "num_classes": 2}))

        yield by_folder("folders", f"timm-{name}", vision)
    arguments = transformers.TrainingArguments(output_dir="x", use_cpu=True)
    yield single("needs-trust", "training_args.bin", saved(arguments), TRUST)
    yield single("needs-trust", "config-in-checkpoint.pt", saved({"config": transformers.LlamaConfig(**SMALL)}), TRUST)
    yield single("torch-training", "hf-scheduler.pt", saved({"last_epoch": 1, "_last_lr": [0.1]}))


def items() -> Iterator[Item]:
    """All of them."""
    torch.manual_seed(0)
    for group in (transformers_folders, peft_folders, lightning_files, other_folders):
        yield from group()
