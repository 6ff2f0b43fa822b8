//! Rules of the values of tensors: what only reading every byte shows.

use super::rules;

rules! {}
