//! Loading many tensors of a tree: as views whose pages are in memory, into memory of their own, or into the caller's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::error::Error;
use max_weights::load::Layout;
use max_weights::memory::Exclusive;
use max_weights::workers::now_and_then;
use pyo3::prelude::*;

use crate::buffer::{Buffer, writable};
use crate::convert::dtype_from_python;
use crate::ending::{detached, reattached};
use crate::error::{Outcome, interrupt};
use crate::weights::WeightsNode;

type Tensor = max_weights::buffer::Buffer;

/// The tensors of these full names, each as the dtype beside it (None: as it is), in this order.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     dtypes: One for each.
///     own: Give every tensor memory of its own; otherwise those that the file has as they are wanted are views of its mapping, whose pages
///         are brought into memory.
///     outs: {position: memory to write to}.
///     progress: Called now and then with the bytes that are done and those of all; what it raises ends the loading.
#[pyfunction]
#[pyo3(signature = (node, names, dtypes, *, own, outs, progress=None))]
pub(crate) fn load_tensors(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    dtypes: Vec<Option<Bound<'_, PyAny>>>,
    own: bool,
    outs: HashMap<usize, Bound<'_, PyAny>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> Outcome<Vec<Buffer>> {
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let numbers = names.iter().map(|name| node.catalog().require(name)).collect::<Result<Vec<usize>, Error>>()?;
    let dtypes = dtypes.iter().map(|dtype| dtype.as_ref().map(dtype_from_python).transpose());
    let dtypes = dtypes.collect::<PyResult<Vec<_>>>()?;
    let mut room: Vec<Option<Exclusive<Tensor>>> = names.iter().map(|_| None).collect();
    for (position, out) in outs {
        if let Some(room) = room.get_mut(position) {
            *room = Some(writable(&out)?.1);
        }
    }
    let given: Vec<bool> = room.iter().map(Option::is_some).collect();
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    let loaded = detached(py, || {
        let wanted = numbers.iter().zip(&dtypes).map(|(&number, &dtype)| node.catalog().wanted(number, dtype));
        let layout = Layout::new(&checkpoint, wanted.collect::<Result<_, _>>()?, own, &given)?;
        let bytes = layout.bytes();
        let tell = |done: u64| {
            let Some(progress) = &progress else { return Ok(()) };
            let told = reattached(|py| {
                progress.call1(py, (done, bytes)).map(drop).map_err(|error| {
                    error.restore(py);
                    Error::Interrupted
                })
            });
            told.unwrap_or(Err(Error::Interrupted))
        };
        tell(0)?;
        let go_on = || interrupt().and_then(|()| tell(done.load(Ordering::Relaxed)));
        let loaded = layout.run(&checkpoint, room, &done, &now_and_then(&go_on))?;
        tell(bytes)?;
        Ok::<_, Error>(loaded)
    })?;
    let mut made = Vec::with_capacity(loaded.len());
    for (number, tensor) in numbers.into_iter().zip(loaded) {
        made.push(node.taken(py, &checkpoint, number, tensor)?);
    }
    Ok(made)
}
