//! TensorFlow Lite models: the operators that they need beyond those of TensorFlow Lite. Of the flatbuffer only the way to their names is followed.

use max_weights::rules;
use max_weights::text::{escape, listed};
use max_weights::{Diagnostic, Error, Result};

use super::tensorflow::OPERATIONS;
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::report::Depth;
use crate::words;

/// Maximum number of operators that are examined.
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
pub(crate) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let names = match operators(&FlatBuffer(piece.bytes), context) {
        Ok(names) => names,
        Err(TfliteHalt::Failed(error)) => return Err(error),
        Err(TfliteHalt::Broken) => {
            let message = "the list of operators is not where the file says";
            context.report(piece, Diagnostic::new(rules::TFLITE_DAMAGED, message));
            return Ok(());
        }
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
        let listed = listed(names.iter().map(|name| escape(name)));
        context.report(piece, Diagnostic::new(rule, format!("the model needs {whose}: {listed}")));
    }
    if piece.member.is_none() {
        context.file.note.get_or_insert_with(|| "only the operators of such files are examined".into());
    }
    context.looked(Depth::Header);
    Ok(())
}

/// Why the names are not all found.
enum TfliteHalt {
    Failed(Error),
    /// The way to them leads out of the file, or to too many.
    Broken,
}

impl From<Error> for TfliteHalt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type TfliteStep<T> = std::result::Result<T, TfliteHalt>;

/// The names of custom operators, and their offsets.
fn operators(buffer: &FlatBuffer<'_>, context: &FileContext<'_>) -> TfliteStep<Vec<(String, u64)>> {
    let Some(field) = buffer.field(buffer.follow(0)?, OPERATORS)? else { return Ok(Vec::new()) };
    let list = buffer.follow(field)?;
    let count = u32::from_le_bytes(buffer.read(list)?);
    if count as usize > MAX_OPERATORS {
        return Err(TfliteHalt::Broken);
    }
    let mut names = Vec::new();
    for number in 0..u64::from(count) {
        context.check_cancelled()?;
        let operator = buffer.follow(list + 4 + 4 * number)?;
        if buffer.is_custom(operator)? {
            names.push(buffer.name(operator)?);
        }
    }
    Ok(names)
}

/// The bytes of a flatbuffer.
struct FlatBuffer<'a>(&'a dyn RandomRead);

impl FlatBuffer<'_> {
    fn read<const N: usize>(&self, at: u64) -> TfliteStep<[u8; N]> {
        self.0.part(at, N)?.first_chunk().copied().ok_or(TfliteHalt::Broken)
    }

    /// Where the offset there leads.
    fn follow(&self, at: u64) -> TfliteStep<u64> {
        let to = at.checked_add(u32::from_le_bytes(self.read(at)?).into());
        to.filter(|to| *to > at && *to < self.0.len()).ok_or(TfliteHalt::Broken)
    }

    /// Where a field of the table is, by the table of its fields; `None` if it has its default value.
    fn field(&self, table: u64, number: u64) -> TfliteStep<Option<u64>> {
        let back = i32::from_le_bytes(self.read(table)?);
        let fields = table.checked_add_signed(-i64::from(back)).ok_or(TfliteHalt::Broken)?;
        let (len, entry) = (u16::from_le_bytes(self.read(fields)?), 4 + 2 * number);
        if entry + 2 > u64::from(len) {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(self.read(fields.saturating_add(entry))?);
        if offset == 0 { Ok(None) } else { table.checked_add(offset.into()).map(Some).ok_or(TfliteHalt::Broken) }
    }

    /// Whether an operator is one that has a name.
    fn is_custom(&self, operator: u64) -> TfliteStep<bool> {
        let number = match self.field(operator, NUMBER)? {
            Some(at) => i32::from_le_bytes(self.read(at)?),
            None => 0,
        };
        let old = match self.field(operator, OLD_NUMBER)? {
            Some(at) => i32::from(i8::from_le_bytes(self.read(at)?)),
            None => 0,
        };
        // Readers take the larger one.
        Ok(number.max(old) == CUSTOM)
    }

    /// The name of an operator that has one, and where it is.
    fn name(&self, operator: u64) -> TfliteStep<(String, u64)> {
        let Some(at) = self.field(operator, NAME)? else { return Ok((String::new(), operator)) };
        let text = self.follow(at)?;
        let len = u32::from_le_bytes(self.read(text)?).min(MAX_NAME);
        let bytes = self.0.part(text + 4, len as usize)?;
        let is_whole = bytes.len() as u64 == u64::from(len);
        if is_whole { Ok((String::from_utf8_lossy(&bytes).into_owned(), text)) } else { Err(TfliteHalt::Broken) }
    }
}
