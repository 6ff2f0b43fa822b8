//! How much memory this process may use: what the machine has, or less where a container (a cgroup) says so.

#[cfg(any(target_os = "linux", test))]
use std::path::Path;

/// Bytes.
pub(crate) fn memory_limit() -> usize {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: asks for two numbers.
        let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGE_SIZE)) };
        let machine = usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(size).unwrap_or(0));
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        cgroup_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |limit| machine.min(limit))
    }
    #[cfg(not(target_os = "linux"))]
    {
        16 << 30 // not asked there
    }
}

/// Bytes that this process can have now without anything being swapped out, as far as the system says: what is free or only cached.
pub fn available_memory() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some((kilobytes << 10).min(memory_limit() as u64))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The least limit of the groups that `/proc/self/cgroup` names, and of all above them, below the folder `root`.
///
/// A line is `0::/path` (version 2) or `4:memory:/path` (version 1). In a container the path may be that of the host, of which only the part at
/// the root is visible: folders that are not there say nothing.
#[cfg(any(target_os = "linux", test))]
fn cgroup_limit(groups: &str, root: &Path) -> Option<usize> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let (root, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let group = root.join(path.trim_start_matches('/'));
        let read = |folder: &Path| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
        group.ancestors().take_while(|folder| folder.starts_with(&root)).filter_map(read).collect::<Vec<usize>>()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn group(root: &Path, path: &str, file: &str, limit: &str) {
        let folder = root.join(path);
        assert!(fs::create_dir_all(&folder).is_ok() && fs::write(folder.join(file), limit).is_ok());
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_above_it_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        group(root, "", "memory.max", "max\n");
        group(root, "a", "memory.max", "3000000\n");
        group(root, "a/b", "memory.max", "max\n");
        group(root, "memory/c", "memory.limit_in_bytes", "2000000\n");
        assert_eq!(cgroup_limit("0::/a/b\n", root), Some(3_000_000));
        assert_eq!(cgroup_limit("0::/\n", root), None, "no limit");
        assert_eq!(cgroup_limit("4:cpu,memory:/c/d\n0::/a\n", root), Some(2_000_000));
        assert_eq!(cgroup_limit("0::/of/the/host\n", root), None, "no such folder in this container");
        assert_eq!(cgroup_limit("nonsense", root), None);
    }

    #[test]
    fn this_process_may_use_something() {
        assert!(memory_limit() > 64 << 20);
    }
}
