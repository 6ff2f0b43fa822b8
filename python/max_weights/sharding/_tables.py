"""Ready-made tables: how the weights of well-known models are split, by their Hugging Face names.

They split as vLLM and Megatron do. Queries, keys, values, gate and up are column-parallel, so that each rank has some
of the outputs (axis 0 of `[out, in]`, `colwise` in transformers, `rowwise` here). The two projections back are
row-parallel (axis 1). Embeddings and the head are split by vocabulary. Everything else is whole on each rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from max_weights._selection import Pattern
from max_weights.errors import ArgumentError
from max_weights.sharding._rules import count
from max_weights.sharding._shares import HeadShare, Share, StackedExperts
from max_weights.sharding._strategies import ShardingStrategy

__all__ = ["Table", "deepseek", "llama", "mixtral", "named", "qwen"]

_Row = ShardingStrategy | None


class Table(dict[Pattern, ShardingStrategy | None]):
    """{pattern of names: strategy, or `None` for the whole weight on each rank}; the first match applies.

    A table covers a whole model: for a weight of two axes or more that no pattern matches, loading raises an error. Put
    rows of your own first: `{"visual": None} | llama(8, num_heads=32)`.
    """

    title: str
    """The function that created it."""
    own: Mapping[Pattern, _Row]
    """The rows that were put first, each of which must match a weight."""

    def __init__(self, title: str, rows: Mapping[Pattern, _Row], own: Mapping[Pattern, _Row] | None = None) -> None:
        super().__init__(rows)
        self.title = title
        self.own = own or {}

    def __ror__(self, first: Mapping[Pattern, _Row]) -> Table:  # type: ignore[override]
        rows = dict(first)
        others = {pattern: row for pattern, row in self.items() if pattern not in rows}
        return Table(self.title, rows | others, {**self.own, **rows})


def llama(world: int, *, num_heads: int, num_kv_heads: int | None = None) -> Table:
    """Return the table for Llama, Mistral, and Phi with its fused `qkv_proj` and `gate_up_proj`.

    Args:
        world: The number of ranks.
        num_heads: The number of query heads; each rank has the same number of them.
        num_kv_heads: The number of key heads, and of value heads; by default, as many as query heads. If they are fewer
            than ranks, neighbouring ranks have the same head.
    """
    return Table("llama", _attention(world, num_heads, num_kv_heads) | _feed_forward(world) | _vocabulary(world))


def qwen(
    world: int,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    hidden_size: int | None = None,
    expert_parallel: bool = False,
) -> Table:
    """Return the table for Qwen 2 and 3, with and without experts.

    Args:
        world: The number of ranks.
        num_heads: The number of query heads; each rank has the same number of them.
        num_kv_heads: The number of key heads, and of value heads, as for `llama`.
        hidden_size: Needed if a weight holds all experts of a layer.
        expert_parallel: Keep experts whole. If a weight holds all experts of a layer, each rank has some of them; if
            experts have weights of their own, also pass `select=experts(rank, world)`.
    """
    rows = _attention(world, num_heads, num_kv_heads) | {
        "*.mlp.gate.weight": None,
        "*.mlp.shared_expert_gate.weight": None,
    }
    return Table(
        "qwen", _experts(world, hidden_size, expert_parallel) | rows | _feed_forward(world) | _vocabulary(world)
    )


def mixtral(
    world: int,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    hidden_size: int | None = None,
    expert_parallel: bool = False,
) -> Table:
    """Return the table for Mixtral, with experts `w1`, `w2` and `w3`. The arguments are those of `qwen`."""
    rows = _attention(world, num_heads, num_kv_heads) | {
        "*.block_sparse_moe.gate.weight": None,
        "*.mlp.gate.weight": None,
        "*.experts.*.w[13].weight": _strategy(world, Share(-2)),
        "*.experts.*.w2.weight": _strategy(world, Share(-1)),
    }
    return Table("mixtral", _experts(world, hidden_size, expert_parallel) | rows | _vocabulary(world))


def deepseek(world: int, *, num_heads: int, hidden_size: int | None = None, expert_parallel: bool = False) -> Table:
    """Return the table for DeepSeek 2 and 3.

    The weights that compress queries, keys and values are whole on each rank; those that expand them are split by
    heads.

    Args:
        world: The number of ranks.
        num_heads: The number of query heads; each rank has the same number of them.
        hidden_size: As for `qwen`.
        expert_parallel: As for `qwen`.
    """
    heads, inputs = _strategy(world, HeadShare(0, num_heads)), _strategy(world, HeadShare(1, num_heads))
    rows: dict[Pattern, _Row] = {
        "*.self_attn.q_a_proj.weight": None,
        "*.self_attn.kv_a_proj_with_mqa.weight": None,
        "*.self_attn.q_proj.weight": heads,
        "*.self_attn.q_b_proj.weight": heads,
        "*.self_attn.kv_b_proj.weight": heads,
        "*.self_attn.o_proj.weight": inputs,
        "*.mlp.gate.weight": None,
        # The layer that predicts further tokens.
        "*.eh_proj.weight": None,
        "*.shared_head.head.weight": _strategy(world, Share(0)),
    }
    rows |= _feed_forward(world) | _vocabulary(world)
    return Table("deepseek", _experts(world, hidden_size, expert_parallel) | rows)


_TABLES: dict[str, Callable[..., Table]] = {"llama": llama, "qwen": qwen, "mixtral": mixtral, "deepseek": deepseek}
# The tables that `auto` chooses, by the `model_type` of a configuration; in GGUF files, by the architecture.
_MODELS = {
    "llama": "llama",
    "mistral": "llama",
    "phi3": "llama",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen2_moe": "qwen",
    "qwen3_moe": "qwen",
    "qwen2moe": "qwen",
    "qwen3moe": "qwen",
    "mixtral": "mixtral",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseek2": "deepseek",
}


def named(name: str, world: int, config: Mapping[str, object] | None, place: str) -> Table:
    """Return the table of a name, for the model of a configuration with Hugging Face's keys.

    Args:
        name: `llama`, `qwen`, `mixtral`, `deepseek`, or `auto` for the one of the model's type.
        world: The number of ranks.
        config: The configuration; `None` if there is none.
        place: Where it was looked for.

    Raises:
        ArgumentError: no such table, or a configuration that does not say enough (a ValueError).
    """
    tables = ", ".join(repr(one) for one in _TABLES)
    if name != "auto" and name not in _TABLES:
        raise ArgumentError(f"there is no table of strategies called {name!r}; there are {tables}, and 'auto'")
    if config is None:
        title = "llama" if name == "auto" else name
        others = "hidden_size=..." if title == "deepseek" else "num_kv_heads=..."
        raise ArgumentError(
            f"the table {name!r} needs the number of heads, but there is no {place}: put the model's "
            f"config.json there, or give the table with its numbers, as the strategies of a Shard or of reshard(): "
            f"max_weights.sharding.tables.{title}({world}, num_heads=..., {others})"
        )
    if name == "auto":
        model = config.get("model_type")
        if model not in _MODELS:
            raise ArgumentError(
                f"no table of strategies is known for the model type {model!r} in {place}; choose {tables}"
            )
        name = _MODELS[model]
    options = {"num_heads": _number(config, "num_attention_heads", place)}
    if name != "deepseek":
        options["num_kv_heads"] = _number(config, "num_key_value_heads", place, options["num_heads"])
    if name != "llama" and "hidden_size" in config:
        options["hidden_size"] = _number(config, "hidden_size", place)
    return _TABLES[name](world, **options)


def _number(config: Mapping[str, object], key: str, place: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{key} is {value!r} in {place}; give max_weights.sharding.tables the numbers yourself")
    return value


def _strategy(world: int, share: Share | HeadShare | StackedExperts) -> ShardingStrategy:
    return ShardingStrategy(world, share)


def _attention(world: int, num_heads: int, num_kv_heads: int | None) -> dict[Pattern, _Row]:
    heads = count(num_heads, "num_heads")
    keys = heads if num_kv_heads is None else count(num_kv_heads, "num_kv_heads")
    if heads % keys:
        raise ArgumentError(f"{heads} heads do not share {keys} key and value heads evenly")
    queries, keys_values = HeadShare(0, heads), HeadShare(0, 0, (keys,))
    outputs = {
        "q_proj": queries,
        "k_proj": keys_values,
        "v_proj": keys_values,
        "qkv_proj": HeadShare(0, heads, (keys, keys)),
    }
    return {
        **{f"*.{name}.{kind}": _strategy(world, own) for name, own in outputs.items() for kind in ("weight", "bias")},
        "*.o_proj.weight": _strategy(world, HeadShare(1, heads)),
    }


def _feed_forward(world: int) -> dict[Pattern, _Row]:
    rows: dict[Pattern, _Row] = {"*.down_proj.weight": _strategy(world, Share(-1))}
    for name, parts in (("gate_proj", 1), ("up_proj", 1), ("gate_up_proj", 2)):
        rows[f"*.{name}.weight"] = _strategy(world, Share(-2, parts))
        rows[f"*.{name}.bias"] = _strategy(world, Share(-1, parts))
    return rows


def _vocabulary(world: int) -> dict[Pattern, _Row]:
    return {f"*{name}.weight": _strategy(world, Share(0)) for name in ("embed_tokens", "lm_head")}


def _experts(world: int, hidden_size: int | None, expert_parallel: bool) -> dict[Pattern, _Row]:
    if expert_parallel:
        return {re.compile(r".*\.experts\.\d+\..*"): None, "*.experts.*": ShardingStrategy.rowwise(world)}
    return {
        "*.experts.gate_up_proj": _strategy(world, StackedExperts(hidden_size, 2)),
        "*.experts.down_proj": _strategy(world, StackedExperts(hidden_size)),
    }
