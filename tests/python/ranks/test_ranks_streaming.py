"""Streams of several real processes over gloo, which run ranks_streaming_program.py."""

from pathlib import Path

import pytest

from ranks_processes import RANKS, Found, refused_on_all, run, same_on_all

CASES = [
    *("streams", "bounded", "left_together", "left_early", "error_of_the_loop", "cannot_read", "slow_consumer"),
    "refused",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The results of four ranks in all cases that all of them survive."""
    folder = tmp_path_factory.mktemp("ranks")
    return run(folder, f"file://{folder}/rendezvous", *CASES, program="ranks_streaming")


def test_each_rank_gets_its_parts_in_the_order_of_all(found: Found) -> None:
    for rank in found["streams"]:
        assert rank["wrong"] == []
        assert rank["orders"] == found["streams"][0]["orders"]


def test_memory_is_bounded_and_each_byte_read_once(found: Found) -> None:
    for rank in found["bounded"]:
        assert rank["count"] == 32
        assert rank["most"] == 32_000_000
        assert rank["read"] == 32 << 22
        assert rank["peak"] < 56_000_000, "of a file of 134 MB, including torch's own memory for an exchange"


def test_ranks_that_stop_at_the_same_weight_end_well(found: Found) -> None:
    for rank in found["left_together"]:
        assert rank["errors"] == []
        assert rank["then"] == 12


def test_a_rank_that_ends_its_stream_early_is_named_where_others_go_on(found: Found) -> None:
    ranks = found["left_early"]
    assert ranks[1]["kind"] == "nothing"
    error = same_on_all([rank for number, rank in enumerate(ranks) if number != 1])
    assert error["rank"] == 1
    assert error["text"].endswith("has ended the stream after 3 of 12 weights")
    assert all(rank["then"] == 12 for rank in ranks)


def test_an_error_in_the_loop_of_one_rank_is_the_error_of_all(found: Found) -> None:
    ranks = found["error_of_the_loop"]
    assert ranks[1]["kind"] == "ZeroDivisionError"
    error = same_on_all([rank for number, rank in enumerate(ranks) if number != 1])
    assert error["rank"] == 1
    assert "division or modulo by zero" in error["text"] or "division by zero" in error["text"]
    assert all(rank["then"] == 12 for rank in ranks)


def test_what_one_rank_cannot_read_is_the_error_of_all_after_the_same_weights(found: Found) -> None:
    error = same_on_all(found["cannot_read"])
    assert error["rank"] == 1
    assert "[file.truncated]" in error["text"]
    assert {tuple(rank["given"]) for rank in found["cannot_read"]} == {tuple(error["given"])}


def test_a_rank_whose_loop_is_slower_than_the_timeout_is_named(found: Found) -> None:
    error = same_on_all(found["slow_consumer"])
    assert error["rank"] == 3
    assert "has sent nothing for 1 s (is alive, and slower than the others)" in error["text"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("reuse", "stream(group=) has no reuse=: tensors are copies, made as they arrive"),
        ("digests", "stream(group=) has no digests=: tensors are copies, made as they arrive"),
        ("small", "max_memory: 2,000 bytes are too few for 't00', of which 1,024 bytes come to this rank"),
    ],
)
def test_what_is_refused_is_the_same_argument_error_on_all(found: Found, case: str, why: str) -> None:
    refused_on_all(found["refused"], case, why)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("other", "has another max_memory than rank 0"),
        ("names", "sees other weights than rank 0: names, dtypes, shapes or places in the files differ"),
        ("dtype", "asks for other weights, names or dtypes than rank 0"),
    ],
)
def test_a_rank_that_streams_something_else_is_named_by_all(found: Found, case: str, why: str) -> None:
    error = same_on_all([rank[case] for rank in found["refused"]])
    assert error["rank"] == 2
    assert why in error["text"]


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    left = [rank for rank in range(RANKS) if rank != 2]
    rendezvous = f"file://{tmp_path}/rendezvous"
    ranks = run(tmp_path, rendezvous, "killed", ranks=left, program="ranks_streaming")["killed"]
    error = same_on_all(ranks)
    assert error["rank"] == 2
    assert "the process is gone" in error["text"]
    assert max(rank["seconds"] for rank in ranks) < 4
