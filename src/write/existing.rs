//! Existing files on a disk that must stay. They are checked before any write, compared when the new file is complete, and never replaced.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use super::replacement::PendingFile;
use crate::error::{Error, Result};
use crate::source::store::IfExists;
use crate::workers::Interrupt;

/// Bytes compared between two checks for cancellation.
const COMPARED_AT_A_TIME: usize = 4 << 20;

/// Fails if a file exists that must stay, and cannot equal the new one of `len` bytes.
pub(super) fn check(target: &Path, len: u64, if_exists: IfExists) -> Result<()> {
    if if_exists == IfExists::Replace {
        return Ok(());
    }
    match fs::metadata(target) {
        Ok(_) if if_exists == IfExists::Fail => Err(if_exists.refused(target, "")),
        Ok(existing) if existing.is_file() && existing.len() != len => {
            Err(of_other_length(target, existing.len(), len))
        }
        // A target that is not a file is refused when the new file is created.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(target, "look for it", error)),
    }
}

fn of_other_length(target: &Path, existing: u64, len: u64) -> Error {
    IfExists::Same.refused(target, &format!("which has {existing} bytes, not {len}"))
}

impl PendingFile {
    /// Sets what happens to an existing file when this one is complete.
    #[must_use]
    pub fn if_exists(mut self, if_exists: IfExists) -> Self {
        self.if_exists = if_exists;
        self
    }

    /// Compares the file with an existing one, which stays if it is the same.
    ///
    /// # Errors
    /// It differs.
    pub(super) fn compare(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        if self.if_exists != IfExists::Same || self.is_kept {
            return Ok(());
        }
        let mut existing = match File::open(&self.place) {
            Ok(existing) => existing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.failed("read it for the comparison", error)),
        };
        let len = existing.metadata().map_err(|error| self.failed("read it for the comparison", error))?.len();
        if len != self.len {
            return Err(of_other_length(&self.target, len, self.len));
        }
        let mut mine = File::open(self.unfinished()).map_err(|error| self.failed("read back", error))?;
        let (mut one, mut other) = (vec![0; COMPARED_AT_A_TIME], vec![0; COMPARED_AT_A_TIME]);
        for start in (0..len).step_by(COMPARED_AT_A_TIME) {
            interrupt()?;
            let now = (len - start).min(COMPARED_AT_A_TIME as u64) as usize;
            existing.read_exact(&mut one[..now]).map_err(|error| self.failed("read it for the comparison", error))?;
            mine.read_exact(&mut other[..now]).map_err(|error| self.failed("read back", error))?;
            if let Some(first) = one[..now].iter().zip(&other[..now]).position(|(a, b)| a != b) {
                let differs = format!("which differs from byte {} on", start + first as u64);
                return Err(IfExists::Same.refused(&self.target, &differs));
            }
        }
        self.is_kept = true;
        Ok(())
    }

    /// Puts the file in place, if its name is free.
    pub(super) fn place_new(&mut self) -> Result<()> {
        let came_meanwhile = |made: &Self| made.if_exists.refused(&made.target, "which was created meanwhile");
        match fs::hard_link(self.unfinished(), &self.place) {
            // The temporary name is removed on drop.
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(came_meanwhile(self)),
            // Some filesystems have no hard links.
            Err(_) if fs::symlink_metadata(&self.place).is_ok() => Err(came_meanwhile(self)),
            Err(_) => self.rename(),
        }
    }
}
