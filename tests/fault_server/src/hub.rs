//! A stand-in for the hub: the files of a model, and links to them at another host name.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::lock;
use crate::files::{Files, Version, digest, serve};
use crate::http::{Answer, Head};
use crate::listing::keys_below;
use crate::text::{encode_percent, json_text};

/// A path below `/hub`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HubRequest {
    Model {
        model: String,
        revision: String,
    },
    /// What lies in a folder; in the model for an empty one.
    Tree {
        model: String,
        revision: String,
        folder: String,
    },
    File {
        model: String,
        revision: String,
        file: String,
    },
}

pub(crate) fn requested(path: &str) -> Option<HubRequest> {
    let owned = str::to_owned;
    if let Some(rest) = path.strip_prefix("api/models/") {
        if let Some((model, rest)) = rest.split_once("/tree/") {
            let (revision, folder) = rest.split_once('/').unwrap_or((rest, ""));
            return Some(HubRequest::Tree { model: owned(model), revision: owned(revision), folder: owned(folder) });
        }
        let (model, revision) = rest.split_once("/revision/").unwrap_or((rest, "main"));
        return Some(HubRequest::Model { model: owned(model), revision: owned(revision) });
    }
    let (model, rest) = path.split_once("/resolve/")?;
    let (revision, file) = rest.split_once('/')?;
    Some(HubRequest::File { model: owned(model), revision: owned(revision), file: owned(file) })
}

/// The links that were handed out, and how often each was followed.
#[derive(Default)]
pub(crate) struct Links {
    next: AtomicU64,
    followed: Mutex<HashMap<u64, u64>>,
}

fn refusal(code: &'static str, message: &str) -> Answer {
    let json = format!("{{\"error\": {}}}", json_text(message));
    Answer::text(404, "application/json", json).with("X-Error-Code", code).with("X-Error-Message", message)
}

/// The files of a model by name, sorted, each with its tag, and the commit that they are.
fn tree(files: &Files, model: &str) -> Option<(Vec<(String, u64)>, String)> {
    let folder = files.place(model).filter(|folder| folder.is_dir())?;
    let mut names = Vec::new();
    keys_below(&folder, "", &mut names);
    names.sort_unstable();
    let (mut described, mut siblings) = (String::new(), Vec::new());
    for name in names {
        let Some(object) = files.object(&format!("{model}/{name}"), Version::default()) else { continue };
        described += &format!("{name}\n{}\n", object.tag);
        siblings.push((name, object.length));
    }
    let commit = digest(described.as_bytes()).ok()?;
    Some((siblings, format!("{commit}{}", &commit[..8])))
}

/// The files of a model and its commit, which a revision names.
fn revision_of(files: &Files, model: &str, revision: &str) -> Result<(Vec<(String, u64)>, String), Answer> {
    let missing = || refusal("RepoNotFound", "Repository not found");
    let (siblings, commit) = tree(files, model).ok_or_else(missing)?;
    if revision == "main" || revision == commit {
        Ok((siblings, commit))
    } else {
        Err(refusal("RevisionNotFound", &format!("Invalid rev id: {revision}")))
    }
}

pub(crate) fn answer(files: &Files, links: &Links, head: &Head, requested: &HubRequest) -> Answer {
    if !matches!(head.method.as_str(), "GET" | "HEAD") {
        return Answer::text(405, "text/plain", "The hub is read with GET and HEAD.\n");
    }
    let answered = match requested {
        HubRequest::Model { model, revision } => {
            revision_of(files, model, revision).map(|(siblings, commit)| describe(head, model, &siblings, &commit))
        }
        HubRequest::Tree { model, revision, folder } => {
            revision_of(files, model, revision).map(|(siblings, commit)| list(head, &siblings, folder, &commit))
        }
        HubRequest::File { model, revision, file } => {
            revision_of(files, model, revision).map(|(_, commit)| resolve(files, links, head, model, file, &commit))
        }
    };
    answered.unwrap_or_else(|refusal| refusal)
}

fn describe(head: &Head, model: &str, siblings: &[(String, u64)], commit: &str) -> Answer {
    let with_sizes = head.value("blobs").is_some();
    let sibling = |(name, size): &(String, u64)| {
        let size = if with_sizes { format!(", \"size\": {size}") } else { String::new() };
        format!("{{\"rfilename\": {}{size}}}", json_text(name))
    };
    let siblings: Vec<String> = siblings.iter().map(sibling).collect();
    let (model, siblings) = (json_text(model), siblings.join(", "));
    let json = format!(
        "{{\"id\": {model}, \"modelId\": {model}, \"sha\": \"{commit}\", \"private\": false, \"gated\": false, \
         \"siblings\": [{siblings}]}}"
    );
    Answer::text(200, "application/json", json).with("X-Repo-Commit", commit)
}

/// The files below a folder, or what lies right in it.
fn list(head: &Head, siblings: &[(String, u64)], folder: &str, commit: &str) -> Answer {
    let is_deep = head.value("recursive").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let front = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut entries: Vec<String> = Vec::new();
    for (name, size) in siblings {
        let Some(rest) = name.strip_prefix(front.as_str()) else { continue };
        let (kind, path, size) = match rest.split_once('/').filter(|_| !is_deep) {
            Some((inner, _)) => ("directory", format!("{front}{inner}"), 0),
            None => ("file", name.clone(), *size),
        };
        let path = json_text(&path);
        let entry = format!("{{\"type\": \"{kind}\", \"oid\": \"{commit}\", \"size\": {size}, \"path\": {path}}}");
        if entries.last() != Some(&entry) {
            entries.push(entry);
        }
    }
    if entries.is_empty() && !folder.is_empty() {
        return refusal("EntryNotFound", "Entry not found");
    }
    Answer::text(200, "application/json", format!("[{}]", entries.join(", ")))
}

fn resolve(files: &Files, links: &Links, head: &Head, model: &str, file: &str, commit: &str) -> Answer {
    let Some(object) = files.object(&format!("{model}/{file}"), Version::default()) else {
        return refusal("EntryNotFound", "Entry not found").with("X-Repo-Commit", commit);
    };
    let (name, port) = head.host().rsplit_once(':').unwrap_or((head.host(), "80"));
    let other = if name == "localhost" { "127.0.0.1" } else { "localhost" };
    let signature = links.next.fetch_add(1, Ordering::Relaxed);
    lock(&links.followed).insert(signature, 0);
    let key = encode_percent(&format!("{model}/{file}"));
    Answer::new(302)
        .with("X-Repo-Commit", commit)
        .with("X-Linked-Etag", object.tag)
        .with("X-Linked-Size", object.length.to_string())
        .with("Accept-Ranges", "bytes")
        .with("Location", format!("http://{other}:{port}/cdn/{key}?signature={signature}"))
}

/// A file by a link, which may be followed `most` times.
pub(crate) fn follow(
    files: &Files,
    links: &Links,
    head: &Head,
    key: &str,
    version: Version,
    most: Option<u64>,
) -> Answer {
    let signature = head.value("signature").and_then(|text| text.parse::<u64>().ok());
    let followed = signature.and_then(|signature| {
        let mut followed = lock(&links.followed);
        let count = followed.get_mut(&signature)?;
        *count += 1;
        Some(*count)
    });
    match followed {
        None => Answer::error(403, "AccessDenied", "Missing or wrong signature"),
        Some(count) if most.is_some_and(|most| count > most) => {
            Answer::error(403, "AccessDenied", "Request has expired")
        }
        Some(_) => match files.object(key, version) {
            Some(object) => serve(head, &object),
            None => Answer::error(404, "NoSuchKey", "The specified key does not exist."),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_models_and_files() {
        let model = |model: &str, revision: &str| {
            Some(HubRequest::Model { model: model.to_owned(), revision: revision.to_owned() })
        };
        assert_eq!(requested("api/models/org/name"), model("org/name", "main"));
        assert_eq!(requested("api/models/org/name/revision/r"), model("org/name", "r"));
        let file = HubRequest::File { model: "o/n".to_owned(), revision: "main".to_owned(), file: "a/b".to_owned() };
        assert_eq!(requested("o/n/resolve/main/a/b"), Some(file));
        let tree = HubRequest::Tree { model: "o/n".to_owned(), revision: "main".to_owned(), folder: "a".to_owned() };
        assert_eq!(requested("api/models/o/n/tree/main/a"), Some(tree));
        assert_eq!(requested("o/n/blob/main"), None);
    }
}
