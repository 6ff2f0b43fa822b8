//! Bodies that are stored: whole objects, and uploads in parts, whose object is there when they are complete and not before.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use md5::{Digest, Md5};

use crate::counts::lock;
use crate::files::{Files, UPLOADS, Version, digest, precondition};
use crate::http::{Answer, Head};
use crate::text::{escape_xml, xml_fields};

/// Parts but the last are at least this long, if stores are strict.
const MIN_PART: u64 = 5 << 20;
/// The longest list of parts, or of keys, that is read.
const MAX_LIST: u64 = 4 << 20;

pub(crate) struct StoredPart {
    pub(crate) path: PathBuf,
    tag: String,
    pub(crate) length: u64,
}

struct Upload {
    bucket: String,
    key: String,
    parts: BTreeMap<u32, StoredPart>,
}

/// What is being uploaded.
#[derive(Default)]
pub(crate) struct Uploads {
    next: AtomicU64,
    open: Mutex<BTreeMap<String, Upload>>,
    /// Held while an object gets its name, so that of two that must be the first one is.
    naming: Mutex<()>,
}

impl Uploads {
    pub(crate) fn open(&self) -> u64 {
        lock(&self.open).len() as u64
    }

    /// Forget all uploads, and remove what they have stored.
    pub(crate) fn remove(&self, files: &Files) {
        lock(&self.open).clear();
        let _ = fs::remove_dir_all(files.folder.join(UPLOADS));
    }

    pub(crate) fn store(&self, files: &Files, body: &mut dyn Read, has_md5: bool) -> io::Result<StoredPart> {
        let folder = files.folder.join(UPLOADS);
        fs::create_dir_all(&folder)?;
        let path = folder.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let stored = (|| {
            let length = io::copy(body, &mut File::create(&path)?)?;
            let of = if has_md5 { md5 } else { digest };
            let tag = format!("\"{}\"", of(File::open(&path)?)?);
            Ok(StoredPart { path: path.clone(), tag, length })
        })();
        if stored.is_err() {
            let _ = fs::remove_file(&path);
        }
        stored
    }

    /// A file that is stored becomes the object, if the request allows it.
    fn name(
        &self,
        files: &Files,
        head: &Head,
        path: &str,
        stored: &Path,
        tag: Option<&str>,
    ) -> io::Result<Result<String, Answer>> {
        let Some(place) = files.place(path) else {
            return Ok(Err(Answer::error(400, "InvalidArgument", "No file can have this key.")));
        };
        let _naming = lock(&self.naming);
        if let Some(answer) = precondition(head, files.object(path, Version::default()).as_ref()) {
            return Ok(Err(answer));
        }
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::rename(stored, &place)?;
        if let Some(tag) = tag {
            files.set_tag(&place, tag)?;
        }
        let object = files.object(path, Version::default());
        Ok(object.map(|object| object.tag).ok_or_else(|| Answer::error(500, "InternalError", "The object is gone.")))
    }

    /// PUT of an object. The first error is that of the connection or the disk.
    pub(crate) fn put(
        &self,
        files: &Files,
        head: &Head,
        path: &str,
        body: &mut dyn Read,
        has_md5: bool,
    ) -> io::Result<(u64, Answer)> {
        let part = self.store(files, body, has_md5)?;
        let answer = match self.name(files, head, path, &part.path, has_md5.then_some(part.tag.as_str()))? {
            Ok(tag) => Answer::new(200).with("ETag", tag),
            Err(answer) => answer,
        };
        let _ = fs::remove_file(&part.path);
        Ok((part.length, answer))
    }

    /// POST with `?uploads`.
    pub(crate) fn create(&self, bucket: &str, key: &str) -> Answer {
        let id = format!("upload-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let upload = Upload { bucket: bucket.to_owned(), key: key.to_owned(), parts: BTreeMap::new() };
        lock(&self.open).insert(id.clone(), upload);
        let (bucket, key) = (escape_xml(bucket), escape_xml(key));
        Answer::xml(&format!(
            "<InitiateMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>{bucket}</Bucket>\
             <Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ))
    }

    /// PUT with `?partNumber=&uploadId=`.
    pub(crate) fn part(
        &self,
        files: &Files,
        head: &Head,
        body: &mut dyn Read,
        has_md5: bool,
    ) -> io::Result<(u64, Answer)> {
        let stored = self.store(files, body, has_md5)?;
        let (length, path) = (stored.length, stored.path.clone());
        let number = head.value("partNumber").and_then(|text| text.parse().ok()).filter(|n| (1..=10_000).contains(n));
        let id = head.value("uploadId").unwrap_or_default();
        let mut open = lock(&self.open);
        let (answer, removed) = match (open.get_mut(id), number) {
            (None, _) => (no_such_upload(), Some(path)),
            (_, None) => (
                Answer::error(400, "InvalidArgument", "Part number must be an integer between 1 and 10000"),
                Some(path),
            ),
            (Some(upload), Some(number)) => {
                let answer = Answer::new(200).with("ETag", stored.tag.as_str());
                (answer, upload.parts.insert(number, stored).map(|earlier| earlier.path))
            }
        };
        if let Some(path) = removed {
            let _ = fs::remove_file(path);
        }
        Ok((length, answer))
    }

    /// POST with `?uploadId=`: the parts that the body lists become the object.
    pub(crate) fn complete(
        &self,
        files: &Files,
        head: &Head,
        (bucket, key): (&str, &str),
        body: &mut dyn Read,
        (is_strict, has_md5): (bool, bool),
    ) -> io::Result<Answer> {
        let mut xml = String::new();
        body.take(MAX_LIST).read_to_string(&mut xml)?;
        let id = head.value("uploadId").unwrap_or_default();
        let numbers: Option<Vec<u32>> = xml_fields(&xml, "PartNumber").iter().map(|text| text.parse().ok()).collect();
        let numbers = numbers.unwrap_or_default();
        let tags = xml_fields(&xml, "ETag");
        if numbers.is_empty() || numbers.len() != tags.len() {
            return Ok(Answer::error(400, "MalformedXML", "The XML you provided was not well-formed"));
        }
        if !numbers.is_sorted_by(|before, after| before < after) {
            return Ok(Answer::error(400, "InvalidPartOrder", "The list of parts was not in ascending order."));
        }
        let paths = {
            let open = lock(&self.open);
            let Some(upload) =
                open.get(id).filter(|upload| (upload.bucket.as_str(), upload.key.as_str()) == (bucket, key))
            else {
                return Ok(no_such_upload());
            };
            let of = |(number, tag): (&u32, &String)| {
                upload.parts.get(number).filter(|part| part.tag.trim_matches('"') == tag.trim_matches('"'))
            };
            let Some(parts) = numbers.iter().zip(&tags).map(of).collect::<Option<Vec<&StoredPart>>>() else {
                return Ok(Answer::error(400, "InvalidPart", "One or more of the specified parts could not be found."));
            };
            if is_strict && parts[..parts.len() - 1].iter().any(|part| part.length < MIN_PART) {
                let small = "Your proposed upload is smaller than the minimum allowed size";
                return Ok(Answer::error(400, "EntityTooSmall", small));
            }
            parts.iter().map(|part| part.path.clone()).collect::<Vec<_>>()
        };
        let tag = if has_md5 { Some(tag_of_parts(&tags)?) } else { None };
        let joined = self.store(files, &mut Joined { paths: paths.into_iter(), file: None }, false)?;
        let path = format!("{bucket}/{key}");
        let answer = match self.name(files, head, &path, &joined.path, tag.as_deref())? {
            Ok(tag) => {
                self.abort(id);
                let (bucket, key, tag) = (escape_xml(bucket), escape_xml(key), escape_xml(&tag));
                Answer::xml(&format!(
                    "<CompleteMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                     <Location>/s3/{bucket}/{key}</Location><Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>{tag}</ETag>\
                     </CompleteMultipartUploadResult>"
                ))
            }
            Err(answer) => answer,
        };
        let _ = fs::remove_file(joined.path);
        Ok(answer)
    }

    /// DELETE with `?uploadId=`.
    pub(crate) fn abort(&self, id: &str) -> Answer {
        let Some(upload) = lock(&self.open).remove(id) else { return no_such_upload() };
        for part in upload.parts.into_values() {
            let _ = fs::remove_file(part.path);
        }
        Answer::new(204)
    }

    /// GET of a bucket with `?uploads`.
    pub(crate) fn list(&self, bucket: &str) -> Answer {
        let open = lock(&self.open);
        let of_bucket = open.iter().filter(|(_, upload)| upload.bucket == bucket);
        let entry = |(id, upload): (&String, &Upload)| {
            format!("<Upload><Key>{}</Key><UploadId>{id}</UploadId></Upload>", escape_xml(&upload.key))
        };
        let entries: String = of_bucket.map(entry).collect();
        let bucket = escape_xml(bucket);
        Answer::xml(&format!(
            "<ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>{bucket}</Bucket>\
             <IsTruncated>false</IsTruncated>{entries}</ListMultipartUploadsResult>"
        ))
    }
}

fn md5(mut bytes: File) -> io::Result<String> {
    let mut hash = Md5::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match bytes.read(&mut buffer)? {
            0 => return Ok(in_digits(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// The tag of an object of parts with these tags: the MD5 of their MD5s, and how many they are.
fn tag_of_parts(tags: &[String]) -> io::Result<String> {
    let mut hash = Md5::new();
    for tag in tags {
        for digits in tag.trim_matches('"').as_bytes().chunks(2) {
            let byte = std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
            hash.update([byte.ok_or(io::ErrorKind::InvalidData)?]);
        }
    }
    Ok(format!("\"{}-{}\"", in_digits(&hash.finalize()), tags.len()))
}

fn in_digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn no_such_upload() -> Answer {
    Answer::error(404, "NoSuchUpload", "The specified upload does not exist.")
}

/// Files in sequence, each opened when its turn comes.
pub(crate) struct Joined {
    pub(crate) paths: std::vec::IntoIter<PathBuf>,
    pub(crate) file: Option<File>,
}

impl Read for Joined {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(file) = &mut self.file {
                let read = file.read(bytes)?;
                if read > 0 || bytes.is_empty() {
                    return Ok(read);
                }
            }
            let Some(path) = self.paths.next() else { return Ok(0) };
            self.file = Some(File::open(path)?);
        }
    }
}

/// Take a body, and keep nothing of it.
pub(crate) fn discard(body: &mut dyn Read) -> io::Result<u64> {
    io::copy(body, &mut io::sink())
}

/// A short body as text, as lists of keys are.
pub(crate) fn text_of(body: &mut dyn Read) -> io::Result<String> {
    let mut text = Vec::new();
    let mut body = body.take(MAX_LIST);
    io::copy(&mut body, &mut text as &mut dyn Write)?;
    String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
