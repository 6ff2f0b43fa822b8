//! Which files are below the paths that were given.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use max_weights::checkpoint::{KNOWN_NAMES, not_served, with_near_paths};
use max_weights::source::Source;
use max_weights::source::store::{self, FolderObjects, ObjectStore};
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};

use crate::bytes::{OpenFile, RandomRead as _, read_file};

/// The folder of version control.
pub(crate) const GIT: &str = ".git";
/// Folders inside one another.
const MAX_DEPTH: usize = 64;
/// What an index of shards is called.
const INDEX: &str = ".index.json";
/// The longest index whose shards are looked up.
const MAX_INDEX: u64 = 256 << 20;

/// Files of a server that are opened at the same time, and that stay open until all is done: with each, its first bytes are at hand.
pub(crate) const AT_A_TIME: usize = 256;
/// What checkpoints end in: a URL that ends so is that of a file.
const FILES: [&str; 6] = [".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt"];
/// The longest path of a file that a server lists.
const MAX_PATH: usize = 4096;

/// A file that is to be looked at.
#[derive(Debug)]
pub(crate) struct WalkedFile {
    /// The printed form.
    pub(crate) path: Arc<Path>,
    /// The form that is opened: a URL may have a query, which is not printed.
    pub(crate) at: Arc<Path>,
    /// The file of a server, if it was opened to see whether it is there.
    pub(crate) opened: Option<Result<Arc<dyn Source>>>,
    /// The path below what was given; the name of a file that was given itself.
    pub(crate) below: String,
    /// Whether its folder was given, and not the file.
    pub(crate) in_folder: bool,
}

/// The files below some paths, each once.
#[derive(Debug, Default)]
pub(crate) struct FileWalk {
    pub(crate) files: Vec<WalkedFile>,
    /// Whether the folder of version control at the top is left out. Elsewhere a folder of this name is one as any other: an index may lead into it.
    pub(crate) without_git: bool,
    /// The folder that links to folders have to lead into, so that they are followed; none: all are.
    pub(crate) within: Option<PathBuf>,
    /// Whether the folder of version control was there and left out.
    pub(crate) has_git: bool,
    /// Folders whose files could not be listed, or not all of them, and why.
    pub(crate) unlisted: Vec<(PathBuf, Error)>,
    paths: HashSet<Arc<Path>>,
    /// By their real paths.
    folders: HashSet<PathBuf>,
}

impl FileWalk {
    /// Adds a file, a file with the shards that it is the index of, or all files below a folder.
    ///
    /// A folder that cannot be listed keeps no other from being.
    ///
    /// # Errors
    /// A path that is not there, Ctrl-C.
    pub(crate) fn add(&mut self, path: &Path, interrupt: Interrupt<'_>) -> Result<()> {
        if let Some(store) = store::store().filter(|_| store::is_url(path)) {
            return self.add_url(path, &**store, interrupt);
        }
        let meta = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                with_near_paths(Error::MissingFile { path: path.to_path_buf(), near: Vec::new() })
            }
            _ => Error::io(path, "look at it", error),
        })?;
        if meta.is_dir() {
            return self.below(path, "", 0, interrupt);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(INDEX) && meta.is_file() {
            let folder = path.parent().unwrap_or(Path::new(""));
            for shard in shards(path, interrupt) {
                self.file(folder.join(&shard), shard, false);
            }
        }
        self.file(path.to_path_buf(), name, false);
        Ok(())
    }

    fn file(&mut self, path: PathBuf, below: String, in_folder: bool) {
        let path: Arc<Path> = path.into();
        if self.paths.insert(path.clone()) {
            self.files.push(WalkedFile { at: path.clone(), path, opened: None, below, in_folder });
        }
    }

    fn url(&mut self, url: PathBuf, below: String, in_folder: bool, opened: Option<Result<Arc<dyn Source>>>) {
        let at: Arc<Path> = url.into();
        if self.paths.insert(at.clone()) {
            self.files.push(WalkedFile { path: store::redacted(&at).into(), at, opened, below, in_folder });
        }
    }

    /// Adds the files of a URL: a file, an index with its shards, or everything that a server lists below it.
    fn add_url(&mut self, url: &Path, store: &dyn ObjectStore, interrupt: Interrupt<'_>) -> Result<()> {
        let name = store::name(url);
        let is_file = name.ends_with(INDEX) || FILES.iter().any(|suffix| name.ends_with(suffix));
        let listing = if is_file { Ok(None) } else { store.list_below(url, interrupt) };
        match listing {
            Ok(Some(listing)) => {
                self.listed(listing, interrupt)?;
                return Ok(());
            }
            Ok(None) | Err(Error::MissingFile { .. }) => {}
            Err(error) => return Err(error),
        }
        let suffix = Path::new(&name).extension().unwrap_or_default().as_encoded_bytes();
        let is_folder = !is_file && !suffix.first().is_some_and(u8::is_ascii_alphabetic);
        if is_folder || name.ends_with(INDEX) {
            store::require_no_query(url)?;
        }
        if is_folder {
            // A folder of a server that lists nothing: the files that loaders ask for.
            let urls = KNOWN_NAMES.map(|name| store::join(url, name));
            let opened = open_each(store, &urls, interrupt)?;
            for ((at, name), file) in urls.into_iter().zip(KNOWN_NAMES).zip(opened) {
                match file {
                    Ok(file) if name.ends_with(INDEX) => {
                        return self.index(&at, name.to_owned(), file, store, interrupt);
                    }
                    Ok(file) => {
                        self.url(at, name.to_owned(), false, Some(Ok(file)));
                        return Ok(());
                    }
                    Err(_) => {}
                }
            }
        }
        let missing = || Err(Error::MissingFile { path: store::redacted(url), near: Vec::new() });
        let file = match open_each(store, &[url.to_path_buf()], interrupt)?.pop().unwrap_or_else(missing) {
            Err(Error::MissingFile { .. }) if is_folder => return Err(not_served(url)),
            file => file?,
        };
        if name.ends_with(INDEX) {
            return self.index(url, name, file, store, interrupt);
        }
        self.url(url.to_path_buf(), name, false, Some(Ok(file)));
        Ok(())
    }

    /// Adds an index, and its shards that are there.
    fn index(
        &mut self,
        url: &Path,
        name: String,
        file: Arc<dyn Source>,
        store: &dyn ObjectStore,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let open = OpenFile::new(file.clone(), interrupt);
        let text = if open.len() <= MAX_INDEX { open.first(MAX_INDEX as usize)? } else { Vec::new() };
        let shards: Vec<String> =
            crate::json::files_of_index(&text).into_iter().filter(|shard| is_plain(shard)).collect();
        let folder = store::parent(url);
        for shards in shards.chunks(AT_A_TIME) {
            let urls: Vec<PathBuf> = shards.iter().map(|shard| store::join(&folder, shard)).collect();
            let opened = open_each(store, &urls, interrupt)?;
            for ((url, shard), opened) in urls.into_iter().zip(shards).zip(opened) {
                if !matches!(opened, Err(Error::MissingFile { .. })) {
                    let stays = self.files.len() < AT_A_TIME;
                    self.url(url, shard.clone(), false, Some(opened).filter(|opened| stays || opened.is_err()));
                }
            }
        }
        self.url(url.to_path_buf(), name, false, Some(Ok(file)));
        Ok(())
    }

    /// Adds what a server lists. What a name leads to that is no path below the folder is not asked for.
    fn listed(&mut self, listing: FolderObjects, interrupt: Interrupt<'_>) -> Result<()> {
        let FolderObjects { folder, mut names } = listing;
        names.sort_unstable();
        for name in names {
            interrupt()?;
            if self.without_git && name.split_once('/').is_some_and(|(first, _)| first == GIT) {
                self.has_git = true;
            } else if is_plain(&name) {
                self.url(store::join(&folder, &name), name, true, None);
            } else {
                let path = store::join(&store::redacted(&folder), &name);
                let cause = io::Error::other("the server lists a name that is no path below the folder");
                self.unlisted.push((path.clone(), Error::io(&path, "look at it", cause)));
            }
        }
        Ok(())
    }

    /// Whether a link leads out of the folder that it has to stay in.
    fn leads_out(&self, link: &Path) -> bool {
        let is_below = |root: &PathBuf| fs::canonicalize(link).is_ok_and(|target| target.starts_with(root));
        self.within.as_ref().is_some_and(|root| !is_below(root))
    }

    /// Adds the files below a folder, or notes why they could not be listed.
    fn below(&mut self, folder: &Path, below: &str, depth: usize, interrupt: Interrupt<'_>) -> Result<()> {
        match self.folder(folder, below, depth, interrupt) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                self.unlisted.push((folder.to_path_buf(), error));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn folder(&mut self, folder: &Path, below: &str, depth: usize, interrupt: Interrupt<'_>) -> Result<()> {
        let failed = |error| Error::io(folder, "list the folder", error);
        // A link may lead back to where it is.
        if !self.folders.insert(fs::canonicalize(folder).map_err(failed)?) {
            return Ok(());
        }
        let mut entries: Vec<(PathBuf, bool)> = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            interrupt()?;
            let entry = entry.map_err(failed)?;
            let is_folder = match entry.file_type() {
                // What is no link is known without being looked at.
                Ok(kind) if !kind.is_symlink() => kind.is_dir(),
                Ok(_) if self.leads_out(&entry.path()) => false,
                _ => fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir()),
            };
            entries.push((entry.path(), is_folder));
        }
        entries.sort();
        for (path, is_folder) in entries {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if is_folder && depth == 0 && self.without_git && name == GIT {
                self.has_git = true;
                continue;
            }
            if is_folder && depth >= MAX_DEPTH {
                let deep = io::Error::other(format!("it is nested in more than {MAX_DEPTH} folders"));
                self.unlisted.push((path.clone(), Error::io(&path, "list the folder", deep)));
                continue;
            }
            let below = if below.is_empty() { name } else { format!("{below}/{name}") };
            if is_folder {
                self.below(&path, &below, depth + 1, interrupt)?;
            } else {
                self.file(path, below, true);
            }
        }
        Ok(())
    }
}

/// Opens files of a server, with the first bytes of all at the same time.
///
/// # Errors
/// Ctrl-C.
pub(crate) fn open_each(
    store: &dyn ObjectStore,
    urls: &[PathBuf],
    interrupt: Interrupt<'_>,
) -> Result<Vec<Result<Arc<dyn Source>>>> {
    let opened = store.open(urls, interrupt);
    // A cancellation is reported once.
    if matches!(opened.first(), Some(Err(Error::Interrupted))) {
        return Err(Error::Interrupted);
    }
    interrupt()?;
    // What one of them waited for too long was not waited for by the others.
    let late = |url: &PathBuf| Error::io(&store::redacted(url), "open it", io::ErrorKind::TimedOut.into());
    let each = opened.into_iter().zip(urls).map(|(opened, url)| match opened {
        Err(Error::Interrupted) => Err(late(url)),
        opened => opened,
    });
    Ok(each.collect())
}

/// Whether a name from a server or an index is a path below the folder, for any reader.
fn is_plain(name: &str) -> bool {
    let is_named = |part: &str| !matches!(part, "" | "." | "..");
    name.len() <= MAX_PATH && name.split('/').all(is_named) && !name.chars().any(char::is_control)
}

/// How many names a file has in the file system.
#[cfg(unix)]
pub(crate) fn links(meta: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(meta)
}

/// How many names a file has in the file system: that is not known here.
#[cfg(not(unix))]
pub(crate) fn links(_: &fs::Metadata) -> u64 {
    1
}

/// Whether a file is below a folder, or in the `blobs` of the Hugging Face cache whose `snapshots` contain the folder.
pub(crate) fn lies_in(real: &Path, root: &Path) -> bool {
    let mut above = root.ancestors();
    let snapshots = above.find(|folder| folder.file_name().is_some_and(|name| name == "snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|model| model.join("blobs"));
    real.starts_with(root) || blobs.is_some_and(|blobs| real.starts_with(blobs))
}

/// The files that an index names and that are below its folder. What is wrong with it, is found when it is looked at itself.
fn shards(index: &Path, interrupt: Interrupt<'_>) -> Vec<String> {
    let Ok(Some(text)) = read_file(index, MAX_INDEX, interrupt) else { return Vec::new() };
    let folder = index.parent().unwrap_or(Path::new(""));
    let is_below = |name: &String| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    crate::json::files_of_index(&text).into_iter().filter(is_below).filter(|name| folder.join(name).is_file()).collect()
}

#[cfg(test)]
mod tests {
    use max_weights::uninterrupted;

    use super::*;

    fn found(walk: &FileWalk) -> Vec<&str> {
        walk.files.iter().map(|file| file.below.as_str()).collect()
    }

    #[test]
    fn a_folder_is_walked_once_and_git_is_a_folder_as_any_other() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a/b/weights.bin", "c.txt", ".git/objects/x", "a/z"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, "x").expect("written");
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/back")).expect("a link");
        let mut walk = FileWalk::default();
        walk.add(folder.path(), &uninterrupted).expect("walked");
        walk.add(&folder.path().join("c.txt"), &uninterrupted).expect("walked");
        assert_eq!(found(&walk), [".git/objects/x", "a/b/weights.bin", "a/z", "c.txt"]);
        fs::create_dir_all(folder.path().join("a/.git")).expect("a folder");
        fs::write(folder.path().join("a/.git/x"), "x").expect("written");
        let mut walk = FileWalk { without_git: true, ..FileWalk::default() };
        walk.add(folder.path(), &uninterrupted).expect("walked");
        assert_eq!(found(&walk), ["a/.git/x", "a/b/weights.bin", "a/z", "c.txt"]);
        assert!(walk.has_git);
        assert!(walk.add(&folder.path().join("not there"), &uninterrupted).is_err());
    }

    #[test]
    fn names_that_servers_list_are_paths_below_the_folder() {
        for name in ["a", "a/b.bin", "..%2Fa", "a..", "größe", "a b"] {
            assert!(is_plain(name), "{name}");
        }
        let long = "a".repeat(5000);
        for name in ["", "/a", "a//b", "../a", "a/../b", "a/.", "a\0", "a\nb", "a/", &long] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn an_interrupt_ends_the_walk_at_the_next_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("a/b/c")).expect("folders");
        let requested = std::cell::Cell::new(0);
        let interrupt = || {
            requested.set(requested.get() + 1);
            if requested.get() < 3 { Ok(()) } else { Err(Error::Interrupted) }
        };
        assert!(matches!(FileWalk::default().add(folder.path(), &interrupt), Err(Error::Interrupted)));
        assert_eq!(requested.get(), 3);
    }

    #[test]
    fn an_index_brings_the_shards_that_are_there_and_lie_below_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let index = folder.path().join("model.safetensors.index.json");
        fs::write(&index, r#"{"weight_map": {"a": "one", "b": "../two", "c": "three", "d": "/etc/passwd"}}"#)
            .expect("written");
        fs::write(folder.path().join("one"), "x").expect("written");
        let mut walk = FileWalk::default();
        walk.add(&index, &uninterrupted).expect("walked");
        assert_eq!(found(&walk), ["one", "model.safetensors.index.json"]);
        assert!(walk.files.iter().all(|file| !file.in_folder));
    }
}
