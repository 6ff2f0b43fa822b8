"""Load checkpoints as torch tensors, and into torch modules. Importing this module imports torch."""

from max_weights._load_report import LoadReport
from max_weights.torch._builder import load
from max_weights.torch._embedding import embedding
from max_weights.torch._file import load_file
from max_weights.torch._into import load_into
from max_weights.torch._verification import VerificationReport, verify_loaded

__all__ = ["LoadReport", "VerificationReport", "embedding", "load", "load_file", "load_into", "verify_loaded"]
