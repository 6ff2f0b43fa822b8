//! Tensors of different names that have the same bytes.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use max_weights::check::PassResult;
use max_weights::tensor::TensorInfo;
use max_weights::{Diagnostic, rules, text};

use crate::folder::ListedFile;
use crate::kind::Kind;

/// Smaller tensors are often alike, as norms are that nothing was trained of.
const MIN_DUPLICATE_BYTES: u64 = 4096;
/// Names that a finding has.
const NAMES: usize = 3;

/// What is the same in two tensors that are: the format of the files, the dtype, the shape, the bytes.
type ContentKey = (Kind, String, Vec<u64>, [u8; 32]);

/// The tensors of a folder by their contents.
#[derive(Default)]
pub(super) struct Duplicates {
    tensors: HashMap<ContentKey, DuplicateGroup>,
}

/// Tensors of the same contents.
struct DuplicateGroup {
    path: Arc<Path>,
    bytes: u64,
    offset: u64,
    /// The first ones.
    first: Vec<String>,
    names: HashSet<String>,
    /// Where each of them lies.
    places: HashSet<(Arc<Path>, u32, u64)>,
}

impl Duplicates {
    /// Adds a tensor, unless it is small, or one number throughout.
    pub(super) fn add(&mut self, entry: &ListedFile, info: &TensorInfo<'_>, contents: &PassResult) {
        let Some(sha256) = contents.sha256 else { return };
        let is_constant =
            contents.statistics.as_ref().is_none_or(|found| found.minimum == found.maximum && found.nans == 0);
        if is_constant || info.bytes() < MIN_DUPLICATE_BYTES {
            return;
        }
        let key = (entry.kind, info.element.to_string(), info.shape.to_vec(), sha256);
        let storage = info.view.map_or(info.span, |view| view.storage).start();
        let group = self.tensors.entry(key).or_insert_with(|| DuplicateGroup {
            path: entry.path.clone(),
            bytes: info.bytes(),
            offset: info.span.start(),
            first: Vec::new(),
            names: HashSet::new(),
            places: HashSet::new(),
        });
        // What shares its bytes is tied as it should be, and the same name in another file is another version of the same.
        let is_shared = !group.places.insert((entry.path.clone(), info.file, storage));
        if !is_shared && group.names.insert(info.name.to_owned()) && group.first.len() <= NAMES {
            group.first.push(info.name.to_owned());
        }
    }

    /// A finding for each group of tensors that are the same, in the order of their names.
    pub(super) fn findings(self) -> Vec<(Arc<Path>, Diagnostic)> {
        let mut groups: Vec<(ContentKey, DuplicateGroup)> =
            self.tensors.into_iter().filter(|(_, group)| group.names.len() > 1).collect();
        groups.sort_by(|(_, a), (_, b)| (&a.path, a.offset, &a.first).cmp(&(&b.path, b.offset, &b.first)));
        groups.into_iter().map(|(_, group)| (group.path.clone(), finding(&group))).collect()
    }
}

fn finding(group: &DuplicateGroup) -> Diagnostic {
    let quoted: Vec<String> = group.first.iter().skip(1).map(|name| format!("'{}'", text::escape(name))).collect();
    let others = group.names.len() - 1;
    let more = if others > NAMES { format!(" and {} more", others - NAMES) } else { String::new() };
    let lost = text::size(group.bytes.saturating_mul(others as u64));
    let have = if others == 1 { "has" } else { "have" };
    let message = format!("{}{more} {have} the same dtype, shape and bytes: {lost} more than once", quoted.join(", "));
    let finding = Diagnostic::new(rules::VALUES_DUPLICATE, message).offset(group.offset);
    group.first.first().map_or(finding.clone(), |name| finding.tensor(name))
}
