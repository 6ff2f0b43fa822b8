//! The state of reading a safetensors header, and its faults.
//!
//! serde's visitors can only fail with a string, so a visitor that meets a broken rule leaves the [`Diagnostic`] here. Offsets are not tracked for
//! valid headers: a fault has the number of its key, and [`KeyOffsets`] finds the key by that number afterwards.

use std::borrow::Cow;

use serde_json::error::Category;

use super::{LENGTH_BYTES, check_name, check_record, place};
use crate::budget::{self, MemoryPace, saturating_usize};
use crate::error::{Diagnostic, Diagnostics, Result};
use crate::format::json;
use crate::format::name_table::duplicates;
use crate::format::{HeaderOptions, escape};
use crate::rules::{self, Rule};
use crate::tensor::{Element, Span, TensorInfo, TensorTable};

/// A guess at the bytes of header for each tensor; real ones take 90 to 130.
const BYTES_PER_TENSOR: usize = 96;

/// The value that is being read, which determines the rule for a wrong type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedToken {
    Header,
    Metadata,
    Entry,
    Dtype,
    Shape,
    Offsets,
    End,
}

impl ExpectedToken {
    /// The rule for a value of the wrong type, and the expected type.
    const fn rule(self) -> (&'static Rule, &'static str) {
        match self {
            Self::Header | Self::End => (rules::SAFETENSORS_JSON, "the header is one JSON object"),
            Self::Metadata => (rules::SAFETENSORS_METADATA, "__metadata__ is an object whose values are strings"),
            Self::Entry => {
                (rules::SAFETENSORS_ENTRY, "an entry is an object with the fields dtype, shape and data_offsets")
            }
            Self::Dtype => (rules::SAFETENSORS_DTYPE, "dtype is a string, such as \"BF16\""),
            Self::Shape => (rules::SAFETENSORS_SHAPE, "shape is a list of non-negative integers"),
            Self::Offsets => (rules::SAFETENSORS_OFFSETS, "data_offsets is a list of two non-negative integers"),
        }
    }
}

/// The state so far.
pub(super) struct HeaderReader<'o> {
    pub(super) options: &'o HeaderOptions,
    data_start: u64,
    table: TensorTable,
    pub(super) pace: MemoryPace,
    pub(super) metadata: Option<Vec<(String, String)>>,
    /// The number of the key `__metadata__`, once it was seen.
    pub(super) metadata_key: Option<usize>,
    pub(super) findings: &'o mut Diagnostics,
    /// How many of the findings have their offsets; the others have the number of their key in its place.
    located: usize,
    /// Every tensor has a place in the data.
    placed: bool,
    pub(super) dims: Vec<u64>,
    unknown_dtypes: Vec<String>,
    /// The number of the current key.
    pub(super) key: usize,
    pub(super) expected: ExpectedToken,
    /// The tensor in which reading failed.
    pub(super) failed: Option<String>,
    /// The rule that was broken there, unless it is JSON's own.
    fault: Option<Diagnostic>,
}

/// The fields of one entry, as far as they exist; the dims are in [`HeaderReader::dims`].
#[derive(Default)]
pub(super) struct TensorEntry<'de> {
    pub(super) dtype: Option<Cow<'de, str>>,
    pub(super) has_shape: bool,
    pub(super) offsets: Option<(u64, u64)>,
    /// A fault of the fields was reported.
    pub(super) reported: bool,
}

impl<'o> HeaderReader<'o> {
    pub(super) fn new(
        text: &str,
        data_start: u64,
        options: &'o HeaderOptions,
        findings: &'o mut Diagnostics,
    ) -> Result<Self> {
        let located = findings.list_mut().len();
        Ok(Self {
            options,
            data_start,
            table: TensorTable::with_capacity(text.len() / BYTES_PER_TENSOR, text.len() / 4)?,
            pace: MemoryPace::default(),
            metadata: None,
            metadata_key: None,
            findings,
            located,
            placed: true,
            dims: Vec::new(),
            unknown_dtypes: Vec::new(),
            key: 0,
            expected: ExpectedToken::Header,
            failed: None,
            fault: None,
        })
    }

    /// Two parsers would disagree about duplicate names.
    pub(super) fn check_duplicates(&mut self, text: &str) -> Result<(), Box<Diagnostic>> {
        let twice = duplicates(self.table.len(), |i| self.table.name(i))?;
        let mut offsets = Vec::new();
        if !twice.is_empty() {
            offsets = budget::list(self.table.len() + 1)?;
            offsets.extend(KeyOffsets::new(text).take(offsets.capacity()));
        }
        for (former, latter) in twice {
            let offset = |tensor| offsets.get(self.key_of_tensor(tensor)).copied().unwrap_or(LENGTH_BYTES);
            let cause = format!("the name is given twice, first at byte {}", offset(former));
            let fault = Diagnostic::new(rules::SAFETENSORS_DUPLICATE_NAME, cause);
            let fault = fault.tensor(self.table.name(latter)).offset(offset(latter));
            self.findings.report(fault)?;
        }
        let metadata = self.metadata.as_deref().unwrap_or_default();
        let name = |i: usize| metadata.get(i).map_or("", |(name, _)| name);
        let of_metadata = self.metadata_key.and_then(|key| key_offset(text, key)).unwrap_or(LENGTH_BYTES);
        for (_, latter) in duplicates(metadata.len(), name)? {
            let cause = format!("the key '{}' is given twice in __metadata__", escape(name(latter)));
            let fault = Diagnostic::new(rules::SAFETENSORS_DUPLICATE_METADATA_KEY, cause);
            self.findings.report(fault.offset(of_metadata))?;
        }
        Ok(())
    }

    /// Gives the findings their offsets.
    pub(super) fn locate(&mut self, text: &str) {
        let mut keys = KeyOffsets::new(text).enumerate();
        let mut at = None;
        for fault in self.findings.list_mut().iter_mut().skip(self.located) {
            let key = saturating_usize(fault.offset.unwrap_or_default());
            if at.is_none_or(|(number, _)| number != key) {
                at = keys.find(|(number, _)| *number == key);
            }
            fault.offset = at.map(|(_, offset)| offset);
        }
    }

    /// The tensors, the metadata, and whether all tensors have a place in the data.
    pub(super) fn into_parts(self) -> (TensorTable, Option<Vec<(String, String)>>, bool) {
        (self.table, self.metadata, self.placed)
    }

    /// The number of the key of a tensor, from its number in the table.
    fn key_of_tensor(&self, tensor: usize) -> usize {
        tensor + usize::from(self.metadata_key.is_some_and(|key| key <= tensor))
    }

    /// Keeps a finding about the current key.
    pub(super) fn note(&mut self, rule: &'static Rule, finding: impl FnOnce(&'static Rule) -> Diagnostic) {
        let key = self.key as u64;
        self.findings.note(rule, |rule| finding(rule).offset(key));
    }

    /// Reports a fault of the current key; an error ends the reading, unless all are collected.
    pub(super) fn report<E: serde::de::Error>(&mut self, fault: Diagnostic) -> Result<(), E> {
        let reported = self.findings.report(fault.offset(self.key as u64));
        reported.map_err(|fault| self.refuse(Diagnostic { offset: None, ..*fault }))
    }

    /// Adds a tensor. One with a fault of its record still has a place in the data, if its offsets are valid.
    pub(super) fn add<E: serde::de::Error>(&mut self, name: &str, record: &TensorEntry<'_>) -> Result<(), E> {
        if let Some(fault) = check_name(name) {
            self.report(fault.tensor(name))?;
        }
        let most = self.options.limits.unknown_dtypes;
        let checked = check_record(name, record, &self.dims, self.data_start).and_then(|info| {
            if let Element::Unknown(dtype) = info.element {
                note_unknown_dtype(&mut self.unknown_dtypes, most, dtype)?;
            }
            Ok(info)
        });
        let pushed = match checked {
            Ok(info) => self.table.push(&info),
            Err(fault) => {
                if !record.reported {
                    self.report(fault.tensor(name))?;
                }
                let place =
                    record.offsets.and_then(|(begin, end)| place(begin, end.checked_sub(begin)?, self.data_start));
                self.placed &= place.is_some();
                let span = place.unwrap_or(Span::EMPTY);
                let element = Element::Unknown("");
                self.table.push(&TensorInfo { name, element, shape: &[], file: 0, span, view: None })
            }
        };
        pushed.map_err(|error| self.refuse(budget::fault_of(error)))
    }

    /// One step of a long loop.
    pub(super) fn step<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.pace.step().map_err(|short| self.refuse(*Box::<Diagnostic>::from(short)))
    }

    pub(super) fn add_metadata<E: serde::de::Error>(
        &mut self,
        key: Cow<'_, str>,
        value: Cow<'_, str>,
    ) -> Result<(), E> {
        let owned = |text: Cow<'_, str>| match text {
            Cow::Owned(text) => Ok(text),
            Cow::Borrowed(text) => budget::text(text),
        };
        let metadata = self.metadata.get_or_insert_default();
        let entry = budget::reserve(metadata, 1).and_then(|()| Ok((owned(key)?, owned(value)?)));
        let added = entry.map(|entry| metadata.push(entry));
        added.map_err(|short| self.refuse(*Box::<Diagnostic>::from(short)))
    }

    /// Leaves the fault where [`HeaderReader::explain`] finds it.
    pub(super) fn refuse<E: serde::de::Error>(&mut self, fault: Diagnostic) -> E {
        self.fault = Some(fault);
        E::custom("refused")
    }

    /// The fault behind an error of the JSON reader.
    pub(super) fn explain(&mut self, text: &str, error: &serde_json::Error) -> Diagnostic {
        let mut fault = self.fault.take().unwrap_or_else(|| self.explain_json(text, error));
        fault.tensor = fault.tensor.or_else(|| self.failed.take());
        fault.offset = fault.offset.or_else(|| key_offset(text, self.key));
        fault
    }

    fn explain_json(&self, text: &str, error: &serde_json::Error) -> Diagnostic {
        let message = json::message(error);
        let (rule, rightly) = self.expected.rule();
        if error.classify() == Category::Data {
            return Diagnostic::new(rule, format!("{message}; {rightly}"));
        }
        let (rule, cause) = if self.expected == ExpectedToken::End {
            (rules::SAFETENSORS_AFTER_JSON, "the header has characters other than spaces after its JSON".to_owned())
        } else {
            (rules::SAFETENSORS_JSON, format!("the header is not valid JSON: {message}"))
        };
        Diagnostic::new(rule, cause).offset(LENGTH_BYTES + json::offset(text, error))
    }
}

/// Adds a dtype to the unknown ones, within their limit: the table searches a list for each of them.
fn note_unknown_dtype(unknown: &mut Vec<String>, most: usize, dtype: &str) -> Result<(), Box<Diagnostic>> {
    if unknown.iter().any(|have| have == dtype) {
        return Ok(());
    }
    if unknown.len() >= most {
        let cause = format!("the file names more than {most} unknown dtypes, here '{}'", escape(dtype));
        return Err(Diagnostic::new(rules::SAFETENSORS_UNKNOWN_DTYPES, cause).into());
    }
    unknown.push(dtype.to_owned());
    Ok(())
}

/// The offset in the file of the key of this number.
fn key_offset(text: &str, key: usize) -> Option<u64> {
    KeyOffsets::new(text).nth(key)
}

/// The offsets in the file of the keys of the header, in JSON that is valid up to there.
struct KeyOffsets<'t> {
    rest: std::iter::Enumerate<std::str::Bytes<'t>>,
    depth: usize,
}

impl<'t> KeyOffsets<'t> {
    fn new(text: &'t str) -> Self {
        Self { rest: text.bytes().enumerate(), depth: 0 }
    }
}

impl Iterator for KeyOffsets<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while let Some((at, byte)) = self.rest.next() {
            match byte {
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b'"' => {
                    let mut escaped = false;
                    self.rest.find(|(_, byte)| {
                        let closing = *byte == b'"' && !escaped;
                        escaped = *byte == b'\\' && !escaped;
                        closing
                    });
                    // No value at this depth is a string, or reading would have failed at it.
                    if self.depth == 1 {
                        return Some(LENGTH_BYTES + at as u64);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
