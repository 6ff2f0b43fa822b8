//! The order in which the tensors of a quantized weight follow each other, wherever their files have them.

use std::collections::HashMap;

use max_weights::tensor::TensorTable;

use super::group::QuantizedGroup;
use super::parts::{QuantizedLayer, layers};

/// The positions of these tensors of a table in their order, but for parts of quantized weights: those follow the packed one at once.
pub fn with_parts_together(table: &TensorTable, numbers: &[usize]) -> Vec<usize> {
    let positions: HashMap<usize, usize> = numbers.iter().copied().zip(0..).collect();
    // A name may fit two layers: the tensor belongs to the first.
    let mut group_of: HashMap<usize, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // Unquantized weights with scales keep their position.
    let is_quantized =
        |layer: &QuantizedLayer<'_>| QuantizedGroup::new(table, layer, (None, None), &|_, _| None).is_quantized();
    for layer in layers(table, numbers.iter().copied()).list.into_iter().filter(is_quantized) {
        let parts = layer.parts().map(|(_, number)| number).filter(|number| !group_of.contains_key(number));
        let parts: Vec<usize> = parts.collect();
        if parts.len() > 1 {
            group_of.extend(parts.iter().map(|&number| (number, groups.len())));
            groups.push(parts);
        }
    }
    if groups.is_empty() || positions.len() < numbers.len() {
        return (0..numbers.len()).collect();
    }
    let mut order = Vec::with_capacity(numbers.len());
    for (position, number) in numbers.iter().enumerate() {
        match group_of.get(number) {
            None => order.push(position),
            // The first of its parts is the packed weight.
            Some(&group) if groups[group].first() == Some(number) => {
                order.extend(groups[group].iter().filter_map(|number| positions.get(number)));
            }
            Some(_) => {}
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_weights::dtype::DType;
    use max_weights::tensor::{Element, Span, TensorInfo};

    fn order(dtype: DType, names: &[&str]) -> Vec<String> {
        let mut table = TensorTable::default();
        for name in names {
            let span = Span::within(1, 0, 1).expect("a span");
            let element = Element::Plain(dtype);
            let info = TensorInfo { name, element, shape: &[1], file: 0, span, view: None };
            table.push(&info).expect("added");
        }
        let numbers: Vec<usize> = (0..names.len()).collect();
        with_parts_together(&table, &numbers).into_iter().map(|position| names[position].to_owned()).collect()
    }

    #[test]
    fn parts_follow_their_weight_and_all_else_stays_where_it_is() {
        let plain = ["b.weight", "a.weight", "a.bias"];
        assert_eq!(order(DType::UInt8, &plain), plain);
        let found =
            order(DType::UInt8, &["a.weight_scale", "norm.weight", "b.weight_scale", "b.weight", "a.bias", "a.weight"]);
        assert_eq!(found, ["norm.weight", "b.weight", "b.weight_scale", "a.bias", "a.weight", "a.weight_scale"]);
        let gptq = order(DType::UInt8, &["x.scales", "x.g_idx", "x.qzeros", "y.scales", "x.qweight", "y.qweight"]);
        assert_eq!(gptq, ["x.qweight", "x.qzeros", "x.scales", "x.g_idx", "y.qweight", "y.scales"]);
        let floats = ["a.scale", "b.weight_scale", "b.weight", "a.weight"];
        assert_eq!(order(DType::BFloat16, &floats), floats, "nothing is packed");
        assert_eq!(order(DType::UInt8, &["e_scales", "e_bias", "e_blocks"]), ["e_bias", "e_blocks", "e_scales"]);
    }

    #[test]
    fn each_comes_once_also_where_names_fit_two_layers_or_no_weight_is_there() {
        for names in [
            ["a", "a.weight", "a_scale_inv", "a.weight_scale_inv"],
            ["a.weight_scale", "a.input_scale", "b", "a.scale"],
            ["a_scale_inv", "a.weight_scale_inv", "a", "a.weight_scale"],
            ["x.scale", "x.weight", "x.weight.absmax", "x.weight.quant_map"],
        ] {
            let mut found = order(DType::UInt8, &names);
            found.sort_unstable();
            let mut all = names.map(str::to_owned);
            all.sort_unstable();
            assert_eq!(found, all);
        }
    }
}
