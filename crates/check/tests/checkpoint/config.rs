//! The configuration and the tokenizer of the weights.

use serde_json::{Value, json};

use super::support::{Fixture, Tensor};

const MODEL: &str = "model.safetensors";
const LAYER: Tensor<'_> = ("model.layers.1.mlp.up_proj.weight", "BF16", &[8, 4]);
const EMBEDDING: Tensor<'_> = ("model.embed_tokens.weight", "BF16", &[10, 4]);

fn config() -> Value {
    json!({"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2, "torch_dtype": "bfloat16"})
}

fn tokenizer(tokens: u64, added: u64) -> String {
    let vocab: serde_json::Map<String, Value> = (0..tokens).map(|id| (format!("t{id}"), id.into())).collect();
    json!({"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "0"]]},
        "added_tokens": [{"id": added, "content": "<s>", "special": true}]})
    .to_string()
}

/// A model with this configuration.
fn with(config: &Value) -> Fixture {
    let folder = Fixture::new().weights(MODEL, &[EMBEDDING, LAYER]);
    folder.with("config.json", config.to_string()).with("tokenizer.json", tokenizer(9, 9))
}

/// The usual configuration, but for one key.
fn but(key: &str, value: impl Into<Value>) -> Fixture {
    let mut config = config();
    config[key] = value.into();
    with(&config)
}

#[test]
fn a_whole_model_has_no_findings() {
    assert_eq!(with(&config()).rules(), [""; 0]);
    // The configuration of a model of several parts.
    assert_eq!(with(&json!({"vocab_size": 3, "text_config": config()})).rules(), [""; 0]);
}

#[test]
fn what_the_configuration_says_is_compared_with_the_tensors() {
    for (folder, rule) in [
        (but("vocab_size", 12), "set.vocabulary"),
        (but("hidden_size", 8), "set.hidden-size"),
        (but("num_hidden_layers", 3), "set.layers"),
        (but("num_hidden_layers", 1), "set.layers-more"),
        (but("torch_dtype", "float32"), "set.dtype"),
        (
            but("tie_word_embeddings", true).weights(MODEL, &[EMBEDDING, LAYER, ("lm_head.weight", "BF16", &[10, 4])]),
            "set.tied",
        ),
    ] {
        assert_eq!(folder.rules(), [rule]);
    }
    assert_eq!(but("vocab_size", 12).messages("set.vocabulary"), ["vocab_size is 12, but the embedding has 10 rows"]);
}

#[test]
fn what_is_not_certain_is_not_said() {
    for (key, value) in [
        ("num_nextn_predict_layers", json!(1)),
        ("embedding_size", json!(10)),
        ("is_encoder_decoder", json!(true)),
        ("model_type", json!("mllama_text_model")),
    ] {
        let mut config = config();
        config[key] = value;
        let changed = match key {
            "num_nextn_predict_layers" | "is_encoder_decoder" => "num_hidden_layers",
            _ => "vocab_size",
        };
        config[changed] = json!(if changed == "vocab_size" { 9 } else { 1 });
        assert_eq!(with(&config).rules(), [""; 0], "{key}");
    }
    // A packed embedding has other rows and columns.
    let folder = but("hidden_size", 64).weights(MODEL, &[("model.embed_tokens.weight", "U32", &[10, 8]), LAYER]);
    assert_eq!(folder.rules(), [""; 0]);
}

#[test]
fn a_tokenizer_may_not_have_more_tokens_than_the_embedding_rows() {
    assert_eq!(with(&config()).with("tokenizer.json", tokenizer(10, 4)).rules(), [""; 0]);
    let folder = with(&config()).with("tokenizer.json", tokenizer(10, 10));
    assert_eq!(folder.rules(), ["set.tokenizer-size"]);
    let messages = folder.messages("set.tokenizer-size");
    assert_eq!(messages, ["its tokens are numbered up to 10, but the embedding model.embed_tokens.weight has 10 rows"]);
    let unigram = json!({"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.5]]}}).to_string();
    assert_eq!(with(&config()).with("tokenizer.json", unigram).rules(), [""; 0]);
    assert_eq!(with(&config()).with("tokenizer.json", r#"{"model": 3}"#).rules(), [""; 0]);
    assert_eq!(with(&config()).with("tokenizer.json", r#"{"model": "#).rules(), ["set.json"]);
}

#[test]
fn a_configuration_is_json_as_python_reads_it() {
    assert_eq!(with(&config()).with("config.json", "{\"a\": ").rules(), ["set.json"]);
    assert_eq!(with(&config()).with("generation_config.json", "<html>").rules(), ["set.json"]);
    assert_eq!(with(&config()).with("config.json", r#"{"a": Infinity, "b": NaN}"#).rules(), [""; 0]);
    let folder = with(&config()).with("config.json", r#"{"a": 1, "b": {"c": 1, "c": 2}}"#);
    assert_eq!(folder.rules(), ["set.json-key"]);
}

#[test]
fn files_that_a_model_lacks_are_noted() {
    assert_eq!(Fixture::new().weights(MODEL, &[LAYER]).rules(), ["set.config-missing"]);
    let folder = Fixture::new().weights(MODEL, &[EMBEDDING, LAYER]).with("config.json", config().to_string());
    assert_eq!(folder.rules(), ["set.tokenizer-missing"]);
    // A file of another name is no model of a library's.
    assert_eq!(Fixture::new().weights("vae.safetensors", &[LAYER]).rules(), [""; 0]);
}
