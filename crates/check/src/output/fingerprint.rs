//! What a finding is known by from one run to the next, wherever its bytes have moved meanwhile.

use max_weights::Diagnostic;
use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::ReportPaths;

/// Bytes of the digest that are kept: two findings of one report do not have the same.
const BYTES: usize = 16;

/// The fingerprints of these findings: of rule, path in the root, member, tensor and global, and of the bytes that run code, not of the offset.
/// Findings with the same values are numbered, which makes each fingerprint unique.
pub(crate) fn fingerprints<'a>(findings: impl IntoIterator<Item = &'a Diagnostic>, root: &Path) -> Vec<String> {
    let mut places = ReportPaths::new(root);
    let mut seen: HashMap<[u8; BYTES], u32> = HashMap::new();
    let number = |finding: &'a Diagnostic| {
        let digest = digest(finding, places.name(finding.file()));
        let times = seen.entry(digest).or_default();
        *times += 1;
        format!("{:032x}:{times}", u128::from_be_bytes(digest))
    };
    findings.into_iter().map(number).collect()
}

fn digest(finding: &Diagnostic, path: &str) -> [u8; BYTES] {
    let mut hash = Sha256::new();
    let parts =
        [Some(finding.rule.code), Some(path), finding.member.as_deref(), finding.tensor.as_deref(), subject(finding)];
    for part in parts {
        // Of each part its length, too: nothing of one can be taken for the next.
        let part = part.unwrap_or_default();
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    if let Some(code) = finding.code {
        hash.update(code);
    }
    let mut digest = [0; BYTES];
    digest.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    digest
}

/// The class or function that a finding is about. Where none is named, that which the evidence calls.
pub(crate) fn subject(finding: &Diagnostic) -> Option<&str> {
    finding.global.as_deref().or_else(|| {
        let evidence = finding.evidence.as_deref()?;
        Some(evidence.split_once('(').map_or(evidence, |(callee, _)| callee))
    })
}
