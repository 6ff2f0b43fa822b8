//! ONNX models: where their tensors are outside the file, whether they are all there, and which operators they need that are not ONNX's own.

mod location;
mod tensor;

use std::collections::HashSet;

use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

use super::protobuf::{ProtobufField, ProtobufFields};
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::options::Level;
use crate::report::Depth;
use crate::words;
use tensor::ExternalFiles;

/// Graphs in nodes of graphs.
const MAX_DEPTH: usize = 32;
/// The longest text that is read.
const MAX_TEXT: usize = 4096;
/// Maximum number of distinct domains.
const MAX_NAMES: usize = 10_000;
/// Domains whose operators ONNX and its runtime bring.
const KNOWN_DOMAINS: &str = "
    ai.onnx ai.onnx.ml ai.onnx.training ai.onnx.preview.training ai.onnx.preview com.microsoft com.microsoft.experimental com.microsoft.nchwc
    com.ms.internal.nhwc org.pytorch.aten pkg.onnxscript.torch_lib";

/// Which message is read; the numbers of fields mean something else in each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnnxMessage {
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

impl OnnxMessage {
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
struct OnnxContents {
    tensors: ExternalFiles,
    domains: Vec<String>,
    known: HashSet<String>,
    broken: Option<u64>,
}

/// Whether bytes without the name of a model are one: fields of a model from the first byte to the last, a graph among them. What readers take begins
/// with any of the fields, and has a producer of any length.
pub(crate) fn is_model(piece: &ByteSpan<'_>, context: &FileContext<'_>) -> Result<bool> {
    /// Numbers, and then texts and messages.
    const NUMBERS: [u64; 2] = [1, 5];
    const OTHERS: [u64; 10] = [2, 3, 4, 6, 7, 8, 14, 20, 25, 26];
    const GRAPH: u64 = 7;
    let mut fields = ProtobufFields::new(piece.bytes, 0, piece.bytes.len());
    let mut has_graph = false;
    while let Some(field) = fields.next()? {
        context.check_cancelled()?;
        match field {
            Ok((number, ProtobufField::Number(_))) if NUMBERS.contains(&number) => {}
            Ok((number, ProtobufField::Bytes(start, end))) if OTHERS.contains(&number) => {
                has_graph |= number == GRAPH && end > start;
            }
            _ => return Ok(false),
        }
    }
    Ok(has_graph)
}

/// Looks through a model.
pub(crate) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let mut found = OnnxContents::default();
    walk(piece, OnnxMessage::Model, (0, piece.bytes.len()), 0, &mut found, context)?;
    if let Some(at) = found.broken {
        let message = format!("the ONNX model breaks off at byte {at}: what follows was not looked at");
        context.report(piece, Diagnostic::new(rules::ONNX_DAMAGED, message).offset(at));
    }
    let custom: Vec<String> =
        found.domains.iter().filter(|domain| is_custom(domain)).map(|domain| escape(domain)).collect();
    if !custom.is_empty() {
        let first: Vec<&str> = custom.iter().take(10).map(String::as_str).collect();
        let message = format!("the model needs operators of {} other domains: {}", custom.len(), first.join(", "));
        context.report(piece, Diagnostic::new(rules::ONNX_DOMAIN, message));
    }
    context.looked(Depth::Structure);
    if piece.member.is_none() && context.options.level >= Level::Content && found.broken.is_none() {
        context.looked_at_arrays();
    }
    Ok(())
}

/// PyTorch's exporter makes a domain of each of its modules, whose functions are in the model.
fn is_custom(domain: &str) -> bool {
    !domain.is_empty() && !words::has(KNOWN_DOMAINS, domain) && !domain.starts_with("pkg.")
}

fn walk(
    piece: &ByteSpan<'_>,
    message: OnnxMessage,
    (start, end): (u64, u64),
    depth: usize,
    found: &mut OnnxContents,
    context: &mut FileContext<'_>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        found.broken.get_or_insert(start);
        return Ok(());
    }
    context.check_cancelled()?;
    if message == OnnxMessage::Tensor {
        if let Some(at) = found.tensors.look(piece, (start, end), context)? {
            found.broken.get_or_insert(at);
        }
        return Ok(());
    }
    let mut fields = ProtobufFields::new(piece.bytes, start, end);
    while let Some(field) = fields.next()? {
        let (number, value) = match field {
            Ok(field) => field,
            Err(broken) => {
                found.broken.get_or_insert(broken.at);
                return Ok(());
            }
        };
        let ProtobufField::Bytes(from, to) = value else { continue };
        if let (OnnxMessage::OperatorSet, 1) | (OnnxMessage::Node, 7) = (message, number) {
            let domain = text(piece.bytes, (from, to))?;
            if found.domains.len() < MAX_NAMES && found.known.insert(domain.clone()) {
                found.domains.push(domain);
            }
        } else if let Some(inner) = message.inner(number) {
            walk(piece, inner, (from, to), depth + 1, found, context)?;
        }
    }
    Ok(())
}

fn text(bytes: &dyn RandomRead, (start, end): (u64, u64)) -> Result<String> {
    let len = end.saturating_sub(start).min(MAX_TEXT as u64) as usize;
    Ok(String::from_utf8_lossy(&bytes.part(start, len)?).into_owned())
}
