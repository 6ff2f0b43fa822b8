//! Folders that were made to break their reader: every one has a report, and no check panics.

use max_weights_check::Level;
use serde_json::json;

use super::support::{Fixture, report, safetensors};

/// A header with these shapes, of tensors without a byte.
fn empty(tensors: &[(&str, &str, &str)]) -> Vec<u8> {
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape)| format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,0]}}"#))
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

#[test]
fn shapes_of_any_size_are_compared_without_overflow() {
    let most = "[9223372036854775807, 0]";
    let names = [
        "weight",
        "qweight",
        "qzeros",
        "scales",
        "g_idx",
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_global_scale",
        "weight_scale_2",
        "weight_scale_inv",
        "x_blocks",
        "x_scales",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        "weight.quant_state.bitsandbytes__nf4",
        "SCB",
        "lora_A.weight",
        "lora_B.weight",
        "lora_magnitude_vector",
        "embed_tokens.weight",
    ];
    let methods = ["gptq", "awq", "fp8", "compressed-tensors", "modelopt", "mxfp4", "bitsandbytes"];
    let numbers = [json!(0), json!(1), json!(u64::MAX), json!(-1), json!("x"), json!(null), json!([0, 0])];
    for (round, dtype) in ["I32", "U8", "F8_E4M3", "F32", "I8", "BF16"].into_iter().enumerate() {
        for shape in
            [most, "[0, 9223372036854775807]", "[0]", "[]", "[0, 0, 0]", "[1, 0, 2, 3]", "[0, 9223372036854775807, 1]"]
        {
            // A scalar has bytes.
            let shape = if shape == "[]" { "[0, 1]" } else { shape };
            let tensors: Vec<(String, &str, &str)> =
                names.iter().map(|name| (format!("model.layers.18446744073709551615.{name}"), dtype, shape)).collect();
            let tensors: Vec<(&str, &str, &str)> = tensors.iter().map(|(name, d, s)| (name.as_str(), *d, *s)).collect();
            let folder = Fixture::new().with("model.safetensors", empty(&tensors));
            let folder = folder.with("adapter_model.safetensors", empty(&tensors));
            let number = numbers[round % numbers.len()].clone();
            for method in methods {
                let config = json!({"quantization_config": {"quant_method": method, "bits": number, "group_size": number,
                    "weight_block_size": [number, number], "ignore": ["re:(", "re:(a*)*b", "*", number],
                    "config_groups": {"g": {"weights": {"num_bits": number, "group_size": number, "block_structure": [number, 1]}}}},
                    "vocab_size": number, "hidden_size": number, "num_hidden_layers": number, "tie_word_embeddings": number});
                let adapter = json!({"peft_type": "LORA", "r": number, "target_modules": number, "rank_pattern": {"(": number, "a": number},
                    "alpha_pattern": number, "use_dora": true, "modules_to_save": number});
                let folder = Fixture::new()
                    .with("model.safetensors", std::fs::read(folder.path().join("model.safetensors")).expect("read"))
                    .with(
                        "adapter_model.safetensors",
                        std::fs::read(folder.path().join("adapter_model.safetensors")).expect("read"),
                    )
                    .with("config.json", config.to_string())
                    .with("adapter_config.json", adapter.to_string());
                assert_eq!(folder.report(Level::Structure).files.len(), 4);
            }
        }
    }
}

#[test]
fn configurations_of_any_form_are_read() {
    let weights = safetensors(&[("model.embed_tokens.weight", "BF16", &[10, 4])], None);
    for text in [
        "[]",
        "3",
        "\"x\"",
        "null",
        "{\"quantization_config\": []}",
        "{\"text_config\": 3, \"quantization_config\": {}}",
        "\u{feff}{}",
        "\0",
    ] {
        let folder = [
            "config.json",
            "adapter_config.json",
            "quantize_config.json",
            "hf_quant_config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
        ]
        .iter()
        .fold(Fixture::new().with("model.safetensors", &weights), |folder, name| folder.with(name, text));
        assert_eq!(folder.report(Level::Structure).files.len(), 7, "{text}");
    }
}

#[test]
fn bytes_that_change_anywhere_give_findings_and_no_panic() {
    let index =
        json!({"metadata": {"total_size": 20}, "weight_map": {"a.lora_A.weight": "model-00001-of-00001.safetensors"}})
            .to_string();
    let config =
        json!({"vocab_size": 4, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})
            .to_string();
    let weights = safetensors(
        &[("a.lora_A.weight", "F32", &[4, 2]), ("a.qweight", "I32", &[1, 8]), ("a.scales", "F16", &[1, 8])],
        Some("pt"),
    );
    let files: [(&str, &[u8]); 4] = [
        ("model.safetensors.index.json", index.as_bytes()),
        ("config.json", config.as_bytes()),
        ("model-00001-of-00001.safetensors", &weights),
        ("adapter_model.safetensors", &weights),
    ];
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..300 {
        let changed = next(files.len());
        let folder = files.iter().enumerate().fold(Fixture::new(), |folder, (number, (name, bytes))| {
            let mut bytes = bytes.to_vec();
            if number == changed {
                for _ in 0..=next(3) {
                    let at = next(bytes.len());
                    bytes[at] = next(256) as u8;
                }
                bytes.truncate(bytes.len() - next(2) * next(8));
            }
            folder.with(name, bytes)
        });
        assert_eq!(report(folder.path(), Level::Structure).files.len(), 4);
    }
}

#[test]
fn findings_without_number_are_counted_and_not_all_kept() {
    let names: Vec<String> = (0..500).map(|number| format!("m.{number}.weight_scale_inv")).collect();
    let tensors: Vec<(&str, &str, &[u64])> = names.iter().map(|name| (name.as_str(), "F32", &[1, 1][..])).collect();
    let config = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    let folder = Fixture::new().with("config.json", config).weights("model.safetensors", &tensors);
    assert_eq!(folder.messages("quantized.scale-orphan").len(), 100);
    assert_eq!(report(folder.path(), Level::Structure).omitted, 400);
}
