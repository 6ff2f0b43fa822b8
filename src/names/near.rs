//! Names near a name that does not exist, for the error message.
//!
//! The distance of two names is an edit distance over their components: replacing a component costs the edit distance of its characters,
//! leaving one out or adding one costs `COMPONENT`. It is found by a walk over the tree of names that keeps one row of the edit matrix a
//! component and leaves a branch as soon as the row cannot beat the best names so far; so the cost depends little on the number of names.

use std::ops::Range;

use super::{NameIndex, SEPARATOR, split_root};
use crate::tensor::TensorTable;

/// The cost of a missing or additional component: that of a bad misspelling.
const COMPONENT: u32 = 4;
/// Names further away than this share of the name's length are not near, and only confuse.
const BOUND_DIVISOR: usize = 3;
const BOUND_MIN: u32 = 5;
const BOUND_MAX: u32 = 12;
/// Components (and names) longer than this are not compared character by character.
const COMPARED: usize = 64;
/// Branches visited at most: bounds the time where very many names are equally near.
const VISITS: usize = 40_000;

/// Up to `count` names near `name`, the nearest first, ties by name.
pub fn nearest(index: &NameIndex, table: &TensorTable, name: &str, count: usize) -> Vec<String> {
    let (first, rest) = split_root(name);
    let parts = std::iter::once(first).chain(rest.into_iter().flat_map(|rest| rest.split(SEPARATOR)));
    let query: Vec<Vec<char>> = parts.take(COMPARED).map(|part| part.chars().take(COMPARED).collect()).collect();
    if count == 0 || index.is_empty() {
        return Vec::new();
    }
    let bound = u32::try_from(name.len() / BOUND_DIVISOR).unwrap_or(BOUND_MAX).clamp(BOUND_MIN, BOUND_MAX);
    let bound = bound.min(query.len() as u32 * COMPONENT); // beyond it, nothing is shared
    let first_row: Vec<u32> = (0..=query.len() as u32).map(|i| i * COMPONENT).collect();
    let mut search = Search { index, table, query, count, bound, best: Vec::new(), visits: VISITS };
    search.walk("", 0..index.len(), &first_row);
    // Beside a good suggestion, one that is much further away is noise.
    let worst = search.best.first().map_or(0, |best| 2 * best.0 + 2);
    search.best.into_iter().filter(|found| found.0 <= worst).map(|(_, name)| name.to_owned()).collect()
}

struct Search<'a> {
    index: &'a NameIndex,
    table: &'a TensorTable,
    query: Vec<Vec<char>>,
    count: usize,
    /// The greatest distance that is still of interest.
    bound: u32,
    /// The best names so far, sorted by (distance, name).
    best: Vec<(u32, &'a str)>,
    visits: usize,
}

impl<'a> Search<'a> {
    /// Visits what lies below `prefix`, the likeliest children first: they tighten the bound for the others.
    fn walk(&mut self, prefix: &str, range: Range<usize>, row: &[u32]) {
        let (index, table) = (self.index, self.table);
        let skip = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
        let mut rows: Vec<(u32, &'a str, Range<usize>, Vec<u32>)> = Vec::new();
        for child in index.children(table, prefix, range) {
            if self.visits == 0 {
                break;
            }
            self.visits -= 1;
            let mut next = [0; COMPARED + 1];
            let next = &mut next[..row.len()];
            self.next_row(row, child.component, next);
            let least = next.iter().copied().min().unwrap_or(u32::MAX);
            if least > self.bound {
                continue;
            }
            let name = &table.name(index.entry(child.range.start))[..skip + child.component.len()];
            // Most branches end here, so nothing is allocated before.
            if !self.loses_tie(least, name) {
                rows.push((least, name, child.range, next.to_vec()));
            }
        }
        rows.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        for (least, name, range, next) in rows {
            // What follows is further away, or as far and later in the order of names.
            if least > self.bound || self.loses_tie(least, name) {
                break;
            }
            if table.name(index.entry(range.start)).len() == name.len() {
                self.offer(next.last().copied().unwrap_or(u32::MAX), name);
            }
            if table.name(index.entry(range.end - 1)).len() > name.len() {
                self.walk(name, range, &next);
            }
        }
    }

    /// True if nothing that begins with `prefix` and is at least so far away can be among the best: there are enough as near, and all of
    /// them come before it in the order of names.
    fn loses_tie(&self, least: u32, prefix: &str) -> bool {
        let full = self.best.len() == self.count;
        full && self.best.last().is_some_and(|(distance, name)| (*distance, *name) < (least, prefix))
    }

    /// The next row of the edit matrix, for a tree path that goes on with `component`.
    fn next_row(&self, row: &[u32], component: &str, next: &mut [u32]) {
        next[0] = row[0] + COMPONENT;
        for (i, part) in self.query.iter().enumerate() {
            let skipped = (row[i + 1] + COMPONENT).min(next[i] + COMPONENT);
            let most = skipped.min(self.bound + 1).saturating_sub(row[i]);
            let replaced = row[i].saturating_add(component_distance(part, component, most));
            next[i + 1] = skipped.min(replaced);
        }
    }

    fn offer(&mut self, distance: u32, name: &'a str) {
        if distance > self.bound {
            return;
        }
        let position = self.best.partition_point(|have| *have < (distance, name));
        self.best.insert(position, (distance, name));
        self.best.truncate(self.count);
        if self.best.len() == self.count {
            // Equal distances still compete by name.
            self.bound = self.bound.min(self.best.last().map_or(self.bound, |worst| worst.0));
        }
    }
}

/// The edit distance of two components, or anything >= `most` where it is at least that. Numbers that differ are at distance 2: near, but
/// further than a misspelling, and no number is nearer than another.
fn component_distance(query: &[char], component: &str, most: u32) -> u32 {
    const OTHER_NUMBER: u32 = 2;
    if most == 0 {
        return 0;
    }
    if query.iter().copied().eq(component.chars()) {
        return 0;
    }
    if most <= 1 {
        return most;
    }
    let is_number = |mut digits: std::slice::Iter<'_, char>| digits.all(char::is_ascii_digit);
    if is_number(query.iter()) && component.bytes().all(|byte| byte.is_ascii_digit()) {
        return OTHER_NUMBER;
    }
    // On the stack: this runs for every branch of the tree that is looked at.
    let (mut other, mut len) = (['\0'; COMPARED], 0);
    for (place, c) in other.iter_mut().zip(component.chars()) {
        *place = c;
        len += 1;
    }
    let other = &other[..len];
    if query.len().abs_diff(len) as u32 >= most {
        return most;
    }
    let mut row = [0; COMPARED + 1];
    let row = &mut row[..=len];
    for (i, cost) in row.iter_mut().enumerate() {
        *cost = i as u32;
    }
    for (i, a) in query.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i as u32 + 1;
        let mut least = row[0];
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + u32::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
            least = least.min(row[j + 1]);
        }
        if least >= most {
            return most;
        }
    }
    row.last().copied().unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::{Element, Span, TensorInfo};

    fn near(names: &[&str], name: &str) -> Vec<String> {
        let mut table = TensorTable::default();
        for name in names {
            let span = Span::within(0, 0, 0).expect("inside");
            let info =
                TensorInfo { name, element: Element::Plain(DType::UInt8), shape: &[0], file: 0, span, view: None };
            table.push(&info).expect("room");
        }
        let index = NameIndex::new(&table).expect("no duplicates");
        nearest(&index, &table, name, 3)
    }

    #[test]
    fn a_misspelt_component_is_found() {
        let names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight"];
        assert_eq!(near(&names, "model.layers.0.self_atn.q_proj.weight"), [names[0]]);
    }

    #[test]
    fn a_missing_or_additional_component_is_found() {
        let names = ["model.layers.0.norm.weight", "lm_head.weight"];
        assert_eq!(near(&names, "layers.0.norm.weight"), [names[0]]);
        assert_eq!(near(&names, "model.lm_head.weight"), [names[1]]);
    }

    #[test]
    fn ties_go_by_name_and_far_names_are_left_out() {
        assert_eq!(near(&["x.c", "x.a", "x.b", "x.d", "completely.different"], "x.e"), ["x.a", "x.b", "x.c"]);
        assert_eq!(near(&["completely.different.name"], "x"), Vec::<String>::new());
    }

    #[test]
    fn ties_go_by_name_across_branches() {
        let names: Vec<String> = (0..40).flat_map(|i| ["b", "a"].map(|leaf| format!("m.{i}.{leaf}.weight"))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(near(&names, "m.100.a.weight"), ["m.0.a.weight", "m.1.a.weight", "m.10.a.weight"]);
    }

    #[test]
    fn a_huge_name_is_compared_in_bounded_time() {
        let long = "x".repeat(1 << 20);
        assert_eq!(near(&["a.b"], &long), Vec::<String>::new());
        let deep = "x.".repeat(1 << 18);
        assert_eq!(near(&["a.b"], &deep), Vec::<String>::new());
    }
}
