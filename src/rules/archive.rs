//! Rules of archives, and of code in files that are no pickles: what is hidden in them, and what could not be looked at.

use super::rules;

rules! {}
