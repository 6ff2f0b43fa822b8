//! The bytes of a pickle, one after the other, each part checked before it is taken.

use super::{Limits, Step};
use crate::error::Diagnostic;
use crate::rules;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Where the bytes are in the file.
    at: u64,
    most: usize,
    string_bytes: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: u64, limits: &Limits) -> Self {
        Self { bytes, position: 0, at, most: limits.pickle_bytes, string_bytes: limits.string_bytes }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The place in the file.
    pub(super) fn offset(&self) -> u64 {
        self.at.saturating_add(self.position as u64)
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub(super) fn take(&mut self, len: usize) -> Step<&'a [u8]> {
        let end = self.position.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let cause =
                format!("the pickle ends within an instruction, which needs {len} bytes; {} are left", self.left());
            return Err(Diagnostic::new(rules::PICKLE_TRUNCATED, cause).offset(self.offset()).into());
        };
        if end > self.most {
            return Err(limit("bytes", self.most, self.offset()));
        }
        let taken = self.bytes.get(self.position..end).unwrap_or_default();
        self.position = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().unwrap_or(&[0; N]))
    }

    pub(super) fn u8(&mut self) -> Step<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Step<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Step<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Step<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn f64(&mut self) -> Step<f64> {
        self.array().map(f64::from_be_bytes)
    }

    /// A string of this length.
    pub(super) fn string(&mut self, len: u64) -> Step<&'a [u8]> {
        match usize::try_from(len) {
            Ok(len) if len <= self.string_bytes => self.take(len),
            _ if len > self.left() as u64 => self.take(usize::try_from(len).unwrap_or(usize::MAX)),
            _ => Err(limit("bytes of one string", self.string_bytes, self.offset())),
        }
    }

    /// The rest of the line, without its end.
    pub(super) fn line(&mut self) -> Step<&'a [u8]> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let window = rest.get(..self.string_bytes.saturating_add(1)).unwrap_or(rest);
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line = self.take(end)?;
                self.take(1)?;
                Ok(line)
            }
            None if window.len() < rest.len() => Err(limit("bytes of one string", self.string_bytes, self.offset())),
            None => self.take(rest.len() + 1),
        }
    }
}

/// More of something than a limit allows.
pub(super) fn limit(what: &str, most: usize, offset: u64) -> Box<Diagnostic> {
    Diagnostic::new(rules::PICKLE_LIMIT, format!("the pickle has more than {most} {what}")).offset(offset).into()
}
