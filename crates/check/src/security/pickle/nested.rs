//! Pickles in pickles: bytes that something unpickles when the outer one is loaded, also where they have to be decoded first.

use std::io::Read as _;

use max_weights::format::pickle::spelling::{Instruction, text_of};
use max_weights::rules;

use super::found::{Data, Nested};
use super::machine::{PickleStep, ScanMachine};
use super::value::{StackNode, StackValue, ValueKind};
use crate::context::FileContext;
use crate::security::base64;

/// Bytes of a disguised pickle that are decoded.
const MAX_DECODED: usize = 8 << 20;
/// Maximum number of nested disguises.
const MAX_LAYERS: usize = 8;

/// What a class or function does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loader {
    /// It unpickles them.
    Pickle,
    Base64,
    Hex,
    Zlib,
    Gzip,
    /// It hands them on.
    Same,
}

impl Loader {
    /// What this does, if it does something with bytes.
    pub(super) fn of(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            (
                "pickle"
                | "_pickle"
                | "cPickle"
                | "pickle5"
                | "dill"
                | "dill._dill"
                | "cloudpickle"
                | "cloudpickle.cloudpickle"
                | "marshal",
                "loads" | "load",
            )
            | ("pickle" | "_pickle" | "dill", "Unpickler" | "_loads" | "_load")
            | ("torch.storage", "_load_from_bytes")
            | (
                "torch"
                | "torch.serialization"
                | "torch.jit"
                | "joblib"
                | "joblib.numpy_pickle"
                | "numpy"
                | "numpy.lib.npyio"
                | "numpy.lib._npyio_impl",
                "load" | "_load" | "_legacy_load" | "_unpickle",
            )
            | ("pandas" | "pandas.io.pickle", "read_pickle") => Self::Pickle,
            ("base64", "b64decode" | "standard_b64decode" | "urlsafe_b64decode" | "decodebytes" | "decodestring")
            | ("binascii", "a2b_base64") => Self::Base64,
            ("base64", "b16decode") | ("binascii", "unhexlify" | "a2b_hex") => Self::Hex,
            ("zlib", "decompress") => Self::Zlib,
            ("gzip", "decompress") => Self::Gzip,
            ("io" | "_io", "BytesIO") | ("builtins", "bytes" | "bytearray" | "memoryview") | ("_codecs", "encode") => {
                Self::Same
            }
            _ => return None,
        })
    }
}

impl ScanMachine<'_, '_> {
    /// Bytes in a pickle may be another one: its first and its last byte are known.
    pub(super) fn look_at_bytes(&mut self, extent: &Instruction) -> PickleStep<()> {
        if extent.len < 4 || !matches!(self.reader.some(extent.start, 2)?, [0x80, 2..=5]) {
            return Ok(());
        }
        // Reading the last byte here keeps the window at the end of the bytes.
        if self.reader.byte(extent.start + extent.len - 1)? == Some(b'.') {
            let data = Data::ObjectHead { start: extent.start, len: extent.len };
            self.found.nested(Nested { at: self.at, is_loaded: false, data });
        }
        Ok(())
    }

    /// The arguments of something that unpickles.
    pub(super) fn look_at_loaded(&mut self, arguments: StackValue) -> PickleStep<()> {
        let items = self.arena.get(arguments).map(StackNode::first);
        let mut is_known = false;
        for item in items.unwrap_or_default() {
            if let Some(data) = self.bytes_of(item, MAX_LAYERS)? {
                is_known = true;
                let same = |nested: &&mut Nested| match (&nested.data, &data) {
                    (Data::ObjectHead { start, .. }, Data::ObjectHead { start: other, .. }) => start == other,
                    _ => false,
                };
                match self.found.nested.iter_mut().find(same) {
                    Some(nested) => nested.is_loaded = true,
                    None => self.found.nested(Nested { at: self.at, is_loaded: true, data }),
                }
            }
        }
        if !is_known {
            self.report(rules::CODE_UNRESOLVABLE, "what is unpickled shows only when the file is loaded");
        }
        Ok(())
    }

    /// The bytes that a value is, or is decoded to.
    fn bytes_of(&mut self, value: StackValue, layers: usize) -> PickleStep<Option<Data>> {
        let Some(layers) = layers.checked_sub(1) else { return Ok(None) };
        match value.kind() {
            ValueKind::Bytes | ValueKind::ByteArray | ValueKind::Text => {
                let at = value.payload();
                let Some(extent) = self.reader.instruction(at)? else { return Ok(None) };
                if matches!(extent.opcode, b'S' | b'V') || value.kind() == ValueKind::Text {
                    // Each character is a byte.
                    let text = self.long_text(value)?;
                    return Ok(text.and_then(|text| encode(&text, "latin1")).map(Data::Decoded));
                }
                Ok(Some(Data::ObjectHead { start: extent.start, len: extent.len }))
            }
            ValueKind::Object => {
                let Some(node) = self.arena.get(value) else { return Ok(None) };
                let (callee, arguments) = (node.callee, node.arguments);
                let named = if callee.kind() == ValueKind::Global { self.names.get(callee.payload()) } else { None };
                let Some(loader) = named.and_then(|named| Loader::of(&named.module, &named.name)) else {
                    return Ok(None);
                };
                let items = self.arena.get(arguments).map(|node| node.items.clone()).unwrap_or_default();
                let Some(inner) = items.first().copied() else { return Ok(None) };
                if loader == Loader::Same && inner.kind() == ValueKind::Text {
                    return self.encoded(inner, items.get(1).copied());
                }
                let Some(data) = self.bytes_of(inner, layers)? else { return Ok(None) };
                if matches!(loader, Loader::Same | Loader::Pickle) {
                    return Ok(Some(data));
                }
                // What is decoded in vain counts, too: the same bytes may be asked for again and again.
                if !self.found.decodes(data.len().min(MAX_DECODED as u64) as usize) {
                    return Ok(None);
                }
                self.context.map_or(Ok(()), FileContext::check_cancelled)?;
                let bytes = match data {
                    Data::Decoded(bytes) => bytes,
                    Data::ObjectHead { start, len } if len <= MAX_DECODED as u64 => {
                        self.reader.bytes().part(start, len as usize)?
                    }
                    Data::ObjectHead { .. } => return Ok(None),
                };
                let bytes = decoded(loader, &bytes).filter(|bytes| self.found.decodes(bytes.len()));
                Ok(bytes.map(Data::Decoded))
            }
            _ => Ok(None),
        }
    }

    /// A string as the bytes that an encoding makes of it; `None` where that is not known.
    fn encoded(&mut self, text: StackValue, encoding: Option<StackValue>) -> PickleStep<Option<Data>> {
        let encoding = match encoding {
            Some(value) if value.kind() == ValueKind::Text => self.reader.text(value.payload())?.unwrap_or_default(),
            None => "utf-8".to_owned(),
            Some(_) => return Ok(None),
        };
        let text = self.long_text(text)?;
        Ok(text.and_then(|text| encode(&text, &encoding)).map(Data::Decoded))
    }

    /// A string, which may be long.
    fn long_text(&mut self, text: StackValue) -> PickleStep<Option<String>> {
        let extent = self.reader.instruction(text.payload())?.filter(|extent| extent.len <= MAX_DECODED as u64);
        let Some(extent) = extent.filter(|extent| self.found.decodes(extent.len as usize)) else { return Ok(None) };
        Ok(text_of(extent.opcode, &self.reader.bytes().part(extent.start, extent.len as usize)?))
    }
}

fn decoded(loader: Loader, bytes: &[u8]) -> Option<Vec<u8>> {
    match loader {
        Loader::Base64 => Some(base64::decoded(bytes)).filter(|bytes| !bytes.is_empty()),
        Loader::Hex => {
            let digits = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
            let digits: Option<Vec<u8>> =
                digits.map(|byte| char::from(*byte).to_digit(16).map(|digit| digit as u8)).collect();
            let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
            rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
        }
        Loader::Zlib => inflated(flate2::read::ZlibDecoder::new(bytes)),
        Loader::Gzip => inflated(flate2::read::MultiGzDecoder::new(bytes)),
        Loader::Same | Loader::Pickle => Some(bytes.to_vec()),
    }
}

/// The bytes of a string in one of the encodings that pickles are written with.
fn encode(text: &str, encoding: &str) -> Option<Vec<u8>> {
    let latin1 = || text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    match encoding.to_ascii_lowercase().replace(['_', '-'], "").as_str() {
        // Characters beyond a byte have no byte in the first, and are escapes in the last, which no writer of bytes needs.
        "latin1" | "iso88591" | "rawunicodeescape" => latin1(),
        "ascii" => text.is_ascii().then(|| text.as_bytes().to_vec()),
        "utf8" => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

fn inflated(decoder: impl std::io::Read) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    decoder.take(MAX_DECODED as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_encoded_as_it_is_said() {
        assert_eq!(encode("\u{80}a", "latin1").as_deref(), Some(&b"\x80a"[..]));
        assert_eq!(encode("\u{80}a", "UTF-8").as_deref(), Some(&b"\xc2\x80a"[..]));
        assert_eq!(encode("\u{80}a", "ascii"), None);
        assert_eq!(encode("a", "utf-16"), None, "what it would be is not known");
    }

    #[test]
    fn what_disguises_bytes_is_taken_off() {
        assert_eq!(decoded(Loader::Base64, b"gASVDA==\n").as_deref(), Some(&b"\x80\x04\x95\x0c"[..]));
        assert_eq!(decoded(Loader::Hex, b"80 04").as_deref(), Some(&b"\x80\x04"[..]));
        assert_eq!(decoded(Loader::Hex, b"804"), None);
        let zlib = b"\x78\x9c\x4b\x4c\x4a\x06\x00\x02\x4d\x01\x27";
        assert_eq!(decoded(Loader::Zlib, zlib).as_deref(), Some(&b"abc"[..]));
        assert_eq!(decoded(Loader::Zlib, b"no zlib"), None);
    }
}
