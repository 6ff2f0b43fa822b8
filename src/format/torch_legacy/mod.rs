//! The stream that PyTorch wrote before 1.6: five pickles, one after the other, and then the raw storages, each after its count.
//!
//! Nothing says where a pickle ends but the pickle itself, so the first bytes are fetched, and more of them while a pickle goes on. Of the
//! storages only the counts are read. All numbers are little-endian: PyTorch converts the elements when it writes on a machine of the
//! other order, and does not look at what the file says about it when it reads.

mod storages;

use crate::budget::{Budget, Short};
use crate::error::{Fault, Findings, Result};
use crate::format::Options;
use crate::format::pickle::{self, Object, PersistentIds, Pickled};
use crate::rules;
use crate::tensor::Span;

/// The first pickle, 0x1950a86a20f9469cfc6c, its least significant byte first.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The second one.
const PROTOCOL: i64 = 1001;
/// How many bytes are fetched at first: all pickles of most files.
const FIRST_BYTES: u64 = 64 << 10;
/// How much longer the next try is: reading a pickle again costs a third, all tries together.
const GROWTH: u64 = 4;

/// What a stream says.
#[derive(Debug, Clone)]
pub struct Legacy {
    /// The object that was saved.
    pub pickled: Pickled,
    /// Where its pickle lies.
    pub place: Span,
    /// Where the bytes of each of [`Pickled::storages`] lie, in the same order: of a view, those of the view.
    pub spans: Vec<Span>,
    /// What was accepted but should not be there.
    pub findings: Vec<Fault>,
}

/// Reads the pickles of a file of `file_len` bytes, and the count of each storage; `fetch` fills a slice with the bytes from an offset on.
/// The pickles together may have as many bytes as a header.
pub fn read(file_len: u64, options: &Options, fetch: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Legacy> {
    let mut findings = options.findings(rules::TORCH_LEGACY_MORE_FINDINGS);
    let read = read_into(file_len, options, &mut findings, fetch);
    let (legacy, findings) = findings.finish(read)?;
    Ok(Legacy { findings, ..legacy })
}

fn read_into(
    file_len: u64,
    options: &Options,
    findings: &mut Findings,
    fetch: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Legacy> {
    let limits = &options.limits;
    let most = limits.header_bytes.min(file_len);
    let pickle_limits = pickle::Limits {
        pickle_bytes: limits.header_bytes.min(pickle::MAX_PICKLE_BYTES as u64) as usize,
        rank: limits.rank,
        ..pickle::Limits::default()
    };
    let budget = Budget::of_file(file_len);
    let mut stream = Stream { file_len, most, budget, limits: pickle_limits, bytes: Vec::new(), at: 0, fetch };
    check_magic(&stream.next(PersistentIds::Refused)?)?;
    let at = stream.at;
    check_protocol(&stream.next(PersistentIds::Refused)?, at)?;
    let at = stream.at;
    if is_big_endian(&stream.next(PersistentIds::Refused)?, at)? {
        findings.note(rules::TORCH_LEGACY_BYTEORDER, |rule| {
            let cause = "the file says that a big-endian machine wrote it; PyTorch writes and reads little-endian elements all the same";
            Fault::new(rule, cause).offset(at as u64)
        });
    }
    let start = stream.at;
    let mut pickled = stream.next(PersistentIds::Legacy)?;
    // The pickles that follow have what this one leaves.
    stream.budget = pickled.budget;
    let place = Span::within(file_len, start as u64, pickled.consumed as u64)?;
    let at = stream.at;
    let keys = stream.next(PersistentIds::Refused)?;
    let spans = storages::read(&mut stream, &pickled, &keys, at, findings)?;
    pickled.budget.extend(stream.bytes.capacity());
    Ok(Legacy { pickled, place, spans, findings: Vec::new() })
}

/// The file, as far as it was fetched.
struct Stream<F> {
    file_len: u64,
    /// The most bytes that the pickles may have together.
    most: u64,
    /// What all of it may take in memory.
    budget: Budget,
    limits: pickle::Limits,
    /// The first bytes of the file.
    bytes: Vec<u8>,
    /// Where the next pickle begins.
    at: usize,
    fetch: F,
}

impl<F: FnMut(u64, &mut [u8]) -> Result<()>> Stream<F> {
    /// The next pickle.
    fn next(&mut self, persistent: PersistentIds) -> Result<Pickled> {
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let have = self.bytes.len() as u64;
            // An empty rest needs no try.
            if !rest.is_empty() || have == self.most {
                let memory = Some(self.budget.left().saturating_sub(self.bytes.capacity()));
                let limits = pickle::Limits { memory, ..self.limits.clone() };
                match pickle::read(rest, self.at as u64, &limits, persistent) {
                    Ok(pickled) => {
                        self.at += pickled.consumed;
                        return Ok(pickled);
                    }
                    Err(error) if error.fault().is_none_or(|fault| fault.rule != rules::PICKLE_TRUNCATED) => {
                        return Err(error);
                    }
                    Err(_) if have == self.file_len => return Err(self.truncated()),
                    Err(_) if have == self.most => return Err(self.too_long()),
                    Err(_) => {}
                }
            }
            self.grow()?;
        }
    }

    fn grow(&mut self) -> Result<()> {
        let have = self.bytes.len();
        let target = (have as u64).saturating_mul(GROWTH).max(FIRST_BYTES).min(self.most) as usize;
        let more = target.saturating_sub(have);
        self.bytes.try_reserve_exact(more).map_err(|_| Short::System(target))?;
        self.bytes.resize(target, 0);
        (self.fetch)(have as u64, self.bytes.get_mut(have..).unwrap_or_default())
    }

    /// The number of 64 bits at `at`, where the file has it.
    fn count(&mut self, at: u64) -> Result<i64> {
        let mut count = [0; 8];
        match self.bytes.get(at as usize..).and_then(|rest| rest.first_chunk()) {
            Some(bytes) => count = *bytes,
            None => (self.fetch)(at, &mut count)?,
        }
        Ok(i64::from_le_bytes(count))
    }

    fn truncated(&self) -> crate::error::Error {
        let cause = format!("the file ends early: the pickle that begins at byte {} goes on", self.at);
        Fault::new(rules::TORCH_LEGACY_TRUNCATED, cause).offset(self.file_len).format()
    }

    fn too_long(&self) -> crate::error::Error {
        let cause = format!("the pickles take more than {} bytes; no more are read", self.most);
        Fault::new(rules::TORCH_LEGACY_HEADER_TOO_LONG, cause).offset(self.at as u64).format()
    }
}

fn check_magic(pickled: &Pickled) -> Result<()> {
    let magic = match pickled.objects.get(pickled.root) {
        Object::BigInt(slice) => pickled.objects.bytes_of(*slice),
        _ => &[],
    };
    // A zero may follow, for the sign.
    if magic.strip_prefix(&MAGIC).is_some_and(|rest| rest.iter().all(|byte| *byte == 0)) {
        return Ok(());
    }
    let cause = "the first pickle is not the number with which a file of PyTorch begins";
    Err(Fault::new(rules::TORCH_LEGACY_MAGIC, cause).offset(0).format())
}

fn check_protocol(pickled: &Pickled, at: usize) -> Result<()> {
    let protocol = match pickled.objects.get(pickled.root) {
        Object::Int(PROTOCOL) => return Ok(()),
        Object::Int(protocol) => protocol.to_string(),
        _ => "no number".to_owned(),
    };
    let cause = format!("the protocol is {protocol}; PyTorch has written {PROTOCOL} only");
    Err(Fault::new(rules::TORCH_LEGACY_PROTOCOL, cause).offset(at as u64).format())
}

/// Whether the third pickle, a dict about the machine, says so.
fn is_big_endian(pickled: &Pickled, at: usize) -> Result<bool> {
    let objects = &pickled.objects;
    if objects.dict(pickled.root).is_none() {
        let cause = "the third pickle is not the dict that says on what machine the file was written";
        return Err(Fault::new(rules::TORCH_LEGACY_MACHINE, cause).offset(at as u64).format());
    }
    let little = objects.entry(pickled.root, "little_endian").map(|id| objects.get(id));
    Ok(matches!(little, Some(Object::Bool(false) | Object::Int(0))))
}
