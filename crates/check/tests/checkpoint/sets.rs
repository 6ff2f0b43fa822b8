//! Sets of shards, with an index and without.

use max_weights_check::Level;

use super::support::{Fixture, Tensor, index, report, rules, safetensors};

const INDEX: &str = "model.safetensors.index.json";
const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";
const A: Tensor<'_> = ("a", "F32", &[2]);
const B: Tensor<'_> = ("b", "F32", &[3]);

/// A folder with an empty configuration.
fn model() -> Fixture {
    Fixture::new().with("config.json", "{}")
}

/// A whole set: `a` in the first shard and `b` in the second.
fn whole() -> Fixture {
    model().weights(ONE, &[A]).weights(TWO, &[B]).index(INDEX, 20, &[("a", ONE), ("b", TWO)])
}

#[test]
fn a_whole_set_has_no_findings() {
    let folder = whole();
    assert_eq!(folder.rules(), [""; 0]);
    assert_eq!(rules(&report(&folder.path().join(INDEX), Level::Structure)), [""; 0]);
}

#[test]
fn an_index_and_its_shards_disagree() {
    let remove = |folder: Fixture, name: &str| {
        std::fs::remove_file(folder.path().join(name)).expect("removed");
        folder
    };
    for (folder, rule) in [
        (whole().index(INDEX, 21, &[("a", ONE), ("b", TWO)]), "index.total-size"),
        (whole().index(INDEX, 20, &[("a", ONE), ("b", TWO), ("c", TWO)]), "index.missing-tensor"),
        (
            whole().index(INDEX, 20, &[("a", TWO), ("b", TWO)]).index(INDEX, 20, &[("a", TWO), ("b", ONE)]),
            "index.other-shard",
        ),
        (whole().weights(TWO, &[B, ("c", "F32", &[1])]), "index.unindexed-tensor"),
        (whole().weights(TWO, &[A, B]), "index.duplicate-tensor"),
        (remove(whole(), TWO), "index.missing-shard"),
        (whole().with(INDEX, "{\"weight_map\": "), "index.json"),
        (whole().with(INDEX, "{\"metadata\": {}}"), "index.weight-map"),
        (
            whole().with(
                INDEX,
                r#"{"metadata": {"version": "000012", "base_version": "000011", "delta_encoding": "xor", "compression_format": "zstd"},
                    "weight_map": {"a": "model-00001-of-00002.safetensors"}}"#,
            ),
            "index.delta",
        ),
        (whole().index(INDEX, 20, &[("a", "../elsewhere.safetensors"), ("b", TWO)]), "index.shard-name"),
    ] {
        assert_eq!(folder.rules(), [rule]);
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = whole();
    std::fs::remove_file(folder.path().join(ONE)).expect("removed");
    assert_eq!(
        folder.messages("index.missing-shard"),
        [format!("{ONE}: the shard is missing; the index puts 1 tensor into it")]
    );
    // Also where only the index is given.
    assert_eq!(rules(&report(&folder.path().join(INDEX), Level::Structure)), ["index.missing-shard"]);
}

#[test]
fn a_shard_that_the_index_does_not_name_is_an_orphan() {
    let folder = whole().weights("model-00001-of-00003.safetensors", &[A]);
    assert_eq!(folder.rules(), ["set.orphan-shard"]);
    let folder = whole().weights("model.safetensors", &[A, B]);
    assert_eq!(folder.rules(), ["set.file-and-index"]);
    // Files of other names are other checkpoints.
    assert_eq!(whole().weights("vision.safetensors", &[A]).rules(), [""; 0]);
}

#[test]
fn variants_have_indices_of_their_own() {
    let folder = whole().weights("model.fp16-00001-of-00001.safetensors", &[("a", "F16", &[2])]).index(
        "model.safetensors.index.fp16.json",
        4,
        &[("a", "model.fp16-00001-of-00001.safetensors")],
    );
    assert_eq!(folder.rules(), ["set.indexes"]);
}

#[test]
fn shards_without_an_index_are_a_set_by_their_names() {
    let folder = model().weights(ONE, &[A]).weights(TWO, &[B]);
    assert_eq!(folder.rules(), ["set.no-index"]);
    let folder = model().weights("model-00002-of-00004.safetensors", &[A]);
    assert_eq!(folder.rules(), ["directory.missing-shards"]);
    let messages = folder.messages("directory.missing-shards");
    assert!(messages[0].contains("1 of 4") && messages[0].contains("model-00001-of-00004.safetensors"), "{messages:?}");
    let folder = model().weights(ONE, &[A]).weights(TWO, &[A]);
    assert_eq!(folder.rules(), ["checkpoint.duplicate", "set.no-index"]);
}

#[test]
fn a_download_that_has_not_ended_is_named() {
    for name in ["model.safetensors.incomplete", "model.gguf.part", "x.bin.crdownload"] {
        assert_eq!(Fixture::new().with(name, "half of it").rules(), ["file.partial"], "{name}");
    }
}

#[test]
fn shards_of_two_versions_are_told_apart() {
    let folder = whole().with(TWO, safetensors(&[B], None));
    assert_eq!(folder.rules(), ["set.shard-metadata"]);
    let folder = whole().weights(TWO, &[("b", "BF16", &[6])]);
    assert_eq!(folder.rules(), ["set.shard-dtype"]);
    // A quantized set has shards of embeddings only, and these are of another dtype.
    let folder = model()
        .weights(ONE, &[("a", "I8", &[16])])
        .weights(TWO, &[("b", "BF16", &[2])])
        .with(INDEX, index(20, &[("a", ONE), ("b", TWO)]));
    assert_eq!(folder.rules(), [""; 0]);
}

/// A GGUF file of no tensors that is file `no` of `count`.
fn split(no: u16, count: u16) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0u64.to_le_bytes());
    file.extend(3u64.to_le_bytes());
    for (key, kind, value) in [("split.no", 2u32, no), ("split.count", 2, count)] {
        file.extend((key.len() as u64).to_le_bytes());
        file.extend(key.as_bytes());
        file.extend(kind.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    let key = "split.tensors.count";
    file.extend((key.len() as u64).to_le_bytes());
    file.extend(key.as_bytes());
    file.extend(5u32.to_le_bytes());
    file.extend(0i32.to_le_bytes());
    file
}

#[test]
fn files_of_a_gguf_set_are_compared() {
    let name = |number: u16| format!("m-{number:05}-of-00002.gguf");
    let folder = Fixture::new().with(&name(1), split(0, 2)).with(&name(2), split(1, 2));
    assert_eq!(folder.rules(), [""; 0]);
    assert_eq!(Fixture::new().with(&name(1), split(0, 2)).rules(), ["gguf.split-missing"]);
    let swapped = Fixture::new().with(&name(1), split(1, 2)).with(&name(2), split(0, 2));
    assert_eq!(swapped.rules(), ["gguf.split-no"]);
}
