//! Where chat templates are found: in configurations, in separate files, and in the metadata of weights.

use max_weights::format::gguf;
use max_weights::{Catalog, Diagnostic};
use serde_json::Value;

use super::{remote_code, template};
use crate::json;

/// The key of templates in metadata: `tokenizer.chat_template`, `tokenizer.chat_template.tool_use`, `chat_template`.
const KEY: &str = "chat_template";

/// The templates in a configuration: a string, a list of names and texts, or an object of them.
pub(super) fn of_config(value: &Value, report: &mut dyn FnMut(Diagnostic)) {
    remote_code::objects(value, &mut |object| {
        for (key, value) in object.iter().filter(|(key, _)| key.ends_with(KEY) || *key == "chat_templates") {
            of_value(key, value, report);
        }
    });
}

fn of_value(key: &str, value: &Value, report: &mut dyn FnMut(Diagnostic)) {
    let mut check = |name: Option<&str>, text: Option<&str>| {
        let source = name.map_or_else(|| key.to_owned(), |name| format!("{key} '{}'", max_weights::text::escape(name)));
        if let Some(text) = text {
            template::check(text, &source, None, report);
        }
    };
    match value {
        Value::Array(list) => {
            for entry in list {
                let named = entry.is_object().then(|| entry.get("name").and_then(Value::as_str).unwrap_or_default());
                check(named, entry.get("template").unwrap_or(entry).as_str());
            }
        }
        Value::Object(map) => map.iter().for_each(|(name, text)| check(Some(name), text.as_str())),
        value => check(None, value.as_str()),
    }
}

/// A file that is one template.
pub(super) fn of_file(bytes: &[u8], report: &mut dyn FnMut(Diagnostic)) {
    match std::str::from_utf8(bytes) {
        Ok(text) => template::check(text, "the template", Some(0), report),
        Err(_) => template::check(&String::from_utf8_lossy(bytes), "the template", None, report),
    }
}

/// The templates, and the configurations, in the metadata of a file of weights.
pub(super) fn of_weights(catalog: &Catalog, report: &mut dyn FnMut(Diagnostic)) {
    if let Some(gguf) = catalog.gguf() {
        for (key, value) in gguf.metadata.iter().filter(|(key, _)| key.contains(KEY)) {
            let source = max_weights::text::escape(key);
            // An array of one text is as good as the text for Transformers.
            let texts: Vec<&str> = match value {
                gguf::GgufValue::Array(array) => array.iter().filter_map(|element| element.as_str()).collect(),
                value => value.as_str().into_iter().collect(),
            };
            for text in texts {
                template::check(text, &source, None, report);
            }
        }
    }
    for (key, text) in catalog.metadata() {
        let shown = max_weights::text::escape(key);
        if key.contains(KEY) {
            template::check(text, &shown, None, report);
        } else if text.contains("auto_map") || text.contains("_target_") || text.contains(KEY) {
            let Ok(value) = json::read(text.as_bytes()) else { continue };
            let mut of_key = |mut finding: Diagnostic| {
                finding.message = format!("metadata '{shown}': {}", finding.message);
                finding.offset = None;
                report(finding);
            };
            remote_code::look(text.as_bytes(), &value, "", &remote_code::ConfigCompanions::default(), &mut of_key);
            of_config(&value, &mut of_key);
        }
    }
}
