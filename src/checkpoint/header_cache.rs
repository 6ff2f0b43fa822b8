//! Caches the headers that were read last. Some programs reopen a safetensors file for each of its tensors, hundreds of times per step of a model,
//! and each time wait for a parse.
//!
//! A header's contents depend only on its bytes, and on the path and length of the file. So each open compares exactly these. A modification time
//! would miss writes within its resolution, or through a shared mapping.

use std::path::Path;
use std::sync::Arc;

use super::files::first_bytes;
use super::open::catalog_of;
use super::{Catalog, Checkpoint, OpenOptions};
use crate::budget;
use crate::error::{Diagnostic, Result};
use crate::format::{FormatKind, safetensors};
use crate::memory::ForkMutex;
use crate::rules;
use crate::source::{LocalFile, ReadRange, Source};

/// The number of cached headers, for programs that take tensors from several shards in turn.
const HEADERS: usize = 16;
/// The maximum bytes of cached headers; parsed, they take two to three times that.
const BYTES: usize = 8 << 20;
/// The length field before the header.
const LENGTH_BYTES: usize = 8;

/// A cached header.
struct CachedHeader {
    /// The bytes from the start of the file on.
    header: Vec<u8>,
    file_len: u64,
    /// The parsed header, which includes the path.
    catalog: Arc<Catalog>,
    /// The options that it was read with.
    options: OpenOptions,
}

impl CachedHeader {
    fn is_of(&self, path: &Path) -> bool {
        self.catalog.files.first().is_some_and(|file| file.path == path)
    }
}

/// The cached headers, most recently used first.
static KNOWN: ForkMutex<Vec<Arc<CachedHeader>>> = ForkMutex::new();

/// The parsed header of a file, if it equals the cached one of this path.
fn find(file: &LocalFile, header: &[u8], options: &OpenOptions) -> Option<Arc<Catalog>> {
    let known = {
        let mut all = KNOWN.lock();
        let at = all.iter().position(|known| known.is_of(file.path()))?;
        all[..=at].rotate_right(1);
        all[0].clone()
    };
    let (theirs, ours) = (&known.options.format, &options.format);
    let as_requested = (theirs.policy, &theirs.limits) == (ours.policy, &ours.limits);
    (as_requested && known.file_len == file.len() && known.header == header).then(|| known.catalog.clone())
}

fn keep(known: CachedHeader) {
    let mut all = KNOWN.lock();
    all.retain(|other| !known.is_of(&other.catalog.files[0].path));
    if known.header.len() > BYTES {
        return;
    }
    all.insert(0, Arc::new(known));
    all.truncate(HEADERS);
    let mut bytes = 0;
    all.retain(|known| {
        bytes += known.header.len();
        bytes <= BYTES
    });
}

/// Maps the file before reading it if tensors are to be views. A mapped file is closed at the end.
pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<(Checkpoint, Arc<LocalFile>)> {
    let mut file = Arc::new(LocalFile::open(path)?);
    let is_mapped = options.backend.maps() && file.mapping().is_ok();
    let (first, end) = start_of(&file, options).map_err(|error| error.at_path(path))?;
    let known = find(&file, &first[..end], options);
    let catalog = known.map_or_else(|| parse(&file, first, end, options), Ok)?;
    if let (true, Some(file)) = (is_mapped, Arc::get_mut(&mut file)) {
        file.close_for_now();
    }
    let opened = vec![std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())];
    Ok((Checkpoint { catalog, files: vec![Some(file.clone())], opened, options: options.clone() }, file))
}

/// Parses the header, which ends at byte `end`, and caches it.
fn parse(file: &Arc<LocalFile>, first: Vec<u8>, end: usize, options: &OpenOptions) -> Result<Arc<Catalog>> {
    let header = first[..end].to_vec();
    let catalog = catalog_of(file.clone(), first, options)?;
    if catalog.kind() != FormatKind::Safetensors {
        let cause = format!("this is a {} file, not a safetensors file", catalog.kind());
        return Err(Diagnostic::new(rules::SAFETENSORS_HEADER_START, cause).path(file.path()).format());
    }
    keep(CachedHeader { header, file_len: file.len(), catalog: catalog.clone(), options: options.clone() });
    Ok(catalog)
}

/// The first bytes of a file, and the end of the header in them.
fn start_of(file: &LocalFile, options: &OpenOptions) -> Result<(Vec<u8>, usize)> {
    let mut first = first_bytes(file, options)?;
    let length = safetensors::header_length(&first, file.len(), &options.format.limits)?;
    let end = LENGTH_BYTES + length as usize;
    if end > first.len() {
        let have = std::mem::replace(&mut first, budget::zeroed(end)?);
        let (start, rest) = first.split_at_mut(have.len());
        start.copy_from_slice(&have);
        file.read(&mut [ReadRange { offset: have.len() as u64, bytes: rest }], &options.format.interrupt)?;
    }
    Ok((first, end))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::sync::MutexGuard;

    use super::*;
    use crate::checkpoint::Backend;
    use crate::error::Policy;
    use crate::sync::Mutex;

    /// The cache is global, so tests run sequentially.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        KNOWN.lock().clear();
        guard
    }

    fn header(name: &str, elements: usize, more: &str) -> Vec<u8> {
        let text = format!(r#"{{{more}"{name}":{{"dtype":"U8","shape":[{elements}],"data_offsets":[0,{elements}]}}}}"#);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn write(path: &Path, header: &[u8], elements: usize) {
        fs::write(path, [header, &vec![7; elements]].concat()).expect("written");
    }

    fn catalog(path: &Path) -> Arc<Catalog> {
        open(path, &OpenOptions::default()).expect("opened").0.catalog
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.safetensors");
        (folder, path)
    }

    #[test]
    fn a_file_that_is_opened_again_is_not_parsed_again() {
        let _alone = alone();
        let (_folder, path) = folder();
        write(&path, &header("a", 3, ""), 3);
        let first = catalog(&path);
        assert!(Arc::ptr_eq(&first, &catalog(&path)));
        // A file that was overwritten with other values, or touched, is not parsed again.
        write(&path, &header("a", 3, ""), 3);
        let (checkpoint, file) = open(&path, &OpenOptions::default()).expect("opened");
        assert!(Arc::ptr_eq(&first, checkpoint.catalog()) && file.is_mapped());
        // The backend does not matter.
        let (read, file) = open(&path, &OpenOptions::default().backend(Backend::Read)).expect("opened");
        assert!(Arc::ptr_eq(&first, read.catalog()) && !file.is_mapped());
        assert_eq!(read.get("a").expect("a").bytes().expect("in one piece"), [7; 3]);
    }

    #[test]
    fn a_header_that_was_edited_in_place_is_seen_whatever_the_times_say() {
        let _alone = alone();
        let (_folder, path) = folder();
        write(&path, &header("a", 3, ""), 3);
        let (first, times) = (catalog(&path), fs::metadata(&path).expect("there").modified().expect("a time"));
        assert!(first.find("a").is_some());
        write(&path, &header("b", 3, ""), 3);
        File::options().append(true).open(&path).expect("opened").set_modified(times).expect("set");
        let second = catalog(&path);
        assert!(second.find("b").is_some() && second.find("a").is_none());
        // Back again: only the last header of a path is cached.
        write(&path, &header("a", 3, ""), 3);
        let third = catalog(&path);
        assert!(third.find("a").is_some() && !Arc::ptr_eq(&first, &third));
    }

    #[test]
    fn the_same_header_in_a_file_of_another_length_is_parsed_again() {
        let _alone = alone();
        let (_folder, path) = folder();
        write(&path, &header("a", 3, ""), 3);
        catalog(&path);
        for (length, rule) in [(2, "safetensors.truncated"), (4, "safetensors.trailing-data")] {
            write(&path, &header("a", 3, ""), length);
            let error = open(&path, &OpenOptions::default()).expect_err("damaged");
            assert_eq!(error.diagnostic().expect("a fault").rule.id, rule);
        }
    }

    #[test]
    fn what_was_accepted_leniently_is_refused_strictly_and_is_still_found() {
        let _alone = alone();
        let (_folder, path) = folder();
        write(&path, &header("", 3, ""), 3);
        let lenient = OpenOptions::default().strict(false);
        for _ in 0..2 {
            assert_eq!(open(&path, &lenient).expect("opened").0.catalog.findings().len(), 1);
            open(&path, &OpenOptions::default()).expect_err("strict");
        }
        assert_eq!(KNOWN.lock()[0].options.format.policy, Policy::Lenient);
    }

    #[test]
    fn each_path_has_a_header_of_its_own_and_a_long_one_is_read_to_its_end() {
        let _alone = alone();
        let (folder, path) = folder();
        let other = folder.path().join("b.safetensors");
        let long = header("a", 3, &format!(r#""__metadata__":{{"k":"{}"}},"#, "v".repeat(100_000)));
        for path in [&path, &other] {
            write(path, &long, 3);
            let first = catalog(path);
            assert!(Arc::ptr_eq(&first, &catalog(path)));
            assert_eq!(&first.files()[0].path, path);
            let metadata = first.files()[0].metadata.as_ref().expect("metadata");
            assert_eq!(metadata[0].1.len(), 100_000);
        }
        // One byte differs.
        let mut edited = long;
        edited[90_000] = b'w';
        write(&path, &edited, 3);
        assert!(catalog(&path).files()[0].metadata.as_ref().expect("metadata")[0].1.contains('w'));
    }

    #[test]
    fn few_are_kept_the_last_that_were_used() {
        let _alone = alone();
        let (folder, path) = folder();
        write(&path, &header("a", 3, ""), 3);
        let first = catalog(&path);
        let path_of = |number: usize| folder.path().join(format!("{number}"));
        for number in 0..3 * HEADERS {
            write(&path_of(number), &header("a", 3, ""), 3);
            catalog(&path_of(number));
            assert!(Arc::ptr_eq(&first, &catalog(&path)));
        }
        assert_eq!(KNOWN.lock().len(), HEADERS);
        let long = |number: usize, bytes: usize| {
            let more = format!(r#""__metadata__":{{"k":"{}"}},"#, "v".repeat(bytes));
            write(&path_of(number), &header("a", 3, &more), 3);
            catalog(&path_of(number));
        };
        long(0, BYTES / 2);
        long(1, BYTES / 2);
        let kept = || KNOWN.lock().iter().map(|known| known.header.len()).sum::<usize>();
        assert!(kept() <= BYTES && KNOWN.lock().len() == 1);
        long(2, BYTES);
        assert!(kept() <= BYTES && !KNOWN.lock().iter().any(|known| known.is_of(&path_of(2))));
    }

    #[test]
    fn a_file_of_another_format_is_refused_each_time() {
        let _alone = alone();
        let (_folder, path) = folder();
        for _ in 0..2 {
            fs::write(&path, b"GGUF\0\0\0\0").expect("written");
            open(&path, &OpenOptions::default()).expect_err("not a safetensors file");
        }
        assert!(KNOWN.lock().is_empty());
    }
}
