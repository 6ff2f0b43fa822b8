//! What a finding shows of values and calls as Python source: short, for people's eyes.

use max_weights::format::pickle::spelling::{
    Instruction, Limited, SourceForm, SourcePart, SourceValues, SourceWriter, UnresolvedCall, big_integer, float,
    integer_of, put_global, text_of,
};
use max_weights::text::escape;

use super::machine::ScanMachine;
use super::value::{KEPT, StackValue, ValueKind};

/// Characters of a call that are shown.
const MAX_CALL_CHARS: usize = 300;
/// Bytes of one literal in it.
const MAX_OF_ONE: usize = 160;

impl ScanMachine<'_, '_> {
    /// A call as Python would write it.
    pub(super) fn source_of_call(
        &mut self,
        callee: StackValue,
        arguments: StackValue,
        keywords: Option<StackValue>,
    ) -> String {
        if !self.found.shows() {
            return String::new();
        }
        SourceWriter::new(self, MAX_CALL_CHARS).call(Self::call_form(callee, arguments, keywords))
    }

    /// A value as Python would write it.
    pub(super) fn source_of(&mut self, value: StackValue) -> String {
        if !self.found.shows() {
            return String::new();
        }
        SourceWriter::new(self, MAX_CALL_CHARS).value(value)
    }

    fn call_form(
        callee: StackValue,
        arguments: StackValue,
        keywords: Option<StackValue>,
    ) -> UnresolvedCall<StackValue> {
        let arguments = Some((arguments, arguments.kind() == ValueKind::Tuple));
        UnresolvedCall {
            callee,
            arguments,
            keywords: keywords.map(|keywords| (keywords, keywords.kind() == ValueKind::Dict)),
        }
    }

    /// A number, a text or bytes, which are read at their position; an unreadable one only fails where it is used.
    fn put_literal(&mut self, value: StackValue, out: &mut Limited) {
        let Ok(Some(Instruction { opcode, start, len, .. })) = self.reader.instruction(value.payload()) else {
            return out.put("…");
        };
        let is_cut = len > MAX_OF_ONE as u64;
        let bytes = self.reader.some(start, len.min(MAX_OF_ONE as u64) as usize).unwrap_or_default().to_vec();
        match value.kind() {
            ValueKind::Int if is_cut => out.put(&format!("<an integer of {len} bytes>")),
            ValueKind::Int => match integer_of(opcode, &bytes) {
                Ok(value) => out.put(&value.to_string()),
                Err(_) if matches!(opcode, b'I' | b'L') => out.put(&escape(&String::from_utf8_lossy(&bytes))),
                Err(_) => out.put(&big_integer(&bytes)),
            },
            ValueKind::Float if opcode == b'G' => {
                out.put(&bytes.try_into().map_or("…".to_owned(), |bytes| float(f64::from_be_bytes(bytes))));
            }
            ValueKind::Float => out.put(&escape(&String::from_utf8_lossy(&bytes))),
            ValueKind::Bytes | ValueKind::ByteArray => {
                out.put(if value.kind() == ValueKind::ByteArray { "bytearray(" } else { "" });
                out.bytes(&bytes);
                out.put(if is_cut { "[…]" } else { "" });
                out.put(if value.kind() == ValueKind::ByteArray { ")" } else { "" });
            }
            _ => {
                // What was cut has lost its quote, and perhaps half a character.
                let text = match opcode {
                    b'S' if is_cut => bytes.get(1..).map(|rest| String::from_utf8_lossy(rest).into_owned()),
                    _ => text_of(opcode, &bytes).or_else(|| Some(String::from_utf8_lossy(&bytes).into_owned())),
                };
                out.text(&text.unwrap_or_default());
                out.put(if is_cut { "[…]" } else { "" });
            }
        }
    }
}

impl SourceValues for ScanMachine<'_, '_> {
    type Id = StackValue;

    fn put(&mut self, value: StackValue, out: &mut Limited) -> SourceForm<StackValue> {
        let count = self.arena.get(value).map(|node| node.count);
        let (before, after) = match value.kind() {
            ValueKind::Unknown => ("…", ""),
            ValueKind::None => ("None", ""),
            ValueKind::True => ("True", ""),
            ValueKind::False => ("False", ""),
            ValueKind::Int | ValueKind::Float | ValueKind::Text | ValueKind::Bytes | ValueKind::ByteArray => {
                self.put_literal(value, out);
                ("", "")
            }
            ValueKind::Global => {
                self.put_name(value, out);
                ("", "")
            }
            ValueKind::Tuple if count == Some(1) => ("(", ",)"),
            ValueKind::Tuple => ("(", ")"),
            ValueKind::List => ("[", "]"),
            ValueKind::Set if count == Some(0) => ("set()", ""),
            ValueKind::Dict | ValueKind::Set => ("{", "}"),
            ValueKind::FrozenSet if count == Some(0) => ("frozenset()", ""),
            ValueKind::FrozenSet => ("frozenset({", "})"),
            ValueKind::Object => match self.arena.get(value).map(|node| (node.callee, node.arguments)) {
                Some((StackValue::NONE, _)) => ("<storage>", ""),
                Some((callee, arguments)) => return SourceForm::Call(Self::call_form(callee, arguments, None)),
                None => ("…", ""),
            },
        };
        out.put(before);
        if after.is_empty() { SourceForm::Written } else { SourceForm::Parts(after) }
    }

    /// The known values of a container.
    fn part(&self, value: StackValue, number: usize) -> SourcePart<StackValue> {
        let Some(node) = self.arena.get(value) else {
            return if number == 0 { SourcePart::Unknown } else { SourcePart::End };
        };
        let known = node.items.get(..KEPT).unwrap_or(&node.items);
        let part = match value.kind() {
            ValueKind::Dict => known.as_chunks::<2>().0.get(number).map(|[key, value]| SourcePart::Entry(*key, *value)),
            ValueKind::Object => known.get(number).map(|state| SourcePart::State(*state)),
            _ => known.get(number).map(|value| SourcePart::Value(*value)),
        };
        let is_whole = node.is_whole() && node.items.len() <= KEPT;
        part.unwrap_or(if is_whole { SourcePart::End } else { SourcePart::Unknown })
    }

    fn put_name(&self, value: StackValue, out: &mut Limited) {
        let mut value = value;
        while let Some(node) = self.arena.get(value).filter(|_| value.kind() == ValueKind::Object) {
            // What was called is older than its result.
            value = node.callee;
        }
        match self.names.get(value.payload()).filter(|_| value.kind() == ValueKind::Global) {
            Some(named) => put_global(&named.module, &named.name, out),
            None => out.put("…"),
        }
    }

    fn keyword(&mut self, value: StackValue) -> Option<String> {
        (value.kind() == ValueKind::Text).then(|| self.reader.text(value.payload()).ok().flatten()).flatten()
    }
}
