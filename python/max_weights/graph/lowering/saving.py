"""Graphs as ONNX files, whose weights are in the checkpoint that they came from, or beside the file."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max_weights._core import open_weights, place_file, printable, save_tensors, shown
from max_weights.errors import ArgumentError
from max_weights.graph.lowering.model import lowered
from max_weights.graph.lowering.values import values_of

if TYPE_CHECKING:
    import onnx

    from max_weights.buffer import Buffer
    from max_weights.graph.graph import Graph

__all__ = ["save", "to_onnx"]

_PAGE = 4096
_MOST = 2**31 - 1
"""The most bytes of a protobuf message."""


def to_onnx(graph: Graph, weights_registry: Mapping[str, Any] | None) -> onnx.ModelProto:
    """Return an ONNX model; see `Graph.to_onnx`."""
    values = values_of(graph, weights_registry)
    size = sum(value.nbytes for value in values.values())
    if size > _MOST:
        raise ArgumentError(
            f"graph {graph.name!r} has {size} bytes of weights, and an ONNX model in one piece at most {_MOST}: use "
            "save(path), which leaves them in separate files"
        )
    model = _model(graph, values)
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")
        del tensor.external_data[:]
        tensor.raw_data = bytes(_bytes(values[tensor.name]))
    return model


def save(graph: Graph, path: str | os.PathLike[str], weights_registry: Mapping[str, Any] | None) -> None:
    """Write an ONNX file; see `Graph.save`.

    The data goes into a file of a new name, and is there before the model that refers to it takes the place of the old
    one, whose data is removed last: at any time, the model at `path` has its own data.
    """
    target = Path(path).absolute()
    folder = target.parent.resolve()
    values = values_of(graph, weights_registry)
    model = _model(graph, values)
    _require_other(target, values)
    places: dict[str, tuple[str, int]] = {}
    apart: dict[str, Buffer] = {}
    for tensor in model.graph.initializer:
        value = values[tensor.name]
        place = value._file_place()
        if place is not None and place[0].resolve().is_relative_to(folder):
            places[tensor.name] = place[0].resolve().relative_to(folder).as_posix(), place[1]
        else:
            apart[tensor.name] = value
    data = target.with_name(f"{target.name}.{secrets.token_hex(4)}.data")
    try:
        if apart:
            save_tensors(str(data), list(apart), list(apart.values()), None, alignment=_PAGE, sync=True)
            places |= {info.name: (data.name, info.offset) for info in open_weights([data]).infos()}
        for tensor in model.graph.initializer:
            location, offset = places[tensor.name]
            del tensor.external_data[:]
            for key, said in (("location", location), ("offset", offset), ("length", values[tensor.name].nbytes)):
                tensor.external_data.add(key=key, value=str(said))
        old = _data_of(target)
        place_file(target, model.SerializeToString(), sync=True)
    except BaseException:
        data.unlink(missing_ok=True)
        raise
    for name in old - {location for location, _ in places.values()}:
        with contextlib.suppress(OSError):  # where a file in use cannot be removed, it stays
            target.with_name(name).unlink()


def _data_of(path: Path) -> set[str]:
    """Return the names of the files that `save` wrote for the model at a path, if there is one."""
    import onnx

    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception:  # whatever is there, it is no model that refers to such a file
        return set()
    own = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    return {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location" and own.fullmatch(entry.value)
    }


def _require_other(path: Path, values: Mapping[str, Buffer]) -> None:
    """Refuse to write to a file that weights are in."""
    for name, value in values.items():
        place = value._file_place()
        if place is not None and _real_folder(path) in (_real_folder(place[0]), place[0].resolve()):
            raise ArgumentError(
                f"{printable(str(path))} is the file that weight '{shown(name)}' is in, and would be overwritten; "
                "save the graph under another name"
            )


def _real_folder(path: Path) -> Path:
    """Return a path without links, except for the file itself: writing to a link replaces it."""
    return path.parent.resolve() / path.name


def _model(graph: Graph, values: Mapping[str, Buffer]) -> onnx.ModelProto:
    shapes = {name: value.shape for name, value in values.items()}
    return lowered(graph, shapes, initializers=True).model


def _bytes(value: Buffer) -> Any:
    # A copy for mapped files, which answers a truncated file with an error.
    value = value.copy() if value.is_mapped else value
    return value.view("uint8", [value.nbytes]).to_numpy().data
