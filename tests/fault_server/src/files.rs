//! The files of the folder: which file a path names, its tag, and the answer to a request for it or a range of it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::counts::lock;
use crate::http::{Answer, Body, Head, Part};
use crate::text::http_date;

/// Where bodies are while they come, in the folder; its files have no path.
pub(crate) const UPLOADS: &str = ".fault-server";

/// What an object has become, as faults say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// Other bytes of the same length, under another tag.
    pub(crate) is_other: bool,
    pub(crate) has_grown: bool,
    pub(crate) has_shrunk: bool,
}

/// A served file.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
    end_of_file: u64,
    /// With its quotes.
    pub(crate) tag: String,
    pub(crate) modified: SystemTime,
    mask: u8,
}

/// The length and the time of a file when its tag was computed, and the tag.
type Known = (u64, SystemTime, String);

pub(crate) struct Files {
    pub(crate) folder: PathBuf,
    tags: Mutex<HashMap<PathBuf, Arc<Mutex<Option<Known>>>>>,
}

impl Files {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, tags: Mutex::default() }
    }

    /// The place of a path in the folder; none for one that could lead out of it, or that no file can have.
    pub(crate) fn place(&self, path: &str) -> Option<PathBuf> {
        let is_plain =
            |segment: &str| !matches!(segment, "" | "." | ".." | UPLOADS) && !segment.contains(['\0', '\\', ':']);
        path.split('/').all(is_plain).then(|| self.folder.join(path))
    }

    pub(crate) fn object(&self, path: &str, version: Version) -> Option<Object> {
        let path = self.place(path)?;
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let end_of_file = metadata.len();
        let mut tag = self.tag(&path, end_of_file, modified).ok()?;
        let mut length = end_of_file;
        for (has_changed, letter) in [(version.is_other, 'a'), (version.has_grown, 'b'), (version.has_shrunk, 'c')] {
            if has_changed {
                tag.insert(1, letter);
            }
        }
        if version.has_grown {
            length += 4096;
        }
        if version.has_shrunk {
            length /= 2;
        }
        Some(Object { path, length, end_of_file, tag, modified, mask: if version.is_other { 0x5a } else { 0 } })
    }

    /// A file that was just stored has this tag, until it has another length or time.
    pub(crate) fn set_tag(&self, path: &Path, tag: &str) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let entry = Arc::clone(lock(&self.tags).entry(path.to_owned()).or_default());
        *lock(&entry) = Some((metadata.len(), modified, tag.to_owned()));
        Ok(())
    }

    /// A tag of the content, which is read again when the file has another length or time.
    fn tag(&self, path: &Path, length: u64, modified: SystemTime) -> io::Result<String> {
        let entry = Arc::clone(lock(&self.tags).entry(path.to_owned()).or_default());
        // Of several requests for a file the first reads it, and the others wait for that.
        let mut known = lock(&entry);
        if let Some((_, _, tag)) = known.as_ref().filter(|known| (known.0, known.1) == (length, modified)) {
            return Ok(tag.clone());
        }
        let tag = format!("\"{}\"", digest(File::open(path)?)?);
        *known = Some((length, modified, tag.clone()));
        Ok(tag)
    }
}

/// 32 digits that other bytes would not have by chance; in four lanes, as files may be large.
pub(crate) fn digest(mut bytes: impl Read) -> io::Result<String> {
    /// The halves of a product, each bit of which depends on many.
    fn folded(word: u64) -> u64 {
        let product = u128::from(word) * 0x9e37_79b9_7f4a_7c15;
        product as u64 ^ (product >> 64) as u64
    }

    let (mut lanes, mut length) = ([1_u64, 2, 3, 4], 0);
    let mut buffer = Vec::with_capacity(256 << 10);
    loop {
        buffer.clear();
        let read = bytes.by_ref().take(256 << 10).read_to_end(&mut buffer)?;
        if read == 0 {
            break;
        }
        length += read as u64;
        buffer.resize(read.next_multiple_of(32), 0);
        for block in buffer.chunks_exact(32) {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
                let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                *lane = folded(*lane ^ word);
            }
        }
    }
    let mix = |state: u64, lane: &u64| folded(state.rotate_left(17) ^ lane);
    let first = lanes.iter().fold(length, mix);
    Ok(format!("{first:016x}{:016x}", lanes.iter().rev().fold(first, mix)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeRequest {
    Whole,
    /// First and end, within the object.
    Range(u64, u64),
    OutOfReach,
}

/// The range that a header `Range` requests. An invalid one, and several ranges, stand for the whole file.
fn wanted_ranges(range: Option<&str>, total: u64) -> RangeRequest {
    let Some((first, last)) = range.and_then(|text| text.strip_prefix("bytes=")?.split_once('-')) else {
        return RangeRequest::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, end) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(total)),
        (Some(first), None) if last.trim().is_empty() => (first, total),
        (None, Some(count)) if first.trim().is_empty() => (total.saturating_sub(count), total),
        _ => return RangeRequest::Whole,
    };
    if first < end { RangeRequest::Range(first, end) } else { RangeRequest::OutOfReach }
}

/// Whether one of the tags of a header such as `If-Match` is this one.
fn matches(header: &str, tag: &str) -> bool {
    header.split(',').map(str::trim).any(|other| other == "*" || other.trim_matches('"') == tag.trim_matches('"'))
}

/// Why a request must not be done to an object that is there, or is not, as its headers say.
pub(crate) fn precondition(head: &Head, object: Option<&Object>) -> Option<Answer> {
    let is_wrong = match (head.header("if-match"), object) {
        (Some(_), None) => return Some(Answer::error(404, "NoSuchKey", "The specified key does not exist.")),
        (Some(tags), Some(object)) => !matches(tags, &object.tag),
        (None, _) => false,
    };
    let is_present = head.header("if-none-match").zip(object).is_some_and(|(tags, object)| matches(tags, &object.tag));
    let is_present = is_present || object.is_some() && head.header("x-goog-if-generation-match") == Some("0");
    let failed = "At least one of the pre-conditions you specified did not hold";
    (is_wrong || is_present).then(|| Answer::error(412, "PreconditionFailed", failed))
}

/// An object or the range of it that a GET or HEAD asks for.
pub(crate) fn serve(head: &Head, object: &Object) -> Answer {
    let described = |answer: Answer| {
        let answer = answer.with("ETag", object.tag.as_str()).with("Last-Modified", http_date(object.modified));
        answer.with("Accept-Ranges", "bytes")
    };
    if head.header("if-match").is_some_and(|tags| !matches(tags, &object.tag)) {
        let failed = "At least one of the pre-conditions you specified did not hold";
        return Answer::error(412, "PreconditionFailed", failed);
    }
    if head.header("if-none-match").is_some_and(|tags| matches(tags, &object.tag)) {
        return described(Answer::new(304));
    }
    let is_current = head.header("if-range").is_none_or(|tag| matches(tag, &object.tag));
    let total = object.length;
    let (status, first, end) = match wanted_ranges(head.header("range").filter(|_| is_current), total) {
        RangeRequest::Whole => (200, 0, total),
        RangeRequest::Range(first, end) => (206, first, end),
        RangeRequest::OutOfReach => {
            let answer = Answer::error(416, "InvalidRange", "The requested range is not satisfiable");
            return answer.with("Content-Range", format!("bytes */{total}"));
        }
    };
    let mut answer = described(Answer::new(status)).with("Content-Type", "application/octet-stream");
    if status == 206 {
        answer = answer.with("Content-Range", content_range(first, end, total));
    }
    answer.body = Body::Part(part(object, first, end));
    answer
}

pub(crate) fn content_range(first: u64, end: u64, total: u64) -> String {
    format!("bytes {first}-{}/{total}", end - 1)
}

/// The bytes of an object from a first one to an end.
pub(crate) fn part(object: &Object, first: u64, end: u64) -> Part {
    let path = object.path.clone();
    Part { path, start: first, length: end - first, end_of_file: object.end_of_file, mask: object.mask }
}

/// The range that a header `Content-Range` names: first and end.
pub(crate) fn range_of(answer: &Answer) -> Option<(u64, u64)> {
    let (range, _) = answer.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse::<u64>().ok()? + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_says() {
        assert_eq!(wanted_ranges(None, 10), RangeRequest::Whole);
        for (range, result) in [
            ("bytes=0-0", RangeRequest::Range(0, 1)),
            ("bytes=3-", RangeRequest::Range(3, 10)),
            ("bytes=3-99", RangeRequest::Range(3, 10)),
            ("bytes=-4", RangeRequest::Range(6, 10)),
            ("bytes=-40", RangeRequest::Range(0, 10)),
            ("bytes=10-", RangeRequest::OutOfReach),
            ("bytes=-0", RangeRequest::OutOfReach),
            ("bytes=4-3", RangeRequest::Whole),
            ("bytes=0-1,3-4", RangeRequest::Whole),
            ("bytes=-", RangeRequest::Whole),
            ("lines=0-1", RangeRequest::Whole),
        ] {
            assert_eq!(wanted_ranges(Some(range), 10), result, "{range}");
        }
    }

    #[test]
    fn other_bytes_have_other_digests() {
        let of = |bytes: &[u8]| digest(bytes).expect("bytes");
        let mut seen = std::collections::HashSet::new();
        for length in 0..300 {
            assert!(seen.insert(of(&vec![0; length])));
        }
        for bit in 0..800 {
            let mut bytes = [7; 100];
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(of(&bytes)));
        }
        assert_eq!(of(&vec![5; 300_000]), of(&vec![5; 300_000]));
    }

    #[test]
    fn paths_stay_in_the_folder() {
        let files = Files::new(PathBuf::from("folder"));
        assert_eq!(files.place("a/b c"), Some(Path::new("folder").join("a/b c")));
        for path in ["", "/etc/passwd", "..", "a/../../b", "a//b", "./a", "a\0", ".fault-server/1", "c:\\x"] {
            assert_eq!(files.place(path), None, "{path}");
        }
    }
}
