//! What happens before what: a vector clock per operation, and from it whether two uses of memory are ordered.
//!
//! Whether an order was *promised* does not depend on which thread was faster in this run, so that a missing event is found each time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Per stream, up to which of its operations everything is known to come before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Clock(BTreeMap<u64, u64>);

impl Clock {
    pub(crate) fn join(&mut self, other: &Clock) {
        for (stream, number) in &other.0 {
            self.reach(*stream, *number);
        }
    }

    pub(crate) fn reach(&mut self, stream: u64, number: u64) {
        let known = self.0.entry(stream).or_default();
        *known = (*known).max(number);
    }

    pub(crate) fn knows(&self, ticket: &Ticket) -> bool {
        self.0.get(&ticket.stream).is_some_and(|known| *known >= ticket.number)
    }
}

/// An operation: the how-manieth of which stream, and what comes before it.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) function: &'static str,
    pub(crate) stream: u64,
    pub(crate) number: u64,
    pub(crate) clock: Arc<Clock>,
}

impl Ticket {
    fn is_ordered_with(&self, other: &Ticket) -> bool {
        self.stream == other.stream || self.clock.knows(other) || other.clock.knows(self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Use {
    fn verb(self) -> &'static str {
        match self {
            Use::Read => "reads",
            Use::Write => "writes",
        }
    }
}

/// How many uses are kept before those are forgotten that the host knows to be done.
const KEPT: usize = 1024;

/// Who last wrote each byte of a region, and who read it since.
#[derive(Default)]
pub(crate) struct Uses {
    /// By start, without overlaps: the end, and who wrote.
    writes: BTreeMap<u64, (u64, Ticket)>,
    reads: Vec<(Range<u64>, Ticket)>,
    limit: usize,
}

impl Uses {
    /// Records a use, and says with which earlier one it is in conflict.
    pub(crate) fn add(&mut self, range: Range<u64>, how: Use, ticket: &Ticket, host: &Clock) -> Option<String> {
        let overlapping: Vec<u64> = self
            .writes
            .range(..range.end)
            .rev()
            .take_while(|(_, write)| write.0 > range.start)
            .map(|(start, _)| *start)
            .collect();
        let other_write =
            overlapping.iter().map(|start| &self.writes[start].1).find(|other| !ticket.is_ordered_with(other));
        let mut conflict = other_write.map(|other| describe(&range, how, ticket, other, Use::Write));
        if how == Use::Write {
            let other_read =
                self.reads.iter().find(|(other, by)| overlap(other, &range) && !ticket.is_ordered_with(by));
            conflict = conflict.or_else(|| other_read.map(|(_, by)| describe(&range, how, ticket, by, Use::Read)));
            for start in overlapping {
                if let Some((end, by)) = self.writes.remove(&start) {
                    if start < range.start {
                        self.writes.insert(start, (range.start, by.clone()));
                    }
                    if end > range.end {
                        self.writes.insert(range.end, (end, by));
                    }
                }
            }
            self.writes.insert(range.start, (range.end, ticket.clone()));
        } else {
            self.reads.push((range, ticket.clone()));
        }
        self.forget_what_is_done(host);
        conflict
    }

    /// A use that is not ordered before the ticket, or where there is none, that the host does not know to be done.
    pub(crate) fn pending(&self, ticket: Option<&Ticket>, host: &Clock) -> Option<String> {
        let pending = |other: &&Ticket| match ticket {
            Some(ticket) => other.stream != ticket.stream && !ticket.clock.knows(other),
            None => !host.knows(other),
        };
        let writes = self.writes.values().map(|write| &write.1);
        let other = writes.chain(self.reads.iter().map(|read| &read.1)).find(pending)?;
        Some(format!("{} (operation {} of stream {:#x})", other.function, other.number, other.stream))
    }

    fn forget_what_is_done(&mut self, host: &Clock) {
        if self.writes.len() + self.reads.len() > self.limit.max(KEPT) {
            self.writes.retain(|_, write| !host.knows(&write.1));
            self.reads.retain(|read| !host.knows(&read.1));
            self.limit = 2 * (self.writes.len() + self.reads.len());
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn describe(range: &Range<u64>, how: Use, ticket: &Ticket, other: &Ticket, other_use: Use) -> String {
    format!(
        "{} on stream {:#x} {} {} bytes at {:#x} that {} on stream {:#x} {}, and nothing orders the two: record an event behind \
         the earlier one and let the other stream wait for it",
        ticket.function,
        ticket.stream,
        how.verb(),
        range.end - range.start,
        range.start,
        other.function,
        other.stream,
        other_use.verb(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(stream: u64, number: u64, known: &[(u64, u64)]) -> Ticket {
        let mut clock = Clock::default();
        for (stream, number) in known {
            clock.reach(*stream, *number);
        }
        clock.reach(stream, number);
        Ticket { function: "test", stream, number, clock: Arc::new(clock) }
    }

    #[test]
    fn only_the_overwritten_part_changes_its_writer() {
        let (mut uses, host) = (Uses::default(), Clock::default());
        assert_eq!(uses.add(0..100, Use::Write, &ticket(1, 1, &[]), &host), None);
        assert_eq!(uses.add(40..60, Use::Write, &ticket(2, 1, &[(1, 1)]), &host), None);
        assert_eq!(uses.add(0..40, Use::Read, &ticket(3, 1, &[(1, 1)]), &host), None);
        assert_eq!(uses.add(60..100, Use::Read, &ticket(3, 2, &[(1, 1)]), &host), None);
        assert!(uses.add(59..61, Use::Read, &ticket(3, 3, &[(1, 1)]), &host).is_some());
    }

    #[test]
    fn writing_what_another_stream_still_reads_is_a_conflict() {
        let (mut uses, host) = (Uses::default(), Clock::default());
        assert_eq!(uses.add(0..100, Use::Read, &ticket(1, 1, &[]), &host), None);
        assert_eq!(uses.add(0..100, Use::Read, &ticket(2, 1, &[]), &host), None);
        assert_eq!(uses.add(100..110, Use::Write, &ticket(2, 2, &[]), &host), None);
        assert!(uses.add(99..110, Use::Write, &ticket(2, 3, &[]), &host).is_some());
    }

    #[test]
    fn what_the_host_knows_to_be_done_is_forgotten() {
        let (mut uses, mut host) = (Uses::default(), Clock::default());
        for number in 0..10_000 {
            host.reach(1, number);
            uses.add(number..number + 1, Use::Write, &ticket(1, number, &[]), &host);
        }
        assert!(uses.writes.len() <= 2 * KEPT, "{}", uses.writes.len());
    }
}
