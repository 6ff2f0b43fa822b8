//! How the tensors lie together in the data: in order, without overlap, each padded to the alignment, and all of them inside the file.

use super::cursor::Step;
use super::findings::Findings;
use super::tensors::{Frame, Record};
use super::types::AMBIGUOUS;
use super::{CONVERT_AGAIN, FETCH_AGAIN};
use crate::error::{Error, Fault};
use crate::format::shown;
use crate::tensor::{Span, checked_elements};

/// What is known about the bytes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// So many.
    Exactly(u64),
    /// The type is not known: it has what there is up to the next tensor.
    Unknown,
    /// The type is known, but the shape does not fit it.
    Misfit,
}

impl Room {
    pub(super) const fn sort_key(self) -> u64 {
        if let Self::Exactly(bytes) = self { bytes } else { u64::MAX }
    }
}

/// Where a tensor begins in the file, and where its record stands in the header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) room: Room,
    pub(super) record: u32,
}

/// Numbers that forks gave to other types are believed only if the sizes agree with the places of the tensors that follow: if one tensor
/// of such a type does not fit, none of its type is taken for what ggml means by the number.
pub(super) fn place_ambiguous<'a>(
    places: &mut [Place],
    record: &impl Fn(&Place) -> Step<Record<'a>>,
    frame: &Frame,
) -> Step<()> {
    let mut fits = [false; AMBIGUOUS.len()];
    let mut misfits = [false; AMBIGUOUS.len()];
    let mut last = None;
    let mut of_type = Vec::new();
    for (i, place) in places.iter().enumerate() {
        let type_id = record(place)?.type_id;
        let Some(which) = AMBIGUOUS.iter().position(|id| *id == type_id) else { continue };
        of_type.push((i, which));
        let flag = |flags: &mut [bool]| flags.get_mut(which).into_iter().for_each(|flag| *flag = true);
        let Room::Exactly(bytes) = place.room else {
            flag(&mut misfits);
            continue;
        };
        match places.get(i + 1) {
            Some(next) => {
                let padded = bytes.checked_next_multiple_of(frame.alignment);
                let room = next.start - place.start;
                flag(if padded == Some(room) { &mut fits } else { &mut misfits });
            }
            None => last = Some((which, bytes > frame.file_len.saturating_sub(place.start))),
        }
    }
    // At the end of the file, too little room is rather a file that was cut short, if others of the type speak for it.
    if let Some((which, true)) = last
        && fits.get(which) == Some(&false)
    {
        misfits.get_mut(which).into_iter().for_each(|flag| *flag = true);
    }
    for (i, which) in of_type {
        if let Some(place) = places.get_mut(i)
            && misfits.get(which) == Some(&true)
            && place.room != Room::Exactly(0)
        {
            place.room = Room::Unknown;
        }
    }
    Ok(())
}

/// The span of each place, if they lie as the format asks.
pub(super) fn check_places<'a>(
    places: &[Place],
    data_start: u64,
    record: &impl Fn(&Place) -> Step<Record<'a>>,
    frame: &Frame,
    findings: &mut Findings,
) -> Step<Vec<Span>> {
    let mut spans = Vec::with_capacity(places.len());
    let mut end = data_start;
    let mut previous = None;
    let mut cut = None;
    for (i, place) in places.iter().enumerate() {
        let start = place.start;
        let next = places.get(i + 1);
        let fault = |rule, cause: String, offset| -> Step<Fault> {
            Ok(Fault::new(rule, cause).help(CONVERT_AGAIN).tensor(record(place)?.name()).offset(offset))
        };
        let overlap = |with: Option<&Place>, how: String| -> Step<Fault> {
            let other = with.map(record).transpose()?.map_or("", |record| record.name());
            fault("gguf.overlap", format!("its data starts {how} tensor '{}'", shown(other)), start)
        };
        let len = match place.room {
            Room::Exactly(bytes) => bytes,
            Room::Unknown | Room::Misfit => {
                let len = next.map_or(frame.file_len, |next| next.start).saturating_sub(start);
                let needed = u64::from(checked_elements(record(place)?.shape()) != Some(0));
                if next.is_some() && len < needed {
                    return Err(overlap(next, "at the same byte as".into())?.into());
                }
                len.max(needed)
            }
        };
        if start < end {
            return Err(overlap(previous, format!("{} bytes before the end of", end - start))?.into());
        }
        let packed = end.checked_next_multiple_of(frame.alignment).unwrap_or(u64::MAX);
        let own_end = start.saturating_add(len);
        if start > packed {
            let gap = start - packed;
            if own_end > frame.file_len {
                let cause = format!(
                    "its data lies at bytes {start} to {own_end} of a file that has {}, and {gap} bytes before it belong to no tensor",
                    frame.file_len
                );
                return Err(fault("gguf.outside", cause, start)?.into());
            }
            let cause = format!("{gap} bytes before its data belong to no tensor; llama.cpp refuses the file");
            let finding = fault("gguf.hole", cause, packed)?;
            findings.note(|| finding);
        }
        if own_end <= frame.file_len {
            spans.push(Span::within(frame.file_len, start, len).map_err(into_fault)?);
        } else if cut.is_none() {
            cut = Some(place);
        }
        end = own_end;
        previous = Some(place);
    }
    if let Some(place) = cut {
        return Err(truncated(frame.file_len, end).tensor(record(place)?.name()).into());
    }
    let padded = end.checked_next_multiple_of(frame.alignment).unwrap_or(u64::MAX);
    if frame.file_len > padded {
        findings.note(|| {
            let cause = format!("{} bytes after the last tensor belong to nothing", frame.file_len - padded);
            Fault::new("gguf.trailing-data", cause).offset(padded)
        });
    }
    Ok(spans)
}

fn truncated(file_len: u64, end: u64) -> Fault {
    let missing = end.saturating_sub(file_len);
    let cause = format!("the file ends {missing} bytes early: expected at least {end} bytes, found {file_len}");
    Fault::new("gguf.truncated", cause).help(FETCH_AGAIN).offset(file_len)
}

fn into_fault(error: Error) -> Fault {
    error.fault().cloned().unwrap_or_default()
}
