"""Common first attempts: names that are elsewhere, paths for trees, trees for paths, switches; and their errors."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import max_weights
import max_weights.torch
from max_weights import _autoload as autoload
from max_weights._garbage import gc_paused
from max_weights._switches import is_on
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.integrations import WeightsReader, WeightsWriter
from refusals import refuses

Make = Callable[..., Path]
TENSORS = {"a.weight": np.arange(8, dtype="f4").reshape(2, 4), "b": np.ones(3, "f4")}


@pytest.fixture
def path(make_file: Make) -> Path:
    return make_file(TENSORS)


def module() -> torch.nn.Module:
    made = torch.nn.Module()
    made.a = torch.nn.Linear(4, 2, bias=False)
    made.register_parameter("b", torch.nn.Parameter(torch.zeros(3)))
    return made


def test_a_checkpoint_is_a_tree_or_a_path_where_a_result_keeps_nothing_of_it(path: Path) -> None:
    with max_weights.load_weights(path) as weights:
        assert dict(max_weights.stats(path)) == dict(max_weights.stats(weights)) == dict(max_weights.stats([path]))
        assert (
            max_weights.fingerprint(str(path), digests=True).digests
            == max_weights.fingerprint(weights, digests=True).digests
        )
        assert max_weights.fingerprint(path) == max_weights.fingerprint(weights)
        assert max_weights.plan(path).ranges == max_weights.plan(weights).ranges
        for given in (path, weights, weights):  # a tree stays open
            filled = module()
            max_weights.torch.load_into(filled, given)
            assert filled.a.weight.tolist() == TENSORS["a.weight"].tolist()
        with refuses(ArgumentError, "argument.mismatch"):
            max_weights.torch.load_into(torch.nn.Linear(2, 2), weights)
        assert weights.b.numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("given", [3, None, b"x", [], [3], {3}])
@pytest.mark.parametrize("verb", ["infos", "lazy_state_dict", "stats", "plan", "quantized"])
def test_what_is_no_checkpoint_is_named(verb: str, given: Any) -> None:
    with refuses(ArgumentError, "argument.type"):
        getattr(max_weights, verb)(given)


def test_a_tree_where_a_path_is_needed_says_so(path: Path) -> None:
    weights = max_weights.load_weights(path)
    with refuses(ArgumentError, "argument.type"):
        max_weights.load_weights(weights)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "load_file", [max_weights.torch.load_file, max_weights.numpy.load_file, max_weights.jax.load_file]
)
def test_an_option_that_there_is_not_is_named_with_the_function_that_was_called(path: Path, load_file: Any) -> None:
    with refuses(TypeError):
        load_file(path, remote=None)
    with refuses(TypeError):
        load_file(path, thread=3)


def test_a_configuration_is_also_that_of_a_model(make_file: Make) -> None:
    values = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    projections = {f"model.layers.0.self_attn.{name}_proj.weight": np.ones((4, 4), "f4") for name in "qkv"}
    weights = max_weights.load_weights(make_file(projections))
    config = SimpleNamespace(to_dict=lambda: values)
    for given in (values, config):
        names = [info.name for info in max_weights.infos(max_weights.renamed(weights, "vllm", config=given))]
        assert names == ["model.layers.0.self_attn.qkv_proj.weight"]
    with refuses(ArgumentError, "argument.config"):
        max_weights.renamed(weights, "vllm", config=3)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_says_where_a_checkpoint_is(path: Path, tmp_path: Path) -> None:
    state = {name: torch.from_numpy(array) for name, array in TENSORS.items()}
    dcp.save(state, checkpoint_id=tmp_path / "saved", storage_writer=WeightsWriter(), no_dist=True)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, checkpoint_id=tmp_path / "saved", storage_reader=WeightsReader(), no_dist=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    with refuses(ArgumentError, "argument.plan"):
        WeightsWriter().set_up_storage_writer(is_coordinator=True)
    with refuses(ArgumentError, "argument.plan"):
        WeightsReader().read_metadata()
    with refuses(ArgumentError, "argument.no-effect"):
        WeightsReader(path, rank_timeout=3)


@pytest.mark.parametrize("name", ["conversion", "delta", "errors", "remote", "tasks", "types", "integrations"])
def test_modules_are_there_without_an_import_of_their_own(name: str) -> None:
    script = f"import max_weights; print(max_weights.{name}.__name__, {name!r} in dir(max_weights))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"max_weights.{name}", "True"]


@pytest.mark.parametrize("name", ["safe_open", "load", "Shard"])
def test_a_name_that_is_elsewhere_says_where(name: str) -> None:
    with refuses(AttributeError):
        getattr(max_weights, name)
    with refuses(AttributeError):
        max_weights.nothing  # noqa: B018


@pytest.mark.parametrize(
    "name",
    ["state_dict", "get", "values", "named_parameters", "to_onnx", "plan", "stats", "fingerprint", "quantized"],
)
def test_what_a_tree_does_not_have_says_what_does(make_file: Make, path: Path, name: str) -> None:
    weights = max_weights.load_weights(path)
    with refuses(AttributeError):
        getattr(weights, name)
    assert not hasattr(weights, name)
    assert not weights[name].exists()
    named = max_weights.load_weights(make_file({f"x.{name}.weight": np.ones(1, "f4")}, "named.safetensors"))
    assert getattr(named.x, name).weight.exists()  # where there is one, it is a weight


class _Thing:
    pass


def test_classes_that_torch_was_told_to_allow_are_not_called_and_the_error_says_so(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "thing": _Thing()}, tmp_path / "a.pt")
    torch.serialization.add_safe_globals([_Thing])
    try:
        with refuses(UnsupportedError, "torch.global") as raised:
            max_weights.torch.load(tmp_path / "a.pt")
        assert raised.value.rule == "torch.global"
        assert max_weights.torch.load(tmp_path / "a.pt", unknown="placeholder")["w"].tolist() == [1, 1]
    finally:
        torch.serialization.clear_safe_globals()


@pytest.mark.parametrize(
    ("value", "is_it"), [("1", True), ("TRUE", True), ("yes", True), ("On ", True), ("0", False), ("", False)]
)
def test_a_switch_of_the_environment_is_on_or_off(monkeypatch: pytest.MonkeyPatch, value: str, is_it: bool) -> None:
    monkeypatch.setenv("MAX_WEIGHTS_PATCH", value)
    assert is_on("MAX_WEIGHTS_PATCH") is is_it
    monkeypatch.setenv("MAX_WEIGHTS_VERIFY", "ja")
    with refuses(ArgumentError, "argument.choice"):
        max_weights.patch()
    assert not max_weights.patched()


@pytest.mark.parametrize(
    ("patch", "verify", "verifies", "message"),
    [
        ("true", None, False, ""),
        (None, "1", True, ""),
        ("1", "yes", True, ""),
        (None, "0", None, ""),
        ("0", "1", None, "MAX_WEIGHTS_VERIFY has no effect: MAX_WEIGHTS_PATCH=0 turns off the patch"),
        ("ja", None, None, "the program is not patched: .*MAX_WEIGHTS_PATCH='ja' is no switch"),
    ],
)
def test_a_switch_works_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    patch: str | None,
    verify: str | None,
    verifies: bool | None,
    message: str,
) -> None:
    from max_weights._dropin import patching

    for name, value in (("PATCH", patch), ("VERIFY", verify)):
        monkeypatch.delenv(f"MAX_WEIGHTS_{name}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"MAX_WEIGHTS_{name}", value)
    try:
        autoload.autoload()
        assert bool(max_weights.patched()) == (verifies is not None)
        assert patching._state.verify == bool(verifies)
    finally:
        max_weights.unpatch()
        patching._state.verify = False
    assert bool(caplog.text) == bool(message)
    if message:
        assert re.search(message, caplog.text)


def test_a_collection_that_the_program_turned_off_stays_off() -> None:
    before = gc.get_threshold()
    with gc_paused():
        assert gc.get_threshold()[0] == 0
        with gc_paused():
            gc.disable()
        assert gc.get_threshold()[0] == 0  # the outer call continues
    try:
        assert gc.get_threshold() == before
        assert not gc.isenabled()
    finally:
        gc.enable()
    with gc_paused():
        gc.set_threshold(700, 5, 5)
    assert gc.get_threshold() == (700, 5, 5)
    gc.set_threshold(*before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_that_is_forked_in_a_pause_collects_garbage() -> None:
    script = """
import gc, os
from max_weights._garbage import gc_paused
before = gc.get_threshold()
with gc_paused():
    if not (child := os.fork()):
        os._exit(gc.get_threshold() != before)
print(os.waitpid(child, 0)[1], gc.get_threshold() == before)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


def test_a_tree_of_load_into_is_closed_after_an_error_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_weights(paths: list[Path]) -> Any:
        opened.append(max_weights.load_weights(paths))
        return opened[-1]

    monkeypatch.setattr("max_weights._checkpoints.open_weights", open_weights)
    with refuses(ArgumentError, "argument.mismatch"):
        max_weights.torch.load_into(torch.nn.Linear(2, 2), path)
    with pytest.raises(max_weights.ClosedError):
        opened[0].load()


def test_a_failing_assertion_shows_the_line_of_the_test_and_none_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 16)
    (tmp_path / "test_it.py").write_text(
        "import max_weights\ndef test_it():\n    max_weights.assert_checkpoint_ok('bad.safetensors')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "InvalidCheckpointError" in done.stdout
    assert "_checking.py" not in done.stdout
