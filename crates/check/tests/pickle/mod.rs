//! What loading a pickle would do.

mod calls;
mod pickle_bounds;
mod pickle_torch;
