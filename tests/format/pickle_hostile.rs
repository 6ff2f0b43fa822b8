//! Pickles that attack, lie, or ask for too much: each case is a test. Nothing of them is ever called; what is tested is that they are
//! refused with the rule and the place, or kept as placeholders that are listed.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use std::fs;

use max_weights::error::Diagnostic;
use max_weights::format::pickle::{
    Danger, GlobalUse, PersistentIds, PickleLimits, PickleObject, Pickled, TensorKind, globals, leaves, read,
};

fn fault(error: &max_weights::error::Error) -> Diagnostic {
    error.diagnostic().expect("a fault").clone()
}

fn read_with(bytes: &[u8], limits: &PickleLimits) -> Result<Pickled, Diagnostic> {
    read(bytes, 100, limits, PersistentIds::Zip).map_err(|error| fault(&error))
}

fn accepted(bytes: &[u8]) -> Pickled {
    read_with(bytes, &PickleLimits::default()).unwrap_or_else(|fault| panic!("{fault}"))
}

/// The fault of a pickle that must be refused, by this rule, at this byte.
#[track_caller]
fn refused(bytes: &[u8], rule: &str, at: usize) -> Diagnostic {
    let fault = read_with(bytes, &PickleLimits::default()).expect_err("refused");
    assert_eq!((fault.rule.id, fault.offset), (rule, Some(100 + at as u64)), "{fault}");
    assert!(!fault.help.is_empty(), "{fault}");
    fault
}

/// Refused by a limit, which the pickle keeps if it is one higher.
#[track_caller]
fn limited(bytes: &[u8], set: impl Fn(&mut PickleLimits, usize), most: usize) {
    let mut limits = PickleLimits::default();
    set(&mut limits, most);
    read_with(bytes, &limits).unwrap_or_else(|fault| panic!("{fault}"));
    set(&mut limits, most - 1);
    let fault = read_with(bytes, &limits).expect_err("beyond the limit");
    assert!(matches!(fault.rule.id, "pickle.limit" | "pickle.rank"), "{fault}");
}

/// The only global of a pickle, which must have opened with the call of it as a placeholder.
#[track_caller]
fn called(bytes: &[u8]) -> GlobalUse {
    let pickled = accepted(bytes);
    assert!(
        matches!(pickled.objects.get(pickled.root), PickleObject::Opaque(_)),
        "{:?}",
        pickled.objects.get(pickled.root)
    );
    let opaque = pickled.objects.opaque(pickled.root).unwrap();
    assert!(opaque.position >= 100);
    let global = pickled.global(opaque.global).clone();
    assert_eq!(pickled.globals.len(), 1);
    global
}

#[track_caller]
fn dangerous(bytes: &[u8], name: &str) {
    let global = called(bytes);
    assert_eq!((global.full_name().as_str(), global.danger), (name, Danger::RunsCode));
}

// Calls.

#[test]
fn os_system_is_listed_and_never_called() {
    dangerous(b"\x80\x02cos\nsystem\nX\x07\x00\x00\x00echo hi\x85R.", "os.system");
}

#[test]
fn posix_and_nt_are_os() {
    dangerous(b"cposix\nsystem\n(S'echo hi'\ntR.", "posix.system");
    dangerous(b"cnt\nsystem\n(S'echo hi'\ntR.", "nt.system");
}

#[test]
fn builtins_eval_under_both_names() {
    dangerous(b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval");
    dangerous(b"c__builtin__\nexec\n(S'1'\ntR.", "builtins.exec");
    // What it takes decides: the scanner looks at that, and here it is never called.
    assert_eq!(called(b"cbuiltins\ngetattr\n(S'1'\nS'2'\ntR.").danger, Danger::Library);
}

#[test]
fn pkgutil_resolve_name_is_dangerous_by_itself() {
    dangerous(b"\x80\x04\x8c\x07pkgutil\x8c\x0cresolve_name\x93\x8c\tos.system\x85R.", "pkgutil.resolve_name");
}

#[test]
fn a_submodule_of_a_dangerous_module_is_dangerous() {
    dangerous(
        b"casyncio.unix_events\n_UnixSubprocessTransport._start\n(tR.",
        "asyncio.unix_events._UnixSubprocessTransport._start",
    );
    dangerous(b"cidlelib.run\nExecutive.runcode\n(tR.", "idlelib.run.Executive.runcode");
}

#[test]
fn a_dotted_name_does_not_reach_through_a_known_module() {
    dangerous(
        b"\x80\x04\x8c\x13torch.serialization\x8c\tos.system\x93\x8c\x01a\x85R.",
        "torch.serialization.os.system",
    );
    dangerous(b"\x80\x04\x8c\x05torch\x8c\x19_utils._rebuild_tensor_v2\x93)R.", "torch._utils._rebuild_tensor_v2");
}

#[test]
fn inst_and_obj_are_calls_too() {
    dangerous(b"(S'echo hi'\nios\nsystem\n.", "os.system");
    dangerous(b"(cos\nsystem\nS'echo hi'\no.", "os.system");
    dangerous(b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92.", "os.system");
    dangerous(b"\x80\x02cos\nsystem\n)\x81.", "os.system");
}

#[test]
fn a_pickle_that_breaks_after_its_payload_still_lists_it() {
    let bytes = b"cos\nsystem\n(S'echo hi'\ntR0K\x01K\x02a.";
    let fault = refused(bytes, "pickle.target", 30);
    let (listed, outcome) = globals(bytes, 100, &PickleLimits::default(), PersistentIds::Zip);
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].full_name().as_str(), listed[0].offset), ("os.system", 100));
    assert_eq!(outcome.unwrap_err().to_string(), fault.to_string());
}

#[test]
fn the_result_of_an_unknown_call_may_be_called_and_stays_unknown() {
    let pickled = accepted(b"cbuiltins\ngetattr\n(S'a'\nS'b'\ntR(S'echo hi'\ntR.");
    assert_eq!(pickled.objects.iter().filter(|(_, object)| matches!(object, PickleObject::Opaque(_))).count(), 2);
}

#[test]
fn what_is_no_function_is_not_called() {
    refused(b"K\x01)R.", "pickle.call", 3);
    refused(b"cos\nsystem\nK\x01R.", "pickle.call", 13);
    refused(b"ctorch\nfloat32\n)R.", "pickle.call", 16);
    refused(b"K\x01K\x02\x93.", "pickle.global", 4);
}

#[test]
fn numbers_in_text_that_are_none() {
    refused(b"Ione\n.", "pickle.number", 0);
    refused(b"Lx\n.", "pickle.number", 0);
}

#[test]
fn an_unknown_class_keeps_its_state_and_its_tensors_are_read() {
    let tensor = tensor(b"K\x00K\x02\x85K\x01\x85");
    let bytes = [b"\x80\x02c__main__\nModel\n)\x81}U\x06weight".as_slice(), &tensor[..], b"sb."].concat();
    let pickled = accepted(&bytes);
    let names = leaves(&pickled, &PickleLimits::default()).unwrap();
    let names: Vec<(&str, bool)> = names.iter().map(|leaf| (&*leaf.name, leaf.tensor.is_some())).collect();
    assert_eq!(names, [("object", false), ("weight", true)]);
    assert_eq!(pickled.globals[0].danger, Danger::NeedsTrust);
}

// Changes of the wrong value (CVE-2026-24747).

#[test]
fn setitem_is_for_dicts_only() {
    let tensor = tensor(b"K\x00K\x02\x85K\x01\x85");
    for (target, at) in
        [(&b"]"[..], 5), (b")", 5), (b"K\x07", 6), (b"ctorch\nfloat32\n", 19), (&tensor, tensor.len() + 4)]
    {
        refused(&[target, b"K\x00K\x01s."].concat(), "pickle.target", at);
        refused(&[target, b"(K\x00K\x01u."].concat(), "pickle.target", at + 1);
    }
}

#[test]
fn append_is_for_lists_and_additems_for_sets() {
    refused(b"}K\x00a.", "pickle.target", 3);
    refused(b"}(K\x00e.", "pickle.target", 4);
    refused(b"](K\x00\x90.", "pickle.target", 4);
}

#[test]
fn build_is_for_objects_with_attributes() {
    let tensor = tensor(b"K\x00K\x02\x85K\x01\x85");
    for target in [&b"]"[..], b"}", b"K\x07", b"ctorch\nTensor\n", b"ccollections\nOrderedDict\n", &tensor] {
        refused(&[target, b"}b."].concat(), "pickle.target", target.len() + 1);
    }
    refused(b"ccollections\nOrderedDict\n)RK\x01b.", "pickle.target", 29);
}

#[test]
fn a_key_that_python_cannot_have() {
    refused(b"}]K\x01s.", "pickle.dict", 4);
    refused(b"(]K\x01d.", "pickle.dict", 4);
    refused(b"}(K\x01u.", "pickle.dict", 4);
}

#[test]
fn a_key_that_is_set_again_keeps_its_place_and_has_the_last_value() {
    let pickled =
        accepted(b"}(U\x01aK\x01U\x01bK\x02U\x01aK\x03K\x01K\x04\x88K\x05G\x3f\xf0\x00\x00\x00\x00\x00\x00K\x06u.");
    let dict = pickled.objects.dict(pickled.root).unwrap();
    let values: Vec<&PickleObject> = dict.entries.iter().map(|(_, value)| pickled.objects.get(*value)).collect();
    assert_eq!(values, [&PickleObject::Int(3), &PickleObject::Int(2), &PickleObject::Int(6)]);
}

// Tensors.

fn storage(elements: &[u8]) -> Vec<u8> {
    [b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpu".as_slice(), elements, b"tQ"].concat()
}

fn tensor_of(elements: &[u8], place: &[u8]) -> Vec<u8> {
    [b"ctorch._utils\n_rebuild_tensor_v2\n(".as_slice(), &storage(elements), place, b"\x89NtR"].concat()
}

/// A tensor of a storage of eight floats.
fn tensor(place: &[u8]) -> Vec<u8> {
    tensor_of(b"K\x08", place)
}

#[track_caller]
fn bad_tensor(place: &[u8], rule: &str) -> Diagnostic {
    let bytes = tensor(place);
    refused(&[&bytes[..], b"."].concat(), rule, bytes.len() - 1)
}

#[test]
fn negative_strides_offsets_and_sizes() {
    bad_tensor(b"K\x01K\x02\x85J\xff\xff\xff\xff\x85", "pickle.negative");
    bad_tensor(b"J\xff\xff\xff\xffK\x02\x85K\x01\x85", "pickle.negative");
    bad_tensor(b"K\x00J\xff\xff\xff\xff\x85K\x01\x85", "pickle.negative");
    let bytes = [tensor_of(b"J\xff\xff\xff\xff", b"K\x00K\x02\x85K\x01\x85"), b".".to_vec()].concat();
    let fault = read_with(&bytes, &PickleLimits::default()).expect_err("refused");
    assert_eq!(fault.rule.id, "pickle.negative");
}

#[test]
fn a_storage_smaller_than_its_tensor() {
    for place in [
        &b"K\x00K\x09\x85K\x01\x85"[..],
        b"K\x01K\x08\x85K\x01\x85",
        b"K\x00K\x02K\x02\x86K\x07K\x02\x86",
        b"K\x08))",
        b"K\x00K\x02\x85M\xff\xff\x85",
    ] {
        let fault = bad_tensor(place, "pickle.extent");
        assert!(fault.message.contains("its storage has 8"), "{fault}");
    }
    for place in
        [&b"K\x00K\x08\x85K\x01\x85"[..], b"K\x07))", b"K\x00K\x02K\x02\x86K\x05K\x02\x86", b"K\xffK\x00\x85K\x01\x85"]
    {
        accepted(&[&tensor(place)[..], b"."].concat());
    }
}

#[test]
fn sizes_whose_product_or_sum_is_no_number() {
    let most = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let two = [&b"K\x00"[..], most, most, b"\x86K\x00K\x00\x86"].concat();
    bad_tensor(&two, "pickle.extent");
    bad_tensor(&[&b"K\x00"[..], most, b"\x85", most, b"\x85"].concat(), "pickle.extent");
    bad_tensor(&[most, &b"K\x02\x85K\x01\x85"[..]].concat(), "pickle.extent");
    bad_tensor(b"K\x00\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00\x85K\x00\x85", "pickle.tensor");
}

#[test]
fn a_storage_of_more_bytes_than_there_are() {
    let bytes = [&storage(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f")[..], b"."].concat();
    refused(&bytes, "pickle.storage", bytes.len() - 2);
}

#[test]
fn a_shape_and_strides_of_different_lengths() {
    bad_tensor(b"K\x00K\x02\x85)", "pickle.rank");
}

#[test]
fn arguments_of_the_wrong_kind() {
    bad_tensor(b"K\x00U\x01aK\x01\x85", "pickle.tensor");
    bad_tensor(b"NK\x02\x85K\x01\x85", "pickle.tensor");
    bad_tensor(b"K\x00]]", "pickle.tensor");
    refused(b"ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x00))\x89NtR.", "pickle.call", 43);
    refused(b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "pickle.call", 34);
    refused(b"ctorch._utils\n_rebuild_parameter\n(K\x01\x89NtR.", "pickle.call", 39);
}

#[test]
fn one_storage_of_two_sizes() {
    let bytes = [b"(".as_slice(), &storage(b"K\x08"), &storage(b"K\x09"), b"t."].concat();
    refused(&bytes, "pickle.storage-conflict", bytes.len() - 3);
    let pickled = accepted(&[b"(".as_slice(), &storage(b"K\x08"), &storage(b"K\x08"), b"t."].concat());
    assert_eq!(pickled.storages.len(), 1);
}

#[test]
fn a_storage_of_no_storage_class() {
    refused(b"(U\x07storagecos\nsystem\nU\x010U\x03cpuK\x01tQ.", "pickle.storage", 32);
    refused(b"(U\x05otherctorch\nFloatStorage\nU\x010U\x03cpuK\x01tQ.", "pickle.persistent", 39);
    refused(b"K\x01Q.", "pickle.persistent", 2);
    refused(b"Psome text\n.", "pickle.persistent", 0);
    let error = read(&storage(b"K\x08"), 0, &PickleLimits::default(), PersistentIds::Refused).expect_err("refused");
    assert_eq!(fault(&error).rule.id, "pickle.persistent");
}

#[test]
fn a_view_that_leaves_its_storage() {
    let view = |offset: &[u8]| {
        [b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x08(U\x011".as_slice(), offset, b"K\x04ttQ."].concat()
    };
    let legacy =
        |bytes: &[u8]| read(bytes, 0, &PickleLimits::default(), PersistentIds::Legacy).map_err(|error| fault(&error));
    assert_eq!(legacy(&view(b"K\x05")).expect_err("refused").rule.id, "pickle.view");
    let pickled = legacy(&view(b"K\x04")).unwrap();
    assert_eq!((pickled.storages[0].bytes(), pickled.storages[0].reach()), (32, 16));
}

#[test]
fn calls_within_calls_are_not_followed() {
    let mut bytes = b"ctorch._tensor\n_rebuild_from_type_v2\nq\x00(h\x00ctorch\nTensor\nq\x01)}tq\x02".to_vec();
    for _ in 0..1000 {
        bytes.extend(b"0(h\x00h\x01h\x02}tq\x02");
    }
    bytes.extend(b"0h\x00h\x02R.");
    refused(&bytes, "pickle.call", bytes.len() - 2);
}

#[test]
fn text_of_python_2_is_utf8_or_latin1() {
    let pickled = accepted(b"(U\x02\xc3\xa9U\x01\xe9S'\\xe9'\nt.");
    for id in pickled.objects.elements(pickled.root).unwrap() {
        assert_eq!(pickled.objects.text(*id), Some("é"));
    }
}

#[test]
fn a_numpy_array_of_another_size_than_its_bytes() {
    let array = |size: &[u8]| {
        let dtype = b"cnumpy\ndtype\n(U\x02f4\x89\x88tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb";
        let start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01";
        [start.as_slice(), size, dtype, b"\x89U\x08\xff\x00\x00\x00\x00\x00\x00\x00tb."].concat()
    };
    let pickled = accepted(&array(b"K\x02\x85"));
    assert!(matches!(pickled.objects.get(pickled.root), PickleObject::NumpyArray { data: Some(_), .. }));
    let bytes = array(b"K\x03\x85");
    refused(&bytes, "pickle.numpy", bytes.len() - 2);
}

#[test]
fn metadata_of_a_tensor_is_honoured_or_refused() {
    let with = |metadata: &[u8]| {
        let bytes = tensor(b"K\x00K\x02\x85K\x01\x85");
        [&bytes[..bytes.len() - 2], metadata, b"tR."].concat()
    };
    let flipped = accepted(&with(b"}U\x03neg\x88s"));
    assert!(matches!(flipped.tensors[0].kind, TensorKind::Flipped { conjugate: false, negative: true, .. }));
    assert!(accepted(&with(b"}")).tensors[0].strided().is_some());
    assert_eq!(
        read_with(&with(b"}U\x01x\x88s"), &PickleLimits::default()).expect_err("unknown").rule.id,
        "pickle.call"
    );
}

// Limits.

#[test]
fn limit_on_bytes() {
    limited(b"\x80\x02N.", |limits, most| limits.pickle_bytes = most, 4);
}

#[test]
fn limit_on_operations() {
    limited(b"NNN.", |limits, most| limits.operations = most, 4);
}

#[test]
fn limit_on_objects() {
    limited(b"]]].", |limits, most| limits.objects = most, 3);
}

#[test]
fn limit_on_the_memo() {
    limited(b"Nq\x00q\x01q\x09.", |limits, most| limits.memo = most, 3);
}

#[test]
fn limit_on_the_stack() {
    limited(b"NNN.", |limits, most| limits.stack = most, 3);
}

#[test]
fn limit_on_marks() {
    limited(b"((NNtt.", |limits, most| limits.marks = most, 2);
}

#[test]
fn limit_on_strings() {
    limited(b"U\x03abc.", |limits, most| limits.string_bytes = most, 3);
    limited(b"S'ab'\n.", |limits, most| limits.string_bytes = most, 4);
}

#[test]
fn limit_on_integers() {
    limited(b"\x8a\x03abc.", |limits, most| limits.integer_bytes = most, 3);
    limited(b"L12345L\n.", |limits, most| limits.integer_bytes = most, 6);
}

#[test]
fn limit_on_the_names_of_globals_and_on_their_number() {
    limited(b"cab\ncd\n.", |limits, most| limits.global_bytes = most, 4);
    limited(b"ca\nb\nca\nc\nca\nb\n.", |limits, most| limits.globals = most, 2);
}

#[test]
fn limit_on_rank() {
    let bytes = [&tensor(b"K\x00K\x01K\x01\x86K\x01K\x01\x86")[..], b"."].concat();
    limited(&bytes, |limits, most| limits.rank = most, 2);
}

#[test]
fn limit_on_depth_concerns_what_leads_to_tensors() {
    let nested = |inside: &[u8], depth: usize| {
        let mut bytes = b"}U\x01a".repeat(depth);
        bytes.extend(inside);
        bytes.extend(b"s".repeat(depth));
        bytes.push(b'.');
        accepted(&bytes)
    };
    let tensor = tensor(b"K\x00K\x02\x85K\x01\x85");
    let limits = PickleLimits { depth: 5, ..PickleLimits::default() };
    assert_eq!(leaves(&nested(&tensor, 5), &limits).unwrap()[0].name, "a.a.a.a.a");
    let error = leaves(&nested(&tensor, 6), &limits).expect_err("too deep");
    assert_eq!(fault(&error).rule.id, "pickle.limit");
    assert_eq!(leaves(&nested(b"K\x01", 100_000), &limits).unwrap()[0].name, "a.a.a.a.a");
}

#[test]
fn limit_on_names() {
    // Each dict holds the one before twice: a thousand bytes, and 2^60 names.
    let mut bytes = b"}U\x01aK\x01sq\x00".to_vec();
    for _ in 0..60 {
        bytes.extend(b"0}(U\x01ah\x00U\x01bh\x00uq\x00");
    }
    bytes.push(b'.');
    let error = leaves(&accepted(&bytes), &PickleLimits::default()).expect_err("names without end");
    assert_eq!(fault(&error).rule.id, "pickle.leaves");
    let few = PickleLimits { leaves: 3, ..PickleLimits::default() };
    assert!(leaves(&accepted(b"}(K\x01NK\x02NK\x03Nu."), &few).is_ok());
    assert!(leaves(&accepted(b"}(K\x01NK\x02NK\x03NK\x04Nu."), &few).is_err());
}

#[test]
fn a_memo_index_of_four_billion_takes_no_memory() {
    let pickled = accepted(b"K\x05r\xff\xff\xff\xff0j\xff\xff\xff\xff.");
    assert_eq!(pickled.objects.get(pickled.root), &PickleObject::Int(5));
    refused(b"h\x00.", "pickle.memo", 0);
    refused(b"Nj\xff\xff\xff\xff.", "pickle.memo", 1);
}

#[test]
fn many_tuples_in_one_another() {
    let mut bytes = b")".to_vec();
    bytes.extend(b"\x85".repeat(400_000));
    bytes.push(b'.');
    let pickled = accepted(&bytes);
    assert_eq!(leaves(&pickled, &PickleLimits::default()).unwrap().len(), 1);
}

#[test]
fn marks_in_one_another_end_at_the_limit() {
    let fault = read_with(&b"(".repeat(1_000_000), &PickleLimits::default()).expect_err("too deep");
    assert_eq!((fault.rule.id, fault.offset), ("pickle.limit", Some(100 + 10_000)));
}

#[test]
fn a_string_of_more_bytes_than_there_are() {
    for bytes in
        [&b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff."[..], b"X\xff\xff\xff\xff.", b"\x8e\x00\x00\x00\x00\x00\x00\x00\x80."]
    {
        let fault = read_with(bytes, &PickleLimits::default()).expect_err("refused");
        assert_eq!(fault.rule.id, "pickle.truncated", "{fault}");
    }
    refused(b"T\xff\xff\xff\xff.", "pickle.text", 0);
}

#[test]
fn a_list_copied_into_many_sets() {
    let mut bytes = b"](".to_vec();
    bytes.extend(b"K\x01".repeat(1000));
    bytes.extend(b"eq\x000cbuiltins\nset\nq\x010");
    for _ in 0..1000 {
        bytes.extend(b"h\x01h\x00\x85R");
    }
    bytes.push(b'.');
    assert_eq!(read_with(&bytes, &PickleLimits::default()).expect_err("a bomb").rule.id, "pickle.limit");
}

// Values that contain themselves, and names.

#[test]
fn a_dict_that_contains_itself_is_a_leaf_where_it_comes_again() {
    let tensor = tensor(b"K\x00K\x02\x85K\x01\x85");
    let bytes = [b"}q\x00(U\x04selfh\x00U\x01w".as_slice(), &tensor, b"u."].concat();
    let names = leaves(&accepted(&bytes), &PickleLimits::default()).unwrap();
    assert_eq!(names.iter().map(|leaf| &*leaf.name).collect::<Vec<_>>(), ["self", "w"]);
    assert_eq!(names[0].tensor, None);
}

#[test]
fn two_tensors_of_one_name_are_an_error_and_other_values_get_a_number() {
    let tensor = tensor(b"K\x00K\x02\x85K\x01\x85");
    let twice = [b"}(U\x03a.b".as_slice(), &tensor, b"U\x01a}U\x01b", &tensor, b"su."].concat();
    let error = fault(&leaves(&accepted(&twice), &PickleLimits::default()).expect_err("a guess"));
    assert_eq!((error.rule.id, error.tensor.as_deref()), ("pickle.same-name", Some("a.b")));
    let once = [b"}(U\x03a.bNU\x01a}U\x01b".as_slice(), &tensor, b"sK\x07NU\x017Nu."].concat();
    let names = leaves(&accepted(&once), &PickleLimits::default()).unwrap();
    let names: Vec<(&str, bool)> = names.iter().map(|leaf| (&*leaf.name, leaf.tensor.is_some())).collect();
    assert_eq!(names, [("a.b#2", false), ("a.b", true), ("7", false), ("7#2", false)]);
}

#[test]
fn a_bare_tensor_has_a_name() {
    let pickled = accepted(&[&tensor(b"K\x00K\x02\x85K\x01\x85")[..], b"."].concat());
    assert_eq!(leaves(&pickled, &PickleLimits::default()).unwrap()[0].name, "tensor");
    assert_eq!(leaves(&accepted(b"N."), &PickleLimits::default()).unwrap()[0].name, "object");
    assert!(leaves(&accepted(b"}."), &PickleLimits::default()).unwrap().is_empty());
}

// Instructions.

#[test]
fn instructions_that_are_refused_by_name() {
    for (opcode, name) in
        [(0x82, "EXT1"), (0x83, "EXT2"), (0x84, "EXT4"), (0x97, "NEXT_BUFFER"), (0x98, "READONLY_BUFFER")]
    {
        let fault = refused(&[b'N', opcode, 1, 1, 1, 1, b'.'], "pickle.opcode", 1);
        assert!(fault.message.contains(name), "{fault}");
    }
    refused(b"\xff.", "pickle.opcode", 0);
    refused(b"\x80\x06N.", "pickle.protocol", 0);
}

#[test]
fn an_empty_stack_and_a_missing_mark() {
    for bytes in [&b"."[..], b"0.", b"2.", b"R.", b"\x85.", b"(.", b"N(2."] {
        assert_eq!(
            read_with(bytes, &PickleLimits::default()).expect_err("empty").rule.id,
            "pickle.stack",
            "{}",
            bytes.escape_ascii()
        );
    }
    for bytes in [&b"t."[..], b"1.", b"Ne.", b"o.", b"(o."] {
        assert_eq!(
            read_with(bytes, &PickleLimits::default()).expect_err("no mark").rule.id,
            "pickle.stack",
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn a_frame_beyond_the_end_and_an_end_before_the_frame() {
    refused(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "pickle.truncated", 2);
    refused(b"\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00N.x", "pickle.frame", 12);
}

#[test]
fn a_file_cut_off_at_any_byte_is_refused() {
    for name in ["state-0", "state-2", "state-5", "kinds-4", "module", "dtensor"] {
        let bytes = fs::read(format!("{}/tests/data/pickle/{name}.pkl", env!("CARGO_MANIFEST_DIR"))).unwrap();
        accepted(&bytes);
        for len in 0..bytes.len() {
            let fault = read_with(&bytes[..len], &PickleLimits::default()).expect_err("cut off");
            assert!(fault.offset.is_some_and(|offset| offset <= 100 + len as u64), "{fault}");
        }
    }
}

#[test]
fn an_element_of_a_set_is_what_python_allows_as_a_key() {
    for bytes in [&b"\x8f(]\x90."[..], b"(]\x91.", b"cbuiltins\nset\n](]e\x85R.", b"cbuiltins\nfrozenset\n](}e\x85R."] {
        let fault = read_with(bytes, &PickleLimits::default()).expect_err("not hashable");
        assert_eq!(fault.rule.id, "pickle.set", "{}", bytes.escape_ascii());
    }
}
