//! The instructions that import a class or function: by two lines, or by two texts on the stack.

use max_weights::format::pickle::spelling::Instruction;
use max_weights::rules;

use super::machine::{PickleStep, ScanMachine};
use super::reader::MAX_TEXT;
use super::value::{KEPT, StackValue, ValueKind};

impl ScanMachine<'_, '_> {
    /// Module and name in two lines.
    pub(super) fn global(&mut self, opcode: u8) -> PickleStep<()> {
        let Instruction { start, len, .. } = self.instruction;
        let mut parts = [None, None];
        for (part, (start, len)) in parts.iter_mut().zip([(start, len), self.instruction.second_line()]) {
            let bytes = self.reader.some(start, len.min(MAX_TEXT as u64) as usize)?;
            *part = if len <= MAX_TEXT as u64 { String::from_utf8(bytes.to_vec()).ok() } else { beginning(bytes) };
        }
        let [module, name] = parts;
        // No reader of today imports what is not UTF-8.
        self.found.imports += u64::from(module.as_deref().is_some_and(can_be_imported) && name.is_some());
        let global = self.named(module, name);
        if opcode == b'c' {
            return self.push(global);
        }
        let arguments = self.marked(KEPT)?;
        let arguments = self.arena.push(ValueKind::Tuple, arguments);
        let made = self.call(global, arguments, None)?;
        self.push(made)
    }

    pub(super) fn stack_global(&mut self) -> PickleStep<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        let may_be_text =
            |value: &StackValue| matches!(value.kind(), ValueKind::Text | ValueKind::Object | ValueKind::Unknown);
        self.found.imports += u64::from([name, module].iter().all(may_be_text));
        let mut parts = [None, None];
        for (part, value) in parts.iter_mut().zip([module, name]) {
            if value.kind() == ValueKind::Text {
                *part = self.reader.text(value.payload())?;
            }
        }
        let [module, name] = parts;
        let global = self.named(module, name);
        self.push(global)
    }

    fn named(&mut self, module: Option<String>, name: Option<String>) -> StackValue {
        let (Some(module), Some(name)) = (module, name) else {
            self.report(
                rules::CODE_UNRESOLVABLE,
                "the name of a class or function is not a plain string: what it is shows only when the file is loaded",
            );
            return StackValue::UNKNOWN;
        };
        let number = self.names.number(module, name, self.protocol, self.at);
        StackValue::new(ValueKind::Global, u64::from(number))
    }
}

/// The first bytes of a line that is too long for a name; a reader imports the module before it looks up the name.
fn beginning(bytes: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // A character may be cut at the end.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(bytes.get(..error.valid_up_to())?).ok()?,
        Err(_) => return None,
    };
    Some(format!("{text}…"))
}

/// Whether a module of this name may be there: any name of a file.
fn can_be_imported(module: &str) -> bool {
    !module.is_empty() && !module.contains('\0')
}
