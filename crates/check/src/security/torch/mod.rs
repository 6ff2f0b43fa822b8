//! PyTorch's archives: whether every member is accounted for by the pickle that names it.
//!
//! A member that a tensor refers to is as long as the tensor's storage, and is not examined: a reader takes it for numbers. A member that no tensor
//! refers to and that PyTorch does not write is examined as a separate file.

mod legacy;
mod script;

use std::collections::HashMap;

use max_weights::rules;
use max_weights::{Diagnostic, Result, text};

pub use legacy::scan_legacy;

use super::archive::{Archive, ArchiveMember};
use super::pickle::{self, PickleOrigin, StorageSeen};
use crate::context::{ByteSpan, FileContext};

/// Members that PyTorch writes in addition to the pickle, all of them a short text.
const NOTES: [&str; 6] =
    ["version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id", ".data/version"];
/// The longest of them.
const MAX_NOTE: u64 = 256;
/// Pickles of a TorchScript archive, and the folder of the storages that each refers to.
const PICKLES: [(&str, &str); 6] = [
    ("data.pkl", "data/"),
    ("constants.pkl", "constants/"),
    ("attributes.pkl", "attributes/"),
    ("bytecode.pkl", "constants/"),
    ("traced_inputs.pkl", "traced_inputs/"),
    ("mobile_debug_handles.pkl", "data/"),
];
/// Maximum number of PyTorch archives in one archive that are matched against its members.
const MAX_ROOTS: usize = 100;
/// What only a `torch.package` has.
const PACKAGE: [&str; 2] = [".data/extern_modules", ".data/python_version"];

/// Looks at an archive that has a `data.pkl` or a `constants.pkl`; tells which members it has accounted for. The others are looked at as members of
/// any archive are.
pub fn check_archive(piece: &ByteSpan<'_>, archive: &dyn Archive, context: &mut FileContext<'_>) -> Result<Vec<bool>> {
    context.check_cancelled()?;
    let members = archive.members();
    let mut check = TorchCheck { archive, members, by_name: HashMap::new(), accounted: vec![false; members.len()] };
    for (number, member) in members.iter().enumerate() {
        check.by_name.entry(&member.name).or_default().push(number);
    }
    let mut roots: Vec<&str> = members.iter().filter_map(|member| root_of(&member.name)).collect();
    roots.sort_unstable();
    roots.dedup();
    if roots.len() > MAX_ROOTS {
        let message = format!(
            "it has {} pickles named data.pkl: only the storages of {MAX_ROOTS} are compared with members",
            roots.len()
        );
        context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message));
        roots.truncate(MAX_ROOTS);
    }
    for root in &roots {
        context.check_cancelled()?;
        check.root(piece, root, context)?;
    }
    check.strangers(piece, &roots, context);
    Ok(check.accounted)
}

/// What is before `data.pkl` or `constants.pkl` in the name of a member.
fn root_of(name: &str) -> Option<&str> {
    let root = name.strip_suffix("data.pkl").or_else(|| name.strip_suffix("constants.pkl"))?;
    (root.is_empty() || root.ends_with('/')).then_some(root)
}

struct TorchCheck<'a> {
    archive: &'a dyn Archive,
    members: &'a [ArchiveMember],
    by_name: HashMap<&'a str, Vec<usize>>,
    accounted: Vec<bool>,
}

impl TorchCheck<'_> {
    /// Everything below one root.
    fn root(&mut self, piece: &ByteSpan<'_>, root: &str, context: &mut FileContext<'_>) -> Result<()> {
        let has = |name: &str| self.by_name.contains_key(format!("{root}{name}").as_str());
        let is_script = has("constants.pkl");
        let is_package = PACKAGE.iter().any(|name| has(name));
        if is_script {
            let message = "it has a program of TorchScript, which runs when it is loaded and called";
            context.report(piece, Diagnostic::new(rules::CODE_TORCHSCRIPT, message));
        }
        if is_package {
            let message = "it is a torch.package, whose modules run when it is loaded";
            context.report(piece, Diagnostic::new(rules::CODE_TORCH_PACKAGE, message));
        }
        for (name, folder) in PICKLES {
            if name == "data.pkl" || is_script {
                self.pickle(piece, &format!("{root}{name}"), &format!("{root}{folder}"), context)?;
            }
        }
        for name in NOTES {
            self.note(&format!("{root}{name}"), context)?;
        }
        if is_script {
            self.programs(piece, &format!("{root}code/"), context)?;
        }
        Ok(())
    }

    /// The members of this name, of which there should be one.
    fn named(&self, name: &str) -> Vec<usize> {
        self.by_name.get(name).cloned().unwrap_or_default()
    }

    /// A pickle and the storages that it refers to.
    fn pickle(&mut self, piece: &ByteSpan<'_>, name: &str, folder: &str, context: &mut FileContext<'_>) -> Result<()> {
        for number in self.named(name) {
            let Some(bytes) = self.archive.open(number, context)? else { continue };
            let way = piece.way_to(name);
            let inner = piece.inside(&*bytes, name, &way);
            let seen = pickle::scan(&inner, PickleOrigin::TorchZip, context)?;
            account(&mut self.accounted, number);
            for storage in &seen.storages {
                self.storage(&inner, folder, storage, context);
            }
        }
        Ok(())
    }

    /// A storage is the member of its key, and as long as the pickle says.
    fn storage(&mut self, pickle: &ByteSpan<'_>, folder: &str, storage: &StorageSeen, context: &mut FileContext<'_>) {
        let name = format!("{folder}{}", storage.key);
        let numbers = self.by_name.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let key = text::escape(&storage.key);
        let message = match (numbers, storage.bytes) {
            ([], _) => format!("the pickle refers to storage '{key}', but the archive has no member for it"),
            ([number], Some(bytes)) => match self.members.get(*number) {
                // The bytes of the inputs with which a program was traced are left out.
                Some(member) if member.size == 0 && folder.ends_with("traced_inputs/") => {
                    return account(&mut self.accounted, *number);
                }
                Some(member) if member.size != bytes => {
                    format!(
                        "storage '{key}' has {bytes} bytes according to the pickle, but its member has {}",
                        member.size
                    )
                }
                _ => return account(&mut self.accounted, *number),
            },
            ([number], None) => {
                account(&mut self.accounted, *number);
                format!(
                    "the size of storage '{key}' is unknown: its class or its number of elements is not one of PyTorch's"
                )
            }
            // Duplicates are reported as such, and each of them is examined.
            _ => return,
        };
        context.report(pickle, Diagnostic::new(rules::CODE_STORAGE, message));
    }

    /// A short text that PyTorch writes; anything else by this name is looked at as a file.
    fn note(&mut self, name: &str, context: &mut FileContext<'_>) -> Result<()> {
        for number in self.named(name) {
            if self.members.get(number).is_none_or(|member| member.size > MAX_NOTE) {
                continue;
            }
            let Some(bytes) = self.archive.open(number, context)? else { continue };
            let text = bytes.first(MAX_NOTE as usize)?;
            if text.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
                && !pickle::may_be_pickle(&text, bytes.len(), "")
            {
                account(&mut self.accounted, number);
            }
        }
        Ok(())
    }

    /// The program of a TorchScript archive, and the pickles that say where its lines come from.
    fn programs(&mut self, piece: &ByteSpan<'_>, folder: &str, context: &mut FileContext<'_>) -> Result<()> {
        for (number, member) in self.members.iter().enumerate() {
            if !member.name.starts_with(folder) {
                continue;
            }
            let is_pickle = member.name.ends_with(".debug_pkl");
            if !is_pickle && !crate::kind::has_suffix(&member.name, "py") {
                continue;
            }
            let Some(bytes) = self.archive.open(number, context)? else { continue };
            let way = piece.way_to(&member.name);
            let inner = piece.inside(&*bytes, &member.name, &way);
            if is_pickle {
                pickle::scan(&inner, PickleOrigin::TorchZip, context)?;
            } else {
                script::scan(&inner, context)?;
            }
            account(&mut self.accounted, number);
        }
        Ok(())
    }

    /// What belongs to nothing.
    fn strangers(&self, piece: &ByteSpan<'_>, roots: &[&str], context: &mut FileContext<'_>) {
        let has = |root: &str, name: &str| self.by_name.contains_key(format!("{root}{name}").as_str());
        // These have files of any program's.
        let is_free = |root: &&&str| has(root, "constants.pkl") || PACKAGE.iter().any(|name| has(root, name));
        if roots.is_empty() || roots.iter().any(|root| is_free(&root)) {
            return;
        }
        for (member, accounted) in self.members.iter().zip(&self.accounted) {
            if *accounted || member.name.ends_with('/') && member.size == 0 {
                continue;
            }
            let is_storage = roots.iter().any(|root| {
                member
                    .name
                    .strip_prefix(root)
                    .and_then(|rest| rest.strip_prefix("data/"))
                    .is_some_and(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit()))
            });
            let name = text::escape(&member.name);
            let message = if is_storage {
                format!("'{name}' is named like a storage, but no tensor refers to it with its size")
            } else {
                format!("'{name}' belongs to no tensor, and is not something that PyTorch writes")
            };
            context.report(piece, Diagnostic::new(rules::CODE_UNREFERENCED_MEMBER, message).offset(member.start));
        }
    }
}

fn account(accounted: &mut [bool], number: usize) {
    if let Some(accounted) = accounted.get_mut(number) {
        *accounted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::root_of;

    #[test]
    fn an_archive_may_have_any_name() {
        assert_eq!(root_of("archive/data.pkl"), Some("archive/"));
        assert_eq!(root_of("data.pkl"), Some(""));
        assert_eq!(root_of("x/constants.pkl"), Some("x/"));
        assert_eq!(root_of("x/mydata.pkl"), None);
        assert_eq!(root_of("x/data.pkl.bak"), None);
    }
}
