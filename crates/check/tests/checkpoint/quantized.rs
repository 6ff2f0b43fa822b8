//! Quantized checkpoints: each scheme as its writers store it, and each rule with a folder that breaks it and no other.
//!
//! The layer has 64 outputs and 256 inputs. The shapes are those of AutoGPTQ, AutoAWQ, compressed-tensors, ModelOpt, DeepSeek, gpt-oss and
//! bitsandbytes, written down by hand and not by the formulas of the checks.

use serde_json::{Value, json};

use super::quantized_agreement::assert_agreement;
use super::support::{Fixture, Tensor};

const MODEL: &str = "model.safetensors";

pub(crate) type Tensors = Vec<Tensor<'static>>;

/// A model of these tensors and this quantization.
pub(crate) fn model(tensors: &[Tensor<'_>], quantization: &Value) -> Fixture {
    shaped(tensors, quantization, [64, 256])
}

/// The same, with other numbers in `weight_shape`, if there is one.
pub(crate) fn shaped(tensors: &[Tensor<'_>], quantization: &Value, shape: [i64; 2]) -> Fixture {
    let config = json!({"quantization_config": quantization});
    let folder = Fixture::new().with("config.json", config.to_string());
    let bytes: Vec<u8> = shape.into_iter().flat_map(i64::to_le_bytes).collect();
    let folder = match tensors.iter().find(|(name, dtype, _)| name.ends_with("weight_shape") && *dtype == "I64") {
        Some((holder, ..)) => folder.weights_holding(MODEL, tensors, holder, &bytes),
        None => folder.weights(MODEL, tensors),
    };
    assert_agreement(&folder);
    folder
}

/// The tensors, with another dtype and shape for one; without it, if the shape is empty and the dtype, too.
pub(crate) fn but(tensors: &Tensors, name: &'static str, dtype: &'static str, shape: &'static [u64]) -> Tensors {
    let mut tensors = tensors.clone();
    let at = tensors.iter().position(|tensor| tensor.0 == name).expect("the tensor");
    if dtype.is_empty() {
        tensors.remove(at);
    } else {
        tensors[at] = (name, dtype, shape);
    }
    tensors
}

pub(crate) fn without(tensors: &Tensors, name: &'static str) -> Tensors {
    but(tensors, name, "", &[])
}

fn gptq() -> (Tensors, Value) {
    let tensors = vec![
        ("m.0.q_proj.g_idx", "I32", &[256][..]),
        ("m.0.q_proj.qweight", "I32", &[32, 64]),
        ("m.0.q_proj.qzeros", "I32", &[2, 8]),
        ("m.0.q_proj.scales", "F16", &[2, 64]),
    ];
    (tensors, json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true}))
}

#[test]
fn gptq_is_what_autogptq_writes() {
    let (tensors, message) = gptq();
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    // Newer writers leave the index out where it is in order; one group for all inputs is -1; three bits are packed without gaps.
    assert_eq!(model(&without(&tensors, "m.0.q_proj.g_idx"), &message).rules(), [""; 0]);
    let one = but(&but(&tensors, "m.0.q_proj.qzeros", "I32", &[1, 8]), "m.0.q_proj.scales", "F16", &[1, 64]);
    assert_eq!(model(&one, &json!({"quant_method": "gptq", "bits": 4, "group_size": -1})).rules(), [""; 0]);
    let three = but(&but(&tensors, "m.0.q_proj.qweight", "I32", &[24, 64]), "m.0.q_proj.qzeros", "I32", &[2, 6]);
    assert_eq!(model(&three, &json!({"quant_method": "gptq", "bits": 3, "group_size": 128})).rules(), [""; 0]);
    // Layers with separate bits, and an unknown layout.
    assert_eq!(
        model(&three, &json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"x": {"bits": 3}}}))
            .rules(),
        [""; 0]
    );
    let marlin = but(&tensors, "m.0.q_proj.qweight", "I32", &[16, 128]);
    assert_eq!(
        model(&marlin, &json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}))
            .rules(),
        [""; 0]
    );
    // The configuration in a separate file.
    let folder = Fixture::new().weights("gptq_model-4bit-128g.safetensors", &tensors);
    assert_eq!(folder.with("quantize_config.json", r#"{"bits": 4, "group_size": 128}"#).rules(), [""; 0]);
}

#[test]
fn gptq_that_is_broken_is_found() {
    let (tensors, message) = gptq();
    let name = |part: &str| -> &'static str {
        tensors.iter().map(|tensor| tensor.0).find(|name| name.ends_with(part)).expect("the part")
    };
    for (broken, rule) in [
        (without(&tensors, name("scales")), "quantized.scale-missing"),
        (without(&tensors, name("qweight")), "quantized.scale-orphan"),
        (without(&tensors, name("qzeros")), "quantized.zero-point-missing"),
        (but(&tensors, name("scales"), "F16", &[2, 32]), "quantized.scale-shape"),
        (but(&tensors, name("qzeros"), "I32", &[4, 8]), "quantized.zero-point-shape"),
        (but(&tensors, name("g_idx"), "I32", &[128]), "quantized.shape"),
        (but(&tensors, name("qweight"), "F16", &[32, 64]), "quantized.dtype"),
        (but(&tensors, name("scales"), "I32", &[2, 64]), "quantized.dtype"),
    ] {
        assert_eq!(model(&broken, &message).rules(), [rule]);
    }
    let scales = but(&tensors, name("scales"), "F16", &[2, 32]);
    assert_eq!(
        model(&scales, &message).messages("quantized.scale-shape"),
        ["it has the shape [2, 32]; expected [2, 64] for the columns of qweight"]
    );
}

#[test]
fn a_configuration_that_disagrees_with_gptq_is_found() {
    let (tensors, message) = gptq();
    let with = |key: &str, value: Value| {
        let mut message = message.clone();
        message[key] = value;
        model(&tensors, &message)
    };
    assert_eq!(with("bits", json!(8)).rules(), ["quantized.bits"]);
    assert_eq!(with("group_size", json!(64)).rules(), ["quantized.group-size"]);
    assert_eq!(with("quant_method", json!("awq")).rules(), ["quantized.method"]);
    assert_eq!(with("quant_method", json!("mxfp4")).rules(), ["quantized.method"]);
    assert_eq!(with("quant_method", json!("fp8")).rules(), ["quantized.method"]);
    assert_eq!(with("modules_to_not_convert", json!(["m.0"])).rules(), ["quantized.excluded"]);
    assert_eq!(with("modules_to_not_convert", json!(["m.0.q", "lm_head"])).rules(), [""; 0]);
    let folder = Fixture::new().weights(MODEL, &tensors).with("config.json", "{}");
    assert_eq!(folder.rules(), ["quantized.config-missing"]);
    let plain = [("m.0.q_proj.weight", "F16", &[64, 256][..])];
    assert_eq!(model(&plain, &message).rules(), ["quantized.unused"]);
    // A file that was left, and that nothing reads.
    let left = Fixture::new().weights("x.safetensors", &plain).weights(MODEL, &plain).with("config.json", "{}");
    assert_eq!(left.with("quantize_config.json", r#"{"bits": 4, "group_size": 128}"#).rules(), [""; 0]);
}

#[test]
fn awq_is_what_autoawq_writes() {
    let tensors: Tensors = vec![
        ("m.0.q_proj.qweight", "I32", &[256, 8]),
        ("m.0.q_proj.qzeros", "I32", &[2, 8]),
        ("m.0.q_proj.scales", "F16", &[2, 64]),
    ];
    let message = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true});
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    for (broken, rule) in [
        (but(&tensors, "m.0.q_proj.scales", "F16", &[2, 32]), "quantized.scale-shape"),
        (but(&tensors, "m.0.q_proj.scales", "F16", &[3, 64]), "quantized.group-size"),
        (but(&tensors, "m.0.q_proj.qzeros", "I32", &[2, 64]), "quantized.zero-point-shape"),
        (without(&tensors, "m.0.q_proj.qzeros"), "quantized.zero-point-missing"),
    ] {
        let rules = model(&broken, &message).rules();
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    let message = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    assert_eq!(model(&tensors, &message).rules(), ["quantized.method"]);
    // The layout of another version.
    let gemv: Tensors = vec![
        ("m.0.q_proj.qweight", "I32", &[64, 32]),
        ("m.0.q_proj.qzeros", "I32", &[64, 1]),
        ("m.0.q_proj.scales", "F16", &[64, 8]),
    ];
    let message = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"});
    assert_eq!(model(&gemv, &message).rules(), [""; 0]);
}

#[test]
fn fp8_in_blocks_is_what_deepseek_writes() {
    let tensors: Tensors = vec![
        ("m.0.q_proj.weight", "F8_E4M3", &[160, 256]),
        ("m.0.q_proj.weight_scale_inv", "F32", &[2, 2]),
        ("m.0.experts.gate_up_proj", "F8_E4M3", &[3, 128, 256]),
        ("m.0.experts.gate_up_proj_scale_inv", "F32", &[3, 1, 2]),
        ("m.0.norm.weight", "BF16", &[256]),
    ];
    let message =
        json!({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]});
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    assert_eq!(Fixture::new().weights("x.safetensors", &tensors).rules(), [""; 0]);
    let scale = "m.0.q_proj.weight_scale_inv";
    for (broken, rule) in [
        (but(&tensors, scale, "F32", &[1, 2]), "quantized.scale-shape"),
        (but(&tensors, scale, "I64", &[2, 2]), "quantized.dtype"),
        (but(&tensors, "m.0.q_proj.weight", "BF16", &[256, 256]), "quantized.dtype"),
        (without(&tensors, scale), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight"), "quantized.scale-orphan"),
        (but(&tensors, "m.0.experts.gate_up_proj_scale_inv", "F32", &[3, 2, 2]), "quantized.scale-shape"),
    ] {
        assert_eq!(model(&broken, &message).rules(), [rule]);
    }
    let broken = but(&tensors, scale, "F32", &[1, 2]);
    assert_eq!(
        model(&broken, &message).messages("quantized.scale-shape"),
        ["it has the shape [1, 2]; expected [2, 2] for blocks of 128 x 128 of a weight of 160 x 256"]
    );
    // Without a configuration any size of blocks is one; a scale that no size gives is not.
    let broken = but(&tensors, scale, "F32", &[161, 2]);
    assert_eq!(Fixture::new().weights("x.safetensors", &broken).rules(), ["quantized.scale-shape"]);
    // One scale for the whole weight, as some models have it.
    let whole = [("m.0.q_proj.weight", "F8_E4M3", &[160, 256][..]), ("m.0.q_proj.weight_scale_inv", "BF16", &[])];
    assert_eq!(model(&whole, &json!({"quant_method": "fp8", "weight_block_size": null})).rules(), [""; 0]);
    // Weights that are only stored in eight bits.
    let plain = [("m.0.q_proj.weight", "F8_E4M3", &[160, 256][..]), ("m.0.k_proj.weight", "F8_E5M2", &[64, 256])];
    assert_eq!(Fixture::new().weights("x.safetensors", &plain).rules(), [""; 0]);
}

/// What compressed-tensors says of weights.
pub(crate) fn groups(format: &str, weights: &Value) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head", "re:.*gate$"]})
}

#[test]
fn packed_integers_are_what_compressed_tensors_writes() {
    let tensors: Tensors = vec![
        ("m.0.q_proj.weight_packed", "I32", &[64, 32]),
        ("m.0.q_proj.weight_scale", "BF16", &[64, 2]),
        ("m.0.q_proj.weight_shape", "I64", &[2]),
        ("m.0.q_proj.weight_zero_point", "I32", &[8, 2]),
        ("m.0.gate_proj.weight", "BF16", &[64, 256]),
    ];
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": false});
    let message = groups("pack-quantized", &weights);
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    let channel = json!({"num_bits": 4, "type": "int", "strategy": "channel", "group_size": null, "symmetric": true});
    let rows = but(&without(&tensors, "m.0.q_proj.weight_zero_point"), "m.0.q_proj.weight_scale", "BF16", &[64, 1]);
    assert_eq!(model(&rows, &groups("pack-quantized", &channel)).rules(), [""; 0]);
    for (broken, rule) in [
        (without(&tensors, "m.0.q_proj.weight_scale"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight_packed"), "quantized.scale-orphan"),
        (without(&tensors, "m.0.q_proj.weight_zero_point"), "quantized.zero-point-missing"),
        (but(&tensors, "m.0.q_proj.weight_scale", "BF16", &[32, 2]), "quantized.scale-shape"),
        (but(&tensors, "m.0.q_proj.weight_zero_point", "I32", &[64, 2]), "quantized.zero-point-shape"),
        (but(&tensors, "m.0.q_proj.weight_shape", "I64", &[3]), "quantized.shape"),
        (but(&tensors, "m.0.q_proj.weight_packed", "I64", &[64, 32]), "quantized.dtype"),
    ] {
        assert_eq!(model(&broken, &message).rules(), [rule]);
    }
    let mut other = weights.clone();
    other["group_size"] = json!(32);
    assert_eq!(model(&tensors, &groups("pack-quantized", &other)).rules(), ["quantized.group-size"]);
    let mut excluded = message.clone();
    excluded["ignore"] = json!(["re:m.*q_proj"]);
    assert_eq!(model(&tensors, &excluded).rules(), ["quantized.excluded"]);
    // Rows that do not fill their last word.
    let odd = [
        ("m.0.q_proj.weight_packed", "I32", &[64, 33][..]),
        ("m.0.q_proj.weight_scale", "BF16", &[64, 3]),
        ("m.0.q_proj.weight_zero_point", "I32", &[8, 3]),
        ("m.0.q_proj.weight_shape", "I64", &[2]),
    ];
    assert_eq!(shaped(&odd, &message, [64, 260]).rules(), [""; 0]);
}

#[test]
fn eight_bits_with_scales_are_what_compressed_tensors_and_modelopt_write() {
    let weights = json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true});
    let message = groups("float-quantized", &weights);
    for shape in [&[][..], &[1], &[64, 1], &[64], &[3]] {
        let tensors = [("m.0.q_proj.weight", "F8_E4M3", &[64, 256][..]), ("m.0.q_proj.weight_scale", "BF16", shape)];
        assert_eq!(model(&tensors, &message).rules(), [""; 0], "{shape:?}");
    }
    let tensors: Tensors = vec![
        ("m.0.q_proj.weight", "F8_E4M3", &[64, 256]),
        ("m.0.q_proj.weight_scale", "F32", &[64, 1]),
        ("m.0.k_proj.weight", "F8_E4M3", &[64, 256]),
        ("m.0.k_proj.weight_scale", "F32", &[64, 1]),
    ];
    for (broken, rule) in [
        (but(&tensors, "m.0.q_proj.weight_scale", "F32", &[256, 1]), "quantized.scale-shape"),
        (without(&tensors, "m.0.q_proj.weight_scale"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight"), "quantized.scale-orphan"),
    ] {
        assert_eq!(model(&broken, &message).rules(), [rule]);
    }
    // Also without a configuration, as the other weight has a scale.
    let alone = without(&tensors, "m.0.q_proj.weight_scale");
    assert_eq!(Fixture::new().weights("x.safetensors", &alone).rules(), ["quantized.scale-missing"]);
    let block = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]});
    assert_eq!(model(&tensors[..2], &groups("float-quantized", &block)).rules(), ["quantized.scale-shape"]);
    let modelopt = Fixture::new().weights(MODEL, &[tensors[0], ("m.0.q_proj.weight_scale", "F32", &[])]);
    let modelopt = modelopt.with("config.json", "{}");
    let modelopt = modelopt
        .with("hf_quant_config.json", r#"{"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}"#);
    assert_eq!(modelopt.rules(), [""; 0]);
}

#[test]
fn nvfp4_is_what_modelopt_and_compressed_tensors_write() {
    let tensors: Tensors = vec![
        ("m.0.q_proj.input_scale", "F32", &[]),
        ("m.0.q_proj.weight", "U8", &[64, 128]),
        ("m.0.q_proj.weight_scale", "F8_E4M3", &[64, 16]),
        ("m.0.q_proj.weight_scale_2", "F32", &[]),
    ];
    let folder = |tensors: &Tensors, excluded: &str| {
        let message = json!({"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": [excluded]}});
        let folder = Fixture::new().weights(MODEL, tensors).with("config.json", "{}");
        folder.with("hf_quant_config.json", message.to_string())
    };
    assert_eq!(folder(&tensors, "lm_head").rules(), [""; 0]);
    for (broken, rule) in [
        (without(&tensors, "m.0.q_proj.weight_scale"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight_scale_2"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight"), "quantized.scale-orphan"),
        (but(&tensors, "m.0.q_proj.weight_scale", "F8_E4M3", &[64, 8]), "quantized.scale-shape"),
        (but(&tensors, "m.0.q_proj.weight_scale_2", "F32", &[64]), "quantized.scale-shape"),
        (but(&tensors, "m.0.q_proj.weight_scale", "BF16", &[64, 16]), "quantized.dtype"),
    ] {
        let rules = folder(&broken, "lm_head").rules();
        assert_eq!(rules.first(), Some(&rule), "{rules:?}");
    }
    assert_eq!(folder(&tensors, "m.*.q_proj").rules(), ["quantized.excluded"]);

    let packed: Tensors = vec![
        ("m.0.q_proj.weight_packed", "U8", &[64, 128]),
        ("m.0.q_proj.weight_scale", "F8_E4M3", &[64, 16]),
        ("m.0.q_proj.weight_global_scale", "F32", &[1]),
    ];
    let message = groups(
        "nvfp4-pack-quantized",
        &json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
    );
    assert_eq!(model(&packed, &message).rules(), [""; 0]);
    assert_eq!(
        model(&without(&packed, "m.0.q_proj.weight_global_scale"), &message).rules(),
        ["quantized.scale-missing"]
    );
    let exponents = [packed[0], ("m.0.q_proj.weight_scale", "U8", &[64, 8])];
    let mxfp4 = json!({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32});
    assert_eq!(model(&exponents, &groups("mxfp4-pack-quantized", &mxfp4)).rules(), [""; 0]);
    assert_eq!(model(&exponents, &message).rules(), ["quantized.group-size"]);
    let short = but(&packed, "m.0.q_proj.weight_scale", "F8_E4M3", &[64, 8]);
    assert_eq!(model(&short, &message).rules(), ["quantized.scale-shape"]);
}

#[test]
fn mxfp4_is_what_gpt_oss_has() {
    let tensors: Tensors = vec![
        ("m.0.mlp.experts.gate_up_proj_bias", "BF16", &[4, 64]),
        ("m.0.mlp.experts.gate_up_proj_blocks", "U8", &[4, 64, 8, 16]),
        ("m.0.mlp.experts.gate_up_proj_scales", "U8", &[4, 64, 8]),
    ];
    let message = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]});
    let (blocks, scales) = ("m.0.mlp.experts.gate_up_proj_blocks", "m.0.mlp.experts.gate_up_proj_scales");
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    for (broken, rule) in [
        (without(&tensors, scales), "quantized.scale-missing"),
        (without(&tensors, blocks), "quantized.scale-orphan"),
        (but(&tensors, scales, "U8", &[4, 64, 16]), "quantized.scale-shape"),
        (but(&tensors, blocks, "U8", &[4, 64, 8, 8]), "quantized.shape"),
        (but(&tensors, scales, "F32", &[4, 64, 8]), "quantized.dtype"),
    ] {
        assert_eq!(model(&broken, &message).rules(), [rule]);
    }
}

#[test]
fn four_and_eight_bits_are_what_bitsandbytes_writes() {
    let tensors: Tensors = vec![
        ("m.0.q_proj.weight", "U8", &[8192, 1]),
        ("m.0.q_proj.weight.absmax", "U8", &[256]),
        ("m.0.q_proj.weight.nested_absmax", "F32", &[1]),
        ("m.0.q_proj.weight.nested_quant_map", "F32", &[256]),
        ("m.0.q_proj.weight.quant_map", "F32", &[16]),
        ("m.0.q_proj.weight.quant_state.bitsandbytes__nf4", "U8", &[97]),
    ];
    let message = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": ["lm_head"]});
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    let plain = vec![tensors[0], ("m.0.q_proj.weight.absmax", "F32", &[256]), tensors[4], tensors[5]];
    assert_eq!(model(&plain, &message).rules(), [""; 0]);
    for (broken, rule) in [
        (without(&tensors, "m.0.q_proj.weight.absmax"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight.nested_absmax"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight.quant_map"), "quantized.scale-missing"),
        (without(&tensors, "m.0.q_proj.weight"), "quantized.scale-orphan"),
        (but(&plain, "m.0.q_proj.weight.absmax", "F32", &[255]), "quantized.scale-shape"),
        (but(&tensors, "m.0.q_proj.weight.nested_absmax", "F32", &[2]), "quantized.scale-shape"),
        (but(&tensors, "m.0.q_proj.weight.quant_map", "F32", &[256]), "quantized.shape"),
    ] {
        assert_eq!(model(&broken, &message).rules(), [rule]);
    }
    let state = "m.0.q_proj.weight.quant_state.bitsandbytes__nf4";
    let config = json!({"quantization_config": message}).to_string();
    for (stored, rules) in [
        (json!({"shape": [64, 256], "blocksize": 64}), vec![]),
        (json!({"shape": [64, 256], "blocksize": 128}), vec!["quantized.scale-shape"]),
        (json!({"shape": [64, 255], "blocksize": 64}), vec!["quantized.shape"]),
        (json!({"shape": [64, 256], "blocksize": 48}), vec!["quantized.shape"]),
        (json!({"shape": [u64::MAX, 2], "blocksize": 64}), vec!["quantized.shape"]),
        (json!({"shape": [-1, 256], "blocksize": 64}), vec!["quantized.shape"]),
        (json!({"shape": [64, 256]}), vec!["quantized.shape"]),
    ] {
        // Blanks to the end, as the others of the fixture are zeros.
        let stored = format!("{:97}", stored.to_string());
        let folder =
            Fixture::new().with("config.json", &config).weights_holding(MODEL, &tensors, state, stored.as_bytes());
        assert_eq!(folder.rules(), rules, "{stored}");
        assert_agreement(&folder);
    }
    let fp4 = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "fp4"});
    assert_eq!(model(&tensors, &fp4).rules(), ["quantized.method"]);
    let eight = json!({"quant_method": "bitsandbytes", "load_in_8bit": true, "load_in_4bit": false});
    assert_eq!(model(&tensors, &eight).rules(), ["quantized.bits"]);
    let int8: Tensors = vec![
        ("m.0.q_proj.weight", "I8", &[64, 256]),
        ("m.0.q_proj.SCB", "F32", &[64]),
        ("m.0.q_proj.weight_format", "U8", &[]),
    ];
    assert_eq!(model(&int8, &eight).rules(), [""; 0]);
    assert_eq!(model(&but(&int8, "m.0.q_proj.SCB", "F32", &[256]), &eight).rules(), ["quantized.scale-shape"]);
}

#[test]
fn what_is_not_known_is_left_alone() {
    // MLX: its scales and biases have the names of other schemes.
    let mlx = [
        ("m.0.q_proj.weight", "U32", &[64, 32][..]),
        ("m.0.q_proj.scales", "BF16", &[64, 4]),
        ("m.0.q_proj.biases", "BF16", &[64, 4]),
    ];
    let config =
        json!({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}});
    let folder = Fixture::new().weights(MODEL, &mlx).with("config.json", config.to_string());
    assert_eq!(folder.rules(), [""; 0]);
    // Sparse weights of compressed-tensors, and another quantizer.
    let sparse = [
        ("m.0.q_proj.weight_packed", "I32", &[8, 128][..]),
        ("m.0.q_proj.scale_packed", "F16", &[2, 64]),
        ("m.0.q_proj.meta", "I16", &[128, 8]),
    ];
    let message = groups("marlin-24", &json!({"num_bits": 4, "group_size": 128, "strategy": "group"}));
    assert_eq!(model(&sparse, &message).rules(), [""; 0]);
    let quark = [("m.0.q_proj.weight", "U8", &[64, 128][..]), ("m.0.q_proj.weight_scale", "U8", &[64, 8])];
    assert_eq!(model(&quark, &json!({"quant_method": "quark"})).rules(), [""; 0]);
    let simulated = [("m.0.q_proj.weight", "BF16", &[64, 256][..]), ("m.0.q_proj.weight_scale", "BF16", &[64, 2])];
    let mut message = groups("dense", &json!({"num_bits": 4, "group_size": 128, "strategy": "group"}));
    message["quantization_status"] = json!("frozen");
    assert_eq!(model(&simulated, &message).rules(), [""; 0]);
}

#[test]
fn a_part_in_another_shard_is_there_and_one_in_a_missing_shard_may_be() {
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let weight: Tensor<'_> = ("m.0.q_proj.weight", "F8_E4M3", &[160, 256]);
    let scale: Tensor<'_> = ("m.0.q_proj.weight_scale_inv", "F32", &[2, 2]);
    let config = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}).to_string();
    let map = [(weight.0, one), (scale.0, two)];
    let folder = Fixture::new().weights(one, &[weight]).index("model.safetensors.index.json", 160 * 256 + 16, &map);
    let folder = folder.with("config.json", config);
    assert_eq!(folder.rules(), ["index.missing-shard"]);
    assert_eq!(folder.weights(two, &[scale]).rules(), [""; 0]);
}

#[test]
fn a_name_alone_proves_no_scheme() {
    let of = |tensors: &[Tensor<'static>]| {
        let folder = Fixture::new().with("config.json", "{}");
        folder.weights(MODEL, tensors).rules()
    };
    for own in [
        vec![("m.0.weight.qweight", "I8", &[64, 256][..]), ("m.0.weight.scale", "F32", &[64, 1])],
        vec![("m.0.qweight", "I32", &[32, 64]), ("m.0.scales", "F16", &[2, 64])],
        vec![("m.0.qweight", "I8", &[64, 256]), ("m.0.scales", "F32", &[64]), ("m.0.qzeros", "I8", &[64])],
        vec![("m.0.weight", "I8", &[64, 256]), ("m.0.scale", "F32", &[64])],
        vec![("m.0.weight_packed", "U8", &[64, 128])],
        vec![("m.0.weight", "U8", &[64, 128]), ("m.0.weight_scale", "F8_E4M3", &[64, 8])],
        vec![("m.0.weight", "F32", &[64, 128]), ("m.0.weight.absmax", "F32", &[64])],
        vec![("m.0_blocks", "F32", &[64, 128]), ("m.0_scales", "F32", &[64])],
    ] {
        assert_eq!(of(&own), [""; 0], "{own:?}");
    }
    // One layer with all parts proves it for the others, and so does the configuration.
    let (mut tensors, message) = gptq();
    let half = ("m.0.k_proj.qweight", "I32", &[32, 64][..]);
    tensors.push(half);
    assert_eq!(of(&tensors), ["quantized.config-missing", "quantized.scale-missing"]);
    let folder = model(&[half], &message);
    assert_eq!(folder.messages("quantized.scale-missing"), ["its scales are missing"]);
}
