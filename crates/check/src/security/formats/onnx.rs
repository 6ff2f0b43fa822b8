//! ONNX models: where their tensors lie outside of the file, and which operators they need that are not ONNX's own.

use std::path::Path;

use max_weights::Result;
use max_weights::rules;
use max_weights::text::shown;

use super::protobuf::{Fields, Value};
use crate::bytes::Bytes;
use crate::context::{Context, Piece};
use crate::finding::Finding;
use crate::report::Depth;
use crate::security::archive::leads_out;

/// Graphs in nodes of graphs.
const MAX_DEPTH: usize = 32;
/// The longest text that is read.
const MAX_TEXT: usize = 4096;
/// Different files and domains that are looked at.
const MAX_NAMES: usize = 10_000;
/// Domains whose operators ONNX and its runtime bring.
const KNOWN_DOMAINS: [&str; 12] = [
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview.training",
    "ai.onnx.preview",
    "com.microsoft",
    "com.microsoft.experimental",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
    "org.pytorch.aten",
    "pkg.onnxscript.torch_lib",
];

/// Which message is read; the numbers of fields mean something else in each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Model,
    Training,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Function,
    OperatorSet,
}

impl Message {
    /// The message that a field of this number is, if it is one that is looked into.
    fn inner(self, field: u64) -> Option<Self> {
        Some(match (self, field) {
            (Self::Model, 7) | (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Model, 8) | (Self::Function, 9) => Self::OperatorSet,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => Self::Tensor,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            _ => return None,
        })
    }
}

/// What was found in all messages.
#[derive(Default)]
struct Found {
    locations: Vec<(String, u64)>,
    domains: Vec<String>,
    broken: Option<u64>,
}

/// Looks through a model.
pub(crate) fn scan(piece: &Piece<'_>, context: &mut Context<'_>) -> Result<()> {
    let mut found = Found::default();
    walk(piece.bytes, Message::Model, (0, piece.bytes.len()), 0, &mut found, context)?;
    if let Some(at) = found.broken {
        let message = format!("the ONNX model breaks at byte {at}: what follows there was not looked at");
        context.report(piece, Finding::new(rules::ONNX_DAMAGED, message).offset(at));
    }
    for (location, at) in &found.locations {
        check_location(piece, location, *at, context);
    }
    let custom: Vec<String> =
        found.domains.iter().filter(|domain| is_custom(domain)).map(|domain| shown(domain)).collect();
    if !custom.is_empty() {
        let first: Vec<&str> = custom.iter().take(10).map(String::as_str).collect();
        let message = format!("the model needs operators of {} other domains: {}", custom.len(), first.join(", "));
        context.report(piece, Finding::new(rules::ONNX_DOMAIN, message));
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// PyTorch's exporter makes a domain of each of its modules, whose functions stand in the model.
fn is_custom(domain: &str) -> bool {
    !KNOWN_DOMAINS.contains(&domain) && !domain.starts_with("pkg.")
}

fn walk(
    bytes: &dyn Bytes,
    message: Message,
    (start, end): (u64, u64),
    depth: usize,
    found: &mut Found,
    context: &mut Context<'_>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        found.broken.get_or_insert(start);
        return Ok(());
    }
    context.go_on()?;
    let mut fields = Fields::new(bytes, start, end);
    while let Some(field) = fields.next()? {
        let (number, value) = match field {
            Ok(field) => field,
            Err(broken) => {
                found.broken.get_or_insert(broken.at);
                return Ok(());
            }
        };
        let Value::Bytes(from, to) = value else { continue };
        match (message, number) {
            (Message::Tensor, 13) => {
                if let Some(location) = external(bytes, (from, to))?
                    && found.locations.len() < MAX_NAMES
                    && !found.locations.iter().rev().take(64).any(|(known, _)| *known == location)
                {
                    found.locations.push((location, from));
                }
            }
            (Message::OperatorSet, 1) | (Message::Node, 7) => {
                let domain = text(bytes, (from, to))?;
                if found.domains.len() < MAX_NAMES && !found.domains.contains(&domain) {
                    found.domains.push(domain);
                }
            }
            _ => {
                if let Some(inner) = message.inner(number) {
                    walk(bytes, inner, (from, to), depth + 1, found, context)?;
                }
            }
        }
    }
    Ok(())
}

/// The value of a pair of texts whose key is `location`.
fn external(bytes: &dyn Bytes, (start, end): (u64, u64)) -> Result<Option<String>> {
    let mut fields = Fields::new(bytes, start, end);
    let (mut is_location, mut location) = (false, None);
    while let Some(Ok((number, value))) = fields.next()? {
        match (number, value) {
            (1, Value::Bytes(from, to)) => is_location = text(bytes, (from, to))? == "location",
            (2, Value::Bytes(from, to)) => location = Some(text(bytes, (from, to))?),
            _ => {}
        }
    }
    Ok(location.filter(|_| is_location))
}

fn text(bytes: &dyn Bytes, (start, end): (u64, u64)) -> Result<String> {
    let len = end.saturating_sub(start).min(MAX_TEXT as u64) as usize;
    Ok(String::from_utf8_lossy(&bytes.part(start, len)?).into_owned())
}

/// A file beside the model.
fn check_location(piece: &Piece<'_>, location: &str, at: u64, context: &mut Context<'_>) {
    let is_url = location.contains("://");
    // The runtime keeps tensors in memory under a name of its own, which is none of a file.
    if leads_out(location) || is_url || location.starts_with('~') {
        let message = format!("a tensor lies in '{}', outside of the model's folder", shown(location));
        context.report(piece, Finding::new(rules::ONNX_PATH, message).offset(at));
    } else if piece.member.is_none() {
        let folder = context.file.path.parent().unwrap_or(Path::new("")).to_path_buf();
        if let Some(what) = link(&folder, location, &context.file.path) {
            let message = format!("'{}', in which tensors lie, {what}", shown(location));
            context.report(piece, Finding::new(rules::ONNX_LINK, message).offset(at));
        }
    }
}

/// What is wrong with the file of the tensors, or with a folder on the way to it: a link that leads elsewhere than the model's own does.
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
    links(&path)
        .filter(|links| *links > 1 && links_differ(&path, model))
        .map(|links| format!("has {links} names in the file system"))
}

/// A copy by hard links gives the model as many names as its data.
fn links_differ(path: &Path, model: &Path) -> bool {
    links(path) != links(model)
}

#[cfg(unix)]
fn links(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|meta| meta.nlink())
}

#[cfg(not(unix))]
fn links(_: &Path) -> Option<u64> {
    None
}
