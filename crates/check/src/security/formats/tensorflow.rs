//! TensorFlow's graphs: operations that reach files or call Python, found by their names where a node has them.

use max_weights::Result;
use max_weights::rules;

use crate::context::{Context, Piece};
use crate::finding::Finding;
use crate::report::Depth;

/// Operations that reach files, load libraries or call Python.
const OPERATIONS: [&str; 14] = [
    "PyFunc",
    "PyFuncStateless",
    "EagerPyFunc",
    "ReadFile",
    "WriteFile",
    "MatchingFiles",
    "LoadLibrary",
    "ImmutableConst",
    "TextLineReader",
    "WholeFileReader",
    "WholeFileReaderV2",
    "TextLineReaderV2",
    "FixedLengthRecordReaderV2",
    "SqlDataset",
];
const WINDOW: usize = 1 << 20;
const OVERLAP: usize = 64;

/// Searches a graph.
pub(crate) fn scan(piece: &Piece<'_>, context: &mut Context<'_>) -> Result<()> {
    let mut at = 0;
    let mut found = Vec::new();
    while at < piece.bytes.len() {
        context.go_on()?;
        let window = piece.bytes.part(at, WINDOW + OVERLAP)?;
        for name in OPERATIONS {
            if found.contains(&name) {
                continue;
            }
            // The second field of a node: its operation, a text of this length.
            let mut field = vec![0x12, name.len() as u8];
            field.extend_from_slice(name.as_bytes());
            if let Some(place) = memchr::memmem::find(&window, &field) {
                found.push(name);
                let message = format!("the graph has the operation {name}");
                context.report(piece, Finding::new(rules::TENSORFLOW_OPERATION, message).offset(at + place as u64));
            }
        }
        at += WINDOW as u64;
    }
    if piece.member.is_none() {
        context.file.kind = "TensorFlow graph".into();
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// Whether these are the first bytes of a SavedModel or of a frozen graph, under the suffix of these.
pub(crate) fn is_graph(first: &[u8], name: &str) -> bool {
    crate::kind::has_suffix(name, &["pb"]) && matches!(first, [0x08, 1, 0x12, ..] | [0x0a | 0x12, ..])
}
