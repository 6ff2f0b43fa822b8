//! What the values of one tensor say of it.

use max_weights::check::{ExactNumber, PassResult, Statistics};
use max_weights::tensor::{Element, TensorInfo};
use max_weights::{Checkpoint, DType, Diagnostic, rules, text};

use super::scales::{is_scale, may_be_negative};
use crate::words;

/// Up to this share of a tensor, the largest code of a float of eight bits is what scales for each block of 16 or 32 values make of its largest value.
const SATURATED_SHARE: f64 = 0.125;
/// The share is meaningless for fewer elements.
const SATURATED_OF: u64 = 1024;
/// No scale of a quantized weight is larger.
const MAX_SCALE: f64 = 1e12;
/// Parts of names of tensors in which infinities are meant to be.
const MASKS: [&str; 5] = ["mask", "attn_bias", "attn.bias", "attention_bias", "attention.bias"];
/// Parts of names of tensors that begin as zeros or ones, and may stay so.
const BEGIN_CONSTANT: &str = "bias norm ln_ layer_scale gamma beta scale zero mask running_ lora_b g_idx ids offset";

/// Reports what the contents of a tensor of a checkpoint say.
pub(crate) fn judge(
    checkpoint: &Checkpoint,
    info: &TensorInfo<'_>,
    contents: &PassResult,
    report: &mut dyn FnMut(Diagnostic),
) {
    let Some(found) = &contents.statistics else { return };
    if is_scale(checkpoint, info) {
        let mut say = |finding: Diagnostic| report(finding.tensor(info.name).offset(info.span.start()));
        return scale(info, found, &mut say);
    }
    judge_values(info, contents, report);
}

/// Reports what the contents of a tensor say that is not a scale.
pub(super) fn judge_values(info: &TensorInfo<'_>, contents: &PassResult, report: &mut dyn FnMut(Diagnostic)) {
    let Some(found) = &contents.statistics else { return };
    let mut say = |finding: Diagnostic| report(finding.tensor(info.name).offset(info.span.start()));
    let lower = info.name.to_lowercase();
    let of_all = |count: u64| format!("{} of its {} values are", grouped(count), grouped(found.count));
    if found.nans > 0 {
        say(Diagnostic::new(rules::VALUES_NAN, format!("{} NaN", of_all(found.nans))));
    }
    if found.infinities > 0 {
        let is_mask = MASKS.iter().any(|part| lower.contains(part));
        let rule = if is_mask { rules::VALUES_MASK } else { rules::VALUES_INFINITY };
        say(Diagnostic::new(rule, format!("{} infinite", of_all(found.infinities))));
    }
    if contents.odd_bools > 0 {
        let count = grouped(contents.odd_bools);
        say(Diagnostic::new(
            rules::VALUES_BOOL,
            format!("{count} of its {} bytes are neither 0 nor 1", grouped(found.count)),
        ));
    }
    if is_saturated(info, contents, found) {
        let share = contents.saturated as f64 * 100.0 / found.count as f64;
        let message = format!("{share:.1}% of its values are the largest or the smallest that {} has", info.element);
        say(Diagnostic::new(rules::VALUES_SATURATED, message));
    }
    let may_be_constant = words::each(BEGIN_CONSTANT).any(|part| lower.contains(part));
    if found.count > 1 && found.zeros == found.count {
        if !may_be_constant {
            say(Diagnostic::new(rules::VALUES_ZERO, format!("all its {} values are zero", grouped(found.count))));
        }
    } else if found.count > 1 && found.finite() == found.count && found.minimum == found.maximum {
        if let Some(value) = found.minimum.filter(|_| !may_be_constant) {
            let value = match value {
                ExactNumber::Integer(value) => value.to_string(),
                // With an exponent where that is shorter.
                ExactNumber::Float(value) => format!("{value:?}"),
            };
            let message = format!("all its {} values are {value}", grouped(found.count));
            say(Diagnostic::new(rules::VALUES_CONSTANT, message));
        }
    } else {
        dead_rows(contents, &mut say);
    }
}

fn grouped(count: u64) -> String {
    text::grouped(count)
}

fn is_saturated(info: &TensorInfo<'_>, contents: &PassResult, found: &Statistics) -> bool {
    let is_float8 = matches!(info.element, Element::Plain(dtype) if dtype.bits() == 8 && dtype.name().starts_with("float8") && dtype != DType::Float8E8M0Fnu);
    is_float8 && found.count >= SATURATED_OF && contents.saturated as f64 > found.count as f64 * SATURATED_SHARE
}

fn dead_rows(contents: &PassResult, say: &mut dyn FnMut(Diagnostic)) {
    let rows = &contents.rows;
    if rows.zero + rows.constant == 0 {
        return;
    }
    let count = grouped(rows.count);
    let zero = (rows.zero > 0).then(|| {
        let first = rows.first_zero.map_or(String::new(), |row| format!(" (the first is row {row})"));
        format!("{} of its {count} rows are zero{first}", grouped(rows.zero))
    });
    let constant = (rows.constant > 0)
        .then(|| format!("{} of its {count} rows hold a single number each", grouped(rows.constant)));
    let all: Vec<String> = zero.into_iter().chain(constant).collect();
    say(Diagnostic::new(rules::VALUES_DEAD_ROWS, all.join(", and ")));
}

fn scale(info: &TensorInfo<'_>, found: &Statistics, say: &mut dyn FnMut(Diagnostic)) {
    let count = grouped(found.count);
    let low = found.minimum.map_or(0.0, ExactNumber::to_f64);
    let high = found.maximum.map_or(0.0, ExactNumber::to_f64);
    // Of one byte each, as gpt-oss has them, they are exponents.
    let is_exponent = matches!(info.element, Element::Plain(DType::UInt8));
    let wrong = if found.nans + found.infinities > 0 {
        Some(format!("{} of its {count} scales are NaN or infinite", grouped(found.nans + found.infinities)))
    } else if low < 0.0 && !may_be_negative(info.name) {
        Some(format!("scales must not be negative, but the smallest of these is {low:e}"))
    } else if found.count > 0 && found.zeros == found.count && !is_exponent {
        Some(format!("all its {count} scales are zero"))
    } else if high.max(-low) > MAX_SCALE && !matches!(info.element, Element::Plain(DType::Float8E8M0Fnu)) {
        Some(format!("the largest of its {count} scales is {high:e}"))
    } else {
        None
    };
    if let Some(message) = wrong {
        say(Diagnostic::new(rules::VALUES_SCALE, message));
    } else if found.zeros > 0 && !is_exponent {
        say(Diagnostic::new(
            rules::VALUES_SCALE_ZERO,
            format!("{} of its {count} scales are zero", grouped(found.zeros)),
        ));
    }
}
