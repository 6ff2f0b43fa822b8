//! The units that a file is kept in, and the pieces that a read is cut into by them.

use std::ops::Range;

use max_weights::source::ReadRange;

/// Bytes of a unit: little enough for the rows of one rank, and long enough for a request.
pub(crate) const UNIT: u64 = 1 << 20;

/// How many units a file of this length has.
pub(crate) fn count(len: u64) -> u64 {
    len.div_ceil(UNIT)
}

/// The bytes of a unit in a file of this length, which has it.
pub(crate) fn range(unit: u64, len: u64) -> Range<u64> {
    let start = unit * UNIT;
    start..start.saturating_add(UNIT).min(len)
}

/// The part of a read that is in one unit.
#[derive(Debug)]
pub(crate) struct CacheChunk<'a> {
    pub(crate) unit: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: &'a mut [u8],
}

impl CacheChunk<'_> {
    /// Where it is in its unit.
    pub(crate) fn within(&self) -> Range<usize> {
        let start = (self.offset % UNIT) as usize;
        start..start + self.bytes.len()
    }
}

/// The pieces of these parts, in the order of the file.
pub(crate) fn pieces<'a>(parts: &'a mut [ReadRange<'_>]) -> Vec<CacheChunk<'a>> {
    let mut pieces = Vec::new();
    for part in parts {
        let mut offset = part.offset;
        let mut rest: &mut [u8] = part.bytes;
        while !rest.is_empty() {
            let unit = offset / UNIT;
            let until = (unit + 1) * UNIT - offset;
            let here = usize::try_from(until).map_or(rest.len(), |until| until.min(rest.len()));
            let (bytes, after) = rest.split_at_mut(here);
            pieces.push(CacheChunk { unit, offset, bytes });
            (offset, rest) = (offset + here as u64, after);
        }
    }
    pieces.sort_by_key(|piece| piece.offset);
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn units_are_the_file_and_nothing_else(len in 0_u64..1 << 45) {
            let count = count(len);
            prop_assert!(count * UNIT >= len && (count == 0 || (count - 1) * UNIT < len));
            for unit in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|unit| *unit < count) {
                let range = range(unit, len);
                prop_assert!(!range.is_empty() && range.end <= len);
                prop_assert_eq!(range.end == len, unit + 1 == count);
                prop_assert!(range.end == len || range.end - range.start == UNIT);
            }
        }

        #[test]
        fn pieces_are_the_parts_cut_at_units(parts in prop::collection::vec((0_u64..9 * UNIT, 0_usize..5 << 19), 0..5)) {
            let mut memory: Vec<(u64, Vec<u8>)> = parts.iter().map(|(at, len)| (*at, vec![0; *len])).collect();
            let mut given: Vec<ReadRange<'_>> = memory.iter_mut().map(|(offset, bytes)| ReadRange { offset: *offset, bytes }).collect();
            let mut last = 0;
            for piece in pieces(&mut given) {
                prop_assert!(piece.offset >= last);
                last = piece.offset;
                let unit = range(piece.unit, u64::MAX);
                prop_assert!(unit.start <= piece.offset && piece.offset + piece.bytes.len() as u64 <= unit.end);
                prop_assert_eq!(piece.within().start as u64, piece.offset - unit.start);
                // Each byte once.
                piece.bytes.iter_mut().for_each(|byte| *byte += 1);
            }
            prop_assert!(memory.iter().all(|(_, bytes)| bytes.iter().all(|byte| *byte == 1)));
        }
    }

    #[test]
    fn the_end_of_all_numbers_is_no_overflow() {
        let mut bytes = [0; 3];
        let mut parts = [ReadRange { offset: u64::MAX - 2 * UNIT, bytes: &mut bytes }];
        assert_eq!(pieces(&mut parts).len(), 2);
    }
}
