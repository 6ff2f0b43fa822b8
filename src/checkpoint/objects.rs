//! The contents of PyTorch files other than tensors: named values, and the calls and globals of their pickles.

use super::{Catalog, FileFacts};
use crate::format::pickle::{GlobalUse, ObjectId, PickleObject, Pickled, source_of};
use crate::format::torch::Torch;
use crate::names::join;
use crate::text;

/// A value of a PyTorch file that is not a tensor, or a call in its pickle.
#[derive(Debug, Clone, Copy)]
pub struct FileObject<'a> {
    /// The file, by its number in [`Catalog::files`].
    pub file: u32,
    /// The full name; empty for a call, whose result need not have a name.
    pub name: &'a str,
    /// The pickle that contains it.
    pub pickled: &'a Pickled,
    /// Its number there.
    pub id: ObjectId,
}

impl<'a> FileObject<'a> {
    /// The value.
    pub fn object(&self) -> &'a PickleObject {
        self.pickled.objects.get(self.id)
    }

    /// The value as Python source, cut after `most` characters; see [`source_of`].
    pub fn source(&self, most: usize) -> String {
        source_of(self.pickled, self.id, most)
    }

    /// The offset in the file of the opcode that makes it, if known.
    pub fn position(&self) -> Option<u64> {
        self.pickled.position_of(self.id)
    }

    /// The class or function that would make it, and what is known about that; `None` for plain data.
    pub fn global(&self) -> Option<&'a GlobalUse> {
        match self.object() {
            PickleObject::Opaque(_) => {
                self.pickled.objects.opaque(self.id).map(|opaque| self.pickled.global(opaque.global))
            }
            PickleObject::Global(global) | PickleObject::Subclass { class: global, .. } => {
                Some(self.pickled.global(*global))
            }
            _ => None,
        }
    }
}

impl Catalog {
    /// A note if a PyTorch file has a value of this name, or values below it, instead of a weight.
    pub(super) fn object_note(&self, name: &str) -> Option<String> {
        let below = join(name, "");
        let leaf = self.objects().find(|object| object.name == name || object.name.starts_with(&below))?.name;
        let (is, leaf) = if leaf == name { ("is", name) } else { ("holds", leaf) };
        Some(format!(
            "it {is} a value that is not a tensor: max_weights.infos(weights).objects['{}']",
            text::escape(leaf)
        ))
    }

    fn torch_files(&self) -> impl Iterator<Item = (u32, &Torch)> {
        (0..self.pickles()).filter_map(|file| Some((file, &**self.torch(file)?)))
    }

    /// The values of PyTorch files that are not tensors, in file order.
    pub fn objects(&self) -> impl Iterator<Item = FileObject<'_>> {
        self.torch_files().flat_map(|(file, torch)| {
            let named = torch.objects.iter();
            named.map(move |leaf| FileObject { file, name: &leaf.name, pickled: &torch.pickled, id: leaf.object })
        })
    }

    /// Every call that Python would make if it loaded these files, in file order. None is executed here; see [`Pickled::calls`].
    pub fn calls(&self) -> impl Iterator<Item = FileObject<'_>> {
        self.torch_files().flat_map(|(file, torch)| {
            let calls = torch.pickled.calls();
            calls.map(move |(id, _)| FileObject { file, name: "", pickled: &torch.pickled, id })
        })
    }

    /// Every class and function named in the pickles of PyTorch files, with the file number, in order of first use. Those in data after a file's
    /// pickle come last: programs other than torch may read them.
    pub fn globals(&self) -> impl Iterator<Item = (u32, &GlobalUse)> {
        let of_torch = self.torch_files().flat_map(|(file, torch)| {
            torch.pickled.globals.iter().chain(&torch.stray_globals).map(move |global| (file, global))
        });
        let distributed = self.files.iter().filter_map(FileFacts::distributed);
        of_torch.chain(distributed.flat_map(|declared| declared.globals.iter().map(|global| (0, global))))
    }
}
