//! Configurations that make loaders run code, local or remote, anywhere in them.

use crate::repository_support::{folder, found, look, only, rules, safetensors};
use max_weights::rules::{Severity, Verdict};

const X: (&str, &str) = ("modeling_x.py", "class X: pass\n");

#[test]
fn auto_map_needs_trust_and_names_the_files() {
    let config = r#"{
  "model_type": "x",
  "auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.X"}
}"#;
    let found = found(&[("config.json", config), X]);
    let finding = only("repository.remote-code", &found);
    assert_eq!((finding.answer, finding.file.as_str()), (Verdict::NeedsTrust, "config.json"));
    assert!(finding.message.starts_with("line 3: auto_map "), "{}", finding.message);
    assert!(finding.message.contains("X of modeling_x.py"), "{}", finding.message);
    assert!(finding.message.contains("configuration_x.py (which is not here)"), "{}", finding.message);
    assert!(only("repository.program-run", &found).message.contains("config.json makes loaders run it"));
}

#[test]
fn code_of_another_repository_is_a_finding_of_its_own() {
    let config = r#"{"auto_map": {"AutoModel": "other/repo--modeling_x.X", "AutoConfig": "configuration_x.XConfig"}}"#;
    let found = found(&[("config.json", config)]);
    let finding = only("repository.remote-code-elsewhere", &found);
    assert!(finding.message.contains("other/repo"), "{}", finding.message);
    assert_eq!(finding.evidence, "auto_map.AutoModel: other/repo--modeling_x.X");
    only("repository.remote-code", &found);
    let kernels = r#"{"attn_implementation": "somebody/flash-attn:flash"}"#;
    assert_eq!(rules(&[("config.json", kernels)]), ["repository.remote-code-elsewhere"]);
}

#[test]
fn remote_code_is_found_in_every_configuration_and_at_every_depth() {
    for name in [
        "config.json",
        "tokenizer_config.json",
        "processor_config.json",
        "preprocessor_config.json",
        "generation_config.json",
        "adapter_config.json",
        "video_preprocessor_config.json",
        "other.json",
        "unet/config.json",
    ] {
        for config in [
            r#"{"auto_map": {"AutoTokenizer": ["modeling_x.X", null]}}"#,
            r#"{"text_config": {"inner": [{"auto_map": {"AutoModel": "modeling_x.X"}}]}}"#,
            r#"{"custom_pipelines": {"task": {"impl": "modeling_x.X", "pt": ["AutoModel"]}}}"#,
            r#"{"limit": Infinity, "big": 1e999, "half": "\ud800", "auto_map": {"AutoModel": "modeling_x.X"}}"#,
            "\u{feff}{\"auto_map\": \"modeling_x.X\"}",
        ] {
            assert_eq!(rules(&[(name, config)]), ["repository.remote-code"], "{name}: {config}");
        }
    }
    let metadata = r#"{"config": "{\"auto_map\": {\"AutoModel\": \"modeling_x.X\"}}"}"#;
    let folder = folder(&[("model.safetensors", &safetensors(metadata))]);
    assert!(only("repository.remote-code", &look(folder.path())).message.contains("metadata 'config'"));
}

#[test]
fn classes_of_programs_beside_are_remote_code() {
    let own = r#"{"tokenizer_class": "XTokenizer"}"#;
    let program = ("tokenization_x.py", "class XTokenizer:\n    pass\n");
    assert_eq!(rules(&[("tokenizer_config.json", own), program]), ["repository.program-run", "repository.remote-code"]);
    assert!(rules(&[("tokenizer_config.json", own)]).is_empty(), "a class of Transformers' own");
    let index = r#"{"_class_name": "StableDiffusionPipeline", "unet": ["my_unet", "MyUNet"], "vae": ["diffusers", "AutoencoderKL"]}"#;
    assert_eq!(
        rules(&[("model_index.json", index), ("unet/my_unet.py", "class MyUNet: pass\n")]),
        ["repository.remote-code"]
    );
    assert_eq!(
        rules(&[("model_index.json", index), ("my_unet.py", "class MyUNet: pass\n")]),
        ["repository.program-run", "repository.remote-code"]
    );
    let own = index.replace("my_unet", "stable_diffusion");
    assert!(rules(&[("model_index.json", &own)]).is_empty(), "a module of Diffusers' own");
    let pipeline = r#"{"_class_name": ["my_pipeline", "MyPipeline"]}"#;
    assert_eq!(rules(&[("model_index.json", pipeline)]), ["repository.remote-code"]);
}

#[test]
fn a_part_of_a_pipeline_is_of_a_known_library_or_needs_trust() {
    for name in ["model_index.json", "modular_model_index.json"] {
        for (parts, rule) in [
            (r#""unet": ["os", "system"]"#, "repository.target-dangerous"),
            (r#""unet": ["diffusers", "UNet", {"type_hint": ["os", "system"]}]"#, "repository.target-dangerous"),
            (r#""unet": ["subprocess", "Popen", {"repo": "a/b"}]"#, "repository.target-dangerous"),
            (r#""unet": ["my_package", "MyUNet"]"#, "repository.target"),
        ] {
            assert_eq!(rules(&[(name, &format!("{{{parts}}}"))]), [rule], "{name}: {parts}");
        }
        let usual = r#"{"unet": ["diffusers", "UNet", {"type_hint": ["diffusers", "UNet"]}], "safety_checker": [null, null],
            "tokenizer": ["transformers", "CLIPTokenizer"], "force_zeros": true, "_names": ["a", "b"], "sizes": ["a"]}"#;
        assert_eq!(rules(&[(name, usual)]), [""; 0], "{name}");
    }
}

#[test]
fn blocks_of_a_modular_pipeline_are_remote_code() {
    let blocks = ("block.py", "class MyBlocks: pass\n");
    let config = r#"{"_class_name": "MyBlocks", "auto_map": {"ModularPipelineBlocks": "block.MyBlocks"}}"#;
    assert_eq!(rules(&[("modular_config.json", config), blocks]), ["repository.program-run", "repository.remote-code"]);
    let index = r#"{"_blocks_class_name": "MyBlocks", "_class_name": "ModularPipeline"}"#;
    assert_eq!(
        rules(&[("modular_model_index.json", index), blocks]),
        ["repository.program-run", "repository.remote-code"]
    );
}

#[test]
fn types_of_sentence_transformers_are_its_own_or_need_trust() {
    let modules = |kind: &str| format!(r#"[{{"idx": 0, "name": "0", "path": "", "type": "{kind}"}}]"#);
    let own = modules("sentence_transformers.models.Transformer");
    assert!(rules(&[("modules.json", &own)]).is_empty());
    let companions = modules("modeling_x.X");
    assert_eq!(rules(&[("modules.json", &companions), X]), ["repository.program-run", "repository.remote-code"]);
    assert_eq!(rules(&[("modules.json", &modules("evil.module.X"))]), ["repository.target"]);
    assert_eq!(rules(&[("modules.json", &modules("os.system"))]), ["repository.target-dangerous"]);
    let router = r#"{"types": {"0": "evil.X", "1": "sentence_transformers.models.Transformer"}}"#;
    assert_eq!(rules(&[("router_config.json", router)]), ["repository.target"]);
}

#[test]
fn a_configuration_that_trusts_code_by_itself_needs_trust() {
    let finding = only("repository.trust-key", &found(&[("config.json", "{\n\"a\": {\"trust_remote_code\": true}}")]));
    assert!(finding.message.starts_with("line 2"), "{}", finding.message);
    assert!(rules(&[("config.json", r#"{"trust_remote_code": false}"#)]).is_empty());
    assert_eq!(rules(&[("train.yaml", "model:\n  trust_remote_code: true\n")]), ["repository.trust-key"]);
}

#[test]
fn a_configuration_that_is_no_json_is_not_passed_over() {
    assert_eq!(rules(&[("config.json", "{\"auto_map\": ")]), ["repository.config-unreadable"]);
    assert_eq!(rules(&[("other.json", "{\"auto_map\": ")]), ["repository.config-unreadable"]);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(rules(&[("config.json", &deep)]), ["repository.config-unreadable"]);
    assert!(rules(&[("train.json", "{\"text\": 1}\n{\"text\": 2}\n")]).is_empty(), "lines of JSON are data");
}

#[test]
fn the_base_model_of_an_adapter_is_noted_where_it_is_a_path_or_an_address() {
    for base in ["./llama", "models\\\\llama", "https://a/b"] {
        let config = format!(r#"{{"base_model_name_or_path": "{base}", "peft_type": "LORA"}}"#);
        let finding = only("repository.adapter-base", &found(&[("adapter_config.json", &config)]));
        assert_eq!(finding.severity, Severity::Note);
    }
    for base in ["/home/me/llama", "../llama", "a/../../llama", "C:\\\\models\\\\llama", "~/llama", "a://../../b"] {
        let config = format!(r#"{{"base_model_name_or_path": "{base}", "peft_type": "LORA"}}"#);
        let finding = only("repository.adapter-base-path", &found(&[("adapter_config.json", &config)]));
        assert_eq!(finding.answer, Verdict::NeedsTrust, "{base}");
    }
    let named = r#"{"base_model_name_or_path": "meta-llama/Llama-3.1-8B..", "peft_type": "LORA"}"#;
    assert!(found(&[("adapter_config.json", named)]).is_empty());
    let library = r#"{"auto_mapping": {"base_model_class": "X", "parent_library": "evil.module"}}"#;
    assert_eq!(rules(&[("adapter_config.json", library)]), ["repository.target"]);
}
