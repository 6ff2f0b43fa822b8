//! Rules of quantised checkpoints: packed weights, their scales, and what the configuration says of them.

use super::rules;

rules! {}
