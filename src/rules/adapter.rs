//! Rules of adapters.

use super::rules;

rules! {}
