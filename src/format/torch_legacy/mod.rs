//! The stream that PyTorch wrote before 1.6: five pickles in sequence, and then the raw storages, each after its count.
//!
//! Only the pickle itself marks its end, so the first bytes are requested, and more while a pickle continues. Of the storages only the counts are
//! requested, all of them together. All numbers are little-endian: on a big-endian machine, PyTorch converts the elements when it writes, and
//! ignores the byte order of the file when it reads.

mod storages;

use storages::Storages;

use crate::budget::{Budget, Short, saturating_usize};
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::pickle::{self, PersistentIds, PickleObject, Pickled};
use crate::format::{HeaderOptions, Parse, ParseProgress};
use crate::rules;
use crate::source::ReadRange;
use crate::tensor::Span;

/// The first pickle, 0x1950a86a20f9469cfc6c, its least significant byte first.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The second one.
const PROTOCOL: i64 = 1001;
/// How many bytes are requested at first: all pickles of most files.
const FIRST_BYTES: u64 = 64 << 10;
/// How much longer the next try is: reading a pickle again costs a third, all tries together.
const GROWTH: u64 = 4;

/// The content of a stream.
#[derive(Debug, Clone)]
pub struct Legacy {
    /// The object that was saved.
    pub pickled: Pickled,
    /// The location of its pickle.
    pub place: Span,
    /// The bytes of each of [`Pickled::storages`], in the same order: for a view, those of the view.
    pub spans: Vec<Span>,
    /// Tolerated faults.
    pub findings: Vec<Diagnostic>,
}

/// The pickles before that of the object: magic, protocol, machine.
const OBJECT: usize = 3;

/// Reads the pickles of a file, and the count of each storage. The pickles together are limited to the bytes of a header.
#[derive(Debug)]
pub struct TorchLegacyParser {
    stream: LegacyStream,
    /// The number of pickles that were read.
    read: usize,
    /// The object, and the location of its pickle.
    object: Option<(Pickled, Span)>,
    storages: Option<Storages>,
    findings: Diagnostics,
}

impl TorchLegacyParser {
    /// Of a file of `file_len` bytes.
    pub fn new(file_len: u64, options: &HeaderOptions) -> Self {
        let limits = &options.limits;
        let most = limits.header_bytes.min(file_len);
        let pickle_limits = pickle::PickleLimits {
            pickle_bytes: saturating_usize(limits.header_bytes).min(pickle::MAX_PICKLE_BYTES),
            rank: limits.rank,
            ..pickle::PickleLimits::default()
        };
        let budget = Budget::of_file(file_len);
        let stream = LegacyStream { file_len, most, budget, limits: pickle_limits, bytes: Vec::new(), had: 0, at: 0 };
        let findings = options.findings();
        Self { stream, read: 0, object: None, storages: None, findings }
    }

    /// Continues as far as the available bytes allow.
    fn advance(&mut self) -> Result<Option<Legacy>> {
        while self.storages.is_none() {
            let at = self.stream.at;
            let persistent = if self.read == OBJECT { PersistentIds::Legacy } else { PersistentIds::Refused };
            let Some(pickled) = self.stream.next(persistent)? else { return Ok(None) };
            match (self.read, &self.object) {
                (0, _) => check_magic(&pickled)?,
                (1, _) => check_protocol(&pickled, at)?,
                (2, _) => self.check_machine(&pickled, at)?,
                (_, Some((object, _))) => {
                    let storages = self.storages.insert(Storages::new(
                        &self.stream,
                        object,
                        &pickled,
                        at,
                        self.findings.collects(),
                    )?);
                    if storages.parts(&self.stream).next().is_some() {
                        return Ok(None);
                    }
                }
                (_, None) => {
                    // The following pickles have the rest of the budget.
                    self.stream.budget = pickled.budget;
                    let place = Span::within(self.stream.file_len, at as u64, pickled.consumed as u64)?;
                    self.object = Some((pickled, place));
                }
            }
            self.read += 1;
        }
        let (Some((mut pickled, place)), Some(storages)) = (self.object.take(), self.storages.take()) else {
            return Err(Error::Argument("the file was read before".into()));
        };
        let spans = storages.finish(&self.stream, &pickled, &mut self.findings)?;
        pickled.budget.extend(self.stream.bytes.capacity());
        Ok(Some(Legacy { pickled, place, spans, findings: Vec::new() }))
    }

    fn check_machine(&mut self, pickled: &Pickled, at: usize) -> Result<()> {
        if is_big_endian(pickled, at)? {
            self.findings.note(rules::TORCH_LEGACY_BYTEORDER, |rule| {
                let cause = "the file says that a big-endian machine wrote it; PyTorch writes and reads little-endian elements anyway";
                Diagnostic::new(rule, cause).offset(at as u64)
            });
        }
        Ok(())
    }
}

impl Parse for TorchLegacyParser {
    type Output = Legacy;

    fn advance(&mut self) -> Result<ParseProgress<'_, Legacy>> {
        Ok(match self.advance() {
            Err(error) => self.findings.finish(Err(error)).map(|(legacy, _)| ParseProgress::Done(legacy))?,
            Ok(Some(legacy)) => {
                let (legacy, findings) = self.findings.finish(Ok(legacy))?;
                ParseProgress::Done(Legacy { findings, ..legacy })
            }
            Ok(None) => ParseProgress::Need(match &mut self.storages {
                Some(storages) => storages.parts(&self.stream).collect(),
                None => vec![self.stream.part()],
            }),
        })
    }
}

/// The file, as far as it was requested.
#[derive(Debug)]
struct LegacyStream {
    file_len: u64,
    /// The most bytes that the pickles may have together.
    most: u64,
    /// The memory budget of all of it.
    budget: Budget,
    limits: pickle::PickleLimits,
    /// The first bytes of the file.
    bytes: Vec<u8>,
    /// How many of them existed before more were requested.
    had: usize,
    /// Where the next pickle begins.
    at: usize,
}

impl LegacyStream {
    /// The next pickle; `None` if more of the file is needed.
    fn next(&mut self, persistent: PersistentIds) -> Result<Option<Pickled>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let have = self.bytes.len() as u64;
        // An empty rest needs no try.
        if !rest.is_empty() || have == self.most {
            let memory = Some(self.budget.left().saturating_sub(self.bytes.capacity()));
            let limits = pickle::PickleLimits { memory, ..self.limits.clone() };
            match pickle::read(rest, self.at as u64, &limits, persistent) {
                Ok(pickled) => {
                    self.at += pickled.consumed;
                    return Ok(Some(pickled));
                }
                Err(error) if error.diagnostic().is_none_or(|fault| fault.rule != rules::PICKLE_TRUNCATED) => {
                    return Err(error);
                }
                Err(_) if have == self.file_len => return Err(self.truncated()),
                Err(_) if have == self.most => return Err(self.too_long()),
                Err(_) => {}
            }
        }
        self.had = self.bytes.len();
        let target = saturating_usize(have.saturating_mul(GROWTH).max(FIRST_BYTES).min(self.most));
        let more = target.saturating_sub(self.had);
        self.bytes.try_reserve_exact(more).map_err(|_| Short::System(target))?;
        self.bytes.resize(target, 0);
        Ok(None)
    }

    /// The bytes that were added.
    fn part(&mut self) -> ReadRange<'_> {
        ReadRange { offset: self.had as u64, bytes: self.bytes.get_mut(self.had..).unwrap_or_default() }
    }

    fn truncated(&self) -> Error {
        let cause = format!("the file ends early: the pickle that begins at byte {} is incomplete", self.at);
        Diagnostic::new(rules::TORCH_LEGACY_TRUNCATED, cause).offset(self.file_len).format()
    }

    fn too_long(&self) -> Error {
        let cause = format!("the pickles take more than {} bytes; no more are read", self.most);
        Diagnostic::new(rules::TORCH_LEGACY_HEADER_TOO_LONG, cause).offset(self.at as u64).format()
    }
}

fn check_magic(pickled: &Pickled) -> Result<()> {
    let magic = match pickled.objects.get(pickled.root) {
        PickleObject::BigInt(slice) => pickled.objects.bytes_of(*slice),
        _ => &[],
    };
    // A zero may follow, for the sign.
    if magic.strip_prefix(&MAGIC).is_some_and(|rest| rest.iter().all(|byte| *byte == 0)) {
        return Ok(());
    }
    let cause = "the first pickle is not the number that a PyTorch file begins with";
    Err(Diagnostic::new(rules::TORCH_LEGACY_MAGIC, cause).offset(0).format())
}

fn check_protocol(pickled: &Pickled, at: usize) -> Result<()> {
    let protocol = match pickled.objects.get(pickled.root) {
        PickleObject::Int(PROTOCOL) => return Ok(()),
        PickleObject::Int(protocol) => protocol.to_string(),
        _ => "no number".to_owned(),
    };
    let cause = format!("the protocol is {protocol}; PyTorch has only ever written {PROTOCOL}");
    Err(Diagnostic::new(rules::TORCH_LEGACY_PROTOCOL, cause).offset(at as u64).format())
}

/// Whether the third pickle, a dict about the machine, says that it is big-endian.
fn is_big_endian(pickled: &Pickled, at: usize) -> Result<bool> {
    let objects = &pickled.objects;
    if objects.dict(pickled.root).is_none() {
        let cause = "the third pickle is not the dict that describes the machine that wrote the file";
        return Err(Diagnostic::new(rules::TORCH_LEGACY_MACHINE, cause).offset(at as u64).format());
    }
    let little = objects.entry(pickled.root, "little_endian").map(|id| objects.get(id));
    Ok(matches!(little, Some(PickleObject::Bool(false) | PickleObject::Int(0))))
}
