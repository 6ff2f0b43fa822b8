"""From a graph to an ONNX model: each operation becomes nodes of ONNX, each subgraph a function.

`model.py` makes the model, `scope.py` is where nodes are written, `table.py` finds the function that lowers an
operation; the others hold these functions, by the files of `ops` that record the operations. `onnx` is imported when a
graph is lowered.
"""
