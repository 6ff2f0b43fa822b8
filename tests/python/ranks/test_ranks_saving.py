"""Saving, and `dcp.load`, by several real processes over gloo, which run ranks_saving_program.py."""

from pathlib import Path

import pytest

from ranks_processes import RANKS, Found, refused_on_all, run, same_on_all

CASES = ["placements", "modules", "refused", "reader", "writer", "writer_groups", "full_disk", "read_back"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The results of four ranks in all cases that all of them survive."""
    folder = tmp_path_factory.mktemp("ranks")
    return run(folder, f"file://{folder}/rendezvous", *CASES, program="ranks_saving")


def test_files_of_every_placement_are_those_of_one_process_byte_for_byte(found: Found) -> None:
    for rank in found["placements"]:
        assert rank["wrong"] == []
        assert rank["files"] > 10


def test_files_of_modules_are_those_of_one_process_byte_for_byte(found: Found) -> None:
    for rank in found["modules"]:
        assert rank["wrong"] == []


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("partial", "tensor 'a': it is placed as P(sum): its values are sums over ranks"),
        ("writer_part", "tensor 'a': ranks write 8 of its 16 elements"),
        ("tied", "save_sharded: tied= is for one process, not for several ranks"),
        ("if_exists", "save_sharded: if_exists= is for one process, not for several ranks"),
        ("alone", "tensor 'a': it is spread over several processes; call save_sharded on all of them"),
    ],
)
def test_what_is_refused_is_the_same_argument_error_on_all(found: Found, case: str, why: str) -> None:
    refused_on_all(found["refused"], case, why)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("names", "has other names, dtypes or shapes of tensors than rank 0"),
        ("shapes", "has other names, dtypes or shapes of tensors than rank 0"),
        ("placements", "has other placements of tensors than rank 0"),
        ("folder", "saves to another folder, with other metadata or other sizes than rank 0"),
        ("size", "saves to another folder, with other metadata or other sizes than rank 0"),
    ],
)
def test_a_rank_that_saves_something_else_is_named_by_all(found: Found, case: str, why: str) -> None:
    error = same_on_all([rank[case] for rank in found["refused"]])
    assert error["rank"] == 2
    assert error["text"].endswith(f"{why}; the folder is unchanged")
    assert all(rank["left"] == [] for rank in found["refused"])


@pytest.mark.parametrize(
    ("case", "rank", "first"),
    [
        ("plain_differs", 2, "0"),
        ("strided_differs", 1, "0 (differing ranks: 1, 3)"),
        ("replica_differs", 3, "0"),
        ("hsdp_differs", 3, "1"),
        ("shards_of_replicas_differ", 3, "2"),
    ],
)
def test_a_tensor_that_differs_between_ranks_is_the_error_of_all_and_nothing_is_written(
    found: Found, case: str, rank: int, first: str
) -> None:
    error = same_on_all([one[case] for one in found["refused"]])
    assert error["rank"] == rank
    assert f"tensor 'b' has other values than on rank {first}, and each rank would write" in error["text"]
    assert error["text"].endswith("the folder is unchanged")
    assert all(one["left"] == [] for one in found["refused"])


def test_a_url_that_nothing_can_be_written_to_is_the_error_of_all(found: Found) -> None:
    error = same_on_all([rank["url"] for rank in found["refused"]])
    assert error["rank"] == 0
    assert "https://example.org/model: nothing can be written there" in error["text"]


def test_what_the_first_rank_cannot_begin_is_the_error_of_all(found: Found) -> None:
    error = same_on_all([rank["is_file"] for rank in found["refused"]])
    assert error["rank"] == 0
    assert "cannot make the folder: File exists" in error["text"]


def test_dcp_load_reads_every_placement_and_each_byte_once(found: Found) -> None:
    for rank in found["reader"]:
        assert rank["wrong"] == []
        assert all(read <= rank["whole"] for read in rank["read"])
    error = same_on_all([rank["differs"] for rank in found["reader"]])
    assert "sees another file than rank 0" in error["text"]


def test_dcp_save_writes_the_files_of_one_process_and_dcp_load_reads_them(found: Found) -> None:
    for rank in found["writer"]:
        assert rank["wrong"] == []
        assert rank["files"] > 10
        assert rank["names"] == ["model.safetensors"]


def test_dcp_save_that_fails_leaves_the_old_files_alone(found: Found) -> None:
    for rank in found["writer"]:
        assert "'step' is not a tensor, and safetensors files have only tensors" in rank["failed"]["step"][0]
        assert len(rank["failed"]["full"]) == RANKS
        for text in rank["failed"]["full"]:
            assert text.startswith("rank 1 (host ")
            assert "No space left on device" in text
            assert text.endswith("; the folder is unchanged")
        assert rank["same"], "the older files, and no others"


def test_dcp_save_of_a_part_of_the_ranks_or_of_stages_of_a_pipeline_is_that_of_one_process(found: Found) -> None:
    assert [rank["wrong"] for rank in found["writer_groups"]] == [[]] * RANKS


def test_dcp_save_names_a_rank_that_writes_to_another_folder(found: Found) -> None:
    for rank in found["writer_groups"]:
        assert len(rank["differs"]) == RANKS
        for text in rank["differs"]:
            assert text.startswith("rank 2 (host ")
            assert "saves to another folder, with other metadata or other sizes than rank 0" in text
        assert rank["left"] == []


def test_what_one_rank_cannot_write_is_the_error_of_all_and_leaves_the_old_files_alone(found: Found) -> None:
    error = same_on_all([rank["failed"] for rank in found["full_disk"]])
    assert error["rank"] == 1
    assert "No space left on device" in error["text"]
    for rank in found["full_disk"]:
        assert rank["same"], "the older files, and no others"
        assert rank["files"] == 5
        assert rank["again"]


def test_what_one_rank_reads_back_changed_is_the_error_of_all_and_leaves_the_old_files_alone(found: Found) -> None:
    error = same_on_all([rank["failed"] for rank in found["read_back"]])
    assert error["rank"] == 1
    assert "model.safetensors: tensor 'rows'" in error["text"]
    assert "when read back" in error["text"]
    assert error["text"].endswith("; the folder is unchanged")
    assert all(rank["same"] and rank["files"] == 1 for rank in found["read_back"])


@pytest.mark.parametrize(("case", "killed"), [("killed_one", 2), ("killed_first", 0)])
def test_a_rank_that_is_killed_is_named_and_leaves_the_old_files_alone(tmp_path: Path, case: str, killed: int) -> None:
    left = [rank for rank in range(RANKS) if rank != killed]
    rendezvous = f"file://{tmp_path}/rendezvous"
    ranks = run(tmp_path, rendezvous, case, ranks=left, program="ranks_saving")[case]
    for rank in ranks:
        assert rank["failed"]["rank"] == killed
        assert "the process is gone" in rank["failed"]["text"]
        assert rank["same"], "the older files, and no others"
        assert rank["failed"]["seconds"] < 5
