"""Small language models of transformers as GGUF files, with a tokenizer, in several quantized types."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

LAYERS, HIDDEN, FEED_FORWARD, HEADS, HEADS_KV = 2, 64, 96, 4, 2
KV = HIDDEN * HEADS_KV // HEADS
CHARACTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
MERGES = ["t h", "th e", "i n", "a n"]
TOKENS = ["<|end|>", "Ġ", *CHARACTERS, *(merge.replace(" ", "") for merge in MERGES)]

_Tensor = tuple[str, tuple[int, ...], Type]


def write(path: Path) -> Path:
    """Write a Llama, which transformers reads with gguf-py: the same bytes each time."""
    writer = _writer(path, "llama")
    writer.add_head_count_kv(HEADS_KV)
    tensors: list[_Tensor] = [
        ("token_embd.weight", (len(TOKENS), HIDDEN), Type.Q8_0),
        ("output_norm.weight", (HIDDEN,), Type.F32),
    ]
    for layer in range(LAYERS):
        tensors += [
            (f"blk.{layer}.{name}.weight", shape, kind)
            for name, shape, kind in (
                ("attn_norm", (HIDDEN,), Type.F32),
                ("attn_q", (HIDDEN, HIDDEN), Type.Q4_1),
                ("attn_k", (KV, HIDDEN), Type.Q4_0),
                ("attn_v", (KV, HIDDEN), Type.F16),
                ("attn_output", (HIDDEN, HIDDEN), Type.BF16),
                ("ffn_norm", (HIDDEN,), Type.F32),
                ("ffn_gate", (FEED_FORWARD, HIDDEN), Type.Q5_0),
                ("ffn_up", (FEED_FORWARD, HIDDEN), Type.Q5_1),
                ("ffn_down", (HIDDEN, FEED_FORWARD), Type.Q4_1),
            )
        ]
    return _written(writer, path, tensors)


def write_lfm2(path: Path) -> Path:
    """Write an LFM2, for which transformers has a special reader: a convolution, then attention."""
    writer = _writer(path, "lfm2")
    writer.add_head_count_kv([0, HEADS_KV])  # type: ignore[arg-type]
    writer.add_shortconv_l_cache(3)
    tensors: list[_Tensor] = [
        ("token_embd.weight", (len(TOKENS), HIDDEN), Type.Q8_0),
        ("token_embd_norm.weight", (HIDDEN,), Type.F32),
    ]
    convolution = (
        ("shortconv.conv", (HIDDEN, 3), Type.F32),
        ("shortconv.in_proj", (3 * HIDDEN, HIDDEN), Type.Q4_0),
        ("shortconv.out_proj", (HIDDEN, HIDDEN), Type.F16),
    )
    attention = (
        ("attn_q", (HIDDEN, HIDDEN), Type.Q4_1),
        ("attn_k", (KV, HIDDEN), Type.Q4_0),
        ("attn_v", (KV, HIDDEN), Type.BF16),
        ("attn_output", (HIDDEN, HIDDEN), Type.Q8_0),
        ("attn_q_norm", (HIDDEN // HEADS,), Type.F32),
        ("attn_k_norm", (HIDDEN // HEADS,), Type.F32),
    )
    for layer, mixer in enumerate((convolution, attention)):
        tensors += [
            (f"blk.{layer}.{name}.weight", shape, kind)
            for name, shape, kind in (
                ("attn_norm", (HIDDEN,), Type.F32),
                *mixer,
                ("ffn_norm", (HIDDEN,), Type.F32),
                ("ffn_gate", (FEED_FORWARD, HIDDEN), Type.Q4_1),
                ("ffn_up", (FEED_FORWARD, HIDDEN), Type.Q8_0),
                ("ffn_down", (HIDDEN, FEED_FORWARD), Type.Q4_0),
            )
        ]
    return _written(writer, path, tensors)


def _writer(path: Path, architecture: str) -> gguf.GGUFWriter:
    """A writer with the metadata of a model, and its tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("small")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if architecture == "llama" else architecture)
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    return writer


def _written(writer: gguf.GGUFWriter, path: Path, tensors: list[_Tensor]) -> Path:
    """Write random values, quantized, and close the file."""
    numbers = np.random.default_rng(0)
    for name, shape, kind in tensors:
        values = numbers.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
