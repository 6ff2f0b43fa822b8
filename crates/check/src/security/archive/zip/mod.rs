//! Zip archives, as every reader sees them: by the directory at the end, by the headers before the members, and what lies between these.

mod directory;
mod layout;
mod local;
mod open;

use std::collections::{HashMap, HashSet};

use max_weights::format::torch_zip::records::{LocalHeader, SIZES_FOLLOW};
use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

pub(crate) use open::Zip;

use super::{Archive, ArchiveMember, leads_out};
use crate::bytes::{ByteSlice, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::options::Level;
use crate::report::Depth;
use crate::security::{formats, torch};
use directory::{MemberRecord, ZipEnd};

/// Maximum number of members that are examined.
const MAX_MEMBERS: usize = 1_000_000;
/// Maximum number of concatenated archives: one for each tensor of a distributed checkpoint.
const MAX_SEQUENCE: usize = 100_000;

/// Whether these bytes end in a zip archive with members, whatever they begin with. `exactly`: only its comment may follow it.
pub(crate) fn ends_in_zip(bytes: &dyn RandomRead, exactly: bool) -> Result<bool> {
    let ends = directory::ends(bytes)?;
    Ok(ends.iter().any(|end| end.entries > 0 && (!exactly || end.after() == bytes.len())))
}

/// Where the archives begin in a file of a distributed checkpoint that consists only of concatenated archives.
fn sequence(piece: &ByteSpan<'_>, context: &FileContext<'_>) -> Result<Vec<u64>> {
    let (mut end, mut starts) = (piece.bytes.len(), Vec::new());
    while end > 0 && starts.len() < MAX_SEQUENCE {
        context.check_cancelled()?;
        let archive = ByteSlice::new(piece.bytes, 0, end);
        let ends = directory::ends(&archive)?;
        // Each counts its offsets from where it begins.
        let start = ends.iter().filter(|last| last.after() == end).map(|last| last.shift).max();
        let Some(start) = start.filter(|start| *start < end) else { return Ok(Vec::new()) };
        starts.push(start);
        end = start;
    }
    starts.reverse();
    // Of one that begins elsewhere not all would be looked at.
    Ok(if end == 0 { starts } else { Vec::new() })
}

/// Looks into a zip archive, and at what is before, between and behind its members.
pub(crate) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    if crate::kind::has_suffix(piece.name, "distcp") {
        let starts = sequence(piece, context)?;
        if starts.len() > 1 {
            return each_of(piece, &starts, context);
        }
    }
    let zip = read(piece, MAX_MEMBERS, context)?;
    name_members(piece, &zip, context);
    let names: Vec<&str> = zip.members().iter().map(|member| member.name.as_str()).collect();
    let kind = formats::of_members(&names);
    if let (None, Some(kind)) = (piece.member, kind) {
        context.file.kind = kind.into();
    }
    let is_torch = names.iter().any(|name| last(name) == "data.pkl" || last(name) == "constants.pkl");
    let mut accounted = if is_torch { torch::check_archive(piece, &zip, context)? } else { Vec::new() };
    accounted.resize(zip.members().len(), false);
    formats::check_members(piece, &zip, context);
    super::scan_members(piece, &zip, &accounted, context)?;
    layout::look_between(piece, &zip, context)?;
    if context.options.level >= Level::Content {
        for number in (0..accounted.len()).filter(|number| accounted.get(*number) == Some(&true)) {
            zip.check_crc(number, context)?;
        }
        if piece.member.is_none() && kind == Some(formats::NPZ) {
            context.looked_at_arrays();
        }
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// Looks into archives that lie one behind the other.
fn each_of(piece: &ByteSpan<'_>, starts: &[u64], context: &mut FileContext<'_>) -> Result<()> {
    if piece.member.is_none() {
        context.file.kind = "PyTorch (distributed)".into();
    }
    if !super::may_go_deeper(piece, true, context) {
        return Ok(());
    }
    let ends = starts.iter().skip(1).copied().chain([piece.bytes.len()]);
    for (number, (start, end)) in starts.iter().copied().zip(ends).enumerate() {
        super::scan_inside(piece, &part(piece, start, end), &format!("archive {}", number + 1), context)?;
    }
    Ok(())
}

/// The last part of a name.
fn last(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

/// Reads both views of the members, at most `most` of each.
fn read<'p>(piece: &ByteSpan<'p>, most: usize, context: &mut FileContext<'_>) -> Result<Zip<'p>> {
    let bytes = piece.bytes;
    let ends = directory::ends(bytes)?;
    let mut zip = Zip::new(*piece);
    // Which members are known; asked only where there is more than one directory.
    let mut known: HashSet<(u64, String)> = HashSet::new();
    let mut main: Option<&ZipEnd> = None;
    for end in &ends {
        // A member that is an archive has a separate end, and is examined as a member.
        if zip.regions.iter().any(|(start, after)| (*start..*after).contains(&end.at)) {
            continue;
        }
        if !zip.ends.contains(&(end.at, end.after())) {
            zip.ends.push((end.at, end.after()));
        }
        let found = directory::read(bytes, end, most, context)?;
        let is_new = |record: &MemberRecord| !known.contains(&(record.header, record.name.clone()));
        let more: Vec<MemberRecord> =
            if main.is_some() { found.records.into_iter().filter(is_new).collect() } else { found.records };
        if let Some(main) = main {
            if more.is_empty() {
                continue;
            }
            let message = format!(
                "a second directory at byte {} has {} members that the one at byte {} does not have",
                end.directory,
                more.len(),
                main.directory
            );
            context.report(piece, Diagnostic::new(rules::ARCHIVE_TWO_ENDS, message).offset(end.at));
        } else {
            main = Some(end);
            if let Some(why) = &end.contradiction {
                context.report(piece, Diagnostic::new(rules::ARCHIVE_ZIP64, why.clone()).offset(end.at));
            }
            check_end(piece, end, more.len() as u64, found.too_many, context);
        }
        zip.regions.push((end.directory, found.end.max(end.directory)));
        bytes.expect(&more.iter().map(local::around).collect::<Vec<_>>())?;
        for (number, record) in more.into_iter().enumerate() {
            if number.is_multiple_of(256) {
                context.check_cancelled()?;
            }
            if ends.len() > 1 {
                known.insert((record.header, record.name.clone()));
            }
            add(&mut zip, record, context)?;
        }
    }
    if main.is_none() {
        let message = "no directory leads to the members of the archive: its end is missing or broken";
        context.report(piece, Diagnostic::new(rules::ARCHIVE_DAMAGED, message).offset(bytes.len()));
        return without_directory(zip, most, context);
    }
    Ok(zip)
}

fn check_end(piece: &ByteSpan<'_>, end: &ZipEnd, count: u64, too_many: bool, context: &mut FileContext<'_>) {
    if too_many {
        let message = format!("there are {} members: only the first {count} are looked at", end.entries);
        context.report(piece, Diagnostic::new(rules::ARCHIVE_MANY, message).offset(end.directory));
    } else if count != end.entries {
        let message = format!(
            "its end record says that the archive has {} members, but the directory lists {count}",
            end.entries
        );
        context.report(piece, Diagnostic::new(rules::ARCHIVE_LOCAL, message).offset(end.at));
    }
}

/// Adds a member as the directory has it and, where its own header says something else, as that has it.
fn add(zip: &mut Zip<'_>, record: MemberRecord, context: &mut FileContext<'_>) -> Result<()> {
    let piece = zip.piece;
    let Some(local) = local::read(piece.bytes, record.header, record.name.len())? else {
        let message = format!(
            "member '{}' should begin at byte {}, but there is no member header there: it was not looked at",
            escape(&record.name),
            record.header
        );
        context.report(&piece, Diagnostic::new(rules::ARCHIVE_DAMAGED, message).offset(record.header));
        return Ok(());
    };
    for difference in local.differs(&record) {
        let message = format!("the header of a member says {difference}: readers differ in which they believe");
        context.report(&piece, Diagnostic::new(rules::ARCHIVE_LOCAL, message).offset(record.header));
    }
    if record.is_link {
        let target =
            String::from_utf8_lossy(&piece.bytes.part(local.data, 4096.min(record.packed as usize))?).into_owned();
        super::check_link(&piece, &record.name, &target, context);
    }
    if piece.bytes.len().saturating_sub(local.data) < record.packed {
        let message = format!(
            "member '{}' has {} bytes from byte {} on, but the file ends at byte {}",
            escape(&record.name),
            record.packed,
            local.data,
            piece.bytes.len()
        );
        context.report(&piece, Diagnostic::new(rules::ARCHIVE_DAMAGED, message).offset(local.data));
    }
    if record.method == 0 && record.flags & local::LOCKED == 0 && record.packed != record.size {
        let (name, packed, size) = (escape(&record.name), record.packed, record.size);
        let message = format!("member '{name}' is stored in {packed} bytes, but has {size} according to the directory");
        context.report(&piece, Diagnostic::new(rules::ARCHIVE_LOCAL, message).offset(record.header));
    }
    zip.regions.push((record.header, local.data.saturating_add(record.packed)));
    let other = local.is_another_view(&record).then(|| {
        let own = &local.record;
        let packed = if own.packed == 0 { record.packed } else { own.packed };
        MemberRecord { packed, size: own.size.max(1), crc: 0, ..own.clone() }
    });
    zip.add(record, local.data);
    if let Some(other) = other {
        zip.add(other, local.data);
    }
    Ok(())
}

/// The members of an archive without a directory, by the headers that lie one behind the other.
fn without_directory<'p>(mut zip: Zip<'p>, most: usize, context: &mut FileContext<'_>) -> Result<Zip<'p>> {
    let (bytes, mut at) = (zip.piece.bytes, 0);
    while zip.members().len() < most {
        context.check_cancelled()?;
        let Some(local) = local::find(bytes, at)? else {
            // The header in which the file ends early begins no other archive.
            if bytes.part(at, LocalHeader::SIGNATURE.len())? == LocalHeader::SIGNATURE {
                zip.regions.push((at, bytes.len()));
            }
            break;
        };
        let rest = bytes.len().saturating_sub(local.data);
        let is_open = local.record.flags & SIZES_FOLLOW != 0 && local.record.packed == 0;
        let packed = if is_open {
            local::find(bytes, local.data)?.map_or(rest, |next| next.record.header - local.data)
        } else {
            local.record.packed.min(rest)
        };
        let header = local.record.header;
        at = local.data.saturating_add(packed);
        zip.regions.push((header, at));
        let size = if is_open { 0 } else { local.record.size };
        zip.add(MemberRecord { packed, size, ..local.record }, local.data);
    }
    Ok(zip)
}

/// What is wrong with the names, all of them together.
fn name_members(piece: &ByteSpan<'_>, zip: &Zip<'_>, context: &mut FileContext<'_>) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut folded: HashMap<String, &str> = HashMap::new();
    for (number, member) in zip.members().iter().enumerate() {
        let ArchiveMember { name, .. } = member;
        if leads_out(name) {
            let message = format!("the name '{}' of a member leads out of the folder of the archive", escape(name));
            context.report(piece, Diagnostic::new(rules::ARCHIVE_PATH, message).offset(member.start));
        }
        if let Some(first) = seen.insert(name, number) {
            if !zip.same(first, number) {
                let message = format!("the member '{}' appears twice, with different contents", escape(name));
                context.report(piece, Diagnostic::new(rules::ARCHIVE_DUPLICATE, message).offset(member.start));
            }
        } else if let Some(other) = folded.insert(name.to_lowercase(), name) {
            let message = format!("the names '{}' and '{}' differ only in case", escape(other), escape(name));
            context.report(piece, Diagnostic::new(rules::ARCHIVE_CASE, message).offset(member.start));
        }
    }
}

/// A part of the archive that is not a member, as a separate slice.
fn part<'b>(piece: &ByteSpan<'b>, start: u64, end: u64) -> ByteSlice<'b> {
    ByteSlice::new(piece.bytes, start, end.saturating_sub(start))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)] // a test fails by panicking

    use std::path::Path;

    use max_weights::uninterrupted;

    use super::*;
    use crate::kind::Kind;
    use crate::options::ValidateOptions;

    #[test]
    fn members_beyond_the_limit_are_said_not_to_be_looked_at() {
        // Two empty members, and a directory of both.
        let local = |name: u8| [b"PK\x03\x04".as_slice(), &[0; 22], &[1, 0, 0, 0, name]].concat();
        let central =
            |name: u8, at: u8| [b"PK\x01\x02".as_slice(), &[0; 24], &[1], &[0; 13], &[at, 0, 0, 0, name]].concat();
        let end = [b"PK\x05\x06\0\0\0\0\x02\0\x02\0".as_slice(), &94u32.to_le_bytes(), &62u32.to_le_bytes(), &[0; 2]]
            .concat();
        let bytes = [local(b'a'), local(b'b'), central(b'a', 0), central(b'b', 31), end].concat();
        for (most, rules) in [(2, vec![]), (1, vec!["archive.many"])] {
            let options = ValidateOptions::default();
            let mut context =
                FileContext::new(Path::new("a.zip").into(), bytes.len() as u64, Kind::Zip, &options, &uninterrupted);
            let zip = read(&ByteSpan::file(&bytes, "a.zip"), most, &mut context).expect("an archive");
            assert_eq!(zip.members().len(), most);
            let (_, findings, _) = context.finish();
            assert_eq!(findings.iter().map(|finding| finding.rule.id).collect::<Vec<_>>(), rules);
        }
    }
}
