"""Measure how long a checkpoint takes to load: with this package, with other installed packages, and at the least."""

from max_weights._benching.measure import bench
from max_weights._benching.result import BenchResult, BenchRow

__all__ = ["BenchResult", "BenchRow", "bench"]
