"""Measure how long a checkpoint takes to load: with this package, other installed packages, and the lower bound."""

from max_weights._benching.measure import bench
from max_weights._benching.result import BenchResult, BenchRow

__all__ = ["BenchResult", "BenchRow", "bench"]
