//! Names similar to a name that does not exist, for the error message.
//!
//! The distance of two names is an edit distance over their components: replacing a component costs the edit distance of its characters,
//! leaving one out or adding one costs `COMPONENT`. The tree of names is searched from its root, the nearest branch first, so that the
//! nearest names are found first and the cost depends little on the number of names.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::{NameIndex, SEPARATOR, split_root};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::{Element, Span, TensorInfo, TensorTable};

/// The cost of a missing or additional component: that of a bad misspelling.
const COMPONENT: usize = 4;
/// Names with a distance above this share of the name's length are not suggested: they only confuse.
const BOUND_DIVISOR: usize = 3;
const BOUND_MIN: usize = 5;
const BOUND_MAX: usize = 8;
/// Longer components, and names of more components, are not compared.
const COMPARED: usize = 64;
/// The most branches that are visited: bounds the time if very many names are equally near.
const VISITS: usize = 10_000;

/// Up to `count` names near `name`, the nearest first; of those that are equally near, the one that begins with more of it.
pub fn nearest(index: &NameIndex, table: &TensorTable, name: &str, count: usize) -> Vec<String> {
    let (first, rest) = split_root(name);
    let parts = std::iter::once(first).chain(rest.into_iter().flat_map(|rest| rest.split(SEPARATOR)));
    let parts: Vec<&str> = parts.take(COMPARED + 1).collect();
    if parts.len() > COMPARED || index.is_empty() {
        return Vec::new();
    }
    let bound = (name.len() / BOUND_DIVISOR).clamp(BOUND_MIN, BOUND_MAX);
    let mut bound = bound.min(parts.len() * COMPONENT); // beyond it, nothing is shared
    let mut visits = VISITS;
    let mut found: Vec<&str> = Vec::new();
    let shared = |branch: &str| Reverse(branch.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count());
    // The branches to visit: the distance so far, the component and how much it shares, the number of matched components, and the range.
    let mut open = BinaryHeap::from([Reverse((0, Reverse(0), "", 0, 0, index.len()))]);
    while let Some(Reverse((distance, same, branch, used, start, end))) = open.pop() {
        if distance > bound || found.len() >= count {
            break;
        }
        let part = parts.get(used);
        if part.is_none() && table.name(index.entry(start)).len() == branch.len() && !found.contains(&branch) {
            if found.is_empty() {
                bound = bound.min(2 * distance + 2); // beside a good suggestion, one that is much further away is noise
            }
            found.push(branch);
        }
        let with_component = distance + COMPONENT;
        if part.is_none() && with_component > bound {
            continue;
        }
        if part.is_some() && with_component <= bound {
            open.push(Reverse((with_component, same, branch, used + 1, start, end)));
        }
        let skip = if branch.is_empty() { 0 } else { branch.len() + SEPARATOR.len_utf8() };
        for child in index.children(table, branch, start..end).take(visits) {
            visits -= 1;
            let below = &table.name(index.entry(child.range.start))[..skip + child.component.len()];
            let (start, end) = (child.range.start, child.range.end);
            if with_component <= bound {
                open.push(Reverse((with_component, shared(below), below, used, start, end)));
            }
            if let Some(replaced) = part.and_then(|part| component_distance(part, child.component, bound - distance)) {
                open.push(Reverse((distance + replaced, shared(below), below, used + 1, start, end)));
            }
        }
    }
    found.into_iter().map(str::to_owned).collect()
}

/// For each name in `requested`, up to `count` similar ones of `names`.
pub fn nearest_of(names: &[String], requested: &[String], count: usize) -> Result<Vec<Vec<String>>> {
    let mut table = TensorTable::default();
    for name in names {
        // Only the names of these tensors matter.
        let (span, element) = (Span::within(0, 0, 0)?, Element::Plain(DType::UInt8));
        table.push(&TensorInfo { name, element, shape: &[], file: 0, span, view: None })?;
    }
    let index = NameIndex::new(&table).unwrap_or_default(); // without suggestions, if a name is there twice
    Ok(requested.iter().map(|name| nearest(&index, &table, name, count)).collect())
}

/// Up to `count` names similar to the text of a pattern before its first `*`, `?` or `[`. For a pattern these are prefixes with as many components.
pub fn nearest_to_pattern(names: &[&str], pattern: &str, count: usize) -> Vec<String> {
    let literal = pattern.split(['*', '?', '[']).next().unwrap_or_default();
    let is_whole = literal.len() == pattern.len() && !pattern.ends_with(SEPARATOR);
    let literal = literal.trim_end_matches(SEPARATOR);
    if literal.is_empty() {
        return Vec::new();
    }
    let components = literal.matches(SEPARATOR).count() + 1;
    let begin = |name: &&str| {
        let end = name.match_indices(SEPARATOR).nth(components - 1).map_or(name.len(), |(at, _)| at);
        name[..end].to_owned()
    };
    let candidates: BTreeSet<String> = if is_whole {
        names.iter().map(|name| (*name).to_owned()).collect()
    } else {
        names.iter().map(begin).collect()
    };
    let candidates: Vec<String> = candidates.into_iter().filter(|name| name != literal).collect();
    let near = nearest_of(&candidates, &[literal.to_owned()], count).unwrap_or_default();
    near.into_iter().flatten().collect()
}

/// The edit distance of two components, if it is at most `most` and at least half of them is equal.
fn component_distance(part: &str, component: &str, most: usize) -> Option<usize> {
    if part == component {
        return Some(0);
    }
    let len = part.len().max(component.len());
    let most = most.min(len.div_ceil(2));
    // A character has four bytes at most.
    let comparable = len <= COMPARED && part.len().abs_diff(component.len()) <= 4 * most;
    comparable.then(|| strsim::levenshtein(part, component)).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(names: &[&str], name: &str) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        nearest_of(&names, &[name.to_owned()], 3).expect("room").remove(0)
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
    fn ties_go_by_what_is_shared_and_then_by_name_across_branches() {
        let names: Vec<String> = (0..40).flat_map(|i| ["b", "a"].map(|leaf| format!("m.{i}.{leaf}.weight"))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(near(&names, "m.100.a.weight"), ["m.10.a.weight", "m.10.b.weight", "m.1.a.weight"]);
        let layer =
            ["k_proj", "o_proj", "q_proj", "v_proj"].map(|leaf| format!("model.layers.0.self_attn.{leaf}.weight"));
        let layer = layer.each_ref().map(String::as_str);
        assert_eq!(near(&layer, "model.layers.0.self_attn.query.weight")[0], layer[2]);
    }

    #[test]
    fn a_huge_name_is_compared_in_bounded_time() {
        let long = "x".repeat(1 << 20);
        assert_eq!(near(&["a.b"], &long), Vec::<String>::new());
        let deep = "x.".repeat(1 << 18);
        assert_eq!(near(&["a.b"], &deep), Vec::<String>::new());
    }
}
