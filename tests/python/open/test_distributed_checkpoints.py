"""Checkpoints of `torch.distributed.checkpoint`: each tensor equals that of `dcp.load`, and little else is read for it.

Processes over gloo save them: see `dcp_program.py`.
"""

import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import dcp_program
import max_weights
from command_line import run
from max_weights import infos, lazy_state_dict, load_weights
from max_weights.errors import ArgumentError, FormatError, MissingFileError
from max_weights.integrations import WeightsReader
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses
from torch_same import assert_same

RANKS = 4
KINDS = list(dcp_program.KINDS)


def save(folder: Path, ranks: int, *kinds: str) -> None:
    program = Path(dcp_program.__file__)
    arguments = [str(ranks), str(folder / f"meet{ranks}"), *kinds]
    started = [
        subprocess.Popen([sys.executable, str(program), str(folder), str(rank), *arguments]) for rank in range(ranks)
    ]
    assert [process.wait(300) for process in started] == [0] * ranks


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of each kind, made by processes over gloo."""
    folder = tmp_path_factory.mktemp("distributed")
    save(folder, RANKS, *(kind for kind in KINDS if kind != "one_process"), "large", "hugging_face")
    save(folder, 1, "one_process")
    return folder


def loaded_by_torch(folder: Path) -> dict[str, torch.Tensor]:
    reader = dcp.FileSystemReader(folder)
    about = reader.read_metadata().state_dict_metadata
    tensors = {name: info for name, info in about.items() if isinstance(info, TensorStorageMetadata)}
    state = {name: torch.empty(info.size, dtype=info.properties.dtype) for name, info in tensors.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_what_torch_loads(saved: Path, kind: str) -> None:
    theirs = loaded_by_torch(saved / kind)
    weights = load_weights(saved / kind)
    assert [info.name for info in infos(weights)] == list(theirs)
    assert not max_weights.infos(weights).warnings
    assert_same(weights.load(framework="torch"), theirs)
    assert_same(dict(weights.stream(framework="torch")), theirs)
    assert_same({name: weights[name].data().torch() for name in theirs}, theirs)


@pytest.mark.parametrize("kind", ["placements", "fsdp2", "many_files"])
def test_slices_are_those_of_the_whole(saved: Path, kind: str) -> None:
    theirs = loaded_by_torch(saved / kind)
    lazy = lazy_state_dict(load_weights(saved / kind))
    for name, tensor in theirs.items():
        for axis in range(tensor.ndim):
            for rank in range(8):
                begin, end = (tensor.shape[axis] * number // 8 for number in (rank, rank + 1))
                index = (slice(None),) * axis + (slice(begin, end),)
                assert torch.equal(lazy[name][index].view(torch.uint8), tensor[index].contiguous().view(torch.uint8))


def test_a_folder_of_safetensors_files_of_ranks_is_one_checkpoint(saved: Path, tmp_path: Path) -> None:
    folder = saved / "hugging_face"
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in range(1, RANKS + 1)]
    weights = load_weights(folder)
    reader = dcp.HuggingFaceStorageReader(str(folder))
    about = reader.read_metadata().state_dict_metadata
    theirs = {name: torch.empty(info.size, dtype=info.properties.dtype) for name, info in about.items()}  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(theirs, storage_reader=reader, no_dist=True)
    assert_same(dict(sorted(weights.load(framework="torch").items())), dict(sorted(theirs.items())))
    assert torch.equal(weights.load("both", framework="torch")["both"], dcp_program.numbers(9, 11))
    out = tmp_path / "whole.safetensors"
    assert run("convert", folder, out).status == 0
    assert_same(dict(sorted(safetensors.torch.load_file(out).items())), dict(sorted(theirs.items())))
    part = tmp_path / "part"
    shutil.copytree(folder, part)
    (part / names[1]).unlink()
    with refuses(FormatError, "distributed.hole"):
        load_weights(part)


def test_a_folder_without_a_configuration_is_divided_by_strategies_that_need_none(saved: Path, tmp_path: Path) -> None:
    theirs = loaded_by_torch(saved / "large")
    strategies = {"rows": ShardingStrategy.rowwise(2), "columns": ShardingStrategy.columnwise(2)}
    max_weights.reshard(saved / "large", tmp_path / "out", world_size=2, strategies=strategies)
    ranks = [load_weights(tmp_path / "out" / f"rank-{rank}").load(framework="torch") for rank in range(2)]
    for name, axis in (("rows", 0), ("columns", 1)):
        assert torch.equal(torch.cat([rank[name] for rank in ranks], axis), theirs[name])
    message = (
        r"there is no '.*config\.json': put the model's config\.json there, or give .*Table\(.llama., 2, num_heads="
    )
    with pytest.raises(ArgumentError, match=message):
        max_weights.reshard(saved / "large", tmp_path / "auto", world_size=2)
    assert not (tmp_path / "auto").exists()


def test_dcp_load_fills_a_state_dict_by_our_reader(saved: Path) -> None:
    for kind in ("placements", "fsdp2"):
        theirs = loaded_by_torch(saved / kind)
        ours = {name: torch.full_like(tensor, 1) for name, tensor in theirs.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(ours, storage_reader=WeightsReader(saved / kind), no_dist=True)
        assert_same(ours, theirs)


def bytes_read(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return the bytes that this process reads meanwhile, and the result."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    found = work()
    return count() - before, found


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the system does not count what a process reads")
def test_of_one_rank_of_eight_little_more_is_read_than_its_slice_and_of_one_piece_no_other(saved: Path) -> None:
    weights = load_weights(saved / "large")
    lazy = lazy_state_dict(weights)
    expected = loaded_by_torch(saved / "large")
    # Each rank of 8 needs half of each short row of a piece: reads coalesce, so the other half is read too.
    cases = (("rows", 0, 8, 1.05), ("rows", 0, 4, 1.05), ("columns", 1, 4, 1.05), ("columns", 1, 8, 2.1))
    for name, axis, ranks, most in cases:
        strategy = ShardingStrategy.rowwise(ranks) if axis == 0 else ShardingStrategy.columnwise(ranks)
        for rank in (0, 3):
            size = expected[name].shape[axis] // ranks
            index = (slice(None),) * axis + (slice(size * rank, size * (rank + 1)),)
            part, useful = expected[name][index], expected[name].nbytes // ranks
            load = partial(weights.load, name, shard=Shard(rank, ranks, strategy), framework="torch")
            for way, call in {"slice": partial(lazy[name].__getitem__, index), "shard": load}.items():
                read, found = bytes_read(call)
                assert read <= most * useful, (name, ranks, rank, way, read / useful)
                assert torch.equal(found if way == "slice" else found[name], part)


def test_a_checkpoint_is_opened_by_its_folder_its_metadata_or_the_file_of_a_rank(saved: Path) -> None:
    folder = saved / "fsdp2"
    for path in (folder, folder / ".metadata", folder / "__1_0.distcp"):
        assert len(load_weights(path)) == 40


def test_values_that_are_not_tensors_are_listed_and_nothing_is_called_for_them(saved: Path) -> None:
    objects = max_weights.infos(load_weights(saved / "placements")).objects
    assert {name.removeprefix("counters."): value for name, value in objects.items()} == {
        "step": 3,
        "text": "a\nb",
        "none": None,
        "flag": True,
    }
    trained = max_weights.infos(load_weights(saved / "fsdp2")).objects
    assert trained["step"] == 17
    assert trained["note"] == "two words"
    assert "optimizer.param_groups" in " ".join(trained.keys())


def test_a_pickled_tree_opens_the_folder_again(saved: Path) -> None:
    weights = load_weights(saved / "fsdp2")
    again = pickle.loads(pickle.dumps(weights))
    assert_same(again.load(framework="torch"), weights.load(framework="torch"))


def test_conversion_selects_renames_and_casts(saved: Path, tmp_path: Path) -> None:
    theirs = loaded_by_torch(saved / "tensor_parallel_and_fsdp")
    out = tmp_path / "model.safetensors"
    source = str(saved / "tensor_parallel_and_fsdp")
    chosen = ["--select", "model.*", "--rename", "model.=", "--dtype", "bf16"]
    assert run("convert", source, out, *chosen).status == 0
    expected = {name[6:]: tensor.bfloat16() for name, tensor in theirs.items() if name.startswith("model.")}
    assert_same(dict(sorted(safetensors.torch.load_file(out).items())), dict(sorted(expected.items())))
    whole = tmp_path / "whole.safetensors"
    assert run("convert", source, whole).status == 0
    assert_same(dict(sorted(safetensors.torch.load_file(whole).items())), dict(sorted(theirs.items())))
    assert run("diff", source, whole).status == 0


def test_the_command_line_lists_shows_and_validates(saved: Path) -> None:
    folder = str(saved / "fsdp2")
    assert "40 weights" in run("ls", folder).stdout
    assert "optimizer.state.0.down.weight.exp_avg" in run("ls", folder, "--json").stdout
    assert "[16, 44]" in run("show", folder, "model.0.down.weight").stdout
    validated = run("validate", folder)
    assert validated.status == 0, validated.stdout
    assert "clean" in validated.stdout


def test_a_missing_file_of_a_rank_is_named_and_the_rest_is_opened_where_that_is_asked_for(
    saved: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "part"
    shutil.copytree(saved / "pipeline", folder)
    (folder / "__2_0.distcp").unlink()
    with refuses(FormatError, "distributed.missing-file"):
        load_weights(folder)
    weights = load_weights(folder, strict=False)
    assert "distributed.missing-file" in str(max_weights.infos(weights).warnings)
    assert torch.equal(
        weights.load("layers.1.weight", framework="torch")["layers.1.weight"], dcp_program.numbers(5, 4) + 1
    )
    with refuses(MissingFileError, "file.missing"):
        weights["layers.2.weight"].data()
    validated = run("validate", str(folder))
    assert "MW-PT-505" in validated.stdout, validated.stdout


def test_a_file_of_another_save_is_found_by_validation_and_when_it_is_read(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(saved / "fsdp2", folder)
    shutil.copy(saved / "hsdp" / "__1_0.distcp", folder)
    validated = run("validate", str(folder))
    assert validated.status == 3
    assert "MW-PT-502" in validated.stdout, validated.stdout
    with refuses(FormatError, "distributed.item"):
        load_weights(folder, strict=False).load()
