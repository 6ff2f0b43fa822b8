//! The SHA-256 of bytes that run code, by which a finding is known again only as long as the same bytes run.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::Result;
use sha2::{Digest as _, Sha256};

use crate::bytes::RandomRead;

/// Bytes of the digest.
pub(crate) type DigestBytes = [u8; 32];

/// Bytes that are read at a time: they stay in the cache of the core.
const PART: u64 = 256 << 10;
/// The digests of one file and its members may read this many times its bytes in all …
const MAX_TIMES: u64 = 4;
/// … plus this many bytes.
const ALWAYS: u64 = 64 << 20;

/// The digests of one file and of the members in it, each made once.
#[derive(Default)]
pub(crate) struct CodeDigests {
    known: HashMap<(Option<String>, u64), DigestBytes>,
    hashed: u64,
}

impl CodeDigests {
    /// The digest of a file of `whole` bytes, or of a member of it. What cannot be read, or is too much, is never the same as anything.
    pub(crate) fn of(
        &mut self,
        member: Option<&str>,
        bytes: &dyn RandomRead,
        whole: u64,
        cancel: &dyn Fn() -> Result<()>,
    ) -> DigestBytes {
        let key = (member.map(str::to_owned), bytes.len());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        self.hashed = self.hashed.saturating_add(bytes.len());
        let has_space = self.hashed <= whole.saturating_mul(MAX_TIMES).saturating_add(ALWAYS);
        let digest =
            has_space.then(|| digest(bytes, &AtomicU64::new(0), cancel).ok()).flatten().unwrap_or_else(unlike_any);
        self.known.insert(key, digest);
        digest
    }
}

/// The digest of all bytes, which are counted in `done`.
pub(crate) fn digest(bytes: &dyn RandomRead, done: &AtomicU64, cancel: &dyn Fn() -> Result<()>) -> Result<DigestBytes> {
    let (mut hash, mut part, mut at) = (Sha256::new(), Vec::new(), 0);
    while at < bytes.len() {
        cancel()?;
        part.resize((bytes.len() - at).min(PART) as usize, 0);
        bytes.read_at(at, &mut part)?;
        hash.update(&part);
        at += part.len() as u64;
        done.fetch_add(part.len() as u64, Ordering::Relaxed);
    }
    Ok(hash.finalize().into())
}

/// One that no bytes have.
pub(crate) fn unlike_any() -> DigestBytes {
    let mut code = [0; 32];
    for part in code.chunks_mut(8) {
        let number = RandomState::new().build_hasher().finish().to_le_bytes();
        part.iter_mut().zip(number).for_each(|(to, from)| *to = from);
    }
    code
}
