"""Saves to an object store by several processes: real ones, over gloo. What they do is in ranks_store_program.py."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from fault_server import FaultServer
from ranks_processes import RANKS, Found, run, same_on_all


def saved(tmp_path: Path, case: str, *faults: str, ranks: Iterable[int] = range(RANKS)) -> tuple[Found, int]:
    """What these ranks found, and how many uploads the store has that were neither completed nor aborted."""
    folder = tmp_path / "served"
    (folder / "bucket").mkdir(parents=True)
    with FaultServer(folder, "part-too-small", *faults) as server:
        found = run(
            tmp_path,
            f"file://{tmp_path}/rendezvous",
            case,
            ranks=ranks,
            program="ranks_store",
            RANKS_STORE=server.s3,
            RANKS_BUCKET=str(folder),
        )
        for _ in range(100):  # what was under way when a process was killed ends when the server has seen that
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


def test_what_one_rank_cannot_send_is_the_error_of_all_and_leaves_the_old_objects_alone(tmp_path: Path) -> None:
    found, uploads = saved(tmp_path, "store_raised")
    error = same_on_all([rank["failed"] for rank in found["store_raised"]])
    assert error["rank"] == 1
    assert "Input/output error" in error["text"]
    assert error["text"].endswith("; what was in the folder is as it was")
    assert all(rank["same"] and rank["files"] == 3 for rank in found["store_raised"])
    assert uploads == 0


@pytest.mark.parametrize(("case", "killed"), [("store_killed_one", 2), ("store_killed_first", 0)])
def test_a_rank_that_is_killed_is_named_and_its_uploads_are_aborted(tmp_path: Path, case: str, killed: int) -> None:
    found, uploads = saved(tmp_path, case, ranks=[rank for rank in range(RANKS) if rank != killed])
    for rank in found[case]:
        assert rank["failed"]["rank"] == killed
        assert "the process is gone" in rank["failed"]["text"]
        assert rank["same"], "the older objects, and none beside them"
        assert rank["failed"]["seconds"] < 6
    assert uploads == 0
