//! What the small files of a model say of it: its configuration, that of an adapter, the head of its card, the metadata of GGUF. Each file is read as
//! data and believed in nothing that its bytes could prove.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use max_weights::workers::Interrupt;
use max_weights::{Checkpoint, Result};
use serde_json::Value;

use crate::bytes::{OpenFile, RandomRead};

/// The longest configuration or card that is read.
const MAX_BYTES: u64 = 16 << 20;
/// Words of a list that are taken.
const MAX_WORDS: usize = 100;

/// The metadata of a model. The first file that has a value determines it.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub(super) name: Option<String>,
    pub(super) task: Option<String>,
    /// The family, such as `llama`.
    pub(super) family: Option<String>,
    /// The class, such as `LlamaForCausalLM`.
    pub(super) architecture: Option<String>,
    pub(super) licenses: Vec<String>,
    pub(super) datasets: Vec<String>,
    pub(super) base_models: Vec<String>,
    pub(super) languages: Vec<String>,
    pub(super) quantization: Option<String>,
    /// Libraries and their versions, as files name them.
    pub(super) libraries: BTreeMap<&'static str, String>,
}

impl Card {
    /// What these files say, by their paths below the folder.
    pub(super) fn of(files: &BTreeMap<String, Arc<Path>>, interrupt: Interrupt<'_>) -> Result<Self> {
        let mut card = Self::default();
        if let Some(config) = json(files, "config.json", interrupt)? {
            card.config(&config);
        }
        if let Some(config) = json(files, "adapter_config.json", interrupt)? {
            card.adapter(&config);
        }
        for name in ["README.md", "readme.md"] {
            if let Some(text) = text(files, name, interrupt)? {
                card.head(&head(&text));
            }
        }
        Ok(card)
    }

    fn config(&mut self, config: &Value) {
        self.family = word(config, "model_type");
        self.architecture = config.get("architectures").and_then(|list| list.get(0)).and_then(as_word);
        if let Some(version) = word(config, "transformers_version") {
            self.libraries.insert("transformers", version);
        }
        self.quantization = config.get("quantization_config").and_then(|config| word(config, "quant_method"));
    }

    fn adapter(&mut self, config: &Value) {
        self.task = word(config, "task_type");
        self.architecture = self.architecture.take().or_else(|| word(config, "peft_type"));
        self.base_models.extend(word(config, "base_model_name_or_path"));
        if let Some(version) = word(config, "peft_version") {
            self.libraries.insert("peft", version);
        }
    }

    fn head(&mut self, head: &BTreeMap<String, Vec<String>>) {
        let one = |key: &str| head.get(key).and_then(|values| values.first()).cloned();
        self.name = self.name.take().or_else(|| one("model_name"));
        self.task = self.task.take().or_else(|| one("pipeline_tag"));
        let license = one("license").filter(|license| license != "other");
        add(&mut self.licenses, license.or_else(|| one("license_name")));
        for (key, list) in
            [("datasets", &mut self.datasets), ("base_model", &mut self.base_models), ("language", &mut self.languages)]
        {
            add(list, head.get(key).into_iter().flatten().cloned());
        }
    }

    /// What the metadata of a GGUF file says.
    pub(super) fn gguf(&mut self, checkpoint: &Checkpoint) {
        let Some(gguf) = checkpoint.catalog().gguf() else { return };
        let word = |key: &str| {
            let value = gguf.metadata.get(key)?;
            value.as_str().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        self.name = self.name.take().or_else(|| word("general.name"));
        self.family = self.family.take().or_else(|| word("general.architecture"));
        add(&mut self.licenses, word("general.license"));
        let count = |key: &str| gguf.metadata.get(key).and_then(|value| value.as_u64()).unwrap_or(0);
        for (kind, list) in [("base_model", &mut self.base_models), ("dataset", &mut self.datasets)] {
            for number in 0..count(&format!("general.{kind}.count")).min(MAX_WORDS as u64) {
                let of = |what: &str| word(&format!("general.{kind}.{number}.{what}"));
                // `https://huggingface.co/org/model` is what the card calls `org/model`.
                let repository = of("repo_url").map(|url| url.trim_start_matches("https://huggingface.co/").to_owned());
                add(list, repository.or_else(|| of("name")));
            }
        }
        if let Some(version) = gguf.metadata.get("general.quantization_version").and_then(|value| value.as_u64()) {
            self.libraries.insert("ggml quantization", version.to_string());
        }
    }
}

/// Adds the words that the list does not have.
fn add(list: &mut Vec<String>, words: impl IntoIterator<Item = String>) {
    for word in words {
        if list.len() < MAX_WORDS && !word.is_empty() && !list.contains(&word) {
            list.push(word);
        }
    }
}

fn as_word(value: &Value) -> Option<String> {
    value.as_str().filter(|word| !word.is_empty()).map(str::to_owned)
}

fn word(object: &Value, key: &str) -> Option<String> {
    object.get(key).and_then(as_word)
}

/// The text of a file; `None` if it is not there, is too long or no text.
fn text(files: &BTreeMap<String, Arc<Path>>, name: &str, interrupt: Interrupt<'_>) -> Result<Option<String>> {
    let Some(path) = files.get(name) else { return Ok(None) };
    let file = OpenFile::open(path, interrupt)?;
    if RandomRead::len(&file) > MAX_BYTES {
        return Ok(None);
    }
    let bytes = file.first(MAX_BYTES as usize)?;
    Ok(String::from_utf8(bytes).ok())
}

fn json(files: &BTreeMap<String, Arc<Path>>, name: &str, interrupt: Interrupt<'_>) -> Result<Option<Value>> {
    Ok(text(files, name, interrupt)?.and_then(|text| crate::json::read(text.as_bytes()).ok()))
}

/// The head of a card in Markdown: keys with a string, or with a list of texts. Of YAML this is what cards use; what is nested deeper is left out.
fn head(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return found;
    }
    let mut under: Option<String> = None;
    for line in lines.take_while(|line| line.trim_end() != "---") {
        let item = line.trim_start().strip_prefix("- ");
        if let (Some(item), Some(key)) = (item, &under) {
            // A list of objects is no list of texts.
            let item = scalar(item);
            if !item.contains(": ") {
                add(found.entry(key.clone()).or_default(), [item]);
            }
        } else if !line.starts_with([' ', '\t', '#', '-'])
            && let Some((key, value)) = line.split_once(':')
        {
            let value = scalar(value);
            let list = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
            let words: Vec<String> = match list {
                Some(list) => list.split(',').map(scalar).collect(),
                None => vec![value],
            };
            add(found.entry(key.trim().to_owned()).or_default(), words);
            under = Some(key.trim().to_owned());
        }
    }
    found
}

/// A string without quotes or comment.
fn scalar(value: &str) -> String {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some((inside, _)) = value.strip_prefix(quote).and_then(|rest| rest.split_once(quote)) {
            return inside.to_owned();
        }
    }
    let value = value.split_once(" #").map_or(value, |(value, _)| value).trim();
    if matches!(value, "~" | "null" | "|" | ">" | "|-" | ">-") || value.starts_with('#') {
        String::new()
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_card_is_read() {
        let text = "---\nlicense: apache-2.0 # free\ndatasets:\n- a/b\n  - 'c: d'\nbase_model: [x/y, \"z\"]\nmodel-index:\n- name: m\n  results:\n  - task: t\nempty:\n---\nlicense: mit\n";
        let head = head(text);
        let of = |key: &str| head.get(key).map(|values| values.join("|")).unwrap_or_default();
        assert_eq!(
            (of("license"), of("base_model"), of("empty")),
            ("apache-2.0".into(), "x/y|z".into(), String::new())
        );
        assert_eq!((of("datasets"), of("model-index")), ("a/b".into(), String::new()));
        assert!(super::head("# no head\nlicense: mit\n").is_empty());
        assert!(!super::head("---\nlicense").contains_key("license"));
    }
}
