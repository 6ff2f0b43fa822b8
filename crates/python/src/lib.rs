//! The binding: it converts arguments, results and errors, and does nothing else. One small file per subject.
#![allow(clippy::unused_self)] // Python's methods take `self`, whether they look at it or not

mod array_names;
mod blocks;
mod buffer;
mod buffer_of;
mod buffer_protocol;
mod check;
mod children;
mod codebook;
mod command_line;
mod convert;
mod delta;
mod dlpack;
mod ending;
mod error;
mod fingerprint;
mod formats;
mod groups;
mod infos;
mod keys;
mod load;
mod metadata;
mod node;
mod numbers;
mod objects;
mod one_file;
mod open;
mod out;
mod own;
mod package;
mod pickle;
mod place;
mod plan;
mod prefetch;
mod quantized;
mod ranks;
mod remote;
mod rows;
mod save;
mod save_gguf;
mod save_ranks;
mod shared;
mod stream;
mod take;
mod tensor;
mod text;
mod torch;
mod values;
mod walk;
mod weights;

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction as function;

/// The compiled part of `max_weights`. Its names are re-exported where people look for them.
#[pymodule(gil_used = false)]
#[pyo3(name = "_core")]
fn core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    buffer_protocol::require_main_interpreter()?; // before anything is made that stays
    ending::register(module)?;
    error::register(module)?;
    delta::register(module)?;
    max_weights::device::wait_by(dlpack::without_gil);
    #[cfg(feature = "remote")]
    remote::install();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.setattr("__path__", [folder(module)?])?;
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<check::PyReport>()?;
    module.add_class::<formats::GGUFWeights>()?;
    module.add_class::<formats::PytorchWeights>()?;
    module.add_class::<formats::SafetensorWeights>()?;
    module.add_class::<infos::WeightInfo>()?;
    module.add_class::<infos::WeightInfos>()?;
    module.add_class::<metadata::Metadata>()?;
    module.add_class::<objects::Objects>()?;
    module.add_class::<objects::Placeholder>()?;
    module.add_class::<one_file::PySafeSlice>()?;
    module.add_class::<one_file::SafetensorsFile>()?;
    module.add_class::<pickle::PickledFile>()?;
    module.add_class::<quantized::QuantizationConfig>()?;
    module.add_class::<quantized::QuantizedLayout>()?;
    module.add_class::<quantized::QuantizedListing>()?;
    module.add_class::<quantized::QuantizedNames>()?;
    module.add_class::<quantized::QuantizedRecord>()?;
    module.add_class::<stream::TensorStream>()?;
    module.add_class::<prefetch::Prefetcher>()?;
    module.add_class::<ranks::RankPlan>()?;
    module.add_class::<rows::PendingRows>()?;
    module.add_class::<rows::PyRowTable>()?;
    module.add_class::<save_ranks::RankSave>()?;
    module.add_class::<torch::TorchFile>()?;
    module.add_class::<remote::RangeSource>()?;
    module.add_class::<remote::RemoteStore>()?;
    module.add_class::<node::WeightsNode>()?;
    module.add_function(function!(blocks::dequantize, module)?)?;
    module.add_function(function!(codebook::dequantize_codebook, module)?)?;
    module.add_function(function!(groups::dequantize_groups, module)?)?;
    module.add_function(function!(blocks::quantize, module)?)?;
    module.add_function(function!(blocks::release_memory, module)?)?;
    module.add_function(function!(blocks::scale_blocks, module)?)?;
    module.add_function(function!(check::difference_of, module)?)?;
    module.add_function(function!(check::statistics_of, module)?)?;
    module.add_function(function!(check::validate_files, module)?)?;
    module.add_function(function!(command_line::command_line, module)?)?;
    module.add_function(function!(command_line::versions, module)?)?;
    module.add_function(function!(fingerprint::fingerprint_of, module)?)?;
    module.add_function(function!(fingerprint::fingerprints_of, module)?)?;
    module.add_function(function!(fingerprint::fingerprints_of_rows, module)?)?;
    module.add_function(function!(fingerprint::keys_of_content, module)?)?;
    module.add_function(function!(fingerprint::weights_are_held, module)?)?;
    module.add_function(function!(load::digests_of, module)?)?;
    module.add_function(function!(load::get_threads, module)?)?;
    module.add_function(function!(load::limit_threads, module)?)?;
    module.add_function(function!(load::load_tensors, module)?)?;
    module.add_function(function!(save::check_disjoint, module)?)?;
    module.add_function(function!(save::check_safetensors_name, module)?)?;
    module.add_function(function!(save::place_file, module)?)?;
    module.add_function(function!(save::save_converted, module)?)?;
    module.add_function(function!(save::save_tensors, module)?)?;
    module.add_function(function!(save_gguf::save_gguf_tensors, module)?)?;
    module.add_function(function!(save_gguf::save_gguf_weights, module)?)?;
    module.add_function(function!(save::serialize_tensors, module)?)?;
    module.add_class::<save::FileWriter>()?;
    module.add_function(function!(load::set_threads, module)?)?;
    module.add_function(function!(one_file::safetensors_header, module)?)?;
    module.add_function(function!(formats::open_weights, module)?)?;
    module.add_function(function!(place::accelerator_count, module)?)?;
    module.add_function(function!(place::missing_accelerator, module)?)?;
    module.add_function(function!(plan::plan_tensors, module)?)?;
    module.add_function(function!(pickle::buffer_of_bytes, module)?)?;
    module.add_function(function!(pickle::remap_buffer, module)?)?;
    module.add_function(function!(pickle::reopen_weights, module)?)?;
    module.add_function(function!(take::buffers, module)?)?;
    module.add_function(function!(take::data_of_all, module)?)?;
    module.add_function(function!(take::export_dlpack, module)?)?;
    module.add_function(function!(quantized::decode_weights, module)?)?;
    module.add_function(function!(quantized::may_be_quantized, module)?)?;
    module.add_function(function!(quantized::quantized_names, module)?)?;
    module.add_function(function!(quantized::quantized_record, module)?)?;
    module.add_function(function!(quantized::read_quantization_config, module)?)?;
    module.add_function(function!(rows::rows_of, module)?)?;
    module.add_function(function!(text::near_names, module)?)?;
    module.add_function(function!(text::renamed_names, module)?)?;
    module.add_function(function!(text::printable, module)?)?;
    module.add_function(function!(text::escape, module)?)?;
    module.add_function(function!(torch::torch_globals, module)?)?;
    module.add_function(function!(ranks::file_identities, module)?)?;
    module.add_function(function!(ranks::ranges_in_mesh, module)?)?;
    module.add_function(function!(walk::files, module)?)?;
    module.add_function(function!(walk::infos, module)?)?;
    module.add_function(function!(weights::rename_weights, module)?)?;
    module.add_function(function!(weights::convert_weights, module)?)?;
    module.add_function(function!(weights::first_fitting, module)?)?;
    module.add_function(function!(walk::tree, module)?)?;
    module.add_function(function!(walk::verify_checksums, module)?)?;
    Ok(())
}

/// The folder `_core` next to the extension: `import` treats a module with a path as a package, and finds `max_weights._core.safetensors` there, as
/// in MAX.
fn folder(module: &Bound<'_, PyModule>) -> PyResult<OsString> {
    let file: PathBuf = module.getattr("__file__")?.extract()?;
    Ok(file.with_file_name("_core").into_os_string())
}
