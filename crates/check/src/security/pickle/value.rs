//! The values of a pickle, as far as they matter to what is called: eight bytes each. Texts, bytes and numbers are known by the place of their
//! instruction and read when they are asked for, and of containers the first values are kept, so that memory does not grow with them.

use std::collections::HashMap;

/// Values of a container that are kept; for a dict, keys and values together.
pub(super) const KEPT: usize = 64;
/// Containers and objects that are kept whole.
const MAX_NODES: usize = 200_000;
/// Maximum number of values in all of them together.
const MAX_ITEMS: usize = 1_500_000;
/// Of those beyond, the last ones, as what an instruction makes is mostly for the next one.
const RECENT: usize = 64;
/// A memo index up to which there is a place for each, used or not.
const DENSE: u64 = 1 << 16;
/// The most values that are remembered.
const MAX_MEMO: usize = 8 << 20;

/// Makes the kinds of values, and the list of them by their numbers.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// What a value is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum ValueKind {
            $($(#[$doc])* $kind,)*
        }

        const KINDS: &[ValueKind] = &[$(ValueKind::$kind,)*];
    };
}

kinds! {
    /// Not known: it was lost, or taken from a stack that had nothing.
    Unknown,
    None,
    True,
    False,
    /// At this place, as are the next ones.
    Int,
    Float,
    Text,
    Bytes,
    ByteArray,
    /// This node, as are the next ones.
    Tuple,
    List,
    Dict,
    Set,
    FrozenSet,
    /// The result of a call, or the object of a reference.
    Object,
    /// The class or function of this number.
    Global,
}

/// A value: its kind, and a place, a node or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StackValue(u64);

impl StackValue {
    pub(super) const UNKNOWN: Self = Self::new(ValueKind::Unknown, 0);
    pub(super) const NONE: Self = Self::new(ValueKind::None, 0);

    pub(super) const fn new(kind: ValueKind, payload: u64) -> Self {
        Self((kind as u64) << 56 | payload & ((1 << 56) - 1))
    }

    pub(super) fn kind(self) -> ValueKind {
        KINDS.get((self.0 >> 56) as usize).copied().unwrap_or(ValueKind::Unknown)
    }

    pub(super) fn payload(self) -> u64 {
        self.0 & ((1 << 56) - 1)
    }
}

/// A container, or an object.
#[derive(Debug, Clone)]
pub(super) struct StackNode {
    /// Of an object: what was called.
    pub(super) callee: StackValue,
    /// Of an object: with what.
    pub(super) arguments: StackValue,
    /// The first values; keys and values in turn in a dict; of an object its states.
    pub(super) items: Vec<StackValue>,
    /// How many values it has got.
    pub(super) count: u64,
    /// The place of a key of a dict that changes what objects are, such as `__setstate__`; none: 0.
    pub(super) special_key: u64,
    /// Whether a key of a dict is what a call returned, so that it may be one of those.
    pub(super) computed_key: bool,
}

impl StackNode {
    pub(super) fn of(items: Vec<StackValue>) -> Self {
        let count = items.len() as u64;
        Self {
            callee: StackValue::UNKNOWN,
            arguments: StackValue::UNKNOWN,
            items,
            count,
            special_key: 0,
            computed_key: false,
        }
    }

    pub(super) fn call(callee: StackValue, arguments: StackValue) -> Self {
        Self { callee, arguments, ..Self::of(Vec::new()) }
    }

    /// Its first values: a list may be longer, and be asked for again and again.
    pub(super) fn first(&self) -> Vec<StackValue> {
        self.items.iter().take(KEPT).copied().collect()
    }

    /// Whether all its values are here.
    pub(super) fn is_whole(&self) -> bool {
        self.items.len() as u64 == self.count
    }
}

/// All containers and objects, each by its number.
#[derive(Default)]
pub(super) struct NodeArena {
    nodes: Vec<StackNode>,
    recent: Vec<(u64, StackNode)>,
    items: usize,
    made: u64,
}

impl NodeArena {
    /// Keeps this, and gives its value.
    pub(super) fn push(&mut self, kind: ValueKind, node: StackNode) -> StackValue {
        let number = self.made;
        self.made += 1;
        if self.nodes.len() as u64 == number && self.nodes.len() < MAX_NODES && self.items < MAX_ITEMS {
            self.items += node.items.len();
            self.nodes.push(node);
        } else {
            let place = (number % RECENT as u64) as usize;
            match self.recent.get_mut(place) {
                Some(old) => *old = (number, node),
                None => self.recent.push((number, node)),
            }
        }
        StackValue::new(kind, number)
    }

    /// The container or object, unless it was lost.
    pub(super) fn get(&self, value: StackValue) -> Option<&StackNode> {
        if !matches!(
            value.kind(),
            ValueKind::Tuple
                | ValueKind::List
                | ValueKind::Dict
                | ValueKind::Set
                | ValueKind::FrozenSet
                | ValueKind::Object
        ) {
            return None;
        }
        let number = value.payload();
        let kept = usize::try_from(number).ok().and_then(|number| self.nodes.get(number));
        kept.or_else(|| self.recent.iter().find(|(recent, _)| *recent == number).map(|(_, node)| node))
    }

    /// Adds to a container or object as many values as are kept of one, at most `most`.
    pub(super) fn extend(&mut self, value: StackValue, values: &[StackValue], most: usize) {
        let left = MAX_ITEMS.saturating_sub(self.items);
        let Some(node) = self.get_mut(value) else { return };
        node.count = node.count.saturating_add(values.len() as u64);
        let taken = most.saturating_sub(node.items.len()).min(values.len()).min(left);
        node.items.extend(values.iter().take(taken));
        self.items += taken;
    }

    pub(super) fn get_mut(&mut self, value: StackValue) -> Option<&mut StackNode> {
        let number = value.payload();
        match usize::try_from(number).ok().filter(|number| *number < self.nodes.len()) {
            Some(number) => self.nodes.get_mut(number),
            None => self.recent.iter_mut().find(|(recent, _)| *recent == number).map(|(_, node)| node),
        }
    }

    /// Forgets the values of a tuple that was the arguments of a call which is known: nothing refers to it again.
    pub(super) fn forget(&mut self, value: StackValue) {
        if value.kind() == ValueKind::Tuple
            && let Some(node) = self.get_mut(value)
        {
            let forgotten = std::mem::take(&mut node.items).len();
            self.items = self.items.saturating_sub(forgotten);
        }
    }
}

/// The values that were remembered, by their index: what is at one that was used twice is the last one.
#[derive(Default)]
pub(super) struct StackMemo {
    /// Most indices run from 0 on.
    dense: Vec<Option<StackValue>>,
    sparse: HashMap<u64, StackValue>,
    used: usize,
}

impl StackMemo {
    pub(super) fn get(&self, index: u64) -> Option<StackValue> {
        match usize::try_from(index).ok().and_then(|index| self.dense.get(index)) {
            Some(value) => *value,
            None => self.sparse.get(&index).copied(),
        }
    }

    /// Remembers a value; false if there are too many.
    #[must_use]
    pub(super) fn put(&mut self, index: u64, value: StackValue) -> bool {
        if self.used >= MAX_MEMO {
            return false;
        }
        let len = self.dense.len() as u64;
        let before = if index < len {
            self.dense.get_mut(index as usize).and_then(|place| place.replace(value))
        } else if index < DENSE || index == len {
            // The sparse part may have this index, too. The number of used entries stays the same, and the dense part continues from here.
            let before = self.sparse.remove(&index);
            self.dense.resize(index as usize, None);
            self.dense.push(Some(value));
            before
        } else {
            self.sparse.insert(index, value)
        };
        self.used += usize::from(before.is_none());
        true
    }

    /// How many indices are used: where MEMOIZE puts the next one.
    pub(super) fn len(&self) -> u64 {
        self.used as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_kind_and_payload() {
        for &kind in KINDS {
            let value = StackValue::new(kind, 1 << 40 | 5);
            assert_eq!((value.kind(), value.payload()), (kind, 1 << 40 | 5));
        }
        assert_eq!(size_of::<StackValue>(), 8);
    }

    #[test]
    fn containers_beyond_the_limit_are_known_for_a_while() {
        let mut arena = NodeArena::default();
        let values: Vec<StackValue> =
            (0..MAX_NODES + 200).map(|_| arena.push(ValueKind::Tuple, StackNode::of(vec![StackValue::NONE]))).collect();
        assert!(arena.get(values[5]).is_some());
        assert!(arena.get(values[MAX_NODES + 1]).is_none(), "lost");
        assert!(arena.get(values[MAX_NODES + 199]).is_some(), "recent");
    }

    #[test]
    fn indices_of_the_memo_are_counted_as_python_counts_them() {
        let mut memo = StackMemo::default();
        assert!(memo.put(0, StackValue::NONE) && memo.put(7, StackValue::NONE) && memo.put(1 << 40, StackValue::NONE));
        assert_eq!(memo.len(), 3);
        assert!(memo.put(7, StackValue::UNKNOWN) && memo.put(3, StackValue::NONE));
        assert_eq!((memo.len(), memo.get(7), memo.get(2)), (4, Some(StackValue::UNKNOWN), None));
        assert_eq!(memo.get(1 << 40), Some(StackValue::NONE));
    }
}
