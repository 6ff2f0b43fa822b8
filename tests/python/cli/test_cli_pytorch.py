"""The command line on PyTorch files: the names in them, and their content other than weights."""

import collections
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import max_weights
from command_line import run


class Config:
    """A user-defined class."""


@pytest.fixture(params=["zip", "legacy"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "plain.pth"
    value = {"model": collections.OrderedDict(w=torch.ones(2, 3)), "epoch": 3, "note": "a\x1b[31mb"}
    torch.save(value, path, _use_new_zipfile_serialization=request.param == "zip")
    return path


def test_globals_that_are_known_are_status_0(plain: Path) -> None:
    result = run("globals", plain)
    assert result.status == 0, result.stderr
    lines = [line.split() for line in result.stdout.split("\n\n")[0].splitlines()]
    assert [line[1:3] for line in lines] == [
        ["harmless", "collections.OrderedDict"],
        ["harmless", "torch._utils._rebuild_tensor_v2"],
        ["harmless", "torch.FloatStorage"],
    ]
    pickled = plain.read_bytes()
    if zipfile.is_zipfile(plain):
        assert {line[3] for line in lines} == {"plain/data.pkl"}
        pickled = zipfile.ZipFile(plain).read("plain/data.pkl")
    for offset, _, name, *_ in lines:
        found = pickled[int(offset) :]
        assert found.startswith(b"c" + name.rpartition(".")[0].encode() + b"\n"), name
    assert "3 globals, 0 not harmless" in result.stdout


def test_a_global_that_is_not_known_is_status_1(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return eval, ("1",)

    torch.save({"w": torch.ones(2), "config": Config(), "evil": Evil()}, tmp_path / "a.pt")
    result = run("globals", tmp_path / "a.pt")
    assert result.status == 1
    lines = result.stdout.split("\n\n")[0].splitlines()
    verdicts = {name: verdict for _, verdict, name, *_ in map(str.split, lines)}
    assert verdicts[f"{__name__}.Config"] == "needs-trust"
    [runs_code] = [name for name, verdict in verdicts.items() if verdict == "runs-code"]
    assert runs_code.endswith(".eval")
    assert "2 not harmless" in result.stdout
    in_json = run("globals", tmp_path / "a.pt", "--json")
    found = json.loads(in_json.stdout)
    assert (in_json.status, in_json.stderr) == (1, "")
    assert (found["schema"], found["files"], found["not_harmless"]) == (
        "max-weights.globals/1",
        [str(tmp_path / "a.pt")],
        2,
    )
    assert {entry["name"]: entry["verdict"] for entry in found["globals"]} == verdicts
    assert {entry["file"] for entry in found["globals"]} == {str(tmp_path / "a.pt")}


def test_every_file_of_a_folder_is_looked_at(tmp_path: Path, models: Path) -> None:
    """A good file once hid the bad ones of its folder."""
    shutil.copy(models / "minilm.safetensors", tmp_path / "model.safetensors")
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    assert run("globals", tmp_path).status == 0
    payload = b"cos\nsystem\n(S'true'\ntR."
    (tmp_path / "vocab.pkl").write_bytes(payload)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "a") as archive:
        archive.writestr("hook.pkl", payload.replace(b"system", b"popen"))
    result = run("globals", tmp_path, "--json")
    assert result.status == 1
    found = json.loads(result.stdout)
    dangerous = {
        (Path(of["file"]).name, of["member"], of["name"]) for of in found["globals"] if of["verdict"] != "harmless"
    }
    assert dangerous == {("vocab.pkl", None, "os.system"), ("pytorch_model.bin", "hook.pkl", "os.popen")}
    assert len(found["files"]) == 3
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    for path in ("vocab.pkl", "pytorch_model.bin"):
        (tmp_path / path).unlink()
    result = run("globals", tmp_path)
    assert result.status == 3
    assert "cut.pt" in result.stderr


def test_show_without_a_name_has_the_metadata_and_the_objects(plain: Path) -> None:
    result = run("show", plain)
    assert result.status == 0, result.stderr
    assert re.search(r"byteorder\s+little", result.stdout)
    assert re.search(r"epoch\s+3", result.stdout)
    assert "\x1b" not in result.stdout
    assert "a\\x1b[31mb" in result.stdout


def test_show_prints_the_calls_of_a_hostile_pickle_and_makes_none(tmp_path: Path) -> None:
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return eval, (f"open({str(made)!r}, 'w')\x1b[31m",)

    torch.save({"w": torch.ones(2), "evil": Evil()}, tmp_path / "a.pt")
    done = run("show", tmp_path / "a.pt")
    assert done.status == 0
    (warning,) = done.stderr.splitlines()
    assert "names builtins.eval" in warning
    (line,) = [line for line in done.stdout.splitlines() if line.split()[1:2] == ["runs-code"]]
    assert "eval(" in line
    assert f"open('{made}', 'w')" in line
    assert "\\x1b[31m" in line
    in_json = run("show", "--json", tmp_path / "a.pt")
    (call,) = json.loads(in_json.stdout)["calls"]
    assert (call["file"], call["verdict"]) == (str(tmp_path / "a.pt"), "runs-code")
    assert call["call"] in line
    assert "\x1b" not in done.stdout + in_json.stdout
    assert not made.exists()


def test_show_of_a_weight_and_of_an_object(plain: Path) -> None:
    result = run("show", plain, "model.w")
    assert result.status == 0, result.stderr
    assert "float32" in result.stdout
    result = run("show", plain, "epoch")
    assert (result.status, result.stdout.split()) == (0, ["epoch", "3"]), result.stderr
    found = json.loads(run("show", "--json", plain, "epoch").stdout)
    assert found == {"schema": "max-weights.show/1", "values": [{"name": "epoch", "value": "3"}]}


def test_ls_names_what_is_no_array(tmp_path: Path) -> None:
    torch.save({"s": torch.eye(2).to_sparse(), "t": torch.ones(3)}, tmp_path / "a.ckpt")
    result = run("ls", tmp_path / "a.ckpt")
    assert result.status == 0, result.stderr
    assert "sparse_coo float32" in result.stdout
    assert "├── indices  int64" in result.stdout


def test_what_a_conversion_leaves_out_or_writes_twice_is_said(tmp_path: Path) -> None:
    shared = torch.arange(4096.0).reshape(64, 64)
    state = {"embed.weight": shared, "head.weight": shared, "view": shared[:2], "own": torch.ones(2), "epoch": 3}
    torch.save(state, tmp_path / "a.pt")
    done = run("convert", tmp_path / "a.pt", tmp_path / "copy.safetensors")
    assert done.status == 0
    assert "1 tied tensor written again, 16.4 kB more: 'head.weight' is 'embed.weight'; --tied alias" in done.stderr
    assert "left out: 'epoch', which is not a tensor" in done.stderr
    with safe_open(tmp_path / "copy.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert sorted(file.keys()) == ["embed.weight", "head.weight", "own", "view"]
    done = run("convert", tmp_path / "a.pt", tmp_path / "alias.safetensors", "--tied", "alias")
    assert (done.status, "tied" in done.stderr) == (0, False)
    with safe_open(tmp_path / "alias.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
        assert sorted(file.keys()) == ["embed.weight", "own", "view"]
    done = run("convert", tmp_path / "a.pt", tmp_path / "none.safetensors", "--tied", "refuse")
    assert done.status == 2
    assert "one tensor has several names" in done.stderr
    assert not (tmp_path / "none.safetensors").exists()
    done = run("convert", tmp_path / "a.pt", tmp_path / "a.gguf", "--select", "own")
    assert done.status == 0
    assert not {"byteorder", "version"} & set(max_weights.load_weights(tmp_path / "a.gguf").metadata)
