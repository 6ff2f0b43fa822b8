"""Many files, many machines: a command of `max-weights` as tasks, on a cluster that is there already.

`validate`, `scan`, `manifest create` and `convert` take `--task I/N`: each task knows by itself what it has to do, so
that array jobs of Slurm and indexed jobs of Kubernetes need nothing of this module. It is for engines that are called
from Python: Ray, and whatever has a `map`, such as a client of Dask or an executor of `concurrent.futures`.

    python -m max_weights.tasks --engine ray --tasks 16 -o report.json validate s3://bucket/models
"""

from max_weights._tasks import TasksResult, run_tasks

__all__ = ["TasksResult", "run_tasks"]

if __name__ == "__main__":
    import sys

    from max_weights._tasks import main

    sys.exit(main(sys.argv[1:]))
