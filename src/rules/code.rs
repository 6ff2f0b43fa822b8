//! Rules of what pickles call when they are loaded, and of how they hide it.

use super::rules;

rules! {}
