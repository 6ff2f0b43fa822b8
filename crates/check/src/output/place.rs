//! Where a finding is: the file by its path in the repository, and the place in the file.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use max_weights::text;

use crate::finding::Finding;

/// Paths as reports have them: relative to a root, with `/`, without `./`.
pub(crate) struct Places<'a> {
    root: PathBuf,
    known: HashMap<&'a Path, String>,
}

impl<'a> Places<'a> {
    /// Paths in this folder; an empty one is the folder that the program runs in.
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: whole(root), known: HashMap::new() }
    }

    /// The path in the root, or the whole path of what lies elsewhere. Bytes that are not UTF-8 are escaped, so that two files do not look alike.
    pub(crate) fn name(&mut self, path: &'a Path) -> &str {
        let root = &self.root;
        self.known.entry(path).or_insert_with(|| relative(path, root))
    }
}

/// The path in the root, or the whole path.
fn relative(path: &Path, root: &Path) -> String {
    let full = whole(path);
    let shown = full.strip_prefix(root).unwrap_or(&full);
    let mut name = String::new();
    for chunk in shown.as_os_str().as_encoded_bytes().utf8_chunks() {
        name.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| name.push_str(&format!("\\x{byte:02x}")));
    }
    if cfg!(windows) {
        name = name.replace('\\', "/");
    }
    if name.is_empty() { ".".into() } else { name }
}

/// The path from the root of the system on, without `.` and `..`; nothing is asked of the system but where the program runs.
fn whole(path: &Path) -> PathBuf {
    // Only an empty path has none.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut clean = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// Whether this is a path in the root.
pub(super) fn is_inside(name: &str) -> bool {
    !Path::new(name).is_absolute()
}

/// The place in the file, for people: `archive/data.pkl, tensor 'a', byte 12`; empty if there is none.
pub(super) fn inside(finding: &Finding) -> String {
    let member = finding.member.as_deref().map(text::shown);
    let tensor = finding.tensor.as_deref().map(|tensor| format!("tensor '{}'", text::shown(tensor)));
    let offset = finding.offset.map(|offset| format!("byte {offset}"));
    [member, tensor, offset].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The path as a reference of a URI.
pub(super) fn uri(name: &str) -> String {
    let mut uri = String::with_capacity(name.len());
    if !is_inside(name) {
        uri.push_str(if name.starts_with('/') { "file://" } else { "file:///" });
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=@".contains(&byte) {
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
        let root = Path::new("/work/repository");
        for (path, name) in [
            ("/work/repository/models/a.bin", "models/a.bin"),
            ("/work/repository/./models/../b.bin", "b.bin"),
            ("/work/repository", "."),
            ("/elsewhere/c.bin", "/elsewhere/c.bin"),
            ("/work/repository2/c.bin", "/work/repository2/c.bin"),
        ] {
            assert_eq!(relative(Path::new(path), root), name);
        }
        assert_eq!(Places::new(Path::new("")).name(Path::new("./a/./b.bin")), "a/b.bin");
    }

    #[test]
    fn uris_have_escapes() {
        assert_eq!(uri("models/a b%#?ü:.bin"), "models/a%20b%25%23%3F%C3%BC%3A.bin");
        assert_eq!(uri("/elsewhere/a"), "file:///elsewhere/a");
    }

    #[test]
    #[cfg(unix)]
    fn bytes_that_are_not_utf8_are_escaped() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/r/a\xff.bin"));
        assert_eq!(relative(path, Path::new("/r")), "a\\xff.bin");
    }
}
