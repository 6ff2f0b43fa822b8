//! The values of a pickle, of any machine, as Python source: plain data as by `repr`, and values that are not built as the calls that would build
//! them.
//!
//! Nothing here recurses, and the output has a limit of characters, so that deep nesting and values that contain each other many times are safe.

use std::collections::HashSet;
use std::hash::Hash;

use super::literal::Limited;

/// The most chained calls, each on the result of the previous one, that are written.
const MAX_CALLS: usize = 100;

/// The values of a machine, each by its number.
pub trait SourceValues {
    /// The number of a value.
    type Id: Copy + Eq + Hash;

    /// Writes a value, or the text before its parts if it has some.
    fn put(&mut self, id: Self::Id, out: &mut Limited) -> SourceForm<Self::Id>;

    /// The part of a container with this number, or the step with this number on the result of a call.
    fn part(&self, id: Self::Id, number: usize) -> SourcePart<Self::Id>;

    /// Writes the name of the class or function that would build a value.
    fn put_name(&self, id: Self::Id, out: &mut Limited);

    /// The text that a value is, as the key of a keyword argument.
    fn keyword(&mut self, id: Self::Id) -> Option<String>;
}

/// How a value is written.
pub enum SourceForm<Id> {
    /// Nothing more.
    Written,
    /// Its parts with commas between them, and this end.
    Parts(&'static str),
    /// One value, this end, and the steps.
    Of(Id, &'static str),
    /// A call, of which nothing was written yet.
    Call(UnresolvedCall<Id>),
}

/// A call that would build the value. If arguments are not listed, one value has all of them.
#[derive(Clone, Copy)]
pub struct UnresolvedCall<Id> {
    /// The callee.
    pub callee: Id,
    /// The arguments, and whether the parts of that value are the arguments.
    pub arguments: Option<(Id, bool)>,
    /// The keyword arguments, and whether the parts of that value are them.
    pub keywords: Option<(Id, bool)>,
}

/// A part of a container, or a step on the result of a call.
#[derive(Clone, Copy)]
pub enum SourcePart<Id> {
    /// A value that is in it, or is added.
    Value(Id),
    /// A key and its value.
    Entry(Id, Id),
    /// A state that it gets.
    State(Id),
    /// Further ones, which are not known.
    Unknown,
    /// The end.
    End,
}

/// Writes module and name. An invalid Python name such as `os.system('x')` could pass for something else, so it is in angle brackets.
pub fn put_global(module: &str, name: &str, out: &mut Limited) {
    if [module, name].iter().all(|dotted| dotted.split('.').all(is_name)) {
        out.put(module);
        out.put(".");
        return out.put(name);
    }
    out.put("<");
    out.text(module);
    out.put(".");
    out.text(name);
    out.put(">");
}

/// Whether the text can be in source as a name.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_numeric())
        && text.chars().all(|c| c == '_' || c.is_alphanumeric())
}

/// The remaining tasks; the last comes first. Parts and steps have the number of the next one.
enum SourceTask<Id> {
    Put(&'static str),
    Value(Id),
    Parts(Id, usize),
    /// Keyword arguments; whether others are before.
    Keywords(Id, usize, bool),
    /// Steps, and how the list of them ends that is open.
    Steps(Id, usize, &'static str),
    /// A value that is written to its end.
    Leave(Id),
}

/// Writes values and calls as Python source.
pub struct SourceWriter<'v, V: SourceValues> {
    values: &'v mut V,
    out: Limited,
    open: Vec<SourceTask<V::Id>>,
    /// The values that are being written. Each writes something before its parts, so that their number is bounded by the characters.
    within: HashSet<V::Id>,
}

impl<'v, V: SourceValues> SourceWriter<'v, V> {
    /// A writer of at most `most` characters; `…` stands for the rest. They are safe to print.
    pub fn new(values: &'v mut V, most: usize) -> Self {
        Self { values, out: Limited::new(most), open: Vec::new(), within: HashSet::new() }
    }

    /// A value.
    pub fn value(mut self, id: V::Id) -> String {
        self.open.push(SourceTask::Value(id));
        self.finish()
    }

    /// A call, before it has a result.
    pub fn call(mut self, call: UnresolvedCall<V::Id>) -> String {
        self.open_call(call);
        self.open.push(SourceTask::Value(call.callee));
        self.finish()
    }

    fn finish(mut self) -> String {
        while let Some(task) = self.open.pop() {
            self.run(task);
            if self.out.is_full() {
                break;
            }
        }
        self.out.finish()
    }

    fn run(&mut self, task: SourceTask<V::Id>) {
        match task {
            SourceTask::Put(piece) => self.out.put(piece),
            SourceTask::Value(id) => self.put(id),
            SourceTask::Leave(id) => drop(self.within.remove(&id)),
            SourceTask::Parts(id, number) => {
                if let Some((key, value)) = self.next(id, number, number > 0) {
                    self.open.extend([SourceTask::Parts(id, number + 1), SourceTask::Value(value)]);
                    self.open.extend(key.into_iter().flat_map(|key| [SourceTask::Put(": "), SourceTask::Value(key)]));
                }
            }
            SourceTask::Keywords(id, number, some) => {
                let Some((key, value)) = self.next(id, number, some || number > 0) else { return };
                let Some(key) = key else { return };
                self.open.push(SourceTask::Keywords(id, number + 1, some));
                if let Some(name) = self.values.keyword(key).filter(|name| is_name(name)) {
                    self.out.put(&name);
                    self.open.extend([SourceTask::Value(value), SourceTask::Put("=")]);
                } else {
                    self.out.put("**{");
                    self.open.extend([
                        SourceTask::Put("}"),
                        SourceTask::Value(value),
                        SourceTask::Put(": "),
                        SourceTask::Value(key),
                    ]);
                }
            }
            SourceTask::Steps(id, number, end) => self.step(id, number, end),
        }
    }

    /// Key and value of a part, after a comma if others precede it; a mark for unknown ones.
    fn next(&mut self, id: V::Id, number: usize, some: bool) -> Option<(Option<V::Id>, V::Id)> {
        let part = self.values.part(id, number);
        if some && !matches!(part, SourcePart::End) {
            self.out.put(", ");
        }
        match part {
            SourcePart::Value(value) | SourcePart::State(value) => Some((None, value)),
            SourcePart::Entry(key, value) => Some((Some(key), value)),
            SourcePart::Unknown => {
                self.out.put("…");
                None
            }
            SourcePart::End => None,
        }
    }

    fn put(&mut self, id: V::Id) {
        // The innermost call is written first, and the search for it writes nothing.
        let (mut id, mut calls) = (id, 0);
        loop {
            match self.values.put(id, &mut self.out) {
                SourceForm::Written => {}
                SourceForm::Of(value, end) => {
                    self.open.extend([SourceTask::Steps(id, 0, ""), SourceTask::Put(end), SourceTask::Value(value)]);
                }
                SourceForm::Parts(end) if self.within.insert(id) => {
                    self.open.extend([SourceTask::Leave(id), SourceTask::Put(end), SourceTask::Parts(id, 0)]);
                }
                SourceForm::Parts(end) => {
                    self.out.put("...");
                    self.out.put(if end == ",)" { ")" } else { end });
                }
                SourceForm::Call(call) if calls < MAX_CALLS && self.within.insert(id) => {
                    self.open.extend([SourceTask::Leave(id), SourceTask::Steps(id, 0, "")]);
                    self.open_call(call);
                    (id, calls) = (call.callee, calls + 1);
                    continue;
                }
                SourceForm::Call(_) => {
                    self.values.put_name(id, &mut self.out);
                    self.out.put("(...)");
                }
            }
            return;
        }
    }

    /// The arguments of a call; the callee was written before.
    fn open_call(&mut self, UnresolvedCall { arguments, keywords, .. }: UnresolvedCall<V::Id>) {
        let is_none = |id| matches!(self.values.part(id, 0), SourcePart::End);
        let some = arguments.is_some_and(|(id, is_list)| !is_list || !is_none(id));
        self.open.push(SourceTask::Put(")"));
        match keywords {
            Some((id, true)) => self.open.push(SourceTask::Keywords(id, 0, some)),
            Some((id, false)) => {
                self.open.extend([SourceTask::Value(id), SourceTask::Put(if some { ", **" } else { "**" })]);
            }
            None => {}
        }
        match arguments {
            Some((id, true)) => self.open.push(SourceTask::Parts(id, 0)),
            Some((id, false)) => self.open.extend([SourceTask::Value(id), SourceTask::Put("*")]),
            None => {}
        }
        self.open.push(SourceTask::Put("("));
    }

    /// The next call on a result; consecutive additions share one call.
    fn step(&mut self, id: V::Id, number: usize, end: &'static str) {
        let step = self.values.part(id, number);
        let (before, same_end) = match step {
            SourcePart::State(_) => (".__setstate__(", ")"),
            SourcePart::Value(_) => (".extend([", "])"),
            SourcePart::Entry(..) => (".update({", "})"),
            SourcePart::Unknown | SourcePart::End => ("", ""),
        };
        if same_end == end && same_end.len() == 2 {
            self.out.put(", ");
        } else {
            self.out.put(end);
            self.out.put(before);
        }
        self.open.extend((!same_end.is_empty()).then_some(SourceTask::Steps(id, number + 1, same_end)));
        match step {
            SourcePart::State(value) | SourcePart::Value(value) => self.open.push(SourceTask::Value(value)),
            SourcePart::Entry(key, value) => {
                self.open.extend([SourceTask::Value(value), SourceTask::Put(": "), SourceTask::Value(key)]);
            }
            SourcePart::Unknown | SourcePart::End => {}
        }
    }
}
