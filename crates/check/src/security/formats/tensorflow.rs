//! TensorFlow's graphs: operations that reach files or call Python, found by their names where a node has them.

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use super::configurations::{self, Configurations};
use crate::context::{ByteSpan, FileContext};
use crate::kind::has_suffix;
use crate::report::Depth;
use crate::words;

/// Operations that reach files, load libraries or call Python.
pub(super) const OPERATIONS: &str = "
    PyFunc PyFuncStateless EagerPyFunc ReadFile WriteFile MatchingFiles LoadLibrary ImmutableConst TextLineReader WholeFileReader
    WholeFileReaderV2 TextLineReaderV2 FixedLengthRecordReaderV2 SqlDataset TextLineDataset TFRecordDataset TFRecordDatasetV2
    FixedLengthRecordDataset FixedLengthRecordDatasetV2 CSVDataset CSVDatasetV2 LMDBDataset SaveDataset SaveDatasetV2 LoadDataset
    DatasetToTFRecord CreateSummaryFileWriter";
const WINDOW: usize = 1 << 20;
const OVERLAP: usize = configurations::OVERLAP;

/// Searches a graph; `is_graph` says whether it begins as one. TensorFlow Lite has the operations of TensorFlow by their names with `Flex` before.
pub(crate) fn scan(piece: &ByteSpan<'_>, is_graph: bool, context: &mut FileContext<'_>) -> Result<()> {
    let mut at = 0;
    let mut found = Vec::new();
    // Configurations of Keras layers, inside or outside of the graph.
    let mut configs = has_suffix(piece.name, "pb").then(Configurations::new);
    while at < piece.bytes.len() {
        context.check_cancelled()?;
        let window = piece.bytes.part(at, WINDOW + OVERLAP)?;
        if let Some(configs) = &mut configs {
            configs.search(piece, at, &window, WINDOW, context)?;
        }
        for name in words::each(OPERATIONS) {
            if found.contains(&name) {
                continue;
            }
            let mut places = memchr::memmem::find_iter(&window, name.as_bytes());
            if let Some(place) = places.find(|place| is_named(window.get(..*place).unwrap_or_default(), name)) {
                found.push(name);
                let message = format!("the graph has the operation {name}");
                context.report(piece, Diagnostic::new(rules::TENSORFLOW_OPERATION, message).offset(at + place as u64));
            }
        }
        at += WINDOW as u64;
    }
    if is_graph && piece.member.is_none() {
        context.file.kind = "TensorFlow graph".into();
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// Whether the bytes before the name of an operation make it one. They are the tag of a node's second field and the length, both possibly padded,
/// or a length in four bytes and `Flex`.
fn is_named(before: &[u8], name: &str) -> bool {
    let without = |bytes: &[u8], number: u8| -> Option<usize> {
        if bytes.last() == Some(&number) {
            return Some(bytes.len() - 1);
        }
        // The last of several bytes is zero; those before have a continuation bit.
        let bytes = bytes.strip_suffix(&[0])?;
        let more = bytes.iter().rev().take_while(|byte| **byte == 0x80).count();
        let bytes = bytes.get(..bytes.len() - more)?;
        (bytes.last() == Some(&(number | 0x80))).then(|| bytes.len() - 1)
    };
    let length = name.len() as u8;
    let is_node =
        without(before, length).and_then(|end| before.get(..end)).is_some_and(|rest| without(rest, 0x12).is_some());
    let flex = before.strip_suffix(b"Flex").is_some_and(|rest| rest.ends_with(&(u32::from(length) + 4).to_le_bytes()));
    is_node || flex
}

/// Whether these are the first bytes of a SavedModel or of a frozen graph, under the suffix of these.
pub(crate) fn is_graph(first: &[u8], name: &str) -> bool {
    has_suffix(name, "pb") && matches!(first, [0x08, 1, 0x12, ..] | [0x0a | 0x12, ..])
}
