"""Running graphs, under the dotted path of MAX: this version describes graphs and does not run them."""

from max_weights.absent import absent

_ADVICE = "this version describes graphs and does not run them; load_weights gives tensors to the libraries that do"

__getattr__ = absent(__name__, InferenceSession=_ADVICE, Model=_ADVICE, CompiledModel=_ADVICE, TensorSpec=_ADVICE)
