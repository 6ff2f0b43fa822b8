"""From a graph to an ONNX model: each operation becomes ONNX nodes, each subgraph a function.

`model.py` builds the model, `scope.py` writes nodes, and `table.py` finds the function that lowers an operation. The
other modules contain these functions, by the files of `ops` that record the operations. `onnx` is imported when a graph
is lowered.
"""
