"""Reshard: write a checkpoint as one folder for each rank of tensor parallelism, with that rank's part of each weight.

    max-weights reshard PATH OUT --tp N [--select GLOB] [--rename FROM=TO] [--dtype DTYPE] [--max-shard-size SIZE]
        [--no-sync] [--verify] [--dry-run] [--json]

runs this module. The tables of `max_weights.sharding` define the part of each rank, as for `load(shard=...)`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from max_weights._checkpoints import opened
from max_weights._command_errors import report_error
from max_weights._core import GGUFWeights, check_disjoint, escape, infos, place_file, printable
from max_weights._dtype import DType
from max_weights._html import count, details, paragraph, table, view
from max_weights._hub_folder import names_of, write_hub_files
from max_weights._load_request import LoadRequest
from max_weights._renaming import renamed
from max_weights._saving import save
from max_weights._selection import selected
from max_weights._threads import threads_of_call
from max_weights.conversion._view import converted
from max_weights.errors import ArgumentError, WeightsError
from max_weights.sharding._by_name import Shard, ShardBox, Strategies, parts_of_rank, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from max_weights._checkpoints import Checkpoint
    from max_weights._load_request import DTypeOption, Rename, ResolvedRequest
    from max_weights._progress import Progress
    from max_weights._selection import Select
    from max_weights._weights import WeightInfo, WeightsNode

__all__ = ["ReshardPlan", "reshard"]

SCHEMA = "max-weights.reshard/1"
StrPath = str | os.PathLike[str]

# Files that are copied to each rank: all that match in the folder of the checkpoint. If a single file was given, only
# those that are known to belong to a model.
_COMPANIONS = tuple(f"*.{suffix}" for suffix in ("json", "txt", "model", "jinja", "tiktoken", "py", "md"))
_KNOWN = (
    "*config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template.*", "tekken.json",
)  # fmt: skip
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_NOT_COPIED = (".*", "*.index.json", *(f"*{suffix}" for suffix in _WEIGHTS))
# A larger file is none of these.
_MAX_COPIED = 256 << 20
# An error names this many weights and reasons.
_NAMED = 5
_UNPACK = ", which safetensors files cannot hold: set dtype (--dtype bfloat16) to decode them"


Split = tuple[tuple[int, ...], int | None, tuple[int, ...]]
"""The shape of a whole weight, the axis that it is split along (`None`: each rank has the whole), its sizes there."""


@dataclass(frozen=True)
class ReshardPlan:
    """What `reshard` writes."""

    folders: tuple[Path, ...]
    """The folder of each rank."""
    bytes: tuple[int, ...]
    """The number of bytes of the tensors of each rank."""
    weights: Mapping[str, Split]
    """{name: (shape, axis, sizes)} in the order of the files: the shape of the whole weight, the axis that it is split
    along (`None` if each rank has the whole), and the size of that axis on each rank."""
    copied: tuple[str, ...]
    """The files copied to each rank; for a GGUF file, transformers generates them from the metadata."""

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON data.

        Returns:
            What `max-weights reshard --json` prints.

        Example:
            >>> strategies = {"model.embed_tokens": None}
            >>> max_weights.reshard(weights, "ranks", 2, strategies=strategies, plan_only=True).as_json()["tp"]
            2
        """
        ranks = [
            {"rank": rank, "folder": os.fspath(folder), "tensors": len(self.weights), "bytes": size}
            for rank, (folder, size) in enumerate(zip(self.folders, self.bytes, strict=True))
        ]
        weights = [
            {"name": name, "shape": list(shape), "axis": axis, "sizes": list(sizes)}
            for name, (shape, axis, sizes) in self.weights.items()
        ]
        return {"schema": SCHEMA, "tp": len(ranks), "ranks": ranks, "weights": weights, "copied": list(self.copied)}

    def _kinds(self) -> list[tuple[tuple[str, str], int]]:
        """Return how each kind of weight is split, by names with `*` for numbers, and how many weights it has."""
        return sorted(Counter((_how(split), _kind(name)) for name, split in self.weights.items()).items())

    def _repr_html_(self) -> str:
        columns = ("rank", "tensors", "bytes", "folder")
        ranks = [
            (rank, len(self.weights), size, folder)
            for rank, (folder, size) in enumerate(zip(self.folders, self.bytes, strict=True))
        ]
        kinds = [(name, times, how) for (how, name), times in self._kinds()]
        parts = [
            table(columns, ranks, total=len(ranks), numbers=columns[:3], code=("folder",)),
            details(
                "weights", "", table(("name", "weights", "part of a rank"), kinds, numbers=("weights",), code=("name",))
            ),
        ]
        if self.copied:
            parts.append(paragraph(f"files copied to each rank: {', '.join(self.copied)}"))
        return view("ReshardPlan", f"{count(len(self.weights), 'weight')} for {count(len(ranks), 'rank')}", *parts)

    def __str__(self) -> str:
        """Return the plan in readable form: weights whose names differ only in numbers share one line."""
        lines = [
            f"rank {rank}: {len(self.weights)} tensors, {size:,} bytes -> {printable(folder)}"
            for rank, (folder, size) in enumerate(zip(self.folders, self.bytes, strict=True))
        ]
        before = None
        for (how, name), times in self._kinds():
            if how != before:
                lines.append(f"{how}:")
                before = how
            lines.append(f"  {escape(name)}" + (f" ({times})" if times > 1 else ""))
        if self.copied:
            lines.append(f"files copied to each rank: {', '.join(map(printable, self.copied))}")
        return "\n".join(lines)


def _kind(name: str) -> str:
    """Return a name without the numbers of layers and experts."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _how(split: Split) -> str:
    shape, axis, sizes = split
    if axis is None:
        return "whole on each rank"
    is_shared = sum(sizes) > shape[axis]  # as when there are fewer key heads than ranks
    return f"cut along axis {axis}" + (", neighbouring ranks have the same part" if is_shared else "")


def reshard(
    checkpoint: Checkpoint,
    path: StrPath,
    world_size: int,
    *,
    strategies: Strategies = "auto",
    select: Select | None = None,
    rename: Rename | str | None = None,
    dtype: DTypeOption | None = None,
    max_shard_size: int | str = "5GB",
    sync: bool = True,
    read_back: bool = False,
    progress: Progress | bool | None = None,
    threads: int | None = None,
    plan_only: bool = False,
) -> ReshardPlan:
    """Write `rank-0`, `rank-1` …: each a folder that `load_weights` opens, with what `load(shard=...)` gives.

    The metadata of each file has `tensor_parallel_rank` and `tensor_parallel_size`. The configuration, which is that of
    the whole model, and the tokenizer are copied to each folder if the files are on this machine. Weights of GGUF files
    get Hugging Face's names, which the tables use; transformers generates the other files from the metadata.

    Args:
        checkpoint: A tree, or anything that `load_weights` opens.
        path: The folder that gets the folders of the ranks; it is created if it does not exist.
        world_size: The number of ranks.
        strategies: How weights are split, as for `load(shard=Shard(rank, world_size, strategies))`. "auto" uses the
            table of the model that the configuration names.
        select: Which weights, as for `save`; for a training checkpoint, `"model.*"` omits the optimizer.
        rename: New names, as for `save`; or a layout, such as `"transformers5"` or `"vllm"`. A table of strategies uses
            the names before a mapping, and those of a layout.
        dtype: As for `save`.
        max_shard_size: As for `save`.
        sync: As for `save`.
        read_back: As for `save`, of the files of weights.
        progress: As for `save`, for each rank separately.
        threads: As for `save`.
        plan_only: Read headers only, and write nothing.

    Returns:
        What was written, or would be.

    Raises:
        ArgumentError: an invalid number of ranks, an incomplete set of shards, an unknown table or one that needs a
            configuration, or weights that cannot be divided, which the message names (a ValueError). Then nothing has
            been written.
        UnsupportedError: a GGUF file that cannot become a Hugging Face checkpoint.
        ImportError: gguf-py or transformers is missing, for a GGUF file.
        OSError: a system error. The ranks that have been written are complete.

    Example:
        >>> plan = max_weights.reshard(weights, "ranks", 2, strategies={"model.embed_tokens": None})
        >>> plan.weights["model.norm.weight"], plan.folders[1].name
        (((8,), None, ()), 'rank-1')
    """
    with opened(checkpoint, "reshard") as node, threads_of_call(threads):
        requested = LoadRequest(select, rename, dtype)
        node, requested, plan, extra = _plan(node, checkpoint, Path(path), world_size, strategies, requested)
        if plan_only:
            return plan
        extra = _generated_files(node, plan.folders[0], dtype, sync) if extra is None else extra
        for rank, folder in enumerate(plan.folders):
            folder.mkdir(parents=True, exist_ok=True)
            save(
                node,
                folder,
                {"tensor_parallel_rank": str(rank), "tensor_parallel_size": str(world_size)},
                dtype=dtype,
                select=requested.select,
                rename=requested.rename,
                shard=Shard(rank, world_size, strategies),
                max_shard_size=max_shard_size,
                sync=sync,
                read_back=read_back,
                progress=progress,
            )
            for file in extra:
                if file.parent == folder or (isinstance(dtype, str | DType) and file.name in _QUANTIZATION):
                    continue
                content = file.read_bytes()
                if file.name == "config.json":
                    content = _of_dtype(content, dtype)
                place_file(folder / file.name, content, sync=sync)
        return plan


def _generated_files(node: WeightsNode, folder: Path, dtype: DTypeOption | None, sync: bool) -> list[Path]:
    """Generate the files that come from the metadata of a GGUF file, for the first rank, before anything is written."""
    first = next(info.file for info in infos(node))
    kind = dtype if isinstance(dtype, str | DType) else None
    return [folder / name for name in write_hub_files(first, folder, kind, sync=sync)["files"]]


def _plan(
    node: WeightsNode,
    checkpoint: Checkpoint,
    folder: Path,
    world_size: int,
    strategies: Strategies,
    requested: LoadRequest,
) -> tuple[WeightsNode, LoadRequest, ReshardPlan, list[Path] | None]:
    """Return the tree to split, the request, the plan, and files to copy, or `None` if they have to be generated."""
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ArgumentError(
            f"world_size must be the number of ranks, at least 1, not {world_size!r}", rule="argument.number"
        )
    read = {info.file for info in infos(node)}
    if isinstance(checkpoint, str | os.PathLike):
        read.add(os.fspath(checkpoint))
    folders = [folder / f"rank-{rank}" for rank in range(world_size)]
    check_disjoint(folders, [file for file in read if os.path.exists(file)])
    old = sorted(one.name for one in folder.glob("rank-*") if one.name.removeprefix("rank-").isdecimal())
    old = [name for name in old if int(name.removeprefix("rank-")) >= world_size]
    if old:
        raise ArgumentError(
            f"{printable(folder)} has {printable(old[0])} of a checkpoint for more ranks; remove it, or choose another "
            "folder",
            rule="argument.path",
        )
    alone = next((text for text in infos(node).warnings if "[checkpoint.shards-alone]" in text), None)
    if alone is not None:
        raise ArgumentError(f"the ranks would get an incomplete model: {alone}", rule="argument.path")
    extra = None
    if isinstance(node, GGUFWeights):
        names_of(node)  # refuses a file that renaming does not make a checkpoint
        node = renamed(node, "hf")
    else:
        extra = _companions(node, checkpoint)
    if isinstance(requested.rename, str):
        node, requested = _in_layout(node, requested.rename, requested)
    requests: list[ResolvedRequest] = []
    for rank in range(world_size):
        try:
            requests.append(replace(requested, shard=Shard(rank, world_size, strategies)).resolve(node, unpack=_UNPACK))
        except ArgumentError as error:
            chosen = replace(requested, dtype=None, packed="keep").resolve(node).infos
            raise _all_of(node, chosen, Shard(rank, world_size, strategies), error) from error
    sizes = [sum(map(_bytes_of, one.infos, one.dtypes, one.parts)) for one in requests]
    copied = () if extra is None else tuple(file.name for file in extra)
    return node, requested, ReshardPlan(tuple(folders), tuple(sizes), dict(_splits(requests)), copied), extra


def _in_layout(node: WeightsNode, layout: str, requested: LoadRequest) -> tuple[WeightsNode, LoadRequest]:
    """Return the weights that are asked for, by their names in the files, in the layout of a library."""
    if requested.select is None or isinstance(node, GGUFWeights):
        return renamed(node, layout), replace(requested, rename=None)
    names = [info.name for info in infos(node)]
    others = set(names) - set(selected(names, requested.select))
    return converted(node, layout, None, others), replace(
        requested, rename=None, select=lambda name: name not in others
    )


def _all_of(node: WeightsNode, chosen: Sequence[WeightInfo], shard: Shard, error: ArgumentError) -> ArgumentError:
    """Return one error for all kinds of weights that cannot be divided, if the error is about a weight."""
    kinds = {_kind(info.name): info for info in reversed(chosen)}
    names_by_reason: dict[str, list[str]] = {}
    for info in reversed(kinds.values()):
        try:
            parts_of_rank(node, [info], shard)
        except ArgumentError as one:
            if one.tensor is None:  # the error is not about a weight
                return error
            names_by_reason.setdefault(_reason(one), []).append(f"'{escape(info.name)}'")
    number = sum(map(len, names_by_reason.values()))
    if number < 2:
        return error
    reasons = [
        f"{reason} ({', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''})"
        for reason, names in names_by_reason.items()
    ]
    more = f"; and {len(reasons) - _NAMED} more reasons" if len(reasons) > _NAMED else ""
    return ArgumentError(
        f"{number} kinds of weights cannot be divided among {shard.world_size} ranks: "
        f"{'; '.join(reasons[:_NAMED])}{more}",
        rule="argument.strategy",
    )


def _reason(error: ArgumentError) -> str:
    """Return why a weight cannot be divided, without its name, so that weights with one reason are grouped."""
    text = re.sub(r".* cannot be sharded as .*\): ", "", str(error))
    text = re.sub(r"^weight '.*?' of shape \[.*?\] (?=is|belongs)", "", text).partition(". Your own rows come first")[0]
    if text.startswith("is "):
        return f"no {text.removeprefix('is not a ')}: leave them out with select, or give them rows in strategies"
    return text


def _bytes_of(info: WeightInfo, dtype: DType | None, part: ShardBox | None) -> int:
    if part is not None and len(part) > 1:
        raise ArgumentError(
            f"weight '{escape(info.name)}' is cut along several axes, but the files of ranks have parts cut along one "
            "axis; save each rank's part with weights.save(shard=)",
            rule="argument.strategy",
        )
    whole, elements = math.prod(info.logical_shape), math.prod(shape_of(part, info.logical_shape))
    if dtype is None:
        return info.bytes * elements // max(1, whole)
    return (elements * dtype.size_in_bits + 7) // 8


def _splits(ranks: list[ResolvedRequest]) -> Iterable[tuple[str, Split]]:
    first = ranks[0]
    for name, info, *parts in zip(first.new_names, first.infos, *(request.parts for request in ranks), strict=True):
        axis = next((part[0][0] for part in parts if part is not None), None)
        whole = info.logical_shape
        yield name, (tuple(whole), axis, () if axis is None else tuple(shape_of(part, whole)[axis] for part in parts))


def _companions(node: WeightsNode, checkpoint: Checkpoint) -> list[Path]:
    """Return the model's files in the folder of its weights; none if that is on another machine."""
    files = [Path(file) for file in dict.fromkeys(info.file for info in infos(node)) if os.path.isfile(file)]
    if not files:
        return []
    folders = dict.fromkeys(file.parent for file in files)  # a delta may be in another folder than its base
    there = sorted(next((one for one in folders if (one / "config.json").is_file()), files[0].parent).iterdir())
    if isinstance(checkpoint, str | os.PathLike):
        alone = os.path.isfile(checkpoint) and not os.fspath(checkpoint).endswith(".index.json")
    else:
        alone = any(file.suffix in _WEIGHTS and file not in files for file in there)
    to_copy = _KNOWN if alone else _COMPANIONS

    def fits(name: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return [
        file
        for file in there
        if fits(file.name, to_copy)
        and not fits(file.name, _NOT_COPIED)
        and file.is_file()
        and file.stat().st_size <= _MAX_COPIED
    ]


# Files that only describe the quantization.
_QUANTIZATION = ("quantize_config.json", "hf_quant_config.json")


def _of_dtype(content: bytes, dtype: object) -> bytes:
    """Return a configuration with the new dtype of converted weights; anything but a JSON object stays unchanged."""
    if not isinstance(dtype, str | DType):
        return content
    try:
        config = json.loads(content)
    except ValueError:
        return content
    if not isinstance(config, dict):
        return content
    for settings in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(settings, dict):  # with a dtype, quantized weights have been decoded
            settings.pop("quantization_config", None)
            settings.pop("compression_config", None)
        for key in ("dtype", "torch_dtype"):
            if isinstance(settings, dict) and key in settings:
                settings[key] = DType(dtype).name
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _rename(given: list[str]) -> dict[str, str] | str | None:
    """Parse the `--rename` options: one layout, or pairs of names."""
    pairs = dict(one.partition("=")[::2] for one in given if "=" in one)
    layouts = [one for one in given if "=" not in one]
    if len(layouts) + bool(pairs) > 1:
        raise ArgumentError(
            f"--rename: {escape(layouts[0])} is a layout, and allows no other; convert takes more",
            rule="argument.conflict",
        )
    return layouts[0] if layouts else pairs or None


class _Ended(BaseException):
    """A signal that ends the process."""


def _end(number: int, _frame: object) -> None:
    raise _Ended(number)


def main() -> int:
    """Run the command, or print its plan, and return the exit status."""
    parser = argparse.ArgumentParser("max-weights reshard", allow_abbrev=False)
    parser.add_argument("checkpoint")
    parser.add_argument("path")
    parser.add_argument("--tp", dest="world_size", type=int, required=True)
    parser.add_argument("--table", dest="strategies", default="auto")
    parser.add_argument("--select", action="append")
    parser.add_argument("--rename", action="append", default=[])
    parser.add_argument("--dtype")
    parser.add_argument("--max-shard-size", default="5GB", type=lambda text: int(text) if text.isdecimal() else text)
    parser.add_argument("--no-sync", dest="sync", action="store_false")
    parser.add_argument("--verify", dest="read_back", action="store_true")
    parser.add_argument("--dry-run", dest="plan_only", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        options["rename"] = _rename(options["rename"])
        plan = reshard(**options, progress=sys.stderr.isatty() and not options["plan_only"])
    except (ImportError, WeightsError, ValueError, OSError) as error:
        return report_error(error, as_json=as_json)
    except KeyboardInterrupt:
        return 130
    except _Ended as ended:  # temporary files have been removed
        (number,) = ended.args
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    try:
        print(json.dumps(plan.as_json()) if as_json else plan, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when huggingface_hub is imported
    sys.exit(main())
