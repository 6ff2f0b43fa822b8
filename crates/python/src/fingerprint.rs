//! Fingerprints of weights, and of tensors in memory.

use std::num::NonZero;

use max_weights::check::{TensorFingerprint, fingerprints, hold, key_of_content, row_sums};
use max_weights::fingerprint::FingerprintSums;
use max_weights::workers::now_and_then;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::load::over_weights;
use crate::node::WeightsNode;
use crate::tensor::PyTensor;

/// The kind of the elements, the shape, rows of a block, blocks of columns, and the sums of each block, 16 bytes in little-endian order.
type FingerprintRow<'py> = (&'static str, Vec<u64>, u64, u64, Bound<'py, PyBytes>);

fn bytes<'py>(py: Python<'py>, sums: &[FingerprintSums]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &sums.iter().flatten().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<u8>>())
}

fn record(py: Python<'_>, fingerprint: TensorFingerprint) -> FingerprintRow<'_> {
    let TensorFingerprint { kind, shape, rows_per_block, column_blocks, blocks } = fingerprint;
    (kind, shape, rows_per_block, column_blocks, bytes(py, &blocks))
}

/// The fingerprints of the weights of these full names, in this order.
#[pyfunction]
#[pyo3(signature = (node, names, *, column_blocks=1, threads=None, progress=None))]
pub(crate) fn fingerprints_of<'py>(
    node: &Bound<'py, WeightsNode>,
    names: Vec<String>,
    column_blocks: u64,
    #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<Vec<FingerprintRow<'py>>> {
    let found = over_weights(node, &names, progress, |checkpoint, numbers, done, cancel| {
        fingerprints(checkpoint, numbers, column_blocks, threads.map(NonZero::get), done, cancel)
    })?;
    Ok(found.into_iter().map(|fingerprint| record(node.py(), fingerprint)).collect())
}

/// The fingerprint of a tensor in memory, on all cores.
#[pyfunction]
#[pyo3(signature = (tensor, *, column_blocks=1))]
pub(crate) fn fingerprint_of<'py>(
    py: Python<'py>,
    tensor: &PyTensor,
    column_blocks: u64,
) -> BindingResult<FingerprintRow<'py>> {
    let of = || max_weights::check::fingerprint_of(tensor.tensor(), column_blocks, &now_and_then(&interrupt));
    Ok(record(py, detached(py, of)?))
}

/// The sums of each row of the last dimension, wherever in the tensor it is: 16 bytes each.
#[pyfunction]
pub(crate) fn fingerprints_of_rows<'py>(py: Python<'py>, tensor: &PyTensor) -> BindingResult<Bound<'py, PyBytes>> {
    let sums = detached(py, || row_sums(tensor.tensor(), &now_and_then(&interrupt)))?;
    Ok(bytes(py, &sums))
}

/// For each of these weights whether a tensor is known to hold it: because it is the file's own pages, or has its bytes, or those of its conversion.
#[pyfunction]
#[pyo3(signature = (node, names, tensors, *, threads=None))]
pub(crate) fn weights_are_held(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    tensors: Vec<PyRef<'_, PyTensor>>,
    #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
) -> BindingResult<Vec<bool>> {
    let tensors: Vec<_> = tensors.iter().map(|tensor| tensor.tensor().clone()).collect();
    over_weights(node, &names, None, |checkpoint, numbers, done, cancel| {
        let pairs: Vec<_> = numbers.iter().copied().zip(tensors).collect();
        hold(checkpoint, &pairs, threads.map(NonZero::get), done, cancel)
    })
}

/// For each of these weights a key: weights with equal keys have the same bytes. None for a weight that is composed of several, or was written to in
/// this process. None also if its file changed, or was written only just now.
#[pyfunction]
pub(crate) fn keys_of_content(node: &Bound<'_, WeightsNode>, names: Vec<String>) -> BindingResult<Vec<Option<String>>> {
    over_weights(node, &names, None, |checkpoint, numbers, _, _| {
        numbers.iter().map(|&number| key_of_content(checkpoint, number)).collect()
    })
}
