//! The part of S3 that clients of checkpoints use, with the bucket in the path. Signatures are not looked at.

use std::fs;
use std::io::{self, Read};

use crate::files::{Files, Version, serve};
use crate::http::{Answer, Head};
use crate::listing::list;
use crate::multipart::{Uploads, discard, text_of};
use crate::text::{escape_xml, xml_fields};

/// What a request is about: what its faults are decided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    List,
    Put,
    Part,
    Complete,
    Other,
}

pub(crate) fn operation(head: &Head, key: &str) -> Operation {
    let has = |name| head.value(name).is_some();
    match head.method.as_str() {
        "GET" if key.is_empty() => Operation::List,
        "GET" | "HEAD" if !key.is_empty() => Operation::Read,
        "PUT" if has("uploadId") => Operation::Part,
        "PUT" if !key.is_empty() => Operation::Put,
        "POST" if has("uploadId") => Operation::Complete,
        _ => Operation::Other,
    }
}

/// What requests need.
pub(crate) struct Store<'a> {
    pub(crate) files: &'a Files,
    pub(crate) uploads: &'a Uploads,
    /// Whether all parts but the last must have 5 MiB.
    pub(crate) is_strict: bool,
    /// Whether tags are composed of MD5s.
    pub(crate) has_md5: bool,
}

/// An answer, and how many bytes of the body were taken.
pub(crate) fn answer(
    store: &Store<'_>,
    head: &Head,
    (bucket, key): (&str, &str),
    version: Version,
    body: &mut dyn Read,
) -> io::Result<(u64, Answer)> {
    let Store { files, uploads, .. } = store;
    let has = |name| head.value(name).is_some();
    let path = format!("{bucket}/{key}");
    let place = files.place(bucket);
    if head.method == "PUT" && key.is_empty() {
        if let Some(place) = place {
            fs::create_dir_all(place)?;
            return Ok((discard(body)?, Answer::new(200)));
        }
        return Ok((discard(body)?, Answer::error(400, "InvalidBucketName", "The specified bucket is not valid.")));
    }
    if !place.is_some_and(|place| place.is_dir()) {
        return Ok((discard(body)?, Answer::error(404, "NoSuchBucket", "The specified bucket does not exist")));
    }
    match (head.method.as_str(), operation(head, key)) {
        (_, Operation::Put) if has("partNumber") => {}
        (_, Operation::Put) => return uploads.put(files, head, &path, body, store.has_md5),
        (_, Operation::Part) => return uploads.part(files, head, body, store.has_md5),
        (_, Operation::Complete) => {
            return Ok((0, uploads.complete(files, head, (bucket, key), body, (store.is_strict, store.has_md5))?));
        }
        ("POST", _) if key.is_empty() && has("delete") => {
            return Ok((0, delete_several(files, bucket, &text_of(body)?)));
        }
        _ => {}
    }
    let taken = discard(body)?;
    let answer = match head.method.as_str() {
        "GET" | "HEAD" if !key.is_empty() => match files.object(&path, version) {
            Some(object) => serve(head, &object),
            None => no_such_key(),
        },
        "HEAD" => Answer::new(200),
        "GET" if has("uploads") => uploads.list(bucket),
        "GET" if has("location") => {
            Answer::xml("<LocationConstraint xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>")
        }
        "GET" if head.value("list-type") == Some("2") => list(files, head, bucket),
        "POST" if has("uploads") && !key.is_empty() => uploads.create(bucket, key),
        "DELETE" if has("uploadId") => uploads.abort(head.value("uploadId").unwrap_or_default()),
        "DELETE" if !key.is_empty() => {
            delete(files, &path);
            Answer::new(204)
        }
        _ => {
            Answer::error(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        }
    };
    Ok((taken, answer))
}

pub(crate) fn no_such_key() -> Answer {
    Answer::error(404, "NoSuchKey", "The specified key does not exist.")
}

fn delete(files: &Files, path: &str) {
    if let Some(place) = files.place(path) {
        let _ = fs::remove_file(place);
    }
}

/// POST of a bucket with `?delete`.
fn delete_several(files: &Files, bucket: &str, xml: &str) -> Answer {
    let keys = xml_fields(xml, "Key");
    let entry = |key: &String| {
        delete(files, &format!("{bucket}/{key}"));
        format!("<Deleted><Key>{}</Key></Deleted>", escape_xml(key))
    };
    let entries: String = keys.iter().map(entry).collect();
    Answer::xml(&format!("<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{entries}</DeleteResult>"))
}
