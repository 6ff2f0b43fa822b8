//! What Python and PyTorch read from their pickles, in every protocol, compared with this library (`tools/make_pickle_seeds.py`).

use std::fs;
use std::path::PathBuf;

use max_weights::format::pickle::{
    ArenaSlice, Danger, DictKind, GlobalUse, Leaf, NumpyDType, ObjectId, PersistentIds, PickleLimits, PickleObject,
    Pickled, TensorKind, leaves, read,
};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pickle"))
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).expect(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&bytes(name)).expect(name)
}

fn zip_pickle(name: &str) -> Pickled {
    let bytes = bytes(name);
    let pickled =
        read(&bytes, 0, &PickleLimits::default(), PersistentIds::Zip).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(pickled.consumed, bytes.len(), "{name}");
    pickled
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// A value in the form of the script's `describe`.
fn describe(pickled: &Pickled, id: ObjectId) -> Value {
    let objects = &pickled.objects;
    let all = |ids: &[ObjectId]| ids.iter().map(|id| describe(pickled, *id)).collect::<Value>();
    match objects.get(id) {
        PickleObject::None => json!(["none"]),
        PickleObject::Bool(value) => json!(["bool", value]),
        PickleObject::Int(value) => json!(["int", value.to_string()]),
        PickleObject::BigInt(_) => json!(["int", big(objects.bytes(id).unwrap()).to_string()]),
        PickleObject::Float(value) => json!(["float", hex(&value.to_le_bytes())]),
        PickleObject::Complex(re, im) => json!(["complex", re, im]),
        PickleObject::Text(_) => json!(["text", objects.text(id)]),
        PickleObject::Bytes(_) => json!(["bytes", hex(objects.bytes(id).unwrap())]),
        PickleObject::ByteArray(_) => json!(["bytearray", hex(objects.bytes(id).unwrap())]),
        PickleObject::Size(_) => {
            let dims = objects.elements(id).unwrap().iter().map(|id| match objects.get(*id) {
                PickleObject::Int(dim) => json!(dim),
                other => panic!("{other:?}"),
            });
            json!(["size", dims.collect::<Value>()])
        }
        PickleObject::List(elements) => json!(["list", all(elements)]),
        PickleObject::Tuple(elements) => json!(["tuple", all(elements)]),
        PickleObject::Set(elements) => json!(["set", sorted(all(elements))]),
        PickleObject::FrozenSet(elements) => json!(["frozenset", sorted(all(elements))]),
        PickleObject::Dict(dict) => {
            let kind = match dict.kind {
                DictKind::Dict => "dict",
                DictKind::OrderedDict => "OrderedDict",
                DictKind::DefaultDict(_) => "defaultdict",
                DictKind::Counter => "Counter",
            };
            let entries =
                dict.entries.iter().map(|(key, value)| json!([describe(pickled, *key), describe(pickled, *value)]));
            let metadata = dict.state.and_then(|state| objects.entry(state, "_metadata"));
            let mut described = vec![json!(kind), entries.collect::<Value>()];
            described.extend(metadata.map(|metadata| describe(pickled, metadata)));
            Value::Array(described)
        }
        PickleObject::DType(dtype) => json!(["dtype", dtype.name()]),
        PickleObject::Device(_) => json!(["device", objects.text(id)]),
        PickleObject::NumpyScalar { dtype, data } => json!(["scalar", dtype.code(), data_hex(pickled, *data, *dtype)]),
        PickleObject::NumpyArray { dtype, shape, data, .. } => {
            let shape = objects.elements(shape.unwrap()).unwrap().iter().map(|id| match objects.get(*id) {
                PickleObject::Int(dim) => json!(dim),
                other => panic!("{other:?}"),
            });
            json!(["array", dtype.code(), shape.collect::<Value>(), data_hex(pickled, *data, *dtype)])
        }
        PickleObject::Tensor(_) => tensor(pickled, id, "tensor", None),
        PickleObject::Parameter { tensor: inner, requires_grad, .. } => {
            tensor(pickled, *inner, "parameter", Some(*requires_grad))
        }
        other => panic!("{other:?}"),
    }
}

fn data_hex(pickled: &Pickled, data: Option<ArenaSlice>, dtype: NumpyDType) -> String {
    assert!(dtype.bytes > 0);
    hex(pickled.objects.bytes_of(data.expect("data")))
}

fn sorted(values: Value) -> Value {
    let Value::Array(mut values) = values else { panic!("no list") };
    values.sort_by_key(|value| value.to_string().replace(',', ", "));
    Value::Array(values)
}

fn big(bytes: &[u8]) -> i128 {
    let fill = if bytes.last().unwrap() & 0x80 == 0 { 0 } else { 0xFF };
    let mut wide = [fill; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

fn tensor(pickled: &Pickled, id: ObjectId, kind: &str, requires_grad: Option<bool>) -> Value {
    let PickleObject::Tensor(id) = pickled.objects.get(id) else { panic!("no tensor") };
    let tensor = pickled.tensor(*id);
    let grad = requires_grad.unwrap_or(tensor.requires_grad);
    let shape = tensor.shape().unwrap();
    let (word, strided) = match &tensor.kind {
        TensorKind::Strided(strided) => ("strided", strided),
        TensorKind::Flipped { strided, conjugate, negative } => {
            assert_eq!((conjugate, negative), (&true, &false));
            ("flipped", strided)
        }
        TensorKind::Quantized { integers, .. } => ("quantized", integers),
        TensorKind::Sparse { values, .. } => {
            let values = describe(pickled, *values);
            assert_eq!(tensor.parts().len(), 2);
            return json!([kind, values[1], shape, grad, "sparse"]);
        }
        TensorKind::Meta { dtype, strides, .. } => return json!([kind, dtype.name(), shape, grad, "meta", **strides]),
        other => panic!("{other:?}"),
    };
    let storage = pickled.storage(strided.storage);
    json!([kind, strided.dtype.name(), shape, grad, word, *strided.strides, strided.offset, storage.bytes()])
}

#[test]
fn plain_values_of_every_protocol_are_those_of_python() {
    for protocol in 0..6 {
        let bytes = bytes(&format!("values-{protocol}.pkl"));
        let pickled = read(&bytes, 0, &PickleLimits::default(), PersistentIds::Refused).unwrap();
        assert_eq!(
            describe(&pickled, pickled.root),
            expected(&format!("values-{protocol}.json")),
            "protocol {protocol}"
        );
    }
}

#[test]
fn checkpoints_of_every_protocol_are_those_of_torch() {
    for (name, protocol) in ["state", "kinds"].into_iter().flat_map(|name| (0..6).map(move |protocol| (name, protocol)))
    {
        let pickled = zip_pickle(&format!("{name}-{protocol}.pkl"));
        let described = describe(&pickled, pickled.root);
        assert_eq!(described, expected(&format!("{name}-{protocol}.json")), "{name}, protocol {protocol}");
        assert!(pickled.globals.iter().all(|global| global.known.is_some()), "{:?}", pickled.globals);
    }
}

#[test]
fn the_pickles_of_a_legacy_file_follow_one_another() {
    let bytes = bytes("state-legacy.pt");
    let mut at = 0;
    let mut next = |persistent| {
        let pickled = read(&bytes[at..], at as u64, &PickleLimits::default(), persistent).unwrap();
        at += pickled.consumed;
        pickled
    };
    let magic = next(PersistentIds::Refused);
    assert_eq!(big(magic.objects.bytes(magic.root).unwrap()), 0x1950_a86a_20f9_469c_fc6c);
    let version = next(PersistentIds::Refused);
    assert_eq!(version.objects.get(version.root), &PickleObject::Int(1001));
    next(PersistentIds::Refused);
    let state = next(PersistentIds::Legacy);
    assert_eq!(describe(&state, state.root), expected("state-legacy.json"));
    let keys = next(PersistentIds::Refused);
    let mut keys: Vec<&str> =
        keys.objects.elements(keys.root).unwrap().iter().map(|key| keys.objects.text(*key).unwrap()).collect();
    let mut named: Vec<&str> = state.storages.iter().map(|storage| &*storage.key).collect();
    keys.sort_unstable();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, keys);
    assert!(at < bytes.len(), "the storages follow");
}

fn names(pickled: &Pickled) -> Vec<(String, bool)> {
    let named = leaves(pickled, &PickleLimits::default()).unwrap();
    named.into_iter().map(|Leaf { name, tensor, .. }| (name, tensor.is_some())).collect()
}

#[test]
fn nested_dicts_get_names_with_dots() {
    let pickled = zip_pickle("state-2.pkl");
    let named = names(&pickled);
    let tensors: Vec<&str> = named.iter().filter(|(_, tensor)| *tensor).map(|(name, _)| &**name).collect();
    assert_eq!(
        tensors,
        [
            "model.embed.weight",
            "model.head.weight",
            "model.view",
            "model.turned",
            "model.scalar",
            "model.empty",
            "model.bias",
            "optimizer.state.0.step",
            "optimizer.state.0.exp_avg",
            "list.0",
        ]
    );
    let others: Vec<&str> = named.iter().filter(|(_, tensor)| !*tensor).map(|(name, _)| &**name).collect();
    assert_eq!(others, ["optimizer.param_groups", "epoch", "list.1", "size"]);
}

#[test]
fn the_tensors_of_a_saved_module_have_the_names_of_its_state_dict() {
    let pickled = zip_pickle("module.pkl");
    let mut tensors: Vec<String> =
        names(&pickled).into_iter().filter(|(_, tensor)| *tensor).map(|(name, _)| name).collect();
    tensors.sort();
    assert_eq!(json!(tensors), expected("module.json"));
    let of_libraries = pickled.globals.iter().filter(|global| global.danger == Danger::Library);
    let of_libraries: Vec<String> = of_libraries.map(GlobalUse::full_name).collect();
    assert!(of_libraries.contains(&"torch.nn.modules.linear.Linear".to_owned()), "{of_libraries:?}");
    assert!(matches!(pickled.objects.get(pickled.root), PickleObject::Opaque(_)));
}

#[test]
fn a_distributed_tensor_gives_its_local_shard() {
    let pickled = zip_pickle("dtensor.pkl");
    assert_eq!(names(&pickled), [("w".to_owned(), true), ("w._local_tensor".to_owned(), true)]);
    let named = leaves(&pickled, &PickleLimits::default()).unwrap();
    let whole = pickled.tensor(named[0].tensor.unwrap());
    let TensorKind::Wrapper { class, shape, .. } = &whole.kind else { panic!("{whole:?}") };
    assert_eq!(
        (pickled.global(*class).full_name().as_str(), &**shape),
        ("torch.distributed.tensor.DTensor", &[2, 3][..])
    );
    assert!(whole.not_mappable().is_some());
    let local = pickled.tensor(named[1].tensor.unwrap()).strided().expect("an array");
    assert_eq!((&*local.shape, &*local.strides), (&[2, 3][..], &[3, 1][..]));
    assert!(pickled.globals.iter().all(|global| global.known.is_some()), "{:?}", pickled.globals);
}

/// The pickle of a zip file whose first entry is stored, as every file of torch.save is.
fn first_entry(path: &std::path::Path) -> Vec<u8> {
    let file = fs::read(path).unwrap();
    let u16 = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    file[30 + u16(26) + u16(28)..].to_vec()
}

fn models() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/.models");
    let folder = PathBuf::from(std::env::var_os("MAX_WEIGHTS_MODELS").unwrap_or_else(|| default.into()));
    if !folder.is_dir() {
        eprintln!("no folder {}: run tools/get_models.py", folder.display());
        return None;
    }
    Some(folder)
}

#[test]
fn real_files_are_read() {
    let Some(models) = models() else { return };
    for (name, count) in [("crepe-tiny.pth", 44), ("crepe-full.pth", 44), ("derived/layer0.bf16.pt", 16)] {
        let bytes = first_entry(&models.join(name));
        let pickled = read(&bytes, 0, &PickleLimits::default(), PersistentIds::Zip).unwrap();
        let named = leaves(&pickled, &PickleLimits::default()).unwrap();
        assert_eq!(named.iter().filter(|leaf| leaf.tensor.is_some()).count(), count, "{name}");
    }
    for net in ["alex", "squeeze", "vgg"] {
        let bytes = fs::read(models.join(format!("lpips-v0.1-{net}.legacy.pth"))).unwrap();
        let mut at = 0;
        for persistent in
            [PersistentIds::Refused, PersistentIds::Refused, PersistentIds::Refused, PersistentIds::Legacy]
        {
            let pickled = read(&bytes[at..], at as u64, &PickleLimits::default(), persistent).unwrap();
            at += pickled.consumed;
            if persistent == PersistentIds::Legacy {
                let named = leaves(&pickled, &PickleLimits::default()).unwrap();
                assert!(named.iter().all(|leaf| leaf.tensor.is_some() && leaf.name.ends_with("weight")), "{named:?}");
                assert_eq!(named.len(), if net == "squeeze" { 7 } else { 5 });
            }
        }
    }
}
