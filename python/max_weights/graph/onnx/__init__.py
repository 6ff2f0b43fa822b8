"""Graphs as ONNX models: in one piece, or as files whose weights stay in the checkpoint that they came from."""

from max_weights.graph.onnx._model import save, to_model

__all__ = ["save", "to_model"]
