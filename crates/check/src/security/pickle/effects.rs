//! The effects of calls and changes: the verdict on each, and its result as a value.

use max_weights::format::pickle::names::is_attribute;
use max_weights::format::pickle::spelling::Instruction;
use max_weights::format::pickle::{Danger, StorageType};
use max_weights::rules::{self, Rule};

use super::PickleOrigin;
use super::harmless::{self, Fills};
use super::machine::{Pairs, PickleHalt, PickleStep, ScanMachine, broken};
use super::nested::Loader;
use super::value::{KEPT, StackNode, StackValue, ValueKind};

/// Calls of one class or function that are written out.
const SHOWN_CALLS: u64 = 20;
/// The text encodings with which Python writes bytes as text.
const ENCODINGS: [&str; 9] =
    ["latin1", "latin-1", "iso-8859-1", "utf-8", "utf8", "utf_8", "ascii", "raw_unicode_escape", "raw-unicode-escape"];

const STRANGE_REFERENCE: &str = "a reference to something outside is not one to a storage";

/// What makes an object of the class that it is given.
const RECONSTRUCTOR: (&str, &str) = ("copyreg", "_reconstructor");
/// Rebuilding in rebuilding that is followed: each level calls what it is given.
const MAX_INDIRECT: usize = 8;

impl ScanMachine<'_, '_> {
    /// Module, name and verdict of a class or function.
    fn global_of(&self, value: StackValue) -> Option<(String, String, Danger)> {
        if value.kind() != ValueKind::Global {
            return None;
        }
        let named = self.names.get(value.payload())?;
        Some((named.module.clone(), named.name.clone(), named.danger))
    }

    /// What returned this value, if a call of a class or function did.
    fn maker_of(&self, value: StackValue) -> Option<(String, String, Danger)> {
        if value.kind() != ValueKind::Object {
            return None;
        }
        self.global_of(self.arena.get(value)?.callee)
    }

    /// A call: what it returns.
    pub(super) fn call(
        &mut self,
        callee: StackValue,
        arguments: StackValue,
        keywords: Option<StackValue>,
    ) -> PickleStep<StackValue> {
        self.found.calls += 1;
        match callee.kind() {
            ValueKind::Global => self.call_global(callee, arguments, keywords)?,
            ValueKind::Object => self.call_object(callee, arguments, keywords),
            ValueKind::Unknown => {
                let message = "what is called shows only when the file is loaded";
                self.report_call(rules::CODE_UNRESOLVABLE, message, callee, arguments, keywords);
            }
            _ => return broken("what is called is not a class or function"),
        }
        if let Some((module, name, Danger::Harmless)) = self.global_of(callee)
            && (module.as_str(), name.as_str()) == ("torch.jit._pickle", "restore_type_tag")
            && let Some(same) = self.arena.get(arguments).and_then(|node| node.items.first().copied())
        {
            // It gives back what it is given.
            return Ok(same);
        }
        Ok(self.arena.push(ValueKind::Object, StackNode::call(callee, arguments)))
    }

    fn call_global(
        &mut self,
        callee: StackValue,
        arguments: StackValue,
        keywords: Option<StackValue>,
    ) -> PickleStep<()> {
        let at = self.at;
        let Some((module, name, danger)) = self.global_of(callee) else { return Ok(()) };
        let shown = self.names.get_mut(callee.payload()).is_some_and(|named| {
            named.calls += 1;
            named.calls <= if danger == Danger::RunsCode { SHOWN_CALLS } else { 1 }
        });
        match danger {
            Danger::Harmless => {
                self.check_harmless(&module, &name, arguments)?;
                // What a tensor is rebuilt from is of no more use.
                if name.starts_with("_rebuild") {
                    self.arena.forget(arguments);
                }
            }
            Danger::Library if (module.as_str(), name.as_str()) == ("builtins", "getattr") => {
                self.check_getattr(callee, arguments)?;
            }
            _ => {}
        }
        let is_reported = danger == Danger::RunsCode && self.found.has_space(rules::CODE_MALICIOUS_GLOBAL);
        if shown && danger != Danger::Harmless && (is_reported || danger != Danger::RunsCode) {
            let source = self.source_of_call(callee, arguments, keywords);
            if is_reported {
                let message = format!("loading it calls {}", max_weights::text::escape(&format!("{module}.{name}")));
                self.found.report(rules::CODE_MALICIOUS_GLOBAL, message, at, Some(source.clone()));
            }
            if let Some(named) = self.names.get_mut(callee.payload()) {
                named.call.get_or_insert((at, source));
            }
        }
        if let Some(loader) = Loader::of(&module, &name) {
            self.found.names_loader |= loader == Loader::Pickle;
            if loader == Loader::Pickle {
                self.look_at_loaded(arguments)?;
            }
        }
        Ok(())
    }

    /// What a harmless class or function is called with, where not everything is harmless.
    fn check_harmless(&mut self, module: &str, name: &str, arguments: StackValue) -> PickleStep<()> {
        let items = self.arena.get(arguments).map(StackNode::first).unwrap_or_default();
        match (module, name) {
            ("collections", "defaultdict") => {
                if let Some(factory) = items.first().copied() {
                    self.check_factory(factory);
                }
            }
            // Numbers are written as numbers, and objects by their classes.
            ("builtins", "int" | "float" | "complex" | "bool")
                if items.first().is_some_and(|item| matches!(item.kind(), ValueKind::Text | ValueKind::Bytes)) =>
            {
                self.misuse("a number is made from a string, which hides what it is", arguments);
            }
            ("copyreg", "_reconstructor") if items.first().is_none_or(|class| class.kind() != ValueKind::Global) => {
                self.misuse("an object is made from something that is not a class", arguments);
            }
            ("torch.storage", "_load_from_bytes")
                if items.first().is_none_or(|bytes| bytes.kind() == ValueKind::Text) =>
            {
                let message = "torch.storage._load_from_bytes is given something other than bytes";
                self.misuse(message, arguments);
            }
            ("_codecs", "encode") => {
                let encoding = match items.get(1) {
                    Some(value) if value.kind() == ValueKind::Text => self.reader.text(value.payload())?,
                    None => Some("utf-8".to_owned()),
                    Some(_) => None,
                };
                let is_plain = |encoding: &String| ENCODINGS.contains(&encoding.to_ascii_lowercase().as_str());
                if !encoding.as_ref().is_some_and(is_plain) {
                    self.misuse("bytes are made with an encoding that hides what they are", arguments);
                }
            }
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => {
                if let Some(dtype) = items.first().copied()
                    && self.is_object_dtype(dtype)?
                {
                    self.look_at_loaded(arguments)?;
                }
            }
            ("torch._utils", "_rebuild_parameter_with_state")
            | ("torch._tensor" | "torch.tensor", "_rebuild_from_type_v2") => {
                let function = items.first().copied().unwrap_or(StackValue::NONE);
                if name == "_rebuild_from_type_v2" && !matches!(self.global_of(function), Some((_, _, _))) {
                    self.misuse("what rebuilds a tensor shows only when the file is loaded", arguments);
                }
                if name == "_rebuild_from_type_v2" && function.kind() == ValueKind::Global {
                    self.indirect += 1;
                    if self.indirect > MAX_INDIRECT {
                        self.misuse(
                            "functions that rebuild tensors are nested deeper than they are examined",
                            arguments,
                        );
                    } else {
                        self.call_global(function, items.get(2).copied().unwrap_or(StackValue::NONE), None)?;
                    }
                    self.indirect -= 1;
                }
                if let Some(state) = items.get(3).copied() {
                    self.check_state(state, StackValue::NONE)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_factory(&mut self, factory: StackValue) {
        let fine = match (factory.kind(), self.global_of(factory)) {
            (ValueKind::None, _) => true,
            // It is judged by itself.
            (_, Some((module, name, danger))) => danger != Danger::Harmless || harmless::is_factory(&module, &name),
            _ => false,
        };
        if !fine {
            self.misuse("a dict is set to call this for each missing value", factory);
        }
    }

    /// `getattr`, by which nested classes and bound methods are pickled: the attribute, and the object.
    fn check_getattr(&mut self, callee: StackValue, arguments: StackValue) -> PickleStep<()> {
        let items = self.arena.get(arguments).map(StackNode::first).unwrap_or_default();
        let attribute = match items.get(1) {
            Some(value) if value.kind() == ValueKind::Text => self.reader.text(value.payload())?,
            _ => None,
        };
        let of_harmless =
            items.first().and_then(|of| self.global_of(*of)).is_some_and(|(_, _, danger)| danger == Danger::Harmless);
        let is_fine = |attribute: &String| {
            attribute == "__new__"
                || !attribute.starts_with("__") && !attribute.contains('.') && !is_attribute(attribute)
        };
        if attribute.as_ref().is_some_and(is_fine) && !of_harmless {
            return Ok(());
        }
        let message = "an attribute is taken through which everything can be reached";
        self.report_call(rules::CODE_UNRESOLVABLE, message, callee, arguments, None);
        Ok(())
    }

    /// A call of the result of another call.
    fn call_object(&mut self, callee: StackValue, arguments: StackValue, keywords: Option<StackValue>) {
        let maker = self.maker_of(callee);
        let is_partial = matches!(
            maker.as_ref().map(|(module, name, _)| (module.as_str(), name.as_str())),
            Some(("functools", "partial") | ("builtins", "getattr"))
        );
        let (rule, message) = if is_partial {
            (rules::CODE_COMPUTED_CALL, "loading it calls what an earlier call returned")
        } else {
            (rules::CODE_UNRESOLVABLE, "loading it calls what an earlier call returned, which shows only then")
        };
        self.report_call(rule, message, callee, arguments, keywords);
    }

    /// Reports something about a call, which is shown.
    fn report_call(
        &mut self,
        rule: &'static Rule,
        message: &str,
        callee: StackValue,
        arguments: StackValue,
        keywords: Option<StackValue>,
    ) {
        let source = self.source_of_call(callee, arguments, keywords);
        self.found.report(rule, message.to_owned(), self.at, Some(source));
    }

    /// Reports something about a value, which is shown.
    fn report_value(&mut self, rule: &'static Rule, message: impl Into<String>, value: StackValue) {
        let source = self.source_of(value);
        self.found.report(rule, message.into(), self.at, Some(source));
    }

    fn misuse(&mut self, message: &str, shown: StackValue) {
        self.report_value(rules::CODE_MISUSED_GLOBAL, message, shown);
    }

    /// Whether a state sets what changes an object into another.
    fn check_state(&mut self, state: StackValue, target: StackValue) -> PickleStep<()> {
        let mut special = self.arena.get(state).map_or(0, |node| node.special_key);
        let mut parts = vec![state];
        if state.kind() == ValueKind::Tuple {
            let all = self.arena.get(state).map(StackNode::first).unwrap_or_default();
            let of = |part: &StackValue| self.arena.get(*part).map_or(0, |node| node.special_key);
            special = all.iter().map(of).find(|special| *special > 0).unwrap_or(special);
            // Attributes, and those that have slots; a longer tuple is for a method of the class.
            parts.extend(if all.len() == 2 { all } else { Vec::new() });
        }
        // Only classes that are on no list may have states that are put together: loading them runs their code anyhow.
        let of_weights = self.maker_of(target).is_none_or(|(_, _, danger)| danger == Danger::Harmless);
        if of_weights && special == 0 && parts.iter().any(|part| self.is_computed(*part)) {
            let message = "a state is assembled by calls, so what it sets shows only when the file is loaded";
            self.report_value(rules::CODE_PATCHED, message, state);
        }
        if special > 0 {
            let key = self.reader.text(special)?.unwrap_or_default();
            let key = max_weights::text::escape(&key);
            let message = format!("a state sets {key}, which turns the object into another one");
            self.report_value(rules::CODE_PATCHED, message, state);
        }
        Ok(())
    }

    /// Whether a dict is made by a call, or has keys that are.
    fn is_computed(&self, state: StackValue) -> bool {
        match (state.kind(), self.arena.get(state)) {
            (ValueKind::Object | ValueKind::Unknown, _) | (ValueKind::Tuple, None) => true,
            (_, Some(node)) => node.computed_key,
            // It was lost among very many values. Of dicts it is known whether any of them has such a key.
            (ValueKind::Dict, None) => self.keys.special,
            _ => false,
        }
    }

    /// `BUILD`: the state of an object.
    pub(super) fn build(&mut self, target: StackValue, state: StackValue) -> PickleStep<()> {
        self.check_state(state, target)?;
        match target.kind() {
            ValueKind::Global => {
                let message = "a state is set on a class, function or module, which changes it for the whole program";
                let source = format!("{}.__setstate__({})", self.source_of(target), self.source_of(state));
                self.found.report(rules::CODE_PATCHED, message.to_owned(), self.at, Some(source));
            }
            ValueKind::Object => {
                if let Some((module, name, Danger::Harmless)) = self.maker_of(target) {
                    if !harmless::has_state(&module, &name) {
                        self.wrong_target("a state is set on something that has none", target);
                    }
                    if (module.as_str(), name.as_str()) == ("numpy", "dtype") {
                        self.check_dtype(target, state)?;
                    }
                }
                self.arena.extend(target, &[state], KEPT);
                self.skip_array(target, state)?;
            }
            ValueKind::Unknown => {}
            _ => self.wrong_target("a state is set on something that has none", target),
        }
        Ok(())
    }

    /// A dtype of objects whose flags deny them makes numpy take bytes for the addresses of objects.
    fn check_dtype(&mut self, dtype: StackValue, state: StackValue) -> PickleStep<()> {
        let flags = self.arena.get(state).and_then(|node| node.items.get(7).copied());
        let flags = match flags.filter(|flags| flags.kind() == ValueKind::Int) {
            Some(flags) => self.reader.integer(flags.payload())?,
            None => None,
        };
        if flags.is_some_and(|flags| flags & 1 == 0) && self.is_object_dtype(dtype)? {
            self.misuse("a dtype of objects is set to have none: bytes are taken for the addresses of objects", state);
        }
        Ok(())
    }

    fn wrong_target(&mut self, message: &str, target: StackValue) {
        self.report_value(rules::CODE_WRONG_TARGET, message, target);
    }

    /// What a value takes from the instructions that fill containers.
    fn fills(&self, target: StackValue) -> Fills {
        match target.kind() {
            ValueKind::Dict => Fills::Dict,
            ValueKind::List => Fills::List,
            ValueKind::Set => Fills::Set,
            ValueKind::Unknown => Fills::Any,
            ValueKind::Object => match self.maker_of(target) {
                Some((module, name, Danger::Harmless)) if (module.as_str(), name.as_str()) == RECONSTRUCTOR => {
                    let arguments = self.arena.get(target).map_or(StackValue::UNKNOWN, |node| node.arguments);
                    let class = self.arena.get(arguments).and_then(|node| node.items.first().copied());
                    match class.and_then(|class| self.global_of(class)) {
                        Some((module, name, Danger::Harmless)) => harmless::fills(&module, &name),
                        _ => Fills::Any,
                    }
                }
                Some((module, name, Danger::Harmless)) => harmless::fills(&module, &name),
                // A storage is none, and of other classes nothing is known.
                None if self.arena.get(target).is_some_and(|node| node.callee == StackValue::NONE) => Fills::Nothing,
                // It was lost among very many values, and may have an attribute that is called to fill it.
                None if self.arena.get(target).is_none() && self.keys.filling => Fills::Nothing,
                _ => Fills::Any,
            },
            _ => Fills::Nothing,
        }
    }

    /// `APPEND`, `APPENDS`, `ADDITEMS`.
    pub(super) fn add_items(&mut self, opcode: u8, target: StackValue, items: &[StackValue], count: u64) {
        let requested = if opcode == 0x90 { Fills::Set } else { Fills::List };
        let fills = self.fills(target);
        if fills != requested && fills != Fills::Any {
            // The text of the target would need a read, and an error of it has no way out here.
            self.report(
                rules::CODE_WRONG_TARGET,
                format!("values are added to something that is not a {}", name_of(requested)),
            );
        }
        if target.kind() != ValueKind::Object {
            self.arena.extend(target, items, self.kept);
            if let Some(node) =
                self.arena.get_mut(target).filter(|_| matches!(target.kind(), ValueKind::List | ValueKind::Set))
            {
                node.count = node.count.saturating_add(count.saturating_sub(items.len() as u64));
            }
        }
    }

    /// `SETITEM`, `SETITEMS`, `DICT`.
    pub(super) fn set_items(&mut self, target: StackValue, pairs: &Pairs) {
        self.keys.special |= pairs.special_key > 0 || pairs.computed_key;
        let fills = self.fills(target);
        if fills != Fills::Dict && fills != Fills::Any {
            self.report(
                rules::CODE_WRONG_TARGET,
                "keys are set in something that is not a dict: this breaks torch before 2.10 even with weights_only (CVE-2026-24747)",
            );
        }
        if target.kind() == ValueKind::Dict {
            self.arena.extend(target, &pairs.first, 2 * KEPT);
        }
        if let Some(node) =
            self.arena.get_mut(target).filter(|_| matches!(target.kind(), ValueKind::Dict | ValueKind::Object))
        {
            if target.kind() == ValueKind::Dict {
                node.count = node.count.saturating_add(pairs.count.saturating_sub(pairs.first.len() as u64));
            }
            if pairs.special_key > 0 {
                node.special_key = pairs.special_key;
            }
            node.computed_key |= pairs.computed_key;
        }
    }

    /// A reference to something outside.
    pub(super) fn persistent(&mut self, opcode: u8) -> PickleStep<()> {
        let made = if opcode == b'P' { self.persistent_line()? } else { self.persistent_tuple()? };
        self.push(made)
    }

    fn persistent_tuple(&mut self) -> PickleStep<StackValue> {
        let id = self.pop()?;
        let items = match id.kind() {
            ValueKind::Tuple => self.arena.get(id).map(StackNode::first),
            _ => None,
        };
        let Some(items) = items else {
            if id.kind() == ValueKind::Tuple {
                self.found.is_incomplete = true;
                return Ok(StackValue::UNKNOWN);
            }
            return Ok(self.strange_reference(id));
        };
        let first = match items.first() {
            Some(value) if value.kind() == ValueKind::Text => self.reader.text(value.payload())?,
            _ => None,
        };
        match (first.as_deref(), &items[..]) {
            (Some("storage"), [_, class, key, _, elements, ..]) => {
                let key = match key.kind() {
                    ValueKind::Text => self.reader.text(key.payload())?,
                    // As torch.package writes them.
                    ValueKind::Int => self.reader.integer(key.payload())?.map(|key| key.to_string()),
                    _ => None,
                };
                let elements = match elements.kind() {
                    ValueKind::Int => {
                        self.reader.integer(elements.payload())?.and_then(|elements| u64::try_from(elements).ok())
                    }
                    _ => None,
                };
                let Some(key) = key else { return Ok(self.strange_reference(id)) };
                let class =
                    self.global_of(*class).and_then(|(module, name, _)| StorageType::from_global(&module, &name));
                let bytes = class.zip(elements).and_then(|(class, elements)| elements.checked_mul(class.bytes()));
                if key.contains(['/', '\\', '\0']) || key.contains("..") {
                    self.strange_reference(id);
                }
                self.keep_storage(key, elements, bytes);
                self.arena.forget(id);
                Ok(self.arena.push(ValueKind::Object, StackNode::call(StackValue::NONE, StackValue::NONE)))
            }
            (Some("module"), [_, class, ..]) if self.expected != PickleOrigin::TorchZip => {
                self.report(
                    rules::CODE_LIBRARY_GLOBAL,
                    "the class of a module is referred to, with its source: loading the file imports it",
                );
                Ok(*class)
            }
            _ => Ok(self.strange_reference(id)),
        }
    }

    fn keep_storage(&mut self, key: String, elements: Option<u64>, bytes: Option<u64>) {
        let shown = max_weights::text::escape(&key);
        if !self.found.storage(key, elements, bytes) {
            self.report(rules::CODE_STORAGE, format!("storage '{shown}' is said to have two different sizes"));
        }
    }

    fn strange_reference(&mut self, id: StackValue) -> StackValue {
        self.report_value(rules::CODE_PERSISTENT_ID, STRANGE_REFERENCE, id);
        StackValue::UNKNOWN
    }

    /// A reference in protocol 0: Python's print of the tuple.
    fn persistent_line(&mut self) -> PickleStep<StackValue> {
        let Instruction { start, len, .. } = self.instruction;
        let line = self.reader.some(start, len.min(2048) as usize)?;
        let line = String::from_utf8_lossy(line).into_owned();
        let Some((class, key, elements)) = printed_storage(&line) else {
            let shown = max_weights::text::escape(&line);
            self.found.report(rules::CODE_PERSISTENT_ID, STRANGE_REFERENCE.to_owned(), self.at, Some(shown));
            return Ok(StackValue::UNKNOWN);
        };
        let bytes = StorageType::from_global("torch", class).and_then(|class| elements.checked_mul(class.bytes()));
        self.keep_storage(key.to_owned(), Some(elements), bytes);
        Ok(self.arena.push(ValueKind::Object, StackNode::call(StackValue::NONE, StackValue::NONE)))
    }

    /// Whether a value is numpy's dtype of objects.
    pub(super) fn is_object_dtype(&mut self, dtype: StackValue) -> PickleStep<bool> {
        Ok(self.dtype_code(dtype)?.is_some_and(|code| code.trim_start_matches(['|', '<', '>', '=']).starts_with('O')))
    }

    /// The code of a numpy dtype, such as `f8`, as its constructor got it.
    pub(super) fn dtype_code(&mut self, dtype: StackValue) -> Result<Option<String>, PickleHalt> {
        let Some(node) = self.arena.get(dtype) else { return Ok(None) };
        let arguments = node.arguments;
        let first = self.arena.get(arguments).and_then(|node| node.items.first().copied());
        Ok(match first {
            Some(first) if first.kind() == ValueKind::Text => self.reader.text(first.payload())?,
            _ => None,
        })
    }
}

fn name_of(fills: Fills) -> &'static str {
    if fills == Fills::Set { "set" } else { "list" }
}

/// Class, key and number of elements in `('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4)`, with what a legacy file has behind it.
fn printed_storage(line: &str) -> Option<(&str, &str, u64)> {
    let rest = line.strip_prefix("('storage', <class 'torch.")?;
    let (class, rest) = rest.split_once("'>, '")?;
    let (key, rest) = rest.split_once("', '")?;
    let (_, rest) = rest.split_once("', ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let elements = rest.get(..digits)?.parse().ok()?;
    (class.chars().all(char::is_alphanumeric) && rest.ends_with(')')).then_some((class, key, elements))
}

#[cfg(test)]
mod tests {
    use super::printed_storage;

    #[test]
    fn a_printed_reference_is_read() {
        let line = "('storage', <class 'torch.FloatStorage'>, '17', 'cpu', 4)";
        assert_eq!(printed_storage(line), Some(("FloatStorage", "17", 4)));
        let line = "('storage', <class 'torch.HalfStorage'>, '17', 'cpu', 4, ('18', 0, 2))";
        assert_eq!(printed_storage(line), Some(("HalfStorage", "17", 4)));
        assert_eq!(printed_storage("('module', <class 'x.Y'>, 'a', 'b')"), None);
    }
}
