//! A key for the content of a weight, for caching computed values: from the identity of its file, and its place there.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::memory::IdentityKind;

/// A file that was written to within this time may be written again without a new modification time.
const SETTLED: Duration = Duration::from_secs(2);

/// A key that two weights share only if their bytes are equal. It names the file (device, inode, length and modification time) or the object (entity
/// tag), and where the elements are in it. There is none for a weight that is converted on load, or for a range that was written to through a view.
/// There is none either if the file changed since it was opened, or was written to just now.
///
/// # Errors
/// A closed checkpoint.
///
/// # Panics
/// If there is no weight of this number.
pub fn key_of_content(checkpoint: &Checkpoint, number: usize) -> Result<Option<String>> {
    let catalog = checkpoint.catalog();
    let Ok(recipe) = catalog.recipe(number, None) else { return Ok(None) };
    let Some(pieces) = recipe.stored_pieces() else { return Ok(None) };
    let mut key = format!("{:?}", catalog.table().get(number).element);
    for (start, placement) in &pieces {
        let file = checkpoint.file(placement.segment.file)?;
        let origin = file.origin();
        let is_known = match origin.fingerprint.identity {
            IdentityKind::File { modified, inode } => inode != (0, 0) && is_settled(modified) && origin.is_unchanged(),
            IdentityKind::Object(_) => true,
            IdentityKind::Memory => false,
        };
        if !is_known || file.is_written(placement.segment.span.start(), placement.segment.span.len()) {
            return Ok(None);
        }
        let _ = write!(key, " {:?} {start:?} {placement:?}", origin.fingerprint);
    }
    if pieces.len() != 1 {
        // Keys of tensors of many pieces are hashed, so that they are not longer than others.
        key = format!("{:?} {}", recipe.shape(), hex(&Sha256::digest(&key)));
    }
    Ok(Some(key))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn is_settled(modified: i128) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
    now - modified > SETTLED.as_nanos() as i128
}
