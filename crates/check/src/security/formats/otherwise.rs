//! What a file of one format is for a program that reads it as another, despite its magic: pickles have none, and HDF5 may begin after any other
//! bytes.

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use super::hdf5;
use crate::context::{ByteSpan, FileContext};
use crate::kind::{Kind, has_suffix};
use crate::security::pickle::{self, PickleOrigin};

/// Where HDF5 may begin: here, or at twice, four times, eight times as much.
const FIRST_BLOCK: u64 = 512;
const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Looks at a file as at the pickle and the HDF5 file that it may be as well. Pickles may begin like others: `G` takes the eight bytes that follow for
/// a number, `J` takes four, and the name of the first member of a tar archive may be any text.
pub(crate) fn check(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let may_begin_as_pickle =
        kind.is_compressed() || matches!(kind, Kind::Safetensors | Kind::Gguf | Kind::Onnx | Kind::Tar | Kind::Media);
    if may_begin_as_pickle && pickle::names_something(piece, context)? {
        let message = format!("this is {} by its magic number, but loads as a pickle", kind.with_article());
        context.report(piece, Diagnostic::new(rules::CONTAINER_PICKLE, message).offset(0));
        pickle::scan(piece, PickleOrigin::Any, context)?;
    }
    let is_other = kind.is_archive() || kind.is_compressed();
    if kind == Kind::Hdf5 || is_other && !has_suffix(piece.name, "h5 hdf5 keras") {
        return Ok(());
    }
    let places = (FIRST_BLOCK.ilog2()..u64::BITS).map(|power| 1 << power).take_while(|at| *at < piece.bytes.len());
    piece.bytes.expect(&places.map(|at| (at, HDF5.len() as u64)).collect::<Vec<_>>())?;
    let mut at = FIRST_BLOCK;
    while at < piece.bytes.len() {
        if piece.bytes.part(at, HDF5.len())? == HDF5 {
            return hdf5::scan(piece, context);
        }
        at = at.saturating_mul(2);
    }
    Ok(())
}
