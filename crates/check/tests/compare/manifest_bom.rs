//! Bills of materials: what bytes prove and files say, the same each time. `tests/python/validate/test_bom.py` compares them with the schema of CycloneDX.

use std::fs;
use std::path::Path;

use crate::content_support::{model, safetensors};
use max_weights::uninterrupted;
use max_weights_check::ValidateProgress;
use max_weights_check::manifest::{bom, create};
use serde_json::{Value, json};

const CARD: &str = "---\nlicense: apache-2.0\ndatasets: [org/data]\nbase_model:\n- org/base\npipeline_tag: text-generation\n---\n# A model\n";
const CONFIG: &str =
    r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "transformers_version": "4.50.0"}"#;

fn made(path: &Path) -> Value {
    bom(path, &ValidateProgress::default(), &uninterrupted).expect("a bill of materials")
}

/// The values of a property of ours.
fn of<'a>(properties: &'a Value, name: &str) -> Vec<&'a str> {
    let all = properties.as_array().expect("a list").iter();
    let named = all.filter(|property| property["name"] == format!("max-weights:{name}"));
    named.map(|property| property["value"].as_str().expect("a text")).collect()
}

#[test]
fn a_model_is_described_by_its_bytes_and_by_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny");
    safetensors(&path.join("model.safetensors"), &model());
    fs::write(path.join("README.md"), CARD).expect("written");
    fs::write(path.join("config.json"), CONFIG).expect("written");
    let made = made(&path);
    assert_eq!((&made["bomFormat"], &made["specVersion"]), (&json!("CycloneDX"), &json!("1.7")));
    let component = &made["metadata"]["component"];
    assert_eq!((&component["type"], &component["name"]), (&json!("machine-learning-model"), &json!("tiny")));
    assert_eq!(component["licenses"][0]["license"]["id"], "Apache-2.0");
    assert_eq!(component["pedigree"]["ancestors"][0]["name"], "org/base");
    let card = &component["modelCard"];
    let expected = json!({
        "task": "text-generation",
        "architectureFamily": "llama",
        "modelArchitecture": "LlamaForCausalLM",
        "datasets": [{"type": "dataset", "name": "org/data"}],
    });
    assert_eq!(card["modelParameters"], expected);
    assert_eq!((of(&card["properties"], "parameters"), of(&card["properties"], "tensors")), (vec!["800"], vec!["4"]));
    assert_eq!(of(&card["properties"], "parameters:bfloat16"), ["16"]);
    assert_eq!(of(&card["properties"], "library:transformers"), ["4.50.0"]);
    let manifest = create(&path, &[], false, None, &ValidateProgress::default(), &uninterrupted).expect("a manifest");
    assert_eq!(of(&component["properties"], "content"), [manifest.content.as_str()]);
    let names: Vec<&Value> = made["components"].as_array().expect("a list").iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["README.md", "config.json", "model.safetensors"]);
    let verdicts = [0, 1, 2].map(|file| of(&made["components"][file]["properties"], "verdict"));
    assert_eq!(verdicts, [["unknown"], ["clean"], ["clean"]], "a text that nothing is known of is not clean");
    assert_eq!(made["components"][2]["hashes"][0]["content"], manifest.files[2].sha256.as_str());
    assert_eq!(made, self::made(&path), "the same files give the same document");
}

#[test]
fn code_is_named_by_where_it_lies() {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("model.safetensors"), &model());
    fs::create_dir(folder.path().join("more")).expect("a folder");
    fs::write(folder.path().join("more/hook.pkl"), b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.").expect("written");
    let component = &made(folder.path())["metadata"]["component"];
    assert_eq!(of(&component["properties"], "code-bearing-file"), ["more/hook.pkl"]);
    assert_eq!(of(&component["properties"], "global"), ["os.system"]);
}

#[test]
fn a_licence_that_spdx_does_not_have_is_a_name_and_an_adapter_has_its_base() {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("adapter_model.safetensors"), &model());
    fs::write(folder.path().join("README.md"), "---\nlicense: other\nlicense_name: my own\n---\n").expect("written");
    let adapter = r#"{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/base"}"#;
    fs::write(folder.path().join("adapter_config.json"), adapter).expect("written");
    let component = &made(folder.path())["metadata"]["component"];
    assert_eq!(component["licenses"][0]["license"]["name"], "my own");
    assert_eq!(component["pedigree"]["ancestors"][0]["name"], "org/base");
    assert_eq!(component["modelCard"]["modelParameters"]["task"], "CAUSAL_LM");
}

#[test]
fn a_model_that_is_there_in_two_formats_is_counted_once_and_broken_files_are_only_hashed() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a.safetensors", "b.safetensors"] {
        safetensors(&folder.path().join(name), &model());
    }
    fs::write(folder.path().join("config.json"), "{ broken").expect("written");
    fs::write(folder.path().join("README.md"), [0xff, 0xfe, 0]).expect("written");
    let made = made(folder.path());
    let card = &made["metadata"]["component"]["modelCard"];
    assert_eq!(of(&card["properties"], "parameters"), ["800"]);
    assert_eq!(made["components"].as_array().expect("a list").len(), 4);
}

#[test]
fn a_file_that_bears_code_is_named_by_its_path() {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("model.safetensors"), &model());
    fs::create_dir(folder.path().join("old")).expect("a folder");
    fs::write(folder.path().join("old/model.safetensors"), b"cposix\nsystem\n(Vtrue\ntR.").expect("written");
    let properties = &made(folder.path())["metadata"]["component"]["properties"];
    assert_eq!(of(properties, "code-bearing-file"), ["old/model.safetensors"]);
    assert_eq!((of(properties, "global"), of(properties, "verdict")), (vec!["posix.system"], vec!["malicious"]));
}
