//! The external files of a model, which hold its tensors.

use std::path::Path;

use max_weights::source::store;
use max_weights::text::escape;
use max_weights::{Diagnostic, rules};

use crate::context::{ByteSpan, FileContext};
use crate::security::archive::leads_out;
use crate::walk::links;

/// Examines the location of an external file without opening it. True if it may be opened: it is below the model's folder.
pub(super) fn check(piece: &ByteSpan<'_>, location: &str, at: u64, context: &mut FileContext<'_>) -> bool {
    let is_url = location.contains("://");
    // The runtime keeps tensors in memory under a special name, which is not that of a file.
    if leads_out(location) || is_url || location.starts_with('~') {
        let message = format!("a tensor is in '{}', outside the model's folder", escape(location));
        context.report(piece, Diagnostic::new(rules::ONNX_PATH, message).offset(at));
        return false;
    }
    // What a file of a server names is not asked for.
    if store::is_url(&context.file.path) {
        return false;
    }
    if piece.member.is_none() {
        let folder = context.file.path.parent().unwrap_or(Path::new("")).to_path_buf();
        if let Some(what) = link(&folder, location, &context.file.path) {
            let message = format!("'{}', which has tensors in it, {what}", escape(location));
            context.report(piece, Diagnostic::new(rules::ONNX_LINK, message).offset(at));
            return false;
        }
    }
    piece.member.is_none()
}

/// The fault of the file of the tensors, or of a folder in its path: a link that leads out of the model's folder.
fn link(folder: &Path, location: &str, model: &Path) -> Option<String> {
    let mut path = folder.to_path_buf();
    for part in location.split(['/', '\\']).filter(|part| !part.is_empty() && *part != ".") {
        path.push(part);
        let meta = std::fs::symlink_metadata(&path).ok()?;
        if meta.is_symlink() {
            // The cache of a hub has links to its blobs, the model's among them.
            let (to, own) = (path.canonicalize().ok()?, model.canonicalize().ok()?);
            if to.parent() != own.parent() && !to.starts_with(folder.canonicalize().ok()?) {
                return Some("is a link that leads out of the model's folder".into());
            }
        }
    }
    // A copy by hard links gives the model as many names as its data.
    let names = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|meta| links(&meta));
    let several = names(&path).filter(|count| *count > 1 && names(model) != Some(*count));
    several.map(|count| format!("has {count} names in the file system"))
}
