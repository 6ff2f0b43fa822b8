//! The binding: it converts arguments, results and errors, and does nothing else. One small file per subject.
#![allow(clippy::unused_self)] // Python's methods take `self`, whether they look at it or not

mod buffer;
mod convert;
mod dlpack;
mod error;
mod formats;
mod infos;
mod keys;
mod metadata;
mod objects;
mod open;
mod pickle;
mod torch;
mod values;
mod weights;

use pyo3::prelude::*;

/// The compiled part of `max_weights`. Its names are re-exported where people look for them.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::buffer::{Buffer, dequantize, quantize, release_memory, scale_blocks};
    #[pymodule_export]
    use crate::formats::{GGUFWeights, PytorchWeights, SafetensorWeights};
    #[pymodule_export]
    use crate::infos::{WeightInfo, WeightInfos};
    #[pymodule_export]
    use crate::metadata::Metadata;
    #[pymodule_export]
    use crate::objects::{Objects, Placeholder};
    #[pymodule_export]
    use crate::open::open_weights;
    #[pymodule_export]
    use crate::pickle::{buffer_of_bytes, remap_buffer, reopen_weights};
    #[pymodule_export]
    use crate::torch::{TorchFile, torch_globals};
    #[pymodule_export]
    use crate::weights::{WeightsNode, buffers, export_dlpack, files, rename_weights, tree};

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("RESERVED", crate::weights::RESERVED)
    }
}
