//! Whether bytes without a magic are a pickle: those of protocols 0 and 1 begin with any instruction, and texts begin with letters.

use max_weights::format::pickle::Danger;
use max_weights::format::pickle::names::look_up;
use max_weights::format::pickle::spelling::is_blank;

use super::PickleOrigin;
use super::machine::{PickleEnd, ScanMachine};
use crate::kind::has_suffix;

/// Bytes that are tried.
const TRIED: usize = 4 << 10;
/// Text does not form this many instructions up to their end by chance.
const SEVERAL: u64 = 12;
/// An instruction with its value, where that is no line and not long, has no more bytes than this.
const SHORT: u64 = 2 + u8::MAX as u64;
/// Suffixes of pickles, which may be one number.
const PICKLES: &str = "pkl pickle joblib";
/// Suffixes of texts, which are not unpickled. Many begin with two lines that look like an import, as lists of words do.
const TEXTS: &str = "
    txt text md markdown rst adoc csv tsv json jsonl ndjson yaml yml toml ini cfg conf config properties env lock log out err py pyi pyx ipynb
    jinja jinja2 j2 template html htm xml svg css js ts sh bash bat ps1 c cc cpp cu h hpp rs go java tex bib cff vocab merges bpe codes dict lst
    list labels names srt prompt";

/// Whether these bytes, the first of `len` in a file or member of this name, may be a pickle of protocol 0 or 1, which have no magic. They are if
/// they call something, end properly, or consist of instructions up to the limit. An import counts, too, unless the file is named as a text.
pub fn may_be_pickle(first: &[u8], len: u64, name: &str) -> bool {
    match tried(first.get(..TRIED).unwrap_or(first), len) {
        Trial::No => false,
        Trial::Short => has_suffix(name, PICKLES),
        Trial::MayImport => !is_named_as_text(name),
        Trial::Maybe | Trial::Imports => true,
    }
}

/// Whether these bytes are a pickle that imports something: what the bytes of quantized numbers look like by chance does not.
pub fn is_pickle_that_imports(bytes: &[u8]) -> bool {
    tried(bytes, bytes.len() as u64) == Trial::Imports
}

/// Whether a file of this name is a text to its users: by its suffix, or as LICENSE and README are.
fn is_named_as_text(name: &str) -> bool {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let is_capital = |byte: u8| byte.is_ascii_uppercase() || b"-_".contains(&byte);
    has_suffix(last, TEXTS) || last.len() > 1 && last.bytes().all(is_capital)
}

/// What comes of a trial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    No,
    /// It is whole, of so few instructions that any text may begin or be like this.
    Short,
    /// It imports something if it is a pickle at all: two lines of any text look like this.
    MayImport,
    /// It may be a pickle, which imports nothing in these bytes.
    Maybe,
    Imports,
}

/// Tries the first bytes of `total`.
fn tried(bytes: &[u8], total: u64) -> Trial {
    let bytes = bytes.to_vec();
    let len = bytes.len() as u64;
    let mut at = 0;
    let mut instructions = 0;
    loop {
        let mut machine = ScanMachine::new(&bytes, PickleOrigin::Any, None);
        machine.goes_on = len < total;
        let Ok((_, end)) = machine.run(at) else { return Trial::No };
        instructions += machine.instructions;
        let is_whole = matches!(end, PickleEnd::Stop);
        // A call, or a proper end, does not occur by chance in any file.
        if machine.found.imports > 0 && (is_whole || machine.found.calls > 0) || names_harm(&machine) {
            return Trial::Imports;
        }
        if is_whole && machine.next < len {
            at = machine.next;
            continue;
        }
        if is_whole {
            return if instructions >= 3 || len < total { Trial::Maybe } else { Trial::Short };
        }
        // For another reader the frame ends first, and it goes on there.
        for at in std::mem::take(&mut machine.found.alternatives) {
            let mut other = ScanMachine::new(&bytes, PickleOrigin::Any, None);
            (other.goes_on, other.loose) = (len < total, true);
            if other.run(at).is_ok() && other.names.all().iter().any(super::names::NamedGlobal::is_plain) {
                return Trial::Imports;
            }
        }
        // It continues beyond the bytes that were read.
        let rest = bytes.get(machine.at as usize..).unwrap_or_default();
        let is_near = machine.at > 0 && machine.at + SHORT >= len;
        // What is before the end of a frame may be lost, and the rest of the line another one.
        let is_framed = machine.frame_end.is_some_and(|end| machine.at < end);
        let is_odd = is_framed || instructions >= SEVERAL || is_long(rest, total - machine.at);
        let may_continue = is_near || machine.is_cut(len) && is_odd;
        return if len < total && may_continue {
            Trial::Maybe
        } else if machine.found.imports > 0 || len < total && is_import(rest) {
            Trial::MayImport
        } else {
            Trial::No
        };
    }
}

/// Whether it names something harmful, which suffices: importing the module runs it.
fn names_harm(machine: &ScanMachine<'_, '_>) -> bool {
    machine.found.imports > 0
        && machine
            .names
            .all()
            .iter()
            .any(|named| named.is_plain() && named.danger == Danger::RunsCode || runs_code(&named.module))
}

/// Whether everything in a module runs code, as importing it may.
fn runs_code(module: &str) -> bool {
    look_up(module, "").is_some_and(|entry| entry.danger == Danger::RunsCode)
}

/// Whether the two lines of an import begin here, of which the end is not at hand.
fn is_import(rest: &[u8]) -> bool {
    let [b'c' | b'i', lines @ ..] = rest else { return false };
    let is_text = match std::str::from_utf8(lines) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    is_text && !lines.contains(&0) && memchr::memchr_iter(b'\n', lines).count() < 2
}

/// Whether a long value begins here, whose rest is not checked; it has `left` bytes in all.
fn is_long(bytes: &[u8], left: u64) -> bool {
    let is_marked = matches!(bytes, [b'S', b'\'' | b'"', ..] | [b'V' | 0x8c | b'U' | b'C', ..]);
    // A number may have any length, with blanks or zeros before it, or, for the reader in C, with anything after a NUL.
    let is_number = |rest: &[u8]| {
        let until_nul = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        let fits = |byte: &u8| byte.is_ascii_hexdigit() || is_blank(*byte) || b"+-._xXoO".contains(byte);
        until_nul.iter().all(fits)
            && (until_nul.iter().any(u8::is_ascii_digit) || until_nul.iter().all(|byte| is_blank(*byte)))
    };
    // The lengths that letters spell are far beyond.
    match bytes {
        [b'I' | b'L' | b'F' | b'p' | b'g', rest @ ..] => !rest.contains(&b'\n') && is_number(rest),
        [b'X' | b'B' | b'T' | 0x8b, rest @ ..] => {
            rest.first_chunk().is_some_and(|len| u64::from(u32::from_le_bytes(*len)) < left)
        }
        [0x8d | 0x8e | 0x96, rest @ ..] => rest.first_chunk().is_some_and(|len| u64::from_le_bytes(*len) < left),
        _ => is_marked,
    }
}

#[cfg(test)]
mod tests {
    use super::{TRIED, is_pickle_that_imports};

    /// Whether all of these bytes may be a pickle, without a name that decides it.
    fn may_be_pickle(bytes: &[u8]) -> bool {
        super::may_be_pickle(bytes.get(..TRIED).unwrap_or(bytes), bytes.len() as u64, "data.bin")
    }

    #[test]
    fn pickles_of_protocols_without_a_magic_are_recognised() {
        let long = [&b"(lp0\nI1\naI2\naI3\naI4\naI5\naS'"[..], &[b'a'; 8192]].concat();
        let many = [&b"(lp0\n"[..], &b"I1\na".repeat(2000)].concat();
        for pickle in [
            &b"cos\nsystem\n(S'true'\ntR."[..],
            b"(S'true'\nios\nsystem\n.",
            b"(cos\nsystem\nS'true'\no.",
            b"cantigravity\ngeohash\n.",
            b"N.cos\nsystem\n(S'true'\ntR.",
            b"(dp0\nS'a'\np1\nI1\ns.",
            b"}q\x00X\x01\0\0\0aK\x01s.",
            b"cos\nsystem\n(S'true'\ntRgarbage",
            &long,
            &many,
            &[&b"S'"[..], &[b'a'; 6000]].concat(),
            &[&b"V"[..], &[b'a'; 6000]].concat(),
            &[&b"X\0\x20\0\0"[..], &[b'a'; 9000]].concat(),
            &b"N.".repeat(3000),
            &[&b"I"[..], &[b'0'; 6000], b"1"].concat(),
            &[&b"I"[..], &[b' '; 6000], b"1"].concat(),
            &[&b"F\x0b"[..], &[b' '; 6000], b"1"].concat(),
            &[&b"I\0"[..], &[0xff; 6000]].concat(),
            &[&b"I1\0"[..], &[0xff; 6000]].concat(),
            &[&b"F1."[..], &[b'0'; 6000]].concat(),
            &[&b"Np"[..], &[b'0'; 6000]].concat(),
            &[&b"V"[..], &[b'a'; 4093], b"\ncos\nsystem\n(S'true'\ntR."].concat(),
            &[&b"cidlelib.idle\n"[..], &[b'a'; 6000], b"\n"].concat(),
            b"cm\nf\n(tR.junk",
            // An import runs the module, whatever its name is and whatever follows.
            b"(cevil-mod\nrun\n)R1.",
            b"cevil mod\nrun\n",
            b"cidlelib.idle\na b\n.",
            b"cidlelib.idle\na b\nbreak",
            b"ievil-mod\nrun\n",
            b"cevil-mod\nrun?",
            b"cevil-mod?",
            b"N.cevil-mod\nrun\n)R1.",
            b"\x8c\x08evil-mod\x8c\x03run\x93",
            b"\x95\x02\0\0\0\0\0\0\0I*1\ncos\nsystem\n",
        ] {
            assert!(may_be_pickle(pickle), "{}", String::from_utf8_lossy(pickle));
        }
    }

    #[test]
    fn texts_and_tables_are_no_pickles() {
        for text in [
            &b""[..],
            b"{\"a\": 1}",
            b"[1, 2]",
            b"the\nof\nand\nto\n",
            b"Name: x\nVersion: 1\n.",
            b"#version: 0.2\ni n\nt h\n",
            b"(1) hello",
            b"Very\nlong\ntext\n",
            b"N",
            b".",
            b"I am a text\n",
            b"<html></html>",
            b"\0\0\0\0\0\0\0\0",
            &b"The name of a long text ".repeat(40),
            &b"I am a long text ".repeat(40),
            &b"1 2 3 4 5 6 7 8 9 ".repeat(40),
            &b"In a line without end ".repeat(40),
            &b"page 1 of 2, ".repeat(60),
            &[0xff; 100],
        ] {
            assert!(!may_be_pickle(text), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn two_lines_of_a_text_are_no_import_unless_the_name_is_that_of_data() {
        for text in [
            &b"cat\ndog\nbird\n"[..],
            b"import os\nos.system('x')\n",
            b"class A:\n    pass\n",
            b"(c) 2020 Someone\nAll rights reserved\n\n",
            b"contourpy==1.0\ncycler==0.1\n",
        ] {
            let may_be = |name| super::may_be_pickle(text, text.len() as u64, name);
            assert!(["a.txt", "a.py", "LICENSE", "folder/merges.txt", "README.md"].iter().all(|name| !may_be(name)));
            assert!(["a.pkl", "a", "model.bin", "1.0/a", "LICENSE.pkl"].iter().all(|name| may_be(name)));
        }
        // A module that is known to do something when it is imported is no word.
        for import in [&b"cidlelib.idle\na b\n"[..], b"cantigravity\nx y\n", b"cos\nsystem\n"] {
            assert!(super::may_be_pickle(import, import.len() as u64, "a.txt"));
        }
    }

    #[test]
    fn numbers_that_begin_like_a_pickle_import_nothing() {
        // Weights of four bits as bitsandbytes packed them.
        let numbers = [&b"}V\xf9\x72\xc3\xee\xd3\xa2"[..], &[0x77; 8192]].concat();
        assert!(!is_pickle_that_imports(&numbers));
        // An import behind a text that is longer than what is tried first.
        let late = [&b"V"[..], &[b'a'; 8192], b"\n0cos\nsystem\n(S'true'\ntR."].concat();
        assert!(may_be_pickle(&late) && is_pickle_that_imports(&late));
    }
}
