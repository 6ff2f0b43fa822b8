//! Compression of what is zero nearly everywhere, as the exclusive or of two versions is: runs of zeros are matches of the byte before them, and all else
//! is as it is. That takes a third of what the matches of the compressor itself take.

use ruzstd::encoding::{CompressionLevel, FrameCompressor, Matcher, Sequence};
use std::io::Read;

/// The most bytes of a block.
const BLOCK: usize = 128 << 10;
/// The shortest run that is a match; its first zero is what the others are copied from.
const RUN: usize = 5;

/// What `changes` has, as one frame.
pub(super) fn compress(changes: impl Read) -> Vec<u8> {
    let (mut frame, mut compressor) =
        (Vec::new(), FrameCompressor::new_with_matcher(ZeroRuns::default(), CompressionLevel::Fastest));
    compressor.set_source(changes);
    compressor.set_drain(&mut frame);
    compressor.compress();
    drop(compressor);
    frame
}

/// The block that is compressed, and one to be filled.
#[derive(Default)]
struct ZeroRuns {
    block: Vec<u8>,
    spare: Vec<u8>,
}

impl Matcher for ZeroRuns {
    fn get_next_space(&mut self) -> Vec<u8> {
        let mut space = std::mem::take(&mut self.spare);
        space.resize(BLOCK, 0);
        space
    }

    fn get_last_space(&mut self) -> &[u8] {
        &self.block
    }

    fn commit_space(&mut self, space: Vec<u8>) {
        self.spare = std::mem::replace(&mut self.block, space);
    }

    fn skip_matching(&mut self) {}

    fn start_matching(&mut self, mut handle_sequence: impl for<'a> FnMut(Sequence<'a>)) {
        let mut rest = &*self.block;
        let mut at = 0;
        while let Some(zero) = memchr::memchr(0, rest.get(at..).unwrap_or_default()) {
            at += zero;
            let run = rest[at..].iter().position(|byte| *byte != 0).unwrap_or(rest.len() - at);
            if run < RUN {
                at += run;
                continue;
            }
            let (literals, matched) = rest.split_at(at + 1);
            handle_sequence(Sequence::Triple { literals, offset: 1, match_len: run - 1 });
            (rest, at) = (&matched[run - 1..], 0);
        }
        if !rest.is_empty() {
            handle_sequence(Sequence::Literals { literals: rest });
        }
    }

    fn reset(&mut self, _: CompressionLevel) {
        self.block.clear();
    }

    fn window_size(&self) -> u64 {
        BLOCK as u64
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::decoding::FrameDecoder;

    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn all_that_is_compressed_unpacks_to_what_it_was() {
        let mut state = 7;
        for round in 0..400 {
            let len = (random(&mut state) % (3 * BLOCK as u64)) as usize;
            let (one_in, values) = ([1, 2, 5, 50, 1000, 100_000][round % 6], [1, 2, 3, 255][round % 4]);
            let mut bytes = vec![0; len];
            for byte in &mut bytes {
                if random(&mut state).is_multiple_of(one_in) {
                    *byte = 1 + (random(&mut state) % values) as u8;
                }
            }
            let frame = compress(&*bytes);
            let mut unpacked = Vec::with_capacity(len);
            FrameDecoder::new().decode_all_to_vec(&frame, &mut unpacked).expect("a frame");
            assert!(unpacked == bytes, "round {round}");
            if one_in >= 50 && len > BLOCK {
                assert!(frame.len() < len / 12, "{} of {len}", frame.len());
            }
        }
    }
}
