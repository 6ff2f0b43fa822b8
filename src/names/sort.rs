//! The order of names: [`compare`](super::compare), eight bytes at a time.
//!
//! Names share long prefixes, and are scattered in memory, so that comparing them in pairs is most of the cost of opening a file of many tensors.
//! Here a group of names is sorted by the eight bytes after its common prefix, kept as numbers together with their positions. Names whose eight
//! bytes are equal form a group again.

use std::ops::Range;

use super::{SEPARATOR, compare};
use crate::tensor::TensorTable;

/// Groups of at most this many names are compared directly.
const FEW: usize = 12;

/// The positions of the names in sorted order; of equal names, the smaller position first.
pub(super) fn sorted(table: &TensorTable) -> Vec<u32> {
    let name = |position: u32| table.name(position as usize);
    let mut names: Vec<(u64, u32)> = (0..table.len() as u32).map(|position| (0, position)).collect();
    // Groups, each with the length of its common prefix.
    let mut groups: Vec<(Range<usize>, usize)> = vec![(0..names.len(), 0)];
    while let Some((range, from)) = groups.pop() {
        let group = &mut names[range.clone()];
        let from = from + shared(group.iter().map(|(_, position)| rest(name(*position), from)));
        if group.len() <= FEW || group.iter().all(|(_, position)| name(*position).len() <= from) {
            group.sort_unstable_by(|(_, a), (_, b)| compare(name(*a), name(*b)).then(a.cmp(b)));
            continue;
        }
        for (key, position) in &mut *group {
            *key = key_of(rest(name(*position), from));
        }
        group.sort_unstable();
        let mut start = range.start;
        for same in group.chunk_by(|(a, _), (b, _)| a == b) {
            if same.len() > 1 {
                groups.push((start..start + same.len(), from + size_of::<u64>()));
            }
            start += same.len();
        }
    }
    names.into_iter().map(|(_, position)| position).collect()
}

fn rest(name: &str, from: usize) -> &[u8] {
    name.as_bytes().get(from..).unwrap_or_default()
}

/// The length of their common prefix.
fn shared<'a>(mut names: impl Iterator<Item = &'a [u8]>) -> usize {
    let Some(first) = names.next() else { return 0 };
    names.fold(first.len(), |len, name| first[..len].iter().zip(name).take_while(|(a, b)| a == b).count())
}

/// The first eight bytes as a number that is smaller if the name comes first. The separator sorts below every other byte, and the end of a name
/// below the separator. Both become zero: names that differ in nothing else end up in one group, and are compared.
fn key_of(name: &[u8]) -> u64 {
    const DOT: u8 = SEPARATOR as u8;
    let mut bytes = [0; size_of::<u64>()];
    for (rank, byte) in bytes.iter_mut().zip(name) {
        *rank = match *byte {
            DOT => 0,
            below if below < DOT => below + 1,
            above => above,
        };
    }
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::{Element, Span, TensorInfo};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_in_the_order_of_comparing_them(
            names in proptest::collection::vec("(model\\.|m)?(layers\\.){0,3}[a-c.\\-\u{0}é]{0,20}", 0..200),
        ) {
            let mut table = TensorTable::default();
            for name in &names {
                let span = Span::within(0, 0, 0).expect("inside");
                let element = Element::Plain(DType::UInt8);
                table.push(&TensorInfo { name, element, shape: &[0], file: 0, span, view: None }).expect("room");
            }
            let mut expected: Vec<u32> = (0..names.len() as u32).collect();
            expected.sort_by(|a, b| compare(&names[*a as usize], &names[*b as usize]));
            prop_assert_eq!(sorted(&table), expected);
        }
    }
}
