"""The command line: `ls` and `show` on the real file and on small ones, their exit codes, and what reaches a pipe."""

import json
import os
import pty
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import max_weights
from max_weights.cli import app

Make = Callable[..., Path]
SCRIPT = Path(sys.executable).with_name("max-weights")
HOSTILE = "a\x1b[31m\n\r\x07\u202e\u2028b"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def listed(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def script(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", **options)


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


def test_ls_prints_the_tree_that_repr_prints_and_the_totals(minilm: Path) -> None:
    shown, _, summary = listed("ls", minilm).partition("\n\n")
    assert shown == repr(max_weights.load_weights(minilm)).split("\n", 1)[1]
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
        for info in max_weights.load_weights(minilm).infos()
        if isinstance(info.dtype, max_weights.DType)
    ]
    assert len(expected) == 104
    assert rows == expected


def test_ls_json_equals_infos(minilm: Path) -> None:
    text = listed("ls", "--json", minilm)
    weights = max_weights.load_weights(minilm)
    listing = json.loads(text)
    assert list(listing) == ["files", "metadata", "warnings", "totals", "dtypes", "weights"]
    assert listing["files"] == [str(minilm)]
    assert listing["metadata"] == weights.metadata == {"format": "pt"}
    assert listing["warnings"] == []
    assert listing["totals"] == {"weights": 104, "bytes": sum(info.bytes for info in weights.infos())}
    assert listing["dtypes"]["int64"] == {"weights": 1, "bytes": 4096}
    names = ["name", "dtype", "shape", "bytes", "file", "offset", "aligned"]
    expected = [
        dict(zip(names, (name, dtype.name, list(shape), *rest), strict=True))
        for name, dtype, shape, *rest in weights.infos()
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
    assert "0 of 104 weights" in listed("ls", minilm, "--filter", "query"), "a part of a name is no match"


def test_ls_takes_the_files_of_one_checkpoint(make_file: Make) -> None:
    first = make_file({"a": np.zeros(3, np.float32)}, "first.safetensors")
    second = make_file({"b": np.zeros(2, np.float16)}, "second.safetensors")
    table = listed("ls", "--flat", first, second)
    assert [row[-1] for row in columns(table)] == ["file", str(first), str(second)]
    assert "2 weights, 16 B, in 2 files" in table
    listing = json.loads(listed("ls", "--json", first, second))
    assert listing["files"] == [str(first), str(second)]
    assert [weight["file"] for weight in listing["weights"]] == [str(first), str(second)]


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
    assert missing.exit_code == 1
    assert "hf download org/other" in missing.stderr
    assert missing.stderr.count("\n") == 1


def test_ls_shows_the_name_of_a_dtype_that_is_not_known(make_file: Make) -> None:
    path = make_file({"w": ("I3", [8], bytes(3))})
    assert columns(listed("ls", "--flat", path))[1][:2] == ["w", "I3"]
    assert json.loads(listed("ls", "--json", path))["weights"][0]["dtype"] == "I3"


def test_ls_prints_warnings_beside_the_listing(make_file: Make) -> None:
    path = make_file({"": np.zeros(1, np.float32), "w": np.zeros(1, np.float32)})
    refused = run("ls", path)
    assert refused.exit_code == 1
    assert "safetensors." in refused.stderr
    accepted = run("ls", "--no-strict", path)
    assert accepted.exit_code == 0
    expected = max_weights.load_weights(path, strict=False).warnings
    assert len(expected) == 1
    assert accepted.stderr == f"warning: {expected[0]}\n"
    assert "2 weights" in accepted.stdout
    in_json = run("ls", "--no-strict", "--json", path)
    assert json.loads(in_json.stdout)["warnings"] == expected
    assert in_json.stderr == ""


# --- show ------------------------------------------------------------------------------------------------------------


def rows(text: str) -> dict[str, str]:
    lines = text.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: line.strip().split(maxsplit=1)[1] for line in lines}


def test_show_agrees_with_numpy_on_a_real_weight(minilm: Path) -> None:
    name = "embeddings.word_embeddings.weight"
    weights = max_weights.load_weights(minilm)
    info = next(info for info in weights.infos() if info.name == name)
    values = np.asarray(weights[name].data()).astype(np.float64)
    assert values.size > 2**20, "of more than one chunk"
    text = listed("show", minilm, name)
    assert text.splitlines()[0] == name
    shown = rows(text)
    assert shown["dtype"] == "float32"
    assert shown["shape"] == "[30522, 384], 11,720,448 elements"
    assert shown["size"] == "46.9 MB (46,881,792 bytes)"
    assert shown["file"] == str(minilm)
    assert shown["offset"] == f"{info.offset:,}"
    assert shown["alignment"] == "8; float32 wants 4: used without a copy"
    for label, expected in [
        ("min", values.min()),
        ("max", values.max()),
        ("mean", values.mean()),
        ("std", values.std()),
    ]:
        assert shown[label] == f"{expected:.6g}", label
    assert shown["zeros"].split()[0] == f"{int((values == 0).sum()):,}"
    assert (shown["NaN"], shown["Inf"]) == ("0", "0")
    counts = [int(line.split()[-1].replace(",", "")) for line in text.split("\n\n")[1].splitlines()]
    assert counts == np.histogram(values, 12)[0].tolist()


def test_show_draws_as_many_bins_as_asked_for(minilm: Path) -> None:
    name = "pooler.dense.weight"
    assert len(listed("show", minilm, name, "--bins", "5").split("\n\n")[1].splitlines()) == 5
    assert "\n\n" not in listed("show", minilm, name, "--bins", "0")
    without = rows(listed("show", minilm, name, "--no-values"))
    assert list(without) == ["dtype", "shape", "size", "file", "offset", "alignment"]


def test_show_counts_what_is_not_finite(make_file: Make) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, 2, np.nan], np.float32)
    shown = rows(listed("show", make_file({"w": values}), "w"))
    assert shown["NaN"] == "2 (25.00%)"
    assert shown["Inf"] == "2 (25.00%)"
    assert shown["zeros"] == "2 (25.00%)"
    assert (shown["min"], shown["max"], shown["mean"]) == ("0", "2", "0.75")


def test_show_of_nothing_but_nan_has_no_extremes(make_file: Make) -> None:
    text = listed("show", make_file({"w": np.full(3, np.nan, np.float32)}), "w")
    shown = rows(text)
    assert [shown[label] for label in ("min", "max", "mean", "std")] == ["–"] * 4
    assert shown["NaN"] == "3 (100.00%)"
    assert "\n\n" not in text


def test_show_gives_integers_exactly(make_file: Make) -> None:
    extremes = np.array([np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max - 1], np.int64)
    path = make_file({"w": extremes, "bytes": np.array([3, 3, 5], np.uint8)})
    shown = rows(listed("show", path, "w"))
    assert shown["min"] == "-9,223,372,036,854,775,808"
    assert shown["max"] == "9,223,372,036,854,775,806"
    assert "NaN" not in shown
    bars = listed("show", path, "bytes").split("\n\n")[1].split("\n")
    assert [line.split()[::2] for line in bars[:1]] == [["3", "2"]]
    assert [line.split()[0] for line in bars[:3]] == ["3", "4", "5"], "a bin a value"


def test_show_of_bools_counts_them_and_reports_other_bytes(make_file: Make) -> None:
    path = make_file({"good": ("BOOL", [4], b"\0\1\1\1"), "odd": ("BOOL", [2], b"\0\7")})
    good, odd = rows(listed("show", path, "good")), rows(listed("show", path, "odd"))
    assert good["mean"] == "0.75"
    assert "values" not in good
    assert "other than 0 and 1" in odd["values"]


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (ml_dtypes.bfloat16, "BF16"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3"),
        (ml_dtypes.float8_e5m2, "F8_E5M2"),
        (ml_dtypes.float8_e8m0fnu, "F8_E8M0"),
        (np.float16, "F16"),
        (np.float64, "F64"),
    ],
)
def test_show_agrees_with_numpy_in_every_float(make_file: Make, dtype: Any, code: str) -> None:
    values = (np.random.default_rng(0).random(1000) + 0.25).astype(dtype)
    shown = rows(listed("show", make_file({"w": (code, [10, 100], values.tobytes())}), "w"))
    wide = values.astype(np.float64)
    assert shown["min"] == f"{wide.min():.6g}"
    assert shown["max"] == f"{wide.max():.6g}"
    assert shown["mean"] == f"{wide.mean():.6g}"
    assert shown["std"] == f"{wide.std():.6g}"


def test_show_of_complex_numbers_gives_magnitudes(make_file: Make) -> None:
    values = np.array([3 + 4j, 0, 1j], np.complex64)
    shown = rows(listed("show", make_file({"w": ("C64", [3], values.tobytes())}), "w"))
    assert shown["values"] == "magnitudes of complex numbers"
    assert (shown["min"], shown["max"], shown["mean"]) == ("0", "5", "2")


def test_show_survives_the_largest_and_the_smallest_numbers(make_file: Make) -> None:
    large = np.array([np.finfo(np.float64).max, -np.finfo(np.float64).max], np.float64)
    small = np.array([5e-324, 15e-324], np.float64)
    path = make_file({"large": large, "small": small, "constant": np.full(7, 2.5, np.float32)})
    shown = rows(listed("show", path, "large"))
    assert shown["mean"] == "0"
    assert shown["std"] == f"{np.finfo(np.float64).max:.6g}"
    assert rows(listed("show", path, "small"))["mean"] == f"{10e-324:.6g}"
    constant = listed("show", path, "constant")
    assert rows(constant)["std"] == "0"
    assert constant.split("\n\n")[1].split() == ["2.5", "█" * 40, "7"]


def test_show_reads_a_misaligned_weight_in_chunks(make_file: Make) -> None:
    values = np.arange(3_000_000, dtype=np.float32)
    path = make_file({"w": ("F32", [values.size], values.tobytes())}, pad=8)
    shifted = path.with_name("shifted.safetensors")
    header = path.read_bytes()[8 : -values.nbytes] + b" "
    shifted.write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    aligned, misaligned = listed("show", path, "w"), listed("show", shifted, "w")
    assert rows(misaligned)["alignment"] == "1; float32 wants 4: copied when it is used"
    assert {**rows(misaligned), "file": "", "offset": "", "alignment": ""} == {
        **rows(aligned),
        "file": "",
        "offset": "",
        "alignment": "",
    }
    assert misaligned.split("\n\n")[1] == aligned.split("\n\n")[1]


@pytest.mark.parametrize("pad", [b"", b" "])
def test_show_takes_no_more_memory_for_a_larger_weight(tmp_path: Path, pad: bytes) -> None:
    path, size = tmp_path / "sparse.safetensors", 128 << 20
    header = b'{"w":{"dtype":"BF16","shape":[%d],"data_offsets":[0,%d]}}' % (size // 2, size)
    header += b" " * (-len(header) % 8) + pad
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size - 2)
        file.seek(0, 2)
        file.write(b"\x80\x3f")  # a 1 at the end of the zeros
    listed("show", path, "w")
    tracemalloc.start()
    try:
        shown = rows(listed("show", path, "w"))
        assert tracemalloc.get_traced_memory()[1] < size // 2
    finally:
        tracemalloc.stop()
    assert shown["max"] == "1"
    assert shown["alignment"].endswith("copied when it is used" if pad else "used without a copy")
    assert shown["zeros"] == f"{size // 2 - 1:,} (100.00%)"


def test_show_says_why_there_are_no_values(make_file: Make) -> None:
    path = make_file({"packed": ("F4", [4], bytes(2)), "unknown": ("I3", [8], bytes(3)), "empty": ("F32", [0, 4], b"")})
    assert rows(listed("show", path, "packed"))["values"] == "not read: elements of 4 bits are packed"
    assert "does not know the type" in rows(listed("show", path, "unknown"))["values"]
    assert rows(listed("show", path, "empty"))["values"] == "none: the tensor is empty"


def test_show_has_statistics_of_bf16_and_fp8_without_ml_dtypes(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    (bf16, fp8) = (models / "derived" / f"layer0.{kind}.safetensors" for kind in ("bf16", "f8e4m3"))
    name = max_weights.load_weights(bf16).infos()[0].name
    for path, dtype in ((bf16, "bfloat16"), (fp8, "float8_e4m3fn")):
        shown = rows(listed("show", path, name))
        assert shown["dtype"] == dtype
        values = max_weights.load_weights(path)[name].data().astype("float32").to_buffer().to_numpy()
        assert float(shown["max"]) == pytest.approx(values.max(), rel=1e-5)
        assert float(shown["mean"]) == pytest.approx(values.mean(), rel=1e-4)


def test_show_of_a_prefix_gives_its_subtree(minilm: Path) -> None:
    weights = max_weights.load_weights(minilm)
    shown = listed("show", minilm, "encoder.layer.0")
    assert shown.rstrip() == repr(weights.encoder.layer[0]).split("\n", 1)[1]


def test_show_of_a_weight_that_is_also_a_prefix_gives_both(make_file: Make) -> None:
    path = make_file({"w": np.ones(1, np.float32), "w.scale": np.ones(2, np.float32)})
    shown = listed("show", path, "w")
    assert rows(shown)["shape"] == "[1], 1 element"
    assert "scale" in shown


# --- errors, pipes, hostile names ------------------------------------------------------------------------------------


def test_a_name_that_is_not_there_gets_near_names_and_exit_code_1(minilm: Path) -> None:
    result = run("show", minilm, "pooler.dense.wieght")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "did you mean 'pooler.dense.weight'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["show"]])
@pytest.mark.parametrize("case", ["missing", "damaged", "html"])
def test_a_checkpoint_error_is_one_line_and_exit_code_1(tmp_path: Path, command: list[str], case: str) -> None:
    path = tmp_path / "model.safetensors"
    if case != "missing":
        path.write_bytes(b"<!DOCTYPE html><html></html>" if case == "html" else b"\xff" * 64)
    done = script(*command, path, *(["w"] if command == ["show"] else []))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"max-weights: {path}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", "--no-such-option", "x"],
        ["ls", "--json", "--flat", "x"],
        ["ls", "--json", "--lines", "3", "x"],
        ["ls", "--lines", "0", "x"],
        ["show"],
        ["show", "x", "w", "--bins", "-1"],
        ["no-such-command"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_control_characters_of_names_never_reach_the_terminal(make_file: Make) -> None:
    path = make_file({HOSTILE: np.ones(2, np.float32), "layers.w": np.ones(1, np.float32)}, metadata={HOSTILE: HOSTILE})
    shown = [
        listed("ls", path),
        listed("ls", "--flat", path),
        listed("ls", "--json", path),
        listed("show", path, HOSTILE),
        run("show", path, HOSTILE + "x").stderr,
    ]
    for text in shown:
        assert all(c.isprintable() for line in text.split("\n") for c in line), repr(text)
    assert json.loads(shown[2])["weights"][0]["name"] == HOSTILE
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
        done = script(*arguments, env={**os.environ, "COLUMNS": "40"})
        assert done.returncode == 0
        assert any(name in line for line in done.stdout.splitlines())
        assert "\x1b" not in done.stdout


def test_a_terminal_gets_the_same_text_in_colour(minilm: Path) -> None:
    plain = listed("ls", minilm)
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "40"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([SCRIPT, "ls", minilm], stdout=inner, stderr=inner, env=environment) as process:
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
    for option in ("--flat", "--json", "--no-fold"):
        done = subprocess.run(
            ["sh", "-c", f"'{SCRIPT}' ls {option} '{path}' | head -n 1"], capture_output=True, text=True
        )
        assert len(done.stdout.splitlines()) == 1
        assert done.stderr == ""


def test_output_that_is_not_utf_8_is_no_error(minilm: Path) -> None:
    done = script("ls", minilm, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "\\u2514" in done.stdout
    drawn = script("show", minilm, "pooler.dense.bias", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert "#" * 40 in drawn.stdout


def test_a_path_that_is_not_utf_8_is_no_error(tmp_path: Path, layers: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/odd\xff.safetensors"))
    path.write_bytes(layers.read_bytes())
    for arguments in (["ls", path], ["ls", "--json", path], ["show", path, "ids"]):
        done = script(*arguments)
        assert done.returncode == 0, done.stderr
    missing = script("ls", path.with_name(path.name + "x"))
    assert missing.returncode == 1
    assert "\\udcff" in missing.stderr


def test_ls_does_not_import_numpy(minilm: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from max_weights.cli import app; "
        f"CliRunner().invoke(app, ['ls', {str(minilm)!r}], catch_exceptions=False); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_gguf_files_show_encodings_elements_and_metadata(models: Path) -> None:
    path = str(models / "smollm2-135m.Q4_1.gguf")
    listed = run("ls", path, "--flat")
    assert "Q4_1" in listed.stdout
    assert "[576,1536]" in listed.stdout
    assert "5.00 bits per weight" in listed.stdout
    content = json.loads(run("ls", path, "--json").stdout)
    assert content["metadata"]["general.architecture"] == "llama"
    assert {"Q4_1", "Q8_0", "float32"} == set(content["dtypes"])
    shown = run("show", path, "blk.0.ffn_down.weight")
    assert "Q4_1, 32 elements in 20 bytes, 5.00 bits each" in shown.stdout
    assert "[576, 1536], 884,736 elements" in shown.stdout
    metadata = run("show", path)
    assert "general.architecture" in metadata.stdout
    assert "49,144 more" in metadata.stdout
