"""`renamed`: the weights of a file by the names of other libraries.

Other differences from Hugging Face checkpoints are handled in `conversion`. The names of GGUF files come from gguf-py,
which lists, for each name in GGUF files, the names in models of all kinds; the file does not say which of them are the
model's. The names of one model share the part before the block number, so the prefix that fits most weights is used. If
several prefixes fit, `model.layers.` is used, which all models since Llama have; a table covers those before Llama.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from max_weights._checkpoints import tree_of
from max_weights._core import GGUFWeights, _rename_weights, escape, infos
from max_weights.conversion._tables import LAYOUTS
from max_weights.conversion._view import converted, converted_by
from max_weights.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from max_weights._checkpoints import Checkpoint
    from max_weights._core import WeightsNode
    from max_weights.conversion._rules import ConversionRule
    from max_weights.conversion._view import Config

__all__ = ["FromGGUF", "excluded", "from_gguf", "renamed"]

_SCHEME = "hf"
_BLOCK = re.compile(r"(?P<front>(?:.*\.)?blk\.)(?P<number>\d+)(?P<rest>\..+)", re.DOTALL)
_ROTARY = re.compile(r"(?:.*\.)?blk\.(?P<number>\d+)\.attn_(?P<side>[qk])\.(?:weight|bias)", re.DOTALL)
# The architectures for which llama.cpp's converter permutes the rows of queries and keys, and transformers permutes
# them back.
_PERMUTED = frozenset({"llama"})
# The architectures for which it adds 1 to the weights of norms, which transformers subtracts again.
_SHIFTED = frozenset({"gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron"})
_NORM = "norm.weight"
# Names that neither the prefix nor the order of gguf-py decides, by GGUF name: the part after the block number, or the
# whole name outside blocks; first for models in general, then for one architecture.
_USUAL = {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_up": "mlp.up_proj",
}
_BIG_SCIENCE = {
    "token_embd": "transformer.word_embeddings",
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_EXCEPTIONS = {
    "bloom": _BIG_SCIENCE,
    "falcon": _BIG_SCIENCE,
    "gptneox": {"output": "embed_out"},
    "mamba": {"token_embd": "backbone.embeddings"},
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "stablelm": {"attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"},
    "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "t5": {"token_embd": "shared"},
    "t5encoder": {"token_embd": "shared"},
}
_FAMILY = "model.layers."
# fmt: off
_FAMILIES = {
    "bert": "encoder.layer.", "bloom": "transformer.h.", "dbrx": "transformer.blocks.", "exaone": "transformer.h.",
    "falcon": "transformer.h.", "gpt2": "transformer.h.", "gptj": "transformer.h.", "gptneox": "gpt_neox.layers.",
    "jina-bert-v2": "encoder.layer.", "mamba": "backbone.layers.", "modern-bert": "layers.",
    "mpt": "transformer.blocks.", "nomic-bert": "encoder.layers.", "openelm": "transformer.layers.",
    "qwen": "transformer.h.", "starcoder": "transformer.h.",
}
# fmt: on
_HEAD = "lm_head"
# Weights that llama.cpp's converter computes from the configuration; Hugging Face checkpoints do not have them.
_COMPUTED = re.compile(
    r"rope_freqs\.weight|rope_factors_(?:long|short)\.weight|blk\.\d+\.attn_rot_embd\.weight"
    r"|(?:.*\.)?rotary_emb\.inv_freq(?:\.weight)?"
)


class _Candidate(NamedTuple):
    """One Hugging Face name: the whole name, or the parts before and after the block number."""

    before: str
    after: str


class FromGGUF(NamedTuple):
    """How a Hugging Face checkpoint differs from a GGUF file, by the names in the file."""

    names: dict[str, str]
    """The new names of the weights that gguf-py knows."""
    heads: dict[str, int]
    """The number of heads of weights whose rows are in another order; 0 where the metadata does not give it."""
    amounts: dict[str, int]
    """The numbers that are added to the elements of weights."""


def renamed(
    checkpoint: Checkpoint, scheme: str | Iterable[ConversionRule], *, config: Config | None = None
) -> WeightsNode:
    """Return the weights by the names, and in the layout, of another library, as a tree over the same files.

    Nothing is read. Names that no rule matches stay unchanged. The names of a GGUF file are those that the package gguf
    knows. Its conversion by llama.cpp is undone: the rows of queries and keys come in the model's order again, and the
    1 that was added to the weights of norms is subtracted.

    Args:
        checkpoint: A tree, or anything that `load_weights` opens.
        scheme: `hf`, as in Hugging Face's checkpoints; `transformers5`, `vllm` or `megatron`, as in the modules of
            these libraries; or a list of `ConversionRule`.
        config: The model's configuration, a mapping, a path or `model.config`; default: config.json in the folder of
            the weights.

    Raises:
        ArgumentError: another scheme, not the root of a tree, or no configuration (a ValueError).
        UnsupportedError: an architecture without rules, or without names in gguf-py; weights that do not have the form
            that a rule needs.
        ImportError: gguf-py is missing, for a GGUF file.
        ClosedError: the checkpoint was closed.

    Example:
        >>> rules = [max_weights.conversion.ConversionRule("model.*", "decoder.*")]
        >>> max_weights.renamed(weights, rules).decoder.norm.weight.exists()
        True
    """
    node = tree_of(checkpoint, "renamed")
    if node.name:
        raise ArgumentError(
            f"renamed() is for a whole tree, not for a part such as '{escape(node.name)}'; call it at the root",
            rule="argument.part",
        )
    if not isinstance(scheme, str):
        return converted_by(node, scheme, config)
    if scheme not in (_SCHEME, *LAYOUTS):
        layouts = ", ".join(map(repr, (_SCHEME, *LAYOUTS)))
        raise ArgumentError(f"there is no naming scheme {scheme!r}; there are {layouts}", rule="argument.choice")
    if isinstance(node, GGUFWeights) and node._scheme not in (_SCHEME, *LAYOUTS):
        node = _renamed_gguf(node)
    return node if node._scheme == scheme else converted(node, scheme, config)


def _renamed_gguf(node: WeightsNode) -> WeightsNode:
    """Return the weights of a GGUF file in the form of a Hugging Face checkpoint."""
    names = [info.name for info in infos(node)]
    new = from_gguf(node, names)
    if not any(new.names.get(name, name) != name for name in names):
        warnings.warn(f"renamed('hf') knows no other name for any of the {len(names)} weights", stacklevel=3)
    return _rename_weights(node, _SCHEME, *new)


def from_gguf(node: WeightsNode, names: list[str]) -> FromGGUF:
    """Return how a Hugging Face checkpoint differs from a GGUF file."""
    architecture = node.metadata.get("general.architecture")
    adds = isinstance(architecture, str) and architecture in _SHIFTED
    shifted = [name for name in names if adds and name.endswith(_NORM)]
    return FromGGUF(_new_names(architecture, names), _heads(node, architecture, names), dict.fromkeys(shifted, -1))


def excluded(names: Iterable[str]) -> list[str]:
    """Return the names, old or new, that Hugging Face checkpoints do not have.

    llama.cpp computes these weights from the configuration.
    """
    return [name for name in names if _COMPUTED.fullmatch(name)]


def _new_names(architecture: Any, names: list[str]) -> dict[str, str]:
    """Return {name in the file: new name} of the names that gguf-py knows."""
    candidates_by_base = _candidates(architecture)
    named = [name for name in names if not _COMPUTED.fullmatch(name)]  # no checkpoint has a name for the others
    bases = {name: base for name in named if (base := _base(name)) in candidates_by_base}
    families = _families(candidates_by_base, bases.values(), _FAMILIES.get(architecture))
    stems = {prefix.rpartition(".")[0].rpartition(".")[0] for prefix in families.values()}
    roots = _roots(candidates_by_base, dict.fromkeys(bases.values()), stems)
    exceptions = _USUAL | _EXCEPTIONS.get(architecture, {})
    new_names = {}
    for name, base in bases.items():
        match = _BLOCK.fullmatch(name)
        suffix = next((end for end in (".weight", ".bias") if name.endswith(end)), "")
        candidates = candidates_by_base[base]
        exception = exceptions.get(base.rpartition(".0.")[2])
        if match is None:
            new = _plain(candidates, exception, roots)
            if new is not None:
                new_names[name] = new + suffix
            continue
        family = families.get(match["front"])
        own = [candidate for candidate in candidates if candidate.before == family]
        own = [candidate for candidate in own if candidate.after == f".{exception}"] or own
        if own:
            new_names[name] = f"{own[0].before}{match['number']}{own[0].after}{suffix}"
    return new_names


def _candidates(architecture: object) -> dict[str, list[_Candidate]]:
    """Return the Hugging Face names of each GGUF name without suffix, in gguf-py's order; blocks have the number 0."""
    try:
        import gguf
    except ImportError as error:
        raise ImportError("renamed('hf') takes the names from the package gguf: pip install gguf") from error
    arch = None
    if isinstance(architecture, str):
        arch = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    if arch is None:
        raise UnsupportedError(
            f"the package gguf has no names for the architecture {escape(repr(architecture))}",
            rule="unsupported.layout",
        )
    candidates: dict[str, list[_Candidate]] = {}
    for name, (_, base) in gguf.get_tensor_name_map(arch, 1).mapping.items():
        if name == base or name.endswith((".weight", ".bias")):
            continue
        before, number, after = name.partition(".0.") if _BLOCK.fullmatch(base) else (name, "", "")
        if number:
            before, after = f"{before}.", f".{after}"
        candidates.setdefault(base, []).append(_Candidate(before, after))
    return candidates


def _base(name: str) -> str:
    """Return a name in a file as gguf-py lists it: without its suffix, and in block 0."""
    match = _BLOCK.fullmatch(name)
    base = f"{match['front']}0{match['rest']}" if match else name
    return base.removesuffix(".weight").removesuffix(".bias")


def _families(candidates: dict[str, list[_Candidate]], bases: Iterable[str], own: str | None) -> dict[str, str]:
    """Return the part before the block number in the names of the model, for each kind of block (`blk.`, `enc.blk.`).

    It is `own`, or the one that fits most weights.
    """
    fits: dict[str, Counter[str]] = {}
    for base, count in Counter(bases).items():
        if match := _BLOCK.fullmatch(base):
            counts = fits.setdefault(match["front"], Counter())
            for before in dict.fromkeys(candidate.before for candidate in candidates[base]):
                counts[before] += count
    families = {}
    for front, counts in fits.items():
        most = max((count, before == _FAMILY, -i, before) for i, (before, count) in enumerate(counts.items()))[-1]
        families[front] = own if own is not None and own in counts else most
    return families


def _roots(candidates: dict[str, list[_Candidate]], bases: Iterable[str], stems: set[str]) -> set[str]:
    """Return what may precede the last component of names outside blocks.

    That is what contains the blocks (`model`), or if a model has nothing else there (`encoder` of BERT), what fits most
    of these weights.
    """
    counts: Counter[str] = Counter()
    for base in bases:
        if not _BLOCK.fullmatch(base):
            parents = dict.fromkeys(_parent(candidate.before) for candidate in candidates[base])
            counts.update(parent for parent in parents if parent)  # the first of several in gguf-py's order wins
    if not counts or any(counts[stem] for stem in stems):
        return stems
    most = max(counts.values())
    return {next(root for root, count in counts.items() if count == most)}


def _plain(candidates: list[_Candidate], exception: str | None, roots: set[str]) -> str | None:
    names = [candidate.before for candidate in candidates]
    if exception in names:
        return exception
    own = [name for name in names if _parent(name) in roots and "." in name]
    return own[0] if own else _HEAD if _HEAD in names else None


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _heads(node: WeightsNode, architecture: object, names: list[str]) -> dict[str, int]:
    """Return {name in the file: number of heads} of the weights whose rows llama.cpp's converter permutes.

    The number is 0 where the metadata gives no valid number of heads, which spoils that weight alone.
    """
    if architecture not in _PERMUTED:
        return {}
    queries = node.metadata.get(f"{architecture}.attention.head_count")
    keys = node.metadata.get(f"{architecture}.attention.head_count_kv", queries)
    heads = {}
    for name in names:
        if match := _ROTARY.fullmatch(name):
            heads[name] = _of_block(queries if match["side"] == "q" else keys, match["number"])
    return heads


def _of_block(count: Any, number: str) -> int:
    """Return a count that is the same for all blocks, or from an array with one for each."""
    if hasattr(count, "dtype"):
        at = int(number) if len(number) < 10 else len(count)
        count = count[at].item() if at < len(count) else 0
    return count if isinstance(count, int) and 0 < count < 1 << 63 else 0
