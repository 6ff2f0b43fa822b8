//! The signatures of OpenSSF's model signing, version 1 and the layout before it: an in-toto statement in a DSSE envelope in a Sigstore bundle. Its
//! files are hashed here; who signed it is for the signer's tool to verify.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use max_weights::workers::Interrupt;
use max_weights::{Result, rules, text};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::check::{Checked, Counts, left_out, linked, new_files, place};
use super::hash::{Algorithm, Extent, hash};
use super::tensor_hash::{bytes_of, hexadecimal};
use super::tree::{Tree, is_below};
use crate::finding::Finding;
use crate::progress::Progress;

const STATEMENT: &str = "https://in-toto.io/Statement/";
const VERSION_1: &str = "https://model_signing/signature/v1.0";
const BEFORE_1: &str = "https://model_signing/Digests/v0.1";
/// What a signature never covers.
const IGNORED: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// The path of a model that is one file.
const ITSELF: &str = ".";

/// What was signed.
#[derive(Debug, Deserialize)]
pub(super) struct Statement {
    #[serde(rename = "predicateType")]
    predicate_type: String,
    #[serde(default)]
    subject: Vec<Subject>,
    #[serde(default)]
    predicate: Predicate,
}

#[derive(Debug, Deserialize)]
struct Subject {
    name: String,
    digest: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct Predicate {
    #[serde(default)]
    serialization: Serialization,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Debug, Default, Deserialize)]
struct Serialization {
    #[serde(default)]
    method: String,
    #[serde(default)]
    ignore_paths: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Resource {
    name: String,
    algorithm: String,
    digest: String,
}

impl Statement {
    /// The statement of a bundle, of an envelope or by itself; `None` if this is not a signature.
    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Option<Self>, String> {
        let Ok(outer) = serde_json::from_slice::<Value>(bytes) else { return Ok(None) };
        let envelope = outer.get("dsseEnvelope").unwrap_or(&outer);
        let payload = match (envelope.get("payload"), envelope.get("predicateType")) {
            (Some(Value::String(payload)), _) => {
                let decoded = STANDARD.decode(payload).or_else(|_| URL_SAFE.decode(payload));
                let decoded = decoded.map_err(|error| format!("its payload is not valid base64: {error}"))?;
                serde_json::from_slice(&decoded).map_err(|error| format!("its payload is not valid JSON: {error}"))?
            }
            (None, Some(_)) => outer,
            _ if outer.get("dsseEnvelope").is_some() => return Err("its envelope has no payload".into()),
            _ => return Ok(None),
        };
        if !payload.get("_type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with(STATEMENT)) {
            return Err("what it signs is not an in-toto statement".into());
        }
        serde_json::from_value(payload)
            .map(Some)
            .map_err(|error| format!("its statement is not a model signing statement: {error}"))
    }

    /// What is signed, and what is wrong with the statement itself.
    fn resources(&self) -> (Vec<Resource>, Vec<String>) {
        let copy = |resource: &Resource| Resource {
            name: resource.name.clone(),
            algorithm: resource.algorithm.clone(),
            digest: resource.digest.clone(),
        };
        if self.predicate_type == BEFORE_1 {
            let of_subject = |subject: &Subject| Resource {
                name: subject.name.clone(),
                algorithm: "sha256".into(),
                digest: subject.digest.get("sha256").cloned().unwrap_or_default(),
            };
            return (self.subject.iter().map(of_subject).collect(), Vec::new());
        }
        let mut wrong = Vec::new();
        if self.predicate_type != VERSION_1 {
            wrong.push(format!(
                "its predicate type '{}' does not belong to model signing",
                text::shown(&self.predicate_type)
            ));
        }
        let resources = &self.predicate.resources;
        let mut root = Sha256::new();
        resources.iter().filter_map(|resource| bytes_of(&resource.digest)).for_each(|digest| root.update(digest));
        let root = hexadecimal(&root.finalize());
        match &self.subject[..] {
            [subject] if subject.digest.get("sha256").is_some_and(|digest| digest.eq_ignore_ascii_case(&root)) => {}
            [_] => wrong.push(format!("its subject does not match its resources, whose digests have SHA-256 {root}")),
            subjects => {
                let count = text::plural(subjects.len() as u64, "subject");
                wrong.push(format!("it has {count}, but one was expected"));
            }
        }
        (resources.iter().map(copy).collect(), wrong)
    }
}

/// A path, and the bytes of it that a resource is.
fn part<'a>(resource: &'a Resource, method: &str) -> Option<(&'a str, u64, Option<u64>)> {
    if method != "shards" {
        return Some((&resource.name, 0, None));
    }
    let mut parts = resource.name.rsplitn(3, ':');
    let (end, start, path) = (parts.next()?, parts.next()?, parts.next()?);
    Some((path, start.parse().ok()?, Some(end.parse().ok()?)))
}

/// The algorithm of this name: `sha256`, `blake2b`, or either of shards, `sha256-sharded-1000000`.
fn algorithm(name: &str) -> Option<Algorithm> {
    let (name, shards) = name.split_once("-sharded-").unwrap_or((name, "1"));
    match name.to_ascii_lowercase().as_str() {
        _ if !shards.bytes().all(|digit| digit.is_ascii_digit()) => None,
        "sha256" => Some(Algorithm::Sha256),
        "blake2" | "blake2b" => Some(Algorithm::Blake2b),
        _ => None,
    }
}

/// Compares the files below a path with those that were signed.
pub(super) fn check(
    signature: &Path,
    statement: &Statement,
    tree: &Tree,
    root: &Path,
    progress: &Progress,
    interrupt: Interrupt<'_>,
) -> Result<Checked> {
    let mut checked =
        Checked { kind: "model signature", findings: Vec::new(), files: Counts::default(), tensors: None };
    let (resources, wrong) = statement.resources();
    for cause in wrong {
        checked.report(signature, Finding::new(rules::MANIFEST_BROKEN, cause));
    }
    let note = "the hashes of its files were compared; its signature was not verified";
    checked.report(signature, Finding::new(rules::MANIFEST_SIGNATURE, note));
    let method = &statement.predicate.serialization.method;
    let is_itself = |resource: &Resource| part(resource, method).is_some_and(|(path, ..)| path == ITSELF);
    let is_one_file = !resources.is_empty() && resources.iter().all(is_itself);
    // Of one file the name is that of the subject, unless it is told which file that is.
    let given = root.file_name().filter(|_| !tree.whole).map(|name| name.to_string_lossy().into_owned());
    let itself = given.or_else(|| Some(statement.subject.first()?.name.clone())).unwrap_or_default();
    let mut files: BTreeMap<&str, Signed> = BTreeMap::new();
    let (mut extents, mut said) = (Vec::new(), Vec::new());
    for resource in &resources {
        let Some((path, start, end)) = part(resource, method) else {
            let name = text::shown(&resource.name);
            checked.report(signature, Finding::new(rules::MANIFEST_BROKEN, format!("'{name}' is not part of a file")));
            continue;
        };
        let path = if is_one_file { &itself } else { path };
        if !is_below(path) {
            checked.report(signature, unsafe_path(path));
            continue;
        }
        let file = files.entry(path).or_default();
        file.parts.push((start, end));
        let Some(algorithm) = algorithm(&resource.algorithm) else {
            file.unknown.get_or_insert(&resource.algorithm);
            continue;
        };
        if let Some(found) = tree.files.get(path) {
            extents.push(Extent { path: found.clone(), algorithm, start, end });
            said.push((path, bytes_of(&resource.digest)));
        }
    }
    let (hashed, _) = hash(&extents, &[], progress, interrupt)?;
    for ((path, said), hashed) in said.iter().zip(hashed) {
        if said.as_ref() != Some(&hashed.digest) {
            files.entry(path).or_default().changed = true;
        }
    }
    for (path, file) in &files {
        let at = place(root, path);
        let Some(found) = tree.files.get(*path) else {
            let (count, finding) = if tree.links.contains_key(*path) {
                (&mut checked.files.changed, linked())
            } else {
                (&mut checked.files.missing, Finding::new(rules::MANIFEST_MISSING, "it was signed, but is missing"))
            };
            *count += 1;
            checked.report(&at, finding);
            continue;
        };
        let len = std::fs::metadata(found).map_or(0, |meta| meta.len());
        if file.changed || !file.covers(len) {
            checked.files.changed += 1;
            checked.report(&at, Finding::new(rules::MANIFEST_CHANGED, "it is not the file that was signed"));
        } else if let Some(algorithm) = file.unknown {
            let message = format!("its hash uses the algorithm '{}'", text::shown(algorithm));
            checked.report(&at, Finding::new(rules::MANIFEST_UNCHECKED, message));
        } else {
            checked.files.same += 1;
        }
    }
    if tree.whole && !is_one_file {
        left_out(tree, root, &mut checked);
        let ignored: BTreeSet<&str> = IGNORED
            .into_iter()
            .chain(statement.predicate.serialization.ignore_paths.iter().map(String::as_str))
            .collect();
        let is_ignored = |below: &str| {
            let mut above = Path::new(below).ancestors().filter_map(Path::to_str);
            above.any(|path| !path.is_empty() && ignored.contains(path))
        };
        // Nothing of an empty file is in any shard.
        let shards = method == "shards";
        let is_empty = |below: &str| {
            tree.files.get(below).is_some_and(|path| std::fs::metadata(path).is_ok_and(|meta| meta.len() == 0))
        };
        new_files(tree, root, &mut checked, |below| {
            files.contains_key(below) || is_ignored(below) || shards && is_empty(below)
        });
    }
    Ok(checked)
}

/// What is known of a signed file.
#[derive(Default)]
struct Signed<'a> {
    parts: Vec<(u64, Option<u64>)>,
    /// An algorithm that is not computed here.
    unknown: Option<&'a str>,
    changed: bool,
}

impl Signed<'_> {
    /// Whether the parts are a file of this length from its first to its last byte.
    fn covers(&self, len: u64) -> bool {
        let mut parts = self.parts.clone();
        parts.sort_unstable();
        let mut at = 0;
        for (start, end) in parts {
            if start != at {
                return false;
            }
            at = end.unwrap_or(len);
        }
        at == len
    }
}

/// A path that no manifest may have.
pub(super) fn unsafe_path(path: &str) -> Finding {
    let path = text::shown(path);
    Finding::new(rules::MANIFEST_PATH, format!("'{path}' is not a path below the folder, and was not read"))
}
