//! Compares an existing object with the one that would be written. The parts that would be sent are hashed, and compared with the tag of the object
//! if that is derived from the same hashes. Otherwise the object is read.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use max_weights::Result;
use max_weights::source::store::IfExists;
use max_weights::source::{ReadRange, Source};
use max_weights::workers::Interrupt;
use md5::{Digest, Md5};
use sha2::Sha256;

use crate::file::RemoteFile;

/// Bytes that are read at a time: several requests.
const READ_AT_A_TIME: u64 = 64 << 20;
/// The digits of an MD5.
const DIGITS: usize = 32;

/// The hashes of a part.
#[derive(Debug, Clone, Copy)]
struct PartSums {
    md5: [u8; 16],
    sha256: [u8; 32],
}

/// An existing object.
#[derive(Debug)]
pub(crate) struct ExistingObject {
    tag: Option<String>,
    /// By the number of the part.
    sums: Mutex<HashMap<usize, PartSums>>,
}

impl ExistingObject {
    pub(crate) fn new(tag: Option<String>) -> Self {
        Self { tag, sums: Mutex::default() }
    }

    /// Adds a part that would be sent.
    pub(crate) fn add(&self, number: usize, bytes: &[u8]) {
        let sums = PartSums { md5: Md5::digest(bytes).into(), sha256: Sha256::digest(bytes).into() };
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sums);
    }

    /// How many parts there are.
    pub(crate) fn len(&self) -> usize {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether the tag proves that the object has these parts. A different tag proves nothing: encryption and other part sizes change tags.
    pub(crate) fn has_these(&self, parts: usize) -> bool {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(all) = (0..parts).map(|number| sums.get(&number).map(|sums| sums.md5)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        self.tag.as_deref().is_some_and(|tag| is_tag_of(tag, &all))
    }

    /// Compares the open object with the parts, of `part` bytes each.
    ///
    /// # Errors
    /// They differ.
    pub(crate) fn compare(&self, url: &Path, file: &RemoteFile, part: u64, interrupt: Interrupt<'_>) -> Result<()> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = Vec::new();
        let mut hash = Sha256::new();
        let mut at = 0;
        while at < file.len() {
            memory.resize((file.len() - at).min(READ_AT_A_TIME) as usize, 0);
            file.read(&mut [ReadRange { offset: at, bytes: &mut memory }], interrupt)?;
            let mut rest = &memory[..];
            while !rest.is_empty() {
                let number = at / part;
                let end = file.len().min((number + 1) * part);
                let (now, later) = rest.split_at(((end - at) as usize).min(rest.len()));
                hash.update(now);
                (at, rest) = (at + now.len() as u64, later);
                if at < end {
                    continue;
                }
                let found: [u8; 32] = hash.finalize_reset().into();
                if sums.get(&(number as usize)).map(|sums| sums.sha256) != Some(found) {
                    let differs = format!("which differs within the bytes {} to {end}", number * part);
                    return Err(IfExists::Same.refused(url, &differs));
                }
            }
        }
        Ok(())
    }
}

/// Whether S3 gives this tag to an object with these parts, or with one.
fn is_tag_of(tag: &str, parts: &[[u8; 16]]) -> bool {
    let Some(tag) = tag.strip_prefix('"').and_then(|rest| rest.split('"').next()) else { return false };
    let (digits, count) = tag.split_once('-').map_or((tag, None), |(digits, count)| (digits, Some(count)));
    let hash = match (count, parts) {
        (None, [only]) => *only,
        (Some(count), _) if count == parts.len().to_string() => Md5::digest(parts.concat()).into(),
        _ => return false,
    };
    let matches = |(byte, digits): (&u8, &[u8])| {
        std::str::from_utf8(digits).is_ok_and(|digits| u8::from_str_radix(digits, 16) == Ok(*byte))
    };
    digits.len() == DIGITS && hash.iter().zip(digits.as_bytes().chunks(2)).all(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_that_s3_gives() {
        let hello: [u8; 16] = Md5::digest(b"hello").into();
        assert!(is_tag_of("\"5d41402abc4b2a76b9719d911017c592\"", &[hello]));
        assert!(is_tag_of("\"5D41402ABC4B2A76B9719D911017C592\" version", &[hello]));
        // md5(md5("hello") + md5("hello")), as `md5sum` has it.
        assert!(is_tag_of("\"616b22817b80eed9f65c3aa38cd29054-2\"", &[hello, hello]));
        for other in [
            "",
            "\"\"",
            "\"5d41402abc4b2a76b9719d911017c592-2\"",
            "W/\"5d41402abc4b2a76b9719d911017c592\"",
            "5d41402abc4b2a76b9719d911017c592",
        ] {
            assert!(!is_tag_of(other, &[hello]) && !is_tag_of(other, &[hello, hello]), "{other}");
        }
    }
}
