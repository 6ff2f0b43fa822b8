//! Whether memory is a mapping of a file, by any library, at which offset of the file, and without writes since.
//!
//! The kernel lists the mappings of the process in `/proc/self/maps`. On other systems this is not known, and no memory counts as a file's.

use super::written::has_own_pages;
use super::{Origin, Storage};

/// A snapshot of the mappings of files that this process has.
#[derive(Debug, Default)]
pub struct FileMappings(Vec<Mapping>);

#[derive(Debug)]
struct Mapping {
    start: usize,
    end: usize,
    /// The offset in the file of its first byte.
    offset: u64,
    device: (u32, u32),
    inode: u64,
}

impl FileMappings {
    /// The current mappings.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self(text.lines().filter_map(Mapping::parse).filter(|mapping| mapping.inode != 0).collect())
    }

    /// The device and the inode of the file that the first byte of a storage is mapped from, as in the file's metadata.
    #[cfg(target_os = "linux")]
    pub fn file_of(&self, storage: &Storage) -> Option<(u64, u64)> {
        let address = storage.base();
        let mapping = self.0.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))?;
        let (major, minor) = mapping.device;
        Some((rustix::fs::makedev(major, minor), mapping.inode))
    }

    /// Other systems do not report that.
    #[cfg(not(target_os = "linux"))]
    pub fn file_of(&self, _: &Storage) -> Option<(u64, u64)> {
        None
    }

    /// Whether `len` bytes of a storage, from `start` on, are pages of a file from `offset` on.
    pub fn are_of_file(&self, storage: &Storage, start: usize, len: usize, origin: &Origin, offset: u64) -> bool {
        let Some((device, inode)) = place(origin) else { return false };
        let (first, end) = (storage.base() + start, storage.base() + start + len);
        let mut address = first;
        while address < end {
            let holds = |mapping: &&Mapping| (mapping.start..mapping.end).contains(&address);
            let Some(mapping) = self.0.iter().find(holds) else { return false };
            let present = mapping.offset + (address - mapping.start) as u64;
            if (mapping.device, mapping.inode) != (device, inode) || present != offset + (address - first) as u64 {
                return false;
            }
            address = mapping.end;
        }
        len > 0 && !has_own_pages(std::iter::once((first, len))).unwrap_or(true)
    }
}

impl Mapping {
    /// Parses a line such as `7f00-7f80 r--p 00001000 fe:01 4711 /path`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let inode = words.next()?.parse().ok()?;
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16));
        Some(Self { start: start.ok()?, end: end.ok()?, offset, device, inode })
    }
}

/// The device and the inode of a file, as in the list of mappings.
#[cfg(target_os = "linux")]
fn place(origin: &Origin) -> Option<((u32, u32), u64)> {
    let super::IdentityKind::File { inode: (device, inode), .. } = origin.fingerprint.identity else { return None };
    Some(((rustix::fs::major(device), rustix::fs::minor(device)), inode))
}

#[cfg(not(target_os = "linux"))]
fn place(_: &Origin) -> Option<((u32, u32), u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_is_read_and_what_is_none_is_not() {
        let line = "7ff000001000-7ff000003000 r--p 00002000 fe:1f 4711                 /a path/with (deleted)";
        let mapping = Mapping::parse(line).expect("a mapping");
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7ff0_0000_1000, 0x7ff0_0000_3000, 0x2000));
        assert_eq!((mapping.device, mapping.inode), ((0xfe, 0x1f), 4711));
        for line in ["", "7f-80", "x-y r--p 0 0:0 0", "7f-80 r--p 0 00 0", "7f-80 r--p 0 0:0 -1"] {
            assert!(Mapping::parse(line).is_none(), "{line}");
        }
    }
}
