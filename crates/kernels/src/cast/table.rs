//! Conversion by table: a byte (one element of eight bits, or two of four) has 256 values, so its results are computed once, by the
//! oracle, and looked up from then on.

use once_cell::race::OnceBox;

use crate::cast::{CastOptions, scalar};
use crate::dtype::DType;

/// The results for all 256 bytes in order. None if a byte of `from` is not one or two elements, or if the results do not end on a byte.
pub(super) fn table(from: DType, to: DType, options: CastOptions) -> Option<&'static [u8]> {
    const KINDS: usize = DType::COUNT * DType::COUNT * 2;
    // Concurrent threads may compute a table twice, and none waits: not even in a child forked meanwhile.
    static TABLES: [OnceBox<Box<[u8]>>; KINDS] = [const { OnceBox::new() }; KINDS];

    let width = width(from, to)?;
    let index = (from.index() * DType::COUNT + to.index()) * 2 + usize::from(options.saturate);
    let table = TABLES.get(index)?.get_or_init(|| {
        let codes: Vec<u8> = (0..=u8::MAX).collect();
        let mut results = vec![0; codes.len() * width];
        scalar::convert(from, to, &codes, &mut results, options.saturate);
        Box::new(results.into_boxed_slice())
    });
    Some(table)
}

/// Bytes of result for each byte of source.
fn width(from: DType, to: DType) -> Option<usize> {
    let elements = match from.bits() {
        8 => 1,
        4 => 2,
        _ => return None,
    };
    let bits = elements * to.bits();
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Looks every byte of `src` up in `table`.
pub(super) fn lookup(table: &[u8], src: &[u8], dst: &mut [u8]) {
    match table.len() / 256 {
        1 => lookup_width::<1>(table, src, dst),
        2 => lookup_width::<2>(table, src, dst),
        4 => lookup_width::<4>(table, src, dst),
        8 => lookup_width::<8>(table, src, dst),
        16 => lookup_width::<16>(table, src, dst),
        width => {
            for (&byte, result) in src.iter().zip(dst.chunks_exact_mut(width)) {
                result.copy_from_slice(&table[usize::from(byte) * width..][..width]);
            }
        }
    }
}

fn lookup_width<const WIDTH: usize>(table: &[u8], src: &[u8], dst: &mut [u8]) {
    let (table, _) = table.as_chunks::<WIDTH>();
    let (results, _) = dst.as_chunks_mut::<WIDTH>();
    for (&byte, result) in src.iter().zip(results) {
        *result = table[usize::from(byte)];
    }
}
