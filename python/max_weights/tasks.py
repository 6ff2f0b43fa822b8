"""Many files, many machines: a command of `max-weights` as tasks, on an existing cluster.

python -m max_weights.tasks --engine ray --tasks 16 -o report.json validate s3://bucket/models
"""

from max_weights._tasks import TasksResult, run_tasks

__all__ = ["TasksResult", "run_tasks"]

if __name__ == "__main__":
    import sys

    from max_weights._tasks import main

    sys.exit(main(sys.argv[1:]))
