//! Names of classes and functions in configurations, which Hydra, OmegaConf, Lightning and others import and call: `_target_: os.system`.

use max_weights::format::pickle::Danger;
use max_weights::format::pickle::names::judge;
use max_weights::text::escape;
use max_weights::{Diagnostic, rules};
use serde_json::Value;

use crate::dangerous;
use crate::words;

/// The one function of a dangerous module that configurations call.
const JOIN: &str = "os.path.join";

/// Whether calling what this names can run any code or program: `os.system`, `builtins.eval`, `numpy.f2py.crackfortran.os.system`.
pub(super) fn is_dangerous(name: &str) -> bool {
    let name = name.trim().replace(':', ".");
    let (module, last) = name.rsplit_once('.').unwrap_or(("", &name));
    let parts: Vec<&str> = name.split('.').collect();
    // A module of the standard library that is reached through another one is there for no good reason.
    let through = parts.iter().skip(1).any(|part| ["os", "_os", "sys", "subprocess", "builtins"].contains(part));
    // Of some modules nothing but plain data belongs into a configuration, though their names belong into a model itself.
    let is_other = !module.is_empty()
        && match parts.first() {
            Some(&("__builtin__" | "builtins" | "functools")) => judge(module, last) != Danger::Harmless,
            Some(&"operator") => judge(module, last) == Danger::RunsCode,
            _ => false,
        };
    (name != JOIN && dangerous::is_dangerous(module, last))
        || is_other
        || (through && !name.contains("torch.optim"))
        || parts.iter().any(|part| part.starts_with("__") && part.ends_with("__") && part.len() > 4)
}

/// Libraries that Diffusers takes the parts of a pipeline from.
const PARTS_OF_PIPELINES: [&str; 5] = ["diffusers", "transformers", "onnxruntime.training", "optimum", "peft"];
/// The modules of Diffusers' own pipelines, of which a part may be.
const PIPELINES: &str = "
    ace_step allegro alt_diffusion amused animatediff anyflow audio_diffusion audioldm audioldm2 aura_flow auto_pipeline blip_diffusion bria
    bria_fibo bria_fibo2 chroma chronoedit cogvideo cogview3 cogview4 consisid consistency_models controlnet controlnet_flux
    controlnet_hunyuandit controlnet_sd3 controlnet_xs cosmos dance_diffusion ddim ddpm deepfloyd_if deprecated diffusion_gemma dit
    dreamlite easyanimate ernie_image flux flux2 glm_image helios hidream_image hunyuan_image hunyuan_video hunyuan_video1_5 hunyuandit
    i2vgen_xl ideogram4 joyimage kandinsky kandinsky2_2 kandinsky3 kandinsky5 kandinsky6 kolors krea2 latent_consistency_models
    latent_diffusion latent_diffusion_uncond latte ledits_pp llada2 longcat_audio_dit longcat_image ltx ltx2 lucy lumina lumina2 marigold
    mochi motif_video musicldm nucleusmoe_image omnigen onnx_utils ovis_image pag paint_by_example pia pipeline_utils pixart_alpha pndm prx
    qwenimage qwenimage21 repaint rfd4_proteina sana sana_video sana_wm score_sde_ve semantic_stable_diffusion shap_e skyreels_v2
    spectrogram_diffusion stable_audio stable_audio_3 stable_cascade stable_diffusion stable_diffusion_3 stable_diffusion_attend_and_excite
    stable_diffusion_diffedit stable_diffusion_gligen stable_diffusion_k_diffusion stable_diffusion_ldm3d stable_diffusion_panorama
    stable_diffusion_safe stable_diffusion_sag stable_diffusion_variants stable_diffusion_xl stable_video_diffusion stochastic_karras_ve
    t2i_adapter text_to_video_synthesis unclip unidiffuser versatile_diffusion visualcloze vq_diffusion wan wuerstchen z_image";

/// Whether this is a library, or a pipeline of Diffusers, that pipelines take parts from.
pub(super) fn is_part_of_diffusers(library: &str) -> bool {
    PARTS_OF_PIPELINES.contains(&library) || words::has(PIPELINES, library)
}

/// Keys whose value is always imported and called.
const KEYS: [&str; 5] = ["_target_", "_component_", "py/object", "py/reduce", "py/function"];
/// Keys that name a class only together with a second key.
const PAIRED: [(&str, &str); 3] = [("class_path", "init_args"), ("target", "params"), ("type", "kwargs")];

/// Whether the value of this key may be the name of a class or function.
pub(super) fn may_name(key: &str) -> bool {
    KEYS.contains(&key) || PAIRED.iter().any(|(name, _)| *name == key)
}

/// Whether this key tells of another one that its value is the name of a class.
pub(super) fn tells(key: &str) -> bool {
    PAIRED.iter().any(|(_, other)| *other == key)
}

/// Whether the value of this key is a name that is imported, given the other keys of its object.
pub(super) fn names_target<'k>(key: &str, mut others: impl Iterator<Item = &'k str>) -> bool {
    KEYS.contains(&key)
        || PAIRED.iter().any(|(name, other)| *name == key && others.any(|companions| companions == *other))
}

/// Keys of sentence-transformers and PEFT whose value is the path of a function or module, `torch.nn.modules.linear.Identity`.
const FUNCTION_KEYS: &str = "
    activation_fn activation_function megatron_core parent_library sbert_ce_default_activation_function tokenizer_class";
/// Where those functions and libraries come from as a rule.
const USUAL: [&str; 7] = ["torch.nn", "transformers", "sentence_transformers", "peft", "diffusers", "timm", "megatron"];

/// The names in one object of JSON that its loaders import and call.
pub(super) fn of_object(object: &serde_json::Map<String, Value>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (key, value) in object {
        let Value::String(name) = value else { continue };
        let others = object.keys().map(String::as_str);
        let function = words::has(FUNCTION_KEYS, key)
            && (name.contains('.') || key == "parent_library")
            && !USUAL
                .iter()
                .any(|usual| name.strip_prefix(usual).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')));
        // A dangerous name is reported with or without the second key.
        let may = PAIRED.iter().any(|(first, _)| first == key) && name.contains('.') && is_dangerous(name);
        if names_target(key, others) && (KEYS.contains(&key.as_str()) || name.contains('.')) || function || may {
            found.push((key.clone(), name.clone()));
        }
    }
    found
}

/// The finding about a name that is imported and called.
pub(super) fn finding(key: &str, name: &str, line: Option<usize>) -> Diagnostic {
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    let (key, shown_name) = (escape(key), escape(name));
    let finding = if is_dangerous(name) {
        let sentence = format!("{place}'{key}' makes programs that instantiate this configuration call {shown_name}");
        Diagnostic::new(rules::REPOSITORY_TARGET_DANGEROUS, sentence)
    } else if name.contains("${") {
        let sentence = format!("{place}'{key}' is put together when the configuration is read: {shown_name}");
        Diagnostic::new(rules::REPOSITORY_TARGET, sentence)
    } else {
        let sentence =
            format!("{place}'{key}' makes programs that instantiate this configuration import and call {shown_name}");
        Diagnostic::new(rules::REPOSITORY_TARGET, sentence)
    };
    finding.evidence(format!("{key}: {shown_name}"))
}
