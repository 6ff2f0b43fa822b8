"""Loading by several real processes over gloo, which run ranks_program.py. The cases of one group of processes run
sequentially, because each start takes seconds.
"""

import socket
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fault_server import FaultServer
from ranks_processes import RANKS, Found, refused_on_all, run, same_on_all

CASES = [
    *("placements", "modules", "packed", "one_process_groups", "refused", "differences", "failure_while_reading"),
    *("interrupt", "absent_rank", "slow_rank", "machines", "shards", "some_ranks_between_all", "verified", "deltas"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The results of four ranks in all cases that all of them survive."""
    folder = tmp_path_factory.mktemp("ranks")
    return run(folder, f"file://{folder}/rendezvous", *CASES)


def test_every_placement_is_as_torch_distributes_it(found: Found) -> None:
    for rank in found["placements"]:
        assert rank["wrong"] == []
        assert rank["compared"] == 24


def test_fsdp_tensor_parallelism_both_hsdp_and_plain_modules_compute_what_the_whole_one_does(found: Found) -> None:
    for rank in found["modules"]:
        assert rank["wrong"] == []


def test_packed_blocks_are_decoded_and_not_cut(found: Found) -> None:
    for rank in found["packed"]:
        assert rank["wrong"] == []
    error = same_on_all([rank["between"] for rank in found["packed"]])
    assert "'a': a tensor of the shape [64, 96] cannot be cut at 24 of axis 1: 32 elements" in error["text"]


def test_a_group_may_have_one_rank(found: Found) -> None:
    assert all(rank["same"] for rank in found["one_process_groups"])


def test_loads_of_all_ranks_and_of_some_follow_each_other(found: Found) -> None:
    assert all(rank["same"] and rank["loads"] for rank in found["some_ranks_between_all"])


def test_deltas_are_applied_to_parts_of_every_placement(found: Found) -> None:
    for rank in found["deltas"]:
        assert rank["wrong"] == []
        assert rank["changed"] == [True, False, True, False, True]
        assert rank["finished"]


@pytest.mark.parametrize(
    ("case", "kind", "why"),
    [
        ("other", "FormatError", "tensor 'rows': "),
        (
            "short",
            "ArgumentError",
            "'rows': the ranks of this group have 180 of its 260 bytes: give the group of all ranks of its mesh",
        ),
        ("partial", "ArgumentError", "'rows': it is placed as P(sum)"),
        ("deltas", "RankError", "has other deltas than rank 0"),
        ("absent", "RankError", "no.safetensors"),
        ("own", "RankError", "tensor 'rows': "),
    ],
)
def test_what_one_rank_refuses_of_a_delta_all_refuse(found: Found, case: str, kind: str, why: str) -> None:
    errors = [rank[case] for rank in found["deltas"]]
    assert len({error["text"] for error in errors}) == 1
    assert why in errors[0]["text"], errors[0]["text"]
    # Each rank raises an error that all ranks detect under its original class.
    assert {error["kind"] for error in errors} == {kind}
    assert all(error["seconds"] < 20 for error in errors)


def test_a_group_without_all_ranks_of_a_mesh_is_named(found: Found) -> None:
    texts = [rank["half"]["text"] for rank in found["deltas"] if rank["half"] is not None]
    assert len(texts) == 2
    assert all("give the group of all ranks of its mesh" in text for text in texts)


def test_each_rank_verifies_its_part_and_all_say_what_one_finds(found: Found) -> None:
    for rank in found["verified"]:
        assert rank["clean"] == []
        assert rank["named"] == []


def test_a_weight_that_one_of_the_ranks_holds_is_used_and_one_that_none_holds_is_unused(found: Found) -> None:
    for rank in found["verified"]:
        assert rank["stages"] == [True, [], 1, RANKS]
        assert rank["unused"] == ["1.weight"]
        assert rank["unfilled"] == [False, ["head"], True]


def test_a_verification_that_fails_on_one_rank_fails_on_all(found: Found) -> None:
    error = same_on_all([rank["raised"] for rank in found["verified"]])
    assert error["rank"] == 2
    assert "'2.weight' is on the meta device" in error["text"]
    assert same_on_all([rank["no_file"] for rank in found["verified"]])["rank"] == 1
    for rank in found["verified"]:
        assert "which changes nothing" in rank["no_effect"]["text"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("partial", "'a': it is placed as P(sum): its values are sums over ranks, which no file has"),
        ("shape", "the file has the shape [4, 4], but the module has [4, 5]"),
        ("name", "'b' (did you mean 'a'?)"),
        ("spread", "spread must be 'auto', 'rank', 'node' or 'world', not 'all'"),
        ("timeout", "rank_timeout must be a number of seconds above 0, not 0"),
    ],
)
def test_what_does_not_fit_is_the_same_argument_error_on_all(found: Found, case: str, why: str) -> None:
    refused_on_all(found["refused"], case, why)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("file", "sees another file than rank 0: file 1 of 1 has 404 bytes there, and 400 on rank 0"),
        ("time", "sees another file than rank 0: file 1 of 1 was changed at another time"),
        ("absent", "nothing.safetensors"),
        ("placements", "has other names, shapes, dtypes or placements of tensors in the module than rank 0"),
        ("spread", "was called with another spread= than rank 0"),
        ("part", "has another plan than rank 0"),
        (
            "torch",
            "has other names, shapes, dtypes or placements of tensors in the module than rank 0 (it has torch 1.0,",
        ),
    ],
)
def test_a_rank_that_sees_something_else_is_named_by_all(found: Found, case: str, why: str) -> None:
    error = same_on_all([rank[case] for rank in found["differences"]])
    assert why in error["text"]
    assert error["text"].startswith("rank 2 (host ")
    assert error["rank"] == 2


def test_what_one_rank_cannot_read_is_the_error_of_all_and_the_group_goes_on(found: Found) -> None:
    error = same_on_all([rank["failed"] for rank in found["failure_while_reading"]])
    assert error["rank"] == 1
    assert error["path"].endswith("copy1.safetensors")
    assert error["host"] == socket.gethostname()
    assert "[file.truncated]" in error["text"]
    assert error["text"].endswith("; the module is unchanged")
    assert all(rank["kept"] and rank["again"] == 12 and rank["same"] for rank in found["failure_while_reading"])
    assert max(rank["failed"]["seconds"] for rank in found["failure_while_reading"]) < 2


def test_ctrl_c_on_one_rank_ends_all(found: Found) -> None:
    ranks = found["interrupt"]
    assert ranks[1]["kind"] == "KeyboardInterrupt"
    error = same_on_all([rank for number, rank in enumerate(ranks) if number != 1])
    assert "rank 1" in error["text"]
    assert "was interrupted (Ctrl-C)" in error["text"]
    assert ranks[0]["seconds"] < 3, "it does not wait for the slow one"
    assert all(rank["kept"] for rank in ranks)


def test_a_rank_that_does_not_call_is_named(found: Found) -> None:
    error = same_on_all(found["absent_rank"])
    assert error["text"] == "rank 3 (host unknown): has not called load_into within 1 s"


def test_a_rank_that_is_slower_than_the_timeout_is_named(found: Found) -> None:
    error = same_on_all(found["slow_rank"])
    assert error["rank"] == 2
    assert "has sent nothing for 1.5 s (is alive, and slower than the others)" in error["text"]


def test_machines_read_for_their_own_ranks_or_for_all(found: Found) -> None:
    for rank in found["machines"]:
        assert rank["wrong"] == []
        assert all(read < rank["size"] for read in rank["read"]), "on each machine, and for both together, once"
    error = same_on_all([rank["failed"] for rank in found["machines"]])
    assert error["rank"] == 1
    assert "division by zero" in error["text"]


def test_shards_of_ranks_are_what_each_would_load_alone(found: Found) -> None:
    for rank in found["shards"]:
        assert rank["wrong"] == []
        assert rank["out"]["text"] == "load(group=) has no copy=: tensors are copies, made as they arrive"
    error = same_on_all([rank["strategies"] for rank in found["shards"]])
    assert error["text"].endswith("has other strategies in its shard than rank 0")
    some = {rank["some"]["text"] for rank in found["shards"]}
    assert some == {"some ranks have a shard, and some have none: give each one its own, or none to all"}


def test_ranks_that_are_stopped_or_killed_are_named_in_time(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    left = run(tmp_path, f"tcp://127.0.0.1:{port}", "stopped_and_killed", ranks=range(1, 2))["stopped_and_killed"][0]
    assert left["stopped"]["rank"] == 3
    assert "gives no sign of life" in left["stopped"]["text"]
    assert left["stopped"]["after"] <= 4, "its timeout is 2 s"
    assert left["killed"]["rank"] == 2
    assert "the process is gone" in left["killed"]["text"]
    assert left["killed"]["after"] <= 2
    assert left["left"] == {"loaded": 12}
    assert left["first"]["rank"] == 0
    assert "the process is gone" in left["first"]["text"]
    assert left["first"]["seconds"] <= 3


def test_each_byte_comes_from_the_store_once_and_a_rank_that_sees_another_object_is_named(tmp_path: Path) -> None:
    """Columns of four ranks; each rank alone would have read whole rows."""
    folder = tmp_path / "files"
    folder.mkdir()
    tensor = (torch.arange(256 * 512, dtype=torch.float64) % 251 - 100).float().reshape(256, 512)
    safetensors.torch.save_file({f"t{number}": tensor.clone() for number in range(8)}, folder / "a.safetensors")
    size = (folder / "a.safetensors").stat().st_size
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes()[:-1] + b"!")
    with FaultServer(folder) as server:
        urls = {"RANKS_URL": server.file("a.safetensors"), "RANKS_OTHER": server.file("b.safetensors")}
        urls["RANKS_COUNTS"] = f"{server.url}/_counts"
        found = run(tmp_path, f"file://{tmp_path}/rendezvous", "traffic", **urls)
        assert all(rank["same"] for rank in found["traffic"])
        error = same_on_all([rank["differs"] for rank in found["traffic"]])
        assert error["text"].startswith("rank 2 ")
        assert "sees another object than rank 0: file 1 of 1 has another ETag or version" in error["text"]
        count = server.counts()["bytes"]
    headers = RANKS * (128 << 10)  # read by each rank to open the file
    assert size <= count <= size + headers, (size, count)
