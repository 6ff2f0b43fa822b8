"""`InferenceSession`: prepares graphs for running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from max_weights._core import WeightsNode
from max_weights._devices import CPU, Device
from max_weights.engine._model import Model
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.graph._graph import Graph

__all__ = ["InferenceSession", "Memory"]

Memory: TypeAlias = Literal["shared", "fast"]
"""What happens to the weights: they stay where they are, or are laid out anew for speed."""


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
                raise UnsupportedError(f"graphs run on the CPU in this version, not on {device}")
        _no_extensions(custom_extensions)
        if num_threads is not None and num_threads < 1:
            raise ArgumentError(f"num_threads must be 1 or more, not {num_threads}")
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
            memory: "shared" leaves weights where they are, for example as pages of a mapped file, which are read when
                they are first needed. "fast" makes ONNX Runtime lay out matrices anew, which takes their memory a
                second time.
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
            raise ArgumentError(f"memory must be 'shared' or 'fast', not {memory!r}")
        _no_extensions(custom_extensions)
        return Model(model, weights_registry, memory == "fast", self._threads)

    def __repr__(self) -> str:
        return f"InferenceSession(devices={self._devices})"


def _no_extensions(custom_extensions: object) -> None:
    if custom_extensions:
        raise UnsupportedError("custom extensions are kernels for MAX's compiler, which is not here")
