"""`Table`: how the weights of well-known models are split, by their Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from max_weights._selection import Pattern
from max_weights.errors import ArgumentError
from max_weights.sharding._rules import count
from max_weights.sharding._shares import DeviceShare, HeadShare, StackedExperts
from max_weights.sharding._strategies import ShardingStrategy

__all__ = ["Table", "named"]

_Row = ShardingStrategy | None
_Rows = dict[Pattern, _Row]


class Table(dict[Pattern, ShardingStrategy | None]):
    """{pattern of names: strategy, or `None` for the whole weight on each rank}; the first match applies.

    The tables split as vLLM and Megatron do. Queries, keys, values, gate and up are column-parallel: each rank has some
    of the outputs (axis 0 of `[out, in]`, `colwise` in transformers, `rowwise` here). The two projections back are
    row-parallel (axis 1). Embeddings and the head are split by vocabulary. Everything else is whole on each rank.

    A table covers a whole model: for a weight of two axes or more that no pattern matches, loading raises an error. Put
    rows of your own first: `{"visual": None} | Table("llama", 8, num_heads=32)`.

    Args:
        name: "llama" (also Mistral, and Phi with its fused `qkv_proj` and `gate_up_proj`), "qwen" (2 and 3, with and
            without experts), "mixtral", or "deepseek" (2 and 3).
        world_size: The number of ranks.
        num_heads: The number of query heads; each rank has the same number of them.
        num_kv_heads: The number of key heads, and of value heads; by default, as many as query heads. If they are fewer
            than ranks, neighbouring ranks have the same head. Not for "deepseek".
        hidden_size: Needed if a weight holds all experts of a layer. Not for "llama".
        expert_parallel: Keep experts whole. If a weight holds all experts of a layer, each rank has some of them; if
            experts have separate weights, also pass `select=experts(rank, world_size)`. Not for "llama".

    Raises:
        ArgumentError: There is no such table, it does not take an option, or heads cannot be shared (a ValueError).

    Example:
        >>> table = max_weights.sharding.Table("llama", 2, num_heads=4)
        >>> table["*.down_proj.weight"].num_devices
        2
    """

    name: str
    """The name of the table."""
    own: Mapping[Pattern, _Row]
    """The user's rows, each of which must match a weight."""

    def __init__(
        self,
        name: str,
        world_size: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        hidden_size: int | None = None,
        expert_parallel: bool = False,
    ) -> None:
        if not isinstance(name, str) or name not in _TABLES:
            raise ArgumentError(
                f"there is no table of strategies called {name!r}; there are {_NAMES}", rule="argument.choice"
            )
        options = {"num_kv_heads": num_kv_heads, "hidden_size": hidden_size, "expert_parallel": expert_parallel}
        rows, *takes = _TABLES[name]
        for option, value in options.items():
            if value not in (None, False) and option not in takes:
                raise ArgumentError(f"the table {name!r} takes no {option}", rule="argument.no-effect")
        super().__init__(rows(world_size, num_heads, *(options[option] for option in takes)))
        self.name, self.own = name, {}

    def __ror__(self, first: Mapping[Pattern, _Row]) -> Table:  # type: ignore[override]
        table = Table.__new__(Table)
        table.update(first)
        table.update({pattern: row for pattern, row in self.items() if pattern not in first})
        table.name, table.own = self.name, {**self.own, **first}
        return table


def named(name: str, world_size: int, config: Mapping[str, object] | None, place: str) -> Table:
    """Return the table of a name, or for `auto` that of the model; `place` is where its configuration was expected."""
    if name != "auto" and name not in _TABLES:
        raise ArgumentError(
            f"there is no table of strategies called {name!r}; there are {_NAMES}, and 'auto'", rule="argument.choice"
        )
    if config is None:
        title = "llama" if name == "auto" else name
        others = "hidden_size=..." if title == "deepseek" else "num_kv_heads=..."
        raise ArgumentError(
            f"the table {name!r} needs the number of heads, but there is no {place}: put the model's "
            f"config.json there, or give the table with its numbers, as the strategies of a Shard or of reshard(): "
            f'max_weights.sharding.Table("{title}", {world_size}, num_heads=..., {others})',
            rule="argument.config",
        )
    if name == "auto":
        model = config.get("model_type")
        if model not in _MODELS:
            raise ArgumentError(
                f"no table of strategies is known for the model type {model!r} in {place}; choose {_NAMES}",
                rule="argument.choice",
            )
        name = _MODELS[model]
    heads = _number(config, "num_attention_heads", place)
    return Table(
        name,
        world_size,
        num_heads=heads,
        num_kv_heads=None if name == "deepseek" else _number(config, "num_key_value_heads", place, heads),
        hidden_size=_number(config, "hidden_size", place) if name != "llama" and "hidden_size" in config else None,
    )


def _number(config: Mapping[str, object], key: str, place: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(
            f"{key} is {value!r} in {place}; give max_weights.sharding.Table the numbers yourself",
            rule="argument.config",
        )
    return value


def _strategy(world: int, share: DeviceShare | HeadShare | StackedExperts) -> ShardingStrategy:
    return ShardingStrategy(world, share)


def _llama(world: int, heads: int, keys: int | None) -> _Rows:
    return _attention(world, heads, keys) | _feed_forward(world) | _vocabulary(world)


def _qwen(world: int, heads: int, keys: int | None, hidden_size: int | None, expert_parallel: bool) -> _Rows:
    gates: _Rows = {"*.mlp.gate.weight": None, "*.mlp.shared_expert_gate.weight": None}
    rest = _attention(world, heads, keys) | gates | _feed_forward(world) | _vocabulary(world)
    return _experts(world, hidden_size, expert_parallel) | rest


def _mixtral(world: int, heads: int, keys: int | None, hidden_size: int | None, expert_parallel: bool) -> _Rows:
    rows: _Rows = {
        "*.block_sparse_moe.gate.weight": None,
        "*.mlp.gate.weight": None,
        "*.experts.*.w[13].weight": _strategy(world, DeviceShare(-2)),
        "*.experts.*.w2.weight": _strategy(world, DeviceShare(-1)),
    }
    return _experts(world, hidden_size, expert_parallel) | _attention(world, heads, keys) | rows | _vocabulary(world)


def _deepseek(world: int, heads: int, hidden_size: int | None, expert_parallel: bool) -> _Rows:
    """Keep the compressing projections of queries, keys and values whole, and split the expanding ones by heads."""
    outputs, inputs = _strategy(world, HeadShare(0, heads)), _strategy(world, HeadShare(1, heads))
    rows: _Rows = {
        "*.self_attn.q_a_proj.weight": None,
        "*.self_attn.kv_a_proj_with_mqa.weight": None,
        "*.self_attn.q_proj.weight": outputs,
        "*.self_attn.q_b_proj.weight": outputs,
        "*.self_attn.kv_b_proj.weight": outputs,
        "*.self_attn.o_proj.weight": inputs,
        "*.mlp.gate.weight": None,
        # The layer that predicts further tokens.
        "*.eh_proj.weight": None,
        "*.shared_head.head.weight": _strategy(world, DeviceShare(0)),
    }
    return _experts(world, hidden_size, expert_parallel) | rows | _feed_forward(world) | _vocabulary(world)


_TABLES: dict[str, tuple[Callable[..., _Rows], *tuple[str, ...]]] = {
    "llama": (_llama, "num_kv_heads"),
    "qwen": (_qwen, "num_kv_heads", "hidden_size", "expert_parallel"),
    "mixtral": (_mixtral, "num_kv_heads", "hidden_size", "expert_parallel"),
    "deepseek": (_deepseek, "hidden_size", "expert_parallel"),
}
_NAMES = ", ".join(map(repr, _TABLES))
# The tables that `auto` chooses, by the `model_type` of a configuration; in GGUF files, by the architecture.
_MODELS = {
    **dict.fromkeys(("llama", "mistral", "phi3"), "llama"),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen2moe", "qwen3moe"), "qwen"),
    "mixtral": "mixtral",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek2"), "deepseek"),
}


def _attention(world: int, num_heads: int, num_kv_heads: int | None) -> _Rows:
    heads = count(num_heads, "num_heads")
    keys = heads if num_kv_heads is None else count(num_kv_heads, "num_kv_heads")
    if heads % keys:
        raise ArgumentError(f"{heads} heads do not share {keys} key and value heads evenly", rule="argument.config")
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


def _feed_forward(world: int) -> _Rows:
    rows: _Rows = {"*.down_proj.weight": _strategy(world, DeviceShare(-1))}
    for name, parts in (("gate_proj", 1), ("up_proj", 1), ("gate_up_proj", 2)):
        rows[f"*.{name}.weight"] = _strategy(world, DeviceShare(-2, parts))
        rows[f"*.{name}.bias"] = _strategy(world, DeviceShare(-1, parts))
    return rows


def _vocabulary(world: int) -> _Rows:
    return {f"*{name}.weight": _strategy(world, DeviceShare(0)) for name in ("embed_tokens", "lm_head")}


def _experts(world: int, hidden_size: int | None, expert_parallel: bool) -> _Rows:
    if expert_parallel:
        return {re.compile(r".*\.experts\.\d+\..*"): None, "*.experts.*": ShardingStrategy.rowwise(world)}
    return {
        "*.experts.gate_up_proj": _strategy(world, StackedExperts(hidden_size, 2)),
        "*.experts.down_proj": _strategy(world, StackedExperts(hidden_size)),
    }
