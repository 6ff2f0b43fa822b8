//! The ranges of addresses that the driver knows: device memory, pinned host memory, registered host memory. Their addresses are one space.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::order::{Clock, Ticket, Use, Uses};
use crate::result::{INVALID_VALUE, Outcome};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Of this device.
    Device(usize),
    /// Host memory that the driver allocated.
    Pinned,
    /// Host memory of the caller.
    Registered,
}

pub(crate) struct Region {
    pub(crate) kind: Kind,
    pub(crate) range: Range<u64>,
    /// The device in whose context it was made.
    pub(crate) owner: usize,
    /// Its asynchronous free was issued: nothing new may use it.
    pub(crate) freed: bool,
    uses: Uses,
}

impl Region {
    pub(crate) fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) fn pending(&self, ticket: Option<&Ticket>, host: &Clock) -> Option<String> {
        self.uses.pending(ticket, host)
    }
}

#[derive(Default)]
pub(crate) struct Regions {
    by_start: BTreeMap<u64, Region>,
    /// Bytes that are pinned now and that were pinned at most, and the same of those that are registered.
    pub(crate) pinned: u64,
    pub(crate) registered: u64,
    pub(crate) most_pinned: u64,
}

impl Regions {
    pub(crate) fn add(&mut self, kind: Kind, range: Range<u64>, owner: usize) {
        match kind {
            Kind::Device(_) => {}
            Kind::Pinned => self.pinned += range.end - range.start,
            Kind::Registered => self.registered += range.end - range.start,
        }
        self.most_pinned = self.most_pinned.max(self.pinned + self.registered);
        self.by_start.insert(range.start, Region { kind, range, owner, freed: false, uses: Uses::default() });
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Region> {
        let region = self.by_start.remove(&start)?;
        match region.kind {
            Kind::Device(_) => {}
            Kind::Pinned => self.pinned -= region.length(),
            Kind::Registered => self.registered -= region.length(),
        }
        Some(region)
    }

    /// The region that begins here.
    pub(crate) fn at(&mut self, start: u64) -> Option<&mut Region> {
        self.by_start.get_mut(&start)
    }

    /// The region that holds all of these bytes.
    pub(crate) fn holding(&self, address: u64, length: u64) -> Option<&Region> {
        let (_, region) = self.by_start.range(..=address).next_back()?;
        (address.checked_add(length)? <= region.range.end && address < region.range.end).then_some(region)
    }

    /// The end of a region that has an address of this range.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> Option<u64> {
        let (_, region) = self.by_start.range(..range.end).next_back()?;
        (region.range.end > range.start).then_some(region.range.end)
    }

    /// Records that an operation uses bytes of a region; the text says with what that is in conflict.
    pub(crate) fn add_use(
        &mut self,
        range: Range<u64>,
        how: Use,
        ticket: &Ticket,
        host: &Clock,
    ) -> Outcome<Option<String>> {
        let start = self.holding(range.start, range.end - range.start).ok_or(INVALID_VALUE)?.range.start;
        let region = self.by_start.get_mut(&start).ok_or(INVALID_VALUE)?;
        if region.freed {
            return Err(INVALID_VALUE);
        }
        Ok(region.uses.add(range, how, ticket, host))
    }

    /// Whether the host knows all uses of these bytes' region to be done.
    pub(crate) fn is_idle(&self, address: u64, length: u64, host: &Clock) -> bool {
        self.holding(address, length).is_some_and(|region| region.pending(None, host).is_none())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.by_start.values()
    }
}
