//! joblib's files: a pickle that is interrupted by the raw bytes of its arrays. Each array follows the instruction that sets the state of its
//! wrapper, and the pickle continues after it.
//!
//! The wrapper of a plain array does no more than read its bytes, and needs no trust; anything that joblib does not write keeps it a class of a
//! library. To Python's own reader the bytes of an array are instructions: [`super::stream`] runs through them, too.

use super::PickleOrigin;
use super::machine::{PickleEnd, PickleStep, ScanMachine, broken};
use super::value::{StackNode, StackValue, ValueKind};

/// The class whose state says how many bytes follow.
pub(super) const WRAPPER: (&str, &str) = ("joblib.numpy_pickle", "NumpyArrayWrapper");
/// What it has as attributes; any other could take the place of one of its methods.
const ATTRIBUTES: [&str; 6] = ["subclass", "shape", "order", "dtype", "allow_mmap", "numpy_array_alignment_bytes"];
/// Letters of dtypes that are followed by their width.
const WIDE: &str = "iufcbSUMm";
/// Those whose width their state says.
const FLEXIBLE: &str = "SUV";
/// More dimensions than an array has.
const MAX_RANK: usize = 64;

/// How many bytes an element of an array has.
enum ElementSize {
    Bytes(u64),
    /// They are objects, and are there as another pickle.
    Objects,
}

impl ScanMachine<'_, '_> {
    /// Skips the bytes of an array, if `target` is joblib's wrapper of one.
    pub(super) fn skip_array(&mut self, target: StackValue, state: StackValue) -> PickleStep<()> {
        let callee = self.arena.get(target).map_or(StackValue::UNKNOWN, |node| node.callee);
        let is_wrapper = callee.kind() == ValueKind::Global
            && self
                .names
                .get(callee.payload())
                .is_some_and(|named| (named.module.as_str(), named.name.as_str()) == WRAPPER);
        if !is_wrapper || self.is_inner || self.expected != PickleOrigin::Any {
            return Ok(());
        }
        self.found.arrays.get_or_insert((self.next, self.found.calls, self.found.imports));
        // The bytes that follow are outside of the frames.
        self.check_frame();
        let is_plain = self.frame_end.is_none() && self.is_plain_array(target, state)?;
        self.found.plain_arrays += u64::from(is_plain);
        let (Some(shape), Some(dtype)) = (self.entry(state, "shape")?, self.entry(state, "dtype")?) else {
            return broken("a joblib array has no shape or no dtype");
        };
        let element = self.element(dtype)?;
        let mut bytes = match element {
            Some(ElementSize::Bytes(bytes)) => bytes,
            Some(ElementSize::Objects) => return self.inner_pickle(),
            None => return broken("a joblib array has an unknown dtype"),
        };
        let sizes =
            self.arena.get(shape).filter(|node| node.is_whole() && node.items.len() <= MAX_RANK).map(StackNode::first);
        let Some(sizes) = sizes else {
            return broken("a joblib array has an unknown shape");
        };
        for size in sizes {
            let size = if size.kind() == ValueKind::Int { self.reader.integer(size.payload())? } else { None };
            let product = size.and_then(|size| u64::try_from(size).ok()).and_then(|size| bytes.checked_mul(size));
            let Some(product) = product else { return broken("a joblib array has an impossible shape") };
            bytes = product;
        }
        if self.entry(state, "numpy_array_alignment_bytes")?.is_some_and(|value| value.kind() == ValueKind::Int) {
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
    fn entry(&mut self, dict: StackValue, requested: &str) -> PickleStep<Option<StackValue>> {
        if dict.kind() != ValueKind::Dict {
            return Ok(None);
        }
        let items = self.arena.get(dict).map(|node| node.items.clone()).unwrap_or_default();
        let mut found = None;
        for pair in items.as_chunks::<2>().0 {
            let [key, value] = pair;
            if key.kind() == ValueKind::Text && self.reader.text(key.payload())?.as_deref() == Some(requested) {
                found = Some(*value);
            }
        }
        Ok(found)
    }

    /// Whether a wrapper is as joblib writes it: of numpy's own arrays, with the usual attributes and an ordinary dtype.
    fn is_plain_array(&mut self, target: StackValue, state: StackValue) -> PickleStep<bool> {
        let is_new = self.arena.get(target).is_some_and(|node| node.items.len() == 1);
        let arguments = self.arena.get(target).map_or(StackValue::UNKNOWN, |node| node.arguments);
        let has_none =
            arguments.kind() == ValueKind::Tuple && self.arena.get(arguments).is_some_and(|node| node.count == 0);
        let pairs = match self.arena.get(state).filter(|node| node.is_whole() && state.kind() == ValueKind::Dict) {
            Some(node) if is_new && has_none => node.items.clone(),
            _ => return Ok(false),
        };
        for [key, value] in pairs.as_chunks::<2>().0 {
            let key = if key.kind() == ValueKind::Text { self.reader.text(key.payload())? } else { None };
            let fits = match key.as_deref() {
                Some("subclass") => self.is_global(*value, "ndarray"),
                Some("shape") => value.kind() == ValueKind::Tuple,
                Some("order") => value.kind() == ValueKind::Text,
                Some("dtype") => self.is_plain_dtype(*value)?,
                Some("allow_mmap") => matches!(value.kind(), ValueKind::True | ValueKind::False),
                Some("numpy_array_alignment_bytes") => matches!(value.kind(), ValueKind::Int | ValueKind::None),
                _ => false,
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(pairs.len() <= 2 * ATTRIBUTES.len())
    }

    /// Whether this is numpy's class of that name.
    fn is_global(&self, value: StackValue, name: &str) -> bool {
        let named = if value.kind() == ValueKind::Global { self.names.get(value.payload()) } else { None };
        named.is_some_and(|named| (named.module.as_str(), named.name.as_str()) == ("numpy", name))
    }

    /// Whether a dtype has a size that is known for sure: no fields, and no size that numpy would not take.
    fn is_plain_dtype(&mut self, dtype: StackValue) -> PickleStep<bool> {
        let (callee, states) = match self.arena.get(dtype) {
            Some(node) if dtype.kind() == ValueKind::Object && node.is_whole() => (node.callee, node.items.clone()),
            _ => return Ok(false),
        };
        let code = self.dtype_code(dtype)?.unwrap_or_default();
        let code = code.trim_start_matches(['|', '<', '>', '=']);
        let (letter, width) = code.split_at_checked(1).unwrap_or_default();
        // The unit of a time follows its width.
        let width = width.split_once('[').map_or(width, |(width, _)| width);
        let is_known = letter == "O" && matches!(width, "" | "8")
            || (WIDE.contains(letter) || letter == "V")
                && !width.is_empty()
                && width.bytes().all(|b| b.is_ascii_digit());
        let state = match states[..] {
            [] => Vec::new(),
            [state] => self.arena.get(state).map(StackNode::first).unwrap_or_default(),
            _ => return Ok(false),
        };
        // Version, order of bytes, base, names, fields; then size, alignment and flags.
        let has_parts = state.get(2..5).is_some_and(|parts| parts.iter().any(|part| part.kind() != ValueKind::None));
        let size = match state.get(5) {
            Some(size) if size.kind() == ValueKind::Int => self.reader.integer(size.payload())?,
            None => Some(-1),
            Some(_) => None,
        };
        let fits = size.is_some_and(|size| size == -1 || size >= 0 && FLEXIBLE.contains(letter));
        let flags = match state.get(7) {
            Some(flags) if flags.kind() == ValueKind::Int => self.reader.integer(flags.payload())?.unwrap_or(-1),
            _ => i128::from(letter == "O"),
        };
        // numpy ignores some states: only a dtype whose letter says objects, too, is certain to be one.
        let agrees = matches!(state.len(), 0 | 8 | 9) && (flags & 1 == 1) == (letter == "O");
        let is_state = state.get(7).is_none_or(|flags| flags.kind() == ValueKind::Int);
        Ok(self.is_global(callee, "dtype")
            && is_known
            && !letter.is_empty()
            && !has_parts
            && fits
            && agrees
            && is_state)
    }

    /// What an element of this dtype is: by the state of a dtype with fields, otherwise by its code.
    fn element(&mut self, dtype: StackValue) -> PickleStep<Option<ElementSize>> {
        let Some(code) = self.dtype_code(dtype)? else { return Ok(None) };
        let state = self.arena.get(dtype).and_then(|node| node.items.last().copied());
        let state = state.and_then(|state| self.arena.get(state)).map(StackNode::first).unwrap_or_default();
        let mut numbers = [None; 2];
        for (number, value) in numbers.iter_mut().zip([state.get(5), state.get(7)]) {
            if let Some(value) = value.filter(|value| value.kind() == ValueKind::Int) {
                *number = self.reader.integer(value.payload())?;
            }
        }
        let [size, flags] = numbers;
        let code = code.trim_start_matches(['|', '<', '>', '=']);
        if code.starts_with('O') || flags.is_some_and(|flags| flags & 1 == 1) {
            return Ok(Some(ElementSize::Objects));
        }
        if let Some(size) = size.and_then(|size| u64::try_from(size).ok()) {
            return Ok(Some(ElementSize::Bytes(size)));
        }
        let digits = code.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        // The unit of a time follows its width.
        let digits = digits.split_once('[').map_or(digits, |(width, _)| width);
        let width: Option<u64> = if digits.is_empty() { Some(1) } else { digits.parse().ok() };
        // Texts have four bytes for each character.
        let width = width.and_then(|width| if code.starts_with('U') { width.checked_mul(4) } else { Some(width) });
        Ok(width.map(ElementSize::Bytes))
    }

    /// An array of objects, which is a separate pickle.
    fn inner_pickle(&mut self) -> PickleStep<()> {
        let mut inner = ScanMachine::new(self.reader.bytes(), PickleOrigin::Any, self.context);
        inner.is_inner = true;
        let (_, end) = inner.run(self.next)?;
        self.next = inner.next;
        self.names.merge(inner.names);
        self.found.merge(inner.found);
        match end {
            PickleEnd::Stop => Ok(()),
            PickleEnd::Broken(why) => broken(why),
            PickleEnd::Limit(what) => Err(super::machine::PickleHalt::Limit(what)),
        }
    }
}
