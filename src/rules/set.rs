//! Rules of a whole folder: configuration, index, shards and tokenizer together.

use super::rules;

rules! {}
