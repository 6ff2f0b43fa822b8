//! ListObjectsV2: the keys of a bucket, in pages, in the order of their bytes.

use std::fs;
use std::path::Path;

use crate::files::{Files, UPLOADS, Version};
use crate::http::{Answer, Head};
use crate::text::{encode_percent, escape_xml, iso_date};

/// The most entries of a page.
const PAGE: usize = 1000;

/// The keys below a folder, each behind the text in front.
pub(crate) fn keys_below(folder: &Path, front: &str, keys: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| *name != UPLOADS) else { continue };
        let path = entry.path();
        if path.is_dir() {
            keys_below(&path, &format!("{front}{name}/"), keys);
        } else {
            keys.push(format!("{front}{name}"));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Key(String),
    /// What several keys have in front, up to a delimiter.
    Prefix(String),
}

impl Entry {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Key(text) | Self::Prefix(text) => text,
        }
    }
}

/// The entries of sorted keys behind `after`.
pub(crate) fn entries(keys: Vec<String>, prefix: &str, delimiter: &str, after: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for key in keys {
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        let entry = match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
            Some(at) => Entry::Prefix(key[..prefix.len() + at + delimiter.len()].to_owned()),
            None => Entry::Key(key),
        };
        if entry.text() > after && entries.last() != Some(&entry) {
            entries.push(entry);
        }
    }
    entries
}

pub(crate) fn list(files: &Files, head: &Head, bucket: &str) -> Answer {
    let value = |name| head.value(name).unwrap_or_default();
    let (prefix, delimiter) = (value("prefix"), value("delimiter"));
    let mut keys = Vec::new();
    keys_below(&files.folder.join(bucket), "", &mut keys);
    keys.sort_unstable();
    let after = value("continuation-token").max(value("start-after"));
    let size = head.value("max-keys").and_then(|text| text.parse().ok()).unwrap_or(PAGE).min(PAGE);
    let mut entries = entries(keys, prefix, delimiter, after);
    let is_truncated = entries.len() > size;
    entries.truncate(size);

    let in_url = value("encoding-type") == "url";
    let shown = |text: &str| if in_url { encode_percent(text) } else { escape_xml(text) };
    let mut xml = format!(
        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>{}</Name><Prefix>{}</Prefix>\
         <KeyCount>{}</KeyCount><MaxKeys>{size}</MaxKeys><IsTruncated>{is_truncated}</IsTruncated>",
        escape_xml(bucket),
        shown(prefix),
        entries.len()
    );
    if !delimiter.is_empty() {
        xml += &format!("<Delimiter>{}</Delimiter>", shown(delimiter));
    }
    if in_url {
        xml += "<EncodingType>url</EncodingType>";
    }
    if let Some(last) = entries.last().filter(|_| is_truncated) {
        xml += &format!("<NextContinuationToken>{}</NextContinuationToken>", escape_xml(last.text()));
    }
    for entry in &entries {
        match entry {
            Entry::Prefix(text) => xml += &format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", shown(text)),
            Entry::Key(key) => {
                let Some(object) = files.object(&format!("{bucket}/{key}"), Version::default()) else { continue };
                xml += &format!(
                    "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
                     <StorageClass>STANDARD</StorageClass></Contents>",
                    shown(key),
                    iso_date(object.modified),
                    escape_xml(&object.tag),
                    object.length
                );
            }
        }
    }
    Answer::xml(&(xml + "</ListBucketResult>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_a_delimiter_are_prefixes_once() {
        let keys = || ["a", "b/c", "b/d", "b/e/f", "g"].map(str::to_owned).to_vec();
        let key = |text: &str| Entry::Key(text.to_owned());
        let prefix = |text: &str| Entry::Prefix(text.to_owned());
        assert_eq!(entries(keys(), "", "/", ""), [key("a"), prefix("b/"), key("g")]);
        assert_eq!(entries(keys(), "", "/", "b/"), [key("g")]);
        assert_eq!(entries(keys(), "b/", "/", ""), [key("b/c"), key("b/d"), prefix("b/e/")]);
        assert_eq!(entries(keys(), "b", "", "b/c"), [key("b/d"), key("b/e/f")]);
    }
}
