//! Rules that undo how llama.cpp's converter changes weights, besides the names. It reorders the rows of query and key matrices for rotary position
//! embedding, and adds 1 to the weights of norms.
//!
//! A head's rows are pairs that are rotated together. In llama.cpp the two rows of a pair are neighbours; Hugging Face has the first rows of all
//! pairs, then the second ones. Rows stay whole, so the rules also work for packed blocks.

use std::collections::HashMap;
use std::sync::Arc;

use super::groups::not_addable;
use super::rule::{ConversionRule, ConversionStep};
use crate::checkpoint::Catalog;
use crate::error::{Diagnostic, Result};
use crate::names::Template;
use crate::rules::{self, Rule};
use crate::tensor::TensorInfo;

impl ConversionRule {
    /// Reorders the rows of `heads` heads from pairs to halves: all first rows of a head, then all second ones. The name stays.
    fn pairs_to_halves(name: &str, heads: u64) -> Result<Self> {
        let steps = vec![ConversionStep::Deinterleave(0, None, vec![1, 1]), ConversionStep::Interleave(0, Some(heads))];
        Self::of_one(name, steps)
    }

    /// A rule for one weight, which keeps its name.
    fn of_one(name: &str, steps: Vec<ConversionStep>) -> Result<Self> {
        Self::new(vec![Template::exact(name)], vec![Template::exact(name)], steps)
    }
}

impl Catalog {
    /// The weights of a GGUF file in the layout of Hugging Face. All arguments have the names of the file as keys: `names` gives the new names,
    /// `heads` the number of heads of matrices with paired rows, and `amounts` the number to add.
    ///
    /// # Errors
    /// Two weights with one name. Rows that do not form `heads` heads of pairs, and elements without addition, are an error when that weight is
    /// loaded.
    pub fn renamed_from_gguf(
        self: &Arc<Self>,
        names: &HashMap<String, String>,
        heads: &HashMap<String, u64>,
        amounts: &HashMap<String, i32>,
    ) -> Result<Self> {
        let renamed = self.renamed(|number| names.get(self.table().name(number)).cloned())?;
        let (mut conversions, mut refused) = (Vec::new(), Vec::new());
        for number in 0..self.table().len() {
            let (name, info) = (self.table().name(number), renamed.table().get(number));
            let (fault, rule) = if let Some(&heads) = heads.get(name) {
                (renamed.unlike_heads(&info, heads), ConversionRule::pairs_to_halves(info.name, heads))
            } else if let Some(&amount) = amounts.get(name) {
                let fault = not_addable(info.element).map(|cause| renamed.fault(rules::NAMES_CONVERSION, cause, &info));
                (fault, ConversionRule::of_one(info.name, vec![ConversionStep::Add(amount)]))
            } else {
                continue;
            };
            match fault {
                Some(fault) => refused.push((number, fault)),
                None => conversions.push(rule?),
            }
        }
        if conversions.is_empty() && refused.is_empty() {
            return Ok(renamed);
        }
        let mut converted = Arc::new(renamed).converted(conversions)?;
        // Each of these rules is for one weight, so all keep their numbers.
        if let Some(composition) = converted.composition.as_mut().and_then(Arc::get_mut) {
            for (number, fault) in refused {
                composition.refuse(number, fault);
            }
        }
        Ok(converted)
    }

    /// The fault if the rows of a matrix do not form `heads` heads of pairs.
    fn unlike_heads(&self, info: &TensorInfo<'_>, heads: u64) -> Option<Diagnostic> {
        let rows = info.shape.first().copied().unwrap_or_default();
        let cause = match heads.checked_mul(2) {
            Some(pairs) if pairs > 0 && rows > 0 && rows % pairs == 0 => return None,
            Some(0) => {
                "the metadata of the file lacks the number of heads, which the order of its rows needs".to_owned()
            }
            _ => format!("the rows of shape {:?} are not {heads} heads of pairs of rows", info.shape),
        };
        Some(self.fault(rules::GGUF_HEADS, cause, info))
    }

    /// The fault of a weight that cannot be converted to the layout of Hugging Face.
    fn fault(&self, rule: &'static Rule, cause: String, info: &TensorInfo<'_>) -> Diagnostic {
        let fault = Diagnostic::new(rule, cause).tensor(info.name).offset(info.span.start());
        let fault = fault.help("Take the weight from the tree with the file's own names");
        match self.files().get(info.file as usize) {
            Some(file) => fault.path(&file.path),
            None => fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::checkpoint::OpenOptions;
    use crate::dtype::DType;

    #[test]
    fn rows_of_pairs_become_halves_and_other_rows_are_an_error_of_their_weight() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let header = r#"{"k":{"dtype":"U8","shape":[6,2],"data_offsets":[0,12]},"q":{"dtype":"U8","shape":[12],"data_offsets":[12,24]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend((0..24).collect::<Vec<u8>>());
        std::fs::write(&path, bytes).expect("written");
        let checkpoint = Checkpoint::open(&[&path], &OpenOptions::default()).expect("opened");
        let names = HashMap::from([("q".to_owned(), "query".to_owned())]);
        let heads = HashMap::from([("q".to_owned(), 2), ("k".to_owned(), 2)]);
        let renamed = checkpoint.catalog().renamed_from_gguf(&names, &heads, &HashMap::new()).expect("renamed");
        let checkpoint = checkpoint.with_catalog(Arc::new(renamed));
        let query = checkpoint.tensor(checkpoint.catalog().require("query").expect("there")).expect("taken");
        assert_eq!(
            (query.dtype(), query.bytes()),
            (DType::UInt8, Some(&[12, 14, 16, 13, 15, 17, 18, 20, 22, 19, 21, 23][..]))
        );
        let refused = checkpoint.tensor(checkpoint.catalog().require("k").expect("there")).expect_err("refused");
        assert!(refused.to_string().contains("[6, 2] are not 2 heads of pairs of rows"), "{refused}");
    }
}
