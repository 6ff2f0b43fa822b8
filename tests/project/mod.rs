//! The conventions of the core: its imports, limits, rules and messages.

mod architecture;
mod circles;
mod error_sentences;
mod limits;
mod rules;
mod rules_raised;
mod type_names;
