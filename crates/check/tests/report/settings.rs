//! Settings in a file: every key is read, and what cannot be meant is an error with its line.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use max_weights::rules::Severity;
use max_weights::{Error, Result};
use max_weights_check::Level;
use max_weights_check::output::Format;
use max_weights_check::settings_file::SettingsFile;

const FILE: &str = "max-weights.toml";

/// What a file of this name and text says; the names of files in it are those in its folder.
fn parsed(name: &str, text: &str) -> Result<Option<SettingsFile>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    let inside = |path: &PathBuf| path.strip_prefix(folder.path()).expect("it is in the folder").to_path_buf();
    let mut read = SettingsFile::read(&path)?;
    if let Some(read) = &mut read {
        let files = read.output.iter_mut().filter_map(|(_, file)| file.as_mut());
        for file in files.chain(&mut read.baseline).chain(&mut read.expect) {
            *file = inside(file);
        }
    }
    Ok(read)
}

#[test]
fn every_key_is_read() {
    let all = r#"
        [validate]
        select = ["MW-FI"]
        ignore = ["format.json"]
        severity = "note"
        fail-on = "error"
        level = "content"
        per-path-ignores = { "old/**" = ["security"] }
        output = { sarif = "out/a.sarif", html = "b.html", github = "-" }
        jobs = 2
        max-memory = "1GB"
        timeout = 60
        baseline = "known.json"
        expect = "spec.json"
        category = "models"
    "#;
    let read = parsed(FILE, all).expect("settings").expect("a table");
    assert_eq!((read.select, read.ignore), (vec!["MW-FI".to_owned()], vec!["format.json".to_owned()]));
    assert_eq!(
        (read.severity, read.fail_on, read.level),
        (Some(Severity::Note), Some(Some(Severity::Error)), Some(Level::Content))
    );
    assert_eq!(
        read.output,
        [(Format::Github, None), (Format::Html, Some("b.html".into())), (Format::Sarif, Some("out/a.sarif".into()))]
    );
    assert_eq!((read.jobs, read.max_memory), (NonZero::new(2), Some(1_000_000_000)));
    assert_eq!(read.timeout, Some(Duration::from_secs(60)));
    assert_eq!((read.baseline, read.expect), (Some("known.json".into()), Some("spec.json".into())));
    assert_eq!((read.category.as_deref(), read.per_path_ignores.len()), (Some("models"), 1));
}

#[test]
fn what_cannot_be_meant_is_an_error_that_names_it() {
    for (text, part) in [
        ("[validate]\nselct = []", "line 2, column 1: unknown field `selct`"),
        ("[validate]\nlevel = \"contents\"", "line 2, column 9: 'contents' is not a level"),
        ("[validate]\nseverity = \"never\"", "'never' is not a severity"),
        ("[validate]\nfail-on = \"nevr\"", "'nevr' is not a severity or never"),
        ("[validate]\nselect = [\"MW-ZZ\"]", "there is no rule 'MW-ZZ'"),
        ("[validate]\nper-path-ignores = { \"[\" = [\"security\"] }", "'[' is not a valid glob"),
        ("[validate]\nper-path-ignores = { \"a\" = [\"nothing.like-it\"] }", "there is no rule 'nothing.like-it'"),
        ("[validate]\noutput = { pdf = \"a.pdf\" }", "'pdf' is not a report format"),
        ("[validate]\njobs = 0", "line 2, column 8"),
        ("[validate]\nmax-memory = \"much\"", "is not a size"),
        ("[validate]\ntimeout = \"soon\"", "is not a time"),
        ("[validation]\n", "unknown field `validation`, expected `validate`"),
        ("validate = 1", "line 1, column 12"),
        ("[validate", "line 1, column 10"),
    ] {
        let message = parsed(FILE, text).expect_err(text).to_string();
        assert!(message.contains("max-weights.toml: ") && message.contains(part), "{text}: {message}");
    }
}

#[test]
fn nothing_needs_to_fail() {
    let read = parsed(FILE, "[validate]\nfail-on = \"never\"").expect("settings").expect("a table");
    assert_eq!(read.fail_on, Some(None));
}

#[test]
fn whatever_stands_in_a_file_it_is_read_or_a_mistake_of_whoever_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("max-weights.toml");
    let deep = |open: &str, close: &str| [open.repeat(100_000), close.repeat(100_000)].concat();
    for (content, part) in [
        (&b"[validate]\nselect = [\"\xff\"]"[..], "the byte at 22 is not"),
        (b"[validate]\nselect = \x1b[31m", "line 2, column 1"),
        (b"a = [", "line 1, column "),
        (deep("a.", "").as_bytes(), "line 1, column "),
        (format!("{}b = 1", deep("a.", "")).as_bytes(), "line 1, column "),
        (format!("a = {}", deep("[", "]")).as_bytes(), "line 1, column "),
        (format!("a = {}1{}", "{a=".repeat(100_000), "}".repeat(100_000)).as_bytes(), "line 1, column "),
        (format!("{}a{}", "[".repeat(100_000), "]".repeat(100_000)).as_bytes(), "line 1, column "),
        (b"[validate]\nselect = 1", "line 2, column 10"),
        (b"[validate]\nmax-memory = [1]", "line 2, column 14"),
        (b"[validate]\njobs = 99999999999999999999999", "line 2, column 8"),
        (b"[validate]\ntimeout = -1", "is not a time"),
        (b"[validate]\ntimeout = 1e300", "is not a time"),
        (b"[validate]\nmax-memory = nan", "is not a size"),
        (b"[validate]\n[validate]", "line 2, column "),
        (b"[validate]\nselct\\u0007 = 1", "line 2, column "),
        (b"[validate]\n\"sel\\u001bct\" = 1", "unknown field"),
        (&vec![b'#'; 5 << 20], "more than"),
    ] {
        std::fs::write(&path, content).expect("written");
        let error = SettingsFile::read(&path).expect_err(part);
        let message = error.to_string();
        assert!(matches!(error, Error::Argument(_)) && message.contains(part), "{message}");
        assert!(message.len() < 1000 && !message.contains(char::is_control), "{message:?}");
    }
    for path in [folder.path(), &folder.path().join("none.toml"), Path::new("/dev/zero")] {
        assert!(matches!(SettingsFile::read(path), Err(Error::Argument(_))), "{path:?}");
    }
}

#[test]
fn other_tables_of_a_project_are_none_of_its_business() {
    let read = |text: &str| parsed("pyproject.toml", text).expect("TOML");
    assert_eq!(read("[tool.other]\nselct = 1\n[project]\nname = \"a\""), None);
    assert_eq!(read("[tool.max-weights.other]\na = 1"), None);
    assert_eq!(read("[tool.max-weights.validate]\njobs = 3").and_then(|read| read.jobs), NonZero::new(3));
}
