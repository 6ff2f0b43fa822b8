"""Measure how long a checkpoint takes to load: here, by the other packages that are installed, and at the least."""

from max_weights.benching.measure import bench
from max_weights.benching.result import BenchResult, BenchRow

__all__ = ["BenchResult", "BenchRow", "bench"]
