//! The signatures of OpenSSF's model signing, made by its own program (model-signing 1.1.1) of the folder that `signed` writes.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use max_weights::{Error, uninterrupted};
use max_weights_check::Progress;
use max_weights_check::manifest::{Checked, check};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const SIGNATURES: [&str; 4] = ["file-sha256.sig", "file-blake2.sig", "shard-sha256.sig", "shard-blake2.sig"];

fn signed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("sub")).expect("a folder");
    fs::write(folder.path().join("a.bin"), (0..2500).map(|number| (number % 251) as u8).collect::<Vec<_>>())
        .expect("written");
    fs::write(folder.path().join("a-b.txt"), "a\n").expect("written");
    fs::write(folder.path().join("sub/b.txt"), "hi\n").expect("written");
    folder
}

fn signature(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/signatures").join(name)
}

fn checked(signature: &Path, folder: &Path) -> Checked {
    check(signature, Some(folder), false, &Progress::default(), &uninterrupted).expect("checked")
}

fn found(checked: &Checked) -> Vec<(&str, String)> {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let all = checked.findings.iter().filter(|found| found.rule.id != "manifest.signature");
    all.map(|found| (found.rule.id, name(&found.path))).collect()
}

/// A signature with another statement.
fn changed(folder: &Path, change: impl Fn(&mut Value)) -> PathBuf {
    let text = fs::read_to_string(signature("file-sha256.sig")).expect("it is there");
    let mut bundle: Value = serde_json::from_str(&text).expect("JSON");
    let payload = STANDARD.decode(bundle["dsseEnvelope"]["payload"].as_str().expect("a text")).expect("base64");
    let mut statement: Value = serde_json::from_slice(&payload).expect("JSON");
    change(&mut statement);
    bundle["dsseEnvelope"]["payload"] = STANDARD.encode(statement.to_string()).into();
    let path = folder.join("file-sha256.sig");
    fs::write(&path, bundle.to_string()).expect("written");
    path
}

#[test]
fn files_that_were_signed_are_the_same_by_every_method_and_hash_and_the_signature_is_left_to_its_tool() {
    let folder = signed();
    for name in SIGNATURES {
        let same = checked(&signature(name), folder.path());
        assert_eq!((found(&same), same.files.same, same.differs()), (vec![], 3, false), "{name}");
        assert_eq!((same.kind, same.findings[0].rule.id), ("model signature", "manifest.signature"));
        assert!(same.tensors.is_none());
    }
}

#[test]
fn files_that_are_other_longer_missing_or_new_are_said() {
    let folder = signed();
    let bytes = fs::read(folder.path().join("a.bin")).expect("it is there");
    fs::remove_file(folder.path().join("sub/b.txt")).expect("deleted");
    fs::write(folder.path().join("new.py"), "x").expect("written");
    fs::write(folder.path().join(".gitignore"), "x").expect("written");
    let longer = [&bytes[..], b"x"].concat();
    let mut other = bytes.clone();
    other[2400] ^= 1;
    for name in SIGNATURES {
        for bytes in [&longer, &other, &bytes[..1000].to_vec()] {
            fs::write(folder.path().join("a.bin"), bytes).expect("written");
            let checked = checked(&signature(name), folder.path());
            let expected = [("manifest.changed", "a.bin"), ("manifest.missing", "b.txt"), ("manifest.new", "new.py")];
            assert_eq!(found(&checked), expected.map(|(rule, file)| (rule, file.to_owned())), "{name}");
            assert!(checked.differs());
        }
    }
}

#[test]
fn a_statement_that_contradicts_itself_or_leads_elsewhere_is_told() {
    let folder = signed();
    let rules = |path: &Path| {
        found(&checked(path, folder.path())).into_iter().map(|(rule, _)| rule.to_owned()).collect::<Vec<_>>()
    };
    let resource =
        |statement: &mut Value, key: &str, value: &str| statement["predicate"]["resources"][0][key] = value.into();
    let contradicts = changed(folder.path(), |statement| resource(statement, "digest", &"00".repeat(32)));
    assert_eq!(rules(&contradicts), ["manifest.broken", "manifest.changed"]);
    let elsewhere = changed(folder.path(), |statement| resource(statement, "name", "../../etc/passwd"));
    assert_eq!(rules(&elsewhere), ["manifest.path", "manifest.new"]);
    let algorithm = changed(folder.path(), |statement| resource(statement, "algorithm", "blake3"));
    assert_eq!(rules(&algorithm), ["manifest.unchecked"]);
    let predicate =
        changed(folder.path(), |statement| statement["predicateType"] = "https://slsa.dev/provenance/v1".into());
    assert_eq!(rules(&predicate), ["manifest.broken"]);
    let subjects = changed(folder.path(), |statement| statement["subject"] = json!([]));
    assert_eq!(rules(&subjects), ["manifest.broken"]);
    let method =
        changed(folder.path(), |statement| statement["predicate"]["serialization"]["method"] = "shards".into());
    assert_eq!(rules(&method)[..3], ["manifest.broken", "manifest.broken", "manifest.broken"]);
}

#[test]
fn a_model_of_one_file_is_signed_without_a_path() {
    let folder = signed();
    let one = changed(folder.path(), |statement| {
        let resources = &mut statement["predicate"]["resources"];
        let mut resource = resources.as_array().expect("a list").iter().find(|of| of["name"] == "a.bin").cloned();
        resource.as_mut().expect("it was signed")["name"] = ".".into();
        let digest = resource.as_ref().expect("it was signed")["digest"].as_str().expect("a text").to_owned();
        let bytes = (0..32).map(|at| u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).expect("digits"));
        let root = Sha256::digest(bytes.collect::<Vec<u8>>());
        let root = root.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        *resources = json!([resource]);
        statement["subject"] = json!([{"name": "a.bin", "digest": {"sha256": root}}]);
    });
    for path in [folder.path().to_path_buf(), folder.path().join("a.bin")] {
        let same = checked(&one, &path);
        assert_eq!((found(&same), same.files.same), (vec![], 1), "{}", path.display());
    }
    let renamed = folder.path().join("b.bin");
    fs::copy(folder.path().join("a.bin"), &renamed).expect("copied");
    assert_eq!(found(&checked(&one, &renamed)), [], "its name is not signed for itself");
    fs::write(&renamed, "other").expect("written");
    assert_eq!(found(&checked(&one, &renamed)), [("manifest.changed", "b.bin".to_owned())]);
    fs::remove_file(folder.path().join("a.bin")).expect("deleted");
    assert_eq!(found(&checked(&one, folder.path())), [("manifest.missing", "a.bin".to_owned())]);
}

#[test]
fn the_layout_before_version_1_lists_files_as_subjects() {
    let folder = signed();
    let before = changed(folder.path(), |statement| {
        let of_resource =
            |resource: &Value| json!({"name": resource["name"], "digest": {"sha256": resource["digest"]}});
        let resources = statement["predicate"]["resources"].as_array().expect("a list");
        statement["subject"] = resources.iter().map(of_resource).collect();
        statement["predicateType"] = "https://model_signing/Digests/v0.1".into();
        statement["predicate"] = json!({"unused": "Unused, just passed due to API requirements"});
    });
    let same = checked(&before, folder.path());
    assert_eq!((found(&same), same.files.same), (vec![], 3));
}

#[test]
fn a_signature_has_no_tensors_to_compare() {
    let folder = signed();
    let alone = check(&signature(SIGNATURES[0]), Some(folder.path()), true, &Progress::default(), &uninterrupted);
    assert!(matches!(alone, Err(Error::Argument(_))));
}
