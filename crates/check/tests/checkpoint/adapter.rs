//! Adapters: what peft writes is in order, and each rule has an adapter that breaks it and no other.

use serde_json::{Value, json};

use super::support::{Fixture, Tensor};

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

const Q_A: Tensor<'_> = ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "F32", &[8, 32]);
const Q_B: Tensor<'_> = ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", "F32", &[64, 8]);
const V_A: Tensor<'_> = ("base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", "F32", &[8, 32]);
const V_B: Tensor<'_> = ("base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", "F32", &[64, 8]);

fn config() -> Value {
    json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "modules_to_save": null,
        "rank_pattern": {}, "alpha_pattern": {}, "use_dora": false, "bias": "none"})
}

fn adapter(tensors: &[Tensor<'_>], config: &Value) -> Fixture {
    Fixture::new().weights(WEIGHTS, tensors).with(CONFIG, config.to_string())
}

/// The usual adapter, but for one key of its configuration.
fn but(key: &str, value: Value) -> Fixture {
    let mut config = config();
    config[key] = value;
    adapter(&[Q_A, Q_B, V_A, V_B], &config)
}

#[test]
fn what_peft_writes_is_in_order() {
    assert_eq!(adapter(&[Q_A, Q_B, V_A, V_B], &config()).rules(), [""; 0]);
    for target in [
        json!("all-linear"),
        json!(r".*self_attn\.(q|v)_proj"),
        json!(["self_attn.q_proj", "model.layers.0.self_attn.v_proj"]),
    ] {
        assert_eq!(but("target_modules", target.clone()).rules(), [""; 0], "{target}");
    }
    // An expression that only Python has is not reported.
    assert_eq!(but("target_modules", json!("(?!x).*nothing")).rules(), [""; 0]);
    // Separate ranks, by an ending and by an expression.
    let wide: [Tensor<'_>; 4] = [(Q_A.0, "F32", &[16, 32]), (Q_B.0, "F32", &[64, 16]), V_A, V_B];
    for pattern in [
        json!({"q_proj": 16}),
        json!({"model.layers.0.self_attn.q_proj": 16}),
        json!({r"layers\.\d+\.self_attn\.q_proj": 16}),
    ] {
        let mut config = config();
        config["rank_pattern"] = pattern;
        assert_eq!(adapter(&wide, &config).rules(), [""; 0]);
    }
    // Convolutions, embeddings, and the experts of one parameter.
    let conv: [Tensor<'_>; 4] = [
        ("base_model.model.conv.lora_A.weight", "F32", &[8, 3, 5, 5]),
        ("base_model.model.conv.lora_B.weight", "F32", &[6, 8, 1, 1]),
        ("base_model.model.embed.lora_embedding_A", "F32", &[8, 100]),
        ("base_model.model.embed.lora_embedding_B", "F32", &[32, 8]),
    ];
    let mut other = config();
    other["target_modules"] = json!(["conv", "embed"]);
    assert_eq!(adapter(&conv, &other).rules(), [""; 0]);
    let experts: [Tensor<'_>; 2] = [
        ("base_model.model.mlp.experts.lora_A.weight", "F32", &[32, 16]),
        ("base_model.model.mlp.experts.lora_B.weight", "F32", &[64, 32]),
    ];
    let mut other = config();
    other["target_modules"] = json!([]);
    other["target_parameters"] = json!(["mlp.experts.gate_up_proj"]);
    assert_eq!(adapter(&experts, &other).rules(), [""; 0]);
}

#[test]
fn ranks_and_pairs_are_checked() {
    assert_eq!(but("r", json!(4)).rules(), ["adapter.rank"]);
    assert_eq!(but("r", json!(4)).messages("adapter.rank")[0], "its rank is 8; the configuration says 4");
    assert_eq!(but("rank_pattern", json!({"q_proj": 4})).rules(), ["adapter.rank"]);
    assert_eq!(but("rank_pattern", json!({"k_proj": 4})).rules(), ["adapter.pattern-unused"]);
    assert_eq!(but("alpha_pattern", json!({"k_proj": 4})).rules(), ["adapter.pattern-unused"]);
    assert_eq!(adapter(&[Q_A, Q_B, V_A], &config()).rules(), ["adapter.pair"]);
    assert_eq!(adapter(&[Q_B, V_A, V_B], &config()).rules(), ["adapter.pair"]);
    let narrow: Tensor<'_> = (V_B.0, "F32", &[64, 4]);
    let folder = adapter(&[Q_A, Q_B, V_A, narrow], &config());
    assert_eq!(folder.rules(), ["adapter.shape"]);
    assert_eq!(
        folder.messages("adapter.shape"),
        ["it has the shape [64, 4]; expected [64, 8] for the rank of matrix A"]
    );
    // Adapters of other programs, which have no configuration.
    let kohya = [("lora_unet_x.lora_down.weight", "F16", &[4, 8][..]), ("lora_unet_x.alpha", "F16", &[])];
    assert_eq!(Fixture::new().weights("style_lora.safetensors", &kohya).rules(), ["adapter.pair"]);
}

#[test]
fn target_modules_are_those_of_the_tensors() {
    assert_eq!(but("target_modules", json!(["q_proj"])).rules(), ["adapter.targets"]);
    assert_eq!(but("target_modules", json!(".*q_proj")).rules(), ["adapter.targets"]);
    assert_eq!(but("target_modules", json!(["o_proj"])).rules(), ["adapter.targets"]);
    assert_eq!(but("target_modules", json!(["q_proj", "v_proj", "o_proj"])).rules(), ["adapter.target-unused"]);
    assert_eq!(
        but("target_modules", json!(["q_proj"])).messages("adapter.targets"),
        ["target_modules does not name model.layers.0.self_attn.v_proj"]
    );
}

#[test]
fn modules_that_were_trained_beside_the_adapter_are_stored() {
    assert_eq!(but("modules_to_save", json!(["classifier", "score"])).rules(), ["adapter.modules-to-save"]);
    let mut config = config();
    config["modules_to_save"] = json!(["classifier", "score"]);
    let score: Tensor<'_> = ("base_model.model.score.weight", "F32", &[2, 64]);
    assert_eq!(adapter(&[Q_A, Q_B, V_A, V_B, score], &config).rules(), [""; 0]);
}

#[test]
fn the_vectors_of_dora_go_with_use_dora() {
    let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";
    let magnitude: Tensor<'_> = (name, "F32", &[64]);
    let mut dora = config();
    dora["use_dora"] = json!(true);
    dora["target_modules"] = json!(["q_proj"]);
    assert_eq!(adapter(&[Q_A, Q_B, magnitude], &dora).rules(), [""; 0]);
    assert_eq!(adapter(&[Q_A, Q_B], &dora).rules(), ["adapter.dora"]);
    assert_eq!(adapter(&[Q_A, Q_B, (name, "F32", &[32])], &dora).rules(), ["adapter.shape"]);
    dora["use_dora"] = json!(false);
    assert_eq!(adapter(&[Q_A, Q_B, magnitude], &dora).rules(), ["adapter.dora"]);
}

#[test]
fn the_kind_is_the_one_that_the_tensors_have() {
    assert_eq!(but("peft_type", json!("IA3")).rules(), ["adapter.type"]);
    assert_eq!(
        but("peft_type", json!("IA3")).messages("adapter.type"),
        ["peft_type is IA3, but the tensors are those of LORA"]
    );
    let ia3: Tensor<'_> = ("base_model.model.layers.0.k_proj.ia3_l", "F32", &[64, 1]);
    let message = json!({"peft_type": "IA3", "target_modules": ["k_proj"], "feedforward_modules": []});
    assert_eq!(adapter(&[ia3], &message).rules(), [""; 0]);
    // A kind that is not known here.
    assert_eq!(but("peft_type", json!("NEW")).rules(), [""; 0]);
}

#[test]
fn prompts_have_the_virtual_tokens_that_are_said() {
    let mut message = json!({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20, "token_dim": 64,
        "num_transformer_submodules": 1, "num_layers": 3});
    assert_eq!(adapter(&[("prompt_embeddings", "F32", &[20, 64])], &message).rules(), [""; 0]);
    assert_eq!(adapter(&[("prompt_embeddings", "F32", &[8, 64])], &message).rules(), ["adapter.shape"]);
    message["peft_type"] = json!("PREFIX_TUNING");
    assert_eq!(adapter(&[("prompt_embeddings", "F32", &[20, 384])], &message).rules(), [""; 0]);
}

#[test]
fn an_adapter_is_weights_and_a_configuration() {
    assert_eq!(Fixture::new().weights(WEIGHTS, &[Q_A, Q_B]).rules(), ["adapter.config-missing"]);
    assert_eq!(Fixture::new().with(CONFIG, config().to_string()).rules(), ["adapter.weights-missing"]);
    assert_eq!(Fixture::new().weights(WEIGHTS, &[Q_A, Q_B]).with(CONFIG, "{").rules(), ["set.json"]);
    // AdapterHub's.
    assert_eq!(Fixture::new().with(CONFIG, r#"{"architecture": "houlsby"}"#).rules(), [""; 0]);
}

#[test]
fn adapters_of_other_kinds_have_all_their_matrices_of_one_rank() {
    let message = |kind: &str| json!({"peft_type": kind, "r": 4, "target_modules": ["q_proj"]});
    let loha: Vec<Tensor<'_>> = vec![
        ("base_model.model.q_proj.hada_w1_a", "F32", &[64, 4]),
        ("base_model.model.q_proj.hada_w1_b", "F32", &[4, 32]),
        ("base_model.model.q_proj.hada_w2_a", "F32", &[64, 4]),
        ("base_model.model.q_proj.hada_w2_b", "F32", &[4, 32]),
    ];
    assert_eq!(adapter(&loha, &message("LOHA")).rules(), [""; 0]);
    assert_eq!(adapter(&loha[1..], &message("LOHA")).rules(), ["adapter.pair"]);
    let mut wrong = loha.clone();
    wrong[3].2 = &[8, 32];
    assert_eq!(adapter(&wrong, &message("LOHA")).rules(), ["adapter.shape"]);
    let mut other = message("LOHA");
    other["r"] = json!(8);
    assert_eq!(adapter(&loha, &other).rules(), ["adapter.rank"]);
    other["r"] = json!(4);
    other["target_modules"] = json!(["v_proj"]);
    assert_eq!(adapter(&loha, &other).rules(), ["adapter.targets"]);
    // Of a convolution.
    let convolution: [Tensor<'_>; 6] = [
        ("base_model.model.q_proj.hada_t1", "F32", &[4, 4, 3, 3]),
        ("base_model.model.q_proj.hada_t2", "F32", &[4, 4, 3, 3]),
        ("base_model.model.q_proj.hada_w1_a", "F32", &[4, 8]),
        ("base_model.model.q_proj.hada_w1_b", "F32", &[4, 16]),
        ("base_model.model.q_proj.hada_w2_a", "F32", &[4, 8]),
        ("base_model.model.q_proj.hada_w2_b", "F32", &[4, 16]),
    ];
    assert_eq!(adapter(&convolution, &message("LOHA")).rules(), [""; 0]);
    // A layer of which the training left nothing.
    let adalora: Vec<Tensor<'_>> = vec![
        ("base_model.model.q_proj.lora_A", "F32", &[0, 64]),
        ("base_model.model.q_proj.lora_B", "F32", &[64, 0]),
        ("base_model.model.q_proj.lora_E", "F32", &[0, 1]),
    ];
    assert_eq!(adapter(&adalora, &message("ADALORA")).rules(), [""; 0]);
    let vera: Vec<Tensor<'_>> = vec![
        ("base_model.model.q_proj.vera_lambda_b", "F32", &[64]),
        ("base_model.model.q_proj.vera_lambda_d", "F32", &[4]),
        ("base_model.vera_A", "F32", &[4, 64]),
    ];
    assert_eq!(adapter(&vera, &message("VERA")).rules(), [""; 0]);
    assert_eq!(adapter(&vera[..1], &message("VERA")).rules(), ["adapter.pair"]);
}

#[test]
fn matrices_of_blocks_and_layers_within_layers_are_known() {
    let blocks: [Tensor<'_>; 4] = [Q_A, (Q_B.0, "F32", &[64, 4]), V_A, V_B];
    let mut message = config();
    assert_eq!(adapter(&blocks, &message).rules(), ["adapter.shape"]);
    message["use_bdlora"] = json!({"target_modules_bd_b": ["q_proj"], "nblocks": 2});
    assert_eq!(adapter(&blocks, &message).rules(), [""; 0]);
    let attention: [Tensor<'_>; 4] = [
        ("base_model.model.attention.lora_A.weight", "F32", &[8, 64]),
        ("base_model.model.attention.lora_B.weight", "F32", &[192, 8]),
        ("base_model.model.attention.base_layer.out_proj.lora_A.weight", "F32", &[8, 64]),
        ("base_model.model.attention.base_layer.out_proj.lora_B.weight", "F32", &[64, 8]),
    ];
    let mut message = config();
    message["target_modules"] = json!(["attention"]);
    assert_eq!(adapter(&attention, &message).rules(), [""; 0]);
    // A configuration without a rank has the one that peft takes.
    let mut message = config();
    message.as_object_mut().expect("an object").remove("r");
    assert_eq!(adapter(&[Q_A, Q_B, V_A, V_B], &message).rules(), [""; 0]);
    let narrow: [Tensor<'_>; 2] = [(V_A.0, "F32", &[4, 64]), (V_B.0, "F32", &[64, 4])];
    message["target_modules"] = json!(["v_proj"]);
    assert_eq!(adapter(&narrow, &message).rules(), ["adapter.rank"]);
}
