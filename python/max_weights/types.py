"""What functions of the package take and return, for annotations."""

from max_weights._benching import BenchRow
from max_weights._buffer import DLPackArray
from max_weights._checking import FileReport, Finding, GlobalUse
from max_weights._difference import ChangedWeight, ComparedValues, OneSidedWeight, RenamedWeight
from max_weights._fingerprint_record import Fingerprint, FingerprintComparison, FingerprintDifference, TensorFingerprint
from max_weights._lazy import LazyTensor
from max_weights._load_report import LoadReport
from max_weights._load_request import Rename
from max_weights._loading import Convert
from max_weights._planning import LoadPlan, PlannedRange
from max_weights._progress import Progress
from max_weights._quantized_weights import QuantizedWeight, QuantizedWeights
from max_weights._read_options import ReadOptions
from max_weights._resharding import ReshardPlan
from max_weights._selection import Select
from max_weights._streaming import WeightStream
from max_weights._weight_statistics import WeightStatistics
from max_weights._weights import Metadata, Objects, Placeholder, WeightInfo, WeightInfos, WeightsAdapter

__all__ = [
    "BenchRow",
    "ChangedWeight",
    "ComparedValues",
    "Convert",
    "DLPackArray",
    "FileReport",
    "Finding",
    "Fingerprint",
    "FingerprintComparison",
    "FingerprintDifference",
    "GlobalUse",
    "LazyTensor",
    "LoadPlan",
    "LoadReport",
    "Metadata",
    "Objects",
    "OneSidedWeight",
    "Placeholder",
    "PlannedRange",
    "Progress",
    "QuantizedWeight",
    "QuantizedWeights",
    "ReadOptions",
    "Rename",
    "RenamedWeight",
    "ReshardPlan",
    "Select",
    "TensorFingerprint",
    "WeightInfo",
    "WeightInfos",
    "WeightStatistics",
    "WeightStream",
    "WeightsAdapter",
]
