//! Numbers of values, and positions in the lists of a [`Pickled`](super::Pickled).

use std::fmt;
use std::num::NonZeroU32;

/// The number of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(NonZeroU32);

impl ObjectId {
    /// That of the first value.
    pub(super) const FIRST: Self = Self(NonZeroU32::MIN);

    /// The position in the arena.
    #[inline]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    #[inline]
    pub(super) fn from_index(index: usize) -> Option<Self> {
        u32::try_from(index + 1).ok().and_then(NonZeroU32::new).map(Self)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

/// A type for the positions in one of the lists of a [`Pickled`](super::Pickled), so that positions of different lists cannot be confused.
macro_rules! number {
    ($name:ident, $list:literal) => {
        #[doc = concat!("A position in [`", $list, "`](super::Pickled::", $list, ").")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(super) u32);

        impl $name {
            /// The position.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

number!(GlobalId, "globals");
number!(StorageId, "storages");
number!(TensorId, "tensors");
