//! TensorFlow Lite models: the operators that they need beyond those of TensorFlow Lite. Of the flatbuffer only the way to their names is followed.

use max_weights::rules;
use max_weights::text::{listed, shown};
use max_weights::{Diagnostic, Result};

use super::tensorflow::OPERATIONS;
use crate::bytes::Bytes;
use crate::context::{Context, Piece};
use crate::report::Depth;
use crate::words;

/// So many operators are looked at.
const MAX_OPERATORS: usize = 2_000;
/// The longest name of an operator.
const MAX_NAME: u32 = 1024;
/// The number by which an operator is one that has a name.
const CUSTOM: i32 = 32;
/// Operators with names that TensorFlow Lite brings.
const KNOWN: [&str; 4] = ["AudioSpectrogram", "Mfcc", "NumericVerify", "TFLite_Detection_PostProcess"];
/// How the names of TensorFlow's own operators begin.
const FLEX: &str = "Flex";

/// The numbers of fields: of a model, its list of operators; of an operator, the number of old files, the name, and the number.
const OPERATORS: u64 = 1;
const OLD_NUMBER: u64 = 0;
const NAME: u64 = 1;
const NUMBER: u64 = 3;

/// Looks at the operators of a model.
pub(crate) fn scan(piece: &Piece<'_>, context: &mut Context<'_>) -> Result<()> {
    let buffer = Buffer(piece.bytes);
    let Some(names) = operators(&buffer, context)? else {
        let message = "the list of operators is not where the file says";
        context.report(piece, Diagnostic::new(rules::TFLITE_DAMAGED, message));
        return Ok(());
    };
    let (mut custom, mut flex) = (Vec::new(), Vec::new());
    for (name, at) in names {
        let list = match name.strip_prefix(FLEX) {
            Some(operation) if words::has(OPERATIONS, operation) => {
                let message = format!("the model has the TensorFlow operation {operation}");
                context.report(piece, Diagnostic::new(rules::TENSORFLOW_OPERATION, message).offset(at));
                continue;
            }
            Some(_) => &mut flex,
            None if KNOWN.contains(&name.as_str()) => continue,
            None => &mut custom,
        };
        if !list.contains(&name) {
            list.push(name);
        }
    }
    for (names, rule, whose) in [
        (custom, rules::TFLITE_CUSTOM, "operators that are not TensorFlow Lite's"),
        (flex, rules::TFLITE_FLEX, "operators of TensorFlow"),
    ] {
        if names.is_empty() {
            continue;
        }
        let listed = listed(names.iter().map(|name| shown(name)));
        context.report(piece, Diagnostic::new(rule, format!("the model needs {whose}: {listed}")));
    }
    if piece.member.is_none() {
        context.file.note.get_or_insert_with(|| "only the operators of such files are examined".into());
    }
    context.looked(Depth::Header);
    Ok(())
}

/// The names of the operators that have one, and where those stand; `None` if the way to them is broken.
fn operators(buffer: &Buffer<'_>, context: &Context<'_>) -> Result<Option<Vec<(String, u64)>>> {
    let Some(root) = buffer.follow(0)? else { return Ok(None) };
    let Some(field) = buffer.field(root, OPERATORS)? else { return Ok(None) };
    let Field::At(field) = field else { return Ok(Some(Vec::new())) };
    let Some(list) = buffer.follow(field)? else { return Ok(None) };
    let Some(count) = buffer.u32(list)? else { return Ok(None) };
    if count as usize > MAX_OPERATORS {
        return Ok(None);
    }
    let mut names = Vec::new();
    for number in 0..u64::from(count) {
        context.go_on()?;
        let Some(operator) = buffer.follow(list + 4 + 4 * number)? else { return Ok(None) };
        match buffer.is_custom(operator)? {
            Some(false) => {}
            Some(true) => match buffer.name(operator)? {
                Some(name) => names.push(name),
                None => return Ok(None),
            },
            None => return Ok(None),
        }
    }
    Ok(Some(names))
}

/// A field of a table.
enum Field {
    /// It has the value that it has where nothing is said.
    Default,
    /// Where it is.
    At(u64),
}

/// The bytes of a flatbuffer. What leads out of them is none.
struct Buffer<'a>(&'a dyn Bytes);

impl Buffer<'_> {
    fn read<const N: usize>(&self, at: u64) -> Result<Option<[u8; N]>> {
        Ok(self.0.part(at, N)?.first_chunk().copied())
    }

    fn u32(&self, at: u64) -> Result<Option<u32>> {
        Ok(self.read(at)?.map(u32::from_le_bytes))
    }

    /// Where the offset there leads.
    fn follow(&self, at: u64) -> Result<Option<u64>> {
        Ok(self.u32(at)?.and_then(|offset| at.checked_add(offset.into())).filter(|to| *to > at && *to < self.0.len()))
    }

    /// A field of the table there, by the table of its fields.
    fn field(&self, table: u64, number: u64) -> Result<Option<Field>> {
        let Some(back) = self.read(table)?.map(i32::from_le_bytes) else { return Ok(None) };
        let Some(fields) = table.checked_add_signed(-i64::from(back)) else { return Ok(None) };
        let Some(len) = self.read(fields)?.map(u16::from_le_bytes) else { return Ok(None) };
        let entry = 4 + 2 * number;
        if entry + 2 > u64::from(len) {
            return Ok(Some(Field::Default));
        }
        let Some(offset) = self.read(fields.saturating_add(entry))?.map(u16::from_le_bytes) else { return Ok(None) };
        let at = table.checked_add(offset.into());
        Ok(if offset == 0 { Some(Field::Default) } else { at.map(Field::At) })
    }

    /// Whether an operator is one that has a name.
    fn is_custom(&self, operator: u64) -> Result<Option<bool>> {
        let number = match self.field(operator, NUMBER)? {
            None => return Ok(None),
            Some(Field::Default) => Some(0),
            Some(Field::At(at)) => self.read(at)?.map(i32::from_le_bytes),
        };
        let old = match self.field(operator, OLD_NUMBER)? {
            None => return Ok(None),
            Some(Field::Default) => Some(0),
            Some(Field::At(at)) => self.read(at)?.map(|byte| i32::from(i8::from_le_bytes(byte))),
        };
        // Readers take the larger one.
        Ok(number.zip(old).map(|(number, old)| number.max(old) == CUSTOM))
    }

    /// The name of an operator that has one, and where it is.
    fn name(&self, operator: u64) -> Result<Option<(String, u64)>> {
        let at = match self.field(operator, NAME)? {
            None => return Ok(None),
            Some(Field::Default) => return Ok(Some((String::new(), operator))),
            Some(Field::At(at)) => at,
        };
        let Some(text) = self.follow(at)? else { return Ok(None) };
        let Some(len) = self.u32(text)? else { return Ok(None) };
        let bytes = self.0.part(text + 4, len.min(MAX_NAME) as usize)?;
        let is_whole = bytes.len() as u64 == u64::from(len.min(MAX_NAME));
        Ok(is_whole.then(|| (String::from_utf8_lossy(&bytes).into_owned(), text)))
    }
}
