//! Recipes: tensors that are joined, stacked, indexed, split and transposed before anything is read are what doing that with arrays in memory gives,
//! bit for bit; what is no tensor is refused by name.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::buffer::{Buffer, IndexPart, quantize};
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::{Error, Result};
use max_weights::load::{LoadOptions, LoadPlan, Recipe, TensorMemory};
use max_weights::memory::Storage;
use max_weights::quant::{Encoding, swap_bytes};
use max_weights::source::Source;
use max_weights::uninterrupted;
use max_weights::write::{
    DeclaredTensor, MetadataValue, SaveTarget, StoredElements, WriteOptions, laid_out, save, write_to_memory,
};
use proptest::prelude::*;

use crate::gguf_files::Made;
use crate::source_support::Trial;
use crate::source_support::difficult::{Difficult, Difficulty};

/// An array in memory, one number of its elements each: what NumPy would have.
#[derive(Debug, Clone, PartialEq)]
struct Array {
    shape: Vec<i64>,
    /// In C order.
    elements: Vec<u64>,
}

impl Array {
    /// The contents of a tensor in memory.
    fn of(buffer: &Buffer) -> Self {
        let (bits, count) = (buffer.dtype().bits(), buffer.shape().iter().product::<i64>() as usize);
        let whole = buffer.contiguous(&uninterrupted).unwrap();
        let bytes = whole.bytes().unwrap();
        let element = |number: usize| {
            (0..bits).rev().fold(0, |value, bit| {
                let at = number * bits + bit;
                value << 1 | u64::from(bytes[at / 8] >> (at % 8) & 1)
            })
        };
        Self { shape: buffer.shape().to_vec(), elements: (0..count).map(element).collect() }
    }

    /// The array of this shape whose element at a place is that of this one at another.
    fn map(&self, shape: Vec<i64>, place: impl Fn(&[i64]) -> Vec<i64>) -> Self {
        let count: i64 = shape.iter().product();
        let elements = (0..count).map(|mut number| {
            let mut at = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                (at[axis], number) = (number % shape[axis], number / shape[axis]);
            }
            let from = place(&at);
            self.elements[from.iter().zip(&self.shape).fold(0, |flat, (at, dim)| flat * dim + at) as usize]
        });
        Self { elements: elements.collect(), shape }
    }

    fn join(axis: usize, arrays: &[Self]) -> Self {
        let mut shape = arrays[0].shape.clone();
        shape[axis] = arrays.iter().map(|array| array.shape[axis]).sum();
        let outer: i64 = shape[..axis].iter().product();
        let mut elements = Vec::new();
        for row in 0..outer as usize {
            for array in arrays {
                let len = array.shape[axis..].iter().product::<i64>() as usize;
                elements.extend_from_slice(&array.elements[row * len..(row + 1) * len]);
            }
        }
        Self { shape, elements }
    }

    fn transpose(&self, order: &[usize]) -> Self {
        self.map(order.iter().map(|&axis| self.shape[axis]).collect(), |at| {
            let mut from = vec![0; at.len()];
            for (position, &axis) in order.iter().enumerate() {
                from[axis] = at[position];
            }
            from
        })
    }

    /// `(begin, len, step)` of each axis.
    fn slice(&self, ranges: &[(i64, i64, i64)]) -> Self {
        self.map(ranges.iter().map(|range| range.1).collect(), |at| {
            at.iter().zip(ranges).map(|(at, (begin, _, step))| begin + at * step).collect()
        })
    }

    fn with_axis(&self, axis: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.insert(axis, 1);
        Self { shape, elements: self.elements.clone() }
    }
}

/// An operation on the existing tensors; the numbers choose among the possible ones.
#[derive(Debug, Clone)]
enum Step {
    Join(usize, Vec<usize>),
    Stack(usize, usize),
    Transpose(usize, u64),
    Slice(usize, Vec<(u64, u64, i64)>),
    Take(usize, u64),
    Split(usize, usize, u64),
    Unflatten(usize, usize, u64),
    Flatten(usize, usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let which = 0..16_usize;
    prop_oneof![
        (0..3_usize, prop::collection::vec(which.clone(), 1..4)).prop_map(|(axis, which)| Step::Join(axis, which)),
        (which.clone(), 0..4_usize).prop_map(|(which, axis)| Step::Stack(which, axis)),
        (which.clone(), any::<u64>()).prop_map(|(which, order)| Step::Transpose(which, order)),
        (which.clone(), prop::collection::vec((any::<u64>(), any::<u64>(), -3..4_i64), 4))
            .prop_map(|(which, ranges)| Step::Slice(which, ranges)),
        (which.clone(), any::<u64>()).prop_map(|(which, at)| Step::Take(which, at)),
        (which.clone(), 0..3_usize, any::<u64>()).prop_map(|(which, axis, at)| Step::Split(which, axis, at)),
        (which.clone(), 0..4_usize, any::<u64>()).prop_map(|(which, axis, at)| Step::Unflatten(which, axis, at)),
        (which, 0..3_usize).prop_map(|(which, axis)| Step::Flatten(which, axis)),
    ]
}

/// Does a step, where it is possible, with recipes and with arrays. Only what is stored together is not taken apart.
fn run(step: &Step, known: &mut Vec<(Recipe, Array)>) {
    let one = |which: usize| known[which % known.len()].clone();
    let may_refuse = |error: &Error| {
        let message = error.to_string();
        assert!(message.contains("stored together") || message.contains("are not a multiple of"), "{message}");
    };
    let made: Vec<(Result<Recipe>, Array)> = match step {
        Step::Join(axis, which) => {
            let first = one(which[0]);
            let rank = first.1.shape.len();
            if rank == 0 {
                return;
            }
            let axis = axis % rank;
            let like = |array: &Array| {
                array.shape.len() == rank
                    && (0..rank).all(|other| other == axis || array.shape[other] == first.1.shape[other])
            };
            let all: Vec<(Recipe, Array)> =
                which.iter().map(|which| one(*which)).filter(|(_, array)| like(array)).collect();
            let (recipes, arrays): (Vec<Recipe>, Vec<Array>) = all.into_iter().unzip();
            vec![(Recipe::join(axis, recipes), Array::join(axis, &arrays))]
        }
        Step::Stack(which, axis) => {
            let (recipe, array) = one(*which);
            let axis = axis % (array.shape.len() + 1);
            let with = array.with_axis(axis);
            vec![(Recipe::stack(axis, &[recipe.clone(), recipe]), Array::join(axis, &[with.clone(), with]))]
        }
        Step::Transpose(which, order) => {
            let (recipe, array) = one(*which);
            let mut axes: Vec<usize> = (0..array.shape.len()).collect();
            for i in (1..axes.len()).rev() {
                axes.swap(i, (order >> (8 * i)) as usize % (i + 1));
            }
            vec![(recipe.transpose(&axes), array.transpose(&axes))]
        }
        Step::Slice(which, ranges) => {
            let (recipe, array) = one(*which);
            let mut expression = Vec::new();
            let mut expected = Vec::new();
            for (dim, (a, b, step)) in array.shape.iter().zip(ranges.iter().cycle()) {
                let (a, b) = ((a % (*dim as u64 + 1)) as i64, (b % (*dim as u64 + 1)) as i64);
                // Half of them take whole blocks, so that those of packed types are not all refused.
                let whole = *dim % 32 == 0 && *step >= 0;
                let (a, b) = if whole { (a / 32 * 32, b / 32 * 32) } else { (a, b) };
                let step = if *step == 0 || whole { 1 } else { *step };
                let (low, high) = (a.min(b), a.max(b));
                let len = (high - low + step.abs() - 1) / step.abs();
                if step > 0 {
                    expression.push(IndexPart::Slice { start: Some(low), stop: Some(high), step });
                    expected.push((low, len, step));
                } else {
                    let start = if high == 0 { i64::MIN } else { high - 1 };
                    let stop = if low == 0 { i64::MIN } else { low - 1 };
                    expression.push(IndexPart::Slice { start: Some(start), stop: Some(stop), step });
                    expected.push((high - 1, len, step));
                }
            }
            vec![(recipe.index(&expression), array.slice(&expected))]
        }
        Step::Take(which, at) => {
            let (recipe, array) = one(*which);
            let Some(dim) = array.shape.first().copied().filter(|dim| *dim > 0) else { return };
            let at = (at % dim as u64) as i64;
            let taken = Array { shape: array.shape[1..].to_vec(), elements: Vec::new() };
            let len = taken.shape.iter().product::<i64>() as usize;
            let elements = array.elements[at as usize * len..(at as usize + 1) * len].to_vec();
            vec![(recipe.index(&[IndexPart::At(at - dim)]), Array { elements, ..taken })]
        }
        Step::Unflatten(which, axis, at) => unflattened(one(*which), *axis, *at).into_iter().collect(),
        Step::Flatten(which, axis) => flattened(one(*which), *axis).into_iter().collect(),
        Step::Split(which, axis, at) => {
            let (recipe, array) = one(*which);
            if array.shape.is_empty() {
                return;
            }
            let axis = axis % array.shape.len();
            let dim = array.shape[axis];
            let at = (at % (dim as u64 + 1)) as i64;
            match recipe.split(axis, &[at, dim - at]) {
                Err(error) => return may_refuse(&error),
                Ok(parts) => {
                    let part = |(recipe, (begin, len)): (Recipe, (i64, i64))| {
                        let ranges: Vec<_> = (0..array.shape.len())
                            .map(|other| if other == axis { (begin, len, 1) } else { (0, array.shape[other], 1) })
                            .collect();
                        (Ok(recipe), array.slice(&ranges))
                    };
                    parts.into_iter().zip([(0, at), (at, dim - at)]).map(part).collect()
                }
            }
        }
    };
    for (recipe, array) in made {
        match recipe {
            Ok(recipe) if array.elements.len() <= 1 << 16 => known.push((recipe, array)),
            Ok(_) => {}
            Err(error) => may_refuse(&error),
        }
    }
}

/// One axis as two, where there is one.
fn unflattened((recipe, array): (Recipe, Array), axis: usize, at: u64) -> Option<(Result<Recipe>, Array)> {
    if array.shape.is_empty() || array.shape.len() > 5 {
        return None;
    }
    let axis = axis % array.shape.len();
    let divisors: Vec<i64> = (1..=array.shape[axis]).filter(|size| array.shape[axis] % size == 0).collect();
    let inner = divisors.get(at as usize % divisors.len().max(1)).copied().unwrap_or(3);
    let mut shape = array.shape.clone();
    shape.splice(axis..=axis, [shape[axis] / inner, inner]);
    Some((recipe.unflatten(axis, inner), Array { shape, ..array }))
}

/// Two axes as one, where there are two.
fn flattened((recipe, array): (Recipe, Array), axis: usize) -> Option<(Result<Recipe>, Array)> {
    if array.shape.len() < 2 {
        return None;
    }
    let axis = axis % (array.shape.len() - 1);
    let mut shape = array.shape.clone();
    shape.splice(axis..axis + 2, [shape[axis] * shape[axis + 1]]);
    Some((recipe.flatten(axis), Array { shape, ..array }))
}

fn numbers(dtype: DType, shape: &[i64], seed: u8) -> Buffer {
    let bytes = shape.iter().product::<i64>() as usize * dtype.bits() / 8;
    // Small enough for every float to be one.
    let byte = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as u8;
    let bytes: Vec<u8> = (0..bytes).map(|i| byte(i).wrapping_add(seed) & 0x3f).collect();
    Buffer::contiguous_at(Storage::of_bytes(&bytes).unwrap(), 0, dtype, shape).unwrap()
}

fn plain(name: &str, dtype: DType, shape: &[i64], seed: u8) -> (DeclaredTensor, Buffer) {
    let shape_of: Vec<u64> = shape.iter().map(|dim| *dim as u64).collect();
    (
        DeclaredTensor { name: name.to_owned(), stored: StoredElements::Plain(dtype), shape: shape_of },
        numbers(dtype, shape, seed),
    )
}

/// Three files of one checkpoint, or a GGUF file of packed and plain tensors. Some have rows that are long enough to be read to their places.
fn write(folder: &Path, is_gguf: bool, dtype: DType) {
    if is_gguf {
        let packed = |name: &str, shape: [i64; 2], encoding| {
            let (declared, floats) = plain(name, DType::Float32, &shape, 5);
            (DeclaredTensor { stored: StoredElements::Packed(encoding), ..declared }, floats)
        };
        let tensors = [
            packed("a", [6, 64], Encoding::Q8_0),
            packed("b", [6, 32], Encoding::Q4_0),
            packed("long", [2, 16384], Encoding::Q8_0),
            plain("c", DType::Float32, &[3, 6, 64], 1),
        ];
        let metadata = vec![("general.architecture".to_owned(), MetadataValue::String(b"llama".to_vec()))];
        let output = SaveTarget::Gguf { path: folder.join("model.gguf"), metadata, most: None, sync: false };
        save(&tensors, &output, false, &AtomicU64::new(0), &uninterrupted).unwrap();
        return;
    }
    let tensors = [
        plain("a", dtype, &[4, 6], 1),
        plain("b", dtype, &[4, 2], 2),
        plain("c", dtype, &[2, 4, 6], 3),
        plain("empty", dtype, &[0, 6], 4),
        plain("long", dtype, &[2, 32768], 5),
    ];
    let output = SaveTarget::Sharded {
        folder: folder.to_path_buf(),
        stem: "model".to_owned(),
        most: 64,
        metadata: None,
        options: WriteOptions { sync: false, ..WriteOptions::default() },
    };
    save(&tensors, &output, false, &AtomicU64::new(0), &uninterrupted).unwrap();
}

fn opened(folder: &Path, is_gguf: bool) -> Checkpoint {
    let path = if is_gguf { folder.join("model.gguf") } else { folder.to_path_buf() };
    Checkpoint::open(&[path], &OpenOptions::default()).unwrap()
}

fn weight(checkpoint: &Checkpoint, name: &str) -> Recipe {
    let number = checkpoint.catalog().find(name).unwrap();
    Recipe::from(checkpoint.catalog().tensor_request(number, None).unwrap())
}

fn load(checkpoint: &Checkpoint, recipes: Vec<Recipe>) -> Result<Vec<Buffer>> {
    let options = LoadOptions::default();
    let layout = LoadPlan::new(checkpoint, recipes, TensorMemory::Own, &[], &options)?;
    let (planned, done) = (layout.bytes(), AtomicU64::new(0));
    let _ = layout.planned();
    let (loaded, _) = layout.run(checkpoint, Vec::new(), &done, &uninterrupted)?;
    assert!(done.load(Ordering::Relaxed) >= planned.min(1) || planned == 0);
    Ok(loaded)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_program_over_recipes_is_what_it_is_over_arrays(
        is_gguf: bool,
        dtype in prop::sample::select(vec![
            DType::UInt8, DType::Float16, DType::BFloat16, DType::Float32, DType::Float64, DType::Float4E2M1Fn, DType::Float8E4M3Fn,
        ]),
        to in prop::option::of(prop::sample::select(vec![DType::Float32, DType::BFloat16, DType::Float64])),
        steps in prop::collection::vec(any_step(), 1..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), is_gguf, dtype);
        let checkpoint = opened(folder.path(), is_gguf);
        let to = if is_gguf { Some(to.unwrap_or(DType::Float32)) } else { to };
        let mut known = Vec::new();
        for number in 0..checkpoint.catalog().table().len() {
            let requests = checkpoint.catalog().tensor_request(number, to).unwrap();
            let whole = load(&checkpoint, vec![Recipe::from(requests.clone())]).unwrap();
            known.push((Recipe::from(requests), Array::of(&whole[0])));
        }
        for step in &steps {
            run(step, &mut known);
        }
        let bits = known[0].0.dtype().bits();
        known.retain(|(_, array)| (array.elements.len() * bits).is_multiple_of(8));
        let recipes: Vec<Recipe> = known.iter().map(|(recipe, _)| recipe.clone()).collect();
        for (recipe, array) in &known {
            prop_assert_eq!(recipe.shape(), &array.shape[..]);
        }
        match load(&checkpoint, recipes) {
            Ok(loaded) => {
                for (buffer, (_, array)) in loaded.iter().zip(&known) {
                    prop_assert_eq!(&Array::of(buffer), array);
                }
            }
            // Elements of less than a byte begin and end at bytes.
            Err(error) => prop_assert!(bits < 8 && error.to_string().contains("within a byte"), "{}", error),
        }
    }
}

#[test]
fn a_large_tensor_whose_axes_change_places_is_put_together_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), false, DType::Float64);
    let checkpoint = opened(folder.path(), false);
    let of = |name: &str| weight(&checkpoint, name);
    let whole = Array::of(&load(&checkpoint, vec![of("long")]).unwrap()[0]);
    let turned = of("long").transpose(&[1, 0]).unwrap();
    let both = Recipe::join(1, vec![turned.clone(), turned]).unwrap();
    let found = Array::of(&load(&checkpoint, vec![both]).unwrap()[0]);
    let turned = whole.transpose(&[1, 0]);
    assert_eq!(found, Array::join(1, &[turned.clone(), turned]));
}

#[test]
fn blocks_of_packed_tensors_are_taken_from_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), true, DType::Float32);
    let checkpoint = opened(folder.path(), true);
    let number = checkpoint.catalog().find("long").unwrap();
    let recipe = Recipe::from(checkpoint.catalog().tensor_request(number, Some(DType::Float32)).unwrap());
    let whole = Array::of(&load(&checkpoint, vec![recipe.clone()]).unwrap()[0]);
    let middle = IndexPart::Slice { start: Some(8192), stop: Some(8192 + 64), step: 1 };
    let part = recipe.index(&[IndexPart::Ellipsis, middle]).unwrap();
    let twice = part.index(&[IndexPart::At(1), IndexPart::Slice { start: Some(32), stop: None, step: 1 }]).unwrap();
    let found = load(&checkpoint, vec![part, twice]).unwrap();
    assert_eq!(Array::of(&found[0]), whole.slice(&[(0, 2, 1), (8192, 64, 1)]));
    assert_eq!(Array::of(&found[1]).elements, whole.slice(&[(1, 1, 1), (8192 + 32, 32, 1)]).elements);
    let split = IndexPart::Slice { start: Some(16), stop: None, step: 1 };
    let refused = recipe.index(&[IndexPart::Ellipsis, split]).expect_err("within a block").to_string();
    assert!(refused.contains("32 elements of a tensor of [2, 16384] are stored together"), "{refused}");
    let refused = recipe.transpose(&[1, 0]).expect_err("blocks across").to_string();
    assert!(refused.contains("stored together"), "{refused}");
}

#[test]
fn blocks_of_the_other_byte_order_are_taken_from_the_middle() {
    let blocks = quantize(&numbers(DType::Float32, &[6, 64], 7), Encoding::Q8_0, &uninterrupted).unwrap();
    let mut bytes = blocks.bytes().unwrap().to_vec();
    swap_bytes(Encoding::Q8_0, &mut bytes);
    let file = Made::of(3, true, 1, 0).tensor("t", &[64, 6], Encoding::Q8_0.ggml(), 0);
    let source = Trial::of("model.gguf", &file.pad(32).raw(&bytes).pad(32).bytes);
    let checkpoint = Checkpoint::open_sources(vec![Arc::new(source)], &OpenOptions::default()).unwrap();
    let recipe = Recipe::from(checkpoint.catalog().tensor_request(0, Some(DType::Float32)).unwrap());
    let whole = Array::of(&load(&checkpoint, vec![recipe.clone()]).unwrap()[0]);
    let slice = |start, step| IndexPart::Slice { start: Some(start), stop: None, step };
    let part = recipe.index(&[slice(1, 2), slice(32, 1)]).unwrap();
    let twice = Recipe::stack(0, &[part.clone(), part.clone()]).unwrap();
    let found = load(&checkpoint, vec![part, twice]).unwrap();
    let expected = whole.slice(&[(1, 3, 2), (32, 32, 1)]);
    assert_eq!(Array::of(&found[0]), expected);
    let expected = expected.with_axis(0);
    assert_eq!(Array::of(&found[1]), Array::join(0, &[expected.clone(), expected]));
}

/// A checkpoint of four small rows, and requests for boxes of them.
fn boxes(checkpoint: &Checkpoint, starts: &[[i64; 2]]) -> Vec<(Vec<i64>, max_weights::load::TensorRequest)> {
    let number = checkpoint.catalog().find("b").unwrap();
    starts.iter().map(|start| (start.to_vec(), checkpoint.catalog().tensor_request(number, None).unwrap())).collect()
}

#[test]
fn boxes_that_overlap_leave_holes_or_reach_outside_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), false, DType::Float32);
    let checkpoint = opened(folder.path(), false);
    let new = |shape: &[i64], starts: &[[i64; 2]]| Recipe::new(DType::Float32, shape, boxes(&checkpoint, starts));
    let message = |shape: &[i64], starts: &[[i64; 2]]| new(shape, starts).expect_err("refused").to_string();
    assert!(new(&[4, 4], &[[0, 2], [0, 0]]).is_ok());
    assert!(new(&[8, 2], &[[4, 0], [0, 0]]).is_ok());
    assert_eq!(message(&[4, 4], &[[0, 0], [0, 1]]), "pieces 0 and 1 overlap");
    assert_eq!(message(&[8, 4], &[[4, 2], [0, 0], [3, 2]]), "pieces 0 and 2 overlap");
    assert_eq!(message(&[8, 2], &[[0, 0]]), "the pieces have 8 of the 16 elements of a tensor of [8, 2]");
    assert_eq!(message(&[4, 4], &[[0, 3]]), "piece 0, [4, 2] from [0, 3] on, extends beyond a tensor of [4, 4]");
    assert_eq!(message(&[4, 4], &[[0, -1]]), "piece 0, [4, 2] from [0, -1] on, extends beyond a tensor of [4, 4]");
    assert_eq!(message(&[4, 4], &[[0, i64::MAX]]).split(',').next(), Some("piece 0"));
    assert!(message(&[1 << 40, 1 << 40], &[]).contains("overflows"));
    assert!(Recipe::new(DType::Float16, &[4, 2], boxes(&checkpoint, &[[0, 0]])).is_err(), "another dtype");
    assert!(Recipe::new(DType::Float32, &[0, 1 << 40], vec![]).is_ok(), "nothing");
    let nothing = Recipe::new(DType::Float32, &[0, 3], vec![]).unwrap();
    assert_eq!(load(&checkpoint, vec![nothing]).unwrap()[0].shape(), [0, 3]);
}

#[test]
fn what_does_not_fit_together_is_refused_by_number() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), false, DType::Float32);
    let checkpoint = opened(folder.path(), false);
    let of = |name: &str| weight(&checkpoint, name);
    let message = |refused: Result<Recipe>| refused.expect_err("refused").to_string();
    assert_eq!(message(Recipe::join(0, vec![])), "there is nothing to join");
    let failed = message(Recipe::join(0, vec![of("a"), of("b")]));
    assert!(failed.contains("number 1 is float32 [4, 2]") && failed.contains("float32 [4, 6]"), "{failed}");
    assert!(message(Recipe::join(2, vec![of("a")])).contains("no axis 2"));
    assert!(message(Recipe::stack(3, &[of("a")])).contains("cannot get a new axis 3"));
    assert!(of("a").split(1, &[3, 2]).is_err() && of("a").split(7, &[]).is_err());
    assert!(message(of("a").transpose(&[0, 0])).contains("not a permutation of the axes"));
    assert!(message(of("a").index(&[IndexPart::At(4)])).contains("out of bounds"));
}

#[test]
fn a_piece_whose_file_is_cut_off_and_an_interrupt_at_every_step_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), false, DType::Float32);
    let checkpoint = opened(folder.path(), false);
    let of = |name: &str| weight(&checkpoint, name);
    let recipes = || {
        let long = Recipe::stack(1, &[of("long"), of("long")]).unwrap();
        let turned = Recipe::join(0, vec![of("a").transpose(&[1, 0]).unwrap(), of("a").transpose(&[1, 0]).unwrap()]);
        vec![long, turned.unwrap(), Recipe::join(1, vec![of("a"), of("b")]).unwrap()]
    };
    let run = |most: u64| {
        let left = AtomicU64::new(most);
        let interrupt = || match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Interrupted),
        };
        let layout = LoadPlan::new(&checkpoint, recipes(), TensorMemory::Own, &[], &LoadOptions::default())?;
        layout.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &interrupt)
    };
    let steps = (0..1000).take_while(|&most| matches!(run(most), Err(Error::Interrupted))).count();
    assert!((2..1000).contains(&steps), "{steps}");
    assert_eq!(run(1 << 40).unwrap().0.len(), 3);
    let cut = folder.path().join("model-00005-of-00005.safetensors");
    let cut =
        if cut.exists() { cut } else { std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path() };
    std::fs::File::options().write(true).open(&cut).unwrap().set_len(700).unwrap();
    let failed = load(&checkpoint, recipes()).expect_err("it was cut off");
    assert!(matches!(failed, Error::FileChanged(_)), "{failed:?}");
    assert!(failed.to_string().contains("model-0000"), "{failed}");
}

#[test]
fn no_byte_is_read_but_those_of_the_pieces_that_are_wanted() {
    let source = |name: &str, seed| {
        let tensors = [(name.to_owned(), numbers(DType::Float32, &[64, 8192], seed))];
        let layout = laid_out(&tensors, None, &WriteOptions::default()).unwrap();
        let mut bytes = vec![0; layout.file_bytes() as usize];
        write_to_memory(&layout, &tensors, &mut bytes, &uninterrupted).unwrap();
        Arc::new(Trial::of(&format!("{name}.safetensors"), &bytes))
    };
    let (a, b) = (source("a", 1), source("b", 2));
    let options = OpenOptions::default();
    let checkpoint = Checkpoint::open_sources(vec![a.clone() as Arc<dyn Source>, b.clone()], &options).unwrap();
    let of = |number: usize| Recipe::from(checkpoint.catalog().tensor_request(number, None).unwrap());
    let stacked = Recipe::stack(0, &[of(0), of(1)]).unwrap();
    let row = |slice: IndexPart| {
        stacked.index(&[IndexPart::Ellipsis, slice, IndexPart::Slice { start: None, stop: None, step: 1 }])
    };
    let cases = [
        // Rows 8 to 16 of both; the last of both; every fourth; of the second alone.
        (row(IndexPart::Slice { start: Some(8), stop: Some(16), step: 1 }).unwrap(), [8, 8]),
        (row(IndexPart::At(-1)).unwrap(), [1, 1]),
        (row(IndexPart::Slice { start: None, stop: None, step: 4 }).unwrap(), [16, 16]),
        (
            stacked.index(&[IndexPart::At(1), IndexPart::Slice { start: Some(3), stop: Some(5), step: 1 }]).unwrap(),
            [0, 2],
        ),
    ];
    for (recipe, rows) in cases {
        let before = [a.counts().bytes, b.counts().bytes];
        load(&checkpoint, vec![recipe.clone()]).unwrap();
        let read = [a.counts().bytes - before[0], b.counts().bytes - before[1]];
        assert_eq!(read, rows.map(|rows| rows * 8192 * 4), "{:?}", recipe.shape());
    }
}

#[test]
fn one_of_many_pieces_that_cannot_be_read_is_named_with_its_file() {
    let tensors: Vec<_> = (0..8).map(|i| (format!("expert.{i}"), numbers(DType::Float32, &[256, 4096], i))).collect();
    let layout = laid_out(&tensors, None, &WriteOptions::default()).unwrap();
    let mut bytes = vec![0; layout.file_bytes() as usize];
    write_to_memory(&layout, &tensors, &mut bytes, &uninterrupted).unwrap();
    let whole =
        Checkpoint::open_sources(vec![Arc::new(Trial::of("whole.safetensors", &bytes))], &OpenOptions::default());
    let inside = whole.unwrap().catalog().table().get(5).span.start() + 1000;
    let difficulty = Difficulty { broken_byte: Some(inside), ..Difficulty::default() };
    let source = Difficult::new(Trial::of("broken.safetensors", &bytes), difficulty);
    let checkpoint =
        Checkpoint::open_sources(vec![source.clone() as Arc<dyn Source>], &OpenOptions::default()).unwrap();
    let of = |number: usize| Recipe::from(checkpoint.catalog().tensor_request(number, None).unwrap());
    let experts: Vec<Recipe> = (0..8).map(of).collect();
    source.turn(true);
    for axis in [0, 2] {
        let stacked = Recipe::stack(axis, &experts).unwrap();
        let failed = load(&checkpoint, vec![stacked]).expect_err("a byte of it is broken").to_string();
        assert!(failed.contains("broken.safetensors") && failed.contains("'expert.5'"), "{failed}");
        assert!(failed.contains("the disk is broken"), "{failed}");
    }
}
