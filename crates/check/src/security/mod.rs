//! Whether loading a file would run code: every pickle, every archive, every template and program that a loader takes.

pub mod archive;
mod base64;
pub(crate) mod formats;
pub mod pickle;
pub mod torch;

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use crate::context::{ByteSpan, FileContext};
use crate::kind::Kind;
use crate::options::Level;
use crate::report::Depth;
use crate::repository;
use formats::{arrow, hdf5, numpy, onnx, otherwise, polyglot, suffix, tensorflow, tflite};
use pickle::PickleOrigin;

/// Bytes of a file without a magic that are tested for a pickle.
pub(crate) const PICKLE_BYTES: usize = 4 << 10;

/// Looks into a file, or into a member of an archive; what it is, is recognised by its bytes.
pub fn scan(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    context.check_cancelled()?;
    // Archives ask before they open their members; this also ends what leads to itself in another way.
    if piece.depth > context.options.nesting {
        let message = format!("this is nested in {} archives, and was not looked at", piece.depth);
        context.report(piece, Diagnostic::new(rules::ARCHIVE_DEEP, message));
        return Ok(());
    }
    suffix::check(piece, kind, context)?;
    if context.options.level == Level::Header {
        return Ok(());
    }
    otherwise::check(piece, kind, context)?;
    if piece.member.is_some() && repository::is_compiled(piece.name, kind) {
        let message = format!("it is {}, which may run when the archive is unpacked or loaded", compiled(kind));
        context.report(piece, Diagnostic::new(rules::REPOSITORY_COMPILED_CODE, message));
    }
    if polyglot::is_zip_too(piece, kind, context)? {
        return archive::zip::scan(piece, context);
    }
    match kind {
        Kind::Zip => archive::zip::scan(piece, context)?,
        Kind::Tar => archive::tar::scan(piece, context)?,
        kind if kind.is_compressed() => archive::compressed::scan(piece, kind, context)?,
        Kind::Lzip | Kind::SevenZip | Kind::Rar => {
            let message = format!("this is {}, whose members were not looked at", kind.with_article());
            context.report(piece, Diagnostic::new(rules::ARCHIVE_UNSUPPORTED, message).offset(0));
        }
        Kind::Pickle => {
            pickle::scan(piece, PickleOrigin::Any, context)?;
            context.looked(Depth::Structure);
        }
        Kind::TorchLegacy => {
            torch::scan_legacy(piece, context)?;
            context.looked(Depth::Structure);
        }
        Kind::Numpy => numpy::scan(piece, context)?,
        Kind::Hdf5 => hdf5::scan(piece, context)?,
        Kind::Onnx => onnx::scan(piece, context)?,
        Kind::Arrow | Kind::Parquet | Kind::Feather => arrow::scan(piece, kind, context)?,
        Kind::Safetensors | Kind::Gguf => polyglot::check(piece, kind, context)?,
        Kind::Media | Kind::Empty | Kind::Zeros | Kind::LfsPointer => {}
        _ => {
            if onnx::is_model(piece, context)? {
                if piece.member.is_none() {
                    context.file.kind = Kind::Onnx.name().into();
                }
                return onnx::scan(piece, context);
            }
            if kind == Kind::Json || crate::kind::has_suffix(piece.name, "json") {
                formats::json(piece, context)?;
            } else if kind == Kind::TfLite {
                tflite::scan(piece, context)?;
            }
            let first = piece.bytes.first(PICKLE_BYTES)?;
            let is_graph = tensorflow::is_graph(&first, piece.name);
            // In a model of TensorFlow Lite, names of operators outside of its list as well.
            if is_graph || kind == Kind::TfLite || crate::kind::has_suffix(piece.name, "pb") {
                tensorflow::scan(piece, is_graph, context)?;
            }
            // The first bytes of a graph are no instructions.
            if !is_graph
                && pickle::may_be_pickle(&first, piece.bytes.len(), piece.name)
                && pickle::scan(piece, PickleOrigin::Any, context)?.consumed > 0
            {
                suffix::mismatch(piece, Kind::Pickle, context);
                context.looked(Depth::Structure);
                return Ok(());
            }
            if !is_graph {
                suffix::unexamined(piece, kind, context);
            }
            if let (None, Kind::Unknown | Kind::OldGgml | Kind::ExpertPack | Kind::Executable | Kind::Script) =
                (piece.member, kind)
            {
                context.file.note.get_or_insert_with(|| "nothing is known about the contents of such files".into());
            }
        }
    }
    Ok(())
}

/// Words for code that is not readable.
fn compiled(kind: Kind) -> String {
    if kind == Kind::Executable { kind.with_article() } else { "compiled code of Python".into() }
}
