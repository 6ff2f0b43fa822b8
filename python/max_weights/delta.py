"""Deltas: what changed between two versions of a checkpoint, as a small safetensors file.

A trainer writes one after each step, engines apply them; `load_weights([base, delta, ...])` opens a base and a chain of
deltas as one checkpoint. docs/delta.md specifies the files.
"""

from max_weights._delta import Delta, DeltaSummary, Version, apply, apply_into, create, fold, follow, read

__all__ = ["Delta", "DeltaSummary", "Version", "apply", "apply_into", "create", "fold", "follow", "read"]
