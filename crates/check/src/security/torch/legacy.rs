//! PyTorch's files from before 1.6: five pickles, of which one is the object, and then the storages, each behind its count.

use std::collections::HashMap;

use max_weights::rules;
use max_weights::{Diagnostic, Result, text};

use crate::context::{ByteSpan, FileContext};
use crate::security::pickle::{self, PickleOrigin, Root, StorageSeen};

/// What the first pickle is.
const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;
/// What the second one is.
const PROTOCOL: i128 = 1001;
/// The pickles: magic, protocol, machine, object, keys.
const PICKLES: usize = 5;
const OBJECT: usize = 3;
/// Bytes of the count before each storage.
const COUNT: u64 = 8;

/// Examines a PyTorch file from before 1.6: its five pickles, the bytes after its storages, and whether only the object calls anything.
pub fn scan_legacy(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let mut at = 0;
    let mut storages = Vec::new();
    let mut keys = Vec::new();
    for number in 0..PICKLES {
        let expected = if number == OBJECT { PickleOrigin::TorchLegacy } else { PickleOrigin::Any };
        let one = pickle::one(piece, at, expected, context)?;
        let is_plain = match (number, &one.root) {
            (0, Root::Integer(value)) => *value == MAGIC,
            (1, Root::Integer(value)) => *value == PROTOCOL,
            (2, Root::Other) | (OBJECT, _) | (4, Root::Texts(_)) => true,
            _ => false,
        };
        if one.is_whole && (!is_plain || number != OBJECT && one.calls) {
            let what =
                ["the magic number", "the protocol", "the description of the machine", "", "the list of the storages"];
            let what = what.get(number).copied().unwrap_or_default();
            let message = format!("{what} is not the plain value that PyTorch writes");
            context.report(piece, Diagnostic::new(rules::CODE_LEGACY_HEAD, message).offset(at));
        }
        if !one.is_whole {
            return pickle::rest(piece, one.end, false, PickleOrigin::TorchLegacy, context).map(drop);
        }
        at = one.end;
        storages.extend(one.storages);
        if let Root::Texts(texts) = one.root {
            keys = texts;
        }
    }
    let seen: HashMap<&str, &StorageSeen> = storages.iter().map(|storage| (storage.key.as_str(), storage)).collect();
    for key in &keys {
        context.check_cancelled()?;
        let storage = seen.get(key.as_str());
        let bytes = storage.and_then(|storage| storage.bytes);
        let end =
            bytes.and_then(|bytes| at.checked_add(COUNT)?.checked_add(bytes)).filter(|end| *end <= piece.bytes.len());
        let count = piece.bytes.part(at, COUNT as usize)?.try_into().map(u64::from_le_bytes).ok();
        let Some(end) = end.filter(|_| count == storage.and_then(|storage| storage.elements)) else {
            let message =
                format!("storage '{}' is not in the file with the size that the pickle says", text::escape(key));
            context.report(piece, Diagnostic::new(rules::CODE_STORAGE, message).offset(at));
            return pickle::rest(piece, at, true, PickleOrigin::TorchLegacy, context).map(drop);
        };
        at = end;
    }
    pickle::rest(piece, at, true, PickleOrigin::TorchLegacy, context).map(drop)
}
