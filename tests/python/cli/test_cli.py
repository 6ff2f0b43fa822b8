"""The command line: `ls` on the real file and on small ones, exit statuses, and what reaches a pipe or a terminal."""

import csv
import io
import json
import os
import pty
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import max_weights
from command_line import COMMAND, environment, listed, rows, run
from conftest import safetensors_bytes

Make = Callable[..., Path]
HOSTILE = "a\x1b[31m\n\r\x07\u202e\u2028b"


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.split("\n\n")[0].splitlines()]


@pytest.fixture
def minilm(models: Path) -> Path:
    return models / "minilm.safetensors"


@pytest.fixture
def layers(make_file: Make) -> Path:
    tensors = {f"layers.{i}.w": np.full((2, 3), i, np.float32) for i in range(12)}
    return make_file({**tensors, "ids": np.arange(5, dtype=np.int64)})


# --- ls --------------------------------------------------------------------------------------------------------------


def test_ls_prints_the_tree_that_str_gives_and_the_totals(minilm: Path) -> None:
    shown, _, summary = listed("ls", minilm).partition("\n\n")
    assert shown == str(max_weights.load_weights(minilm)).split("\n", 1)[1]
    assert summary.splitlines() == [
        "104 weights, 90.9 MB, in 1 file",
        "  float32    90.9 MB  103 weights",
        "  int64       4.1 kB  1 weight",
    ]


def test_ls_folds_alike_layers_unless_told_not_to(layers: Path) -> None:
    assert "0–11 (12 alike)" in listed("ls", layers)
    unfolded = listed("ls", "--no-fold", layers)
    assert "alike" not in unfolded
    assert unfolded.count("float32  [2, 3]") == 12


def test_ls_lines_cut_the_tree_and_the_table(layers: Path) -> None:
    tree = listed("ls", layers, "--no-fold", "--lines", "4").split("\n\n")[0].splitlines()
    assert len(tree) == 5
    assert tree[-1].startswith("… ")
    table = listed("ls", layers, "--flat", "--lines", "4").split("\n\n")[0].splitlines()
    assert len(table) == 6, "heads, four weights, what was left out"
    assert table[-1] == "… 9 more weights"


def test_ls_flat_gives_what_infos_gives(minilm: Path) -> None:
    heads, *rows = columns(listed("ls", "--flat", minilm))
    assert heads == ["name", "dtype", "shape", "bytes", "offset", "aligned"]
    expected = [
        [
            info.name,
            info.dtype.name,
            str(list(info.shape)).replace(" ", ""),
            str(info.bytes),
            str(info.offset),
            "yes" if info.aligned else "no",
        ]
        for info in max_weights.infos(max_weights.load_weights(minilm))
        if isinstance(info.dtype, max_weights.DType)
    ]
    assert len(expected) == 104
    assert rows == expected


def test_ls_json_equals_infos(minilm: Path) -> None:
    text = listed("ls", "--json", minilm)
    weights = max_weights.load_weights(minilm)
    listing = json.loads(text)
    assert list(listing) == ["schema", "files", "metadata", "warnings", "totals", "dtypes", "weights"]
    assert listing["schema"] == "max-weights.ls/1"
    assert listing["files"] == [str(minilm)]
    assert listing["metadata"] == weights.metadata == {"format": "pt"}
    assert listing["warnings"] == []
    assert listing["totals"] == {"weights": 104, "bytes": sum(info.bytes for info in max_weights.infos(weights))}
    assert listing["dtypes"]["int64"] == {"weights": 1, "bytes": 4096}
    names = ["name", "dtype", "shape", "bytes", "file", "offset", "aligned"]
    expected = [
        dict(zip(names, (name, dtype.name, list(shape), *rest), strict=True))
        for name, dtype, shape, *rest in max_weights.infos(weights)
    ]
    assert listing["weights"] == expected
    assert sum(line.startswith('{"name"') for line in text.splitlines()) == 104, "one weight a line"


def test_ls_json_of_a_file_without_weights_is_json(make_file: Make) -> None:
    listing = json.loads(listed("ls", "--json", make_file({})))
    assert listing["weights"] == []
    assert listing["totals"] == {"weights": 0, "bytes": 0}
    assert "0 weights, 0 B, in 1 file" in listed("ls", make_file({}))


def test_ls_filters_by_whole_names_and_adds_filters_up(minilm: Path) -> None:
    one = listed("ls", minilm, "--filter", "encoder.layer.?.attention.self.query.bias")
    assert len(columns(one)) == 1 + 6
    assert "6 of 104 weights" in one
    two = json.loads(listed("ls", "--json", minilm, "--filter", "pooler.*", "--filter", "*position_ids"))
    assert {weight["name"] for weight in two["weights"]} == {
        "pooler.dense.bias",
        "pooler.dense.weight",
        "embeddings.position_ids",
    }
    assert two["totals"]["weights"] == 3
    assert set(two["dtypes"]) == {"float32", "int64"}
    refused = run("ls", minilm, "--filter", "query")
    assert refused.status == 2
    assert "--filter query: no name matches" in refused.stderr, "a part of a name is no match"


def test_ls_takes_the_files_of_one_checkpoint(make_file: Make) -> None:
    first = make_file({"a": np.zeros(3, np.float32)}, "first.safetensors")
    second = make_file({"b": np.zeros(2, np.float16)}, "second.safetensors")
    table = listed("ls", "--flat", first, second)
    assert [row[-1] for row in columns(table)] == ["file", str(first), str(second)]
    assert "2 weights, 16 B, in 2 files" in table
    listing = json.loads(listed("ls", "--json", first, second))
    assert listing["files"] == [str(first), str(second)]
    assert [weight["file"] for weight in listing["weights"]] == [str(first), str(second)]


def test_ls_json_lines_and_csv_have_the_weights_of_the_json(make_file: Make) -> None:
    tensors = {"a.w": np.zeros((2, 3), np.float32), 'quote " comma ,': np.zeros(2, np.int64), "scalar": np.float32(1)}
    path = make_file({name: np.asarray(value) for name, value in tensors.items()})
    weights = json.loads(listed("ls", "--json", path))["weights"]
    assert [json.loads(line) for line in listed("ls", "--format", "jsonl", path).splitlines()] == weights
    found = list(csv.DictReader(io.StringIO(listed("ls", "--format", "csv", path))))
    assert [list(row) for row in found] == [list(weight) for weight in weights], "columns have the names of the keys"
    for row, weight in zip(found, weights, strict=True):
        assert row["shape"] == "x".join(map(str, weight["shape"]))
        assert row["aligned"] == ("true" if weight["aligned"] else "false")
        assert [row["name"], row["dtype"], row["file"]] == [weight["name"], weight["dtype"], weight["file"]]
        assert [int(row["bytes"]), int(row["offset"])] == [weight["bytes"], weight["offset"]]


def test_ls_says_how_many_bytes_each_rank_has_and_whether_they_fit(make_file: Make) -> None:
    # 48 elements of matrices, 4 of a vector; two experts of 8 elements each.
    expert = np.zeros((2, 4), np.float32)
    tensors = {"up": np.zeros((8, 6), np.float32), "norm": np.zeros(4, np.float32), "ids": np.zeros(3, np.int64)}
    path = make_file({**tensors, "experts.0.w": expert, "experts.1.w": expert})
    ranks = json.loads(listed("ls", path, "--json", "--as", "bf16", "--tp", "2", "--ep", "2"))
    assert ranks["schema"] == "max-weights.ranks/1"
    assert (ranks["dtype"], ranks["tensor_parallel"], ranks["expert_parallel"]) == ("bfloat16", 2, 2)
    assert ranks["divided"] == {"weights": 1, "bytes": 48 * 2 // 2}
    assert ranks["whole"] == {"weights": 2, "bytes": 4 * 2 + 3 * 8}
    assert ranks["experts"] == {"weights": 1, "bytes": 8 * 2 // 2}
    assert ranks["bytes"] == 48 + 32 + 8
    assert "88 B on each rank of 2 × 2" in listed("ls", path, "--as", "bf16", "--tp", "2", "--ep", "2")
    assert "fits into 88 B" in listed("ls", path, "--as", "bf16", "--tp", "2", "--ep", "2", "--memory", "88")
    small = run("ls", path, "--as", "bf16", "--tp", "2", "--ep", "2", "--memory", "80B")
    assert (small.status, small.stderr) == (1, "")
    assert "does not fit into 80 B: 8 B are missing" in small.stdout
    unknown = run("ls", path, "--as", "float17")
    assert unknown.status == 2
    assert "float17" in unknown.stderr
    assert "bfloat16" in unknown.stderr, "which there are"


def test_a_file_without_a_command_is_listed(minilm: Path, layers: Path, tmp_path: Path) -> None:
    assert listed(minilm) == listed("ls", minilm)
    assert listed(layers, "--flat") == listed("ls", "--flat", layers)
    missing = run(tmp_path / "missing.safetensors")
    assert missing.status == 3
    assert "no such file" in missing.stderr


def test_both_commands_take_a_directory_and_a_model_of_the_cache(
    make_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_file({"w": np.ones(3, np.float32)})
    model, commit = file.parent / "hub" / "models--org--tiny", "0" * 40
    (model / "snapshots").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    folder = model / "snapshots" / commit
    folder.mkdir()
    file.rename(folder / file.name)
    monkeypatch.setenv("HF_HUB_CACHE", str(file.parent / "hub"))
    for checkpoint in (folder, "org/tiny", "org/tiny@main"):
        assert json.loads(listed("ls", "--json", checkpoint))["totals"] == {"weights": 1, "bytes": 12}
        assert rows(listed("show", checkpoint, "w"))["max"] == "1"
    missing = run("ls", "org/other")
    assert missing.status == 3
    assert "hf download org/other" in missing.stderr
    assert missing.stderr.count("\n") == 1


def test_ls_shows_the_name_of_a_dtype_that_is_not_known(make_file: Make) -> None:
    path = make_file({"w": ("I3", [8], bytes(3))})
    assert columns(listed("ls", "--flat", path))[1][:2] == ["w", "I3"]
    assert json.loads(listed("ls", "--json", path))["weights"][0]["dtype"] == "I3"


def test_ls_prints_warnings_beside_the_listing(make_file: Make) -> None:
    path = make_file({"": np.zeros(1, np.float32), "w": np.zeros(1, np.float32)})
    refused = run("ls", path)
    assert refused.status == 3
    assert "safetensors." in refused.stderr
    accepted = run("ls", "--no-strict", path)
    assert accepted.status == 0
    expected = max_weights.infos(max_weights.load_weights(path, strict=False)).warnings
    assert len(expected) == 1
    assert accepted.stderr == f"warning: {expected[0]}\n"
    assert "2 weights" in accepted.stdout
    in_json = run("ls", "--no-strict", "--json", path)
    (warning,) = json.loads(in_json.stdout)["warnings"]
    assert warning["message"] == expected[0]
    assert warning["kind"] == "safetensors.name-empty"
    assert (warning["file"], warning["tensor"], warning["offset"]) == (str(path), "", 9)
    assert warning["cause"] in expected[0]
    advice = warning["help"]
    assert advice[0].upper() + advice[1:] in expected[0]
    assert in_json.stderr == ""


# --- errors, pipes, hostile names ------------------------------------------------------------------------------------


def test_a_name_that_is_not_there_gets_near_names_and_status_3(minilm: Path) -> None:
    result = run("show", minilm, "pooler.dense.wieght")
    assert result.status == 3
    assert result.stdout == ""
    assert "did you mean 'pooler.dense.weight'" in result.stderr
    assert result.stderr.count("\n") == 1
    in_json = run("show", minilm, "pooler.dense.wieght", "--json")
    error = json.loads(in_json.stdout)["error"]
    assert (in_json.status, error["kind"], error["tensor"]) == (3, "not_found", "pooler.dense.wieght")
    assert error["near"] == ["pooler.dense.weight"]


@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["show"]])
@pytest.mark.parametrize("case", ["missing", "damaged", "html"])
def test_a_checkpoint_error_is_one_line_and_status_3(tmp_path: Path, command: list[str], case: str) -> None:
    path = tmp_path / "model.safetensors"
    if case != "missing":
        path.write_bytes(b"<!DOCTYPE html><html></html>" if case == "html" else b"\xff" * 64)
    done = run(*command, path, *(["w"] if command == ["show"] else []))
    assert done.status == 3
    if "--json" in command:
        found = json.loads(done.stdout)
        assert (found["schema"], found["error"]["file"]) == ("max-weights.error/1", str(path))
        assert done.stderr == f"max-weights: {found['error']['message']}\n"
    else:
        assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"max-weights: {path}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", "--no-such-option", "x"],
        ["ls", "--json", "--flat", "x"],
        ["ls", "--lines", "0", "x"],
        ["show"],
        ["show", "x", "w", "--bins", "-1"],
        ["show", "x", "w", "--bins", "201"],
        ["ls", "--format", "xml", "x"],
        ["ls", "--tp", "0", "x"],
        ["ls", "--memory", "lots", "x"],
        ["ls", "--color", "sometimes", "x"],
        ["bench", "x", "--seconds", "0"],
        ["no-such-command"],
        [],
    ],
)
def test_a_wrong_command_line_is_status_2_and_says_where_help_is(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.status, result.stdout) == (2, "")
    assert "--help" in result.stderr
    assert "__main__" not in result.stderr, "this is no name of the program"


def test_a_value_that_is_refused_is_refused_with_the_reason() -> None:
    assert "0 is not in 1.." in run("ls", "--lines", "0", "x").stderr
    assert "a size such as 80GB" in run("ls", "--memory", "lots", "x").stderr
    assert "at least 1" in run("bench", "x", "--seconds", "0.5").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "--lines", "3"],
        ["--format", "csv", "--tp", "2"],
        ["--format", "tree", "--filter", "*"],
        ["--filter", "[a"],
    ],
)
def test_options_that_do_not_go_together_are_status_2(layers: Path, arguments: list[str]) -> None:
    result = run("ls", layers, *arguments)
    assert result.status == 2
    assert result.stderr.startswith("max-weights: ")
    if "--json" in arguments:
        assert json.loads(result.stdout)["error"] == {"kind": "usage", "message": result.stderr[13:-1]}


def test_control_characters_of_names_never_reach_the_terminal(make_file: Make) -> None:
    path = make_file({HOSTILE: np.ones(2, np.float32), "layers.w": np.ones(1, np.float32)}, metadata={HOSTILE: HOSTILE})
    shown = [
        listed("ls", path),
        listed("ls", "--flat", path),
        listed("ls", "--json", path),
        listed("ls", "--format", "jsonl", path),
        listed("show", path, "--json"),
        listed("show", path, HOSTILE),
        run("show", path, HOSTILE + "x").stderr,
    ]
    for text in shown:
        assert all(c.isprintable() for line in text.split("\n") for c in line), repr(text)
    assert json.loads(shown[2])["weights"][0]["name"] == HOSTILE
    assert HOSTILE in listed("ls", "--format", "csv", path), "CSV has no escapes, and goes to programs"
    assert json.loads(shown[2])["metadata"] == {HOSTILE: HOSTILE}


def test_names_are_no_markup(make_file: Make) -> None:
    name = "[red]w[/red]:smile:"
    path = make_file({name: np.ones(1, np.float32)})
    for arguments in (["ls", path], ["ls", "--flat", path], ["show", path, name]):
        assert name in listed(*arguments)


def test_a_huge_name_widens_no_other_line(make_file: Make) -> None:
    tensors = {f"w{i}": np.ones(1, np.float32) for i in range(50)}
    path = make_file({**tensors, "x" * 100_000: np.ones(1, np.float32)})
    assert len(listed("ls", "--flat", path)) < 110_000


def test_a_pipe_gets_whole_names_and_no_colour(make_file: Make) -> None:
    name = ".".join(f"a_rather_long_component_{i}" for i in range(12))
    path = make_file({name: np.ones(1, np.float32), "w": np.ones(1, np.float32)})
    for arguments in (["ls", "--flat", path], ["show", path, name]):
        shown = listed(*arguments)
        assert any(name in line for line in shown.splitlines())
        assert "\x1b" not in shown


def test_colours_come_where_they_are_asked_for(minilm: Path) -> None:
    plain = listed("ls", minilm)
    coloured = listed("ls", minilm, "--color", "always")
    assert "\x1b[36m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert "\x1b" not in listed("ls", "--json", "--color", "always", minilm)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_screen_gets_shorter_names_and_fewer_columns(columns: int, minilm: Path) -> None:
    commands = [["ls", minilm], ["ls", "--flat", minilm], ["ls", "--no-fold", minilm], ["show", minilm, "pooler"]]
    for arguments in commands:
        lines = listed(*arguments, COLUMNS=str(columns)).split("\n\n")[0].splitlines()
        assert max(map(len, lines)) <= columns, arguments
    flat = listed("ls", "--flat", minilm, COLUMNS=str(columns)).splitlines()
    assert all("…" in line or len(line.split()[0]) <= columns for line in flat[:104])
    assert flat[104].startswith("pooler.d")
    assert "eight " in flat[104], "both ends of a name are kept"


def test_a_terminal_gets_the_same_text_in_colour(minilm: Path) -> None:
    plain = listed("ls", minilm)
    outer, inner = pty.openpty()
    variables = environment(TERM="xterm", COLUMNS="200")
    with subprocess.Popen([*COMMAND, "ls", minilm], stdout=inner, stderr=inner, env=variables) as process:
        os.close(inner)
        seen = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:  # the other side was closed
                break
            if not part:
                break
            seen += part
    os.close(outer)
    assert process.returncode == 0
    text = seen.decode().replace("\r\n", "\n")
    assert "\x1b[36m" in text
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == plain


def test_a_reader_that_leaves_early_gets_no_traceback(make_file: Make) -> None:
    path = make_file({f"layers.{i}.weight": np.ones(1, np.float32) for i in range(20_000)})
    for option in ("--flat", "--json", "--no-fold", "--format=jsonl", "--format=csv"):
        line = shlex.join([*COMMAND, "ls", option, str(path)]) + " | head -n 1"
        done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, text=True)
        assert len(done.stdout.splitlines()) == 1
        assert done.stderr == "", option


def test_output_that_cannot_be_written_is_status_3(minilm: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "ls", minilm], env=environment(), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert b"standard output cannot be written" in done.stderr


def test_where_the_locale_is_not_utf_8_there_is_ascii(minilm: Path, make_file: Make) -> None:
    for locale in ("C", "POSIX", "de_DE.ISO-8859-1"):
        assert "`-- pooler.dense  2 weights" in listed("ls", minilm, LC_ALL=locale)
    assert "#" * 40 in listed("show", minilm, "pooler.dense.bias", LC_ALL="C")
    path = make_file({"重量.é": np.ones(1, np.float32)})
    for arguments in (["ls", path], ["ls", "--flat", path], ["show", path, "重量.é"]):
        shown = listed(*arguments, LC_ALL="C")
        assert shown.isascii()
        assert "\\u91cd\\u91cf" in shown
    assert json.loads(listed("ls", "--json", path, LC_ALL="C"))["weights"][0]["name"] == "重量.é"


def test_a_path_that_is_not_utf_8_is_no_error(tmp_path: Path, layers: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/odd\xff.safetensors"))
    path.write_bytes(layers.read_bytes())
    for arguments in (["ls", path], ["ls", "--json", path], ["show", path, "ids"]):
        done = run(*arguments)
        assert done.status == 0, done.stderr
    missing = run("ls", path.with_name(path.name + "x"))
    assert missing.status == 3
    assert "odd\\xff.safetensorsx" in missing.stderr


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_short_names_are_whole_in_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    path = tmp_path / "a.safetensors"
    names = [f"a{'.block' * deep}.layer{deep}.{end}" for deep in range(6) for end in ("bias", "weight")]
    path.write_bytes(safetensors_bytes({name: ("F32", [1, 1, 1, 1024], bytes(4 << 10)) for name in names}))
    lines = [line for line in listed("ls", "--no-fold", path, COLUMNS=str(columns)).splitlines() if "float32 " in line]
    assert [sum(f"─ {end} " in line for line in lines) for end in ("bias", "weight")] == [6, 6], lines
