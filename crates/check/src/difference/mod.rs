//! What differs between two checkpoints, of any formats: names, dtypes, shapes, values, metadata.
//!
//! [`compare`] pairs the tensors by their names and reads both files a piece at a time. The bytes are compared first. Tensors whose bytes differ
//! are compared by value; packed blocks are decoded for this.

mod metadata;
mod names;
mod numbers;
mod object;
mod renamed;
mod values;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use max_weights::tensor::TensorInfo;
use max_weights::workers::Interrupt;
use max_weights::{Catalog, Checkpoint, Error, Result};
use serde::{Serialize, Serializer};

pub use max_weights::names::Pattern;
pub use metadata::MetadataChange;
pub(crate) use metadata::text_of;
pub use names::RenamedTensors;
pub use object::DifferenceJson;
pub use values::ValueDifference;

use values::PairOutcome;

/// How two checkpoints are compared.
#[allow(clippy::struct_excessive_bools)] // each is a question by itself
#[derive(Debug, Clone)]
pub struct DifferenceOptions {
    /// Relative tolerance, times `|b|` for values `a` and `b`, as with `torch.allclose`.
    pub rtol: f64,
    /// Nor is this.
    pub atol: f64,
    /// Bytes count and not numbers: `-0.0` is not `0.0`, and one NaN is not another.
    pub exact: bool,
    /// Whether tensors are read. Without, names, dtypes, shapes and metadata are compared.
    pub values: bool,
    /// Whether another dtype is a difference where the values are the same.
    pub dtypes: bool,
    /// Whether metadata is compared.
    pub metadata: bool,
    /// Other names for the tensors of the first checkpoint.
    pub a: RenamedTensors,
    /// Other names for those of the second.
    pub b: RenamedTensors,
}

impl Default for DifferenceOptions {
    fn default() -> Self {
        Self {
            rtol: 0.0,
            atol: 0.0,
            exact: false,
            values: true,
            dtypes: true,
            metadata: true,
            a: RenamedTensors::default(),
            b: RenamedTensors::default(),
        }
    }
}

/// One of the two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Its files.
    #[serde(serialize_with = "shown_paths")]
    pub files: Vec<PathBuf>,
    /// How many tensors it has.
    #[serde(rename = "weights")]
    pub tensors: u64,
    /// The bytes of their elements.
    pub bytes: u64,
}

/// Paths as text; bytes that are not UTF-8 are allowed.
fn shown_paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// A tensor that only one of the checkpoints has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OneSidedTensor {
    /// Its name, as it was compared.
    pub name: String,
    /// What its elements are: the dtype, or the encoding of packed blocks.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The bytes of its elements.
    pub bytes: u64,
}

impl OneSidedTensor {
    fn of(info: &TensorInfo<'_>) -> Self {
        let (name, dtype) = (info.name.to_owned(), info.element.to_string());
        Self { name, dtype, shape: info.shape.to_vec(), bytes: info.bytes() }
    }
}

/// A tensor that both have under different names: with the same dtype, shape and bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Renamed {
    /// The name in the first one, and what it is.
    #[serde(flatten)]
    pub a: OneSidedTensor,
    /// The name in the second one.
    #[serde(rename = "new_name")]
    pub b: String,
}

/// A tensor that both have under one name, and that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DifferingTensor {
    /// The name.
    pub name: String,
    /// The dtypes, where they differ.
    #[serde(rename = "dtypes")]
    pub dtype: Option<(String, String)>,
    /// The shapes, where they differ; values are not compared then.
    #[serde(rename = "shapes")]
    pub shape: Option<(Vec<u64>, Vec<u64>)>,
    /// How the values differ; also given where only dtypes differ. None where they were not compared.
    pub values: Option<ValueDifference>,
}

/// What differs between two checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The first.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// How many tensors are the same in both.
    pub same: u64,
    /// How many are not the same byte for byte, but within the tolerances, or the same numbers.
    pub close: u64,
    /// Tensors that only the second has, by name.
    pub added: Vec<OneSidedTensor>,
    /// Tensors that only the first has, by name.
    pub removed: Vec<OneSidedTensor>,
    /// Tensors that have another name, by the first.
    pub renamed: Vec<Renamed>,
    /// Tensors that differ: other shapes first, then by the largest difference of values, then those of another dtype alone.
    pub changed: Vec<DifferingTensor>,
    /// Tensors whose values cannot be compared, and why, by name.
    pub not_compared: Vec<(String, String)>,
    /// Metadata that differs, by key.
    pub metadata: Vec<MetadataChange>,
    /// Why metadata was not compared, where it was to be.
    pub metadata_note: Option<String>,
}

impl Difference {
    /// Whether nothing differs, and everything was compared that was to be.
    pub fn is_none(&self) -> bool {
        let lists = [self.added.len(), self.removed.len(), self.renamed.len(), self.changed.len()];
        lists.iter().sum::<usize>() + self.not_compared.len() + self.metadata.len() == 0
    }
}

/// Two tensors of one name, by their numbers.
#[derive(Debug, Clone, Copy)]
struct TensorPair {
    a: usize,
    b: usize,
}

/// Compares two checkpoints on all cores. Memory does not grow with the tensors, and the result does not depend on the number of threads. `done`
/// counts bytes of the first checkpoint's tensors, each twice, since tensors that differ are read twice.
///
/// # Errors
/// A file that cannot be read, or that was changed meanwhile; tolerances that are not tolerances; two tensors that get one name; Ctrl-C.
pub fn compare(
    a: &Checkpoint,
    b: &Checkpoint,
    options: &DifferenceOptions,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Difference> {
    let is_tolerance = |number: f64| number.is_finite() && number >= 0.0;
    if !is_tolerance(options.rtol) || !is_tolerance(options.atol) {
        return Err(Error::Argument("a tolerance must be a number, and not negative".into()));
    }
    if options.exact && (options.rtol > 0.0 || options.atol > 0.0) {
        return Err(Error::Argument("an exact comparison takes no tolerances".into()));
    }
    let (first, second) = (options.a.apply(a.catalog())?, options.b.apply(b.catalog())?);
    let (names_a, names_b) = (first.as_ref().unwrap_or(a.catalog()), second.as_ref().unwrap_or(b.catalog()));
    let mut found = Difference {
        a: side(a.catalog()),
        b: side(b.catalog()),
        same: 0,
        close: 0,
        added: Vec::new(),
        removed: Vec::new(),
        renamed: Vec::new(),
        changed: Vec::new(),
        not_compared: Vec::new(),
        metadata: Vec::new(),
        metadata_note: None,
    };
    let (pairs, removed, added) = paired(names_a, names_b);
    let (to_read, others): (Vec<TensorPair>, Vec<TensorPair>) = pairs
        .into_iter()
        .partition(|pair| options.values && names_a.table().get(pair.a).shape == names_b.table().get(pair.b).shape);
    let outcomes = values::compare(a, b, &to_read, options, done, interrupt)?;
    let read = to_read.into_iter().zip(outcomes.into_iter().map(Some));
    for (pair, outcome) in others.into_iter().map(|pair| (pair, None)).chain(read) {
        let (of_a, of_b) = (names_a.table().get(pair.a), names_b.table().get(pair.b));
        found.count(&of_a, &of_b, outcome, options.dtypes);
    }
    let by_content = if options.values {
        renamed::by_content((a, names_a, &removed), (b, names_b, &added), interrupt)?
    } else {
        Vec::new()
    };
    let (gone, come): (HashSet<usize>, HashSet<usize>) = by_content.iter().map(|pair| (pair.a, pair.b)).unzip();
    let tensor = |catalog: &Catalog, number: usize| OneSidedTensor::of(&catalog.table().get(number));
    let left = |catalog: &Catalog, numbers: Vec<usize>, without: &HashSet<usize>| {
        let numbers = numbers.into_iter().filter(|number| !without.contains(number));
        numbers.map(|number| tensor(catalog, number)).collect()
    };
    found.removed = left(names_a, removed, &gone);
    found.added = left(names_b, added, &come);
    let renamed = by_content
        .iter()
        .map(|pair| Renamed { a: tensor(names_a, pair.a), b: names_b.table().name(pair.b).to_owned() });
    found.renamed = renamed.collect();
    found.renamed.sort_by(|x, y| x.a.name.cmp(&y.a.name));
    if options.metadata {
        (found.metadata, found.metadata_note) = metadata::compare(a.catalog(), b.catalog());
    }
    found.changed.sort_by(|x, y| y.rank().total_cmp(&x.rank()).then_with(|| x.name.cmp(&y.name)));
    found.not_compared.sort();
    Ok(found)
}

impl Difference {
    /// Counts two tensors of one name, of whose values this is known; nothing where they were not looked at.
    fn count(&mut self, a: &TensorInfo<'_>, b: &TensorInfo<'_>, outcome: Option<PairOutcome>, dtypes: bool) {
        let dtype = (a.element != b.element && dtypes).then(|| (a.element.to_string(), b.element.to_string()));
        let shape = (a.shape != b.shape).then(|| (a.shape.to_vec(), b.shape.to_vec()));
        let name = a.name.to_owned();
        let values = match outcome {
            Some(PairOutcome::Close(_)) if dtype.is_none() => {
                self.close += 1;
                return;
            }
            Some(PairOutcome::Close(values) | PairOutcome::Differ(values)) => Some(values),
            Some(PairOutcome::NotCompared(reason)) => {
                self.not_compared.push((name.clone(), reason));
                if dtype.is_none() {
                    return;
                }
                None
            }
            Some(PairOutcome::Same) | None => None,
        };
        if dtype.is_none() && shape.is_none() && values.is_none() {
            self.same += 1;
        } else {
            self.changed.push(DifferingTensor { name, dtype, shape, values });
        }
    }
}

impl DifferingTensor {
    /// The position in the list: shapes first, then the largest difference of values.
    fn rank(&self) -> f64 {
        match (&self.shape, &self.values) {
            (Some(_), _) => f64::INFINITY,
            (None, Some(values)) if values.nans > 0 => f64::INFINITY,
            (None, Some(values)) => values.largest,
            (None, None) => -1.0,
        }
    }
}

/// Whether pairs of tensors of one checkpoint have the same bytes; `None` where these cannot be compared.
pub(crate) fn same_bytes(
    checkpoint: &Checkpoint,
    pairs: &[(usize, usize)],
    interrupt: Interrupt<'_>,
) -> Result<Vec<Option<bool>>> {
    let table = checkpoint.catalog().table();
    let shape = |number: usize| (table.get(number).shape, table.get(number).element);
    let alike: Vec<TensorPair> =
        pairs.iter().map(|&(a, b)| TensorPair { a, b }).filter(|pair| shape(pair.a) == shape(pair.b)).collect();
    let options = DifferenceOptions { exact: true, ..DifferenceOptions::default() };
    let mut outcomes =
        values::compare(checkpoint, checkpoint, &alike, &options, &AtomicU64::new(0), interrupt)?.into_iter();
    let same = |&(a, b): &(usize, usize)| {
        let outcome = if shape(a) == shape(b) { outcomes.next() } else { None };
        match outcome? {
            PairOutcome::Same => Some(true),
            PairOutcome::Close(_) | PairOutcome::Differ(_) => Some(false),
            PairOutcome::NotCompared(_) => None,
        }
    };
    Ok(pairs.iter().map(same).collect())
}

fn side(catalog: &Catalog) -> Side {
    Side {
        files: catalog.files().iter().map(|file| file.path.clone()).collect(),
        tensors: catalog.table().len() as u64,
        bytes: catalog.table().iter().fold(0, |all, info| info.bytes().saturating_add(all)),
    }
}

/// The tensors of one name, and those that only the first and only the second has, by name.
fn paired(a: &Catalog, b: &Catalog) -> (Vec<TensorPair>, Vec<usize>, Vec<usize>) {
    let (mut pairs, mut removed) = (Vec::new(), Vec::new());
    for position in 0..a.names().len() {
        let number = a.names().entry(position);
        match b.find(a.table().name(number)) {
            Some(other) => pairs.push(TensorPair { a: number, b: other }),
            None => removed.push(number),
        }
    }
    let numbers = (0..b.names().len()).map(|position| b.names().entry(position));
    let added = numbers.filter(|number| a.find(b.table().name(*number)).is_none()).collect();
    (pairs, removed, added)
}
