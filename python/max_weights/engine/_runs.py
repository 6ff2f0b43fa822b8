"""Parts of a run: the conditions on sizes, tensors of ONNX Runtime, and interruption by Ctrl-C."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeAlias

import max_weights.graph._infer as infer
from max_weights._buffer import Buffer
from max_weights._dim import Dim, StaticDim, SymbolicDim
from max_weights._dtype import DType
from max_weights._shape import listed
from max_weights.errors import ArgumentError
from max_weights.graph._errors import GraphError
from max_weights.graph._lowering.dtypes import ONNX_TYPES

if TYPE_CHECKING:
    import onnxruntime

    from max_weights._buffer import DLPackArray
    from max_weights.graph._graph import Graph
    from max_weights.graph._value import Node

__all__ = ["Runs", "Sizes", "from_value", "to_value"]


_Constraint: TypeAlias = "tuple[Node, Dim, Dim, bool, str]"
"""An operation, two dimensions, whether they must be equal (or else the first the larger), and the user's message."""


class Sizes:
    """The sizes that the inputs and weights of a graph give its symbols, and the conditions on them.

    Args:
        graph: The graph.
        weights: The shapes of its weights by name.
    """

    def __init__(self, graph: Graph, weights: Mapping[str, Sequence[int]]) -> None:
        self._name = graph.name
        self._shapes = [kind.shape for kind in graph.input_types]
        self._checked: tuple[tuple[int, ...], ...] | None = None
        self._known: dict[str, tuple[int, str]] = {}
        for name, weight in graph.parameters.items():
            self._bind(self._known, weight.shape, weights[name], f"weight {name!r}")
        self._constraints = list(_constraints(graph, {}, graph.symbols))

    def check(self, shapes: Sequence[Sequence[int]]) -> None:
        """Check the shapes of the inputs of a run."""
        requested = tuple(map(tuple, shapes))
        if requested == self._checked:
            return
        known = dict(self._known)
        for index, (dims, shape) in enumerate(zip(self._shapes, shapes, strict=True)):
            self._bind(known, dims, shape, f"input{index}")
        sizes = {name: size for name, (size, _) in known.items()}
        for node, left, right, equal, message in self._constraints:
            try:
                a, b = left.substitute(sizes), right.substitute(sizes)
            except ValueError:
                a, b = left, right  # negative; the dimension that it was subtracted from has a separate condition
            if equal and isinstance(left, SymbolicDim) and left.name not in sizes and isinstance(b, StaticDim):
                sizes[left.name] = int(b)
                continue
            if not (isinstance(a, StaticDim) and isinstance(b, StaticDim)):
                continue  # it depends on computed values
            if a != b if equal else a < b:
                prefix = f"{message}: " if message else ""
                condition = f"{left} must be {right}" if equal else f"{left} must be at least {right}"
                failure = GraphError(
                    f"{node.op} of graph {self._name!r} (at {node.location}): {prefix}{condition}, and {left} is {a}"
                    + ("" if isinstance(right, StaticDim) else f", {right} is {b}")
                )
                failure.op, failure.location = node.op, node.location
                raise failure
        self._checked = requested

    def _bind(self, known: dict[str, tuple[int, str]], dims: Sequence[Dim], shape: Sequence[int], where: str) -> None:
        fits = len(dims) == len(shape)
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=False)):
            if isinstance(dim, SymbolicDim):
                before, there = known.setdefault(dim.name, (size, f"axis {axis} of {where}"))
                if before != size:
                    raise GraphError(
                        f"graph {self._name!r}: {dim} is {before} on {there}, and {size} on axis {axis} of {where}"
                    )
            elif isinstance(dim, StaticDim):
                fits = fits and int(dim) == size
        if not fits:
            raise GraphError(f"{where} of graph {self._name!r} has the shape {listed(dims)}, not {listed(shape)}")
        for dim, size in zip(dims, shape, strict=True):
            sizes = {name: number for name, (number, _) in known.items()}
            expected = dim.substitute(sizes)
            if isinstance(expected, StaticDim) and int(expected) != size:
                raise GraphError(f"{where} of graph {self._name!r}: {dim} is {expected}, and there it is {size}")


def _constraints(graph: Graph, names: Mapping[str, Dim], names_in_use: set[str]) -> Iterable[_Constraint]:
    """Return what has to be equal, or at least as large, with the operation that assumes it.

    For subgraphs, the dimensions are expressed in the graph that calls them: `names` has what their symbols are there,
    `names_in_use` all symbols.
    """
    for node in graph.nodes:
        for large, small in node.attributes.get("minimums", ()):
            yield node, large.substitute(names), small.substitute(names), False, ""
        if node.op == "rebind":
            for old, new in zip(node.inputs[0].shape, node.outputs[0].shape, strict=True):
                if old != new:
                    yield node, new.substitute(names), old.substitute(names), True, node.attributes["message"]
        elif node.op == "call":
            called, dims = node.attributes["graph"], node.attributes["dims"]
            inside = {name: dim.substitute(names) for name, dim in dims.items()}
            # A symbol that a subgraph creates itself, and does not return, is a different one in each call.
            inside |= {name: infer.new_symbol(name, names_in_use) for name in sorted(called.own_symbols - dims.keys())}
            yield from _constraints(called, inside, names_in_use)


def to_value(buffer: Buffer) -> onnxruntime.OrtValue:
    """Return a contiguous `Buffer` of host memory as a tensor of ONNX Runtime, which keeps it alive."""
    from onnxruntime import OrtValue

    number = ONNX_TYPES.get(buffer.dtype)
    if number is None:
        raise ArgumentError(f"ONNX Runtime does not support tensors of {buffer.dtype!r}", rule="argument.dtype")
    if buffer.dtype is DType.bfloat16 or buffer.dtype.is_float8():
        bits = buffer.view(DType.uint16 if buffer.dtype is DType.bfloat16 else DType.uint8)
        return OrtValue.ortvalue_from_numpy_with_onnx_type(bits.to_numpy(), number)
    return OrtValue.ortvalue_from_numpy(buffer.to_numpy())


def from_value(value: DLPackArray) -> Buffer:
    """Return a result of a run as a `Buffer` over the same memory."""
    return Buffer.from_dlpack(value)


_QUICK = 0.05
"""Runs of up to this many seconds need not be interrupted."""


class Runs:
    """The runs of one session.

    Python handles Ctrl-C only in the main thread, and only after a call into ONNX Runtime returns. So a call from the
    main thread is made in another thread, while the main thread waits where it can be interrupted. This is not done for
    inputs that are no larger than those of a quick run, because the other thread would take a part of that time.

    Args:
        session: The session of ONNX Runtime.
        results: The names of the requested results.
        bound: The values that are given in each run, by name.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, results: Sequence[str], bound: Mapping[str, onnxruntime.OrtValue]
    ) -> None:
        self._session, self._results, self._kept = session, results, bound
        self._bound = {name: value._ortvalue for name, value in bound.items()}
        self._quick = -1
        self._process = -1

    def run(self, feeds: Mapping[str, onnxruntime.OrtValue], size: int) -> list[DLPackArray]:
        """Return the results, in order, as tensors that support DLPack."""
        if size <= self._quick or threading.current_thread() is not threading.main_thread():
            return self._run(feeds)
        began = time.monotonic()
        results = self._interruptible(feeds)
        if time.monotonic() - began < _QUICK:
            self._quick = max(self._quick, size)
        return results

    def _run(
        self, feeds: Mapping[str, onnxruntime.OrtValue], options: onnxruntime.RunOptions | None = None
    ) -> list[DLPackArray]:
        # `InferenceSession.run_with_ort_values` takes a quarter of a millisecond more for 100 weights.
        values = self._bound | {name: value._ortvalue for name, value in feeds.items()}
        results = self._session._sess.run_with_ort_values(values, self._results, options)
        return [results[index] for index in range(len(self._results))]  # iterating over them takes 30 µs

    def _interruptible(self, feeds: Mapping[str, onnxruntime.OrtValue]) -> list[DLPackArray]:
        import onnxruntime

        options = onnxruntime.RunOptions()
        run = self._thread().submit(self._run, feeds, options)
        try:
            return run.result()
        except BaseException:
            options.terminate = True
            wait([run])
            raise

    def _thread(self) -> ThreadPoolExecutor:
        """The other thread, which is kept, as ONNX Runtime has memory for each thread. A forked child has lost it."""
        process = os.getpid()
        if self._process != process:
            self._process, self._executor = process, ThreadPoolExecutor(1, "max_weights run")
        return self._executor
