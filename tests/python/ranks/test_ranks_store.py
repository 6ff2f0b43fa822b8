"""Saves to an object store by several real processes over gloo, which run ranks_store_program.py."""

import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import max_weights
from fault_server import FaultServer
from max_weights.integrations import WeightsReader, WeightsWriter
from max_weights.remote import Remote
from ranks_processes import RANKS, Found, run, same_on_all
from torch_same import assert_same


def saved(
    tmp_path: Path, case: str, *faults: str, ranks: Iterable[int] = range(RANKS), world: int = RANKS
) -> tuple[Found, int]:
    """The results of these ranks, and the number of uploads that were neither completed nor aborted."""
    folder = tmp_path / "served"
    (folder / "bucket").mkdir(parents=True)
    with FaultServer(folder, "part-too-small", *faults) as server:
        found = run(
            tmp_path,
            f"file://{tmp_path}/rendezvous",
            case,
            ranks=ranks,
            program="ranks_store",
            world=world,
            RANKS_STORE=server.s3,
            RANKS_BUCKET=str(folder),
        )
        for _ in range(100):  # requests in flight of a killed process end when the server notices
            if (uploads := server.counts()["open_uploads"]) == 0:
                break
            time.sleep(0.02)
    return found, uploads


def test_objects_of_every_placement_are_the_files_of_one_process_byte_for_byte(tmp_path: Path) -> None:
    found, uploads = saved(tmp_path, "store")
    for rank in found["store"]:
        assert rank["wrong"] == []
        assert rank["path"] == "s3://bucket/saved/model.safetensors"
    assert uploads == 0


def test_what_a_rank_reads_back_changed_is_the_error_of_all(tmp_path: Path) -> None:
    found, uploads = saved(tmp_path, "store_read_back", "corrupt path=00002 method=GET")
    error = same_on_all([rank["failed"] for rank in found["store_read_back"]])
    assert "00002" in error["text"]
    assert "when read back" in error["text"]
    assert uploads == 0


@pytest.mark.parametrize("case", ["store_raised", "store_dcp_raised"])
def test_what_one_rank_cannot_send_is_the_error_of_all_and_leaves_the_old_objects_alone(
    tmp_path: Path, case: str
) -> None:
    found, uploads = saved(tmp_path, case)
    error = same_on_all([rank["failed"] for rank in found[case]])
    assert error["rank"] == 1
    assert "Input/output error" in error["text"]
    assert error["text"].endswith("; the folder is unchanged")
    for rank in found[case]:
        assert rank["same"]
        assert rank["files"] == 3
        assert rank["again"], "the next save is as if nothing had been"
    assert uploads == 0


@pytest.mark.parametrize(
    ("case", "world", "killed"),
    [
        ("store_killed_one", 4, 2),
        ("store_killed_first", 4, 0),
        # With more ranks, some would wait for connections of torch, which do not report failures.
        ("store_dcp_killed_one", 2, 1),
        ("store_dcp_killed_first", 2, 0),
    ],
)
def test_a_rank_that_is_killed_is_named_and_its_uploads_are_aborted(
    tmp_path: Path, case: str, world: int, killed: int
) -> None:
    found, uploads = saved(tmp_path, case, ranks=[rank for rank in range(world) if rank != killed], world=world)
    for rank in found[case]:
        assert rank["failed"]["rank"] == killed
        assert "the process is gone" in rank["failed"]["text"]
        assert rank["same"], "the older objects, and no others"
        assert rank["failed"]["seconds"] < 15, "not only when the 20 s are over for which ranks wait"
    assert uploads == 0


def test_dcp_save_writes_the_objects_of_one_process_and_dcp_load_reads_them(tmp_path: Path) -> None:
    found, uploads = saved(tmp_path, "store_dcp")
    for rank in found["store_dcp"]:
        assert rank["wrong"] == []
        assert rank["files"] == 3
    assert uploads == 0


def test_dcp_save_of_one_process_needs_no_group_and_no_planner_that_leaves_out_what_it_knows(tmp_path: Path) -> None:
    state = {"a": torch.arange(12, dtype=torch.float32).reshape(3, 4), "b": torch.ones(5, dtype=torch.int64)}
    served = tmp_path / "served"
    (served / "bucket").mkdir(parents=True)
    with FaultServer(served) as server:
        remote = Remote(endpoint=server.s3, credentials={"key_id": "AKIDEXAMPLE", "secret": "secret"})
        writer = WeightsWriter("s3://bucket/unused", remote=remote)

        def save(checkpoint: str) -> None:
            with warnings.catch_warnings(action="ignore"):
                planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
                dcp.save(state, storage_writer=writer, checkpoint_id=checkpoint, planner=planner, no_dist=True)

        save("s3://bucket/one")
        with pytest.raises(dcp.CheckpointException, match="WeightsWriter needs whole plans"):
            save("s3://bucket/other")
        again = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        with warnings.catch_warnings(action="ignore"):
            reader = WeightsReader(max_weights.load_weights("s3://bucket/one", remote=remote))
            dcp.load(again, storage_reader=reader, no_dist=True)
        assert server.counts()["open_uploads"] == 0
    assert_same(again, state)
    assert [path.relative_to(served).as_posix() for path in served.rglob("*.*")] == ["bucket/one/model.safetensors"]
    max_weights.save_file(state, tmp_path / "alone.safetensors")
    assert (served / "bucket/one/model.safetensors").read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
