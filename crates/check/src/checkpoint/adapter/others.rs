//! Adapters of other kinds than LoRA that have some tensors for each layer: AdaLoRA, LoHa, VeRA and IA3.
//!
//! For rank r, K inputs and N outputs:
//!
//! | | |
//! |---|---|
//! | AdaLoRA | `lora_A` r, K; `lora_B` N, r; `lora_E` r, 1: the training leaves each layer its own rank, which may be 0 |
//! | LoHa | `hada_w1_a` and `hada_w2_a` N, r; `hada_w1_b` and `hada_w2_b` r, K; other shapes with `hada_t1`, of convolutions |
//! | VeRA | `vera_lambda_d` r; `vera_lambda_b` N |
//! | IA3 | `ia3_l` N, 1, or 1, K for layers of `feedforward_modules` |

use max_weights::Result;
use max_weights::rules;
use max_weights::tensor::TensorInfo;

use super::lora::{LoraConfig, targets};
use super::{AT_A_TIME, AdapterConfig, AdapterLayer, MAX_PARTS, layers, wrong_shape};
use crate::checkpoint::sets::CheckpointSet;
use crate::folder::FolderContext;

/// The number of the part with which the others have other shapes.
const OTHER_SHAPES: usize = MAX_PARTS - 1;

/// What the layers of a kind of adapter consist of.
struct AdapterKind {
    name: &'static str,
    /// Each part, with the dimension that is the rank.
    parts: &'static [(&'static str, Option<usize>)],
    /// A part with which the others have other shapes.
    other_shapes: &'static str,
    /// Whether the configuration says the rank.
    has_rank: bool,
}

const KINDS: [AdapterKind; 4] = [
    AdapterKind {
        name: "ADALORA",
        parts: &[("lora_A", Some(0)), ("lora_B", Some(1)), ("lora_E", Some(0))],
        other_shapes: "",
        has_rank: false,
    },
    AdapterKind {
        name: "LOHA",
        parts: &[("hada_w1_a", Some(1)), ("hada_w1_b", Some(0)), ("hada_w2_a", Some(1)), ("hada_w2_b", Some(0))],
        other_shapes: "hada_t1",
        has_rank: true,
    },
    AdapterKind {
        name: "VERA",
        parts: &[("vera_lambda_d", Some(0)), ("vera_lambda_b", None)],
        other_shapes: "",
        has_rank: true,
    },
    AdapterKind { name: "IA3", parts: &[("ia3_l", None)], other_shapes: "", has_rank: false },
];

/// Looks at the layers of an adapter of this kind, if it is one of these.
pub(super) fn check(
    set: &CheckpointSet<'_>,
    kind: &str,
    config: &AdapterConfig,
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let Some(kind) = KINDS.iter().find(|known| known.name == kind) else { return Ok(()) };
    let layers = layers(set, |name| {
        let (layer, last) = name.rsplit_once('.')?;
        let part = kind.parts.iter().position(|(part, _)| *part == last);
        Some((layer, part.or((last == kind.other_shapes).then_some(OTHER_SHAPES))?))
    });
    let declared = LoraConfig::of(&config.value);
    for (number, layer) in layers.iter().enumerate() {
        if number % AT_A_TIME == AT_A_TIME - 1 {
            (context.interrupt)()?;
        }
        check_layer(set, kind, layer, &declared, context);
    }
    if set.is_complete {
        targets(set, &layers, config, &declared, context)?;
    }
    Ok(())
}

fn check_layer(
    set: &CheckpointSet<'_>,
    kind: &AdapterKind,
    layer: &AdapterLayer<'_>,
    declared: &LoraConfig<'_>,
    context: &mut FolderContext<'_>,
) {
    let get = |part: usize| layer.get(set, part);
    let present: Vec<TensorInfo<'_>> = (0..kind.parts.len()).filter_map(get).collect();
    let Some(first) = present.first() else { return };
    for (part, (name, _)) in kind.parts.iter().enumerate() {
        if get(part).is_none() && set.is_complete {
            set.report(first, rules::ADAPTER_PAIR, format!("its {name} is missing"), context);
        }
    }
    if get(OTHER_SHAPES).is_some() {
        return;
    }
    let mut rank = None;
    for (part, (_, dimension)) in kind.parts.iter().enumerate() {
        let (Some(info), Some(dimension)) = (get(part), dimension) else { continue };
        let Some(found) = info.shape.get(*dimension).copied() else { continue };
        match rank {
            None => {
                rank = Some(found);
                let ranks = declared.ranks(layer.in_model()).filter(|_| kind.has_rank);
                if let Some(expected) =
                    ranks.filter(|ranks| !ranks.contains(&found)).and_then(|ranks| ranks.first().copied())
                {
                    let cause = format!("its rank is {found}; the configuration says {expected}");
                    set.report(&info, rules::ADAPTER_RANK, cause, context);
                }
            }
            Some(rank) if rank != found => {
                let mut expected = info.shape.to_vec();
                if let Some(size) = expected.get_mut(*dimension) {
                    *size = rank;
                }
                wrong_shape(set, &info, &expected, "for the rank of the others", context);
            }
            Some(_) => {}
        }
    }
}
