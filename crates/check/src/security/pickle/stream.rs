//! Sequences of pickles, and what is hidden between and after them: a reader stops at the end of the first one, or where it breaks, and another
//! reader or program may continue there.

use std::collections::HashSet;

use max_weights::format::pickle::Danger;
use max_weights::rules;
use max_weights::{Diagnostic, Result};

use super::found::{Data, Nested, PickleFindings};
use super::machine::{PickleEnd, ScanMachine};
use super::names::NamedGlobal;
use super::{PickleContents, PickleInFile, PickleOrigin, Root, joblib, value};
use crate::bytes::{ByteSlice, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::kind::Kind;
use crate::report::Global;
use crate::security;

/// The bytes that are looked at at a time where something hidden is looked for.
const CHUNK: usize = 64 << 10;
/// The longest module and the longest name of something hidden.
const MAX_NAME: usize = 256;
/// Bytes of unsuccessful attempts, in addition to those of the file.
const MAX_TRIES: u64 = 16 << 20;
/// Minimum bytes that an attempt counts for.
const MIN_TRY_BYTES: u64 = 4 << 10;
/// How often the bytes of a file of another format may be tried: each line of a list of words looks like a pickle.
const OTHER_MAX_TRIES: u64 = 2048;
/// The class of the metadata of torch's distributed checkpoints.
const METADATA: (&str, &str) = ("torch.distributed.checkpoint.metadata", "Metadata");
/// Values of the list of storages that are kept.
const MAX_LIST: usize = 1 << 20;
/// Instructions that count as a pickle although it is incomplete and names nothing.
const SEVERAL: u64 = 8;

/// One pickle, run through.
pub(super) struct PickleRun {
    pub(super) named: Vec<NamedGlobal>,
    pub(super) found: PickleFindings,
    pub(super) end: PickleEnd,
    /// Behind the last instruction.
    pub(super) next: u64,
    /// Of the last instruction.
    pub(super) at: u64,
    pub(super) instructions: u64,
    /// The bytes that it took, some of them perhaps again and again.
    read: u64,
    has_all_names: bool,
}

impl PickleRun {
    fn of(machine: ScanMachine<'_, '_>, end: PickleEnd) -> Self {
        Self {
            has_all_names: !machine.names.is_full(),
            named: machine.names.all().to_vec(),
            found: machine.found,
            end,
            next: machine.next,
            at: machine.at,
            instructions: machine.instructions,
            read: machine.reader.read,
        }
    }

    /// How much work it was, in bytes.
    fn cost(&self) -> u64 {
        self.read.max(self.instructions).max(MIN_TRY_BYTES)
    }

    /// Whether it names something that can be imported, as nothing does by chance.
    pub(super) fn names_something(&self) -> bool {
        let is_plain = |text: &str| text.len() > 1 && is_dotted(text.as_bytes());
        self.named.iter().any(|named| is_plain(&named.module) && is_plain(&named.name))
    }
}

/// Runs through the pickle at `at`.
pub(super) fn run(
    bytes: &dyn RandomRead,
    at: u64,
    expected: PickleOrigin,
    loose: bool,
    context: &FileContext<'_>,
) -> Result<PickleRun> {
    let mut machine = ScanMachine::new(bytes, expected, Some(context));
    machine.loose = loose;
    let (_, end) = machine.run(at)?;
    let mut run = PickleRun::of(machine, end);
    if let Some(arrays) = run.found.arrays {
        without_joblib(&mut run, bytes, at, arrays, context)?;
    }
    Ok(run)
}

/// Python's own reader takes what joblib takes for the bytes of arrays for instructions, in a file of any name: what it does there counts, too.
fn without_joblib(
    run: &mut PickleRun,
    bytes: &dyn RandomRead,
    at: u64,
    (start, calls, imports): (u64, u64, u64),
    context: &FileContext<'_>,
) -> Result<()> {
    let mut machine = ScanMachine::new(bytes, PickleOrigin::Any, Some(context));
    machine.is_inner = true;
    let (_, end) = machine.run(at)?;
    let other = PickleRun::of(machine, end);
    run.read = run.read.saturating_add(other.read);
    if other.found.calls <= calls && other.found.imports <= imports {
        return Ok(());
    }
    let is_new = |named: &NamedGlobal| named.at >= start;
    run.named.extend(other.named.into_iter().filter(is_new));
    for finding in other.found.findings.into_iter().filter(|finding| finding.offset.is_some_and(|at| at >= start)) {
        run.found.report(finding.rule, finding.message, finding.offset.unwrap_or_default(), finding.evidence);
    }
    let message =
        "joblib takes the bytes of an array for numbers, and Python's own reader for instructions that call something";
    run.found.report(rules::CODE_DIVERGENCE, message.to_owned(), start, None);
    Ok(())
}

/// Scans all pickles in `piece` in their order, and reports their faults.
pub fn scan(piece: &ByteSpan<'_>, expected: PickleOrigin, context: &mut FileContext<'_>) -> Result<PickleContents> {
    context.check_cancelled()?;
    let first = run(piece.bytes, 0, expected, false, context)?;
    let has_magic = matches!(piece.bytes.first(2)?[..], [0x80, _]);
    let sees_all = first.found.imports == 0 && first.found.alternatives.is_empty();
    let is_harmless =
        sees_all && first.found.findings.iter().all(|finding| finding.rule.verdict < rules::Verdict::NeedsTrust);
    if expected == PickleOrigin::Any && !has_magic && is_harmless && !matches!(first.end, PickleEnd::Stop) {
        // A text that begins like a pickle of an old protocol, and is none.
        return Ok(PickleContents::default());
    }
    let mut seen = PickleContents { consumed: first.next, storages: Vec::new() };
    let is_whole = matches!(first.end, PickleEnd::Stop);
    let from = if is_whole { first.next } else { first.at + 1 };
    seen.storages = commit(piece, first, context)?;
    let end = rest(piece, from, is_whole, expected, context)?;
    seen.consumed = seen.consumed.max(end);
    Ok(seen)
}

/// Looks through the pickle at `at`, and no further.
pub(in crate::security) fn one(
    piece: &ByteSpan<'_>,
    at: u64,
    expected: PickleOrigin,
    context: &mut FileContext<'_>,
) -> Result<PickleInFile> {
    let mut machine = ScanMachine::new(piece.bytes, expected, Some(context));
    // The list of the storages has all of them.
    machine.kept = MAX_LIST;
    let (value, end) = machine.run(at)?;
    let mut root = Root::Other;
    match value.kind() {
        value::ValueKind::Int => root = machine.reader.integer(value.payload())?.map_or(Root::Other, Root::Integer),
        value::ValueKind::List => {
            let items = machine.arena.get(value).filter(|node| node.is_whole()).map(|node| node.items.clone());
            let mut texts = Vec::new();
            for item in items.iter().flatten().filter(|item| item.kind() == value::ValueKind::Text) {
                texts.extend(machine.reader.text(item.payload())?);
            }
            if items.is_some_and(|items| items.len() == texts.len()) {
                root = Root::Texts(texts);
            }
        }
        _ => {}
    }
    let run = PickleRun::of(machine, end);
    let is_whole = matches!(run.end, PickleEnd::Stop);
    let (end, calls) = (if is_whole { run.next } else { run.at + 1 }, run.found.calls > 0 || !run.named.is_empty());
    let storages = commit(piece, run, context)?;
    Ok(PickleInFile { end, is_whole, calls, root, storages })
}

/// Looks for pickles from `from` on: one right there, if `is_next`, and wherever something begins that names a class or function. Tells where
/// the last pickle ends.
pub(in crate::security) fn rest(
    piece: &ByteSpan<'_>,
    from: u64,
    is_next: bool,
    expected: PickleOrigin,
    context: &mut FileContext<'_>,
) -> Result<u64> {
    let len = piece.bytes.len();
    let (mut at, mut is_next, mut end) = (from, is_next, from);
    let mut left = len.saturating_mul(4).saturating_add(MAX_TRIES);
    let mut junk: Option<u64> = None;
    let mut more = 0_u64;
    while at < len {
        context.check_cancelled()?;
        let (start, loose) = if is_next {
            (at, false)
        } else {
            let Some(start) = hidden(piece.bytes, at, context)? else { break };
            (start, true)
        };
        let tried = run(piece.bytes, start, PickleOrigin::Any, loose, context)?;
        left = left.saturating_sub(tried.cost());
        let is_whole = matches!(tried.end, PickleEnd::Stop);
        // A reader that continues exactly here imports any name.
        let counts = tried.names_something()
            || !loose && tried.found.imports > 0
            || !loose && is_whole && tried.instructions > 1
            || !loose && tried.instructions >= SEVERAL && piece.bytes.part(start, 1)? == [0x80];
        if !counts {
            if is_next {
                junk.get_or_insert(at);
            }
            at = start + u64::from(!is_next);
            is_next = false;
            if left == 0 {
                let message = format!("from byte {at} on, no more pickles were looked for: too much looks like one");
                context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(at));
                break;
            }
            continue;
        }
        more += 1;
        if loose {
            junk.get_or_insert(at);
        } else if expected != PickleOrigin::Any {
            let message = "another pickle follows, which torch does not read but another program may";
            context.report(piece, Diagnostic::new(rules::CODE_TRAILING_DATA, message).offset(start));
        }
        end = tried.next.min(len);
        at = if is_whole { tried.next } else { tried.at.max(start) + 1 };
        is_next = is_whole;
        commit(piece, tried, context)?;
    }
    if let Some(start) = junk.filter(|_| from > 0) {
        let message = format!("{} bytes follow the end of the pickle, and are not a pickle", len - start);
        context.report(piece, Diagnostic::new(rules::CODE_TRAILING_DATA, message).offset(start));
    } else if more > 0 && expected == PickleOrigin::Any {
        let message = format!("there are {} pickles in sequence", more + 1);
        context.report(piece, Diagnostic::new(rules::CODE_STREAM, message).offset(from));
    }
    Ok(end)
}

/// Looks for pickles that name something, anywhere in a file of another format but in the parts of it that are `known`, in their order.
pub(in crate::security) fn embedded(
    piece: &ByteSpan<'_>,
    known: &[(u64, u64)],
    context: &mut FileContext<'_>,
) -> Result<()> {
    let mut left = piece.bytes.len().saturating_mul(OTHER_MAX_TRIES).saturating_add(MAX_TRIES);
    let mut at = 0;
    while let Some(start) = hidden(piece.bytes, at, context)? {
        context.check_cancelled()?;
        let part = known.partition_point(|(begin, _)| *begin <= start).checked_sub(1).and_then(|part| known.get(part));
        if let Some((_, end)) = part.filter(|(_, end)| start < *end) {
            at = *end;
            continue;
        }
        let tried = run(piece.bytes, start, PickleOrigin::Any, true, context)?;
        left = left.saturating_sub(tried.cost());
        let is_whole = matches!(tried.end, PickleEnd::Stop);
        let (calls, is_marked) = (tried.found.calls > 0, piece.bytes.part(start, 1)? == [0x80]);
        // Without the mark of its protocol, lines and words of a text look like imports, and some like calls.
        let counts = if is_marked { is_whole || calls } else { is_whole && calls };
        if counts && tried.names_something() {
            at = if is_whole { tried.next } else { tried.at.max(start) + 1 };
            commit(piece, tried, context)?;
        } else {
            at = start + 1;
        }
        if left == 0 {
            let message = format!("from byte {at} on, no more pickles were looked for: too much looks like one");
            context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(at));
            break;
        }
    }
    Ok(())
}

/// Reports what was found in a pickle, and looks into those in it.
pub(super) fn commit(
    piece: &ByteSpan<'_>,
    run: PickleRun,
    context: &mut FileContext<'_>,
) -> Result<Vec<super::StorageSeen>> {
    context.file.pickles += 1;
    let PickleRun { named, found, end, at, has_all_names, .. } = run;
    for finding in found.findings {
        context.report(piece, finding);
    }
    let is_metadata = named.iter().any(|named| (named.module.as_str(), named.name.as_str()) == METADATA);
    let mut has_script = false;
    for mut named in named {
        // The metadata of a distributed checkpoint has the paths of its files, and nothing is done with them.
        if is_metadata && named.danger == Danger::Library && named.module.starts_with("pathlib") {
            named.danger = Danger::Harmless;
        }
        // Of a plain array it reads the bytes, and does nothing else.
        if (named.module.as_str(), named.name.as_str()) == joblib::WRAPPER && named.calls == found.plain_arrays {
            named.danger = Danger::Harmless;
        }
        // The classes of a TorchScript program are many, and say the same.
        let is_script = named.danger == Danger::Library && named.module.starts_with("__torch__");
        report_name(piece, named, has_script && is_script, context);
        has_script |= is_script;
    }
    match end {
        PickleEnd::Stop => {}
        PickleEnd::Broken(why) => {
            let message = format!("the pickle breaks off: {why}");
            context.report(piece, Diagnostic::new(rules::CODE_BROKEN, message).offset(at));
        }
        PickleEnd::Limit(what) => {
            let message = format!("it has more {what} than are examined");
            context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(at));
        }
    }
    if found.is_incomplete || !has_all_names {
        let message = "it has more classes, functions, storages or pickles in it than are tracked";
        context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message));
    }
    let place = |nested: &Nested| (nested.at, nested.is_loaded);
    let mut known: HashSet<(u64, bool)> = found.nested.iter().map(place).collect();
    for at in found.alternatives {
        if !context.look(MIN_TRY_BYTES) {
            too_often(piece, at, context);
            break;
        }
        let mut other = self::run(piece.bytes, at, PickleOrigin::Any, true, context)?;
        other.found.alternatives.clear();
        // All readers find the same nested pickles. Examining each again, at every level, would take exponential time.
        other.found.nested.retain(|nested| known.insert(place(nested)));
        // What it took counts for the next one.
        let _ = context.look(other.cost());
        if other.names_something() {
            commit(piece, other, context)?;
        }
    }
    for nested in found.nested {
        if !context.look(nested.data.len().max(MIN_TRY_BYTES)) {
            too_often(piece, nested.at, context);
            break;
        }
        let is_loaded = nested.is_loaded || found.names_loader;
        scan_nested(piece, &nested, is_loaded, context)?;
    }
    Ok(found.storages)
}

/// Reports that further interpretations of the bytes are not examined.
fn too_often(piece: &ByteSpan<'_>, at: u64, context: &mut FileContext<'_>) {
    let message = "its bytes can be read in too many ways to examine all of them";
    context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(at));
}

fn report_name(piece: &ByteSpan<'_>, named: NamedGlobal, is_declared: bool, context: &mut FileContext<'_>) {
    let full = max_weights::text::escape(&named.full());
    context.global(Global {
        module: named.module.clone(),
        name: named.name.clone(),
        danger: named.danger,
        member: piece.member.map(str::to_owned),
        offset: named.at,
    });
    let (rule, what) = match named.danger {
        Danger::Harmless => return,
        _ if is_declared => return,
        Danger::Library => (rules::CODE_LIBRARY_GLOBAL, "from a library, whose code runs"),
        Danger::NeedsTrust => (rules::CODE_UNKNOWN_GLOBAL, "which is unknown"),
        // Its calls are reported, each by itself.
        Danger::RunsCode if named.calls > 0 => return,
        Danger::RunsCode => (rules::CODE_MALICIOUS_GLOBAL, "which is harmful"),
    };
    let (message, at, evidence) = match named.call {
        Some((at, call)) if named.calls > 1 => {
            (format!("loading it calls {full}, {what}, {} times", named.calls), at, call)
        }
        Some((at, call)) => (format!("loading it calls {full}, {what}"), at, call),
        None => (format!("loading it imports {full}, {what}"), named.at, full.clone()),
    };
    context.report(piece, Diagnostic::new(rule, message).offset(at).evidence(evidence));
}

/// Looks into bytes in a pickle that are one, or are loaded as one.
fn scan_nested(piece: &ByteSpan<'_>, nested: &Nested, is_loaded: bool, context: &mut FileContext<'_>) -> Result<()> {
    let slice;
    let bytes: &dyn RandomRead = match &nested.data {
        Data::ObjectHead { start, len } => {
            slice = ByteSlice::new(piece.bytes, *start, *len);
            &slice
        }
        Data::Decoded(bytes) => bytes,
    };
    if !is_loaded {
        let tried = run(bytes, 0, PickleOrigin::Any, false, context)?;
        if matches!(tried.end, PickleEnd::Stop) && tried.next == bytes.len() {
            let names: Vec<String> = tried.named.iter().take(5).map(NamedGlobal::full).collect();
            let message = "bytes in the pickle are a pickle, but nothing in it loads them";
            let mut finding = Diagnostic::new(rules::CODE_NESTED_PICKLE, message).offset(nested.at);
            if !names.is_empty() {
                finding = finding.evidence(max_weights::text::escape(&names.join(", ")));
            }
            context.report(piece, finding);
        }
        return Ok(());
    }
    let is_small = match nested.data {
        Data::ObjectHead { .. } => context.nest(bytes.len()),
        Data::Decoded(_) => context.unpack(bytes.len()),
    };
    if piece.depth >= context.options.nesting || !is_small {
        let message = "pickles are nested deeper than they are examined, or come to more in total than may be examined";
        context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(nested.at));
        return Ok(());
    }
    let name = format!("bytes at {}", nested.at);
    let way = piece.way_to(&name);
    let inner = piece.inside(bytes, &name, &way);
    let first = bytes.first(max_weights::format::SNIFF_BYTES)?;
    match Kind::of(&first, bytes.len(), &name) {
        Kind::Pickle | Kind::Unknown | Kind::Text => {
            if scan(&inner, PickleOrigin::Any, context)?.consumed == 0 {
                let message = "bytes that are loaded as a pickle are not a pickle";
                context.report(piece, Diagnostic::new(rules::CODE_BROKEN, message).offset(nested.at));
            }
            Ok(())
        }
        kind => security::scan(&inner, kind, context),
    }
}

/// The next position at which a pickle that names something may begin or continue.
fn hidden(bytes: &dyn RandomRead, from: u64, context: &FileContext<'_>) -> Result<Option<u64>> {
    let mut at = from;
    // The next place may be near.
    let mut size = 4 * MAX_NAME;
    while at < bytes.len() {
        context.check_cancelled()?;
        let chunk = bytes.part(at, size + 4 * MAX_NAME)?;
        let found = chunk.iter().take(size).enumerate().position(|(place, byte)| match byte {
            0x80 | b'c' | b'i' | 0x8c | b'X' | b'U' | b'V' | b'S' => chunk.get(place..).is_some_and(begins),
            _ => false,
        });
        if let Some(place) = found {
            return Ok(Some(at + place as u64));
        }
        at += size as u64;
        size = (2 * size).min(CHUNK);
    }
    Ok(None)
}

/// Whether a pickle, or a name in one, may begin with these bytes.
fn begins(bytes: &[u8]) -> bool {
    let then_global = |rest: &[u8]| memchr::memchr(0x93, rest.get(..3 * MAX_NAME).unwrap_or(rest)).is_some();
    match bytes {
        [0x80, 0..=5, 0x95, rest @ ..] => rest.get(6..8) == Some(&[0, 0]),
        [0x80, 0..=5, next, ..] => b"(c]})\x8cXUNKJMCB\x8a\x88\x89\x8fG".contains(next),
        [b'c' | b'i', rest @ ..] => name_line(rest).and_then(name_line).is_some(),
        [0x8c | b'U', len, rest @ ..] | [b'X', len, 0, 0, 0, rest @ ..] => {
            *len > 1 && rest.get(..usize::from(*len)).is_some_and(is_dotted) && then_global(rest)
        }
        [b'V', rest @ ..] => name_line(rest).is_some_and(then_global),
        [b'S', b'\'' | b'"', rest @ ..] => then_global(rest) && rest.iter().take(MAX_NAME).any(|byte| *byte == b'\n'),
        _ => false,
    }
}

/// What follows a line that is the name of a module, a class or a function.
fn name_line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().take(MAX_NAME).position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at(end);
    (end > 1 && is_dotted(line)).then(|| rest.get(1..).unwrap_or_default())
}

fn is_dotted(name: &[u8]) -> bool {
    name.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_')
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
}
