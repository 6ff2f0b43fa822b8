//! The verdict on each class and function that a pickle names, and the list of them.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use max_weights::format::pickle::spelling::{LAST_PROTOCOL, renamed};

use super::{allowed, malicious};
use crate::report::Safety;

/// So many different names are told apart.
const MAX_NAMES: usize = 20_000;
/// The number of all that are more.
const MANY: u32 = u32::MAX;

/// What is known of a class or function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Plain weights need it.
    Allowed,
    /// A library's, which pickles of its objects have: its code runs.
    Library,
    /// On no list.
    Unknown,
    /// It does harm.
    Malicious,
}

impl Verdict {
    pub(super) fn safety(self) -> Safety {
        match self {
            Self::Allowed => Safety::Innocuous,
            Self::Library | Self::Unknown => Safety::Suspicious,
            Self::Malicious => Safety::Dangerous,
        }
    }
}

/// Libraries whose classes are written by pickling their objects; that their code runs is what loading them means.
const LIBRARIES: &str = "sklearn joblib xgboost lightgbm catboost scipy pandas statsmodels imblearn category_encoders umap hdbscan
    transformers accelerate peft trl deepspeed diffusers timm sentence_transformers tokenizers safetensors lightning pytorch_lightning
    lightning_fabric torchmetrics torchvision torchaudio torchtext fairseq fastai detectron2 mmcv mmengine ultralytics spacy thinc gensim nltk
    megatron nemo omegaconf flax jax optax keras tensorflow
    torch.nn torch.optim torch.ao torch.quantization torch.amp torch.cuda.amp torch.distributed torch.utils torch.autograd torch.masked
    torch.nested torch.storage torch.distributions torch._prims_common torch.fx.immutable_collections __torch__";

/// Classes and functions of Python's and numpy's own that pickles of objects have.
const OBJECTS: &[(&str, &str)] = &[
    (
        "builtins",
        "getattr type Exception ValueError TypeError RuntimeError KeyError enumerate property staticmethod classmethod reversed zip print len abs sum min max sorted any all round repr hash divmod pow ord chr
        callable isinstance issubclass NotImplementedError Ellipsis NotImplemented super iter memoryview",
    ),
    ("copyreg", "__newobj__ __newobj_ex__ _reduce_ex"),
    ("functools", "partial"),
    ("pathlib", PATHS),
    ("pathlib._local", PATHS),
    ("argparse", "Namespace"),
    ("types", "SimpleNamespace MappingProxyType NoneType GenericAlias"),
    ("_io", "BytesIO StringIO"),
    ("io", "BytesIO StringIO"),
    ("collections", "UserDict UserList UserString ChainMap"),
    ("re", "_compile compile"),
    ("random", "Random"),
    ("_random", "Random"),
    ("zoneinfo", "ZoneInfo ZoneInfo._unpickle"),
    ("operator", "add sub mul truediv neg abs eq ne lt le gt ge and_ or_ not_"),
    ("_operator", "add sub mul truediv neg abs eq ne lt le gt ge and_ or_ not_"),
    ("numpy.random._pickle", "__randomstate_ctor __generator_ctor __bit_generator_ctor"),
    ("numpy.random._mt19937", "MT19937"),
    ("numpy.random._pcg64", "PCG64 PCG64DXSM"),
    ("numpy.random._philox", "Philox"),
    ("numpy.random._sfc64", "SFC64"),
    ("numpy.random.mtrand", "RandomState __randomstate_ctor"),
    ("numpy.random._generator", "Generator"),
    ("numpy.random.bit_generator", "SeedSequence __pyx_unpickle_SeedSequence"),
    ("numpy.core", "_ufunc_reconstruct"),
    ("numpy._core", "_ufunc_reconstruct"),
    ("numpy.matrixlib.defmatrix", "matrix"),
    ("numpy.polynomial.polynomial", "Polynomial"),
    ("numpy", "recarray record matrix ufunc"),
    ("numpy.rec", "recarray record"),
    ("joblib.numpy_pickle", "NumpyArrayWrapper NDArrayWrapper ZNDArrayWrapper"),
    ("joblib.numpy_pickle_compat", "NDArrayWrapper ZNDArrayWrapper"),
    ("joblib.memory", "Memory MemorizedFunc NotMemorizedFunc"),
];
const PATHS: &str = "Path PurePath PosixPath WindowsPath PurePosixPath PureWindowsPath";

static LIBRARY_SET: LazyLock<HashSet<&str>> = LazyLock::new(|| LIBRARIES.split_whitespace().collect());
static OBJECT_SET: LazyLock<HashSet<(&str, &str)>> = LazyLock::new(|| pairs(OBJECTS));

/// The names of a list, each with its module.
pub(super) fn pairs(list: &[(&'static str, &'static str)]) -> HashSet<(&'static str, &'static str)> {
    list.iter().flat_map(|(module, names)| names.split_whitespace().map(|name| (*module, name))).collect()
}

/// Whether a dotted name is one of these, or is below one.
pub(super) fn is_below(tops: &HashSet<&str>, full: &str) -> bool {
    let ends = full.match_indices('.').map(|(at, _)| at).chain([full.len()]);
    ends.into_iter().any(|end| full.get(..end).is_some_and(|top| tops.contains(top)))
}

/// The verdict on a name as it would be imported.
pub(super) fn judge(module: &str, name: &str) -> Verdict {
    if allowed::has(module, name) {
        return Verdict::Allowed;
    }
    if OBJECT_SET.contains(&(module, name)) {
        return Verdict::Library;
    }
    // A name with a dot goes through whatever its module has imported, so that it may reach anything. What is no name is none of a writer's.
    let plain = |c: char| c == '_' || c == '<' || c == '>' || c.is_alphanumeric();
    if name.is_empty() || !name.chars().all(plain) || !module.chars().all(|c| c == '.' || c == '-' || plain(c)) {
        return Verdict::Malicious;
    }
    if malicious::has(module, name) {
        return Verdict::Malicious;
    }
    if is_below(&LIBRARY_SET, module) { Verdict::Library } else { Verdict::Unknown }
}

/// The verdict on a name as a pickle of this protocol spells it, and its name in Python 3. The harm that it does under the name of the other
/// Python counts, too: which of them reads it is not known.
fn judge_spelled(module: &str, name: &str, protocol: u8) -> (Verdict, String, String) {
    let now = renamed(module, name);
    let (new_module, new_name) = now.unwrap_or((module, name));
    let verdict = if now.is_some() && protocol <= LAST_PROTOCOL {
        // In Python 2 the module of the old name was harmful where the new one is.
        judge(new_module, new_name)
    } else {
        let other = now.map(|(module, name)| judge(module, name)).filter(|other| *other == Verdict::Malicious);
        // Under its old name it is another module's, unless that is plainly Python's own.
        let as_spelled = if module == "__builtin__" { judge(new_module, new_name) } else { judge(module, name) };
        other.unwrap_or(as_spelled)
    };
    (verdict, new_module.to_owned(), new_name.to_owned())
}

/// A class or function that was named.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) module: String,
    pub(super) name: String,
    pub(super) verdict: Verdict,
    /// The first place.
    pub(super) at: u64,
    /// How often it was called.
    pub(super) calls: u64,
    /// The first call, as Python would write it, and its place.
    pub(super) call: Option<(u64, String)>,
}

impl Named {
    /// Whether module and name are names as Python has them.
    pub(super) fn is_plain(&self) -> bool {
        let is_plain = |name: &str| {
            name.len() > 1
                && name.chars().all(|c| c == '_' || c == '.' || c.is_alphanumeric())
                && !name.starts_with('.')
        };
        is_plain(&self.module) && is_plain(&self.name)
    }

    pub(super) fn full(&self) -> String {
        format!("{}.{}", self.module, self.name)
    }
}

/// The classes and functions of one pickle.
#[derive(Default)]
pub(super) struct Names {
    list: Vec<Named>,
    numbers: HashMap<(String, String, bool), u32>,
}

impl Names {
    /// The number of a name that is at `at`.
    pub(super) fn number(&mut self, module: String, name: String, protocol: u8, at: u64) -> u32 {
        let key = (module, name, protocol <= LAST_PROTOCOL);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let (verdict, module, name) = judge_spelled(&key.0, &key.1, protocol);
        if self.list.len() >= MAX_NAMES && verdict != Verdict::Malicious {
            return MANY;
        }
        let number = self.list.len().min(2 * MAX_NAMES) as u32;
        if self.list.len() < 2 * MAX_NAMES {
            self.list.push(Named { module, name, verdict, at, calls: 0, call: None });
            self.numbers.insert(key, number);
        }
        number
    }

    pub(super) fn get(&self, number: u64) -> Option<&Named> {
        self.list.get(usize::try_from(number).ok()?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Named> {
        self.list.get_mut(usize::try_from(number).ok()?)
    }

    pub(super) fn all(&self) -> &[Named] {
        &self.list
    }

    /// Adds what another pickle names.
    pub(super) fn merge(&mut self, other: Self) {
        for named in other.list {
            let number = self.number(named.module, named.name, LAST_PROTOCOL + 1, named.at);
            if let Some(mine) = self.get_mut(u64::from(number)) {
                mine.verdict = mine.verdict.max(named.verdict);
                mine.calls += named.calls;
                mine.call = mine.call.take().or(named.call);
            }
        }
    }

    /// Whether there were more than are told apart.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MAX_NAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_keep_the_three_answers_apart() {
        for (module, name, verdict) in [
            ("collections", "OrderedDict", Verdict::Allowed),
            ("torch.nn.modules.linear", "Linear", Verdict::Library),
            ("sklearn.svm._classes", "SVC", Verdict::Library),
            ("functools", "partial", Verdict::Library),
            ("builtins", "getattr", Verdict::Library),
            ("pathlib", "PosixPath", Verdict::Library),
            ("__main__", "Model", Verdict::Unknown),
            ("models.yolo", "Detect", Verdict::Unknown),
            ("torch", "os.system", Verdict::Malicious),
            ("sklearn.utils", "os", Verdict::Malicious),
            ("builtins", "exec", Verdict::Malicious),
            ("collections", "OrderedDict.__base__", Verdict::Malicious),
            ("os\r", "system", Verdict::Malicious),
        ] {
            assert_eq!(judge(module, name), verdict, "{module}.{name}");
        }
    }

    #[test]
    fn names_of_python_2_are_judged_by_what_they_are_now() {
        let spelled = |module, name, protocol| judge_spelled(module, name, protocol).0;
        assert_eq!(spelled("__builtin__", "set", 2), Verdict::Allowed);
        assert_eq!(spelled("commands", "Popen", 2), Verdict::Malicious);
        assert_eq!(spelled("commands", "Popen", 4), Verdict::Malicious);
        assert_eq!(spelled("copy_reg", "_reconstructor", 0), Verdict::Allowed);
        // A module of this name beside the model is imported by it.
        assert_ne!(spelled("UserDict", "OrderedDict", 4), Verdict::Allowed);
    }
}
