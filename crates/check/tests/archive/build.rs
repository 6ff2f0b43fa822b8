//! Archives built field by field, so that each field can be false, and the findings in them.

use std::path::PathBuf;

use max_weights::uninterrupted;
use max_weights_check::{Report, ValidateOptions, ValidateProgress, validate};

/// None, pickled by protocol 4.
pub(crate) const PICKLE: &[u8] = b"\x80\x04N.";

/// The findings in a file of this name with these bytes.
pub(crate) fn check_with(name: &str, bytes: &[u8], options: &ValidateOptions) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    check_paths(&[path], options)
}

pub(crate) fn check_paths(paths: &[PathBuf], options: &ValidateOptions) -> Report {
    validate(paths, options, &ValidateProgress::default(), &uninterrupted).expect("a report")
}

/// The rules that a file of this name with these bytes breaks, each once; those of pickles are another matter.
pub(crate) fn found(name: &str, bytes: &[u8]) -> Vec<&'static str> {
    rules(&check_with(name, bytes, &ValidateOptions::default()))
}

pub(crate) fn rules(report: &Report) -> Vec<&'static str> {
    const OWN: [&str; 12] = [
        "archive",
        "container",
        "file",
        "format",
        "hdf5",
        "keras",
        "numpy",
        "onnx",
        "skops",
        "tensorflow",
        "tflite",
        "values",
    ];
    let mut ids: Vec<&str> = report.findings.iter().map(|finding| finding.rule.id).collect();
    ids.retain(|id| OWN.contains(&id.split('.').next().unwrap_or_default()));
    ids.sort_unstable();
    ids.dedup();
    ids
}

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    max_weights::format::torch_zip::crc32(bytes)
}

/// One of the two headers of a member.
#[derive(Clone)]
pub(crate) struct Header {
    pub(crate) name: Vec<u8>,
    pub(crate) flags: u16,
    pub(crate) method: u16,
    pub(crate) crc: u32,
    pub(crate) packed: u32,
    pub(crate) size: u32,
    pub(crate) extra: Vec<u8>,
}

impl Header {
    fn write(&self, into: &mut Vec<u8>) {
        for number in [self.flags, self.method, 0, 0] {
            into.extend(number.to_le_bytes());
        }
        for number in [self.crc, self.packed, self.size] {
            into.extend(number.to_le_bytes());
        }
        for len in [self.name.len(), self.extra.len()] {
            into.extend((len as u16).to_le_bytes());
        }
    }
}

/// A member: the header before it, its bytes, and the header in the directory.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) before: Vec<u8>,
    pub(crate) local: Header,
    pub(crate) bytes: Vec<u8>,
    pub(crate) central: Header,
    pub(crate) listed: bool,
    pub(crate) mode: u32,
}

/// A member that is stored uncompressed.
pub(crate) fn member(name: &str, bytes: &[u8]) -> Member {
    let len = bytes.len() as u32;
    let header =
        Header { name: name.into(), flags: 0, method: 0, crc: crc32(bytes), packed: len, size: len, extra: Vec::new() };
    Member { before: Vec::new(), local: header.clone(), bytes: bytes.to_vec(), central: header, listed: true, mode: 0 }
}

impl Member {
    /// The same change in both headers.
    pub(crate) fn both(mut self, change: impl Fn(&mut Header)) -> Self {
        change(&mut self.local);
        change(&mut self.central);
        self
    }
}

/// The bytes of a member, deflated.
pub(crate) fn deflated(name: &str, bytes: &[u8]) -> Member {
    use std::io::Write as _;
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    let packed = encoder.finish().unwrap();
    let (crc, size) = (crc32(bytes), bytes.len() as u32);
    let mut member = member(name, &packed).both(|header| {
        (header.method, header.crc, header.size) = (8, crc, size);
    });
    member.bytes = packed;
    member
}

/// A zip archive of these members, with this comment.
pub(crate) fn zip_with(members: &[Member], comment: &[u8]) -> Vec<u8> {
    let (mut file, mut directory, mut count) = (Vec::new(), Vec::new(), 0u16);
    for member in members {
        file.extend(&member.before);
        let offset = file.len() as u32;
        file.extend(b"PK\x03\x04\x14\0");
        member.local.write(&mut file);
        file.extend(&member.local.name);
        file.extend(&member.local.extra);
        file.extend(&member.bytes);
        if member.listed {
            count += 1;
            directory.extend(b"PK\x01\x02\x14\x03\x14\0");
            member.central.write(&mut directory);
            directory.extend([0; 6]);
            directory.extend((member.mode << 16).to_le_bytes());
            directory.extend(offset.to_le_bytes());
            directory.extend(&member.central.name);
            directory.extend(&member.central.extra);
        }
    }
    let start = file.len() as u32;
    file.extend(&directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend(count.to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend((directory.len() as u32).to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend((comment.len() as u16).to_le_bytes());
    file.extend(comment);
    file
}

pub(crate) fn zip(members: &[Member]) -> Vec<u8> {
    zip_with(members, b"")
}

/// A tar archive of these members: name, kind, where a link leads, bytes.
pub(crate) fn tar(members: &[(&str, u8, &str, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    for (name, kind, target, bytes) in members {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
        header[156] = *kind;
        header[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        file.extend(header);
        file.extend(*bytes);
        file.resize(file.len().next_multiple_of(512), 0);
    }
    file.resize(file.len() + 1024, 0);
    file
}
