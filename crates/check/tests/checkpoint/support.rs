//! Folders of small checkpoints, and the findings in them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use max_weights::uninterrupted;
use max_weights_check::{Level, Report, RuleSelection, ValidateOptions, ValidateProgress, validate};

/// The rules that are looked for: those about weights. Other checks have their own tests.
const OURS: [&str; 7] = ["MW-FI", "MW-ST", "MW-GG", "MW-PT", "MW-IX", "MW-QU", "MW-AD"];

/// A tensor: name, dtype, shape.
pub(crate) type Tensor<'a> = (&'a str, &'a str, &'a [u64]);

/// A folder of files.
pub(crate) struct Fixture(tempfile::TempDir);

impl Fixture {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Adds a file.
    pub(crate) fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, bytes).expect("written");
        self
    }

    /// Adds a safetensors file.
    pub(crate) fn weights(self, name: &str, tensors: &[Tensor<'_>]) -> Self {
        self.with(name, safetensors(tensors, Some("pt")))
    }

    /// Adds a safetensors file in which one tensor holds these bytes, and the others zeros.
    pub(crate) fn weights_holding(self, name: &str, tensors: &[Tensor<'_>], holder: &str, bytes: &[u8]) -> Self {
        let mut file = safetensors(tensors, Some("pt"));
        let len = |tensor: &Tensor<'_>| (tensor.2.iter().product::<u64>() * bits(tensor.1) / 8) as usize;
        let at = tensors.iter().position(|tensor| tensor.0 == holder).expect("the tensor");
        let after: usize = tensors.iter().skip(at).map(len).sum();
        let start = file.len() - after;
        file[start..start + bytes.len()].copy_from_slice(bytes);
        self.with(name, file)
    }

    /// Adds an index of these tensors and shards.
    pub(crate) fn index(self, name: &str, total_size: u64, map: &[(&str, &str)]) -> Self {
        self.with(name, index(total_size, map))
    }

    pub(crate) fn report(&self, level: Level) -> Report {
        report(self.path(), level)
    }

    /// The rules that the folder breaks, each once, sorted.
    pub(crate) fn rules(&self) -> Vec<&'static str> {
        rules(&self.report(Level::Structure))
    }

    /// The sentences of the findings of a rule.
    pub(crate) fn messages(&self, rule: &str) -> Vec<String> {
        let report = self.report(Level::Structure);
        report.findings.into_iter().filter(|finding| finding.rule.id == rule).map(|finding| finding.message).collect()
    }
}

/// The findings below a path.
pub(crate) fn report(path: &Path, level: Level) -> Report {
    let selection = RuleSelection { select: OURS.map(str::to_owned).to_vec(), ignore: Vec::new() };
    let options = ValidateOptions { level, selection, ..ValidateOptions::default() };
    validate(&[path.to_path_buf()], &options, &ValidateProgress::default(), &uninterrupted).expect("validated")
}

pub(crate) fn rules(report: &Report) -> Vec<&'static str> {
    let mut ids: Vec<&str> = report.findings.iter().map(|finding| finding.rule.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn bits(dtype: &str) -> u64 {
    match dtype {
        "F4" => 4,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 8,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F32" | "I32" | "U32" => 32,
        "F64" | "I64" | "U64" => 64,
        other => panic!("{other} is no dtype of these tests"),
    }
}

/// A file of these tensors, all zeros; `format` is what its metadata says.
pub(crate) fn safetensors(tensors: &[Tensor<'_>], format: Option<&str>) -> Vec<u8> {
    let mut header = String::from("{");
    if let Some(format) = format {
        let _ = write!(header, r#""__metadata__":{{"format":"{format}"}},"#);
    }
    let mut at = 0;
    for (name, dtype, shape) in tensors {
        let len = shape.iter().product::<u64>() * bits(dtype) / 8;
        let _ =
            write!(header, r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{}]}},"#, at + len);
        at += len;
    }
    let header = format!("{}}}", header.trim_end_matches(','));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + at as usize, 0);
    file
}

pub(crate) fn index(total_size: u64, map: &[(&str, &str)]) -> String {
    let map: serde_json::Map<String, serde_json::Value> =
        map.iter().map(|(tensor, shard)| ((*tensor).to_owned(), (*shard).into())).collect();
    serde_json::json!({"metadata": {"total_size": total_size}, "weight_map": map}).to_string()
}
