//! joblib's files: a pickle that is interrupted by the raw bytes of its arrays. Each follows the instruction that gives its wrapper a state,
//! and the pickle goes on behind it.

use super::Expected;
use super::machine::{End, Machine, Step, broken};
use super::value::{Kind, Node, Value};

/// The class whose state says how many bytes follow.
const WRAPPER: (&str, &str) = ("joblib.numpy_pickle", "NumpyArrayWrapper");
/// More dimensions than an array has.
const MAX_RANK: usize = 64;

/// How many bytes an element of an array has.
enum Element {
    Bytes(u64),
    /// They are objects, and are there as another pickle.
    Objects,
}

impl Machine<'_, '_> {
    /// Goes on behind the bytes of an array, if `target` is joblib's wrapper of one.
    pub(super) fn skip_array(&mut self, target: Value, state: Value) -> Step<()> {
        let callee = self.arena.get(target).map_or(Value::UNKNOWN, |node| node.callee);
        let is_wrapper = callee.kind() == Kind::Global
            && self
                .names
                .get(callee.payload())
                .is_some_and(|named| (named.module.as_str(), named.name.as_str()) == WRAPPER);
        if !is_wrapper || self.is_inner {
            return Ok(());
        }
        // What follows stands outside of the frames.
        self.check_frame();
        let (Some(shape), Some(dtype)) = (self.entry(state, "shape")?, self.entry(state, "dtype")?) else {
            return broken("a joblib array has no shape or no dtype");
        };
        let element = self.element(dtype)?;
        let mut bytes = match element {
            Some(Element::Bytes(bytes)) => bytes,
            Some(Element::Objects) => return self.inner_pickle(),
            None => return broken("a joblib array has an unknown dtype"),
        };
        let sizes =
            self.arena.get(shape).filter(|node| node.is_whole() && node.items.len() <= MAX_RANK).map(Node::first);
        let Some(sizes) = sizes else {
            return broken("a joblib array has an unknown shape");
        };
        for size in sizes {
            let size = if size.kind() == Kind::Int { self.reader.integer(size.payload())? } else { None };
            let product = size.and_then(|size| u64::try_from(size).ok()).and_then(|size| bytes.checked_mul(size));
            let Some(product) = product else { return broken("a joblib array has an impossible shape") };
            bytes = product;
        }
        if self.entry(state, "numpy_array_alignment_bytes")?.is_some_and(|value| value.kind() == Kind::Int) {
            let Some(padding) = self.reader.byte(self.next)? else {
                return broken("it ends before the bytes of an array");
            };
            self.next += 1 + u64::from(padding);
        }
        match self.next.checked_add(bytes).filter(|end| *end <= self.reader.len()) {
            Some(end) => self.next = end,
            None => return broken("it ends before the bytes of an array"),
        }
        Ok(())
    }

    /// The value of a key in a dict.
    fn entry(&mut self, dict: Value, wanted: &str) -> Step<Option<Value>> {
        if dict.kind() != Kind::Dict {
            return Ok(None);
        }
        let items = self.arena.get(dict).map(|node| node.items.clone()).unwrap_or_default();
        let mut found = None;
        for pair in items.as_chunks::<2>().0 {
            let [key, value] = pair;
            if key.kind() == Kind::Text && self.reader.text(key.payload())?.as_deref() == Some(wanted) {
                found = Some(*value);
            }
        }
        Ok(found)
    }

    /// What an element of this dtype is: by the state of a dtype with fields, otherwise by its code.
    fn element(&mut self, dtype: Value) -> Step<Option<Element>> {
        let Some(code) = self.dtype_code(dtype)? else { return Ok(None) };
        let state = self.arena.get(dtype).and_then(|node| node.items.last().copied());
        let state = state.and_then(|state| self.arena.get(state)).map(Node::first).unwrap_or_default();
        let mut numbers = [None; 2];
        for (number, value) in numbers.iter_mut().zip([state.get(5), state.get(7)]) {
            if let Some(value) = value.filter(|value| value.kind() == Kind::Int) {
                *number = self.reader.integer(value.payload())?;
            }
        }
        let [size, flags] = numbers;
        let code = code.trim_start_matches(['|', '<', '>', '=']);
        if code.starts_with('O') || flags.is_some_and(|flags| flags & 1 == 1) {
            return Ok(Some(Element::Objects));
        }
        if let Some(size) = size.and_then(|size| u64::try_from(size).ok()) {
            return Ok(Some(Element::Bytes(size)));
        }
        let digits = code.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let width: Option<u64> = if digits.is_empty() { Some(1) } else { digits.parse().ok() };
        // Texts have four bytes for each character.
        let width = width.and_then(|width| if code.starts_with('U') { width.checked_mul(4) } else { Some(width) });
        Ok(width.map(Element::Bytes))
    }

    /// An array of objects, which is a pickle of its own.
    fn inner_pickle(&mut self) -> Step<()> {
        let mut inner = Machine::new(self.reader.bytes(), Expected::Any, self.context);
        inner.is_inner = true;
        let (_, end) = inner.run(self.next)?;
        self.next = inner.next;
        self.names.merge(inner.names);
        self.found.merge(inner.found);
        match end {
            End::Stop => Ok(()),
            End::Broken(why) => broken(why),
            End::Limit(what) => Err(super::machine::Halt::Limit(what)),
        }
    }
}
