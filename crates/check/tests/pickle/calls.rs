//! Every way in which loading a pickle can do harm is found; what plain weights need is not reported.

use crate::support::{protocol_2, scan, tensor, text};
use max_weights::rules::Verdict;

const SYSTEM: &[u8] = b"cos\nsystem\n(S'true'\ntR";

fn system() -> Vec<u8> {
    [SYSTEM, b"."].concat()
}

#[test]
fn a_call_is_shown_as_the_python_that_it_would_run_with_its_place() {
    let scanned = scan(&system());
    assert_eq!((scanned.ids(), scanned.answer()), (vec!["code.malicious-global"], Verdict::Malicious));
    assert_eq!(scanned.evidence("code.malicious-global"), "os.system('true')");
    assert_eq!(scanned.findings[0].offset, Some(SYSTEM.len() as u64 - 1));
    assert_eq!(scanned.global("os", "system"), Some("dangerous"));
    // Arguments of calls, and what is long.
    let nested = scan(&protocol_2(b"c__builtin__\neval\n(c__builtin__\ncompile\n(S'1'\nJ\xff\xff\xff\x7f\x8a\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaatRtR"));
    assert_eq!(
        nested.findings[1].evidence.as_deref(),
        Some(
            "builtins.eval(builtins.compile('1', 2147483647, 44046402572626160612103472728795008085361523578694645928734845681441465000289))"
        )
    );
}

#[test]
fn every_instruction_that_calls_is_followed() {
    for pickle in [
        &b"(S'true'\nios\nsystem\n."[..],
        b"(cos\nsystem\nS'true'\no.",
        b"cos\nsystem\n(S'true'\nt\x81.",
        b"\x80\x04cos\nsystem\n(S'true'\nt}\x92.",
        b"(cos\nsystem\nS'true'\no0N.",
        b"((cos\nsystem\nS'true'\no1N.",
    ] {
        let scanned = scan(pickle);
        assert_eq!(scanned.evidence("code.malicious-global"), "os.system('true')");
    }
}

#[test]
fn names_are_those_that_the_machine_would_have() {
    let global = |parts: &[&[u8]]| [b"\x80\x04", &parts.concat()[..], b"\x93\x8c\x04true\x85R."].concat();
    let posix = text("posix");
    let name = text("system");
    for (why, pickle) in [
        ("memo", global(&[&posix, b"q\x00", b"0", &text("safe"), b"\x940h\x00", &name])),
        ("memo that was used twice", global(&[&text("math"), b"q\x000", &posix, b"q\x000h\x00", &name])),
        ("mark and pop", global(&[b"(", &posix, b"q\x051h\x05", &name])),
        ("long index", global(&[&posix, b"r\xff\xff\xff\x0f0j\xff\xff\xff\x0f", &name])),
        ("dup", global(&[&name, b"q\x01", &posix, b"2h\x01"])),
        ("escape", global(&[b"Vposi\\u0078\n", &name])),
        ("long text", global(&[b"\x8d\x05\0\0\0\0\0\0\0posix", &name])),
    ] {
        assert_eq!(scan(&pickle).evidence("code.malicious-global"), "posix.system('true')", "{why}");
    }
    let computed = global(&[b"cbuiltins\nstr\n", &posix, b"\x85R", &name]);
    assert!(scan(&computed).has("code.unresolvable"));
    let long = global(&[b"X\x00\x10\0\0", &[b'a'; 4096], &name]);
    assert!(scan(&long).has("code.unresolvable"));
}

#[test]
fn the_three_answers_are_kept_apart() {
    for (global, id, answer) in [
        ("torch._utils\n_rebuild_tensor_v2\n", "", Verdict::Clean),
        ("sklearn.svm._classes\nSVC\n", "code.library-global", Verdict::NeedsTrust),
        ("functools\npartial\n", "code.library-global", Verdict::NeedsTrust),
        ("numpy.random._pickle\n__randomstate_ctor\n", "code.library-global", Verdict::NeedsTrust),
        ("mymodel\nNet\n", "code.unknown-global", Verdict::NeedsTrust),
        ("antigravity\ngeohash\n", "code.malicious-global", Verdict::Malicious),
        ("torch\nos.system\n", "code.malicious-global", Verdict::Malicious),
        ("commands\ngetoutput\n", "code.malicious-global", Verdict::Malicious),
        ("pkgutil\nresolve_name\n", "code.malicious-global", Verdict::Malicious),
    ] {
        let scanned = scan(&protocol_2(format!("c{global}").as_bytes()));
        assert_eq!(scanned.answer(), answer, "{global}");
        assert_eq!(scanned.ids(), if id.is_empty() { vec![] } else { vec![id] }, "{global}");
    }
    assert_eq!(scan(b"\x80\x02}q\x00X\x01\0\0\0a").answer(), Verdict::Broken);
}

#[test]
fn what_calls_do_to_what_is_harmless_counts() {
    for (why, body, id) in [
        ("a factory that is no type", &b"\x80\x02ccollections\ndefaultdict\nctorch._utils\n_rebuild_tensor\n\x85R."[..], "code.misused-global"),
        ("an encoding that disguises", b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x06\0\0\0base64\x86R.", "code.misused-global"),
        ("a class is changed", b"\x80\x02ccollections\nOrderedDict\n}X\x01\0\0\0aK\x01sb.", "code.patched"),
        ("an object changes its class", b"\x80\x02ccollections\nOrderedDict\n)R}X\x0c\0\0\0__setstate__Nsb.", "code.patched"),
        ("the slots as well", b"\x80\x02ccollections\nOrderedDict\n)RN}X\x09\0\0\0__class__Ns\x86b.", "code.patched"),
        ("a state of a dtype", b"\x80\x02ctorch\nfloat32\n)R}b.", "code.wrong-target"),
        ("a key of a list", b"\x80\x02]K\x00K\x01s.", "code.wrong-target"),
        ("a key of a tensor", b"\x80\x02ctorch._utils\n_rebuild_tensor\n)RK\x00K\x01s.", "code.wrong-target"),
        ("a value added to a dict", b"\x80\x02}K\x01a.", "code.wrong-target"),
        ("an element of a list", b"\x80\x04](K\x01\x90.", "code.wrong-target"),
        ("a registry", b"\x80\x02\x82\x01.", "code.extension"),
        ("a reference elsewhere", b"\x80\x02X\x04\0\0\0evilQ.", "code.persistent-id"),
        ("a reference by text", b"Pevil\n.", "code.persistent-id"),
        ("a key that is a path", b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x04\0\0\0../aX\x03\0\0\0cpuK\x01tQ.", "code.persistent-id"),
        ("an attribute of everything", b"\x80\x02c__builtin__\ngetattr\ncmine\nA\nX\x0b\0\0\0__globals__\x86R.", "code.unresolvable"),
        ("a call of what was returned", b"\x80\x02ccollections\nCounter\n)R)R.", "code.unresolvable"),
        ("bytes that are not known", b"\x80\x03ctorch.storage\n_load_from_bytes\n(cmine\nf\n)RtR.", "code.unresolvable"),
        ("a size that changes", b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0aX\x03\0\0\0cpuK\x01tQ0(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0aX\x03\0\0\0cpuK\x02tQ.", "code.storage"),
    ] {
        assert!(scan(body).has(id), "{why}: {:?}", scan(body).ids());
    }
    let partial = scan(b"\x80\x02cfunctools\npartial\ncmine\nf\n\x85R)R.");
    assert!(partial.has("code.computed-call"));
    assert_eq!(partial.answer(), Verdict::NeedsTrust);
    assert_eq!(partial.evidence("code.computed-call"), "functools.partial(mine.f)()");
}

#[test]
fn what_plain_weights_have_is_no_finding() {
    let state = [
        &b"}q\x00(X\x06\0\0\0weight"[..],
        &tensor("0", 4),
        b"X\x01\0\0\0uccollections\ndefaultdict\nc__builtin__\nlist\n\x85RX\x01\0\0\0oc_codecs\nencode\nX\x01\0\0\0aX\x06\0\0\0latin1\x86Ru",
    ]
    .concat();
    let scanned = scan(&protocol_2(&state));
    assert_eq!(scanned.ids(), Vec::<&str>::new());
    assert_eq!(scanned.file.globals.len(), 6);
    let storage = &scanned.seen.storages[0];
    assert_eq!((storage.key.as_str(), storage.elements, storage.bytes), ("0", Some(4), Some(16)));
}

#[test]
fn pickles_in_pickles_are_looked_into() {
    let inner = protocol_2(SYSTEM);
    let bytes = [&[b'C', inner.len() as u8], &inner[..]].concat();
    let loads = |loader: &str| [b"\x80\x04c", loader.as_bytes(), &bytes, b"\x85R."].concat();
    for loader in ["pickle\nloads\n", "_pickle\nloads\n", "torch.storage\n_load_from_bytes\n"] {
        let scanned = scan(&loads(loader));
        assert!(
            scanned.findings.iter().any(|finding| finding.evidence.as_deref() == Some("os.system('true')")
                && finding.member.as_deref().is_some_and(|member| member.starts_with("bytes at"))),
            "{loader}"
        );
    }
    // Behind a disguise.
    let base64 =
        b"\x80\x04cpickle\nloads\ncbase64\nb64decode\nX\x24\0\0\0gAJjb3MKc3lzdGVtCihTJ3RydWUnCnRSLg==\x85R\x85R.";
    let scanned = scan(base64);
    assert!(scanned.findings.iter().any(|finding| finding.evidence.as_deref() == Some("os.system('true')")));
    // Nothing loads them.
    let quiet = scan(&[b"\x80\x04", &bytes[..], b"."].concat());
    assert_eq!((quiet.ids(), quiet.answer()), (vec!["code.nested-pickle"], Verdict::Clean));
}

#[test]
fn what_stands_before_a_break_and_behind_it_is_reported() {
    for (why, pickle) in [
        ("an instruction that is none", [SYSTEM, b"\xff\xff"].concat()),
        ("an end within an instruction", [SYSTEM, b"X\xff\0\0\0a"].concat()),
        ("nothing on the stack", [SYSTEM, b"0000"].concat()),
        ("no last instruction", SYSTEM.to_vec()),
        ("the break comes first", [b"\x80\x02\xff\xff\xff", SYSTEM, b"."].concat()),
        (
            "the break hides a name",
            [b"\x80\x04\xff", &text("os")[..], &text("system"), b"\x93\x8c\x04true\x85R."].concat(),
        ),
    ] {
        let scanned = scan(&pickle);
        assert!(scanned.has("code.malicious-global") && scanned.has("code.broken"), "{why}: {:?}", scanned.ids());
    }
}

#[test]
fn what_stands_behind_the_end_is_looked_at() {
    let first = protocol_2(b"N");
    for (why, rest) in [
        ("right there", system()),
        ("after zeros", [&[0; 4], &system()[..]].concat()),
        ("after anything", [&[0xaa; 9000], &protocol_2(SYSTEM)[..]].concat()),
        ("as the sixth", [&protocol_2(b"N").repeat(5)[..], &system()].concat()),
        ("of protocol 4 without its beginning", [b"\0\0", &text("os")[..], &text("system"), b"\x93."].concat()),
    ] {
        let scanned = scan(&[&first[..], &rest].concat());
        assert_eq!(scanned.answer(), Verdict::Malicious, "{why}: {:?}", scanned.ids());
        assert!(scanned.has("code.trailing-data") || scanned.has("code.stream"), "{why}");
    }
    let stream = scan(&first.repeat(3));
    assert_eq!((stream.ids(), stream.answer()), (vec!["code.stream"], Verdict::Clean));
    let junk = scan(&[&first[..], b"\0\0\0\0"].concat());
    assert_eq!((junk.ids(), junk.answer()), (vec!["code.trailing-data"], Verdict::Broken));
}

#[test]
fn what_readers_do_not_agree_on_is_a_finding_and_the_rest_is_read() {
    for (why, before) in [
        ("a number to base 16", &b"I0x10\n0"[..]),
        ("a long one", b"L0x10L\n0"),
        ("a number with a zero byte", b"I1\0\n0"),
        ("an index that is huge", b"Nr\xff\xff\xff\x7f0"),
        ("an index with spaces", b"Np 1 \n0"),
        ("a protocol that is none", b"\x80\x06"),
        ("a frame beyond the end", b"\x95\xff\xff\0\0\0\0\0\0"),
        ("a frame in a frame", b"\x95\x20\0\0\0\0\0\0\0\x95\x10\0\0\0\0\0\0\0"),
        ("a value that is left over", b"N"),
        ("a text that is not UTF-8", b"X\x01\0\0\0\xff0"),
        ("a float in letters", b"F1_0\n0"),
    ] {
        let scanned = scan(&[before, &system()].concat());
        assert!(scanned.has("code.divergence"), "{why}: {:?}", scanned.ids());
        assert!(scanned.has("code.malicious-global"), "{why}: {:?}", scanned.ids());
    }
    for old in [&b"S'\xff'\n."[..], b"\x80\x02U\x01\xff."] {
        assert_eq!(scan(old).ids(), ["code.old-text"]);
    }
}

#[test]
fn a_frame_that_ends_within_an_instruction_hides_nothing() {
    // From a file, the rest of the bytes is read as instructions.
    let hidden = [SYSTEM, b"."].concat();
    let bytes = [b"\x80\x04\x95\x05\0\0\0\0\0\0\0B", &(hidden.len() as u32).to_le_bytes()[..], &hidden, b"."].concat();
    let scanned = scan(&bytes);
    assert!(scanned.has("code.frame"), "{:?}", scanned.ids());
    assert_eq!(scanned.evidence("code.malicious-global"), "os.system('true')");
}

#[test]
fn the_classes_of_a_script_are_said_once_and_listed_all() {
    let scanned = scan(&protocol_2(b"c__torch__.a\nA\nc__torch__.b\nB\n\x86"));
    assert_eq!((scanned.findings.len(), scanned.file.globals.len()), (1, 2));
    assert_eq!(scanned.answer(), Verdict::NeedsTrust);
}

#[test]
fn what_begins_like_an_old_pickle_and_is_none_is_no_finding() {
    for words in [&b"Very\nlong\nlist\n"[..], b"I 1\n", b"Nothing", b"cat\0\0"] {
        assert_eq!(scan(words).ids(), Vec::<&str>::new());
    }
    assert!(scan(b"N\x82\x01").has("code.extension"));
}

#[test]
fn buffers_that_are_not_in_the_file_are_not_taken_for_harmless() {
    assert_eq!(scan(b"\x80\x05\x97\x98.").ids(), ["code.incomplete"]);
}

#[test]
fn an_index_of_the_memo_is_read_to_its_end() {
    let zeros = "0".repeat(80);
    let put = |text: &str, index: &str| format!("V{text}\np{index}\n0");
    let pickle = |more: &str| {
        let texts = [put("collections", "7"), put("OrderedDict", "8"), put("posix", more), put("system", "8")];
        [texts.concat().as_bytes(), b"g7\ng8\n\x93(S'true'\ntR."].concat()
    };
    assert_eq!(scan(&pickle(&format!("{zeros}7"))).evidence("code.malicious-global"), "posix.system('true')");
    let endless = scan(&pickle(&format!("{}7", "0".repeat(5000))));
    assert!(endless.has("code.unresolvable"), "{:?}", endless.ids());
}

/// `torch.storage._load_from_bytes`, and bytes that it would unpickle.
const LOADER: &[u8] = b"ctorch.storage\n_load_from_bytes\n";
const INNER: &[u8] = b"C\x15cos\nsystem\n(S'x'\ntR.0";

#[test]
fn what_is_called_by_rebuilding_a_tensor_is_a_call() {
    let rebuild = b"ctorch._tensor\n_rebuild_from_type_v2\n";
    let arguments = [b"(", LOADER, b"ctorch\nTensor\n", INNER, b"\x85}t"].concat();
    let once = [&rebuild[..], &arguments, b"R"].concat();
    let twice = [&rebuild[..], b"(", rebuild, b"ctorch\nTensor\n", &arguments, b"}tR"].concat();
    for body in [once, twice] {
        assert_eq!(scan(&protocol_2(&body)).evidence("code.malicious-global"), "os.system('x')");
    }
}

#[test]
fn a_state_that_is_put_together_by_calls_is_told() {
    let key = b"X\x0c\0\0\0__setstate__";
    let ordered = b"ccollections\nOrderedDict\n)R";
    for (why, state) in [
        ("another dict", [ordered, &key[..], LOADER, b"s"].concat()),
        ("pairs", [b"cbuiltins\ndict\n(](", &key[..], LOADER, b"\x86etR"].concat()),
        ("a key", [b"}cbuiltins\nstr\n", &key[..], b"\x85R", LOADER, b"s"].concat()),
        ("slots", [b"N", &ordered[..], key, LOADER, b"s\x86"].concat()),
    ] {
        let scanned = scan(&protocol_2(&[&ordered[..], &state, b"b", INNER, b"b"].concat()));
        assert!(scanned.has("code.patched"), "{why}: {:?}", scanned.ids());
    }
    // The attributes of a dict as torch writes them.
    let plain = scan(&protocol_2(&[&ordered[..], b"}X\x09\0\0\0_metadata", ordered, b"sb"].concat()));
    assert_eq!(plain.ids(), [""; 0]);
}

#[test]
fn what_is_made_of_a_class_is_filled_as_the_class_is() {
    let reconstructed = b"ccopyreg\n_reconstructor\n(ccollections\nOrderedDict\ncbuiltins\ndict\n}tR";
    let given_back = b"ctorch.jit._pickle\nrestore_type_tag\n(ccollections\nOrderedDict\n)RX\0\0\0\0tR";
    for made in [&reconstructed[..], given_back] {
        let state = [b"}X\x06\0\0\0append", LOADER, b"sb"].concat();
        let appended = scan(&protocol_2(&[made, &state, INNER, b"a"].concat()));
        assert!(appended.has("code.wrong-target"), "{:?}", appended.ids());
    }
    let objects = b"cnumpy\ndtype\n(X\x02\0\0\0O8\x89\x88tR(K\x03X\x01\0\0\0|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff";
    let dtype = |flags: u8| scan(&protocol_2(&[objects, &b"K"[..], &[flags], b"tb"].concat()));
    assert_eq!(dtype(63).ids(), [""; 0]);
    assert_eq!(dtype(0).ids(), ["code.misused-global"]);
}

#[test]
fn what_is_lost_among_very_many_values_is_not_taken_for_harmless() {
    let many = b")0".repeat(200_100);
    let key = |name: &str| [b"}X", &(name.len() as u32).to_le_bytes()[..], name.as_bytes(), LOADER, b"s"].concat();
    let ordered = b"ccollections\nOrderedDict\n)R";
    let some = b")0".repeat(100);
    // The state is lost, and then the object.
    let state = [&many, &ordered[..], &key("__setstate__"), &some, b"b", INNER, b"b"].concat();
    let filled = [&many, &ordered[..], &key("append"), b"b", &some, INNER, b"a"].concat();
    for (body, id) in [(state, "code.patched"), (filled, "code.wrong-target")] {
        let scanned = scan(&protocol_2(&body));
        assert!(scanned.has(id), "{:?}", scanned.ids());
    }
    // As torch writes what very many modules say of themselves.
    let plain = [&many, &ordered[..], b"}X\x09\0\0\0_metadata", ordered, &some, b"sb"].concat();
    assert_eq!(scan(&protocol_2(&plain)).ids(), [""; 0]);
}

#[test]
fn numbers_that_only_one_reader_takes_do_not_end_a_pickle() {
    let mut numbers = vec![
        b"I\0\n".to_vec(),
        b"I\0junk\n".to_vec(),
        b"F1\0\n".to_vec(),
        b"F0\0junk\n".to_vec(),
        b"I\x0b1\x0c\n".to_vec(),
        [b"I", &[b'9'; 40][..], b"\0\n"].concat(),
        [b"L", &[b'9'; 40][..], b"\0junk\n"].concat(),
        [b"Np", &[b'9'; 60][..], b"\n"].concat(),
        [b"Np", &[b' '; 5000][..], b"1\n"].concat(),
        [b"F1.", &[b'0'; 5000][..], b"1\n"].concat(),
        [b"F", &[b' '; 70_000][..], b"1\n"].concat(),
    ];
    for many in [1, 300, 1_000, 4_095, 4_096, 5_000] {
        let padded = |(kind, number): (&str, &str)| format!("{kind}{}{number}\n", " ".repeat(many)).into_bytes();
        numbers.extend([("I", "1"), ("L", "1L"), ("F", "1.5")].map(padded));
    }
    for number in numbers {
        let scanned = scan(&[&number[..], b"0", &system()].concat());
        assert!(scanned.has("code.malicious-global"), "{:?}: {:?}", number.escape_ascii().to_string(), scanned.ids());
    }
}

#[test]
fn a_frame_that_ends_within_a_line_hides_nothing() {
    // What is before the end of the frame is lost to a reader of a file that cannot look ahead.
    for line in [&b"I*1\n"[..], b"F*1\n", b"L*1L\n", b"Np*1\n", b"S*'a'\n"] {
        let end = line.iter().position(|byte| *byte == b'*').unwrap_or_default() as u64 + 1;
        let frame = [&b"\x95"[..], &end.to_le_bytes()].concat();
        for head in [&b"\x80\x04"[..], b""] {
            let scanned = scan(&[head, &frame, line, b"0", &system()].concat());
            assert_eq!(scanned.answer(), Verdict::Malicious, "{}: {:?}", line.escape_ascii(), scanned.ids());
        }
    }
}

#[test]
fn what_is_imported_counts_whatever_it_is_called_and_however_the_pickle_ends() {
    for pickle in [
        &b"(cevil-mod\nrun\n)R1."[..],
        b"cevil mod\nrun\n",
        b"cidlelib.idle\na b\n.",
        b"N.cevil-mod\nrun\n)R1.",
        b"\x8c\x08evil-mod\x8c\x03run\x93",
        b"ievil-mod\nrun\n",
        // The reader in Python takes the last bytes for a line, but for one of them.
        b"cevil-mod\nrun?",
        b"cevil-mod?",
    ] {
        assert!(scan(pickle).answer() >= Verdict::NeedsTrust, "{}", pickle.escape_ascii());
    }
    let long = [&b"cidlelib.idle\n"[..], &[b'a'; 5000], b"\n."].concat();
    assert_eq!(scan(&long).answer(), Verdict::Malicious);
}

/// An array as joblib writes it: the state of its wrapper, and then its bytes.
fn joblib(state: &[u8], bytes: &[u8]) -> Vec<u8> {
    let wrapper = b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}(";
    [&wrapper[..], state, b"ub", bytes, b"."].concat()
}

/// The attributes of a wrapper of two elements of this dtype, whose state is this.
fn attributes(code: &str, state: &[u8], more: &[u8]) -> Vec<u8> {
    let key = |name: &str| [b"X", &(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat();
    let dtype = [b"cnumpy\ndtype\n(", &key(code)[..], b"\x89\x88tR", state].concat();
    [
        [key("subclass"), b"cnumpy\nndarray\n".to_vec()].concat(),
        [key("shape"), b"K\x02\x85".to_vec()].concat(),
        [key("order"), key("C")].concat(),
        [key("dtype"), dtype].concat(),
        [key("allow_mmap"), b"\x88".to_vec()].concat(),
        more.to_vec(),
    ]
    .concat()
}

#[test]
fn plain_arrays_of_joblib_need_no_trust_and_what_hides_in_them_is_found() {
    let state = b"(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb";
    let aligned = b"X\x1b\0\0\0numpy_array_alignment_bytesK\x10";
    let numbers = [7; 16];
    let padded = [&[2, 0xff, 0xff][..], &numbers].concat();
    let plain = scan(&joblib(&attributes("f8", state, aligned), &padded));
    assert_eq!((plain.ids(), plain.answer()), (vec![], Verdict::Clean));
    assert_eq!(scan(&joblib(&attributes("f8", state, b""), &numbers)).ids(), [""; 0]);
    // Python's own reader calls what joblib takes for numbers.
    let code = [&b"0cos\nsystem\n(S'x'\ntR."[..], &numbers].concat();
    let hidden = scan(&joblib(&attributes("f8", state, b""), &code[..16]));
    assert!(hidden.has("code.divergence"), "{:?}", hidden.ids());
    let from_memo = [&b"0X\x02\0\0\0osq\x01X\x06\0\0\0systemq\x02\x93"[..], &numbers].concat();
    let hidden = scan(&joblib(&attributes("V14", b"(K\x03X\x01\0\0\0|NNNK\x0eK\x01K\0tb", b""), &from_memo[..28]));
    assert_eq!(hidden.answer(), Verdict::Malicious, "{:?}", hidden.ids());
    // What joblib does not write keeps it from being plain: its size may be another one.
    for (why, wrapper) in [
        ("an added method", attributes("f8", state, b"X\x04\0\0\0readcbuiltins\nstr\n")),
        ("a size of a number", attributes("f8", b"(K\x03X\x01\0\0\0<NNNK\x04K\x04K\0tb", b"")),
        (
            "objects that are none",
            attributes("f8", b"(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x01tb", b""),
        ),
        ("an alignment that is no number", attributes("f8", state, b"X\x1b\0\0\0numpy_array_alignment_bytes\x88")),
        ("two states of a dtype", attributes("f8", &[&state[..], state].concat(), b"")),
    ] {
        let scanned = scan(&joblib(&wrapper, &[b"N.".as_slice(), &numbers].concat()));
        assert!(scanned.answer() >= Verdict::Broken, "{why}: {:?}", scanned.ids());
        assert!(scanned.has("code.library-global"), "{why}: {:?}", scanned.ids());
    }
    // A frame that extends beyond the state contains the next instructions, and the bytes follow it.
    let body = joblib(&attributes("f8", state, b""), &numbers);
    let framed = [&b"\x80\x04\x95\xf0\0\0\0\0\0\0\0"[..], &body[2..], &[b'.'; 40]].concat();
    assert!(scan(&framed).answer() >= Verdict::Broken);
    // PyTorch knows nothing of it.
    let torch = crate::support::scan_as(&body, max_weights_check::security::pickle::PickleOrigin::TorchZip);
    assert!(torch.has("code.library-global"), "{:?}", torch.ids());
}
