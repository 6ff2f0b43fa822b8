//! What a finding shows of values and calls as Python source: short, for people's eyes.

use max_weights::format::pickle::spelling::{
    Call, Form, Instruction, Limited, Part, Values, Writer, big_integer, float, integer_of, put_global, text_of,
};
use max_weights::text::shown;

use super::machine::Machine;
use super::value::{KEPT, Kind, Value};

/// Characters of a call that are shown.
const MOST: usize = 300;
/// Bytes of one literal in it.
const MOST_OF_ONE: usize = 160;

impl Machine<'_, '_> {
    /// A call as Python would write it.
    pub(super) fn source_of_call(&mut self, callee: Value, arguments: Value, keywords: Option<Value>) -> String {
        if !self.found.shows() {
            return String::new();
        }
        Writer::new(self, MOST).call(Self::call_form(callee, arguments, keywords))
    }

    /// A value as Python would write it.
    pub(super) fn source_of(&mut self, value: Value) -> String {
        if !self.found.shows() {
            return String::new();
        }
        Writer::new(self, MOST).value(value)
    }

    fn call_form(callee: Value, arguments: Value, keywords: Option<Value>) -> Call<Value> {
        let arguments = Some((arguments, arguments.kind() == Kind::Tuple));
        Call { callee, arguments, keywords: keywords.map(|keywords| (keywords, keywords.kind() == Kind::Dict)) }
    }

    /// A number, a text or bytes, which are read at their position; an unreadable one only fails where it is used.
    fn put_literal(&mut self, value: Value, out: &mut Limited) {
        let Ok(Some(Instruction { opcode, start, len, .. })) = self.reader.instruction(value.payload()) else {
            return out.put("…");
        };
        let is_cut = len > MOST_OF_ONE as u64;
        let bytes = self.reader.some(start, len.min(MOST_OF_ONE as u64) as usize).unwrap_or_default().to_vec();
        match value.kind() {
            Kind::Int if is_cut => out.put(&format!("<an integer of {len} bytes>")),
            Kind::Int => match integer_of(opcode, &bytes) {
                Ok(value) => out.put(&value.to_string()),
                Err(_) if matches!(opcode, b'I' | b'L') => out.put(&shown(&String::from_utf8_lossy(&bytes))),
                Err(_) => out.put(&big_integer(&bytes)),
            },
            Kind::Float if opcode == b'G' => {
                out.put(&bytes.try_into().map_or("…".to_owned(), |bytes| float(f64::from_be_bytes(bytes))));
            }
            Kind::Float => out.put(&shown(&String::from_utf8_lossy(&bytes))),
            Kind::Bytes | Kind::ByteArray => {
                out.put(if value.kind() == Kind::ByteArray { "bytearray(" } else { "" });
                out.bytes(&bytes);
                out.put(if is_cut { "[…]" } else { "" });
                out.put(if value.kind() == Kind::ByteArray { ")" } else { "" });
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

impl Values for Machine<'_, '_> {
    type Id = Value;

    fn put(&mut self, value: Value, out: &mut Limited) -> Form<Value> {
        let count = self.arena.get(value).map(|node| node.count);
        let (before, after) = match value.kind() {
            Kind::Unknown => ("…", ""),
            Kind::None => ("None", ""),
            Kind::True => ("True", ""),
            Kind::False => ("False", ""),
            Kind::Int | Kind::Float | Kind::Text | Kind::Bytes | Kind::ByteArray => {
                self.put_literal(value, out);
                ("", "")
            }
            Kind::Global => {
                self.put_name(value, out);
                ("", "")
            }
            Kind::Tuple if count == Some(1) => ("(", ",)"),
            Kind::Tuple => ("(", ")"),
            Kind::List => ("[", "]"),
            Kind::Set if count == Some(0) => ("set()", ""),
            Kind::Dict | Kind::Set => ("{", "}"),
            Kind::FrozenSet if count == Some(0) => ("frozenset()", ""),
            Kind::FrozenSet => ("frozenset({", "})"),
            Kind::Object => match self.arena.get(value).map(|node| (node.callee, node.arguments)) {
                Some((Value::NONE, _)) => ("<storage>", ""),
                Some((callee, arguments)) => return Form::Call(Self::call_form(callee, arguments, None)),
                None => ("…", ""),
            },
        };
        out.put(before);
        if after.is_empty() { Form::Written } else { Form::Parts(after) }
    }

    /// The known values of a container.
    fn part(&self, value: Value, number: usize) -> Part<Value> {
        let Some(node) = self.arena.get(value) else { return if number == 0 { Part::Unknown } else { Part::End } };
        let known = node.items.get(..KEPT).unwrap_or(&node.items);
        let part = match value.kind() {
            Kind::Dict => known.as_chunks::<2>().0.get(number).map(|[key, value]| Part::Entry(*key, *value)),
            Kind::Object => known.get(number).map(|state| Part::State(*state)),
            _ => known.get(number).map(|value| Part::Value(*value)),
        };
        let is_whole = node.is_whole() && node.items.len() <= KEPT;
        part.unwrap_or(if is_whole { Part::End } else { Part::Unknown })
    }

    fn put_name(&self, value: Value, out: &mut Limited) {
        let mut value = value;
        while let Some(node) = self.arena.get(value).filter(|_| value.kind() == Kind::Object) {
            // What was called is older than its result.
            value = node.callee;
        }
        match self.names.get(value.payload()).filter(|_| value.kind() == Kind::Global) {
            Some(named) => put_global(&named.module, &named.name, out),
            None => out.put("…"),
        }
    }

    fn keyword(&mut self, value: Value) -> Option<String> {
        (value.kind() == Kind::Text).then(|| self.reader.text(value.payload()).ok().flatten()).flatten()
    }
}
