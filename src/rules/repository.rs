//! Rules of what lies beside weights: configurations, templates and programs that loaders run.

use super::rules;

rules! {}
