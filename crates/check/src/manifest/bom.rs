//! A model as a component of a bill of materials in CycloneDX 1.7: what its bytes prove, and what its own files say. The same files give the same
//! document: there is no time and no random number in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use max_weights::Result;
use max_weights::format::pickle::Danger;
use max_weights::rules;
use max_weights::source::store;
use max_weights::workers::Interrupt;
use serde_json::{Map, Value, json};

use super::card::Card;
use super::create::{create, open};
use super::tree::FileTree;
use super::{Manifest, ManifestTensor};
use crate::options::ValidateOptions;
use crate::progress::ValidateProgress;
use crate::report::{FileReport, Report};
use crate::validate::validate;
use crate::words;

/// Licences of the list of SPDX, which the Hugging Face hub writes in small letters; `gpl` and its like do not say whether later versions are meant, and are
/// names.
const SPDX: &str = "
    AFL-3.0 AGPL-3.0-only Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSD-3-Clause-Clear BSL-1.0 CC-BY-2.0 CC-BY-3.0 CC-BY-4.0 CC-BY-
    NC-2.0 CC-BY-NC-3.0 CC-BY-NC-4.0 CC-BY-NC-ND-4.0 CC-BY-NC-SA-4.0 CC-BY-ND-4.0 CC-BY-SA-3.0 CC-BY-SA-4.0 CC0-1.0 ISC MIT MPL-2.0 OSL-3.0
    Unlicense Zlib";

/// What the names of our properties begin with.
const OURS: &str = "max-weights";

/// The bill of materials of the files below a path.
///
/// # Errors
/// A file that cannot be read, or is a link to somewhere else; Ctrl-C.
pub fn bom(path: &Path, progress: &ValidateProgress, interrupt: Interrupt<'_>) -> Result<Value> {
    let manifest = create(path, &[], false, None, progress, interrupt)?;
    let report = validate(&[path.to_path_buf()], &ValidateOptions::default(), progress, interrupt)?;
    let tree = FileTree::of(path, &[], interrupt)?;
    let mut card = Card::of(&tree.files, interrupt)?;
    for file in tree.files.values() {
        interrupt()?;
        if let Some(checkpoint) = open(file, interrupt)? {
            card.gguf(&checkpoint);
        }
    }
    let name = card.name.clone().unwrap_or_else(|| name_of(path));
    let kinds: BTreeMap<&Path, &FileReport> = report.files.iter().map(|file| (&*file.path, file)).collect();
    let of_file = |record: &super::ManifestFile| {
        let known = tree.files.get(&record.path).and_then(|path| kinds.get(&**path));
        let mut properties = vec![property("bytes", record.bytes)];
        if let Some(known) = known {
            properties.push(property("format", &known.kind));
            properties.push(property("verdict", known.answer_verdict().name()));
        }
        json!({
            "type": "file",
            "bom-ref": format!("file:{}", record.path),
            "name": record.path,
            "hashes": [{"alg": "SHA-256", "content": record.sha256}],
            "properties": properties,
        })
    };
    let files: Vec<Value> = manifest.files.iter().map(of_file).collect();
    let references: Vec<Value> = manifest.files.iter().map(|file| format!("file:{}", file.path).into()).collect();
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": OURS, "version": env!("CARGO_PKG_VERSION")}]},
            "component": model(&name, &manifest, &report, &tree, &card),
        },
        "components": files,
        "dependencies": [{"ref": "model", "dependsOn": references}],
    }))
}

/// The component that is the model.
fn model(name: &str, manifest: &Manifest, report: &Report, tree: &FileTree, card: &Card) -> Value {
    let mut model = Map::new();
    model.insert("type".into(), "machine-learning-model".into());
    model.insert("bom-ref".into(), "model".into());
    model.insert("name".into(), name.into());
    if !card.licenses.is_empty() {
        let licenses = card.licenses.iter().map(|license| {
            let is_it = |id: &&str| id.strip_suffix("-only").unwrap_or(id).eq_ignore_ascii_case(license);
            let spdx = words::each(SPDX).find(|id| id.eq_ignore_ascii_case(license) || is_it(id));
            match spdx {
                Some(id) => json!({"license": {"id": id, "acknowledgement": "declared"}}),
                None => json!({"license": {"name": license, "acknowledgement": "declared"}}),
            }
        });
        model.insert("licenses".into(), licenses.collect());
    }
    if !card.base_models.is_empty() {
        let of_base = |base: &String| json!({"type": "machine-learning-model", "name": base});
        let ancestors: Vec<Value> = card.base_models.iter().map(of_base).collect();
        model.insert("pedigree".into(), json!({"ancestors": ancestors}));
    }
    let mut parameters = Map::new();
    for (key, value) in
        [("task", &card.task), ("architectureFamily", &card.family), ("modelArchitecture", &card.architecture)]
    {
        if let Some(value) = value {
            parameters.insert(key.into(), value.as_str().into());
        }
    }
    if !card.datasets.is_empty() {
        let of_set = |name: &String| json!({"type": "dataset", "name": name});
        parameters.insert("datasets".into(), card.datasets.iter().map(of_set).collect());
    }
    let of_weights = tensors(&manifest.tensors, card);
    model.insert(
        "modelCard".into(),
        json!({"bom-ref": "model-card", "modelParameters": parameters, "properties": of_weights}),
    );
    model.insert("properties".into(), safety(manifest, report, tree).into());
    model.into()
}

/// What the tensors prove.
fn tensors(tensors: &[ManifestTensor], card: &Card) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let mut dtypes: BTreeMap<&str, u64> = BTreeMap::new();
    // A checkpoint may be there in two formats.
    for tensor in tensors.iter().filter(|tensor| seen.insert(&tensor.name)) {
        let elements = tensor.shape.iter().fold(1, |elements: u64, dim| elements.saturating_mul(*dim));
        let count = dtypes.entry(&tensor.dtype).or_default();
        *count = count.saturating_add(elements);
    }
    let total = dtypes.values().fold(0, |total: u64, count| total.saturating_add(*count));
    let mut properties = vec![property("tensors", seen.len()), property("parameters", total)];
    properties.extend(dtypes.iter().map(|(dtype, count)| property(&format!("parameters:{dtype}"), count)));
    properties.extend(card.quantization.iter().map(|method| property("quantization", method)));
    properties.extend(card.languages.iter().map(|language| property("language", language)));
    properties.extend(card.libraries.iter().map(|(library, version)| property(&format!("library:{library}"), version)));
    properties
}

/// What the validation found.
fn safety(manifest: &Manifest, report: &Report, tree: &FileTree) -> Vec<Value> {
    let mut properties = vec![property("content", &manifest.content), property("verdict", report.verdict().name())];
    let code: BTreeSet<&Path> =
        report.files.iter().filter(|file| file.answer >= rules::Verdict::NeedsTrust).map(|file| &*file.path).collect();
    let names = tree.files.iter().filter(|(_, path)| code.contains(&***path)).map(|(name, _)| name);
    properties.extend(names.map(|name| property("code-bearing-file", name)));
    let globals = report.files.iter().flat_map(|file| &file.globals).filter(|global| global.danger != Danger::Harmless);
    let names: BTreeSet<String> = globals.map(|global| format!("{}.{}", global.module, global.name)).collect();
    properties.extend(names.iter().map(|name| property("global", name)));
    properties
}

fn property(name: &str, value: impl ToString) -> Value {
    json!({"name": format!("{OURS}:{name}"), "value": value.to_string()})
}

/// The name of a model that no file says: that of the folder, or of the model whose snapshot in the cache of the hub it is.
fn name_of(path: &Path) -> String {
    if store::is_url(path) {
        return store::name(path);
    }
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let model =
        real.ancestors().map(name).find_map(|name| name.strip_prefix("models--").map(|name| name.replace("--", "/")));
    model.unwrap_or_else(|| name(&real))
}
