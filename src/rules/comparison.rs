//! Rules of what is compared: manifests, expectations, two checkpoints.

use super::rules;

rules! {}
