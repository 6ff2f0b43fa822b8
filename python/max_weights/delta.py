"""Deltas: what changed between two versions of a checkpoint, as a small safetensors file.

A trainer writes one after each step, and engines apply them. A base and a chain of deltas are opened as one checkpoint:
`load_weights([base, delta, ...])`. The format of the files is specified in docs/delta.md.
"""

from max_weights._delta import Delta, DeltaSummary, Version, apply, apply_into, create, fold, follow, read

__all__ = ["Delta", "DeltaSummary", "Version", "apply", "apply_into", "create", "fold", "follow", "read"]
