//! Arrays of other formats than those of checkpoints, such as NumPy's and ONNX's: their values, as those of tensors.

use max_weights::check::TensorPass;
use max_weights::tensor::{Element, Span, TensorInfo, checked_bytes};
use max_weights::workers::Interrupt;
use max_weights::{DType, Result};

use super::BINS;
use super::judge::judge_values;
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::report::TensorSummary;

/// Maximum number of arrays drawn of one file.
const MAX_DRAWN: usize = 100_000;

/// What is known of an array.
pub(crate) struct ArrayFacts<'a> {
    /// Its name, or that of the file.
    pub(crate) name: &'a str,
    /// The type of its elements.
    pub(crate) dtype: DType,
    /// Its shape in C order; of one dimension where its rows are none.
    pub(crate) shape: &'a [u64],
    /// Where a finding about it points to.
    pub(crate) at: u64,
    /// Whether its elements are in big-endian byte order.
    pub(crate) is_swapped: bool,
}

/// Looks at the values of an array, which are these bytes.
pub(crate) fn look(
    piece: &ByteSpan<'_>,
    array: &ArrayFacts<'_>,
    values: &dyn RandomRead,
    context: &mut FileContext<'_>,
) -> Result<()> {
    let needed = checked_bytes(array.shape, array.dtype);
    let Some(needed) = needed.filter(|needed| *needed <= values.len() && array.dtype.bytes().is_some()) else {
        unknown("a size beyond its bytes", context);
        return Ok(());
    };
    let item = match array.dtype {
        // Its two parts are swapped each by itself.
        DType::Complex64 => 4,
        dtype => dtype.bytes().unwrap_or(1),
    };
    let contents = {
        let pace = context.pace();
        let mut pass = TensorPass::default();
        pass.bins = if context.options.histograms { BINS } else { 0 };
        let values = values.on_threads();
        let read = |offset: u64, into: &mut [u8], cancel: Interrupt<'_>| {
            values(offset, into, cancel)?;
            if array.is_swapped && item > 1 {
                into.chunks_exact_mut(item).for_each(<[u8]>::reverse);
            }
            Ok(())
        };
        pass.over_elements(array.dtype, array.shape, &read, &|| pace.check_cancelled())?
    };
    // The span is where the report says that the array lies; its bytes may be in another file.
    let span = Span::within(u64::MAX, array.at, needed)?;
    let element = Element::Plain(array.dtype);
    let info = TensorInfo { name: array.name, element, shape: array.shape, file: 0, span, view: None };
    judge_values(&info, &contents, &mut |finding| context.report(piece, finding));
    if context.arrays.drawn.len() < MAX_DRAWN {
        let summary = TensorSummary::new(&context.file.path, &info, contents.statistics.as_ref());
        context.arrays.drawn.push(summary);
    }
    Ok(())
}

/// Says that the values of an array were not looked at, and why.
pub(crate) fn unknown(what: &str, context: &mut FileContext<'_>) {
    context.arrays.unread += 1;
    context.arrays.why.get_or_insert_with(|| max_weights::text::escape(what));
}
