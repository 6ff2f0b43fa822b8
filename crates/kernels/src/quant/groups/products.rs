//! Rows with an arbitrary group for each column: the value of each code in each group is computed once for a row, and looked up for each column.

use std::ops::Range;

use super::codes::unpack;
use super::plan::{CodeForm, Columns, MatrixPlan};
use super::tile::{Tile, TileRow};
use super::{VALUES, decode};
use crate::simd::Level;

/// Codes of at most four bits.
const CODES: usize = 16;
/// The values of the codes of a group, as f32.
type CodeGroup = [[u8; 4]; CODES];

/// The products of some rows.
pub(super) struct Products {
    level: Level,
    groups: usize,
    values: Vec<CodeGroup>,
}

impl Products {
    /// None if there is no index, or if computing the products would cost more than it saves. The scalar code does without.
    pub(super) fn new(level: Level, plan: &MatrixPlan<'_>) -> Option<Self> {
        let groups = plan.groups.groups;
        let pays = level != Level::Scalar && plan.bits <= 4 && groups <= plan.groups.cols / (2 * CODES);
        (pays && matches!(plan.columns, Columns::Indexed(_))).then(|| Self { level, groups, values: Vec::new() })
    }

    /// Computes those of the rows of a tile.
    pub(super) fn begin(&mut self, tile: &Tile, rows: usize) {
        self.values.resize(rows * self.groups, [[0; 4]; CODES]);
        // The products of a row are themselves a row, of the codes of each group.
        let codes: [u8; VALUES] = std::array::from_fn(|column| (column % CODES) as u8);
        let columns = Columns::Consecutive(CODES);
        for (index, products) in self.values.chunks_exact_mut(self.groups.max(1)).enumerate() {
            let (scales, zeros) = tile.groups_of(index, self.groups);
            let products = products.as_flattened_mut().chunks_mut(VALUES);
            for (first, products) in (0..).step_by(VALUES).zip(products) {
                let row =
                    TileRow { codes: &codes, first, form: CodeForm::Dense, bits: 8, scales, zeros, columns: &columns };
                decode(self.level, &row, first, products);
            }
        }
    }

    /// Decodes columns of a row, the `index`th of the tile.
    pub(super) fn look_up(&self, index: usize, row: &TileRow<'_>, columns: Range<usize>, values: &mut [[u8; 4]]) {
        let Columns::Indexed(groups) = row.columns else { return };
        let products = self.values[index * self.groups..][..self.groups].as_flattened();
        let mut codes = [0; VALUES];
        let codes = &mut codes[..values.len()];
        unpack(row.codes, row.form, row.bits, columns.start - row.first, codes);
        // First the indices: the compiler vectorizes this loop, and the next one has eight independent loads.
        let mut places = [0; VALUES];
        let places = &mut places[..values.len()];
        for ((place, code), group) in places.iter_mut().zip(&*codes).zip(&groups[columns]) {
            *place = *group * CODES as u32 + u32::from(*code);
        }
        let ((eights, rest), (places, last)) = (values.as_chunks_mut::<8>(), places.as_chunks());
        for (eight, places) in eights.iter_mut().zip(places) {
            *eight = places.map(|place| products[place as usize]);
        }
        for (value, place) in rest.iter_mut().zip(last) {
            *value = products[*place as usize];
        }
    }
}
