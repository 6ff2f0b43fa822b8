//! The requests for the parts of a read: neighbours with a small gap are coalesced, and long parts are split.

use std::ops::Range;

use max_weights::source::ReadRange;

/// The lengths of successive requests to a distant server, in fifths of the usual length. Requests that begin together then end at different times,
/// so that some transfer bytes while others wait for an answer. With equal lengths, all would end together, and all wait together.
const LENGTH_STEPS: [u64; 4] = [2, 4, 6, 8];

/// How long requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// In bytes.
    pub(crate) usual: u64,
    /// Whether lengths vary, with the same mean.
    pub(crate) vary: bool,
}

impl Lengths {
    /// Requests of at most `bytes` bytes.
    pub(crate) fn at_most(bytes: u64) -> Self {
        Self { usual: bytes.max(1), vary: false }
    }

    /// The most bytes of the request with this number.
    fn most(self, number: usize) -> u64 {
        if self.vary { (self.usual * LENGTH_STEPS[number % LENGTH_STEPS.len()] / 5).max(1) } else { self.usual }
    }

    /// The end of the next request, for the `rest` of a run of `all` bytes.
    fn next(self, number: usize, rest: u64, all: u64) -> u64 {
        if !self.vary || all <= 2 * self.usual {
            // Pieces of nearly equal length, so that none ends long after the others.
            return all.div_ceil(all.div_ceil(self.usual)).min(rest);
        }
        let next = self.most(number);
        // A short rest is added to this request.
        if rest.saturating_sub(next) < self.most(0) { rest } else { next }
    }
}

/// One request, and the memory that its bytes go to.
pub(crate) struct Request<'a> {
    /// The requested bytes.
    pub(crate) range: Range<u64>,
    /// Their destinations, in order; the bytes of gaps are discarded.
    pub(crate) parts: Vec<ReadRange<'a>>,
}

impl Request<'_> {
    /// Scatters bytes that arrived from `at` on.
    pub(crate) fn fill(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let first = self.parts.partition_point(|part| part.offset + part.bytes.len() as u64 <= at);
        for part in &mut self.parts[first..] {
            if part.offset >= end {
                break;
            }
            let from = part.offset.max(at);
            let to = (part.offset + part.bytes.len() as u64).min(end);
            let (start, len) = ((from - part.offset) as usize, (to - from) as usize);
            part.bytes[start..start + len].copy_from_slice(&bytes[(from - at) as usize..][..len]);
        }
    }
}

impl<'a> Request<'a> {
    /// Whether a part can be added: it must not begin earlier, its gap must be small enough, and the request at most `most` bytes long.
    fn takes(&self, part: &ReadRange<'_>, gap: u64, most: u64) -> bool {
        let end = part.offset + part.bytes.len() as u64;
        part.offset <= self.range.end.saturating_add(gap) && end.max(self.range.end) - self.range.start <= most
    }

    fn add(&mut self, part: ReadRange<'a>) {
        self.range.end = self.range.end.max(part.offset + part.bytes.len() as u64);
        self.parts.push(part);
    }
}

/// The requests for these parts, in file order. Gaps of at most `gap` bytes are read with their neighbours.
pub(crate) fn requests<'a>(mut parts: Vec<ReadRange<'a>>, gap: u64, lengths: Lengths) -> Vec<Request<'a>> {
    parts.retain(|part| !part.bytes.is_empty());
    parts.sort_unstable_by_key(|part| part.offset);
    let mut requests: Vec<Request<'a>> = Vec::new();
    for part in parts {
        let all = part.bytes.len() as u64;
        let mut rest = part;
        loop {
            let len = lengths.next(requests.len(), rest.bytes.len() as u64, all) as usize;
            let (now, later) = rest.bytes.split_at_mut(len);
            let now = ReadRange { offset: rest.offset, bytes: now };
            let is_first = now.bytes.len() + later.len() == all as usize;
            let number = requests.len().saturating_sub(1);
            match requests.last_mut() {
                Some(last) if is_first && last.takes(&now, gap, lengths.most(number)) => last.add(now),
                _ => requests.push(Request { range: now.offset..now.offset + len as u64, parts: vec![now] }),
            }
            if later.is_empty() {
                break;
            }
            rest = ReadRange { offset: rest.offset + len as u64, bytes: later };
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(parts: &[(u64, usize)], gap: u64, lengths: Lengths) -> Vec<Range<u64>> {
        let mut memory: Vec<(u64, Vec<u8>)> = parts.iter().map(|(offset, len)| (*offset, vec![0; *len])).collect();
        let parts = memory.iter_mut().map(|(offset, bytes)| ReadRange { offset: *offset, bytes }).collect();
        requests(parts, gap, lengths).into_iter().map(|request| request.range).collect()
    }

    fn planned(parts: &[(u64, usize)], gap: u64, most: u64) -> Vec<Range<u64>> {
        ranges(parts, gap, Lengths::at_most(most))
    }

    #[test]
    fn neighbours_are_joined_and_long_ones_split() {
        assert_eq!(planned(&[(0, 10), (12, 8), (40, 5)], 4, 100), [0..20, 40..45]);
        assert_eq!(planned(&[(40, 5), (0, 10)], 0, 100), [0..10, 40..45], "in the order of the file");
        assert_eq!(planned(&[(0, 250)], 0, 100), [0..84, 84..168, 168..250]);
        assert_eq!(planned(&[(0, 90), (90, 20)], 10, 100), [0..90, 90..110], "no request is longer");
        assert_eq!(planned(&[(0, 0), (5, 1), (50, 1)], 10, 100), [5..6, 50..51], "nothing asks for nothing");
    }

    #[test]
    fn far_away_requests_differ_in_length_and_are_no_more() {
        let far = Lengths { usual: 100, vary: true };
        let lens = |len: usize| -> Vec<u64> {
            ranges(&[(7, len)], 0, far).into_iter().map(|range| range.end - range.start).collect()
        };
        assert_eq!(lens(1000), [40, 80, 120, 160, 40, 80, 120, 160, 40, 80, 80]);
        assert_eq!(lens(430), [40, 80, 120, 190], "nothing short is left");
        assert_eq!(lens(200), [100, 100], "a short run is fetched at once");
        assert_eq!(lens(50), [50]);
        assert_eq!(
            ranges(&[(0, 30), (32, 8), (40, 70), (110, 20)], 4, far),
            [0..40, 40..110, 110..130],
            "neighbours share a request as long as it has room"
        );
        for len in [250, 999, 10_000, 100_003] {
            let most = (len as u64).div_ceil(far.usual) + 1;
            assert!(lens(len).len() as u64 <= most, "{len}");
            assert_eq!(lens(len).iter().sum::<u64>(), len as u64);
        }
    }

    #[test]
    fn bytes_go_where_they_belong_however_they_arrive() {
        let file: Vec<u8> = (0..=255).collect();
        let both = [Lengths::at_most(60), Lengths { usual: 30, vary: true }];
        for (chunk, lengths) in [1, 3, 7, 64, 256].into_iter().flat_map(|chunk| both.map(|lengths| (chunk, lengths))) {
            let mut memory = [(3_u64, vec![0; 10]), (20, vec![0; 1]), (30, vec![0; 100])];
            let parts = memory.iter_mut().map(|(offset, bytes)| ReadRange { offset: *offset, bytes }).collect();
            for mut request in requests(parts, 16, lengths) {
                let mut at = request.range.start;
                while at < request.range.end {
                    let end = (at + chunk).min(request.range.end);
                    request.fill(at, &file[at as usize..end as usize]);
                    at = end;
                }
            }
            for (offset, bytes) in memory {
                assert_eq!(bytes, file[offset as usize..][..bytes.len()], "{chunk}");
            }
        }
    }
}
