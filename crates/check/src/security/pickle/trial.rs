//! Whether bytes without a magic are a pickle: those of protocols 0 and 1 begin with any instruction, and texts begin with letters.

use max_weights::format::SNIFF_BYTES;

use super::Expected;
use super::machine::{End, Machine};
use super::names::Verdict;

/// So many bytes are tried.
const TRIED: usize = 4 << 10;
/// What is shorter is all that there is.
const WHOLE: usize = SNIFF_BYTES;
/// So many instructions to their end are not text by chance.
const SEVERAL: u64 = 12;

/// Whether these bytes, the first of something, may be a pickle although they do not begin as one: protocols 0 and 1 have no magic. They are if
/// they call something, or come to an end, or go on with instructions as far as they are there.
pub fn may_be_pickle(first: &[u8]) -> bool {
    tried(first.get(..TRIED).unwrap_or(first)) != Trial::No
}

/// Whether these bytes are a pickle that imports something: what the bytes of quantised numbers look like by chance does not.
pub fn is_pickle_that_imports(bytes: &[u8]) -> bool {
    tried(bytes) == Trial::Imports
}

/// What comes of a trial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    No,
    /// It may be a pickle, which imports nothing in these bytes.
    Maybe,
    Imports,
}

fn tried(bytes: &[u8]) -> Trial {
    let bytes = bytes.to_vec();
    let maybe = |yes: bool| if yes { Trial::Maybe } else { Trial::No };
    let len = bytes.len() as u64;
    let mut at = 0;
    let mut instructions = 0;
    loop {
        let mut machine = Machine::new(&bytes, Expected::Any, None);
        let Ok((_, end)) = machine.run(at) else { return Trial::No };
        instructions += machine.instructions;
        let names = || machine.names.all().iter().filter(|named| named.is_plain());
        // What is called and comes to an end is none by chance, however short its name is.
        let is_called = machine.found.calls > 0 && matches!(end, End::Stop) && !machine.names.all().is_empty();
        let has_plain_names = is_called || names().next().is_some();
        // To import something is enough, whatever follows: but two lines of a list of words look like it.
        if has_plain_names && machine.found.calls > 0 || names().any(|named| named.verdict == Verdict::Malicious) {
            return Trial::Imports;
        }
        match end {
            End::Stop if has_plain_names => return Trial::Imports,
            End::Stop if machine.next >= len => return maybe(instructions >= 3),
            End::Stop => at = machine.next,
            // It goes on beyond what is at hand.
            _ => {
                let goes_on = bytes.len() >= WHOLE && machine.is_cut(len);
                let rest = bytes.get(machine.at as usize..).unwrap_or_default();
                return maybe(goes_on && (instructions >= SEVERAL || is_long(rest)));
            }
        }
    }
}

/// Whether a long value begins here, behind which anything may stand.
fn is_long(bytes: &[u8]) -> bool {
    let is_marked = matches!(
        bytes,
        [b'S', b'\'' | b'"', ..] | [b'V' | 0x8c | b'U' | b'C', ..] | [0x8d | 0x8e | 0x96, _, _, _, _, 0, 0, 0, 0, ..]
    );
    // A number goes on for as long as one likes with zeros before it, or, for the reader in C, with anything behind a NUL.
    let is_number = |rest: &[u8]| {
        let until_nul = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        let fits = |byte: &u8| byte.is_ascii_hexdigit() || b" +-._xXoO".contains(byte);
        until_nul.iter().all(fits) && until_nul.iter().any(u8::is_ascii_digit)
    };
    if let [b'I' | b'L' | b'F' | b'p' | b'g', rest @ ..] = bytes {
        return !rest.contains(&b'\n') && is_number(rest);
    }
    // The lengths that letters spell are far beyond.
    is_marked || matches!(bytes, [b'X' | b'B' | b'T' | 0x8b, _, _, _, high, ..] if *high < b' ')
}

#[cfg(test)]
mod tests {
    use super::{SNIFF_BYTES, is_pickle_that_imports, may_be_pickle};

    #[test]
    fn pickles_of_protocols_without_a_magic_are_recognised() {
        let long = [&b"(lp0\nI1\naI2\naI3\naI4\naI5\naS'"[..], &[b'a'; 8192]].concat();
        let many = [&b"(lp0\n"[..], &b"I1\na".repeat(200)].concat();
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
            &many[..SNIFF_BYTES],
            &[&b"S'"[..], &[b'a'; 600]].concat(),
            &[&b"V"[..], &[b'a'; 600]].concat(),
            &[&b"X\0\x10\0\0"[..], &[b'a'; 600]].concat(),
            &b"N.".repeat(300),
            &[&b"I"[..], &[b'0'; 600], b"1"].concat(),
            &[&b"I1\0"[..], &[0xff; 600]].concat(),
            &[&b"F1."[..], &[b'0'; 600]].concat(),
            &[&b"Np"[..], &[b'0'; 600]].concat(),
            b"cm\nf\n(tR.junk",
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
            b"cat\ndog\nbird\n",
            b"the\nof\nand\nto\n",
            b"import os\nos.system('x')\n",
            b"class A:\n    pass\n",
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
    fn numbers_that_begin_like_a_pickle_import_nothing() {
        // Weights of four bits as bitsandbytes packed them.
        let numbers = [&b"}V\xf9\x72\xc3\xee\xd3\xa2"[..], &[0x77; 8192]].concat();
        assert!(may_be_pickle(&numbers) && !is_pickle_that_imports(&numbers));
        // An import behind a text that is longer than what is tried first.
        let late = [&b"V"[..], &[b'a'; 8192], b"\n0cos\nsystem\n(S'true'\ntR."].concat();
        assert!(may_be_pickle(&late) && is_pickle_that_imports(&late));
    }
}
