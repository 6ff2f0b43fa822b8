//! How a tensor is read for its statistics.

use crate::error::Result;
use crate::load::TensorScan;
use crate::workers::Interrupt;

/// A tensor that is read.
pub(super) struct TensorReading<'a> {
    pub(super) scan: &'a TensorScan<'a>,
    /// Whether its parts are read on all cores, in any order; otherwise sequentially.
    pub(super) all_cores: bool,
    pub(super) interrupt: Interrupt<'a>,
}

impl TensorReading<'_> {
    /// [`TensorScan::each`].
    pub(super) fn each<S>(
        &self,
        per_part: usize,
        start: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64, &[u8]) -> Result<()> + Sync,
        end: impl Fn(S) + Sync,
    ) -> Result<()> {
        let work = |kept: &mut S, number: u64, part: &[u8], _: Interrupt<'_>| work(kept, number, part);
        self.scan.each(per_part, self.all_cores, self.interrupt, start, work, end)
    }
}
