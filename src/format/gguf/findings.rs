//! What is accepted but should not be there: the first findings with their text, the others by number.

use crate::error::Fault;
use crate::rules;

pub(super) struct Findings {
    list: Vec<Fault>,
    more: usize,
    most: usize,
}

impl Findings {
    pub(super) fn new(most: usize) -> Self {
        Self { list: Vec::new(), more: 0, most }
    }

    pub(super) fn note(&mut self, finding: impl FnOnce() -> Fault) {
        if self.list.len() < self.most {
            self.list.push(finding());
        } else {
            self.more += 1;
        }
    }

    pub(super) fn finish(mut self) -> Vec<Fault> {
        if self.more > 0 {
            self.list.push(Fault::new(rules::GGUF_MORE_FINDINGS, format!("{} more findings", self.more)));
        }
        self.list
    }
}
