//! Manifests: each changed, missing, new or moved file and tensor is reported, and no other file is ever reached.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::content_support::{Tensor, f32s, model, ramp, safetensors, torch_legacy};
use max_weights::{Error, uninterrupted};
use max_weights_check::ValidateProgress;
use max_weights_check::manifest::{Checked, FileCounts, Manifest, TensorCounts, check, create};

fn made(path: &Path) -> Manifest {
    create(path, &[], false, None, &ValidateProgress::default(), &uninterrupted).expect("a manifest")
}

fn written(manifest: &Manifest, path: &Path) {
    fs::write(path, serde_json::to_vec_pretty(manifest).expect("JSON")).expect("written");
}

fn checked(manifest: &Path, path: Option<&Path>) -> Checked {
    check(manifest, path, false, &ValidateProgress::default(), &uninterrupted).expect("checked")
}

/// The findings: rule, file below the folder, tensor.
fn found(checked: &Checked) -> Vec<(&str, String, &str)> {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let all = checked.findings.iter();
    all.map(|found| (found.rule.id, name(found.file()), found.tensor.as_deref().unwrap_or_default())).collect()
}

fn two_shards(folder: &Path) {
    let tensors = model();
    safetensors(&folder.join("one.safetensors"), &tensors[..2]);
    safetensors(&folder.join("two.safetensors"), &tensors[2..]);
    fs::write(folder.join("config.json"), "{}").expect("written");
}

#[test]
fn a_folder_is_what_its_manifest_says_until_something_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    two_shards(folder.path());
    let manifest = folder.path().join("manifest.json");
    let first = made(folder.path());
    written(&first, &manifest);
    let same = checked(&manifest, None);
    assert_eq!((found(&same), same.differs()), (vec![], false));
    assert_eq!(same.files, FileCounts { same: 3, ..FileCounts::default() });
    assert_eq!(same.tensors, TensorCounts { same: 4, ..TensorCounts::default() });

    let mut tensors = model();
    tensors[1].3 = ramp(256, 2.0);
    tensors[0].0 = "embedding.weight";
    safetensors(&folder.path().join("one.safetensors"), &tensors[..2]);
    fs::remove_file(folder.path().join("config.json")).expect("deleted");
    fs::write(folder.path().join("hook.py"), "print()").expect("written");
    let other = checked(&manifest, Some(folder.path()));
    let expected = [
        ("manifest.missing", "config.json", ""),
        ("manifest.changed", "one.safetensors", ""),
        ("manifest.new", "hook.py", ""),
        ("manifest.changed-tensor", "one.safetensors", "layers.0.weight"),
        ("manifest.missing-tensor", "one.safetensors", "embed.weight"),
        ("manifest.new-tensor", "one.safetensors", "embedding.weight"),
    ];
    assert_eq!(found(&other), expected.map(|(rule, file, tensor)| (rule, file.to_owned(), tensor)));
    assert_eq!(other.files, FileCounts { same: 1, changed: 1, missing: 1, new: 1 });
    assert_eq!(other.tensors, TensorCounts { same: 2, moved: 0, changed: 1, missing: 1, new: 1 });
    let renamed = &other.findings[4].message;
    assert_eq!(renamed, "it is not in any file; 'embedding.weight' has its elements");
    assert!(other.differs());
}

#[test]
fn a_tensor_is_the_same_in_other_shards_and_in_another_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cut, whole) = (folder.path().join("cut"), folder.path().join("whole"));
    two_shards(&cut);
    let mut tensors = model();
    tensors.reverse();
    safetensors(&whole.join("model.safetensors"), &tensors);
    let (one, other) = (made(&cut), made(&whole));
    assert_eq!(one.content, other.content);
    let manifest = folder.path().join("manifest.json");
    written(&one, &manifest);
    let moved = checked(&manifest, Some(&whole));
    assert_eq!(moved.tensors, TensorCounts { moved: 4, ..TensorCounts::default() });
    assert!(moved.differs(), "the files are not the same");
    let alone = check(&manifest, Some(&whole), true, &ValidateProgress::default(), &uninterrupted).expect("checked");
    assert!(!alone.differs());
    assert!(found(&alone).iter().all(|(rule, ..)| *rule == "manifest.moved"), "{:?}", found(&alone));
    tensors[0].2 = vec![4, 4];
    safetensors(&whole.join("model.safetensors"), &tensors);
    assert_ne!(made(&whole).content, one.content, "the shape counts");
}

#[test]
fn another_version_of_a_tensor_in_a_file_beside_is_told_also_where_tensors_alone_count() {
    let folder = tempfile::tempdir().expect("a folder");
    two_shards(folder.path());
    let manifest = folder.path().join("manifest.json");
    written(&made(folder.path()), &manifest);
    let alone = || check(&manifest, None, true, &ValidateProgress::default(), &uninterrupted).expect("checked");
    let copy = |value: f32| ("layers.0.weight", "F32", vec![16, 16], ramp(256, value));
    safetensors(&folder.path().join("zero.safetensors"), &[copy(1.0)]);
    assert_eq!((found(&alone()), alone().differs()), (vec![], false), "the same once more");
    safetensors(&folder.path().join("zero.safetensors"), &[copy(2.0)]);
    let other = alone();
    assert_eq!(found(&other), [("manifest.new-tensor", "zero.safetensors".to_owned(), "layers.0.weight")]);
    assert_eq!(other.findings[0].message, "the manifest has a different tensor with this name");
    assert_eq!(other.tensors, TensorCounts { same: 4, new: 1, ..TensorCounts::default() });
    assert!(other.differs());
}

#[cfg(target_os = "linux")]
#[test]
fn files_whose_names_are_the_same_as_texts_are_refused() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    for name in [b"a\xff", b"a\xfe"] {
        fs::write(folder.path().join(std::ffi::OsStr::from_bytes(name)), name).expect("written");
    }
    let error = create(folder.path(), &[], false, None, &ValidateProgress::default(), &uninterrupted)
        .expect_err("one hides the other");
    assert!(error.to_string().contains("cannot tell this file from"), "{error}");
}

#[test]
fn a_file_that_was_cut_anywhere_has_its_own_hash() {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, path) = (folder.path().join("whole"), folder.path().join("cut/model"));
    fs::create_dir(folder.path().join("cut")).expect("a folder");
    for is_torch in [false, true] {
        if is_torch {
            torch_legacy(&whole, &["a", "b"], &ramp(4, 0.0));
        } else {
            safetensors(&whole, &[("a", "F32", vec![2], f32s([1.0, 2.0]))]);
        }
        let bytes = fs::read(&whole).expect("it was written");
        for len in 0..bytes.len() {
            fs::write(&path, &bytes[..len]).expect("written");
            assert_eq!(made(&folder.path().join("cut")).files[0].bytes, len as u64);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_name_that_no_manifest_may_have_is_refused_when_it_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a\\b"), "x").expect("written");
    let error =
        create(folder.path(), &[], false, None, &ValidateProgress::default(), &uninterrupted).expect_err("a backslash");
    assert!(error.to_string().contains("manifest.path"), "{error}");
}

#[test]
fn one_file_has_a_manifest_in_which_others_are_not_new() {
    let folder = tempfile::tempdir().expect("a folder");
    two_shards(folder.path());
    let manifest = folder.path().join("manifest.json");
    written(&made(&folder.path().join("one.safetensors")), &manifest);
    let same = checked(&manifest, None);
    assert_eq!((found(&same), same.files.same), (vec![], 1));
    assert_eq!(checked(&manifest, Some(&folder.path().join("one.safetensors"))).files.same, 1);
}

#[test]
fn bytes_are_counted_and_an_interrupt_ends_the_work() {
    let folder = tempfile::tempdir().expect("a folder");
    two_shards(folder.path());
    let progress = ValidateProgress::default();
    create(folder.path(), &[], false, None, &progress, &uninterrupted).expect("a manifest");
    assert_eq!(progress.done.load(Ordering::Relaxed), progress.bytes.load(Ordering::Relaxed));
    let stop = || Err(Error::Interrupted);
    assert!(matches!(create(folder.path(), &[], false, None, &progress, &stop), Err(Error::Interrupted)));
}

#[test]
fn paths_that_lead_elsewhere_are_refused_and_never_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().join("inside");
    two_shards(&inside);
    fs::write(folder.path().join("secret"), "x").expect("written");
    let mut manifest = made(&inside);
    for path in ["../secret", "/etc/passwd", "a/../../secret", "a\\b", ""] {
        manifest.files[0].path = path.to_owned();
        written(&manifest, &inside.join("manifest.json"));
        let refused = checked(&inside.join("manifest.json"), None);
        assert!(found(&refused).iter().any(|(rule, ..)| *rule == "manifest.path"), "{path}");
        assert!(refused.differs());
    }
}

#[cfg(unix)]
#[test]
fn links_to_files_elsewhere_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().join("inside");
    two_shards(&inside);
    let manifest = inside.join("manifest.json");
    written(&made(&inside), &manifest);
    fs::rename(inside.join("config.json"), folder.path().join("elsewhere")).expect("moved");
    std::os::unix::fs::symlink("../elsewhere", inside.join("config.json")).expect("a link");
    std::os::unix::fs::symlink("/etc/hostname", inside.join("more")).expect("a link");
    let refused = checked(&manifest, None);
    let linked = ["config.json", "more"].map(|file| ("manifest.link", file.to_owned(), ""));
    assert_eq!(found(&refused), linked);
    let error = create(&inside, &[], false, None, &ValidateProgress::default(), &uninterrupted).expect_err("a link");
    assert!(error.to_string().contains("manifest.link"), "{error}");
}

#[test]
fn what_is_no_manifest_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    two_shards(folder.path());
    let path = folder.path().join("manifest.json");
    let good = made(folder.path());
    let mut other = good.clone();
    other.schema = "max-weights.manifest/9".into();
    let mut twice = good.clone();
    twice.files.push(twice.files[0].clone());
    let mut digest = good.clone();
    digest.files[0].sha256 = "abc".into();
    let mut tensor = good.clone();
    tensor.tensors[0].sha256 = Some("g".repeat(64));
    let mut renamed = good.clone();
    renamed.tensors[0].name = "other".into();
    let mut elements = good.clone();
    elements.tensors[1].sha256 = Some("0".repeat(64));
    let mut fewer = good.clone();
    fewer.tensors.remove(0);
    let mut content = good.clone();
    content.content = "0".repeat(64);
    let of_tensors = format!("its content is not that of its tensors, which is {}", good.content);
    let texts = [
        (b"not JSON".to_vec(), "it is not a manifest"),
        (b"{\"dsseEnvelope\": {}}".to_vec(), "it is not a manifest"),
        (serde_json::to_vec(&other).expect("JSON"), "its schema is 'max-weights.manifest/9'"),
        (serde_json::to_vec(&twice).expect("JSON"), "twice"),
        (serde_json::to_vec(&digest).expect("JSON"), "the SHA-256 of 'config.json' is not valid"),
        (serde_json::to_vec(&tensor).expect("JSON"), "1 hash of its tensors are not valid"),
        (serde_json::to_vec(&renamed).expect("JSON"), "the content of 'other' is not the hash of its name"),
        (serde_json::to_vec(&elements).expect("JSON"), "the content of 'layers.0.weight' is not the hash"),
        (serde_json::to_vec(&fewer).expect("JSON"), "its content is not that of its tensors"),
        (serde_json::to_vec(&content).expect("JSON"), &of_tensors),
    ];
    for (text, says) in texts {
        fs::write(&path, text).expect("written");
        let error = check(&path, None, false, &ValidateProgress::default(), &uninterrupted)
            .expect_err("no manifest")
            .to_string();
        assert!(error.contains(says) && error.contains("manifest.broken"), "{error}");
    }
}

#[test]
fn many_tensors_that_changed_are_counted_and_not_all_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<String> = (0..150).map(|number| format!("w{number:03}")).collect();
    let of = |value: f32| -> Vec<Tensor<'_>> {
        names.iter().map(|name| (name.as_str(), "F32", vec![2], f32s([value, value]))).collect()
    };
    safetensors(&folder.path().join("model.safetensors"), &of(1.0));
    let manifest = folder.path().join("manifest.json");
    written(&made(folder.path()), &manifest);
    safetensors(&folder.path().join("model.safetensors"), &of(2.0));
    let other = checked(&manifest, None);
    assert_eq!((other.findings.len(), other.tensors.changed), (102, 150));
    assert_eq!(other.findings[101].message, "50 more of this kind");
}

#[cfg(unix)]
#[test]
fn a_check_stays_in_its_folder_and_goes_on_behind_links_that_lead_out_or_nowhere() {
    use std::os::unix::fs::symlink;
    let (folder, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    two_shards(folder.path());
    let manifest = outside.path().join("manifest.json");
    written(&made(folder.path()), &manifest);
    fs::create_dir_all(outside.path().join("many/deep")).expect("a folder");
    fs::write(outside.path().join("many/secret"), "x").expect("written");
    symlink("nowhere", outside.path().join("many/dangling")).expect("a link");
    symlink(outside.path().join("many"), folder.path().join("elsewhere")).expect("a link");
    symlink("nowhere", folder.path().join("dangling")).expect("a link");
    fs::create_dir(folder.path().join("here")).expect("a folder");
    fs::write(folder.path().join("here/x"), "x").expect("written");
    symlink("here", folder.path().join("there")).expect("a link");
    let checked = checked(&manifest, Some(folder.path()));
    let mut found = found(&checked);
    found.sort();
    let expected = [("manifest.link", "dangling", ""), ("manifest.link", "elsewhere", ""), ("manifest.new", "x", "")];
    assert_eq!(found, expected.map(|(rule, file, tensor)| (rule, file.to_owned(), tensor)));
    assert_eq!(checked.files, FileCounts { same: 3, new: 3, ..FileCounts::default() });
    let error =
        create(folder.path(), &[], false, None, &ValidateProgress::default(), &uninterrupted).expect_err("links");
    assert!(error.to_string().contains("leads out of the folder, or nowhere"), "{error}");
}

#[test]
fn files_that_were_added_in_a_folder_of_the_name_of_gits_are_new_and_those_of_git_are_not_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    two_shards(folder.path());
    let manifest = folder.path().join("manifest.json");
    written(&made(folder.path()), &manifest);
    for name in ["sub/.git/x", ".git/HEAD"] {
        fs::create_dir_all(folder.path().join(name).parent().expect("a folder")).expect("a folder");
        fs::write(folder.path().join(name), "x").expect("written");
    }
    let checked = checked(&manifest, None);
    let expected = [("manifest.left-out", ".git", ""), ("manifest.new", "x", "")];
    assert_eq!(found(&checked), expected.map(|(rule, file, tensor)| (rule, file.to_owned(), tensor)));
}
