//! Which requests fetch the parts of a read: neighbours with a small hole between them in one, long ones in several.

use std::ops::Range;

use max_weights::source::Part;

/// One request, and the memory that its bytes go to.
pub(crate) struct Request<'a> {
    /// The bytes that are asked for.
    pub(crate) range: Range<u64>,
    /// Where they go, in order: what lies between is thrown away.
    pub(crate) parts: Vec<Part<'a>>,
}

impl Request<'_> {
    /// Takes bytes that arrived from `at` on.
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

/// The requests for these parts, in the order of the file. A hole of at most `gap` bytes is read with its neighbours, and no request is longer than
/// `most`, but for the first and last of a run, which share what is left.
pub(crate) fn requests<'a>(mut parts: Vec<Part<'a>>, gap: u64, most: u64) -> Vec<Request<'a>> {
    parts.retain(|part| !part.bytes.is_empty());
    parts.sort_unstable_by_key(|part| part.offset);
    let most = most.max(1);
    let mut requests: Vec<Request<'a>> = Vec::new();
    for part in parts {
        let mut rest = part;
        // Pieces of nearly the same length, so that none comes long after the others.
        let pieces = (rest.bytes.len() as u64).div_ceil(most);
        let piece = (rest.bytes.len() as u64).div_ceil(pieces) as usize;
        loop {
            let len = piece.min(rest.bytes.len());
            let (now, later) = rest.bytes.split_at_mut(len);
            let now = Part { offset: rest.offset, bytes: now };
            push(&mut requests, now, gap, most);
            if later.is_empty() {
                break;
            }
            rest = Part { offset: rest.offset + len as u64, bytes: later };
        }
    }
    requests
}

fn push<'a>(requests: &mut Vec<Request<'a>>, part: Part<'a>, gap: u64, most: u64) {
    let end = part.offset + part.bytes.len() as u64;
    if let Some(last) = requests.last_mut() {
        let near = part.offset <= last.range.end.saturating_add(gap);
        if near && end.max(last.range.end) - last.range.start <= most {
            last.range.end = last.range.end.max(end);
            last.parts.push(part);
            return;
        }
    }
    requests.push(Request { range: part.offset..end, parts: vec![part] });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(parts: &[(u64, usize)], gap: u64, most: u64) -> Vec<Range<u64>> {
        let mut memory: Vec<(u64, Vec<u8>)> = parts.iter().map(|(offset, len)| (*offset, vec![0; *len])).collect();
        let parts = memory.iter_mut().map(|(offset, bytes)| Part { offset: *offset, bytes }).collect();
        requests(parts, gap, most).into_iter().map(|request| request.range).collect()
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
    fn bytes_go_where_they_belong_however_they_arrive() {
        let file: Vec<u8> = (0..=255).collect();
        for chunk in [1, 3, 7, 64, 256] {
            let mut memory = [(3_u64, vec![0; 10]), (20, vec![0; 1]), (30, vec![0; 100])];
            let parts = memory.iter_mut().map(|(offset, bytes)| Part { offset: *offset, bytes }).collect();
            for mut request in requests(parts, 16, 60) {
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
