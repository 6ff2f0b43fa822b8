//! Files of a repository in the folder of its weights.

mod repository_code;
mod repository_folders;
mod repository_paths;
mod repository_programs;
mod repository_random;
mod repository_targets;
mod repository_templates;
