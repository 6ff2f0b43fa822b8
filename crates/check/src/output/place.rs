//! Where a finding is: the file by its path in the repository, and the place in the file.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use max_weights::source::store;
use max_weights::{Diagnostic, text};

/// Paths as reports have them: relative to a root, with `/`, without `./`.
pub(crate) struct ReportPaths<'a> {
    root: PathBuf,
    /// Where the program runs.
    here: PathBuf,
    names: HashMap<&'a Path, String>,
}

impl<'a> ReportPaths<'a> {
    /// Paths in this folder; an empty one is the folder that the program runs in.
    pub(crate) fn new(root: &Path) -> Self {
        let here = whole(&std::env::current_dir().unwrap_or_default(), Path::new(""));
        Self { root: whole(root, &here), here, names: HashMap::new() }
    }

    /// The path in the root, or the absolute path of a file elsewhere. Bytes that are not UTF-8 are escaped, which keeps names distinct.
    pub(crate) fn name(&mut self, path: &'a Path) -> &str {
        let (root, here) = (&self.root, &self.here);
        let name = || if store::is_url(path) { text::path(path) } else { relative(&whole(path, here), root) };
        self.names.entry(path).or_insert_with(name)
    }
}

/// The path from the root of the system on, which is left out, without `.` and `..`; nothing is asked of the system. One that is not absolute begins in
/// `here`.
fn whole(path: &Path, here: &Path) -> PathBuf {
    let mut whole = if path.has_root() { PathBuf::new() } else { here.to_owned() };
    for component in path.components() {
        match component {
            Component::ParentDir => drop(whole.pop()),
            Component::Normal(_) | Component::Prefix(_) => whole.push(component),
            Component::CurDir | Component::RootDir => {}
        }
    }
    whole
}

/// The path in the root, or the whole path.
fn relative(path: &Path, root: &Path) -> String {
    let (start, path) = match path.strip_prefix(root) {
        Ok(inside) => ("", inside),
        Err(_) => (if cfg!(unix) { "/" } else { "" }, path),
    };
    let mut name = String::from(start);
    for (number, part) in path.iter().enumerate() {
        name.push_str(if number > 0 { "/" } else { "" });
        for chunk in part.as_encoded_bytes().utf8_chunks() {
            name.push_str(chunk.valid());
            chunk.invalid().iter().for_each(|byte| name.push_str(&format!("\\x{byte:02x}")));
        }
    }
    if name.is_empty() { ".".into() } else { name }
}

/// Whether this is a path in the root.
pub(super) fn is_inside(name: &str) -> bool {
    !(Path::new(name).is_absolute() || store::is_url(Path::new(name)))
}

/// The place in the file, for people: `archive/data.pkl, tensor 'a', byte 12`; empty if there is none.
pub(super) fn inside(finding: &Diagnostic) -> String {
    let member = finding.member.as_deref().map(text::escape);
    let tensor = finding.tensor.as_deref().map(|tensor| format!("tensor '{}'", text::escape(tensor)));
    let offset = finding.offset.map(|offset| format!("byte {offset}"));
    [member, tensor, offset].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The path as a reference of a URI.
pub(super) fn uri(name: &str) -> String {
    let is_url = store::is_url(Path::new(name));
    let mut uri = String::with_capacity(name.len());
    if !is_url && !is_inside(name) {
        uri.push_str(if name.starts_with('/') { "file://" } else { "file:///" });
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=@".contains(&byte) || is_url && b":%?#[]".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_in_the_root() {
        let mut places = ReportPaths::new(Path::new("/data/repository"));
        for (path, name) in [
            ("/data/repository/models/a.bin", "models/a.bin"),
            ("/data/repository/./models/../b.bin", "b.bin"),
            ("/data/repository", "."),
            ("/elsewhere/c.bin", "/elsewhere/c.bin"),
            ("/data/repository2/c.bin", "/data/repository2/c.bin"),
        ] {
            assert_eq!(places.name(Path::new(path)), name);
        }
        assert_eq!(ReportPaths::new(Path::new("")).name(Path::new("./a/./b.bin")), "a/b.bin");
    }

    #[test]
    fn uris_have_escapes() {
        assert_eq!(uri("models/a b%#?ü:.bin"), "models/a%20b%25%23%3F%C3%BC%3A.bin");
        assert_eq!(uri("/elsewhere/a"), "file:///elsewhere/a");
        assert_eq!(uri("https://host:1/a%20b c"), "https://host:1/a%20b%20c");
    }

    #[test]
    #[cfg(unix)]
    fn bytes_that_are_not_utf8_are_escaped() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/r/a\xff.bin"));
        assert_eq!(ReportPaths::new(Path::new("/r")).name(path), "a\\xff.bin");
    }
}
