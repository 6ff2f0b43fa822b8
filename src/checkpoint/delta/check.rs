//! Checks of a delta without its base: rows and records must fit tensors of its dtypes and shapes.

use std::sync::Arc;

use crate::delta::apply;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::width;
use crate::rules;
use crate::source::Source;
use crate::tensor::{Element, checked_bytes};
use crate::text;
use crate::workers::Interrupt;

use super::super::OpenOptions;
use super::super::packed::Unpacker;
use super::identity::hash_of_block;
use super::open::header_of;
use super::overlay::Overlay;
use super::{Content, OpenedDelta};

/// The number of changed elements of a tensor, and of all its elements. With [`Dialect::Xor`](super::DeltaDialect::Xor) and
/// [`Dialect::Overwrite`](super::DeltaDialect::Overwrite) both count bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedElements {
    /// Its name.
    pub name: String,
    /// The number of changes.
    pub changed: u64,
    /// The total number; `None` if the delta does not give it.
    pub elements: Option<u64>,
}

impl OpenedDelta {
    /// Opens a file as a delta; `None` for another kind of file.
    ///
    /// # Errors
    /// An invalid header.
    pub fn of_source(source: Arc<dyn Source>, options: &OpenOptions) -> Result<Option<Self>> {
        let header = header_of(&*source, options)?;
        Self::of_file(source, header)
    }

    /// The faults of its tensors, at most one each. For other libraries' deltas, a check needs the base.
    ///
    /// # Errors
    /// The file cannot be read; the check was cancelled.
    pub fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let mut faults = Vec::new();
        match self.unchanged_names(interrupt) {
            Ok(_) => {}
            Err(Error::Format(fault)) => faults.push(*fault),
            Err(error) => return Err(error),
        }
        for name in self.header.changed.keys().chain(self.header.whole.keys()) {
            match self.alone(name).and_then(|overlay| overlay.check(interrupt)) {
                Ok(()) => {}
                Err(Error::Format(fault)) => faults.push(*fault),
                Err(error) => return Err(error),
            }
        }
        Ok(faults)
    }

    /// The number of changes in each tensor, including tensors that the delta has whole.
    ///
    /// # Errors
    /// Invalid or unreadable rows or frames.
    pub fn elements(&self, interrupt: Interrupt<'_>) -> Result<Vec<ChangedElements>> {
        let mut all = Vec::new();
        for name in self.header.changed.keys() {
            let overlay = self.alone(name)?;
            let mut changed = 0;
            for layer in &overlay.layers {
                let counts = overlay.blocks(layer, interrupt)?.iter().map(|block| block.lists);
                changed += counts.map(|lists| u64::from(lists.low.count) + u64::from(lists.whole.count)).sum::<u64>();
            }
            let elements = Some(overlay.len / overlay.width as u64);
            all.push(ChangedElements { name: name.clone(), changed, elements });
        }
        all.extend(self.whole().map(|info| {
            let elements = info.shape.iter().product();
            ChangedElements { name: info.name.to_owned(), changed: elements, elements: Some(elements) }
        }));
        if let Content::Patches { patches, .. } = &self.content {
            let mut unpacker = Unpacker::default();
            for (name, patch) in patches {
                let (changed, elements) = patch.extent(&mut unpacker, interrupt)?;
                all.push(ChangedElements { name: name.clone(), changed, elements });
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// One block of each of some changed tensors: the names and block numbers.
    ///
    /// # Errors
    /// Invalid or unreadable rows.
    pub(crate) fn some_changed(&self, most: usize, interrupt: Interrupt<'_>) -> Result<Vec<(String, u64)>> {
        let names: Vec<&String> = self.header.changed.keys().chain(self.header.whole.keys()).collect();
        let mut some = Vec::new();
        for name in names.iter().step_by(names.len().div_ceil(most.max(1)).max(1)) {
            let overlay = self.alone(name)?;
            for layer in &overlay.layers {
                some.extend(overlay.blocks(layer, interrupt)?.first().map(|block| ((*name).clone(), block.number)));
            }
        }
        Ok(some)
    }

    /// Its changes to a tensor, whose length is in the header.
    fn alone(&self, name: &str) -> Result<Overlay> {
        let refused = |cause: String| Err(self.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
        if let Some(info) = self.whole_of(name) {
            let Element::Plain(dtype) = info.element else {
                return refused(format!("its elements would be {}, which has no deltas", info.element));
            };
            let (name, values) = (name.to_owned(), Some((self.source.clone(), info.span)));
            let layers = vec![self.values_layer(&name)?];
            return Ok(Overlay { name, len: info.span.len(), width: width(dtype), layers, values });
        }
        let (Some((dtype, shape, _)), Content::Blocks { .. }) = (self.header.changed.get(name), &self.content) else {
            return refused("the header of the delta does not list it".to_owned());
        };
        let Some(dtype) = DType::from_safetensors_name(dtype) else {
            return refused(format!("its elements would be '{}', which is not a dtype", text::escape(dtype)));
        };
        let Some(len) = checked_bytes(shape, dtype) else {
            return refused(format!("no tensor of {dtype} has the shape {}", text::shape(shape)));
        };
        Ok(Overlay { name: name.to_owned(), len, width: width(dtype), layers: vec![self.layer(name)?], values: None })
    }
}

impl Overlay {
    /// Fails if a record does not fit its block.
    fn check(&self, interrupt: Interrupt<'_>) -> Result<()> {
        let (mut block, mut buffer) = (Vec::new(), Vec::new());
        for layer in &self.layers {
            // Only existing blocks: a header may declare very many.
            for number in self.blocks(layer, interrupt)?.iter().map(|block| block.number) {
                interrupt()?;
                let start = number * self.block_bytes();
                block.resize((self.len - start).min(self.block_bytes()) as usize, 0);
                let has_values = self.read_values(start, &mut block, interrupt)?;
                let records = self.records(&(number..number + 1), &mut buffer, interrupt)?;
                if has_values {
                    self.compose(number, &records, &mut block)?;
                    continue;
                }
                for records in records {
                    let Some((change, record)) = records.get(number) else { continue };
                    if hash_of_block(record) != change.record {
                        let cause = "the hash of its record differs from its row";
                        return Err(self.fault(rules::DELTA_CHANGES, layer, number, cause));
                    }
                    apply(record, change.lists, self.width, &mut block)
                        .map_err(|error| self.fault(rules::DELTA_CHANGES, layer, number, &error.to_string()))?;
                }
            }
        }
        Ok(())
    }
}
