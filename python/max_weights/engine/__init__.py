"""Running graphs with ONNX Runtime: `InferenceSession` makes a `Model` from a graph and its weights.

It needs the extra `max-weights[graph]`; ONNX Runtime is imported when a graph is loaded.
"""

from max_weights._unsupported import unsupported_names as _unsupported_names
from max_weights.engine._model import InferenceSession, Model, TensorSpec

_ADVICE = "graphs are not compiled ahead of time here; InferenceSession().load(graph) makes them ready to run"

__getattr__ = _unsupported_names(__name__, CompiledModel=_ADVICE)

__all__ = ["InferenceSession", "Model", "TensorSpec"]
