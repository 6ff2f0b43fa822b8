//! Finds models in the local Hugging Face cache by name, and opens what a user names. Only the store for URLs uses the network.
//!
//! The layout is that of `huggingface_hub`: `models--ORG--MODEL/refs/REVISION` holds the commit of a branch or tag, and `snapshots/COMMIT` holds the
//! files (as links).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use super::near_paths::with_near_paths;
use super::{Checkpoint, OpenOptions};
use crate::error::{Error, Result};
use crate::text;

/// Suffixes of file names, which a model name does not have.
const OF_FILES: [&str; 7] = [".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".json"];
const DEFAULT_REVISION: &str = "main";
/// The longest commit that is read from a file of `refs`.
const COMMIT: u64 = 64;
/// The maximum length of a list of revisions in a message, in characters.
const MAX_LIST: usize = 5_000;

/// The folder of downloaded models.
///
/// ```no_run
/// use max_weights::checkpoint::ModelCache;
///
/// let folder = ModelCache::from_environment().find("HuggingFaceTB/SmolLM2-135M@main")?;
/// # Ok::<(), max_weights::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCache {
    folder: PathBuf,
}

/// `ORG/MODEL`, or with `@REVISION`.
#[derive(Debug, PartialEq, Eq)]
struct ModelName<'a> {
    repo: &'a str,
    revision: Option<&'a str>,
}

impl<'a> ModelName<'a> {
    /// Parses the text; `None` if it cannot be a model name.
    fn of(name: &'a str) -> Option<Self> {
        let word = |text: &str, also: &[u8]| {
            let (first, rest) = text.as_bytes().split_first()?;
            let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            (in_word(first) && rest.iter().all(|byte| in_word(byte) || also.contains(byte))).then_some(())
        };
        let (repo, revision) = match name.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (name, None),
        };
        let (organization, model) = repo.split_once('/')?;
        word(organization, b".-")?;
        word(model, b".-")?;
        revision.map_or(Some(()), |revision| word(revision, b"./-"))?;
        (!name.contains("..")).then_some(Self { repo, revision })
    }

    /// The error for a missing model or revision, with the command that downloads it.
    fn miss(&self, name: &str, cause: String) -> Error {
        let revision = self.revision.map_or_else(String::new, |revision| format!(" --revision {revision}"));
        let command = format!("hf download {}{revision}", self.repo);
        Error::NotInCache { name: name.to_owned(), cause, command }
    }
}

impl ModelCache {
    /// The cache set by the environment: `HF_HUB_CACHE`, else `HF_HOME`/hub, else the default below the user's cache folder.
    pub fn from_environment() -> Self {
        Self::of(|name| std::env::var_os(name), std::env::home_dir())
    }

    /// The cache in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let below_home = |path: PathBuf| match (path.strip_prefix("~"), &home) {
            (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.clone(),
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path,
        };
        if let Some(folder) = set("HF_HUB_CACHE") {
            return Self::at(below_home(folder));
        }
        let of_user = || set("XDG_CACHE_HOME").unwrap_or_else(|| PathBuf::from("~/.cache")).join("huggingface");
        Self::at(below_home(set("HF_HOME").unwrap_or_else(of_user)).join("hub"))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a model's snapshot, by `ORG/MODEL` or `ORG/MODEL@REVISION` (a branch, a tag, a commit; `main` by default). `None` if the text is
    /// not a model name, or looks like a file. If the model or the revision is not in the cache, the error names the command that downloads it.
    pub fn find(&self, name: &str) -> Result<Option<PathBuf>> {
        let Some(requested) = ModelName::of(name) else { return Ok(None) };
        let model = self.model(requested.repo);
        if !model.is_dir() {
            let of_file = OF_FILES.iter().any(|suffix| name.ends_with(suffix));
            if of_file || Path::new(name).parent().is_some_and(Path::is_dir) {
                return Ok(None);
            }
            let cause = format!("neither a file nor a model in the cache {}", text::path(&self.folder));
            return Err(requested.miss(name, cause));
        }
        let revision = requested.revision.unwrap_or(DEFAULT_REVISION);
        if let Some(snapshot) = self.snapshot(requested.repo, revision)? {
            return Ok(Some(snapshot));
        }
        let found = revisions(&model)?;
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        let found = text::cut(&found, MAX_LIST);
        Err(requested.miss(name, format!("the cache has no revision '{revision}' of the model (it has: {found})")))
    }

    /// The folder of a model, `ORG/MODEL`, which need not exist.
    fn model(&self, repo: &str) -> PathBuf {
        self.folder.join(format!("models--{}", repo.replace('/', "--")))
    }

    /// The folder with the files of `ORG/MODEL` at a revision (a branch, a tag, a commit), if it exists.
    pub fn snapshot(&self, repo: &str, revision: &str) -> Result<Option<PathBuf>> {
        let model = self.model(repo);
        // A commit is its own revision.
        let commit = commit_of(&model, revision)?.unwrap_or_else(|| revision.to_owned());
        let snapshot = model.join("snapshots").join(&commit);
        Ok((is_name(&commit) && snapshot.is_dir()).then_some(snapshot))
    }

    /// The folders of all revisions of `ORG/MODEL`; none if they cannot be listed.
    pub fn snapshots(&self, repo: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.model(repo).join("snapshots")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Resolves a user's argument: an existing path, else the snapshot of the model of this name, else the path itself, so that opening it reports
    /// the error.
    pub fn resolve(&self, argument: &Path) -> Result<PathBuf> {
        if fs::symlink_metadata(argument).is_ok() {
            return Ok(argument.to_path_buf());
        }
        let found = argument.to_str().map_or(Ok(None), |name| self.find(name))?;
        Ok(found.unwrap_or_else(|| argument.to_path_buf()))
    }
}

/// [`ModelCache::find`] in the cache set by the environment.
pub fn find_in_cache(name: &str) -> Result<Option<PathBuf>> {
    ModelCache::from_environment().find(name)
}

impl Checkpoint {
    /// As [`Checkpoint::open`], for user input: a single argument that is not a path may be a model name in the cache. The error for a missing file
    /// names similar paths.
    pub fn open_named(arguments: &[impl AsRef<Path>], cache: &ModelCache, options: &OpenOptions) -> Result<Self> {
        let opened = match arguments {
            [one] => Self::open(&[cache.resolve(one.as_ref())?], options),
            several => Self::open(several, options),
        };
        opened.map_err(with_near_paths)
    }
}

/// The commit of a branch or tag; `None` if it does not exist.
fn commit_of(model: &Path, revision: &str) -> Result<Option<String>> {
    let path = model.join("refs").join(revision);
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(COMMIT).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => Ok(None),
            _ => Err(Error::io(&path, "read the revision", error)),
        },
    }
}

/// Whether the commit is a plain folder name, and not a path elsewhere.
fn is_name(commit: &str) -> bool {
    let mut parts = Path::new(commit).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == commit)
        && !commit.contains("..")
}

/// The names below `refs`, and the commits below `snapshots`, escaped.
fn revisions(model: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let refs = model.join("refs");
    let mut folders = vec![refs.clone()];
    while let Some(folder) = folders.pop() {
        // A folder that cannot be listed is skipped: the result is only for a message.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                _ => names.push(path.strip_prefix(&refs).unwrap_or(&path).to_path_buf()),
            }
        }
    }
    names.sort_unstable();
    let snapshots = model.join("snapshots");
    if snapshots.is_dir() {
        let failed = |error| Error::io(&snapshots, "list the directory", error);
        let sorted = names.len();
        for entry in fs::read_dir(&snapshots).map_err(failed)? {
            names.push(PathBuf::from(entry.map_err(failed)?.file_name()));
        }
        names[sorted..].sort_unstable();
    }
    // A revision has slashes, also on systems with another path separator.
    let revision = |name: &PathBuf| name.iter().collect::<Vec<_>>().join(OsStr::new("/"));
    Ok(names.iter().map(|name| text::escape(&text::path(Path::new(&revision(name))))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0000000000000000000000000000000000000001";

    /// A cache with `org/tiny`: the branch `main` and the tag `refs/pr/1` of one commit.
    fn cache() -> (tempfile::TempDir, ModelCache) {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("models--org--tiny");
        for part in ["refs/refs/pr", &format!("snapshots/{COMMIT}")] {
            fs::create_dir_all(model.join(part)).expect("made");
        }
        for revision in ["main", "refs/pr/1"] {
            fs::write(model.join("refs").join(revision), COMMIT).expect("written");
        }
        let cache = ModelCache::at(folder.path());
        (folder, cache)
    }

    /// The error for a name, and the command in it.
    fn miss(cache: &ModelCache, name: &str) -> (String, String) {
        match cache.find(name).expect_err("not there") {
            Error::NotInCache { name: requested, cause, command } if requested == name => (cause, command),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_model_is_found_by_branch_tag_and_commit() {
        let (folder, cache) = cache();
        let snapshot = folder.path().join("models--org--tiny/snapshots").join(COMMIT);
        for name in ["org/tiny", "org/tiny@main", "org/tiny@refs/pr/1", &format!("org/tiny@{COMMIT}")] {
            assert_eq!(cache.find(name).expect("found").as_ref(), Some(&snapshot), "{name}");
        }
        fs::write(folder.path().join("models--org--tiny/refs/main"), format!("{COMMIT}\n")).expect("written");
        assert_eq!(cache.find("org/tiny").expect("found"), Some(snapshot), "with the end of a line");
    }

    #[test]
    fn what_cannot_be_a_models_name_is_none() {
        let (_folder, cache) = cache();
        for name in [
            "",
            "tiny",
            "a/b/c",
            "/org/tiny",
            "../x",
            "org/../tiny",
            "org/tiny@../../x",
            "org/tiny@",
            "org/",
            ".org/tiny",
            "org/tiny@main\n",
            "org/tiny ",
            "org/t\u{ef}ny",
            "org/tiny@a@b",
            "-org/tiny",
        ] {
            assert_eq!(cache.find(name).expect("no model"), None, "{name:?}");
        }
    }

    #[test]
    fn what_is_rather_a_file_is_advised_no_download() {
        let (_folder, cache) = cache();
        assert_eq!(cache.find("models/x.safetensors").expect("a file"), None);
        assert_eq!(cache.find("src/modle").expect("below an existing folder"), None);
    }

    #[test]
    fn a_miss_names_the_cache_what_it_has_and_the_command() {
        let (folder, cache) = cache();
        let (cause, command) = miss(&cache, "org/other@v1.0");
        assert_eq!(cause, format!("neither a file nor a model in the cache {}", folder.path().display()));
        assert_eq!(command, "hf download org/other --revision v1.0");
        let (cause, command) = miss(&cache, "org/tiny@v2");
        let has = format!("main, refs/pr/1, {COMMIT}");
        assert_eq!(cause, format!("the cache has no revision 'v2' of the model (it has: {has})"));
        assert_eq!(command, "hf download org/tiny --revision v2");
        let message = cache.find("org/tiny@v2").expect_err("not there").to_string();
        assert_eq!(message, format!("org/tiny@v2: {cause}; download it with `{command}`"));
        fs::remove_dir_all(folder.path().join("models--org--tiny/refs")).expect("removed");
        fs::remove_dir_all(folder.path().join("models--org--tiny/snapshots")).expect("removed");
        assert!(miss(&cache, "org/tiny").0.ends_with("(it has: none)"));
    }

    #[test]
    fn a_branch_leads_nowhere_but_to_a_snapshot() {
        let (folder, cache) = cache();
        for commit in ["../../..", "..", ".", "", "/", "/etc", "a/b", "\0", "\u{ff}", "absent"] {
            fs::write(folder.path().join("models--org--tiny/refs/main"), commit).expect("written");
            assert!(miss(&cache, "org/tiny").0.contains("no revision 'main'"), "{commit:?}");
        }
    }

    #[test]
    #[cfg_attr(windows, ignore = "invalid file names on this system")]
    fn names_in_the_cache_are_safe_to_print_and_cut() {
        let (folder, cache) = cache();
        let refs = folder.path().join("models--org--tiny/refs");
        fs::write(refs.join("\u{1b}[31m\u{202e}"), "").expect("written");
        for number in 0..1000 {
            fs::write(refs.join(format!("branch-{number}")), "").expect("written");
        }
        let (cause, _) = miss(&cache, "org/tiny@v2");
        assert!(cause.contains("(it has: \\x1b[31m\\u202e, branch-0, "), "{cause}");
        assert!(cause.ends_with("…)") && cause.chars().count() < MAX_LIST + 100);
    }

    #[test]
    fn the_cache_is_where_the_environment_says() {
        let of = |set: &[(&str, &str)]| {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            ModelCache::of(variable, Some("/home/me".into())).folder
        };
        let (hub, home, xdg) = (("HF_HUB_CACHE", "~/h"), ("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/xdg"));
        assert_eq!(of(&[hub, home, xdg]), Path::new("/home/me/h"));
        assert_eq!(of(&[("HF_HUB_CACHE", ""), home, xdg]), Path::new("/hf/hub"));
        assert_eq!(of(&[("HF_HOME", "~"), xdg]), Path::new("/home/me/hub"));
        assert_eq!(of(&[xdg]), Path::new("/xdg/huggingface/hub"));
        assert_eq!(of(&[]), Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!(of(&[("HF_HUB_CACHE", "~me/h")]), Path::new("~me/h"), "another user's cache is not searched");
    }

    #[test]
    fn a_path_that_is_there_comes_before_a_model_of_its_name() {
        let (folder, cache) = cache();
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        assert_eq!(cache.resolve(&file).expect("unchanged"), file);
        let snapshot = folder.path().join("models--org--tiny/snapshots").join(COMMIT);
        assert_eq!(cache.resolve(Path::new("org/tiny")).expect("found"), snapshot);
        assert_eq!(cache.resolve(Path::new("nowhere")).expect("unchanged"), Path::new("nowhere"));
        assert!(matches!(cache.resolve(Path::new("org/other")), Err(Error::NotInCache { .. })));
    }

    #[test]
    fn what_is_opened_by_a_name_names_what_is_near() {
        let (folder, cache) = cache();
        let near = |path: PathBuf| match Checkpoint::open_named(&[path], &cache, &OpenOptions::default()) {
            Err(Error::MissingFile { near, .. }) => near,
            other => panic!("{other:?}"),
        };
        let file = folder.path().join("model.safetensors");
        fs::write(&file, "").expect("written");
        let shown = |path: &Path| vec![path.display().to_string()];
        assert_eq!(near(folder.path().join("modle.safetensors")), shown(&file));
        assert_eq!(near(folder.path().join("utterly-different")), Vec::<String>::new());
        // Not in the temporary folder itself, where other tests create folders.
        let present = folder.path().join("weights");
        fs::create_dir(&present).expect("a folder");
        assert_eq!(near(folder.path().join("weightsx/a/b.gguf")), shown(&present));
        assert_eq!(near("Cargo.tomm".into()), ["Cargo.toml"], "in the working folder");
        let opened = Checkpoint::open_named(&["org/tiny"], &cache, &OpenOptions::default());
        assert!(opened.expect_err("an empty snapshot").to_string().contains("the directory holds no weights"));
    }
}
