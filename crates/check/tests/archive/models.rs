//! Keras, HDF5, ONNX, TensorFlow and skops: code in configurations, and ways to other files.

use max_weights::rules::Verdict;
use max_weights_check::ValidateOptions;

use super::build::{check_with, found, member, rules, zip};
use super::onnx::field;

const NONE: [&str; 0] = [];

/// The object that Keras makes a layer of.
fn object(module: &str, class: &str, config: &str) -> String {
    format!("{{\"module\":\"{module}\",\"class_name\":\"{class}\",\"config\":{config},\"registered_name\":null}}")
}

fn keras(layer: &str) -> Vec<u8> {
    let config = object("keras", "Sequential", &format!("{{\"name\":\"s\",\"layers\":[{layer}]}}"));
    zip(&[member("metadata.json", b"{}"), member("config.json", config.as_bytes())])
}

/// `eval` in bytes that could be Python's, in base64.
const EVAL: &str = "ZXZhbCgp";

#[test]
fn a_keras_model_of_keras_layers_breaks_no_rule() {
    let initializer = object("keras.initializers", "GlorotUniform", "{\"seed\":null}");
    let dense = object("keras.layers", "Dense", &format!("{{\"units\":3,\"kernel_initializer\":{initializer}}}"));
    let lookup = object("keras.layers", "StringLookup", "{\"vocabulary\":null}");
    let add = object("keras.src.ops.numpy", "Add", "{}");
    let relu = object("keras.activations", "function", "\"relu\"");
    assert_eq!(found("m.keras", &keras(&[dense, lookup, add, relu].join(","))), NONE);
}

#[test]
fn code_and_custom_classes_in_a_keras_model_need_trust() {
    let code = |text: &str| format!("{{\"function\":[\"{text}\",null,null]}}");
    for (layer, rule) in [
        (object("keras.layers", "Lambda", &code("eCsx")), "keras.code"),
        (object("my_layers", "Mine", "{}"), "keras.custom"),
        (object("keras.layers", "Mine", "{}"), "keras.custom"),
        (object("keras.layers", "Dense", "{}").replace("null", "\"mine>Layer\""), "keras.custom"),
        (object("keras.layers", "TFSMLayer", "{\"filepath\":\"/x\"}"), "keras.custom"),
        (object("keras.layers", "TorchModuleWrapper", "{\"module\":\"gAQu\"}"), "keras.custom"),
    ] {
        let report = check_with("m.keras", &keras(&layer), &ValidateOptions::default());
        assert_eq!((rules(&report), report.answer()), (vec![rule], Verdict::NeedsTrust), "{layer}");
    }
}

#[test]
fn commands_and_files_in_a_keras_model_are_malicious() {
    let named = |module: &str, name: &str| object(module, "function", &format!("\"{name}\""));
    for layer in [
        object("keras.layers", "Lambda", &format!("{{\"function\":[\"{EVAL}\",null,null]}}")),
        object(
            "keras.layers",
            "Lambda",
            &format!("{{\"function\":{}}}", object("builtins", "__lambda__", &format!("{{\"code\":\"{EVAL}\"}}"))),
        ),
        named("os", "system"),
        named("builtins", "eval"),
        named("keras.utils", "get_file"),
        object("subprocess", "Popen", "{}"),
        object("keras.layers", "StringLookup", "{\"vocabulary\":\"/etc/passwd\"}"),
        named("keras.config", "enable_unsafe_deserialization"),
    ] {
        let report = check_with("m.keras", &keras(&layer), &ValidateOptions::default());
        assert_eq!((rules(&report), report.answer()), (vec!["keras.malicious"], Verdict::Malicious), "{layer}");
    }
}

#[test]
fn a_layer_may_have_any_name() {
    for name in ["enable_unsafe_deserialization", "my_enable_unsafe_deserialization_2"] {
        let layer = object("keras.layers", "Dense", &format!("{{\"name\":\"{name}\",\"units\":1}}"));
        assert_eq!(found("m.keras", &keras(&layer)), NONE, "{name}");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_is_broken() {
    let bytes = zip(&[member("config.json", b"{\"class_name\": \"Lambda\", ")]);
    assert_eq!(found("m.keras", &bytes), ["keras.config"]);
}

#[test]
fn a_configuration_of_keras_is_found_however_it_is_written() {
    let lambda = format!("{{ \"class_name\": \"Lambda\", \"config\": {{\"function\": [\"{EVAL}\"]}} }}");
    let escaped = lambda.replace("class_name", "cl\\u0061ss_n\\u0061me");
    let far = format!("{{ \"a\": \"{}\", {}", "x".repeat(6000), &lambda[1..]);
    let number = lambda.replace("{ \"class_name\"", "{ \"a\": -Infinity, \"class_name\"");
    for config in [&lambda, &escaped, &far, &number] {
        assert_eq!(
            found("m.keras", &zip(&[member("config.json", config.as_bytes())])),
            ["keras.malicious"],
            "{config}"
        );
        let hdf5 = [b"\x89HDF\r\n\x1a\n\0{ \"\x01".as_slice(), config.as_bytes(), &[0; 64]].concat();
        assert_eq!(found("m.h5", &hdf5), ["keras.malicious"], "{config}");
    }
}

#[test]
fn a_configuration_of_keras_that_is_too_long_is_not_passed_over() {
    let long =
        format!("{{\"class_name\": \"Lambda\", {}\"config\": {{\"function\": [\"{EVAL}\"]}}}}", " ".repeat(17 << 20));
    assert_eq!(found("m.keras", &zip(&[super::build::deflated("config.json", long.as_bytes())])), ["keras.config"]);
}

#[test]
fn a_configuration_in_hdf5_is_found_wherever_it_stands() {
    let file =
        |config: &str| [b"\x89HDF\r\n\x1a\n".as_slice(), &vec![0xff; 1 << 20], config.as_bytes(), &[0; 64]].concat();
    let lambda = format!(
        "{{\"class_name\": \"Sequential\", \"config\": [{{\"class_name\": \"Lambda\", \"config\": {{\"function\": [\"{EVAL}\"]}}}}]}}"
    );
    let dense = "{\"class_name\": \"Sequential\", \"config\": [{\"class_name\": \"Dense\", \"config\": {}}]}";
    let report = check_with("m.h5", &file(dense), &ValidateOptions::default());
    assert_eq!((rules(&report), report.files[0].kind.as_str()), (vec![], "Keras (HDF5)"));
    assert_eq!(found("m.h5", &file(&lambda)), ["keras.malicious"]);
    assert_eq!(found("m.h5", &file(&lambda[..60])), ["keras.config"]);
}

#[test]
fn links_of_hdf5_to_other_files_are_malicious() {
    let mut link = b"\x01\x08\x40\x01x".to_vec();
    let info = b"\0/etc/passwd\0/data\0";
    link.extend((info.len() as u16).to_le_bytes());
    link.extend(info);
    let start = b"\x89HDF\r\n\x1a\n".as_slice();
    assert_eq!(found("m.h5", &[start, &[0; 100], &link, &[0; 100]].concat()), ["hdf5.external"]);
    link[1] = 0;
    assert_eq!(found("m.h5", &[start, &[0; 100], &link, &[0; 100]].concat()), NONE);

    // A list of external files: the heap of names begins at byte 64, its texts at 128.
    let mut file = start.to_vec();
    file.resize(64, 0);
    file.extend(b"HEAP\0\0\0\0");
    file.extend([0; 16]);
    file.extend(128u64.to_le_bytes());
    file.resize(128, 0);
    file.extend(b"\0\0\0\0\0\0\0\0/etc/passwd\0");
    file.resize(160, 0);
    let mut list = b"\x01\0\0\0\x01\0\x01\0".to_vec();
    list.extend(64u64.to_le_bytes());
    list.extend(8u64.to_le_bytes());
    let report = check_with("m.h5", &[file.clone(), list.clone(), vec![0; 64]].concat(), &ValidateOptions::default());
    assert_eq!(rules(&report), ["hdf5.external"]);
    assert!(report.findings[0].message.contains("/etc/passwd"), "{report:?}");
    list[8] = 63;
    assert_eq!(found("m.h5", &[file, list, vec![0; 64]].concat()), NONE);
}

#[test]
fn operations_of_a_graph_that_reach_files_need_trust() {
    let graph = |operation: &str| field(1, &[field(1, b"node"), field(2, operation.as_bytes())].concat());
    assert_eq!(found("saved_model.pb", &graph("WriteFile")), ["tensorflow.operation"]);
    assert_eq!(found("saved_model.pb", &graph("MatMul")), NONE);
    assert_eq!(found("saved_model.pb", &graph("ReadFileLater")), NONE);
}

#[test]
fn a_skops_file_is_judged_by_the_names_in_its_schema() {
    let node = |module: &str, class: &str, loader: &str| {
        let schema = format!(
            "{{\"__module__\":\"{module}\",\"__class__\":\"{class}\",\"__loader__\":\"{loader}\",\"content\":{{}}}}"
        );
        zip(&[member("schema.json", schema.as_bytes())])
    };
    let fine = node("sklearn.linear_model._logistic", "LogisticRegression", "ObjectNode");
    assert_eq!(found("m.skops", &fine), NONE);
    assert_eq!(found("m.skops", &node("builtins", "dict", "DictNode")), NONE);
    for (module, class, loader, rule) in [
        ("os", "system", "FunctionNode", "skops.malicious"),
        ("builtins", "eval", "TypeNode", "skops.malicious"),
        ("builtins", "dict", "OperatorFuncNode", "skops.malicious"),
        ("operator", "methodcaller", "OperatorFuncNode", "skops.type"),
        ("sklearn.x", "X", "MethodNode", "skops.type"),
        ("my_package", "Mine", "ObjectNode", "skops.type"),
        // A class that a person wrote in the program itself.
        ("__main__", "Mine", "ObjectNode", "skops.type"),
        ("__main__", "__builtins__", "ObjectNode", "skops.malicious"),
        ("a.__main__", "Mine", "ObjectNode", "skops.malicious"),
        ("numpy.f2py", "x", "FunctionNode", "skops.malicious"),
    ] {
        assert_eq!(found("m.skops", &node(module, class, loader)), [rule], "{module}.{class}");
    }
}

#[test]
fn a_lambda_layer_in_a_saved_model_is_found_beside_the_graph_and_in_it() {
    let lambda = format!("{{\"name\": \"l\", \"class_name\": \"Lambda\", \"config\": {{\"function\": [\"{EVAL}\"]}}}}");
    let node = [field(3, b"root.layer-0"), field(4, b"_tf_keras_layer"), field(5, lambda.as_bytes())].concat();
    assert_eq!(found("keras_metadata.pb", &field(1, &node)), ["keras.malicious"]);
    let user = [field(1, b"_tf_keras_layer"), field(3, lambda.as_bytes())].concat();
    let graph = field(2, &field(7, &field(1, &field(4, &user))));
    assert_eq!(found("saved_model.pb", &[b"\x08\x01".as_slice(), &graph].concat()), ["keras.malicious"]);
    assert_eq!(
        found("saved_model.pbtxt", b"saved_model_schema_version: 1\nmeta_graphs { }\n"),
        ["archive.unsupported"]
    );
}

#[test]
fn code_of_a_lambda_layer_is_found_in_a_tuple() {
    let lambda = format!(
        "{{\"class_name\": \"Lambda\", \"config\": {{\"function\": {{\"class_name\": \"__tuple__\", \"items\": [\"{EVAL}\", null]}}}}}}"
    );
    let hdf5 = [b"\x89HDF\r\n\x1a\n\0".as_slice(), lambda.as_bytes(), &[0; 64]].concat();
    assert_eq!(found("m.h5", &hdf5), ["keras.malicious"]);
}

#[test]
fn a_model_of_keras_that_was_trained_on_torch_breaks_no_rule() {
    for module in ["keras.src.backend.torch.optimizers.torch_adam", "keras.optimizers"] {
        assert_eq!(found("m.keras", &keras(&object(module, "Adam", "{}"))), NONE, "{module}");
    }
    let layer = object("keras.layers", "ContrastLimitedAdaptiveHistogramEqualization", "{}");
    assert_eq!(found("m.keras", &keras(&layer)), NONE);
}
