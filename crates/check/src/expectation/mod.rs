//! What a checkpoint is expected to have, and whether it has it.
