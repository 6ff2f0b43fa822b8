//! Rules that are about no format alone, each raised by what breaks it.

use crate::legacy_files;
use std::fs;
use std::path::PathBuf;

use max_weights::budget::Short;
use max_weights::cast::{BlockScaled, CastOptions, cast, scale_block_rows};
use max_weights::checkpoint::{Checkpoint, ConversionRule, ConversionStep, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::{Error, Policy, Result};
use max_weights::format::index::{MAX_SHARDS, parse};
use max_weights::format::{HeaderLimits, HeaderOptions};
use max_weights::names::Template;
use max_weights::quant::{Encoding, dequantize, quantize};
use max_weights::tensor::Span;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn one_tensor(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7]].concat()
}

/// The one file of a new folder, of this name and content.
fn file(folder: &tempfile::TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    path
}

fn open(paths: &[PathBuf], policy: Policy, limits: HeaderLimits) -> Result<Checkpoint> {
    let format = HeaderOptions { policy, limits, ..HeaderOptions::default() };
    Checkpoint::open(paths, &OpenOptions::default().format(format))
}

fn strictly(paths: &[PathBuf]) -> Result<Checkpoint> {
    open(paths, Policy::Strict, HeaderLimits::default())
}

#[track_caller]
fn refused<T>(outcome: Result<T>, rule: &str) -> Error {
    let Err(error) = outcome else { panic!("accepted") };
    let fault = error.diagnostic().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(fault.rule.id, rule, "{fault}");
    error
}

#[test]
fn a_directory_in_a_list_of_files() {
    let folder = folder();
    let path = file(&folder, "a.safetensors", one_tensor("a"));
    refused(strictly(&[path, folder.path().to_path_buf()]), "file.directory");
}

#[test]
fn a_tar_archive_of_the_first_pytorch() {
    let folder = folder();
    let mut tar = vec![0; 1024];
    tar[..4].copy_from_slice(b"sys\0");
    tar[257..262].copy_from_slice(b"ustar");
    let error = refused(strictly(&[file(&folder, "a.pt", tar)]), "torch.tar");
    assert!(matches!(error, Error::Unsupported(_)));
}

#[test]
fn two_files_with_the_same_tensor() {
    let folder = folder();
    let paths = ["a.safetensors", "b.safetensors"].map(|name| file(&folder, name, one_tensor("same")));
    let error = refused(strictly(&paths), "checkpoint.duplicate");
    assert!(error.to_string().contains("a.safetensors and in "), "{error}");
}

#[test]
fn one_shard_of_several_is_opened_and_says_so() {
    let folder = folder();
    let path = file(&folder, "model-00002-of-00003.safetensors", one_tensor("a"));
    let opened = strictly(&[path]).expect("opened");
    let rules: Vec<&str> = opened.catalog().findings().iter().map(|fault| fault.rule.id).collect();
    assert_eq!(rules, ["checkpoint.shards-alone"]);
}

#[test]
fn an_index_that_cannot_be_read() {
    let folder = folder();
    let opened =
        |text: &[u8], limits| open(&[file(&folder, "model.safetensors.index.json", text)], Policy::Strict, limits);
    refused(opened(b"{\"weight_map\": {\"\xff\": 1}}", HeaderLimits::default()), "index.utf8");
    refused(
        opened(br#"{"metadata": {}, "metadata": {}, "weight_map": {}}"#, HeaderLimits::default()),
        "index.metadata",
    );
    refused(
        opened(br#"{"weight_map": {}}"#, HeaderLimits { header_bytes: 9, ..HeaderLimits::default() }),
        "index.too-long",
    );
    let shards: Vec<String> = (0..=MAX_SHARDS).map(|i| format!("\"t{i}\":\"{i}\"")).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", shards.join(","));
    refused(parse(index.as_bytes(), &HeaderOptions::default()), "index.shards");
}

#[test]
fn two_tensors_that_would_get_one_name() {
    let folder = folder();
    let paths = ["a", "b"].map(|name| file(&folder, &format!("{name}.safetensors"), one_tensor(name)));
    let opened = strictly(&paths).expect("opened");
    refused(opened.catalog().renamed(|_| Some("same".into())), "names.collision");
    assert_eq!(opened.catalog().renamed(|_| None).expect("as they are").table().name(1), "b");
}

#[test]
fn weights_that_are_not_what_a_rule_needs() {
    let folder = folder();
    let opened = strictly(&[file(&folder, "a.safetensors", one_tensor("e.1.w"))]).expect("opened");
    let template = |text| Template::parse(text).expect("a template");
    let rule = ConversionRule::new(vec![template("e.#.w")], vec![template("e")], vec![ConversionStep::Stack(0)])
        .expect("a rule");
    let converted = opened.catalog().converted(vec![rule]);
    assert!(converted.as_ref().is_err_and(|error| error.to_string().contains("'e.0.w', which belongs to it")));
    refused(converted, "names.conversion");
}

#[test]
fn findings_beyond_the_limit_of_a_legacy_file_are_counted() {
    let folder = folder();
    let saved = [legacy_files::Saved::floats("0", 1)];
    let mut bytes = legacy_files::Made::new(&saved, &["0"]).bytes;
    bytes.push(0);
    let path = file(&folder, "a.pt", bytes);
    for (findings, message) in [(0, "1 more of this kind"), (1, "")] {
        let opened =
            open(std::slice::from_ref(&path), Policy::Lenient, HeaderLimits { findings, ..HeaderLimits::default() });
        let opened = opened.expect("opened");
        let [fault] = opened.catalog().findings() else { panic!("one finding") };
        assert!(fault.rule.id == "torch-legacy.trailing-data" && fault.message.ends_with(message), "{fault}");
    }
}

#[test]
fn a_range_beyond_the_end_of_the_file() {
    for (start, len) in [(0, 9), (9, 0), (u64::MAX, 1)] {
        refused(Span::within(8, start, len), "span.outside");
    }
    let span = Span::within(8, 4, 4).expect("inside");
    refused(span.part(1, 4), "span.outside");
}

#[test]
fn a_budget_that_has_run_out() {
    let error = refused(Err::<(), _>(Short::Budget(9).into()), "memory.budget");
    assert!(error.to_string().contains("more than the 9 bytes"), "{error}");
}

/// The numerics have separate errors; here each has its rule, with the same sentence.
#[test]
fn dtypes_and_encodings_that_the_numerics_refuse() {
    let options = CastOptions::default();
    let pair = cast(DType::Complex64, DType::Float32, &[], &mut [], options);
    let (data, scales) = ([0; 8], [0; 4]);
    let matrix = BlockScaled {
        data: &data,
        dtype: DType::Float64,
        scales: &scales,
        scales_dtype: DType::Float32,
        rows: 1,
        cols: 1,
        block: (1, 1),
    };
    let scale = scale_block_rows(&matrix, 0..1, &mut [0; 4], DType::Float32, options);
    let target = dequantize(Encoding::Q4_0, &[0; 18], DType::Int8, &mut [0; 32], false);
    let encode = quantize(Encoding::Q4_K, &[0.0; 256], &mut [0; 144]);
    let cases = [
        (pair, "cast.pair", "complex64 cannot be converted to float32"),
        (scale, "cast.scale", "float64 cannot be dequantized by scales in float32 without loss"),
        (target, "quantization.target", "Q4_0 blocks decode to float32, float16 or bfloat16, not to int8"),
        (encode, "quantization.encode", "Q4_K blocks can be decoded, but not encoded"),
    ];
    for (outcome, rule, sentence) in cases {
        let refusal = outcome.expect_err("refused");
        assert_eq!(refusal.to_string(), sentence);
        let error = refused(Err::<(), Error>(refusal.into()), rule);
        assert!(matches!(&error, Error::Unsupported(fault) if fault.message == sentence), "{error}");
    }
    let lengths = Error::from(cast(DType::UInt8, DType::UInt8, &[0], &mut [], options).expect_err("lengths"));
    assert!(matches!(&lengths, Error::Argument(why) if why.starts_with("a cast of 1 elements of uint8")), "{lengths}");
}
