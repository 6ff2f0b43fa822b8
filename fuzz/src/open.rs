//! Target `safetensors_open`: a file is opened, listed, walked, searched, printed, and every tensor read by both backends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use max_weights::checkpoint::{self, Backend, Catalog, Checkpoint, OpenOptions, PrefixTree, TreeLimits};
use max_weights::error::{Diagnostic, Error, Result};
use max_weights::format::HeaderOptions;
use max_weights::rules::Severity;
use max_weights::tensor::Element;
use safetensors::SafeTensors;

use super::folder::in_folder;
use super::memory;
use super::printing::{check_bounded, check_html, check_message, check_text, is_plain};

/// Names whose prefixes are compared with a walk over all names.
const NAMES: usize = 12;
/// Names for which near ones are looked for.
const MISSPELT: usize = 4;
/// Lines of a tree, as `repr` asks for them.
const LINES: usize = 40;
/// Levels of names that a tree shows in any case.
const LEVELS: usize = 30;

/// A checkpoint that opens gives, by either backend, the same bytes as the safetensors crate. Its names lead to their tensors, and the
/// tree shows every one of them. An error says why and where.
pub fn check(input: &[u8]) {
    in_folder(|folder| {
        let path = &folder.join("input.safetensors");
        fs::write(path, input).expect("room for the input");
        let mut verdicts = Vec::new();
        for strict in [true, false] {
            for backend in [Backend::Map, Backend::Read] {
                let format =
                    HeaderOptions { policy: max_weights::error::Policy::new(strict), ..HeaderOptions::default() };
                let options = OpenOptions::default().backend(backend).format(format);
                verdicts.push(memory::bounded(input.len(), || run(input, path, &options)));
            }
        }
        assert_eq!(verdicts[0], verdicts[1], "mapped and read");
        assert_eq!(verdicts[2], verdicts[3], "mapped and read");
        assert!(verdicts[2] || !verdicts[0], "refused only when not strict");
        if verdicts[2] {
            memory::bounded_files(input.len(), 2, |_| check_twice(path));
        }
        if verdicts[0] {
            compare(input, path);
        }
        memory::bounded(input.len(), || check_findings(path));
    });
}

/// An opening that collects all findings has the one that a strict opening ends with among them, and no error where that one finds none.
pub fn check_findings(path: &Path) {
    let Ok(all) = checkpoint::check(&[path.to_path_buf()], &OpenOptions::default()) else { return };
    check_bounded(&all);
    for finding in &all {
        check_message(&finding.to_string());
    }
    match open(path, &OpenOptions::default()) {
        Ok(_) => assert!(all.iter().all(|finding| finding.rule.severity == Severity::Warning), "{all:?}"),
        Err(error) => {
            let Some(fault) = error.diagnostic() else { return };
            let same = |found: &Diagnostic| {
                (found.rule, &found.tensor, found.offset, &found.path)
                    == (fault.rule, &fault.tensor, fault.offset, &fault.path)
            };
            assert!(all.iter().any(same), "{fault} is not among {all:?}");
        }
    }
}

/// True if the file opens.
fn run(input: &[u8], path: &Path, options: &OpenOptions) -> bool {
    let checkpoint = match open(path, options) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            check_error(&error, path);
            return false;
        }
    };
    check_tensors(&checkpoint, input);
    if options.backend == Backend::Map && options.format.policy == max_weights::error::Policy::Lenient {
        check_catalog(&checkpoint);
    }
    true
}

/// What is the same for every way of opening, and for every format.
pub fn check_catalog(checkpoint: &Checkpoint) {
    check_names(checkpoint.catalog());
    check_trees(checkpoint.catalog());
    let metadata: BTreeMap<&str, &str> = checkpoint.catalog().metadata().collect();
    assert_eq!(metadata.len(), checkpoint.catalog().metadata().count(), "every key of the metadata once");
}

/// A set of the same file twice: it only opens without names, which both files would have.
pub fn check_twice(path: &Path) {
    let options = OpenOptions::default().strict(false);
    match Checkpoint::open(&[path, path], &options) {
        Ok(checkpoint) => assert!(checkpoint.catalog().table().is_empty(), "the same names in two files"),
        Err(error) => check_error(&error, path),
    }
}

/// Opens one file.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Checkpoint> {
    Checkpoint::open(&[PathBuf::from(path)], options)
}

/// An error says where, and what to do.
pub fn check_error(error: &Error, path: &Path) {
    let fault = error.diagnostic().expect("a fault, not trouble with the system");
    assert_eq!(fault.path.as_deref(), Some(path), "{fault}");
    assert!(!fault.help.is_empty() && !fault.rule.id.is_empty(), "{fault}");
    check_message(&error.to_string());
}

fn check_tensors(checkpoint: &Checkpoint, input: &[u8]) {
    let mut taken = Vec::new();
    for (number, info) in checkpoint.catalog().table().iter().enumerate() {
        let buffer = checkpoint.tensor(number).expect("memory");
        let bytes = buffer.bytes().expect("contiguous");
        assert_eq!(bytes, &input[info.span.start() as usize..info.span.end() as usize], "{}", info.name);
        if let Element::Plain(dtype) = info.element {
            assert_eq!(buffer.dtype(), dtype);
            assert!(buffer.shape().iter().map(|dim| *dim as u64).eq(info.shape.iter().copied()));
            assert!(buffer.is_aligned() || buffer.size() == 0, "{}", info.name);
        }
        taken.push(buffer);
    }
    for (number, first) in taken.iter().enumerate() {
        let again = checkpoint.tensor(number).expect("memory");
        let one = first.size() == 0 || !first.storage().is_mapped() || again.as_ptr() == first.as_ptr();
        assert!(one && again.bytes() == first.bytes(), "a mapped tensor that is taken twice is one memory");
    }
}

fn check_names(catalog: &Catalog) {
    let (table, names) = (catalog.table(), catalog.names());
    assert_eq!(names.len(), table.len());
    assert!(catalog.walk("").into_iter().eq(0..table.len() as u32), "a walk of all is in file order");
    for number in 0..table.len().min(NAMES) {
        let name = table.name(number);
        assert_eq!(catalog.find(name), Some(number));
        let prefixes = name.match_indices('.').map(|(at, _)| &name[..at]).chain([name]);
        for prefix in prefixes.filter(|prefix| !prefix.is_empty()).take(NAMES) {
            check_prefix(catalog, prefix);
        }
        if number < MISSPELT {
            check_near(catalog, &format!("{name}x"));
            check_near(catalog, &name.replacen('.', "", 1));
            check_near(catalog, &name.chars().rev().collect::<String>());
        }
    }
    check_near(catalog, "");
}

fn check_prefix(catalog: &Catalog, prefix: &str) {
    let table = catalog.table();
    let below = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let expected = (0..table.len()).filter(|number| below(table.name(*number))).map(|number| number as u32);
    assert!(catalog.walk(prefix).into_iter().eq(expected), "a walk of {prefix:?}");
    for child in catalog.children(prefix) {
        assert!(!catalog.range(&format!("{prefix}.{child}")).is_empty(), "{prefix:?} has a child {child:?}");
    }
}

fn check_near(catalog: &Catalog, name: &str) {
    if let Err(error) = catalog.require(name) {
        let Error::NotFound { near, below, .. } = &error else { panic!("another error: {error}") };
        assert!(
            near.len() <= 3 && near.iter().all(|near| catalog.find(near).is_some() || !catalog.range(near).is_empty())
        );
        assert_eq!(*below, catalog.range(name).len());
        check_message(&error.to_string());
    }
}

fn check_trees(catalog: &Catalog) {
    let table = catalog.table();
    for (lines, fold) in [(Some(LINES), true), (None, true), (None, false)] {
        let tree = PrefixTree::new(catalog, "", TreeLimits { lines, fold });
        let (text, html) = (tree.text(), tree.html());
        check_text(&text, true);
        assert!(lines.is_none_or(|lines| text.lines().count() <= lines + 1), "{text}");
        check_html(&html);
        if !fold {
            for name in (0..table.len()).map(|number| table.name(number)) {
                let component = name.rsplit('.').next().unwrap_or_default();
                let shown = is_plain(component) && name.matches('.').count() < LEVELS;
                assert!(!shown || text.contains(component), "{name:?} is missing in\n{text}");
            }
        }
    }
    if !table.is_empty() {
        let name = table.name(0);
        let parent = name.rsplit_once('.').map_or(name, |(parent, _)| parent);
        check_html(&PrefixTree::new(catalog, parent, TreeLimits { lines: Some(LINES), fold: true }).html());
    }
}

/// The bytes of every tensor are where the crate sees them.
fn compare(input: &[u8], path: &Path) {
    let Ok(theirs) = SafeTensors::deserialize(input) else { return };
    let ours = open(path, &OpenOptions::default()).expect("it opened before");
    assert_eq!(ours.catalog().table().len(), theirs.len());
    for (name, view) in theirs.iter() {
        let number = ours.catalog().find(name).expect("a name of the crate");
        let buffer = ours.tensor(number).expect("memory");
        assert_eq!(buffer.bytes(), Some(view.data()), "{name}");
        assert!(buffer.shape().iter().map(|dim| *dim as usize).eq(view.shape().iter().copied()), "{name}");
    }
}
