//! What the tests of pickles share: a scan of bytes in memory, and what it found.
#![allow(dead_code, unreachable_pub, clippy::expect_used, clippy::panic)] // each test takes a part; a test fails by panicking

use std::path::Path;

use max_weights::rules::Verdict;
use max_weights::{Diagnostic, uninterrupted};
use max_weights_check::security::archive::{Archive, ArchiveMember};
use max_weights_check::security::pickle::{self, PickleContents, PickleOrigin};
use max_weights_check::security::torch;
use max_weights_check::{ByteSpan, FileContext, FileReport, Kind, RandomRead, ValidateOptions};

/// What was found in a file.
pub struct Scanned {
    pub file: FileReport,
    pub findings: Vec<Diagnostic>,
    pub seen: PickleContents,
}

impl Scanned {
    pub fn ids(&self) -> Vec<&'static str> {
        let mut ids: Vec<_> = self.findings.iter().map(|finding| finding.rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub fn has(&self, id: &str) -> bool {
        self.ids().contains(&id)
    }

    pub fn answer(&self) -> Verdict {
        self.file.answer
    }

    /// The evidence of the finding of this rule.
    pub fn evidence(&self, id: &str) -> &str {
        let finding = self.findings.iter().find(|finding| finding.rule.id == id);
        let finding = finding.unwrap_or_else(|| panic!("{id} is not among {:?}", self.ids()));
        finding.evidence.as_deref().unwrap_or_default()
    }

    pub fn global(&self, module: &str, name: &str) -> Option<&'static str> {
        let found = self.file.globals.iter().find(|global| global.module == module && global.name == name);
        found.map(max_weights_check::Global::safety)
    }
}

fn check<T>(
    bytes: &[u8],
    what: impl FnOnce(&ByteSpan<'_>, &mut FileContext<'_>) -> T,
) -> (T, FileReport, Vec<Diagnostic>) {
    let options = ValidateOptions::default();
    let bytes = bytes.to_vec();
    let mut context =
        FileContext::new(Path::new("file").into(), bytes.len() as u64, Kind::Pickle, &options, &uninterrupted);
    let made = what(&ByteSpan::file(&bytes, "file"), &mut context);
    let (file, findings, _) = context.finish();
    (made, file, findings)
}

pub fn scan_as(bytes: &[u8], expected: PickleOrigin) -> Scanned {
    let (seen, file, findings) =
        check(bytes, |piece, context| pickle::scan(piece, expected, context).expect("bytes in memory can be read"));
    Scanned { file, findings, seen }
}

pub fn scan(bytes: &[u8]) -> Scanned {
    scan_as(bytes, PickleOrigin::Any)
}

pub fn scan_legacy(bytes: &[u8]) -> Scanned {
    let ((), file, findings) =
        check(bytes, |piece, context| torch::scan_legacy(piece, context).expect("bytes in memory can be read"));
    Scanned { file, findings, seen: PickleContents::default() }
}

/// An archive in memory.
struct InMemory {
    members: Vec<ArchiveMember>,
    bytes: Vec<Vec<u8>>,
}

impl Archive for InMemory {
    fn members(&self) -> &[ArchiveMember] {
        &self.members
    }

    fn open<'a>(
        &'a self,
        number: usize,
        _: &mut FileContext<'_>,
    ) -> max_weights::Result<Option<Box<dyn RandomRead + 'a>>> {
        Ok(self.bytes.get(number).map(|bytes| Box::new(bytes.clone()) as Box<dyn RandomRead>))
    }
}

/// The findings in an archive of these members, and which of them are accounted for.
pub fn scan_archive(members: &[(&str, &[u8])]) -> (Scanned, Vec<bool>) {
    let archive = InMemory {
        members: members
            .iter()
            .map(|(name, bytes)| ArchiveMember {
                name: (*name).to_owned(),
                start: 0,
                packed: bytes.len() as u64,
                size: bytes.len() as u64,
                stored: true,
            })
            .collect(),
        bytes: members.iter().map(|(_, bytes)| bytes.to_vec()).collect(),
    };
    let (accounted, file, findings) = check(b"zip", |piece, context| {
        torch::check_archive(piece, &archive, context).expect("bytes in memory can be read")
    });
    (Scanned { file, findings, seen: PickleContents::default() }, accounted)
}

/// `\x80\x02 … .`
pub fn protocol_2(body: &[u8]) -> Vec<u8> {
    [b"\x80\x02", body, b"."].concat()
}

/// A text of protocol 4.
pub fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

/// A reference to a storage, of `elements` floats.
pub fn storage(key: &str, elements: u8) -> Vec<u8> {
    let unicode = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    [b"(", &unicode("storage")[..], b"ctorch\nFloatStorage\n", &unicode(key), &unicode("cpu"), b"K", &[elements], b"tQ"]
        .concat()
}

/// A tensor over a storage of `elements` floats.
pub fn tensor(key: &str, elements: u8) -> Vec<u8> {
    [
        &b"ctorch._utils\n_rebuild_tensor_v2\n("[..],
        &storage(key, elements),
        b"K\x00K",
        &[elements],
        b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR",
    ]
    .concat()
}
