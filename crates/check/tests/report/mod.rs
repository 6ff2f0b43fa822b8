//! Reports and their settings.

mod baseline;
mod output;
mod output_hostile;
mod output_limits;
mod settings;
