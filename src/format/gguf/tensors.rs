//! The records of the tensors, each checked alone; [`super::layout`] checks their layout.

use super::cursor::{CursorStep, HeaderCursor};
use super::layout::{DataRange, check_places, doubt_ambiguous};
use super::record::{GgufTensorRecord, RecordBounds};
use super::types::{AMBIGUOUS, NumberForm, TensorType};
use crate::budget;
use crate::budget::saturating_usize;
use crate::error::{Diagnostic, Diagnostics};
use crate::format::name_table::duplicates;
use crate::format::{HeaderOptions, escape, shown_shape};
use crate::rules::{self, Rule};
use crate::tensor::{Element, Span, TensorInfo, TensorTable, checked_bytes, checked_elements, checked_packed_bytes};

/// Names of this length and longer do not fit into the tensors of older readers.
const OLD_NAME_BYTES: usize = 64;

/// The minimum bytes of a record: a name of one character, no dimensions, type and offset.
pub(super) const fn least_record_bytes(form: NumberForm) -> u64 {
    form.length_bytes() + 1 + 4 + 4 + 8
}

/// Reads all records, and returns the table of tensors in the order of their offsets, and where the data begins.
pub(super) fn read(
    cursor: &mut HeaderCursor<'_>,
    frame: &RecordBounds,
    options: &HeaderOptions,
    findings: &mut Diagnostics,
) -> CursorStep<(TensorTable, u64)> {
    let records = cursor.clone();
    let mut name_bytes = 0;
    // Nothing is kept before all records are available.
    for _ in 0..frame.count {
        name_bytes += GgufTensorRecord::read(cursor)?.name.len();
    }
    let header_end = cursor.position() as u64;
    let Some(data_start) = header_end.checked_next_multiple_of(frame.alignment) else {
        let cause = format!("the data would begin beyond 2^64 bytes: the alignment is {}", frame.alignment);
        return Err(Diagnostic::new(rules::GGUF_ALIGNMENT, cause).offset(header_end).into());
    };
    let mut checker = Checker { frame, data_start, options, findings, unknown_types: Vec::new(), ambiguous: false };
    let mut places = checker.places(records.clone())?;
    let ambiguous = checker.ambiguous;

    let record = |place: &DataRange| GgufTensorRecord::read(&mut records.clone().at(place.record as usize));
    sort(&mut places, &record, findings)?;
    if ambiguous {
        doubt_ambiguous(&mut places, &record, frame)?;
    }
    check_places(&mut places, data_start, &record, frame, findings)?;
    let table = build(&places, name_bytes, &record, frame, findings)?;
    Ok((table, data_start))
}

/// Checks records one by one.
struct Checker<'c> {
    frame: &'c RecordBounds,
    data_start: u64,
    options: &'c HeaderOptions,
    findings: &'c mut Diagnostics,
    unknown_types: Vec<u32>,
    /// True if a number was met that means another type in forks.
    ambiguous: bool,
}

impl Checker<'_> {
    fn places(&mut self, mut cursor: HeaderCursor<'_>) -> CursorStep<Vec<DataRange>> {
        let mut places = budget::list(saturating_usize(self.frame.count))?;
        for _ in 0..self.frame.count {
            let record = GgufTensorRecord::read(&mut cursor)?;
            match self.check(&record) {
                Ok(place) => places.push(place),
                Err(fault) => {
                    self.report(fault, &record)?;
                    let start = self.data_start.checked_add(record.offset);
                    // Where the tensor begins still counts for the others.
                    places
                        .extend(start.map(|start| DataRange { broken: true, ..DataRange::new(start, None, &record) }));
                }
            }
        }
        Ok(places)
    }

    fn report(
        &mut self,
        fault: impl Into<Box<Diagnostic>>,
        record: &GgufTensorRecord<'_>,
    ) -> Result<(), Box<Diagnostic>> {
        let mut fault = fault.into();
        fault.tensor.get_or_insert_with(|| String::from_utf8_lossy(record.name).into_owned());
        self.findings.report(fault)
    }

    /// The location of the tensor of a record, if it breaks no rule that concerns it alone.
    fn check(&mut self, record: &GgufTensorRecord<'_>) -> Result<DataRange, Box<Diagnostic>> {
        self.check_name(record)?;
        let shape = record.shape();
        if checked_elements(shape).is_none() {
            let cause = format!("the shape {} has more than 2^63 - 1 elements", shown_shape(shape));
            return Err(Diagnostic::new(rules::GGUF_SHAPE_OVERFLOW, cause).offset(record.at).into());
        }
        let bytes = self.check_type(record)?;
        if !record.offset.is_multiple_of(self.frame.alignment) {
            let cause =
                format!("the offset {} is not a multiple of the alignment, {}", record.offset, self.frame.alignment);
            self.report(Diagnostic::new(rules::GGUF_OFFSET_UNALIGNED, cause).offset(record.offset_at), record)?;
        }
        let overflow = |what: &str| {
            let cause = format!("{what} ends beyond 2^64 bytes: its offset is {}", record.offset);
            Diagnostic::new(rules::GGUF_SIZE_OVERFLOW, cause).offset(record.offset_at)
        };
        let start = self.data_start.checked_add(record.offset).ok_or_else(|| overflow("it"))?;
        let len = bytes.unwrap_or_default();
        let padded = len.checked_next_multiple_of(self.frame.alignment);
        padded.and_then(|padded| start.checked_add(padded)).ok_or_else(|| overflow("with its padding, it"))?;
        Ok(DataRange::new(start, bytes, record))
    }

    fn check_name(&mut self, record: &GgufTensorRecord<'_>) -> Result<(), Box<Diagnostic>> {
        let at = record.at;
        let Ok(name) = std::str::from_utf8(record.name) else {
            return self.report(Diagnostic::new(rules::GGUF_NAME_UTF8, "the name is not UTF-8").offset(at), record);
        };
        if name.is_empty() {
            return self
                .report(Diagnostic::new(rules::GGUF_NAME_EMPTY, "a tensor has an empty name").offset(at), record);
        }
        if name.contains('\0') {
            self.report(Diagnostic::new(rules::GGUF_NAME_NUL, "the name contains a NUL character").offset(at), record)?;
        }
        if name.len() >= OLD_NAME_BYTES {
            self.findings.note(rules::GGUF_NAME_LONG, |rule| {
                let cause =
                    format!("the name has {} bytes; older readers take {} at most", name.len(), OLD_NAME_BYTES - 1);
                Diagnostic::new(rule, cause).tensor(name).offset(at)
            });
        }
        Ok(())
    }

    /// The bytes of a tensor by its shape and type; `None` if these do not determine them.
    fn check_type(&mut self, record: &GgufTensorRecord<'_>) -> Result<Option<u64>, Diagnostic> {
        let shape = record.shape();
        let overflow = |name: &str| {
            let cause = format!("{} elements of {name} take more than 2^64 bits", shown_shape(shape));
            Diagnostic::new(rules::GGUF_SIZE_OVERFLOW, cause).offset(record.at)
        };
        match TensorType::from_id(record.type_id) {
            TensorType::Plain(dtype) => checked_bytes(shape, dtype).map(Some).ok_or_else(|| overflow(dtype.name())),
            TensorType::Packed(encoding) => {
                let elements = encoding.elements_per_block() as u64;
                let ambiguous = AMBIGUOUS.contains(&record.type_id);
                self.ambiguous |= ambiguous;
                if shape.last().is_some_and(|row| row.is_multiple_of(elements)) {
                    let bytes = checked_packed_bytes(shape, encoding).ok_or_else(|| overflow(encoding.name()))?;
                    return Ok(Some(bytes));
                }
                if ambiguous {
                    return Ok(None);
                }
                let name = encoding.name();
                let row = shape.last().map_or("no rows".into(), |row| format!("rows of {row} elements"));
                let cause = format!("{name} packs {elements} elements into a block, but the tensor has {row}");
                Err(Diagnostic::new(rules::GGUF_BLOCK, cause).offset(record.at))
            }
            TensorType::Removed(_) | TensorType::Fork(..) | TensorType::Unknown => {
                self.count_unknown(record)?;
                Ok(None)
            }
        }
    }

    /// Limits unknown types: the table searches a list for each of their names.
    fn count_unknown(&mut self, record: &GgufTensorRecord<'_>) -> Result<(), Diagnostic> {
        let most = self.options.limits.unknown_dtypes;
        if self.unknown_types.contains(&record.type_id) {
            return Ok(());
        }
        if self.unknown_types.len() >= most {
            let cause = format!("the file has more than {most} unknown types, here {}", record.type_id);
            return Err(Diagnostic::new(rules::GGUF_UNKNOWN_TYPES, cause).offset(record.type_at));
        }
        self.unknown_types.push(record.type_id);
        Ok(())
    }
}

/// Sorts the tensors by their places in the file.
fn sort<'a>(
    places: &mut [DataRange],
    record: &impl Fn(&DataRange) -> CursorStep<GgufTensorRecord<'a>>,
    findings: &mut Diagnostics,
) -> CursorStep<()> {
    let mut pairs = places.iter().zip(places.iter().skip(1));
    if let Some((_, late)) = pairs.find(|(early, late)| early.start > late.start) {
        let name = record(late)?.name();
        findings.note(rules::GGUF_ORDER, |rule| {
            let cause = "the records are not in the order of their offsets; llama.cpp refuses the file";
            Diagnostic::new(rule, cause).tensor(name).offset(late.record.into())
        });
    }
    // The sort takes half as much again.
    budget::probe(size_of_val(places))?;
    places.sort_by_key(DataRange::sort_key);
    Ok(())
}

/// The table of the tensors at `places`.
fn build<'a>(
    places: &[DataRange],
    name_bytes: usize,
    record: &impl Fn(&DataRange) -> CursorStep<GgufTensorRecord<'a>>,
    frame: &RecordBounds,
    findings: &mut Diagnostics,
) -> CursorStep<TensorTable> {
    let into_fault = budget::fault_of;
    let mut table = TensorTable::with_capacity(places.len(), name_bytes).map_err(into_fault)?;
    for place in places {
        let record = record(place)?;
        let span = match Span::within(frame.file_len, place.start, place.len) {
            Err(error) if !findings.failed() => return Err(into_fault(error).into()),
            span => span.unwrap_or(Span::EMPTY),
        };
        let unknown;
        let element = match TensorType::from_id(record.type_id) {
            TensorType::Plain(dtype) => Element::Plain(dtype),
            TensorType::Packed(encoding) if place.sized => Element::Packed(encoding),
            named => {
                unknown = format!("ggml type {}", record.type_id);
                if !place.broken {
                    findings.note(unknown_rule(named), |rule| unknown_type(rule, &record, named, span.len()));
                }
                Element::Unknown(&unknown)
            }
        };
        let info = TensorInfo { name: record.name(), element, shape: record.shape(), file: 0, span, view: None };
        table.push(&info).map_err(into_fault)?;
    }
    for (former, latter) in duplicates(table.len(), |i| table.name(i))? {
        let offset = |i: usize| places.get(i).map_or(0, |place| u64::from(place.record));
        let (first, second) = (offset(former).min(offset(latter)), offset(former).max(offset(latter)));
        // A name that could not be read is empty, and was reported.
        if !(findings.failed() && table.name(latter).is_empty()) {
            let cause = format!("the name is given twice, first at byte {first}");
            let fault = Diagnostic::new(rules::GGUF_DUPLICATE_NAME, cause);
            findings.report(fault.tensor(table.name(latter)).offset(second))?;
        }
    }
    Ok(table)
}

const fn unknown_rule(named: TensorType) -> &'static Rule {
    match named {
        TensorType::Removed(_) => rules::GGUF_REMOVED_TYPE,
        TensorType::Packed(_) | TensorType::Fork(..) => rules::GGUF_FORK_TYPE,
        TensorType::Plain(_) | TensorType::Unknown => rules::GGUF_UNKNOWN_TYPE,
    }
}

/// Why the elements of a tensor can only be had as bytes.
fn unknown_type(rule: &'static Rule, record: &GgufTensorRecord<'_>, named: TensorType, available: u64) -> Diagnostic {
    let (id, name) = (record.type_id, record.name());
    let elements = checked_elements(record.shape()).unwrap_or_default();
    let found = format!("{elements} elements in the {available} bytes up to the next tensor");
    let cause = match named {
        TensorType::Removed(name) => format!("type {id} is {}, which ggml removed", escape(name)),
        TensorType::Fork(name, whose) => format!(
            "type {id} is {name} of {whose} fork of ggml ({found}), whose values are right only for activations that the fork transforms"
        ),
        TensorType::Packed(encoding) => format!(
            "type {id} is {encoding}, {} elements in {} bytes, and that does not fit {found}: it may come from a fork of ggml",
            encoding.elements_per_block(),
            encoding.bytes_per_block()
        ),
        TensorType::Plain(_) | TensorType::Unknown => {
            format!("type {id} is unknown ({found}): it may come from a fork of ggml, or from a newer version")
        }
    };
    Diagnostic::new(rule, cause).tensor(name).offset(record.type_at)
}
