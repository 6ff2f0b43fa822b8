//! The grids of the IQ encodings, unpacked at compile time from [`grids_data`](super::grids_data) to one byte per element.

use super::grids_data;

/// The levels of the IQ2 grids.
const LEVELS_2: [u8; 3] = [0x08, 0x19, 0x2b];
/// The levels of the IQ3_XXS grid.
const LEVELS_3_XXS: [u8; 8] = [0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e];
/// The levels of the IQ3_S grid.
const LEVELS_3_S: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// The levels of the IQ1 grid: -1, 0 and 1, times eight plus eight.
const LEVELS_1: [u8; 3] = [0, 8, 16];

pub(super) static IQ2_XXS: [u64; 256] = eights(&grids_data::IQ2_XXS, LEVELS_2);
pub(super) static IQ2_XS: [u64; 512] = eights(&grids_data::IQ2_XS, LEVELS_2);
pub(super) static IQ2_S: [u64; 1024] = eights(&grids_data::IQ2_S, LEVELS_2);
pub(super) static IQ3_XXS: [u32; 256] = fours(&grids_data::IQ3_XXS, LEVELS_3_XXS);
pub(super) static IQ3_S: [u32; 512] = fours(&grids_data::IQ3_S, LEVELS_3_S);
pub(super) static IQ1: [u64; 2048] = eights(&grids_data::IQ1, LEVELS_1);

/// Rows of eight two-bit indices as rows of eight bytes, the first element in the lowest byte.
const fn eights<const ROWS: usize>(packed: &[u16; ROWS], levels: [u8; 3]) -> [u64; ROWS] {
    let mut grid = [0; ROWS];
    let mut row = 0;
    while row < ROWS {
        let mut element = 0;
        while element < 8 {
            let level = levels[(packed[row] >> (2 * element) & 3) as usize];
            grid[row] |= (level as u64) << (8 * element);
            element += 1;
        }
        row += 1;
    }
    grid
}

/// Rows of four indices of four bits as rows of four bytes, the first element in the lowest byte.
const fn fours<const ROWS: usize>(packed: &[u16; ROWS], levels: [u8; 8]) -> [u32; ROWS] {
    let mut grid = [0; ROWS];
    let mut row = 0;
    while row < ROWS {
        let mut element = 0;
        while element < 4 {
            let level = levels[(packed[row] >> (4 * element) & 15) as usize];
            grid[row] |= (level as u32) << (8 * element);
            element += 1;
        }
        row += 1;
    }
    grid
}
