//! Target `sniff`: any bytes are recognised, or refused with a sentence.

use max_weights::error::{Diagnostic, Result};
use max_weights::format::{FormatKind, SNIFF_BYTES, sniff};
use safetensors::SafeTensors;

use super::{check_message, memory};

/// A message has its rule, its help and its offset, for any declared length of the file. A file that the safetensors crate reads
/// is recognised as safetensors.
pub fn check(input: &[u8]) {
    let prefix = &input[..input.len().min(SNIFF_BYTES)];
    for file_len in [input.len() as u64, 0, 8, u64::MAX] {
        verdict(memory::bounded(input.len(), || sniff(input, file_len)));
        verdict(memory::bounded(input.len(), || sniff(prefix, file_len)));
    }
    if SafeTensors::read_metadata(input).is_ok() {
        assert_eq!(sniff(input, input.len() as u64).ok(), Some(FormatKind::Safetensors));
    }
}

fn verdict(outcome: Result<FormatKind>) {
    match outcome {
        Ok(kind) => check_message(&kind.to_string()),
        Err(error) => {
            let fault: &Diagnostic = error.diagnostic().expect("a fault");
            assert!(fault.rule.id.starts_with("format."), "{fault}");
            assert_eq!((fault.offset, !fault.help.is_empty()), (Some(0), true), "{fault}");
            check_message(&fault.to_string());
        }
    }
}
