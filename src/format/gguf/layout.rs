//! The layout of the tensors in the data: in order, without overlap, each padded to the alignment, and all of them inside the file.

use super::cursor::CursorStep;
use super::record::{GgufTensorRecord, RecordBounds};
use super::types::AMBIGUOUS;
use crate::budget::saturating_u32;
use crate::error::{Diagnostic, Diagnostics};
use crate::format::escape;
use crate::rules;
use crate::tensor::checked_elements;

/// Where a tensor is in the file, and where its record is in the header.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataRange {
    pub(super) start: u64,
    /// Its bytes; 0 while its size is not known.
    pub(super) len: u64,
    pub(super) record: u32,
    /// False if the type does not determine the size: the tensor extends to the next one.
    pub(super) sized: bool,
    /// A rule that concerns this tensor alone is broken: only its place counts.
    pub(super) broken: bool,
}

impl DataRange {
    /// Of `bytes` bytes, if the record states its size.
    pub(super) fn new(start: u64, bytes: Option<u64>, record: &GgufTensorRecord<'_>) -> Self {
        // The limit on the header keeps every offset in it below 2^32.
        Self {
            start,
            len: bytes.unwrap_or_default(),
            record: saturating_u32(record.at),
            sized: bytes.is_some(),
            broken: false,
        }
    }

    /// Empty tensors come before others at the same byte.
    pub(super) const fn sort_key(&self) -> (u64, bool, u64) {
        (self.start, !self.sized, self.len)
    }
}

/// Forks of ggml gave some type numbers another meaning. ggml's meaning is accepted only if the sizes agree with the offsets of the following
/// tensors. If one tensor of such a type does not fit, all tensors of the type have an unknown size.
pub(super) fn doubt_ambiguous<'a>(
    places: &mut [DataRange],
    record: &impl Fn(&DataRange) -> CursorStep<GgufTensorRecord<'a>>,
    frame: &RecordBounds,
) -> CursorStep<()> {
    for id in AMBIGUOUS {
        let mut of_type = Vec::new();
        for (i, place) in places.iter().enumerate() {
            if record(place)?.type_id == id {
                of_type.push(i);
            }
        }
        if is_doubtful(places, &of_type, frame) {
            for i in of_type {
                if let Some(place) = places.get_mut(i).filter(|place| place.len > 0) {
                    (place.sized, place.len) = (false, 0);
                }
            }
        }
    }
    Ok(())
}

fn is_doubtful(places: &[DataRange], of_type: &[usize], frame: &RecordBounds) -> bool {
    let mut confirmed = false;
    for &i in of_type {
        let Some(place) = places.get(i) else { continue };
        let fits = match places.get(i + 1) {
            Some(next) => place.len.checked_next_multiple_of(frame.alignment) == Some(next.start - place.start),
            // At the end of the file, too little room is rather a file that was cut short, if others of the type speak for it.
            None => confirmed || place.len <= frame.file_len.saturating_sub(place.start),
        };
        if !place.sized || !fits {
            return true;
        }
        confirmed = true;
    }
    false
}

/// Checks that the places follow the format, and extends those of unknown size to the next one.
pub(super) fn check_places<'a>(
    places: &mut [DataRange],
    data_start: u64,
    record: &impl Fn(&DataRange) -> CursorStep<GgufTensorRecord<'a>>,
    frame: &RecordBounds,
    findings: &mut Diagnostics,
) -> CursorStep<()> {
    // If a tensor has no place, gaps are not reported.
    let mut complete = places.len() as u64 == frame.count;
    let mut end = data_start;
    let mut previous = None;
    let mut cut = None;
    let mut rest = places;
    while let Some((place, after)) = rest.split_first_mut() {
        let start = place.start;
        let fault = |place: &DataRange, rule, cause: String, offset| -> CursorStep<Diagnostic> {
            Ok(Diagnostic::new(rule, cause).tensor(record(place)?.name()).offset(offset))
        };
        let overlap = |place: &DataRange, with: Option<DataRange>, how: String| -> CursorStep<Diagnostic> {
            let other = with.as_ref().map(record).transpose()?.map_or("", |record| record.name());
            fault(place, rules::GGUF_OVERLAP, format!("its data starts {how} tensor '{}'", escape(other)), start)
        };
        if !place.sized {
            let next = after.first().copied();
            let len = next.map_or(frame.file_len, |next| next.start).saturating_sub(start);
            let needed = u64::from(!place.broken && checked_elements(record(place)?.shape()) != Some(0));
            if next.is_some() && len < needed {
                findings.report(overlap(place, next, "at the same byte as".into())?)?;
            }
            place.len = len.max(needed);
        }
        if start < end {
            findings.report(overlap(place, previous, format!("{} bytes before the end of", end - start))?)?;
        }
        let packed = end.checked_next_multiple_of(frame.alignment).unwrap_or(u64::MAX);
        let own_end = start.saturating_add(place.len);
        if complete && start > packed {
            let gap = start - packed;
            if own_end > frame.file_len {
                let cause = format!(
                    "its data is at bytes {start} to {own_end} of a file that has {}, and {gap} bytes before it belong to no tensor",
                    frame.file_len
                );
                findings.report(fault(place, rules::GGUF_OUTSIDE, cause, start)?)?;
                (complete, rest) = (false, after);
                continue;
            }
            let cause = format!("{gap} bytes before its data belong to no tensor; llama.cpp refuses the file");
            let finding = fault(place, rules::GGUF_HOLE, cause, packed)?;
            findings.note(finding.rule, |_| finding);
        }
        if own_end > frame.file_len && cut.is_none() {
            cut = Some(*place);
        }
        if own_end >= end {
            (end, previous) = (own_end, Some(*place));
        }
        rest = after;
    }
    if let Some(place) = cut {
        findings.report(truncated(frame.file_len, end).tensor(record(&place)?.name()))?;
    }
    let padded = end.checked_next_multiple_of(frame.alignment).unwrap_or(u64::MAX);
    if complete && frame.file_len > padded {
        findings.note(rules::GGUF_TRAILING_DATA, |rule| {
            let cause = format!("{} bytes after the last tensor belong to nothing", frame.file_len - padded);
            Diagnostic::new(rule, cause).offset(padded)
        });
    }
    Ok(())
}

fn truncated(file_len: u64, end: u64) -> Diagnostic {
    let missing = end.saturating_sub(file_len);
    let cause = format!("the file ends {missing} bytes early: expected at least {end} bytes, found {file_len}");
    Diagnostic::new(rules::GGUF_TRUNCATED, cause).offset(file_len)
}
