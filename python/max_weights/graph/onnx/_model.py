"""Graphs as ONNX models: in one piece, or as files whose weights stay in the checkpoint that they came from."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from max_weights._core import escape, infos, open_weights, place_file, printable, save_tensors
from max_weights._typing import known
from max_weights.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from max_weights._buffer import Buffer
    from max_weights.graph._graph import Graph

__all__ = ["save", "to_model"]

_PAGE = 4096
_MAX = 2**31 - 1
"""The most bytes of a protobuf message."""


def to_model(graph: Graph, weights_registry: Mapping[str, object] | None = None) -> onnx.ModelProto:
    """Return a graph as an ONNX model that contains its weights.

    Args:
        graph: A graph with outputs.
        weights_registry: The values of the weights by name; default: those that `load_state_dict` gave them.

    Raises:
        GraphError: a weight has no value, or one that does not fit (a ValueError).
        ValueError: the weights have more than 2 GiB; see `save`.
        UnsupportedError: an operation or a dtype for which ONNX has no equivalent.

    Example:
        >>> double = Graph("double", lambda x: x * 2.0, [x.type])
        >>> [node.op_type for node in onnx.to_model(double).graph.node]
        ['Constant', 'Mul', 'Identity']
    """
    import onnx_ir as ir

    from max_weights.graph._lowering.values import values_of

    model, values = _model(graph, values_of(graph, weights_registry))
    size = sum(value.nbytes for value in values.values())
    if size > _MAX:
        raise ArgumentError(
            f"graph {graph.name!r} has {size} bytes of weights, and an ONNX model in one piece at most {_MAX}: use "
            "max_weights.graph.onnx.save, which leaves them in separate files",
            rule="argument.memory",
        )
    for name, initializer in model.graph.initializers.items():
        value = values[name]
        # A copy of a mapped file, which answers a truncated file with an error.
        array = (value.copy() if value.is_mapped else value).to_numpy()
        initializer.const_value = ir.Tensor(array, initializer.dtype, name=name)
    return ir.to_proto(model)


def save(graph: Graph, path: str | os.PathLike[str], weights_registry: Mapping[str, object] | None = None) -> None:
    """Write a graph as an ONNX file.

    Weights that are views of a file in the same folder, or below it, stay there: the ONNX file refers to their bytes,
    so that file must not change. All others are written to a safetensors file next to it with a unique name, such as
    `model.onnx.5f0c9a3e.data`. So are views of a file that was replaced, changed or removed since it was opened, and
    weights in packed blocks. Blocks of Q4_0 that only a product uses are written as ONNX Runtime multiplies them; all
    others as float32 elements, which are decoded in memory first.

    When all data is on the disk, the ONNX file is replaced, and then the data of the former one is removed. A save that
    is interrupted or killed leaves the old model with its data, or the new one with its data.

    Args:
        graph: A graph with outputs.
        path: The file to write.
        weights_registry: The values of the weights by name; default: those that `load_state_dict` gave them.

    Raises:
        GraphError: a weight has no value, or one that does not fit (a ValueError).
        ValueError: a weight is in the file that would be written.
        UnsupportedError: an operation or a dtype for which ONNX has no equivalent.

    Example:
        >>> double = Graph("double", lambda x: x * 2.0, [x.type])
        >>> onnx.save(double, "double.onnx")
    """
    import onnx_ir as ir

    from max_weights.graph._lowering.values import values_of

    target = Path(path).absolute()
    folder = target.parent.resolve()
    values = values_of(graph, weights_registry)
    _require_other(target, values)
    model, values = _model(graph, values)
    places: dict[str, tuple[str, int]] = {}
    external: dict[str, Buffer] = {}
    for name, value in values.items():
        place = value._file_place()
        if place is not None and place[0].resolve().is_relative_to(folder):
            places[name] = place[0].resolve().relative_to(folder).as_posix(), place[1]
        else:
            external[name] = value
    data = target.with_name(f"{target.name}.{secrets.token_hex(4)}.data")
    try:
        if external:
            save_tensors(str(data), list(external), list(external.values()), None, alignment=_PAGE, sync=True)
            places |= {info.name: (data.name, info.offset) for info in infos(open_weights([data]))}
        for name, initializer in model.graph.initializers.items():
            declared = known(initializer.const_value)
            initializer.const_value = ir.ExternalTensor(
                *places[name], values[name].nbytes, declared.dtype, shape=ir.Shape(values[name].shape), name=name
            )
        old = _data_of(target)
        place_file(target, ir.to_proto(model).SerializeToString(), sync=True)
    except BaseException:
        data.unlink(missing_ok=True)
        raise
    for name in old - {location for location, _ in places.values()}:
        with contextlib.suppress(OSError):  # where a file in use cannot be removed, it stays
            target.with_name(name).unlink()


def _data_of(path: Path) -> set[str]:
    """Return the names of the files that `save` wrote for the model at a path, if there is one."""
    import onnx_ir as ir

    try:
        model = ir.load(path)
    except Exception:  # whatever is there, it is no model that refers to such a file
        return set()
    own = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    tensors = [value.const_value for value in model.graph.initializers.values()]
    locations = {os.fspath(tensor.location) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}
    return set(filter(own.fullmatch, locations))


def _require_other(path: Path, values: Mapping[str, Buffer]) -> None:
    """Refuse to write to a file that weights are in."""
    for name, value in values.items():
        place = value._file_place()
        if place is not None and _real_folder(path) in (_real_folder(place[0]), place[0].resolve()):
            raise ArgumentError(
                f"{printable(str(path))} is the file that weight '{escape(name)}' is in, and would be overwritten; "
                "save the graph under another name",
                rule="argument.path",
            )


def _real_folder(path: Path) -> Path:
    """Return a path without links, except for the file itself: writing to a link replaces it."""
    return path.parent.resolve() / path.name


def _model(graph: Graph, values: dict[str, Buffer]) -> tuple[ir.Model, dict[str, Buffer]]:
    """Return a model, and the values of its initializers by name."""
    from max_weights.graph._lowering.model import lower

    lowered = lower(graph, {name: value.shape for name, value in values.items()}, initializers=True)
    for name, encoding in lowered.decoded_inputs.values():
        raise UnsupportedError(
            f"graph {graph.name!r} decodes {name} of {encoding}, and ONNX has no operation for that; make it an input "
            "of floats",
            rule="unsupported.operation",
        )
    used = {name: values[name] for name in lowered.weights}
    return lowered.model, used | lowered.repack_weights(values)
