//! Whether bytes without a magic are a pickle: those of protocols 0 and 1 begin with any instruction, and texts begin with letters.

use super::Expected;
use super::machine::{End, Machine};
use super::names::Verdict;

/// So many bytes are tried.
const TRIED: usize = 4 << 10;
/// So many instructions to their end are no text by chance.
const SEVERAL: u64 = 12;
/// So many pickles in a row.
const IN_A_ROW: usize = 16;

/// Whether these bytes, the first of something, may be a pickle although they do not begin as one: protocols 0 and 1 have no magic. They are if
/// they call something, or come to an end, or go on with instructions as far as they are there.
pub fn may_be_pickle(first: &[u8]) -> bool {
    let bytes = first.get(..TRIED).unwrap_or(first).to_vec();
    let len = bytes.len() as u64;
    let mut at = 0;
    let mut instructions = 0;
    for _ in 0..IN_A_ROW {
        let mut machine = Machine::new(&bytes, Expected::Any, None);
        let Ok((_, end)) = machine.run(at) else { return false };
        instructions += machine.instructions;
        let names = || machine.names.all().iter().filter(|named| named.is_plain());
        let has_plain_names = names().next().is_some();
        // To import something is enough, whatever follows: but two lines of a list of words look like it.
        if has_plain_names && machine.found.calls > 0 || names().any(|named| named.verdict == Verdict::Malicious) {
            return true;
        }
        match end {
            End::Stop if has_plain_names => return true,
            End::Stop if machine.next >= len => return instructions >= 3,
            End::Stop => at = machine.next,
            // It goes on beyond what is at hand.
            _ => return bytes.len() >= TRIED && machine.is_cut(len) && instructions >= SEVERAL,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::may_be_pickle;

    #[test]
    fn pickles_of_protocols_without_a_magic_are_recognised() {
        let long = [&b"(lp0\nI1\naI2\naI3\naI4\naI5\naS'"[..], &[b'a'; 8192]].concat();
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
            &[0xff; 100],
        ] {
            assert!(!may_be_pickle(text), "{}", String::from_utf8_lossy(text));
        }
    }
}
