"""Graphs as ONNX files, whose weights are in the checkpoint that they came from, or beside the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from max_weights._core import printable, shown
from max_weights.buffer import Buffer, file_place
from max_weights.errors import ArgumentError
from max_weights.graph.lowering.model import lowered
from max_weights.graph.lowering.values import values_of

if TYPE_CHECKING:
    import onnx

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
    """Write an ONNX file; see `Graph.save`."""
    target = Path(path).absolute()
    folder = target.parent.resolve()
    values = values_of(graph, weights_registry)
    model = _model(graph, values)
    data = target.with_name(f"{target.name}.data")
    apart: list[tuple[int, Buffer]] = []
    end = 0
    _require_other(target, values)
    for tensor in model.graph.initializer:
        value = values[tensor.name]
        place = file_place(value)
        if place is not None and place[0].resolve().is_relative_to(folder):
            location, offset = place[0].resolve().relative_to(folder).as_posix(), place[1]
        else:
            location, offset = data.name, end
            apart.append((end, value))
            end += -(-value.nbytes // _PAGE) * _PAGE
        del tensor.external_data[:]
        for key, said in (("location", location), ("offset", offset), ("length", value.nbytes)):
            tensor.external_data.add(key=key, value=str(said))
    if apart:
        _require_other(data, values)
        with _written(data) as file:
            for at, value in apart:
                file.seek(at)
                file.write(_bytes(value))
    with _written(target) as file:
        file.write(model.SerializeToString())


def _require_other(path: Path, values: Mapping[str, Buffer]) -> None:
    """Refuse to write to a file that weights are in."""
    for name, value in values.items():
        place = file_place(value)
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


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write, which has another name until it is complete."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
