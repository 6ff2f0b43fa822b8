//! The machine: one instruction after the other, as every reader takes it, and nothing is called. What calls and changes do is in `effects`.
//!
//! Python has three readers, and they differ: what one of them takes is taken here, and that the others do not is a finding.

use std::borrow::Cow;

use max_weights::format::pickle::spelling::{Instruction, NoInstruction, PickleBytes as _, decode};
use max_weights::rules;
use max_weights::{Error, rules::Rule};

use super::PickleOrigin;
use super::found::PickleFindings;
use super::harmless;
use super::names::PickleNames;
use super::reader::PickleReader;
use super::value::{KEPT, NodeArena, StackMemo, StackNode, StackValue, ValueKind};
use crate::bytes::RandomRead;
use crate::context::FileContext;

/// The most values on the stack.
const MAX_STACK: usize = 16 << 20;
/// The most open marks.
const MAX_MARKS: usize = 4 << 20;
/// Instructions between two checks for cancellation.
const PACE: u64 = 1 << 16;
/// The highest protocol.
const HIGHEST_PROTOCOL: u8 = 5;
/// An index of the memo for which the reader in C would need more memory than machines have.
const HUGE_INDEX: u64 = 1 << 28;

/// Methods that the instructions which fill containers call.
const FILLING: [&str; 3] = ["append", "extend", "add"];

/// Why a pickle ends before its end.
pub(super) enum PickleHalt {
    /// The work is to end, or the bytes cannot be read.
    Failed(Error),
    /// No reader continues from here.
    Broken(Cow<'static, str>),
    /// It has more of something than is looked at.
    Limit(&'static str),
}

impl From<Error> for PickleHalt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) type PickleStep<T> = std::result::Result<T, PickleHalt>;

/// How a pickle ended.
pub(super) enum PickleEnd {
    /// By its last instruction.
    Stop,
    /// At a break.
    Broken(Cow<'static, str>),
    /// At a limit.
    Limit(&'static str),
}

/// Alternating keys and values for a dict: the first ones, their number, and what [`StackNode`] records about keys.
pub(super) struct Pairs {
    pub(super) first: Vec<StackValue>,
    pub(super) count: u64,
    pub(super) special_key: u64,
    pub(super) computed_key: bool,
}

/// Keys that any of the dicts has.
#[derive(Default)]
pub(super) struct DictKeys {
    /// One that changes what objects are, or that a call made.
    pub(super) special: bool,
    /// The name of a method that fills containers.
    pub(super) filling: bool,
}

pub(super) struct ScanMachine<'a, 'c> {
    pub(super) reader: PickleReader<'a, 'c>,
    pub(super) context: Option<&'c FileContext<'c>>,
    pub(super) expected: PickleOrigin,
    pub(super) arena: NodeArena,
    pub(super) names: PickleNames,
    pub(super) found: PickleFindings,
    stack: Vec<StackValue>,
    /// The heights of the stack at the open marks.
    marks: Vec<u32>,
    memo: StackMemo,
    /// As the pickle says.
    pub(super) protocol: u8,
    /// Where the instruction at hand begins…
    pub(super) at: u64,
    /// … and its argument.
    pub(super) instruction: Instruction,
    /// The next one.
    pub(super) next: u64,
    pub(super) frame_end: Option<u64>,
    /// Whether what is not on the stack is taken for something unknown: where it was not begun at its beginning.
    pub(super) loose: bool,
    /// Whether bytes of joblib's arrays are not skipped: in the pickle of one, and for Python's own reader.
    pub(super) is_inner: bool,
    /// Whether more bytes follow those that are at hand.
    pub(super) goes_on: bool,
    /// What keys any dict has.
    pub(super) keys: DictKeys,
    /// How deep in calls that call what they are given.
    pub(super) indirect: usize,
    /// The number of values of a list that are kept.
    pub(super) kept: usize,
    pub(super) instructions: u64,
}

impl<'a, 'c> ScanMachine<'a, 'c> {
    pub(super) fn new(bytes: &'a dyn RandomRead, expected: PickleOrigin, context: Option<&'c FileContext<'c>>) -> Self {
        Self {
            reader: PickleReader::new(bytes, context),
            context,
            expected,
            arena: NodeArena::default(),
            names: PickleNames::default(),
            found: PickleFindings::default(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: StackMemo::default(),
            protocol: 0,
            at: 0,
            instruction: Instruction { opcode: 0, start: 0, len: 0, next: 0 },
            next: 0,
            frame_end: None,
            loose: false,
            is_inner: false,
            goes_on: false,
            keys: DictKeys::default(),
            indirect: 0,
            kept: KEPT,
            instructions: 0,
        }
    }

    /// Runs through the pickle at `start`: its result, and how it ended; where is [`ScanMachine::next`], or [`ScanMachine::at`] if it broke.
    pub(super) fn run(&mut self, start: u64) -> max_weights::Result<(StackValue, PickleEnd)> {
        self.next = start;
        loop {
            self.at = self.next;
            self.instructions += 1;
            if self.instructions.is_multiple_of(PACE) {
                self.context.map_or(Ok(()), FileContext::check_cancelled)?;
            }
            let done = match self.step() {
                Ok(None) => continue,
                Ok(Some(root)) => return Ok((root, PickleEnd::Stop)),
                Err(halt) => halt,
            };
            return match done {
                PickleHalt::Failed(error) => Err(error),
                PickleHalt::Broken(why) => {
                    // A reader for which the frame ends first may not break here.
                    if let Some(end) = self.frame_end.filter(|end| self.at < *end && *end < self.reader.len()) {
                        self.found.alternative(end);
                    }
                    Ok((StackValue::UNKNOWN, PickleEnd::Broken(why)))
                }
                PickleHalt::Limit(what) => Ok((StackValue::UNKNOWN, PickleEnd::Limit(what))),
            };
        }
    }

    /// Whether the last instruction goes beyond these bytes, or would be the next behind them. Of lines that are names or references anything may
    /// be the beginning.
    pub(super) fn is_cut(&mut self, len: u64) -> bool {
        let Ok(Some(opcode)) = self.reader.byte(self.at) else { return true };
        self.next >= len
            || !matches!(opcode, b'c' | b'i' | b'P')
                && matches!(decode(&mut self.reader, self.at), Ok(Err(NoInstruction::Cut { .. })))
    }

    /// One instruction; the result of the pickle if it was the last.
    fn step(&mut self) -> PickleStep<Option<StackValue>> {
        self.instruction = match decode(&mut self.reader, self.at)? {
            Ok(instruction) => instruction,
            Err(none) => self.no_instruction(none)?,
        };
        self.next = self.instruction.next;
        let opcode = self.instruction.opcode;
        match opcode {
            b'.' => return self.stop().map(Some),
            0x80 => self.protocol()?,
            0x95 => self.frame()?,
            b'(' => self.mark()?,
            b'0' => self.discard()?,
            b'1' => drop(self.pop_mark(0)?),
            b'2' => self.top().and_then(|top| self.push(top))?,
            b'N' => self.push(StackValue::NONE)?,
            0x88 => self.push(StackValue::new(ValueKind::True, 0))?,
            0x89 => self.push(StackValue::new(ValueKind::False, 0))?,
            b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' | b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c
            | 0x8d | b'B' | b'C' | 0x8e | 0x96 => self.literal(opcode)?,
            b')' | b't' | 0x85..=0x87 | b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 => self.container(opcode)?,
            b'a' | b'e' | b's' | b'u' | 0x90 => self.fill(opcode)?,
            b'c' | b'i' => self.global(opcode)?,
            0x93 => self.stack_global()?,
            b'o' | b'R' | 0x81 | 0x92 | b'b' => self.effect(opcode)?,
            b'P' | b'Q' => self.persistent(opcode)?,
            b'g' | b'h' | b'j' => self.recall(opcode)?,
            b'p' | b'q' | b'r' | 0x94 => self.remember(opcode)?,
            0x82..=0x84 => self.extension()?,
            0x97 => {
                self.report(rules::CODE_INCOMPLETE, "a buffer is not in the file, but comes from the loading program");
                self.push(StackValue::UNKNOWN)?;
            }
            _ => drop(self.top()?),
        }
        self.check_frame();
        Ok(None)
    }

    /// Bytes that are not a whole instruction; one reader may still accept them.
    #[cold]
    fn no_instruction(&mut self, none: NoInstruction) -> PickleStep<Instruction> {
        let start = self.at + 1;
        match none {
            NoInstruction::Cut { at, .. } if at == self.at => return broken("it ends without its last instruction"),
            NoInstruction::Cut { .. } => {}
            NoInstruction::Negative(_) => {
                self.next = start;
                return broken("a length is negative");
            }
            NoInstruction::Unknown(opcode) => {
                self.next = start;
                return broken(format!("the byte 0x{opcode:02x} is not an instruction"));
            }
        }
        self.next = start;
        match self.reader.byte(self.at)? {
            // The reader in Python takes the rest of the file for a line, without its last byte.
            Some(opcode @ (b'c' | b'i')) if !self.goes_on => {
                let all = self.reader.len();
                let rest = all.saturating_sub(start).saturating_sub(1);
                let len = self.reader.line(start)?.unwrap_or(rest);
                Ok(Instruction { opcode, start, len, next: all })
            }
            _ => cut(),
        }
    }

    /// Reports something about the instruction at hand.
    pub(super) fn report(&mut self, rule: &'static Rule, message: impl Into<String>) {
        self.found.report(rule, message.into(), self.at, None);
    }

    /// Reports that the readers of Python differ about the instruction at hand.
    pub(super) fn diverges(&mut self, message: impl Into<String>) {
        self.report(rules::CODE_DIVERGENCE, message);
    }

    fn stop(&mut self) -> PickleStep<StackValue> {
        let root = self.pop()?;
        if let Some(end) = self.frame_end.filter(|end| *end > self.next) {
            let len = self.reader.len();
            if end <= len {
                self.diverges(format!("the pickle ends {} bytes before its frame does", end - self.next));
            }
        }
        if !self.loose && (!self.stack.is_empty() || !self.marks.is_empty()) {
            self.diverges(format!("{} values are left over at the end", self.stack.len() + self.marks.len()));
        }
        Ok(root)
    }

    fn protocol(&mut self) -> PickleStep<()> {
        let protocol = self.number()? as u8;
        if protocol > HIGHEST_PROTOCOL {
            self.diverges(format!("it says that it uses protocol {protocol}, but the highest is {HIGHEST_PROTOCOL}"));
        }
        self.protocol = protocol;
        Ok(())
    }

    fn frame(&mut self) -> PickleStep<()> {
        let len = self.number()?;
        if self.frame_end.is_some_and(|end| end > self.next) {
            self.diverges("a frame begins in another one");
        }
        let end = self.next.saturating_add(len);
        if end > self.reader.len() {
            self.diverges(format!("a frame of {len} bytes goes beyond the end of the data"));
        }
        self.frame_end = Some(end);
        Ok(())
    }

    /// A frame ends between two instructions; one that ends within one is read differently from a file and from memory.
    pub(super) fn check_frame(&mut self) {
        let Some(end) = self.frame_end.filter(|end| self.next >= *end) else { return };
        self.frame_end = None;
        if self.next > end && self.at < end {
            self.report(
                rules::CODE_FRAME,
                format!("a frame ends at byte {end}, within an instruction: what follows reads differently from a file than from memory"),
            );
            self.found.alternative(end);
        }
    }

    fn mark(&mut self) -> PickleStep<()> {
        if self.marks.len() >= MAX_MARKS {
            return Err(PickleHalt::Limit("open marks"));
        }
        self.marks.push(self.stack.len() as u32);
        Ok(())
    }

    /// `POP`: the topmost value, or a mark that is there.
    fn discard(&mut self) -> PickleStep<()> {
        if self.marks.last() == Some(&(self.stack.len() as u32)) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn container(&mut self, opcode: u8) -> PickleStep<()> {
        let (kind, node) = match opcode {
            b')' => (ValueKind::Tuple, StackNode::of(Vec::new())),
            b']' => (ValueKind::List, StackNode::of(Vec::new())),
            b'}' => (ValueKind::Dict, StackNode::of(Vec::new())),
            0x8f => (ValueKind::Set, StackNode::of(Vec::new())),
            b't' => (ValueKind::Tuple, self.marked(KEPT)?),
            b'l' => (ValueKind::List, self.marked(self.kept)?),
            0x91 => (ValueKind::FrozenSet, self.marked(KEPT)?),
            b'd' => {
                let pairs = self.pop_pairs()?;
                let dict = self.arena.push(ValueKind::Dict, StackNode::of(Vec::new()));
                self.set_items(dict, &pairs);
                return self.push(dict);
            }
            _ => {
                let mut items = Vec::with_capacity(3);
                for _ in 0x84..opcode {
                    items.push(self.pop()?);
                }
                items.reverse();
                (ValueKind::Tuple, StackNode::of(items))
            }
        };
        let value = self.arena.push(kind, node);
        self.push(value)
    }

    /// A container of the values above the last mark.
    pub(super) fn marked(&mut self, most: usize) -> PickleStep<StackNode> {
        let (items, count) = self.pop_mark(most)?;
        Ok(StackNode { count, ..StackNode::of(items) })
    }

    fn fill(&mut self, opcode: u8) -> PickleStep<()> {
        match opcode {
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                let special_key = if self.is_special(key)? { key.payload() } else { 0 };
                let computed_key = is_computed(key);
                let target = self.top()?;
                self.set_items(target, &Pairs { first: vec![key, value], count: 2, special_key, computed_key });
            }
            b'u' => {
                let pairs = self.pop_pairs()?;
                let target = self.top()?;
                self.set_items(target, &pairs);
            }
            b'a' => {
                let item = self.pop()?;
                let target = self.top()?;
                self.add_items(opcode, target, &[item], 1);
            }
            _ => {
                let (items, count) = self.pop_mark(self.kept)?;
                let target = self.top()?;
                self.add_items(opcode, target, &items, count);
            }
        }
        Ok(())
    }

    /// Keys and values above the last mark: the first ones, and what is special among all keys.
    fn pop_pairs(&mut self) -> PickleStep<Pairs> {
        let height = self.marks.last().map_or(0, |height| (*height as usize).min(self.stack.len()));
        let (mut special_key, mut computed_key) = (0, false);
        for place in (height..self.stack.len()).step_by(2) {
            let Some(key) = self.stack.get(place).copied() else { break };
            if self.is_special(key)? {
                special_key = key.payload();
            }
            computed_key |= is_computed(key);
        }
        let (first, count) = self.pop_mark(KEPT)?;
        if count % 2 == 1 && !self.loose {
            return broken("a dict gets a key without a value");
        }
        Ok(Pairs { first, count, special_key, computed_key })
    }

    /// Whether a key, in the state of an object, changes what the object is.
    fn is_special(&mut self, key: StackValue) -> PickleStep<bool> {
        if key.kind() != ValueKind::Text {
            return Ok(false);
        }
        // The bytes of most keys are not worth more than a glance: instruction, length, two underscores.
        let glance = self.reader.some(key.payload(), 11)?;
        let fills = FILLING.iter().any(|name| glance.windows(name.len()).any(|part| part == name.as_bytes()));
        if !fills && !glance.windows(2).any(|two| two == b"__") && !matches!(glance.first(), Some(b'V' | b'S' | 0x8d)) {
            return Ok(false);
        }
        let key = self.reader.text(key.payload())?.unwrap_or_default();
        self.keys.filling |= FILLING.contains(&key.as_str());
        Ok(harmless::is_special_key(&key))
    }

    fn effect(&mut self, opcode: u8) -> PickleStep<()> {
        let made = match opcode {
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                return self.build(target, state);
            }
            b'o' => {
                let mut node = self.marked(KEPT)?;
                if node.items.is_empty() {
                    return broken("an object has no class");
                }
                let class = node.items.remove(0);
                node.count -= 1;
                let arguments = self.arena.push(ValueKind::Tuple, node);
                self.call(class, arguments, None)?
            }
            0x92 => {
                let (keywords, arguments, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(class, arguments, Some(keywords))?
            }
            _ => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                self.call(callee, arguments, None)?
            }
        };
        self.push(made)
    }

    fn extension(&mut self) -> PickleStep<()> {
        let code = self.number()?;
        self.report(
            rules::CODE_EXTENSION,
            format!("it takes number {code} from the registry of extensions, whatever class or function that is"),
        );
        self.push(StackValue::UNKNOWN)
    }

    fn recall(&mut self, opcode: u8) -> PickleStep<()> {
        let index = self.index(opcode)?;
        match self.memo.get(index) {
            Some(value) => self.push(value),
            None if self.loose => self.push(StackValue::UNKNOWN),
            None => broken(format!("the value {index} of the memo is used before it exists")),
        }
    }

    fn remember(&mut self, opcode: u8) -> PickleStep<()> {
        let index = if opcode == 0x94 { self.memo.len() } else { self.index(opcode)? };
        if index >= HUGE_INDEX {
            self.diverges(format!("a value is remembered as number {index}: the reader in C runs out of memory"));
        }
        let top = self.top()?;
        if self.memo.put(index, top) { Ok(()) } else { Err(PickleHalt::Limit("remembered values")) }
    }

    pub(super) fn push(&mut self, value: StackValue) -> PickleStep<()> {
        if self.stack.len() >= MAX_STACK {
            return Err(PickleHalt::Limit("values on the stack"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn floor(&self) -> usize {
        self.marks.last().map_or(0, |mark| *mark as usize)
    }

    pub(super) fn pop(&mut self) -> PickleStep<StackValue> {
        if self.stack.len() > self.floor() {
            self.stack.pop().map_or_else(|| self.nothing(), Ok)
        } else {
            self.nothing()
        }
    }

    fn top(&self) -> PickleStep<StackValue> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => self.nothing(),
        }
    }

    /// The value that an instruction takes from an empty stack.
    fn nothing(&self) -> PickleStep<StackValue> {
        if self.loose {
            return Ok(StackValue::UNKNOWN);
        }
        broken("an instruction takes a value from the stack, but there is none")
    }

    /// The first values above the last mark, at most `most`, and how many there were.
    fn pop_mark(&mut self, most: usize) -> PickleStep<(Vec<StackValue>, u64)> {
        let height = match self.marks.pop() {
            Some(height) => (height as usize).min(self.stack.len()),
            None if self.loose => 0,
            None => return broken("an instruction takes values down to a mark, but there is none"),
        };
        let count = self.stack.len() - height;
        let items = self.stack.get(height..height + count.min(most)).unwrap_or_default().to_vec();
        self.stack.truncate(height);
        Ok((items, count as u64))
    }
}

/// Whether what a key is shows only when the file is loaded.
fn is_computed(key: StackValue) -> bool {
    matches!(key.kind(), ValueKind::Object | ValueKind::Unknown)
}

pub(super) fn broken<T>(why: impl Into<Cow<'static, str>>) -> PickleStep<T> {
    Err(PickleHalt::Broken(why.into()))
}

pub(super) fn cut<T>() -> PickleStep<T> {
    broken("it ends within an instruction")
}
