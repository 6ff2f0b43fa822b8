//! The part of Azure's blob service that clients of checkpoints use, with the container in the path. Signatures are not looked at. Blocks of a blob that
//! was not committed stay until the server ends, as there.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::sync::Mutex;

use crate::counts::lock;
use crate::files::{Files, Version, serve};
use crate::http::{Answer, Head};
use crate::listing::{Entry, entries, keys_below};
use crate::multipart::{Joined, StoredPart, discard, text_of};
use crate::s3::{Operation, Store};
use crate::text::{decode_percent, escape_xml, http_date, xml_fields};

/// The most entries of a page.
const PAGE: usize = 5000;
/// What is between the answers of a batch.
const BOUNDARY: &str = "batchresponse_of-this-server";

/// The blocks that are no blob yet, by the path of the blob and their name.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<BTreeMap<(String, String), StoredPart>>);

pub(crate) fn operation(head: &Head, key: &str) -> Operation {
    match (head.method.as_str(), head.value("comp")) {
        ("GET", _) if key.is_empty() => Operation::List,
        ("GET" | "HEAD", _) => Operation::Read,
        ("PUT", None) => Operation::Put,
        ("PUT", Some("block")) => Operation::Part,
        ("PUT", _) => Operation::Complete,
        _ => Operation::Other,
    }
}

/// An answer, and how many bytes of the body were taken.
pub(crate) fn answer(
    store: &Store<'_>,
    blocks: &Blocks,
    head: &Head,
    (container, key): (&str, &str),
    version: Version,
    body: &mut dyn Read,
) -> io::Result<(u64, Answer)> {
    let Store { files, uploads, .. } = store;
    let path = format!("{container}/{key}");
    if !files.place(container).is_some_and(|place| place.is_dir()) {
        return Ok((discard(body)?, error(404, "ContainerNotFound", "The specified container does not exist.")));
    }
    let part = head.value("comp");
    match (head.method.as_str(), part) {
        ("PUT", None) => {
            return uploads.put(files, head, &path, body, false).map(|(taken, answer)| (taken, created(answer)));
        }
        ("PUT", Some("block")) => {
            let block = uploads.store(files, body, false)?;
            let length = block.length;
            let name = head.value("blockid").unwrap_or_default().to_owned();
            if let Some(earlier) = lock(&blocks.0).insert((path, name), block) {
                let _ = fs::remove_file(earlier.path);
            }
            return Ok((length, Answer::new(201)));
        }
        ("PUT", Some("blocklist")) => {
            let xml = text_of(body)?;
            let names = xml_fields(&xml, "Uncommitted");
            let of = |name: &String| lock(&blocks.0).remove(&(path.clone(), name.clone()));
            let Some(parts) = names.iter().map(of).collect::<Option<Vec<StoredPart>>>() else {
                return Ok((0, error(400, "InvalidBlockList", "The specified block list is invalid.")));
            };
            let paths = parts.into_iter().map(|part| part.path).collect::<Vec<_>>();
            let mut joined = Joined { paths: paths.clone().into_iter(), file: None };
            let (_, answer) = uploads.put(files, head, &path, &mut joined, false)?;
            for path in paths {
                let _ = fs::remove_file(path);
            }
            return Ok((0, created(answer)));
        }
        ("POST", Some("batch")) if key.is_empty() => {
            return Ok((0, delete_several(files, container, &text_of(body)?)));
        }
        _ => {}
    }
    let taken = discard(body)?;
    let answer = match head.method.as_str() {
        "GET" if key.is_empty() && part == Some("list") => list(files, head, container),
        "GET" | "HEAD" if !key.is_empty() => match files.object(&path, version) {
            Some(object) => serve(head, &object),
            None => error(404, "BlobNotFound", "The specified blob does not exist."),
        },
        "DELETE" if !key.is_empty() => match files.place(&path).map(fs::remove_file) {
            Some(Ok(())) => Answer::new(202),
            _ => error(404, "BlobNotFound", "The specified blob does not exist."),
        },
        _ => error(501, "NotImplemented", "The requested operation is not implemented on the specified resource."),
    };
    Ok((taken, answer))
}

fn created(answer: Answer) -> Answer {
    match answer.status {
        200 => Answer { status: 201, ..answer },
        412 => error(409, "BlobAlreadyExists", "The specified blob already exists."),
        _ => answer,
    }
}

fn error(status: u16, code: &str, message: &str) -> Answer {
    Answer::error(status, code, message)
}

/// The requests of a batch, which delete blobs of the container, and an answer to each.
fn delete_several(files: &Files, container: &str, batch: &str) -> Answer {
    let (below, mut id, mut answers) = (format!("/{container}/"), "", String::new());
    for line in batch.lines() {
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("content-id")
        {
            id = value;
        }
        let Some(target) = line.strip_prefix("DELETE ").and_then(|rest| rest.split([' ', '?']).next()) else {
            continue;
        };
        let path = decode_percent(target);
        let key = path.as_deref().and_then(|path| path.split_once(&below)).map(|(_, key)| format!("{container}/{key}"));
        let is_deleted = key.and_then(|key| files.place(&key)).is_some_and(|place| fs::remove_file(place).is_ok());
        let answer = if is_deleted {
            "202 Accepted\r\n\r\n"
        } else {
            "404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound\r\n\r\n\
             <Error><Code>BlobNotFound</Code><Message>The specified blob does not exist.</Message></Error>\r\n"
        };
        let part = format!("Content-Type: application/http\r\nContent-ID: {id}\r\n\r\nHTTP/1.1 {answer}");
        answers += &format!("--{BOUNDARY}\r\n{part}");
    }
    Answer::text(202, &format!("multipart/mixed; boundary={BOUNDARY}"), format!("{answers}--{BOUNDARY}--\r\n"))
}

/// The blobs of a container below a prefix, in pages.
fn list(files: &Files, head: &Head, container: &str) -> Answer {
    let value = |name| head.value(name).unwrap_or_default();
    let mut keys = Vec::new();
    keys_below(&files.folder.join(container), "", &mut keys);
    keys.sort_unstable();
    let size = head.value("maxresults").and_then(|text| text.parse().ok()).unwrap_or(PAGE).min(PAGE);
    let mut entries = entries(keys, value("prefix"), value("delimiter"), value("marker"));
    let is_truncated = entries.len() > size;
    entries.truncate(size);
    let mut xml = "<EnumerationResults><Blobs>".to_owned();
    for entry in &entries {
        match entry {
            Entry::Prefix(text) => xml += &format!("<BlobPrefix><Name>{}</Name></BlobPrefix>", escape_xml(text)),
            Entry::Key(key) => {
                let Some(object) = files.object(&format!("{container}/{key}"), Version::default()) else { continue };
                xml += &format!(
                    "<Blob><Name>{}</Name><Properties><Last-Modified>{}</Last-Modified><Etag>{}</Etag>\
                     <Content-Length>{}</Content-Length><Content-Type>application/octet-stream</Content-Type>\
                     </Properties></Blob>",
                    escape_xml(key),
                    http_date(object.modified),
                    escape_xml(&object.tag),
                    object.length
                );
            }
        }
    }
    let next = entries.last().filter(|_| is_truncated).map_or_else(String::new, |last| escape_xml(last.text()));
    Answer::xml(&format!("{xml}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"))
}
