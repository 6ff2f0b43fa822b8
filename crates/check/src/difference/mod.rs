//! What differs between two checkpoints.
