"""The types of arguments and results of the package, for annotations."""

from max_weights._buffer import DLPackArray
from max_weights._checkpoints import Checkpoint
from max_weights._finding import Finding
from max_weights._fingerprint_record import Fingerprint, FingerprintComparison
from max_weights._lazy import LazyTensor
from max_weights._load_report import LoadReport
from max_weights._load_request import Rename
from max_weights._loading import Convert
from max_weights._planning import LoadPlan
from max_weights._progress import Progress
from max_weights._quantized_weights import QuantizedWeight
from max_weights._read_options import ReadOptions
from max_weights._resharding import ReshardPlan
from max_weights._result import Result
from max_weights._rows import CacheCounts, PendingRows, Table
from max_weights._selection import Select
from max_weights._streaming import WeightStream
from max_weights._weight_statistics import WeightStatistics
from max_weights._weights import Metadata, Objects, Placeholder, WeightInfo, WeightsAdapter

__all__ = [
    "CacheCounts",
    "Checkpoint",
    "Convert",
    "DLPackArray",
    "Finding",
    "Fingerprint",
    "FingerprintComparison",
    "LazyTensor",
    "LoadPlan",
    "LoadReport",
    "Metadata",
    "Objects",
    "PendingRows",
    "Placeholder",
    "Progress",
    "QuantizedWeight",
    "ReadOptions",
    "Rename",
    "ReshardPlan",
    "Result",
    "Select",
    "Table",
    "WeightInfo",
    "WeightStatistics",
    "WeightStream",
    "WeightsAdapter",
]
