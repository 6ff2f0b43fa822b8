//! Which tensors share bytes: tied weights.

use super::Catalog;

impl Catalog {
    /// Groups of these tensors that share bytes of a storage, directly or through others of the group. Each group, and all groups, are in file order.
    /// A tensor spans the range from its first byte to its last, so a view of every second element shares bytes with what lies between.
    pub fn aliases(&self, numbers: &[u32]) -> Vec<Vec<u32>> {
        let mut ranges: Vec<(u32, u64, u64, u64, u32)> = Vec::new();
        for &number in numbers {
            let info = self.table.get(number as usize);
            if let Some(view) = info.view
                && let Some(bytes) = info.reach().filter(|bytes| *bytes > 0)
            {
                ranges.push((info.file, view.storage.start(), view.start, view.start.saturating_add(bytes), number));
            }
        }
        ranges.sort_unstable();
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let mut group = Vec::new();
        let mut last = None;
        for (file, storage, start, end, number) in ranges {
            match last {
                Some((of_file, of_storage, until)) if (of_file, of_storage) == (file, storage) && start < until => {
                    last = Some((file, storage, end.max(until)));
                }
                _ => {
                    groups.push(std::mem::take(&mut group));
                    last = Some((file, storage, end));
                }
            }
            group.push(number);
        }
        groups.push(group);
        groups.retain(|group| group.len() > 1);
        for group in &mut groups {
            group.sort_unstable();
        }
        groups.sort_unstable();
        groups
    }
}
