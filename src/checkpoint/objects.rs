//! What PyTorch files have beside tensors: named values, the calls that their pickles describe, and the names that these have.

use super::{Catalog, FileFacts};
use crate::format::pickle::{GlobalUse, Object, ObjectId, Pickled, source_of};
use crate::format::torch::Torch;
use crate::names::join;
use crate::text;

/// A value of a PyTorch file that is not a tensor, or a call that its pickle describes.
#[derive(Debug, Clone, Copy)]
pub struct FileObject<'a> {
    /// The file, by its number in [`Catalog::files`].
    pub file: u32,
    /// The full name; empty for a call, whose result may be anywhere or nowhere.
    pub name: &'a str,
    /// The pickle that it is in.
    pub pickled: &'a Pickled,
    /// Its number there.
    pub id: ObjectId,
}

impl<'a> FileObject<'a> {
    /// The value.
    pub fn object(&self) -> &'a Object {
        self.pickled.objects.get(self.id)
    }

    /// The value as Python source, cut after so many characters; see [`source_of`].
    pub fn source(&self, most: usize) -> String {
        source_of(self.pickled, self.id, most)
    }

    /// The byte of the file at which it is made, where that is known.
    pub fn position(&self) -> Option<u64> {
        self.pickled.position_of(self.id)
    }

    /// The class or function that it would be made by, and what is known about that; `None` for what is plain data.
    pub fn global(&self) -> Option<&'a GlobalUse> {
        match self.object() {
            Object::Opaque(_) => self.pickled.objects.opaque(self.id).map(|opaque| self.pickled.global(opaque.global)),
            Object::Global(global) | Object::Subclass { class: global, .. } => Some(self.pickled.global(*global)),
            _ => None,
        }
    }
}

impl Catalog {
    /// What a name is that no weight has, where a PyTorch file has a value of that name, or values below it.
    pub(super) fn object_note(&self, name: &str) -> Option<String> {
        let below = join(name, "");
        let leaf = self.objects().find(|object| object.name == name || object.name.starts_with(&below))?.name;
        let (is, leaf) = if leaf == name { ("is", name) } else { ("holds", leaf) };
        Some(format!(
            "it {is} a value that is not a tensor: max_weights.infos(weights).objects['{}']",
            text::shown(leaf)
        ))
    }

    fn torch_files(&self) -> impl Iterator<Item = (u32, &Torch)> {
        (0..self.pickles()).filter_map(|file| Some((file, &**self.torch(file)?)))
    }

    /// The values of PyTorch files that are not tensors, in the order of the files.
    pub fn objects(&self) -> impl Iterator<Item = FileObject<'_>> {
        self.torch_files().flat_map(|(file, torch)| {
            let named = torch.objects.iter();
            named.map(move |leaf| FileObject { file, name: &leaf.name, pickled: &torch.pickled, id: leaf.object })
        })
    }

    /// Every call that Python would make where it loaded these files, and that is never made here, in the order of the files; see
    /// [`Pickled::calls`].
    pub fn calls(&self) -> impl Iterator<Item = FileObject<'_>> {
        self.torch_files().flat_map(|(file, torch)| {
            let calls = torch.pickled.calls();
            calls.map(move |(id, _)| FileObject { file, name: "", pickled: &torch.pickled, id })
        })
    }

    /// Every class and function that the pickles of PyTorch files name, with the number of the file, in the order of their first places. Those
    /// of what follows the pickle of a file come after it: another program than torch may read them.
    pub fn globals(&self) -> impl Iterator<Item = (u32, &GlobalUse)> {
        let of_torch = self.torch_files().flat_map(|(file, torch)| {
            torch.pickled.globals.iter().chain(&torch.stray_globals).map(move |global| (file, global))
        });
        let distributed = self.files.iter().filter_map(FileFacts::distributed);
        of_torch.chain(distributed.flat_map(|said| said.globals.iter().map(|global| (0, global))))
    }
}
