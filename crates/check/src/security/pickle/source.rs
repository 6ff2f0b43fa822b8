//! Values and calls as Python would write them, for people's eyes: short, and safe to print.

use max_weights::Result;
use max_weights::format::pickle::spelling::{Limited, float};

use super::literal::{integer_of, text_of};
use super::machine::Machine;
use super::value::{KEPT, Kind, Value};

/// Characters of a call that are shown.
const MOST: usize = 300;
/// Characters of one text or of some bytes in it.
const MOST_OF_ONE: usize = 160;
/// Calls and containers inside one another that are shown.
const DEPTH: usize = 8;
/// The longest integer that is shown by its digits.
const DIGITS: u128 = 1 << 64;

impl Machine<'_, '_> {
    /// A call as Python would write it.
    pub(super) fn source_of_call(
        &mut self,
        callee: Value,
        arguments: Value,
        keywords: Option<Value>,
    ) -> Result<String> {
        if !self.found.shows() {
            return Ok(String::new());
        }
        let mut text = Limited::new(MOST);
        self.put_call(callee, arguments, keywords, &mut text, DEPTH)?;
        Ok(text.finish())
    }

    /// A value as Python would write it.
    pub(super) fn source_of(&mut self, value: Value) -> Result<String> {
        if !self.found.shows() {
            return Ok(String::new());
        }
        let mut text = Limited::new(MOST);
        self.put(value, &mut text, DEPTH)?;
        Ok(text.finish())
    }

    fn put_call(
        &mut self,
        callee: Value,
        arguments: Value,
        keywords: Option<Value>,
        text: &mut Limited,
        depth: usize,
    ) -> Result<()> {
        self.put(callee, text, depth)?;
        text.put("(");
        if arguments.kind() == Kind::Tuple {
            self.put_items(arguments, text, depth)?;
        } else {
            text.put("*");
            self.put(arguments, text, depth)?;
        }
        if let Some(keywords) = keywords {
            text.put(", **");
            self.put(keywords, text, depth)?;
        }
        text.put(")");
        Ok(())
    }

    /// The values of a container with commas between them, and `…` for those that are not known.
    fn put_items(&mut self, value: Value, text: &mut Limited, depth: usize) -> Result<()> {
        let Some(node) = self.arena.get(value) else {
            text.put("…");
            return Ok(());
        };
        let (items, is_whole) = (node.first(), node.is_whole() && node.items.len() <= KEPT);
        let is_dict = value.kind() == Kind::Dict;
        for (place, item) in items.iter().enumerate() {
            let between = if is_dict && place % 2 == 1 { ": " } else { ", " };
            text.put(if place == 0 { "" } else { between });
            self.put(*item, text, depth)?;
            if text.is_full() {
                return Ok(());
            }
        }
        if !is_whole {
            text.put(if items.is_empty() { "…" } else { ", …" });
        }
        Ok(())
    }

    fn put(&mut self, value: Value, text: &mut Limited, depth: usize) -> Result<()> {
        if text.is_full() {
            return Ok(());
        }
        let Some(depth) = depth.checked_sub(1) else {
            text.put("…");
            return Ok(());
        };
        match value.kind() {
            Kind::Unknown => text.put("…"),
            Kind::None => text.put("None"),
            Kind::True => text.put("True"),
            Kind::False => text.put("False"),
            Kind::Int | Kind::Float | Kind::Text | Kind::Bytes | Kind::ByteArray => {
                return self.put_literal(value, text);
            }
            Kind::Tuple => {
                text.put("(");
                self.put_items(value, text, depth)?;
                let one = self.arena.get(value).is_some_and(|node| node.count == 1);
                text.put(if one { ",)" } else { ")" });
            }
            Kind::List => {
                text.put("[");
                self.put_items(value, text, depth)?;
                text.put("]");
            }
            Kind::Dict => {
                text.put("{");
                self.put_items(value, text, depth)?;
                text.put("}");
            }
            Kind::Set | Kind::FrozenSet => {
                text.put(if value.kind() == Kind::Set { "set([" } else { "frozenset([" });
                self.put_items(value, text, depth)?;
                text.put("])");
            }
            Kind::Global => {
                let full = self.names.get(value.payload()).map(super::names::Named::full);
                text.put(&max_weights::text::shown(&full.unwrap_or_else(|| "…".to_owned())));
            }
            Kind::Object => {
                let Some(node) = self.arena.get(value) else {
                    text.put("…");
                    return Ok(());
                };
                let (callee, arguments) = (node.callee, node.arguments);
                if callee == Value::NONE {
                    text.put("<storage>");
                } else {
                    self.put_call(callee, arguments, None, text, depth)?;
                }
            }
        }
        Ok(())
    }

    fn put_literal(&mut self, value: Value, text: &mut Limited) -> Result<()> {
        let at = value.payload();
        let Some(opcode) = self.reader.byte(at)? else { return Ok(()) };
        let Ok(extent) = self.reader.extent(opcode, at)? else { return Ok(()) };
        let is_cut = extent.len > MOST_OF_ONE as u64;
        let bytes = self.reader.some(extent.start, extent.len.min(MOST_OF_ONE as u64) as usize)?.to_vec();
        match value.kind() {
            Kind::Int => match integer_of(opcode, &bytes) {
                Ok(value) if value.unsigned_abs() < DIGITS => text.put(&value.to_string()),
                _ => text.put(&format!("<an integer of {} bytes>", extent.len)),
            },
            Kind::Float if opcode == b'G' => {
                text.put(&bytes.try_into().map_or("…".to_owned(), |bytes| float(f64::from_be_bytes(bytes))));
            }
            Kind::Float => text.put(&max_weights::text::shown(&String::from_utf8_lossy(&bytes))),
            Kind::Bytes | Kind::ByteArray => {
                text.put(if value.kind() == Kind::ByteArray { "bytearray(" } else { "" });
                text.bytes(&bytes);
                text.put(if is_cut { "[…]" } else { "" });
                text.put(if value.kind() == Kind::ByteArray { ")" } else { "" });
            }
            _ => {
                // What was cut has lost its quote, and perhaps half a character.
                let shown = match opcode {
                    b'S' if is_cut => bytes.get(1..).map(|rest| String::from_utf8_lossy(rest).into_owned()),
                    _ => text_of(opcode, &bytes).or_else(|| Some(String::from_utf8_lossy(&bytes).into_owned())),
                };
                text.text(&shown.unwrap_or_default());
                text.put(if is_cut { "[…]" } else { "" });
            }
        }
        Ok(())
    }
}
