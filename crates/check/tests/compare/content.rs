//! What reading every byte shows: each rule with a tensor that breaks it and no other, good models without a finding, and every dtype.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::content_support::{self, Tensor, f32s, model, ramp, safetensors, torch_legacy, torch_legacy_views};
use max_weights::rules::Severity;
use max_weights::{Diagnostic, Error, uninterrupted};
use max_weights_check::{Depth, Level, Report, ValidateOptions, ValidateProgress, content, validate};

fn checked(path: &Path, options: &ValidateOptions) -> Report {
    validate(&[path.to_path_buf()], options, &ValidateProgress::default(), &uninterrupted).expect("a report")
}

fn options() -> ValidateOptions {
    ValidateOptions { level: Level::Content, ..ValidateOptions::default() }
}

/// The findings about the values of a file of these tensors.
fn findings(tensors: &[Tensor<'_>]) -> Vec<Diagnostic> {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("model.safetensors"), tensors);
    let report = checked(folder.path(), &options());
    assert_eq!(report.files[0].depth, Depth::Content);
    report.findings.into_iter().filter(|finding| finding.rule.id.starts_with("values.")).collect()
}

/// The one finding about a good model with one more tensor: its rule, and what it says.
fn one(tensor: Tensor<'static>) -> (&'static str, String) {
    let name = tensor.0;
    let mut tensors = model();
    tensors.push(tensor);
    let found = findings(&tensors);
    let [finding] = &found[..] else { panic!("{name}: {found:?}") };
    assert_eq!(finding.tensor.as_deref(), Some(name));
    (finding.rule.id, finding.message.clone())
}

#[test]
fn a_good_model_has_no_findings() {
    assert_eq!(findings(&model()), []);
}

#[test]
fn each_rule_is_broken_by_a_tensor_that_breaks_no_other() {
    let changed = |at: &[usize], value: f32| {
        f32s((0..64).map(|number| if at.contains(&number) { value } else { 1.0 + number as f32 }))
    };
    let bools = [vec![0, 1, 2], vec![1; 61]].concat();
    assert_eq!(one(("x", "BOOL", vec![64], bools)), ("values.bool", "1 of its 64 bytes are neither 0 nor 1".into()));
    assert_eq!(
        one(("x", "F32", vec![64], changed(&[3, 9], f32::NAN))),
        ("values.nan", "2 of its 64 values are NaN".into())
    );
    let infinite = one(("x", "F32", vec![64], changed(&[5], f32::NEG_INFINITY)));
    assert_eq!(infinite, ("values.infinity", "1 of its 64 values are infinite".into()));
    let mask = one(("attn.mask", "F32", vec![64], changed(&[5], f32::NEG_INFINITY)));
    assert_eq!(mask, ("values.mask", "1 of its 64 values are infinite".into()));
    assert_eq!(one(("attn.mask", "F32", vec![64], changed(&[5], f32::NAN))).0, "values.nan");
    let bias = |name| one((name, "F32", vec![64], changed(&[5], f32::INFINITY))).0;
    assert_eq!((bias("h.0.attn.bias"), bias("q_proj.bias")), ("values.mask", "values.infinity"));
    assert_eq!(one(("x", "F32", vec![64], f32s([0.0; 64]))), ("values.zero", "all its 64 values are zero".into()));
    assert_eq!(one(("x", "F32", vec![64], f32s([2.5; 64]))), ("values.constant", "all its 64 values are 2.5".into()));
    let tiny = one(("x", "F32", vec![64], f32s([1e-40; 64])));
    assert_eq!(tiny, ("values.constant", "all its 64 values are 9.99994610111476e-41".into()));
    let not_a_number = f32s((0..64).map(|number| if number < 16 { f32::NAN } else { number as f32 }));
    assert_eq!(one(("x", "F32", vec![4, 16], not_a_number)).0, "values.nan", "a row of NaN is not one number");
    let rows = f32s((0..64).map(|number| if (16..32).contains(&number) { 0.0 } else { number as f32 }));
    let dead = one(("x", "F32", vec![4, 16], rows));
    assert_eq!(dead, ("values.dead-rows", "1 of its 4 rows are zero (the first is row 1)".into()));
    let saturated: Vec<u8> =
        (0..2048u32).map(|number| if number % 4 == 0 { 0x7e } else { (number % 0x70) as u8 }).collect();
    let message = "25.0% of its values are the largest or the smallest that float8_e4m3fn has";
    assert_eq!(one(("x", "F8_E4M3", vec![2048], saturated)), ("values.saturated", message.into()));
}

#[test]
fn nan_codes_of_eight_bits_count_as_nan() {
    let codes: Vec<u8> = (0..=255).collect();
    assert_eq!(one(("x", "F8_E4M3", vec![256], codes.clone())).1, "2 of its 256 values are NaN");
    assert_eq!(findings(&[("x", "F8_E5M2", vec![256], codes)]).len(), 2); // and infinities
}

#[test]
fn scales_of_quantized_weights_are_looked_at_as_scales() {
    let weight = ("q.weight", "F8_E4M3", vec![64], (1..65).collect::<Vec<u8>>());
    let of = |scales: &[f32]| {
        let found = findings(&[weight.clone(), ("q.weight_scale", "F32", vec![scales.len()], f32s(scales.to_vec()))]);
        found.into_iter().map(|finding| (finding.rule.id, finding.message)).collect::<Vec<_>>()
    };
    assert_eq!(of(&[0.5, 0.25]), []);
    assert_eq!(of(&[0.5, 0.0]), [("values.scale-zero", "1 of its 2 scales are zero".to_owned())]);
    assert_eq!(of(&[0.5, f32::NAN]), [("values.scale", "1 of its 2 scales are NaN or infinite".to_owned())]);
    assert_eq!(of(&[0.0, 0.0]), [("values.scale", "all its 2 scales are zero".to_owned())]);
    assert_eq!(of(&[1e20, 1.0])[0].0, "values.scale");
    assert_eq!(of(&[-0.5, 1.0])[0].0, "values.scale");
    // The scale of a norm may be negative: there is no weight that it belongs to.
    assert_eq!(findings(&[("norm.scale", "F32", vec![2], f32s([-0.5, 1.0]))]), []);
}

#[test]
fn tensors_of_the_same_bytes_are_said_once() {
    let copies = ["lm_head.weight", "a.weight", "b.weight"];
    let mut tensors = model();
    tensors.push(("tied.weight", "F32", vec![64, 32], ramp(2048, 0.0)));
    tensors.extend(copies.map(|name| (name, "F32", vec![64, 32], ramp(2048, 0.0))));
    tensors.push(("other.weight", "F32", vec![32, 64], ramp(2048, 0.0)));
    let found = findings(&tensors);
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!((finding.rule.id, finding.tensor.as_deref()), ("values.duplicate", Some("tied.weight")));
    assert!(finding.message.starts_with("'lm_head.weight', 'a.weight', 'b.weight' have the same"), "{finding:?}");
}

#[test]
fn shards_are_compared_with_each_other_and_other_formats_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("one.safetensors"), &[("a", "F32", vec![2048], ramp(2048, 0.0))]);
    safetensors(&folder.path().join("two.safetensors"), &[("b", "F32", vec![2048], ramp(2048, 0.0))]);
    safetensors(&folder.path().join("three.safetensors"), &[("a", "F32", vec![2048], ramp(2048, 0.0))]);
    let report = checked(folder.path(), &options());
    let found: Vec<&Diagnostic> = report.findings.iter().filter(|found| found.rule.id == "values.duplicate").collect();
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert!(finding.file().ends_with("one.safetensors"), "{finding:?}");
    assert!(finding.message.starts_with("'b' has the same"), "{finding:?}");
}

#[test]
fn tensors_that_share_bytes_in_a_second_file_count_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = ramp(2048, 0.0);
    torch_legacy(&folder.path().join("a.pt"), &["first"], &bytes);
    torch_legacy(&folder.path().join("b.pt"), &["second", "tied"], &bytes);
    let report = checked(folder.path(), &options());
    let found: Vec<&Diagnostic> = report.findings.iter().filter(|found| found.rule.id == "values.duplicate").collect();
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!(finding.message, "'second' has the same dtype, shape and bytes: 8.2 kB more than once");
}

#[test]
fn shards_of_tensors_that_strides_repeat_to_more_bytes_than_numbers_have_are_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let geometry = [b"\x8a\x08", &(1u64 << 60).to_le_bytes()[..], b"\x85K\0\x85"].concat();
    for number in 1..3 {
        let path = folder.path().join(format!("pytorch_model-{number:05}-of-00002.bin"));
        torch_legacy_views(&path, &["a", "b", "c", "d", "e"], &f32s([2.0]), &geometry);
    }
    let report = checked(folder.path(), &options());
    assert!(report.files.iter().all(|file| file.depth == Depth::Content && file.tensors == Some(5)));
    let message = "all its 1,152,921,504,606,846,976 values are 2.0";
    assert_eq!(report.findings.iter().filter(|finding| finding.message == message).count(), 10);
}

#[test]
fn of_many_findings_of_a_rule_the_others_are_counted() {
    let names: Vec<String> = (0..130).map(|number| format!("layer.{number}.weight")).collect();
    let tensors: Vec<Tensor<'_>> =
        names.iter().map(|name| (name.as_str(), "F32", vec![2], f32s([f32::NAN, 1.0]))).collect();
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("x.safetensors"), &tensors);
    let report = checked(folder.path(), &options());
    assert_eq!(report.findings.iter().filter(|finding| finding.rule.id == "values.nan").count(), 100);
    assert_eq!(report.omitted, 30);
}

#[test]
fn nothing_is_read_below_the_level_of_the_content() {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("x.safetensors"), &[("x", "F32", vec![2], f32s([f32::NAN, 1.0]))]);
    let report = checked(folder.path(), &ValidateOptions::default());
    assert!(report.findings.iter().all(|finding| finding.rule.id != "values.nan"));
    assert!(report.files[0].depth < Depth::Content);
    let report = checked(folder.path(), &ValidateOptions { severity: Severity::Error, ..options() });
    assert!(report.findings.is_empty());
}

#[test]
fn the_statistics_of_all_tensors_come_as_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let mut tensors = model();
    tensors.push(("odd", "F6_UNKNOWN", vec![8], vec![1; 8]));
    safetensors(&path, &tensors);
    let checkpoint = max_weights::open(&path).expect("opened");
    let (done, numbers) = (AtomicU64::new(0), [0, 1, 2, 3, 4]);
    let found = content::stats(&checkpoint, &numbers, 0, &done, &uninterrupted).expect("read");
    let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["embed.weight", "layers.0.weight", "layers.0.bias", "norm.weight", "odd"]);
    let first = found[0].statistics.as_ref().expect("floats");
    assert_eq!(
        (first.count, first.zeros, found[0].dtype.as_str(), &found[0].shape[..]),
        (512, 1, "float32", &[32, 16][..])
    );
    assert_eq!((first.minimum.expect("finite").to_f64(), first.maximum.expect("finite").to_f64()), (-4.0, 3.984_375));
    assert!(found[4].statistics.is_none() && found[4].note.as_deref().expect("why").contains("F6_UNKNOWN"));
    assert_eq!(done.load(Ordering::Relaxed), 512 * 4 + 256 * 4 + 16 * 4 + 16 * 2 + 8);
    let stop = || Err(Error::Interrupted);
    assert!(matches!(content::stats(&checkpoint, &numbers, 0, &done, &stop), Err(Error::Interrupted)));
    let done = AtomicU64::new(0);
    let one = content::stats(&checkpoint, &[2], 0, &done, &uninterrupted).expect("read");
    assert_eq!((one.len(), one[0].name.as_str(), done.load(Ordering::Relaxed)), (1, "layers.0.bias", 16 * 4));
}

#[test]
fn the_statistics_of_a_tensor_that_is_most_of_a_file_are_those_of_all_its_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let count = (64 << 20) + 3;
    let mut bytes = vec![0; count];
    (bytes[7], bytes[count - 1]) = (9, 1);
    safetensors(&path, &[("small", "U8", vec![2], vec![3, 4]), ("large", "U8", vec![count], bytes)]);
    let (checkpoint, done) = (max_weights::open(&path).expect("opened"), AtomicU64::new(0));
    let found = content::stats(&checkpoint, &[1, 0], 0, &done, &uninterrupted).expect("read");
    let of = |at: usize| found[at].statistics.as_ref().expect("numbers");
    assert_eq!((found[0].name.as_str(), found[1].name.as_str()), ("large", "small"));
    assert_eq!((of(0).count, of(0).zeros, of(1).count), (count as u64, count as u64 - 2, 2));
    assert_eq!(of(0).maximum.map(max_weights::check::ExactNumber::to_f64), Some(9.0));
    assert_eq!(done.load(Ordering::Relaxed), count as u64 + 2);
}

#[test]
fn tensors_of_all_dtypes_have_histograms_that_are_the_same_on_any_number_of_threads() {
    const COUNT: usize = 100_000;
    // As many numbers in each part of the same width.
    let even = || (0..COUNT).map(|number| (number as f64 * 0.618_033_988_75).fract() * 3.0 - 1.5);
    let integers = || even().map(|value| ((value + 1.5) * 1e6) as u32);
    let complex = |value: f64| [(value as f32).to_le_bytes(), [0; 4]].concat();
    let tensors: [Tensor<'_>; 9] = [
        ("f32", "F32", vec![COUNT], f32s(even().map(|value| value as f32))),
        ("f64", "F64", vec![COUNT], even().flat_map(f64::to_le_bytes).collect()),
        ("i32", "I32", vec![COUNT], integers().flat_map(|value| (value as i32 - 1_500_000).to_le_bytes()).collect()),
        ("i64", "I64", vec![COUNT], integers().flat_map(|value| (i64::from(value) << 30).to_le_bytes()).collect()),
        ("u32", "U32", vec![COUNT], integers().flat_map(u32::to_le_bytes).collect()),
        ("u64", "U64", vec![COUNT], integers().flat_map(|value| u64::from(value).to_le_bytes()).collect()),
        ("c64", "C64", vec![COUNT], even().flat_map(complex).collect()),
        ("bf16", "BF16", vec![COUNT], even().flat_map(|value| (value as f32).to_le_bytes()[2..].to_vec()).collect()),
        ("i8", "I8", vec![COUNT], even().map(|value| (value * 85.0) as i8 as u8).collect()),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("model.safetensors"), &tensors);
    let of =
        |jobs| checked(folder.path(), &ValidateOptions { jobs: std::num::NonZero::new(jobs), ..options() }).statistics;
    let found = of(1);
    assert_eq!(found, of(3));
    assert_eq!(found.len(), tensors.len());
    for tensor in &found {
        assert_eq!((tensor.bins.len(), tensor.bins.iter().sum::<u64>()), (24, COUNT as u64), "{}", tensor.name);
        let share = COUNT as u64 / 24;
        let is_even = |count: &u64| (share * 3 / 4..=share * 5 / 4).contains(count);
        assert!(tensor.bins.iter().all(is_even), "{}: {:?}", tensor.name, tensor.bins);
    }
}

#[test]
fn packed_blocks_have_histograms_of_what_they_decode_to() {
    // Of Q8_0 with a scale of one, the bytes are the values: -127 to 127.
    let (blocks, mut bytes) = (500u64, Vec::new());
    for block in 0..blocks {
        bytes.extend([0x00, 0x3c]);
        bytes.extend((0..32).map(|at| ((block * 32 + at) % 255) as u8).map(|byte| (i16::from(byte) - 127) as i8 as u8));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, content_support::gguf("w", 8, blocks * 32, &bytes)).expect("written");
    let report = checked(&path, &options());
    assert_eq!(report.files[0].depth, Depth::Content, "{:?}", report.findings);
    let tensor = &report.statistics[0];
    assert_eq!((tensor.minimum, tensor.maximum), (Some(-127.0), Some(127.0)));
    assert_eq!((tensor.bins.len(), tensor.bins.iter().sum::<u64>()), (24, blocks * 32));
    assert!(tensor.bins.iter().all(|count| (500..=850).contains(count)), "{:?}", tensor.bins);
}

#[test]
fn what_there_is_no_time_for_is_said_and_not_called_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    safetensors(&folder.path().join("model.safetensors"), &[("x", "F32", vec![1 << 22], vec![1; 1 << 24])]);
    let started = Instant::now();
    let report = checked(folder.path(), &ValidateOptions { timeout: Some(Duration::ZERO), ..options() });
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(report.files[0].depth < Depth::Content);
    assert!(report.findings.iter().any(|finding| finding.rule.id == "file.unreadable"), "{:?}", report.findings);
}
