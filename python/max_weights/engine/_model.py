"""`Model`: a graph that is ready to run; `InferenceSession` prepares it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

from max_weights._buffer import Buffer
from max_weights._core import WeightsNode
from max_weights._devices import CPU, Device
from max_weights._dtype import DType
from max_weights._shape import Shape, listed
from max_weights.engine._runs import Runs, Sizes, from_value, to_value
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.graph._errors import GraphError
from max_weights.graph._graph import Graph
from max_weights.graph._lowering.model import lower
from max_weights.graph._lowering.products import ELEMENTS, repack
from max_weights.graph._lowering.values import contiguous, values_of
from max_weights.graph._type import BufferType, TensorType

if TYPE_CHECKING:
    from types import ModuleType

    import onnxruntime

    from max_weights._core import WeightsNode
    from max_weights.graph._graph import Graph

__all__ = ["InferenceSession", "Memory", "Model", "TensorSpec"]


_NODE = re.compile(r"#\d+")  # the text before it differs in functions


@dataclass(frozen=True)
class TensorSpec:
    """What is known about an input or output of a model."""

    dtype: DType
    """The type of the elements."""
    shape: Shape
    """The shape; symbols stand for sizes that differ in each run."""
    name: str
    """The name: `input0`, `output0` and so on."""


class Model:
    """A graph with its weights, ready to run; created by `InferenceSession.load`.

    Several threads may run it at the same time.
    """

    def __init__(
        self, graph: Graph, weights_registry: Mapping[str, object] | WeightsNode | None, fast: bool, threads: int | None
    ) -> None:
        runtime = _onnxruntime()
        self._name = graph.name
        self._types = graph.input_types
        self._weights = values_of(graph, weights_registry)
        shapes = {name: weight.shape for name, weight in self._weights.items()}
        self._lowered = lower(graph, shapes, initializers=fast)
        self._inputs = self._lowered.inputs
        self._sizes = Sizes(graph, shapes)
        self._output_types = graph.output_types
        self._stored = list(graph.stored)
        parts = self._lowered.repack_weights(self._weights)
        self._part_sizes = {name: part.nbytes for name, part in parts.items()}
        self._weights = {name: self._weights[name] for name in self._lowered.weights}
        # One weight of each mapping is enough to see whether its file is unchanged.
        self._files = list({weight._memory()[0]._data_ptr(): weight for weight in self._weights.values()}.values())
        values = {name: to_value(weight) for name, weight in self._weights.items()}
        values |= {name: to_value(parts.pop(name)) for name in self._lowered.decoded_weights}
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions
        if threads is not None:
            options.intra_op_num_threads = threads
        if not fast and not parts:
            options.add_session_config_entry("session.disable_prepacking", "1")
        held = {name: to_value(part) for name, part in parts.items()} | (values if fast else {})
        if held:
            options.add_external_initializers(list(held), list(held.values()))
        for name, value in values.items() if fast else ():  # values without a new layout are used in place
            options.add_initializer(name, value)
        self._kept = values  # and not those that ONNX Runtime has in a new layout
        model = self._lowered.serialize()
        try:
            session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except MemoryError:
            raise
        except Exception as error:
            self._explain(error)
        self._results = [output.name for output in session.get_outputs()]
        self._runs = Runs(session, self._results, {} if fast else values)

    @property
    def input_metadata(self) -> list[TensorSpec]:
        """The name, dtype and shape of each input."""
        return _specs("input", self._types)

    @property
    def output_metadata(self) -> list[TensorSpec]:
        """The name, dtype and shape of each output."""
        return _specs("output", self._output_types)

    @property
    def cost_notes(self) -> list[str]:
        """The costs of the model in addition to its weights and operations, in sentences.

        They list the weights that are converted, because ONNX Runtime does not compute with their dtype, transposed,
        decoded, or repacked, and the bytes that this takes.
        """
        from max_weights.graph._lowering.model import cost_notes

        return cost_notes(self._lowered, self._weights, self._part_sizes)

    @property
    def devices(self) -> list[Device]:
        """The devices that the model runs on: the CPU."""
        return [CPU()]

    @property
    def input_devices(self) -> list[Device]:
        """The device of each input: the CPU."""
        return [CPU() for _ in self._types]

    @property
    def output_devices(self) -> list[Device]:
        """The device of each output: the CPU."""
        return [CPU() for _ in self._output_types]

    def execute(self, *args: object) -> list[Buffer]:
        """Run the graph.

        Args:
            *args: The inputs, in order: `Buffer`, NumPy arrays, tensors that support DLPack. In those for a BufferType,
                contiguous and writable, the graph stores after everything is computed.

        Returns:
            The outputs, in order.

        Raises:
            GraphError: another number of inputs, an input of another dtype or shape, a size that contradicts the graph,
                or an operation that fails (a ValueError).
            FileChangedError: a file with weights was truncated.
            KeyboardInterrupt: Ctrl-C was pressed; it interrupts the run after the current operation.

        Example:
            >>> double = Graph("double", lambda x: x * 2.0, [x.type])
            >>> engine.InferenceSession().load(double).execute(np.ones((2, 3), "f4"))[0].shape
            (2, 3)
        """
        if len(args) != len(self._types):
            raise GraphError(f"graph {self._name!r} takes {len(self._types)} inputs, not {len(args)}")
        feeds: dict[str, onnxruntime.OrtValue] = {}
        buffers: dict[str, Buffer] = {}
        shapes, size = [], 0
        stores: list[Buffer] = []
        for index, (name, kind, arg) in enumerate(zip(self._inputs, self._types, args, strict=True)):
            buffer = contiguous(arg, f"{name} of graph {self._name!r}")
            if index in self._stored:
                stores.append(_memory_to_store(arg, f"{name} of graph {self._name!r}"))
            if buffer.dtype is not kind.dtype:
                raise GraphError(
                    f"{name} of graph {self._name!r} is {kind.dtype!r} {listed(kind.shape)}, not {buffer.dtype!r}"
                )
            shapes.append(buffer.shape)
            size += buffer.nbytes
            feeds[name] = to_value(buffer)
            buffers[name] = buffer
        self._sizes.check(shapes)
        for name, (source, encoding) in self._lowered.decoded_inputs.items():
            feeds[name] = to_value(repack(encoding, ELEMENTS, buffers[source]))
        for weight in self._files:
            weight._require_file()
        try:
            results = self._runs.run(feeds, size)
        except MemoryError:
            raise
        except Exception as error:
            self._explain(error)
        named = dict(zip(self._results, results, strict=True))
        for label, printed in self._lowered.prints:
            print(label if printed is None else f"{label} = {from_value(named[printed]).to_numpy()}")
        outputs = [from_value(named[name]) for name in self._lowered.outputs]
        count = len(self._output_types)
        for buffer, contents in zip(stores, outputs[count:], strict=True):
            buffer.inplace_copy_from(contents)
        return outputs[:count]

    def __call__(self, *args: object) -> list[Buffer]:
        """Run the graph; see `execute`."""
        return self.execute(*args)

    def _explain(self, error: Exception) -> NoReturn:
        """Say which operation of the graph ONNX Runtime means."""
        cause = str(error)
        operations = {name[name.index("#") :]: node for name, node in self._lowered.operations.items()}
        for number in _NODE.findall(cause):
            node = operations.get(number)
            if node is not None:
                failure = GraphError(f"{node.op} of graph {self._name!r} (at {node.location}): {cause}")
                failure.op, failure.location = node.op, node.location
                raise failure from error
        raise GraphError(f"graph {self._name!r}: {cause}") from error

    def __repr__(self) -> str:
        return f"Model({self._name!r}, inputs={self.input_metadata}, outputs={self.output_metadata})"


def _onnxruntime() -> ModuleType:
    try:
        import onnx_ir  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"running graphs needs ONNX Runtime, but {error.name} is not installed: pip install 'max-weights[graph]'",
            name=error.name,
        ) from None
    module: ModuleType = onnxruntime
    return module


def _memory_to_store(argument: object, what: str) -> Buffer:
    """Return the tensor over the memory of an argument, which a graph stores in."""
    memory = Buffer.of(argument, what)
    if not (memory.is_host and memory.is_contiguous and memory.is_writable):
        raise GraphError(f"{what} is stored in: it must be contiguous and writable host memory")
    return memory


def _specs(what: str, types: Sequence[TensorType | BufferType]) -> list[TensorSpec]:
    return [TensorSpec(kind.dtype, kind.shape, f"{what}{index}") for index, kind in enumerate(types)]


Memory: TypeAlias = Literal["shared", "fast"]
"""How weights are stored: they stay in place ("shared"), or are repacked for speed ("fast")."""


class InferenceSession:
    """Prepares graphs for running, on the CPU, with ONNX Runtime.

    Args:
        num_threads: The number of threads of a run; all cores by default.
        devices: The CPU, as in MAX; others are refused.
        custom_extensions: Kernels of MAX; refused.

    Raises:
        UnsupportedError: a device other than the CPU, or custom extensions.
    """

    def __init__(
        self, num_threads: int | None = None, devices: Iterable[Device] = (), *, custom_extensions: object = None
    ) -> None:
        self._devices = list(devices) or [CPU()]
        for device in self._devices:
            if not device.is_host:
                raise UnsupportedError(
                    f"graphs run on the CPU in this version, not on {device}", rule="unsupported.kernel"
                )
        _no_extensions(custom_extensions)
        if num_threads is not None and num_threads < 1:
            raise ArgumentError(f"num_threads must be 1 or more, not {num_threads}", rule="argument.number")
        self._threads = num_threads

    @property
    def devices(self) -> list[Device]:
        """The CPU."""
        return list(self._devices)

    def load(
        self,
        model: Graph,
        *,
        weights_registry: Mapping[str, object] | WeightsNode | None = None,
        memory: Memory = "shared",
        custom_extensions: object = None,
    ) -> Model:
        """Prepare a graph for running.

        Args:
            model: A graph with outputs.
            weights_registry: The value of each weight of the graph, by name: arrays, `Buffer`, `WeightData`, tensors.
                Or the weights of a checkpoint, or of a node in it, with names from there on. By default, the values
                that `load_state_dict` gave the weights. They are not copied, and stay alive with the model.
            memory: With "shared" weights stay where they are, for example in pages of a mapped file, which are read
                when they are first needed. With "fast" ONNX Runtime repacks matrices, which takes their memory a second
                time.
            custom_extensions: Refused.

        Returns:
            The model.

        Raises:
            GraphError: a weight has no value, or one of another dtype or shape; or ONNX Runtime refuses an operation (a
                ValueError).
            UnsupportedError: an operation or a dtype that cannot be run.
            ImportError: ONNX Runtime is not installed.

        Example:
            >>> double = Graph("double", lambda x: x * 2.0, [x.type])
            >>> engine.InferenceSession().load(double).output_metadata[0].name
            'output0'
        """
        if not isinstance(model, Graph):
            raise TypeError(f"load: takes a Graph, not {type(model).__name__}")
        if memory not in ("shared", "fast"):
            raise ArgumentError(f"memory must be 'shared' or 'fast', not {memory!r}", rule="argument.choice")
        _no_extensions(custom_extensions)
        return Model(model, weights_registry, memory == "fast", self._threads)

    def __repr__(self) -> str:
        return f"InferenceSession(devices={self._devices})"


def _no_extensions(custom_extensions: object) -> None:
    if custom_extensions:
        raise UnsupportedError(
            "custom extensions are kernels for MAX's compiler, which is not here", rule="unsupported.kernel"
        )
