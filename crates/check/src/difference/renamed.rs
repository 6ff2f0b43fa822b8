//! Tensors that have another name in the other checkpoint: of the same dtype, shape and bytes.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use max_weights::check::{PassRequest, TensorPass};
use max_weights::workers::{Interrupt, in_order, threads};
use max_weights::{Catalog, Checkpoint, Result};

use super::TensorPair;

/// Up to this many tensors with the same content are paired by the most similar names; more are paired in their order.
const COMPARED: usize = 128;

/// A checkpoint, its names, and the numbers of the tensors that only it has.
type Only<'a> = (&'a Checkpoint, &'a Catalog, &'a [usize]);

/// The pairs of tensors of one content. Each tensor is in one pair at most; what has no elements is in none.
pub(super) fn by_content(a: Only<'_>, b: Only<'_>, interrupt: Interrupt<'_>) -> Result<Vec<TensorPair>> {
    let kinds = |(_, names, numbers): Only<'_>| -> HashSet<(String, Vec<u64>)> {
        numbers.iter().map(|number| kind(names, *number)).collect()
    };
    let (in_a, in_b) = (kinds(a), kinds(b));
    let both: HashSet<_> = in_a.intersection(&in_b).collect();
    let candidates = |(_, names, numbers): Only<'_>| -> Vec<usize> {
        let of_both = |number: &usize| {
            let info = names.table().get(*number);
            info.bytes() > 0 && both.contains(&kind(names, *number))
        };
        numbers.iter().copied().filter(of_both).collect()
    };
    let (of_a, of_b) = (candidates(a), candidates(b));
    let (hashes_a, hashes_b) = (hashes(a.0, &of_a, interrupt)?, hashes(b.0, &of_b, interrupt)?);
    let mut contents: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (number, hash) in of_a.into_iter().zip(hashes_a) {
        let Some(hash) = hash else { continue };
        contents.entry((kind(a.1, number), hash)).or_default().0.push(number);
    }
    for (number, hash) in of_b.into_iter().zip(hashes_b) {
        let Some(hash) = hash else { continue };
        if let Some(found) = contents.get_mut(&(kind(b.1, number), hash)) {
            found.1.push(number);
        }
    }
    Ok(contents.into_values().flat_map(|(of_a, of_b)| assigned(a.1, of_a, b.1, of_b)).collect())
}

fn kind(names: &Catalog, number: usize) -> (String, Vec<u64>) {
    let info = names.table().get(number);
    (info.element.to_string(), info.shape.to_vec())
}

/// Tensors of one content in pairs: those first whose names have the longest end in common.
fn assigned(names_a: &Catalog, a: Vec<usize>, names_b: &Catalog, b: Vec<usize>) -> Vec<TensorPair> {
    if a.len() > COMPARED || b.len() > COMPARED {
        return a.into_iter().zip(b).map(|(a, b)| TensorPair { a, b }).collect();
    }
    let mut all = Vec::new();
    for &of_a in &a {
        for &of_b in &b {
            let (x, y) = (names_a.table().name(of_a), names_b.table().name(of_b));
            let in_common = x.bytes().rev().zip(y.bytes().rev()).take_while(|(x, y)| x == y).count();
            all.push((std::cmp::Reverse(in_common), x, y, TensorPair { a: of_a, b: of_b }));
        }
    }
    all.sort_by(|x, y| (x.0, x.1, x.2).cmp(&(y.0, y.1, y.2)));
    let (mut gone, mut come) = (HashSet::new(), HashSet::new());
    let mut pairs = Vec::new();
    for (.., pair) in all {
        if !gone.contains(&pair.a) && !come.contains(&pair.b) {
            gone.insert(pair.a);
            come.insert(pair.b);
            pairs.push(pair);
        }
    }
    pairs
}

/// SHA-256 of the elements of each tensor; `None` without an array in the file, or where strides repeat elements too often.
fn hashes(checkpoint: &Checkpoint, numbers: &[usize], interrupt: Interrupt<'_>) -> Result<Vec<Option<[u8; 32]>>> {
    let (catalog, requested) = (checkpoint.catalog(), PassRequest { hash: true, ..PassRequest::default() });
    let is_array = |(_, number): &(usize, usize)| catalog.is_composed(*number) || catalog.placement(*number).is_ok();
    let mut order: Vec<(usize, usize)> = numbers.iter().copied().enumerate().filter(is_array).collect();
    order.sort_by_key(|&(_, number)| {
        let info = catalog.table().get(number);
        (info.file, info.span.start())
    });
    let found = Mutex::new(vec![None; numbers.len()]);
    in_order(threads(), order, interrupt, |(position, number), pass: &mut TensorPass, cancel| {
        let hash = pass.over(checkpoint, number, requested, &|_| (), cancel)?.sha256;
        if let Some(place) = found.lock().unwrap_or_else(PoisonError::into_inner).get_mut(position) {
            *place = hash;
        }
        Ok(())
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}
