"""`max-weights show`: the place and the statistics of a weight, and the metadata."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import max_weights
from command_line import listed, measured, rows, run

Make = Callable[..., Path]


@pytest.fixture
def minilm(models: Path) -> Path:
    return models / "minilm.safetensors"


def test_show_agrees_with_numpy_on_a_real_weight(minilm: Path) -> None:
    name = "embeddings.word_embeddings.weight"
    weights = max_weights.load_weights(minilm)
    info = next(info for info in max_weights.infos(weights) if info.name == name)
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
    done, peak = measured("show", path, "w")
    assert done.status == 0, done.stderr
    assert peak << 20 < size // 2
    shown = rows(done.stdout)
    assert shown["max"] == "1"
    assert shown["alignment"].endswith("copied when it is used" if pad else "used without a copy")
    assert shown["zeros"] == f"{size // 2 - 1:,} (100.00%)"


def test_show_says_why_there_are_no_values(make_file: Make) -> None:
    path = make_file({"unknown": ("I3", [8], bytes(3)), "empty": ("F32", [0, 4], b"")})
    assert "'I3'" in rows(listed("show", path, "unknown"))["values"]
    assert rows(listed("show", path, "empty"))["values"] == "none: the tensor is empty"


def test_show_of_elements_of_4_bits_has_their_values(make_file: Make) -> None:
    shown = rows(listed("show", make_file({"w": ("F4", [4], b"\x21\xf0")}), "w"))
    assert (shown["min"], shown["max"], shown["zeros"]) == ("-6", "1", "1 (25.00%)")


def test_show_json_has_the_numbers_of_the_page(minilm: Path) -> None:
    name = "pooler.dense.weight"
    found = json.loads(listed("show", minilm, name, "--json", "--bins", "3"))
    assert found["schema"] == "max-weights.show/1"
    assert found["weight"] == json.loads(listed("ls", "--json", "--filter", name, minilm))["weights"][0]
    assert (found["elements"], found["alignment"]) == (384 * 384, 8)
    values = np.asarray(max_weights.load_weights(minilm)[name].data()).astype(np.float64)
    statistics = found["statistics"]
    assert (statistics["min"], statistics["max"]) == (values.min(), values.max())
    assert statistics["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert statistics["std"] == pytest.approx(values.std(), rel=1e-12)
    assert [entry["count"] for entry in statistics["histogram"]] == np.histogram(values, 3)[0].tolist()
    assert "statistics" not in json.loads(listed("show", minilm, name, "--json", "--no-values"))
    below = json.loads(listed("show", minilm, "pooler", "--json"))
    assert (below["prefix"], [weight["name"] for weight in below["weights"]]) == (
        "pooler",
        ["pooler.dense.bias", "pooler.dense.weight"],
    )


def test_show_of_a_key_prints_the_whole_value(models: Path, make_file: Make) -> None:
    path = models / "smollm2-135m.Q4_1.gguf"
    tokens = listed("show", path, "tokenizer.ggml.tokens").splitlines()
    assert len(tokens) == 49_152
    in_json = json.loads(listed("show", path, "tokenizer.ggml.tokens", "--json"))
    assert (in_json["schema"], in_json["key"]) == ("max-weights.show/1", "tokenizer.ggml.tokens")
    assert len(in_json["value"]) == 49_152
    assert listed("show", path, "general.architecture") == "llama\n"
    texts = make_file({"w": np.ones(1, np.float32)}, metadata={"note": "one\ntwo\x1b[31m"})
    assert listed("show", texts, "note") == "one\ntwo\\x1b[31m\n"
    assert json.loads(listed("show", texts, "--json"))["metadata"] == {"note": "one\ntwo\x1b[31m"}


def test_show_has_statistics_of_real_weights_in_bf16_and_fp8(models: Path) -> None:
    (bf16, fp8) = (models / "derived" / f"layer0.{kind}.safetensors" for kind in ("bf16", "f8e4m3"))
    name = max_weights.infos(max_weights.load_weights(bf16))[0].name
    for path, dtype in ((bf16, "bfloat16"), (fp8, "float8_e4m3fn")):
        shown = rows(listed("show", path, name))
        assert shown["dtype"] == dtype
        values = max_weights.load_weights(path)[name].data().astype("float32").to_buffer().to_numpy()
        assert float(shown["max"]) == pytest.approx(values.max(), rel=1e-5)
        assert float(shown["mean"]) == pytest.approx(values.mean(), rel=1e-4)


def test_show_of_a_prefix_gives_its_subtree(minilm: Path) -> None:
    weights = max_weights.load_weights(minilm)
    shown = listed("show", minilm, "encoder.layer.0")
    assert shown.rstrip() == str(weights.encoder.layer[0]).split("\n", 1)[1]


def test_show_of_a_weight_that_is_also_a_prefix_gives_both(make_file: Make) -> None:
    path = make_file({"w": np.ones(1, np.float32), "w.scale": np.ones(2, np.float32)})
    shown = listed("show", path, "w")
    assert rows(shown)["shape"] == "[1], 1 element"
    assert "scale" in shown


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
