//! The stack machine, one instruction at a time. Calls are in `construct`, changes to values in `build`.
#![allow(clippy::zero_sized_map_values)] // a set, as the map that a budget counts

use std::collections::HashMap;
use std::sync::Arc;

use super::dtype::StorageType;
use super::global::GlobalUse;
use super::ids::{ObjectId, StorageId};
use super::instruction::{Instruction, NoInstruction, decode, little};
use super::memo::Memo;
use super::object::{PickleObject, PickleObjects};
use super::short_list::ShortList;
use super::tensor::{StorageRef, StorageView, TensorRef};
use super::text::{self, NoNumber};
use super::{ParseStep, PersistentIds, PickleLimits, Pickled, keys, limit};
use crate::budget::{Budget, MemoryPace, map_bytes, saturating_u32, saturating_usize, vec_bytes};
use crate::error::Diagnostic;
use crate::format::escape;
use crate::rules;

/// The highest version of the format.
const HIGHEST_PROTOCOL: u8 = 5;

pub(super) struct PickleMachine<'a> {
    bytes: &'a [u8],
    /// Where the bytes are in the file.
    at: u64,
    /// The current instruction; the next one begins where it ends.
    instruction: Instruction,
    pub(super) limits: &'a PickleLimits,
    pub(super) persistent: PersistentIds,
    pub(super) objects: PickleObjects,
    pub(super) stack: Vec<ObjectId>,
    /// Room for the values above a mark, while they become something else.
    pub(super) items: Vec<ObjectId>,
    /// The heights of the stack at the open marks.
    pub(super) marks: Vec<usize>,
    memo: Memo,
    pub(super) globals: Vec<GlobalUse>,
    /// By module and name, and whether these are names of Python 2.
    pub(super) global_ids: HashMap<(String, String, bool), ObjectId>,
    /// The protocol that the pickle states, or the first.
    pub(super) protocol: u8,
    pub(super) storages: Vec<StorageRef>,
    pub(super) storage_ids: HashMap<(Arc<str>, StorageType, Option<StorageView>), StorageId>,
    pub(super) storage_bytes: HashMap<Arc<str>, u64>,
    /// Keys and locations of storages, each once.
    pub(super) texts: HashMap<Arc<str>, ()>,
    pub(super) tensors: Vec<TensorRef>,
    /// Shapes and strides, by the tuple they were: one that is used for many tensors is kept once.
    pub(super) dims: HashMap<ObjectId, Arc<[u64]>>,
    /// The bytes of texts, by the text; true for its UTF-8, false for Latin-1.
    pub(super) encoded: HashMap<(ObjectId, bool), ObjectId>,
    /// One-byte integers, each of which is one value wherever it occurs.
    pub(super) small: Vec<Option<ObjectId>>,
    /// Values that were copied between containers: at most as many as instructions, or a few bytes could make many.
    pub(super) copied: usize,
    pub(super) operations: usize,
    /// Where the last frame ends that was announced.
    frame_end: usize,
    /// The offset of the current instruction in the file.
    pub(super) position: u64,
    /// The memory budget of all this.
    pub(super) budget: Budget,
    pace: MemoryPace,
}

const NONE: usize = 256;
const FALSE: usize = 257;
const TRUE: usize = 258;
const EMPTY_TUPLE: usize = 259;
const SHARED: usize = 260;

impl<'a> PickleMachine<'a> {
    pub(super) fn new(bytes: &'a [u8], at: u64, limits: &'a PickleLimits, persistent: PersistentIds) -> Self {
        Self {
            bytes,
            at,
            instruction: Instruction { opcode: 0, start: 0, len: 0, next: 0 },
            limits,
            persistent,
            objects: PickleObjects::default(),
            stack: Vec::new(),
            items: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            globals: Vec::new(),
            global_ids: HashMap::new(),
            protocol: 0,
            storages: Vec::new(),
            storage_ids: HashMap::new(),
            storage_bytes: HashMap::new(),
            texts: HashMap::new(),
            tensors: Vec::new(),
            dims: HashMap::new(),
            encoded: HashMap::new(),
            small: vec![None; SHARED],
            copied: 0,
            operations: 0,
            frame_end: 0,
            position: at,
            budget: limits.memory.map_or_else(|| Budget::of_file(bytes.len() as u64), Budget::new),
            pace: MemoryPace::default(),
        }
    }

    pub(super) fn run(mut self) -> ParseStep<Pickled> {
        let root = self.steps()?;
        keys::unite(&mut self.objects, &self.budget).map_err(|short| self.short(short))?;
        let gone = vec_bytes(&self.stack)
            + vec_bytes(&self.items)
            + self.memo.bytes()
            + map_bytes(&self.storage_ids)
            + map_bytes(&self.storage_bytes)
            + map_bytes(&self.texts)
            + map_bytes(&self.dims)
            + map_bytes(&self.encoded);
        self.budget.give(gone);
        let consumed = self.next();
        let Self { objects, globals, storages, tensors, budget, .. } = self;
        Ok(Pickled { objects, root, consumed, globals, storages, tensors, budget })
    }

    pub(super) fn run_for_globals(mut self) -> (Vec<GlobalUse>, ParseStep<usize>) {
        let outcome = self.steps().map(|_| self.next());
        (self.globals, outcome)
    }

    fn steps(&mut self) -> ParseStep<ObjectId> {
        loop {
            let at = self.instruction.next;
            self.position = self.at.saturating_add(at);
            self.operations += 1;
            if self.operations > self.limits.operations {
                return Err(limit("instructions", self.limits.operations, self.position));
            }
            self.pace.step().map_err(|short| self.short(short))?;
            let Ok(decoded) = decode(&mut self.bytes, at);
            self.instruction = decoded.map_err(|none| self.no_instruction(none))?;
            if self.next() > self.limits.pickle_bytes {
                return Err(limit("bytes", self.limits.pickle_bytes, self.position));
            }
            if self.instruction.opcode == b'.' {
                if self.frame_end > self.next() {
                    let cause = format!("the pickle ends {} bytes before its frame", self.frame_end - self.next());
                    return Err(self.fault(rules::PICKLE_FRAME, cause));
                }
                return self.pop();
            }
            self.step(self.instruction.opcode)?;
        }
    }

    /// Where the next instruction begins.
    #[inline]
    fn next(&self) -> usize {
        saturating_usize(self.instruction.next)
    }

    #[inline]
    fn part(&self, (start, len): (u64, u64)) -> &'a [u8] {
        let (start, len) = (saturating_usize(start), saturating_usize(len));
        self.bytes.get(start..start.saturating_add(len)).unwrap_or_default()
    }

    /// The bytes of the argument, of two lines those of the first.
    #[inline]
    fn argument(&self) -> &'a [u8] {
        self.part((self.instruction.start, self.instruction.len))
    }

    /// The argument, within the limit of strings.
    fn string(&self) -> ParseStep<&'a [u8]> {
        let argument = self.argument();
        if argument.len() > self.limits.string_bytes {
            return Err(limit("bytes of one string", self.limits.string_bytes, self.position));
        }
        Ok(argument)
    }

    /// The argument, within the limit of numbers.
    #[inline]
    fn digits(&self) -> ParseStep<&'a [u8]> {
        let argument = self.argument();
        if argument.len() > self.limits.integer_bytes {
            return Err(limit("bytes of one integer", self.limits.integer_bytes, self.position));
        }
        Ok(argument)
    }

    fn no_instruction(&self, none: NoInstruction) -> Box<Diagnostic> {
        match none {
            NoInstruction::Cut { at, bytes } => {
                let left = (self.bytes.len() as u64).saturating_sub(at);
                let cause =
                    format!("the pickle ends within an instruction, which needs {bytes} bytes; {left} are left");
                Diagnostic::new(rules::PICKLE_TRUNCATED, cause).offset(self.at.saturating_add(at)).into()
            }
            NoInstruction::Negative(len) => self.fault(rules::PICKLE_TEXT, format!("a value has {len} bytes")),
            NoInstruction::Unknown(opcode) => {
                let cause = format!("the byte 0x{opcode:02x} is not a pickle instruction");
                self.fault(rules::PICKLE_OPCODE, cause)
            }
        }
    }

    fn step(&mut self, opcode: u8) -> ParseStep<()> {
        match opcode {
            0x80 => self.protocol(),
            0x95 => self.frame(),
            b'(' => self.mark(),
            b'0' => self.discard(),
            b'1' => self.drop_mark(),
            b'2' => self.top().and_then(|top| self.push(top)),
            b'N' => self.shared(NONE, PickleObject::None),
            b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' | 0x88 | 0x89 => self.number(opcode),
            b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d => self.text(opcode),
            b'B' | b'C' | 0x8e | 0x96 => self.bytes(opcode),
            b')' | b't' | 0x85..=0x87 | b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 => self.container(opcode),
            b'a' | b'e' | b's' | b'u' | 0x90 | b'b' => self.change(opcode),
            b'c' | 0x93 | b'i' | b'o' | b'R' | 0x81 | 0x92 => self.call_opcode(opcode),
            b'P' => {
                let id = self.resolve_text(self.string()?)?;
                self.push(id)
            }
            b'Q' => {
                let id = self.pop()?;
                let id = self.resolve(id)?;
                self.push(id)
            }
            b'g' | b'h' | b'j' => self.recall(opcode),
            b'p' | b'q' | b'r' | 0x94 => self.remember(opcode),
            _ => Err(self.refused(opcode)),
        }
    }

    /// An instruction that has no place in a checkpoint.
    fn refused(&self, opcode: u8) -> Box<Diagnostic> {
        let name = match opcode {
            0x82 => "EXT1, which needs the registry of extensions of the program that wrote it",
            0x83 => "EXT2, which needs the registry of extensions of the program that wrote it",
            0x84 => "EXT4, which needs the registry of extensions of the program that wrote it",
            0x97 => "NEXT_BUFFER, whose buffer is not in the file",
            _ => "READONLY_BUFFER, which belongs to buffers outside the file",
        };
        self.fault(rules::PICKLE_OPCODE, format!("the instruction is {name}"))
    }

    fn protocol(&mut self) -> ParseStep<()> {
        let version = u8::try_from(little(self.argument())).unwrap_or(u8::MAX);
        if version > HIGHEST_PROTOCOL {
            let cause = format!("the pickle uses protocol {version}; protocols 0 to {HIGHEST_PROTOCOL} can be read");
            return Err(self.fault(rules::PICKLE_PROTOCOL, cause));
        }
        self.protocol = version;
        Ok(())
    }

    fn frame(&mut self) -> ParseStep<()> {
        let len = little(self.argument());
        let left = self.bytes.len().saturating_sub(self.next());
        if len > left as u64 {
            let cause = format!("a frame of {len} bytes begins {left} bytes before the end");
            return Err(self.fault(rules::PICKLE_TRUNCATED, cause));
        }
        self.frame_end = self.next().saturating_add(saturating_usize(len));
        Ok(())
    }

    fn mark(&mut self) -> ParseStep<()> {
        if self.marks.len() >= self.limits.marks {
            return Err(limit("open marks", self.limits.marks, self.position));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// `POP`: the topmost value, or a mark.
    fn discard(&mut self) -> ParseStep<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn number(&mut self, opcode: u8) -> ParseStep<()> {
        let value = match opcode {
            0x88 => return self.shared(TRUE, PickleObject::Bool(true)),
            0x89 => return self.shared(FALSE, PickleObject::Bool(false)),
            b'K' => {
                let value = little(self.argument());
                return self.shared(saturating_usize(value), PickleObject::Int(value.cast_signed()));
            }
            b'M' => PickleObject::Int(little(self.argument()).cast_signed()),
            b'G' => PickleObject::Float(f64::from_bits(little(self.argument()).swap_bytes())),
            b'F' => {
                let line = self.digits()?;
                PickleObject::Float(text::float(line).ok_or_else(|| self.no_number(line))?)
            }
            _ => match (opcode, self.digits()?) {
                (b'I', b"00") => return self.shared(FALSE, PickleObject::Bool(false)),
                (b'I', b"01") => return self.shared(TRUE, PickleObject::Bool(true)),
                (_, digits) => self.integer(opcode, digits)?,
            },
        };
        let id = self.make(value)?;
        self.push(id)
    }

    /// An integer: one that does not fit is its bytes in two's complement, least significant first.
    fn integer(&mut self, opcode: u8, digits: &[u8]) -> ParseStep<PickleObject> {
        let is_line = matches!(opcode, b'I' | b'L');
        let bytes = match text::integer_of(opcode, digits) {
            Ok(value) => match i64::try_from(value) {
                Ok(small) => return Ok(PickleObject::Int(small)),
                Err(_) if is_line => value.to_le_bytes().to_vec(),
                Err(_) => digits.to_vec(),
            },
            Err(NoNumber::Large) if !is_line => digits.to_vec(),
            Err(NoNumber::Large) => {
                let value =
                    str::from_utf8(digits).ok().and_then(|line| line.trim_end_matches('L').parse::<u128>().ok());
                let value = value.ok_or_else(|| self.no_number(digits))?;
                [&value.to_le_bytes()[..], &[0]].concat()
            }
            Err(NoNumber::None | NoNumber::Lenient(_)) => return Err(self.no_number(digits)),
        };
        Ok(PickleObject::BigInt(self.store_bytes(&bytes)?))
    }

    fn no_number(&self, line: &[u8]) -> Box<Diagnostic> {
        self.fault(
            rules::PICKLE_NUMBER,
            format!("\"{}\" is not a number that can be read", escape(&text::latin1(line))),
        )
    }

    fn text(&mut self, opcode: u8) -> ParseStep<()> {
        let bytes = self.string()?;
        let id = match opcode {
            b'S' => {
                self.scratch(bytes.len())?;
                let bytes = text::quoted(bytes);
                let bytes =
                    bytes.ok_or_else(|| self.fault(rules::PICKLE_TEXT, "a Python 2 string literal is broken"))?;
                self.eight_bit_text(&bytes)?
            }
            b'V' => {
                self.scratch(bytes.len().saturating_mul(2))?;
                let text = text::raw_unicode_escape(bytes);
                let text = text.ok_or_else(|| self.fault(rules::PICKLE_TEXT, "a string is not Unicode"))?;
                self.make_text(&text)?
            }
            b'T' | b'U' => self.eight_bit_text(bytes)?,
            _ => {
                let text =
                    str::from_utf8(bytes).map_err(|_| self.fault(rules::PICKLE_TEXT, "a string is not UTF-8"))?;
                self.make_text(text)?
            }
        };
        self.push(id)
    }

    /// A string of Python 2, which may be text or bytes: decoded as UTF-8 if possible, otherwise one character per byte.
    fn eight_bit_text(&mut self, bytes: &[u8]) -> ParseStep<ObjectId> {
        if let Ok(text) = str::from_utf8(bytes) {
            return self.make_text(text);
        }
        self.scratch(bytes.len().saturating_mul(2))?;
        let id = self.make_text(&text::latin1(bytes))?;
        let raw = self.store_bytes(bytes)?;
        self.objects.set_raw(id, raw, &mut self.budget).map_err(|short| self.short(short))?;
        Ok(id)
    }

    fn bytes(&mut self, opcode: u8) -> ParseStep<()> {
        let slice = self.store_bytes(self.string()?)?;
        let id = self.make(if opcode == 0x96 { PickleObject::ByteArray(slice) } else { PickleObject::Bytes(slice) })?;
        self.push(id)
    }

    fn container(&mut self, opcode: u8) -> ParseStep<()> {
        let object = match opcode {
            b')' => return self.shared(EMPTY_TUPLE, PickleObject::Tuple(ShortList::default())),
            b']' => PickleObject::List(Vec::new()),
            b'}' => Self::dict(Vec::new()),
            0x8f => PickleObject::Set(Vec::new()),
            b't' => {
                let items = self.pop_mark()?;
                let tuple = self.tuple(&items)?;
                self.freed(items);
                tuple
            }
            b'l' => PickleObject::List(self.pop_mark_copied()?),
            0x91 => {
                let items = self.pop_mark_copied()?;
                self.check_elements(&items)?;
                PickleObject::FrozenSet(items.into())
            }
            b'd' => {
                let items = self.pop_mark()?;
                let pairs = self.pairs(&items)?;
                self.freed(items);
                Self::dict(pairs)
            }
            _ => {
                let count = usize::from(opcode - 0x84);
                let mut elements = [ObjectId::FIRST; 3];
                for slot in elements.iter_mut().take(count).rev() {
                    *slot = self.pop()?;
                }
                self.tuple(elements.get(..count).unwrap_or_default())?
            }
        };
        let id = self.make(object)?;
        self.push(id)
    }

    fn call_opcode(&mut self, opcode: u8) -> ParseStep<()> {
        let made = match opcode {
            b'c' | b'i' => {
                let (module, name) = (self.argument(), self.part(self.instruction.second_line()));
                let (Ok(module), Ok(name)) = (str::from_utf8(module), str::from_utf8(name)) else {
                    return Err(self.fault(rules::PICKLE_TEXT, "the name of a global is not UTF-8"));
                };
                let global = self.global(module, name)?;
                if opcode == b'i' {
                    let arguments = self.pop_mark()?;
                    let tuple = self.make_tuple(&arguments)?;
                    self.freed(arguments);
                    self.call(global, tuple, None)?
                } else {
                    global
                }
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let most = self.limits.global_bytes;
                let owned = |objects: &PickleObjects, id| match objects.get(id) {
                    PickleObject::Text(slice) => {
                        objects.text_of(*slice).get(..=most).or(Some(objects.text_of(*slice))).map(String::from)
                    }
                    _ => None,
                };
                match (owned(&self.objects, module), owned(&self.objects, name)) {
                    (Some(module), Some(name)) => self.global(&module, &name)?,
                    _ => return Err(self.fault(rules::PICKLE_GLOBAL, "the name of a global is not a string")),
                }
            }
            b'o' => {
                let items = self.pop_mark()?;
                let Some((class, arguments)) = items.split_first() else {
                    return Err(self.fault(rules::PICKLE_STACK, "an object without a class"));
                };
                let (class, arguments) = (*class, self.make_tuple(arguments)?);
                self.freed(items);
                self.call(class, arguments, None)?
            }
            0x92 => {
                let (keywords, arguments, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(class, arguments, Some(keywords))?
            }
            _ => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments, None)?
            }
        };
        self.push(made)
    }

    #[inline]
    fn recall(&mut self, opcode: u8) -> ParseStep<()> {
        let index = self.memo_index(opcode)?;
        match self.memo.get(index) {
            Some(id) => self.push(id),
            None => Err(self.fault(rules::PICKLE_MEMO, format!("the value {index} is used before it exists"))),
        }
    }

    #[inline]
    fn remember(&mut self, opcode: u8) -> ParseStep<()> {
        let index = if opcode == 0x94 { saturating_u32(self.memo.len()) } else { self.memo_index(opcode)? };
        let top = self.top()?;
        self.memo.put(index, top, &mut self.budget).map_err(|short| self.short(short))?;
        if self.memo.len() > self.limits.memo {
            return Err(limit("remembered values", self.limits.memo, self.position));
        }
        Ok(())
    }

    #[inline]
    fn memo_index(&self, opcode: u8) -> ParseStep<u32> {
        if !matches!(opcode, b'g' | b'p') {
            return Ok(saturating_u32(little(self.argument())));
        }
        let line = self.digits()?;
        let index = text::line_integer(line).ok().and_then(|index| u32::try_from(index).ok());
        index.ok_or_else(|| self.no_number(line))
    }
}
