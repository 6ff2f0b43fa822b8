//! Each format: hostile files, odd files, and other readers as oracles.

mod gguf_hostile;
mod gguf_oracle;
mod pickle_costs;
mod pickle_hostile;
mod pickle_names;
mod pickle_oracle;
mod python_source;
mod safetensors_hostile;
mod safetensors_oracle;
mod torch_files_oracle;
mod torch_legacy_hostile;
mod torch_zip_contents;
mod torch_zip_hostile;
