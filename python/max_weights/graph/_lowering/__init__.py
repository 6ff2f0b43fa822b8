"""From a graph to an ONNX model: each operation becomes ONNX nodes, each subgraph a function.

`model.py` builds the model, `writer.py` and `scope.py` write nodes, and `table.py` has the function that lowers each
operation. The other modules contain these functions, by the files of `ops` that record the operations. `onnx_ir` is
imported when a graph is lowered.
"""

# Each of these enters its functions in the table.
from max_weights.graph._lowering import arithmetic, products, reductions, shaping, subgraphs  # noqa: F401
