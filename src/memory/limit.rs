//! How much memory this process may use: that of the machine, or less in a container (a cgroup).

#[cfg(any(target_os = "linux", test))]
use std::path::Path;

/// Bytes.
pub(crate) fn memory_limit() -> usize {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: `sysconf` returns two numbers, and accesses no memory of ours.
        let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGE_SIZE)) };
        let machine = usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(size).unwrap_or(0));
        least_of_groups(limit).map_or(machine, |limit| machine.min(limit))
    }
    #[cfg(not(target_os = "linux"))]
    {
        16 << 30 // not asked there
    }
}

/// Bytes that this process can have now without swapping, as far as the system reports it. Free and cached memory counts, of the machine and of each
/// control group of the process.
pub fn available_memory() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        let of_machine = (kilobytes << 10).min(memory_limit() as u64);
        Some(least_of_groups(left).map_or(of_machine, |left| of_machine.min(left as u64)))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The minimum of `of` over the groups of this process.
#[cfg(target_os = "linux")]
fn least_of_groups(of: impl Fn(&Path, &CgroupFiles) -> Option<usize>) -> Option<usize> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least(&groups, Path::new("/sys/fs/cgroup"), of)
}

/// The file names of a version of control groups.
#[cfg(any(target_os = "linux", test))]
struct CgroupFiles {
    limit: &'static str,
    used: &'static str,
    /// The keys of `memory.stat` for pages of files, which the system reclaims before it refuses memory.
    cached: [&'static str; 2],
}

#[cfg(any(target_os = "linux", test))]
const VERSION_1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};
#[cfg(any(target_os = "linux", test))]
const VERSION_2: CgroupFiles =
    CgroupFiles { limit: "memory.max", used: "memory.current", cached: ["inactive_file", "active_file"] };

/// The limit of a group.
#[cfg(any(target_os = "linux", test))]
fn limit(group: &Path, files: &CgroupFiles) -> Option<usize> {
    number(&group.join(files.limit))
}

/// How much more a group may use; none if there is no limit, or if its usage is not known.
#[cfg(any(target_os = "linux", test))]
fn left(group: &Path, files: &CgroupFiles) -> Option<usize> {
    let (limit, used) = (limit(group, files)?, number(&group.join(files.used))?);
    let facts = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = facts.lines().filter_map(|line| line.split_once(' ')).filter(|(key, _)| files.cached.contains(key));
    let cached = cached.filter_map(|(_, bytes)| bytes.trim().parse::<usize>().ok()).fold(0, usize::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(any(target_os = "linux", test))]
fn number(file: &Path) -> Option<usize> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The minimum of `of` over the groups that `/proc/self/cgroup` names, and all above them, below the folder `root`.
///
/// A line is `0::/path` (version 2) or `4:memory:/path` (version 1). In a container the path may be that of the host, of which only the part at the
/// root is visible: missing folders are skipped.
#[cfg(any(target_os = "linux", test))]
fn least(groups: &str, root: &Path, of: impl Fn(&Path, &CgroupFiles) -> Option<usize>) -> Option<usize> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let (root, files) = match controllers {
            "" => (root.to_path_buf(), VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), VERSION_1),
            _ => return Vec::new(),
        };
        let group = root.join(path.trim_start_matches('/'));
        let limit_of = |folder: &Path| of(folder, &files);
        group.ancestors().take_while(|folder| folder.starts_with(&root)).filter_map(limit_of).collect::<Vec<usize>>()
    });
    limits.min()
}

/// The default memory budget of streams, and of work on several tensors at a time…
const BUDGET: usize = 2 << 30;
/// … and as a share of what this process may use.
const BUDGET_SHARE: usize = 8;

/// The default memory of a stream: 2 GiB, or an eighth of what this process may use.
pub fn default_budget() -> usize {
    BUDGET.min(memory_limit() / BUDGET_SHARE)
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
        let cgroup_limit = |groups: &str, root: &Path| least(groups, root, limit);
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
    fn what_a_group_uses_is_not_available_but_for_pages_of_files() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        group(root, "a", "memory.max", "3000000\n");
        group(root, "a", "memory.current", "2500000\n");
        assert_eq!(least("0::/a\n", root, left), Some(500_000));
        group(root, "a", "memory.stat", "anon 1\ninactive_file 300000\nactive_file 100000\nshmem 5\n");
        assert_eq!(least("0::/a\n", root, left), Some(900_000));
        group(root, "a", "memory.current", "5000000\n");
        assert_eq!(least("0::/a\n", root, left), Some(0), "more than the limit, for a moment");
        group(root, "memory/c", "memory.limit_in_bytes", "2000000\n");
        group(root, "memory/c", "memory.usage_in_bytes", "1500000\n");
        group(root, "memory/c", "memory.stat", "inactive_file 1\ntotal_inactive_file 250000\n");
        assert_eq!(least("4:memory:/c\n", root, left), Some(750_000));
    }

    #[test]
    fn this_process_may_use_something() {
        assert!(memory_limit() > 64 << 20);
    }
}
