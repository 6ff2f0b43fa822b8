//! GGUF: a magic and a version, the metadata as key-value pairs, a record for each tensor, and the data.
//!
//! The length of the header is not stated, so the [`GgufParser`] works on the first bytes of the file and requests more as it proceeds. Strings and
//! arrays of the metadata stay in the bytes of the header until they are needed: a tokenizer of a quarter of a million strings is skipped by its
//! lengths. A fault of one tensor only, such as a type that ggml removed or that a fork added, does not make the rest of the file unreadable.

mod cursor;
mod layout;
mod metadata;
pub mod record;
pub mod split;
mod tensors;
mod types;
mod value;

pub use metadata::GgufMetadata;
pub use split::SplitInfo;
use types::NumberForm;
pub use types::ValueType;
pub use value::{ArrayElements, GgufArray, GgufValue, MAX_ARRAY_DEPTH};

use cursor::{CursorStep, CursorStop, HeaderCursor};
use metadata::{KeyTable, least_pair_bytes};

use crate::budget::{self, Short, saturating_usize};
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::{FileHeader, HeaderOptions, Parse, ParseProgress, escape};
use crate::rules;
use crate::source::ReadRange;

/// The default alignment of the data.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// The most dimensions of a tensor, set by the format.
pub const MAX_DIMENSIONS: usize = 4;

/// The part of the metadata, as a divisor, that may be kept in memory for nothing.
const SLACK: usize = 4;

const MAGIC: &[u8; 4] = b"GGUF";
/// The key of another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// The header of a file.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// The tensors and the findings; a checkpoint moves them into the table of all its files. Its own metadata, of strings, is empty. The data may
    /// begin beyond the end of a file without data.
    pub header: FileHeader,
    /// The key-value pairs.
    pub metadata: GgufMetadata,
    /// The version of the format: 1, 2 or 3.
    pub version: u32,
    /// True if numbers have their most significant byte first, in the header as in the data.
    pub big_endian: bool,
    /// The alignment of the offsets of tensors.
    pub alignment: u64,
    /// The file's place in a set of files that belong together, if it is part of one.
    pub split: Option<SplitInfo>,
}

/// Reads the header of a file, and keeps the part with the metadata.
#[derive(Debug)]
pub struct GgufParser<'o> {
    /// The start of the file, as far as it was requested.
    prefix: Vec<u8>,
    file_len: u64,
    options: &'o HeaderOptions,
}

impl<'o> GgufParser<'o> {
    /// Of a file of `file_len` bytes that begins with `first`.
    pub fn new(first: Vec<u8>, file_len: u64, options: &'o HeaderOptions) -> Self {
        Self { prefix: first, file_len, options }
    }

    fn finish(&mut self, draft: Draft, findings: Vec<Diagnostic>) -> Gguf {
        let Draft { keys, keys_end, header, version, form, alignment, split } = draft;
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.truncate(keys_end);
        // Shrinking may copy, which a little slack is not worth.
        if prefix.capacity() - keys_end > keys_end / SLACK {
            prefix.shrink_to_fit();
        }
        let metadata = GgufMetadata::new(prefix, keys);
        let header = FileHeader { findings, ..header };
        Gguf { header, metadata, version, big_endian: form.big_endian, alignment, split }
    }

    /// The bytes up to `at_least`, which are in the file, and then some.
    fn need(&mut self, at_least: u64) -> Result<ReadRange<'_>, Short> {
        let have = self.prefix.len();
        // Walking over bytes a second time costs less than fresh memory for bytes that are not needed.
        let target = saturating_usize(at_least.max(have as u64 + have as u64 / 2).min(self.file_len));
        self.prefix.try_reserve_exact(target - have).map_err(|_| Short::System(target))?;
        self.prefix.resize(target, 0);
        Ok(ReadRange { offset: have as u64, bytes: self.prefix.get_mut(have..).unwrap_or_default() })
    }
}

impl Parse for GgufParser<'_> {
    type Output = Gguf;

    fn advance(&mut self) -> Result<ParseProgress<'_, Gguf>> {
        let mut findings = self.options.findings();
        let draft = match parse_start(&self.prefix, self.file_len, self.options, &mut findings) {
            Err(CursorStop::NeedMore(at_least)) => return Ok(ParseProgress::Need(vec![self.need(at_least)?])),
            Err(CursorStop::Diagnostic(fault)) if fault.rule == rules::GGUF_VERSION => Err(Error::Unsupported(fault)),
            Err(CursorStop::Diagnostic(fault)) => Err(budget::error_of(fault)),
            Ok(draft) => Ok(draft),
        };
        findings.finish(draft).map(|(draft, findings)| ParseProgress::Done(self.finish(draft, findings)))
    }
}

/// All that is known when the header was read, but for its bytes.
struct Draft {
    keys: KeyTable,
    keys_end: usize,
    header: FileHeader,
    version: u32,
    form: NumberForm,
    alignment: u64,
    split: Option<SplitInfo>,
}

fn parse_start(prefix: &[u8], file_len: u64, options: &HeaderOptions, findings: &mut Diagnostics) -> CursorStep<Draft> {
    // Offsets in the header are kept in 32 bits, regardless of the limits.
    let most = options.limits.header_bytes.min(u64::from(u32::MAX));
    let (version, form) = version(prefix, file_len, most)?;
    let mut cursor = HeaderCursor::new(prefix, form, file_len, most);
    cursor.take(8, "the start of the file", rules::GGUF_TOO_SHORT)?;
    let (tensor_count, key_count) = counts(&mut cursor, options)?;

    let keys = KeyTable::walk(&mut cursor, key_count, findings)?;
    let keys_end = cursor.position();
    let alignment = alignment(&keys, prefix, findings)?;
    let split = SplitInfo::from_keys(&keys, prefix)?;

    let frame = record::RecordBounds { count: tensor_count, alignment, file_len };
    let (tensors, data_start) = tensors::read(&mut cursor, &frame, options, findings)?;
    let header = FileHeader { tensors, metadata: None, data_start, findings: Vec::new() };
    Ok(Draft { keys, keys_end, header, version, form, alignment, split })
}

/// The version, and the byte order, which has no flag: in the wrong byte order the version is a multiple of 65536.
fn version(prefix: &[u8], file_len: u64, most: u64) -> CursorStep<(u32, NumberForm)> {
    let little = NumberForm { big_endian: false, narrow: false };
    let mut cursor = HeaderCursor::new(prefix, little, file_len, most);
    let magic = cursor.take(4, "the magic", rules::GGUF_TOO_SHORT)?;
    if magic != MAGIC {
        let cause = format!("the file begins with \"{}\", not with \"GGUF\"", magic.escape_ascii());
        return Err(Diagnostic::new(rules::GGUF_MAGIC, cause).offset(0).into());
    }
    let bytes: [u8; 4] = *cursor.take(4, "the version", rules::GGUF_TOO_SHORT)?.first_chunk().unwrap_or(&[0; 4]);
    let stored = u32::from_le_bytes(bytes);
    let big_endian = stored.is_multiple_of(1 << 16);
    let version = if big_endian { stored.swap_bytes() } else { stored };
    if !(1..=3).contains(&version) {
        let cause = format!("the file is GGUF version {version}; versions 1 to 3 can be read");
        return Err(Diagnostic::new(rules::GGUF_VERSION, cause).offset(4).into());
    }
    Ok((version, NumberForm { big_endian, narrow: version == 1 }))
}

/// Reads `tensor_count` and `metadata_kv_count`. Neither may be more than the rest of the file has room for.
fn counts(cursor: &mut HeaderCursor<'_>, options: &HeaderOptions) -> CursorStep<(u64, u64)> {
    let tensors_at = cursor.position() as u64;
    let tensors = cursor.length()?;
    let keys_at = cursor.position() as u64;
    let keys = cursor.length()?;
    let left = cursor.left();
    let check = |count: u64, least: u64, what: &str, rule, at| {
        if count.checked_mul(least).is_some_and(|bytes| bytes <= left) {
            return Ok(());
        }
        let cause = format!("the file claims {count} {what} of at least {least} bytes each, but has {left} bytes left");
        Err(Diagnostic::new(rule, cause).offset(at))
    };
    check(tensors, tensors::least_record_bytes(cursor.form), "tensors", rules::GGUF_TENSOR_COUNT, tensors_at)?;
    check(keys, least_pair_bytes(cursor.form), "metadata keys", rules::GGUF_KEY_COUNT, keys_at)?;
    let most = options.limits.metadata_entries;
    if keys > most as u64 {
        let cause = format!("the file has {keys} metadata keys; at most {most} are read");
        return Err(Diagnostic::new(rules::GGUF_METADATA_ENTRIES, cause).offset(keys_at).into());
    }
    Ok((tensors, keys))
}

fn alignment(keys: &KeyTable, header: &[u8], findings: &mut Diagnostics) -> CursorStep<u64> {
    let Some(value) = keys.get(header, ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let offset = keys.offset(header, ALIGNMENT_KEY).unwrap_or_default();
    let Some(alignment) = value.as_u64().filter(|value| value.is_power_of_two()) else {
        let cause = format!("{ALIGNMENT_KEY} is {}; it must be a power of two", escape(&format!("{value:?}")));
        return Err(Diagnostic::new(rules::GGUF_ALIGNMENT, cause).offset(offset).into());
    };
    if alignment < 8 {
        findings.note(rules::GGUF_ALIGNMENT_SMALL, |rule| {
            let cause = format!("{ALIGNMENT_KEY} is {alignment}; the format asks for a multiple of 8");
            Diagnostic::new(rule, cause).offset(offset)
        });
    }
    if !matches!(value, GgufValue::U32(_)) {
        findings.note(rules::GGUF_ALIGNMENT_TYPE, |rule| {
            let cause = format!("{ALIGNMENT_KEY} is not a u32; llama.cpp refuses the file");
            Diagnostic::new(rule, cause).offset(offset)
        });
    }
    Ok(alignment)
}
