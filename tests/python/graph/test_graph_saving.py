"""Graphs saved as ONNX files: the place of their weights, and that a model never gets the weights of another save."""

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import save_file

from faults import Saver, contents, folder, killed_at_each_call, put, saved, saver, unfinished, with_strace
from max_weights import load_weights
from max_weights.dtype import DType
from max_weights.graph import Graph, GraphError, Weight
from max_weights.graph._lowering.dtypes import ONNX_TYPES
from max_weights.graph.onnx import save, to_model
from refusals import refuses
from test_engine import HOST, Stack, expected, floats, given, stack, trace, values

__all__ = ["folder", "saver"]


def run(path: Path, x: Any) -> Any:
    """The results of ONNX Runtime with a saved model."""
    return onnxruntime.InferenceSession(path).run(None, {"input0": x})[0]


def data_of(path: Path) -> list[Path]:
    """The files written for a model."""
    return sorted(path.parent.glob(f"{path.name}.*.data"))


def test_a_saved_graph_leaves_its_weights_in_the_checkpoint_beside_it(tmp_path: Path) -> None:
    module, state = stack(tmp_path)
    graph, x = module.trace(floats("n", 8)), given(3, 8)
    save(graph, tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "stack.safetensors"]
    (tmp_path / "elsewhere").mkdir()
    save(graph, tmp_path / "elsewhere" / "model.onnx")
    model, data = sorted(path.name for path in (tmp_path / "elsewhere").iterdir())
    assert (model, bool(re.fullmatch(r"model\.onnx\.[0-9a-f]{8}\.data", data))) == ("model.onnx", True)
    assert {child.name for child in load_weights(tmp_path / "elsewhere" / data).children()} == {
        "layers",
        "scale",
    }  # a safetensors file
    for path in (tmp_path / "model.onnx", tmp_path / "elsewhere" / "model.onnx"):
        onnx.checker.check_model(path, full_check=True)
        assert np.allclose(run(path, x), expected(state, x), atol=1e-5)
    moved = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert np.allclose(run(moved / "model.onnx", x), expected(state, x), atol=1e-5)


def test_weights_that_were_written_to_are_saved_as_they_are(tmp_path: Path) -> None:
    module, state = stack(tmp_path)
    module.state_dict()["scale"].to_numpy()[:] = 2
    save(module.trace(floats("n", 8)), tmp_path / "model.onnx")
    assert len(data_of(tmp_path / "model.onnx")) == 1
    x = given(3, 8)
    assert np.allclose(run(tmp_path / "model.onnx", x), expected(state | {"scale": np.float32(2)}, x), atol=1e-5)


def test_a_graph_is_not_saved_over_the_weights_that_it_refers_to(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_file({"w": given(8, 8)}, path)
    before = path.read_bytes()
    weights, shift = load_weights(path), Weight("shift", "float32", (8,), HOST)
    graph = Graph("g", lambda x: x @ Weight("w", "float32", (8, 8), HOST) + shift, [floats("n", 8)])
    state = {"w": weights["w"], "shift": given(8)}
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("model.onnx", "folder/model.onnx", "folder/../" + tmp_path.name + "/model.onnx"):
        with refuses(ValueError, "argument.path"):
            save(graph, tmp_path / name, state)
    assert path.read_bytes() == before
    assert not data_of(path)
    (tmp_path / "link.onnx").symlink_to(path)
    save(graph, tmp_path / "link.onnx", state)  # which takes the place of the link
    assert path.read_bytes() == before
    result = given(3, 8) @ state["w"].data().to_numpy() + state["shift"]
    assert np.allclose(run(tmp_path / "link.onnx", given(3, 8)), result, atol=1e-5)


@pytest.mark.parametrize("what", ["replaced", "deleted", "written over", "renamed"])
def test_weights_of_a_file_that_is_another_one_by_now_are_saved_as_they_are(tmp_path: Path, what: str) -> None:
    module, state = stack(tmp_path)
    path, times = tmp_path / "stack.safetensors", os.stat(tmp_path / "stack.safetensors")
    graph, x = module.trace(floats("n", 8)), given(3, 8)
    if what == "replaced":  # of the same size and time, too
        save_file(values(1), tmp_path / "new")
        os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
        os.replace(tmp_path / "new", path)
    elif what == "deleted":
        path.unlink()
    elif what == "renamed":
        path.rename(tmp_path / "other.safetensors")
    else:
        state = values(1)
        save_file(state, tmp_path / "new")
        path.write_bytes((tmp_path / "new").read_bytes())  # what a view has from now on
    (expects,) = [result.to_numpy() for result in module.compile(floats("n", 8))(x)]
    save(graph, tmp_path / "model.onnx")
    path.unlink(missing_ok=True)
    assert np.array_equal(run(tmp_path / "model.onnx", x), expects)
    assert np.allclose(expects, expected(state, x), atol=1e-5)


def test_a_model_that_is_saved_again_has_the_data_of_that_save_alone(tmp_path: Path) -> None:
    path, module, x = tmp_path / "model.onnx", Stack(), given(3, 8)
    others = {"model.onnx.0123456g.data", "model.onnx.data", "other.onnx.01234567.data"}
    for name in others:
        (tmp_path / name).write_bytes(b"of somebody else")
    for seed in range(3):
        module.load_state_dict(values(seed))
        save(module.trace(floats("n", 8)), path)
        assert len({file.name for file in tmp_path.iterdir()} - others) == 2
        assert np.allclose(run(path, x), expected(values(seed), x), atol=1e-5)
    module.load_state_dict({name: node.data() for name, node in load_weights(data_of(path)[1]).items()})
    save(module.trace(floats("n", 8)), path)  # refers to the data of the model that it replaces
    assert np.allclose(run(path, x), expected(values(2), x), atol=1e-5)


def test_of_threads_that_save_to_one_path_one_wins_whole(tmp_path: Path) -> None:
    path, x, graphs = tmp_path / "model.onnx", given(3, 8), []
    for seed in range(4):
        module = Stack()
        module.load_state_dict(values(seed))
        graphs.append(module.trace(floats("n", 8)))
    threads = [threading.Thread(target=save, args=(graph, path)) for graph in graphs for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = run(path, x)
    assert any(np.allclose(made, expected(values(seed), x), atol=1e-5) for seed in range(4))
    assert not [file for file in tmp_path.iterdir() if file.suffix not in (".onnx", ".data")]


@with_strace
def test_a_save_that_is_killed_at_any_call_leaves_the_old_model_or_the_new_one(saver: Saver, folder: Path) -> None:
    path, x = folder / "model.onnx", np.eye(300, dtype=np.float32)
    saved(saver, "onnx.save", path=path, value=1)
    old, found = contents(folder), []
    for point, files in killed_at_each_call(saver, folder, old, "onnx.save", again=False, path=path, value=2):
        put(folder, files)
        made = run(path, x)
        assert made.min() == made.max(), point
        found.append(float(made.max()))
        assert found[-1] in (1, 2), point
        saved(saver, "onnx.save", path=path, value=3)
        assert run(path, x).min() == 3
        assert unfinished(folder) == []
    assert len(found) > 20
    assert {1.0, 2.0} == set(found)


def test_a_graph_in_one_piece_holds_its_weights() -> None:
    state, module, x = values(), Stack(), given(3, 8)
    module.load_state_dict(state)
    model = to_model(module.trace(floats("n", 8)))
    onnx.checker.check_model(model, full_check=True)
    assert len(model.functions) == 1
    (made,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"input0": x})
    assert np.allclose(made, expected(state, x), atol=1e-5)


@pytest.mark.parametrize("dtype", ONNX_TYPES, ids=str)
def test_weights_of_every_dtype_are_in_the_model(dtype: DType, tmp_path: Path) -> None:
    requested = {"w": np.array([[0, 1, 3], [1, 0, 7]], dtype.to_numpy()), "scalar": np.array(1, dtype.to_numpy())}
    weights = [Weight(name, dtype, array.shape, HOST) for name, array in requested.items()]
    graph = Graph("g", lambda: tuple(weights), [])
    save(graph, tmp_path / "model.onnx", requested)
    for model in (to_model(graph, requested), onnx.load(tmp_path / "model.onnx")):
        found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for name, array in requested.items():
            assert found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes()


def test_a_model_that_cannot_be_saved_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    with pytest.raises(GraphError):
        save(trace(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"before"
