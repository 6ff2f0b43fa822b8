//! Layouts of newer writers: words without gaps, integers in bytes, an order of the inputs, FP4 with `scale`, and custom methods.

use serde_json::json;

use super::quantized::{Tensors, but, groups, model, shaped, without};
use super::support::Fixture;

#[test]
fn three_bits_are_packed_without_gaps_and_by_older_writers_with_them() {
    let weights = json!({"num_bits": 3, "type": "int", "strategy": "group", "group_size": 128, "symmetric": false});
    let message = groups("pack-quantized", &weights);
    // 256 * 3 / 32 words of a row and 64 * 3 / 32 of the zero points; ten in a word make 26 and 7.
    let tensors: Tensors = vec![
        ("m.0.q_proj.weight_packed", "I32", &[64, 24]),
        ("m.0.q_proj.weight_scale", "BF16", &[64, 2]),
        ("m.0.q_proj.weight_shape", "I64", &[2]),
        ("m.0.q_proj.weight_zero_point", "I32", &[6, 2]),
    ];
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    let older = but(
        &but(&tensors, "m.0.q_proj.weight_packed", "I32", &[64, 26]),
        "m.0.q_proj.weight_zero_point",
        "I32",
        &[7, 2],
    );
    assert_eq!(model(&older, &message).rules(), [""; 0]);
    let zeros = but(&tensors, "m.0.q_proj.weight_zero_point", "I32", &[8, 2]);
    assert_eq!(model(&zeros, &message).rules(), ["quantized.zero-point-shape"]);
    // The shape that is stored says how many bits there are, also where a row has one scale.
    assert_eq!(shaped(&tensors, &message, [64, 512]).rules(), ["quantized.shape"]);
    assert_eq!(shaped(&tensors, &message, [0, 0]).rules(), ["quantized.shape"]);
    let rows: Tensors = vec![
        ("m.0.q_proj.weight_packed", "I32", &[64, 32]),
        ("m.0.q_proj.weight_scale", "BF16", &[64, 1]),
        ("m.0.q_proj.weight_shape", "I64", &[2]),
    ];
    let eight = json!({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true});
    let folder = model(&rows, &groups("pack-quantized", &eight));
    assert_eq!(folder.rules(), ["quantized.bits"]);
    assert_eq!(folder.messages("quantized.bits"), ["the configuration says 8 bits, but it is packed with 4 bits"]);
}

#[test]
fn integers_in_bytes_and_floats_of_six_bits_are_known() {
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": true});
    let message = groups("int4-quantized", &weights);
    let bytes: Tensors =
        vec![("m.0.q_proj.weight_packed", "I8", &[64, 128]), ("m.0.q_proj.weight_scale", "BF16", &[64, 2])];
    assert_eq!(model(&bytes, &message).rules(), [""; 0]);
    let wrong = but(&bytes, "m.0.q_proj.weight_scale", "BF16", &[64, 4]);
    assert_eq!(model(&wrong, &message).rules(), ["quantized.group-size"]);
    let six = json!({"num_bits": 6, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true});
    let floats: Tensors =
        vec![("m.0.q_proj.weight_packed", "U8", &[64, 192]), ("m.0.q_proj.weight_scale", "U8", &[64, 8])];
    assert_eq!(model(&floats, &groups("mxfp6-pack-quantized", &six)).rules(), [""; 0]);
    assert_eq!(Fixture::new().weights("x.safetensors", &floats).rules(), [""; 0]);
    let short = but(&floats, "m.0.q_proj.weight_scale", "U8", &[64, 7]);
    assert_eq!(model(&short, &groups("mxfp6-pack-quantized", &six)).rules(), ["quantized.scale-shape"]);
    // A table in place of scales.
    let table: Tensors =
        vec![("m.0.q_proj.weight_packed", "U8", &[64, 96]), ("m.0.q_proj.weight_codebook", "F8_E4M3", &[64, 8])];
    assert_eq!(model(&table, &groups("lut-b", &json!({"num_bits": 3}))).rules(), [""; 0]);
}

#[test]
fn inputs_that_were_reordered_need_their_index() {
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "actorder": "group"});
    let message = groups("pack-quantized", &weights);
    let tensors: Tensors = vec![
        ("m.0.q_proj.weight_g_idx", "I32", &[256]),
        ("m.0.q_proj.weight_packed", "I32", &[64, 32]),
        ("m.0.q_proj.weight_scale", "BF16", &[64, 2]),
        ("m.0.q_proj.weight_shape", "I64", &[2]),
    ];
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    assert_eq!(model(&without(&tensors, "m.0.q_proj.weight_g_idx"), &message).rules(), ["quantized.order-missing"]);
    assert_eq!(model(&but(&tensors, "m.0.q_proj.weight_g_idx", "I32", &[128]), &message).rules(), ["quantized.shape"]);
    let gptq: Tensors = vec![
        ("m.0.q_proj.qweight", "I32", &[32, 64]),
        ("m.0.q_proj.qzeros", "I32", &[2, 8]),
        ("m.0.q_proj.scales", "F16", &[2, 64]),
    ];
    let message = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true});
    assert_eq!(model(&gptq, &message).rules(), ["quantized.order-missing"]);
}

#[test]
fn fp4_of_deepseek_and_experts_of_transformers_are_known() {
    let message = json!({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"});
    let tensors: Tensors = vec![
        ("m.0.experts.0.w1.weight", "I8", &[64, 128]),
        ("m.0.experts.0.w1.scale", "F8_E8M0", &[64, 8]),
        ("m.0.wq.weight", "F8_E4M3", &[160, 256]),
        ("m.0.wq.scale", "F8_E8M0", &[2, 2]),
        ("m.0.norm.scale", "BF16", &[256]),
    ];
    assert_eq!(model(&tensors, &message).rules(), [""; 0]);
    let broken = but(&tensors, "m.0.experts.0.w1.scale", "F8_E8M0", &[8, 64]);
    assert_eq!(model(&broken, &message).rules(), ["quantized.scale-shape"]);
    assert_eq!(model(&without(&tensors, "m.0.wq.scale"), &message).rules(), ["quantized.scale-missing"]);
    // What transformers quantized itself: experts one by one, and their scales together.
    let experts: Tensors = vec![
        ("m.0.experts.0.up_proj.weight", "F8_E4M3", &[128, 128]),
        ("m.0.experts.1.up_proj.weight", "F8_E4M3", &[128, 128]),
        ("m.0.experts.up_proj_scale_inv", "F32", &[2, 1, 1]),
    ];
    assert_eq!(model(&experts, &message).rules(), [""; 0]);
    assert_eq!(
        model(&without(&experts, "m.0.experts.up_proj_scale_inv"), &message).rules(),
        ["quantized.scale-missing"]
    );
    // A matrix without whole blocks stays unquantized, with a scale.
    let left: Tensors = vec![
        ("m.0.k_proj.weight", "BF16", &[64, 128]),
        ("m.0.k_proj.weight_scale_inv", "F32", &[1, 1]),
        ("m.0.q_proj.weight", "F8_E4M3", &[128, 128]),
        ("m.0.q_proj.weight_scale_inv", "F32", &[1, 1]),
    ];
    assert_eq!(model(&left, &message).rules(), [""; 0]);
}

#[test]
fn names_of_other_methods_are_left_to_them() {
    let fp_quant: Tensors = vec![
        ("m.0.q_proj.qweight", "U8", &[64, 128]),
        ("m.0.q_proj.scales", "U8", &[64, 8]),
        ("m.0.q_proj.weight_global_scale", "F32", &[]),
    ];
    assert_eq!(model(&fp_quant, &json!({"quant_method": "fp_quant"})).rules(), [""; 0]);
    let vptq: Tensors = vec![("m.0.q_proj.indices", "I32", &[64]), ("m.0.q_proj.weight_scale", "BF16", &[256])];
    assert_eq!(model(&vptq, &json!({"quant_method": "vptq"})).rules(), [""; 0]);
    let gptq: Tensors = vec![
        ("m.0.q_proj.qweight", "I32", &[32, 64]),
        ("m.0.q_proj.qzeros", "I32", &[2, 8]),
        ("m.0.q_proj.scales", "F16", &[2, 64]),
    ];
    let mut message =
        json!({"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"});
    assert_eq!(model(&gptq, &message).rules(), [""; 0]);
    message["group_size"] = json!(64);
    assert_eq!(model(&gptq, &message).rules(), ["quantized.group-size"]);
    // The older key of compressed-tensors, and a configuration of ModelOpt that does not name its method.
    let rows = [("m.0.q_proj.weight", "F8_E4M3", &[64, 256][..]), ("m.0.q_proj.weight_scale", "BF16", &[64, 1])];
    let old = json!({"compression_config": {"format": "float-quantized", "config_groups": {"a": {"weights": {"num_bits": 8, "strategy": "tensor"}}}}});
    assert_eq!(
        Fixture::new().weights("model.safetensors", &rows).with("config.json", old.to_string()).rules(),
        [""; 0]
    );
    let nvfp4: Tensors = vec![
        ("m.0.q_proj.weight", "U8", &[4, 64, 128]),
        ("m.0.q_proj.weight_scale", "F8_E4M3", &[4, 64, 16]),
        ("m.0.q_proj.weight_scale_2", "F32", &[4]),
    ];
    assert_eq!(model(&nvfp4, &json!({"quant_algo": "NVFP4", "group_size": 16})).rules(), [""; 0]);
    let blocks = [("m.0.q_proj.weight", "F8_E4M3", &[256, 128][..]), ("m.0.q_proj.weight_scale", "F32", &[2, 1, 1, 1])];
    assert_eq!(model(&blocks, &json!({"quant_algo": "FP8_PB_WO"})).rules(), [""; 0]);
}
