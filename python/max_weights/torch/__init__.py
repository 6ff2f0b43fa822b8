"""Load checkpoints as torch tensors, and into torch modules. Importing this module imports torch."""

from max_weights.torch.builder import load
from max_weights.torch.file import load_file
from max_weights.torch.into import load_into
from max_weights.torch.report import LoadReport

__all__ = ["LoadReport", "load", "load_file", "load_into"]
