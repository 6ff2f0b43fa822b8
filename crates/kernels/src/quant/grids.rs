//! The grids of the IQ encodings, unpacked at compile time to one byte per element.
//!
//! `grids.bin`, which `tools/make_quant_grids.py` writes, has them back to back. A row is a little-endian 16-bit number. It has eight elements of
//! two bits (IQ1, IQ2) or four of four bits (IQ3), the first in the lowest bits. Each element is an index into the levels of its grid.

const PACKED: &[u8; 2 * (256 + 512 + 1024 + 256 + 512 + 2048)] = include_bytes!("grids.bin");

/// The levels of the IQ2 grids.
const LEVELS_2: &[u8] = &[0x08, 0x19, 0x2b];

pub(super) static IQ2_XXS: [u64; 256] = unpacked(0, LEVELS_2, 2);
pub(super) static IQ2_XS: [u64; 512] = unpacked(256, LEVELS_2, 2);
pub(super) static IQ2_S: [u64; 1024] = unpacked(768, LEVELS_2, 2);
pub(super) static IQ3_XXS: [u64; 256] = unpacked(1792, &[0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e], 4);
pub(super) static IQ3_S: [u64; 512] = unpacked(2048, &[1, 3, 5, 7, 9, 11, 13, 15], 4);
/// -1, 0 and 1, times eight plus eight.
pub(super) static IQ1: [u64; 2048] = unpacked(2560, &[0, 8, 16], 2);

/// Rows of indices of `bits` bits as rows of bytes, the first element in the lowest byte.
const fn unpacked<const ROWS: usize>(first: usize, levels: &[u8], bits: usize) -> [u64; ROWS] {
    let mut grid = [0; ROWS];
    let mut row = 0;
    while row < ROWS {
        let at = 2 * (first + row);
        let packed = u16::from_le_bytes([PACKED[at], PACKED[at + 1]]);
        let mut element = 0;
        while element < 16 / bits {
            let level = levels[(packed >> (bits * element)) as usize & ((1 << bits) - 1)];
            grid[row] |= (level as u64) << (8 * element);
            element += 1;
        }
        row += 1;
    }
    grid
}
