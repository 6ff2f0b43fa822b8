//! Folders as libraries write them, without custom code: their files have no finding of a warning or above.

use std::path::Path;

use crate::repository_support::{folder, look, safetensors};
use max_weights::rules::Severity;

fn assert_quiet(name: &str, files: &[(&str, &str)]) {
    let weights = safetensors(r#"{"format": "pt"}"#);
    let mut all: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
    all.push(("model.safetensors", &weights));
    all.push((".gitattributes", b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"));
    all.push(("README.md", b"# A model\n\n    AutoModel.from_pretrained('a/b', trust_remote_code=True)\n"));
    let folder = folder(&all);
    let loud: Vec<_> = look(folder.path()).into_iter().filter(|found| found.severity > Severity::Note).collect();
    assert!(loud.is_empty(), "{name}: {loud:#?}");
}

#[test]
fn a_language_model_is_quiet() {
    let template = r"{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}";
    let template = serde_json::to_string(template).expect("JSON");
    let tokenizer = format!(
        r#"{{"added_tokens_decoder": {{"128000": {{"content": "<|begin_of_text|>", "lstrip": false, "special": true}}}}, "bos_token": "<|begin_of_text|>", "chat_template": {template}, "clean_up_tokenization_spaces": true, "model_max_length": 1000000000000000019884624838656, "tokenizer_class": "PreTrainedTokenizerFast"}}"#
    );
    assert_quiet(
        "Llama",
        &[
            (
                "config.json",
                r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rope_scaling": {"factor": 32.0, "rope_type": "llama3"}, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "torch_dtype": "bfloat16", "time_step_limit": [0.0, Infinity]}"#,
            ),
            ("generation_config.json", r#"{"do_sample": true, "eos_token_id": [128001, 128008], "temperature": 0.6}"#),
            ("tokenizer_config.json", &tokenizer),
            ("special_tokens_map.json", r#"{"bos_token": "<|begin_of_text|>"}"#),
            ("tokenizer.json", r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"__class__": 1}}}"#),
            (
                "model.safetensors.index.json",
                r#"{"metadata": {"total_size": 4}, "weight_map": {"a.weight": "model.safetensors"}}"#,
            ),
            ("original/params.json", r#"{"dim": 2048, "ffn_dim_multiplier": 1.5}"#),
        ],
    );
}

#[test]
fn a_model_of_sentences_is_quiet() {
    assert_quiet(
        "sentence-transformers",
        &[
            (
                "config.json",
                r#"{"_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu"}"#,
            ),
            (
                "modules.json",
                r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#,
            ),
            (
                "config_sentence_transformers.json",
                r#"{"__version__": {"sentence_transformers": "2.0.0", "pytorch": "1.7.0"}, "prompts": {}, "similarity_fn_name": "cosine"}"#,
            ),
            ("sentence_bert_config.json", r#"{"max_seq_length": 256, "do_lower_case": false}"#),
            ("1_Pooling/config.json", r#"{"word_embedding_dimension": 384, "pooling_mode_mean_tokens": true}"#),
            (
                "2_Dense/config.json",
                r#"{"in_features": 1, "out_features": 1, "bias": true, "activation_function": "torch.nn.modules.activation.Tanh"}"#,
            ),
            ("vocab.txt", "[PAD]\n[UNK]\n"),
            ("data_config.json", r#"[{"name": "a.jsonl.gz", "lines": 1, "weight": 1}]"#),
            (
                "train_script.py",
                "import torch\nfrom torch import nn\n\ndef main():\n    nn.Linear(1, 1)\n\nif __name__ == '__main__':\n    main()\n",
            ),
        ],
    );
}

#[test]
fn a_pipeline_of_diffusers_is_quiet() {
    assert_quiet(
        "Diffusers",
        &[
            (
                "model_index.json",
                r#"{"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.6.0", "feature_extractor": ["transformers", "CLIPImageProcessor"], "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"], "scheduler": ["diffusers", "PNDMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"], "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"], "vae": [null, null], "requires_safety_checker": true}"#,
            ),
            ("unet/config.json", r#"{"_class_name": "UNet2DConditionModel", "act_fn": "silu", "sample_size": 64}"#),
            ("scheduler/scheduler_config.json", r#"{"_class_name": "PNDMScheduler", "beta_end": 0.012}"#),
            (
                "feature_extractor/preprocessor_config.json",
                r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224}"#,
            ),
            ("v1-inference.yaml", "model:\n  base_learning_rate: 1.0e-04\n  linear_start: 0.00085\n"),
        ],
    );
}

#[test]
fn an_adapter_and_a_training_are_quiet() {
    assert_quiet(
        "PEFT",
        &[
            (
                "adapter_config.json",
                r#"{"alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "meta-llama/Llama-3.2-1B", "lora_alpha": 16, "megatron_config": null, "megatron_core": "megatron.core", "peft_type": "LORA", "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}"#,
            ),
            (
                "auto_adapter/adapter_config.json",
                r#"{"auto_mapping": {"base_model_class": "BertModel", "parent_library": "transformers.models.bert.modeling_bert"}, "base_model_name_or_path": "bert-base-uncased"}"#,
            ),
            ("trainer_state.json", r#"{"best_metric": NaN, "log_history": [{"loss": Infinity}]}"#),
            ("training.yaml", "lr: 1e-4\nlora:\n  r: 16\n  target_modules: [q_proj, v_proj]\n"),
            ("requirements.txt", "torch>=2.0\ntransformers==4.44\n"),
            ("train.jsonl", "{\"a\": 1}\n{\"a\": 2}\n"),
            (
                "example.ipynb",
                r#"{"cells": [{"cell_type": "code", "source": ["!pip install transformers\n", "import torch\n", "print(torch.__version__)"]}], "metadata": {}, "nbformat": 4}"#,
            ),
            ("onnx/config.json", r#"{"model_type": "bert", "transformers.js_config": {"dtype": "q8"}}"#),
        ],
    );
}

#[test]
fn the_models_of_this_project_are_quiet() {
    let Some(models) = std::env::var_os("MAX_WEIGHTS_MODELS") else { return };
    let loud: Vec<_> = look(Path::new(&models)).into_iter().filter(|found| found.severity > Severity::Note).collect();
    assert!(loud.is_empty(), "{loud:#?}");
}
