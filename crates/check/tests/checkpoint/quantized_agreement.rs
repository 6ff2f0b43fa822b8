//! Validation and decoding agree: a quantized weight has a finding exactly if its layout cannot be determined.

use std::fs;

use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights_check::Level;
use max_weights_check::quantized::{
    self, DeclaredQuantization, NoLayout, PartFault, QuantizationMethod, QuantizedGroup, TensorRole,
};

use super::support::Fixture;

/// Rules about the parts of a weight, independent of the configuration.
const OF_PARTS: [&str; 7] = [
    "quantized.scale-missing",
    "quantized.scale-orphan",
    "quantized.zero-point-missing",
    "quantized.zero-point-shape",
    "quantized.order-missing",
    "quantized.shape",
    "quantized.dtype",
];

/// Looks at the model of a folder in both ways. Every model of the tests of quantized weights goes through it.
pub(super) fn assert_agreement(folder: &Fixture) {
    let declared = DeclaredQuantization::read(folder.path()).expect("a configuration");
    // Validation reports nothing about custom schemes, nor about one that only a name indicates.
    let Some(declared) = declared.filter(|declared| declared.method != QuantizationMethod::Other) else { return };
    let path = folder.path().join("model.safetensors");
    let checkpoint = Checkpoint::open(&[&path], &OpenOptions::default()).expect("a checkpoint");
    let (table, bytes) = (checkpoint.catalog().table(), fs::read(&path).expect("a file"));
    let findings = folder.report(Level::Structure).findings;
    let reported: Vec<(&str, &str)> =
        findings.iter().filter_map(|finding| Some((finding.rule.id, finding.tensor.as_deref()?))).collect();
    for layer in quantized::layers(table, 0..table.len()).list {
        let values = |number: usize, most: u64| {
            let (info, sizes) = (table.get(number), [TensorRole::Shape, TensorRole::QuantState]);
            let (start, len) = (info.span.start() as usize, info.bytes() as usize);
            let says = sizes.into_iter().any(|part| layer.number(part) == Some(number));
            (says && len as u64 <= most).then(|| bytes[start..start + len].to_vec())
        };
        let scheme = declared.schemes(&[layer.name])[0];
        let group = QuantizedGroup::new(table, &layer, (Some(&declared), scheme), &values);
        if !group.is_quantized() {
            continue;
        }
        let (decided, mut faults) = (group.decide(), group.faults());
        let is_refused = matches!(decided, Err(NoLayout::Refused { .. }));
        faults
            .extend(decided.err().and_then(|stop| if let NoLayout::Fault(fault) = stop { Some(fault) } else { None }));
        let names = |fault: &PartFault| (fault.rule.id, fault.tensor.map_or(layer.name, |number| table.name(number)));
        for fault in faults.iter().filter(|fault| fault.is_certain) {
            assert!(reported.contains(&names(fault)), "{} is not reported: {}", layer.name, fault.cause);
        }
        if is_refused || faults.is_empty() {
            let mut parts = layer.parts().map(|(_, number)| table.name(number));
            let of_layer = |(rule, name): &&(&str, &str)| OF_PARTS.contains(rule) && parts.any(|part| part == *name);
            assert_eq!(reported.iter().find(of_layer), None, "{} has a layout", layer.name);
        }
    }
}
