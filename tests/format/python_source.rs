//! Values of a pickle as Python source: what `repr` says of plain data, the calls that would have been made, and pickles that would have a
//! text without end.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use max_weights::checkpoint::Catalog;
use max_weights::format::pickle::{Danger, PersistentIds, PickleLimits, Pickled, read, source_of};

fn pickled(bytes: &[u8]) -> Pickled {
    read(bytes, 0, &PickleLimits::default(), PersistentIds::Zip).unwrap_or_else(|error| panic!("{error}"))
}

fn source(bytes: &[u8]) -> String {
    let pickled = pickled(bytes);
    source_of(&pickled, pickled.root, 1000)
}

fn cut(bytes: &[u8], most: usize) -> String {
    let pickled = pickled(bytes);
    // A processor that is emulated (tools/platforms.py), or a sanitizer, takes a dozen times longer.
    let longest = if std::env::var_os("MAX_WEIGHTS_EMULATED").is_some() { 60 } else { 5 };
    let began = Instant::now();
    let text = source_of(&pickled, pickled.root, most);
    assert!(began.elapsed() < Duration::from_secs(longest), "in no time that anyone would notice");
    assert!(text.chars().count() <= most + 1, "{text}");
    text
}

/// Instructions for a tensor of two float32 in storage 0.
const TENSOR: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR";

#[test]
fn plain_data_are_what_repr_says() {
    for (bytes, text) in [
        (&b"N."[..], "None"),
        (b"\x88.", "True"),
        (b"J\xff\xff\xff\xff.", "-1"),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", "18446744073709551616"),
        (b"F1e-5\n.", "1e-05"),
        (b"cbuiltins\ncomplex\nF1\nF-2.5\n\x86R.", "(1-2.5j)"),
        (b"X\x04\x00\x00\x00it's.", "\"it's\""),
        (b"C\x03a\x00'.", "b\"a\\x00'\""),
        (b"\x96\x01\x00\x00\x00\x00\x00\x00\x00a.", "bytearray(b'a')"),
        (b"](K\x01K\x02e.", "[1, 2]"),
        (b"].", "[]"),
        (b").", "()"),
        (b"K\x01\x85.", "(1,)"),
        (b"K\x01K\x02\x86.", "(1, 2)"),
        (b"\x8f.", "set()"),
        (b"\x8f(K\x01\x90.", "{1}"),
        (b"(\x91.", "frozenset()"),
        (b"(K\x01\x91.", "frozenset({1})"),
        (b"}.", "{}"),
        (b"}(X\x01\x00\x00\x00a]X\x01\x00\x00\x00b}u.", "{'a': [], 'b': {}}"),
    ] {
        assert_eq!(source(bytes), text);
    }
}

#[test]
fn classes_that_are_known_have_their_modules() {
    for (bytes, text) in [
        (&b"ccollections\nOrderedDict\n)R."[..], "collections.OrderedDict()"),
        (b"ccollections\nOrderedDict\n)RK\x01K\x02s.", "collections.OrderedDict({1: 2})"),
        (b"ccollections\nCounter\n}K\x01K\x02s\x85R.", "collections.Counter({1: 2})"),
        (b"ccollections\ndefaultdict\nc__builtin__\nint\n\x85RK\x01K\x02s.", "collections.defaultdict(int, {1: 2})"),
        (b"ctorch\nSize\nK\x02K\x03\x86\x85R.", "torch.Size([2, 3])"),
        (b"ctorch\nfloat16\n.", "torch.float16"),
        (b"ctorch\ndevice\nX\x04\x00\x00\x00cudaK\x01\x86R.", "torch.device('cuda:1')"),
        (b"ctorch.serialization\n_get_layout\nX\x0d\x00\x00\x00torch.strided\x85R.", "torch.strided"),
        (b"cos\npath\n.", "os.path"),
    ] {
        assert_eq!(source(bytes), text);
    }
}

#[test]
fn what_has_no_source_stands_in_angle_brackets() {
    assert_eq!(source(&[TENSOR, b"."].concat()), "<torch.Tensor float32 [2]>");
    let parameter =
        [b"ctorch._utils\n_rebuild_parameter\n", TENSOR, b"\x88ccollections\nOrderedDict\n)R\x87R."].concat();
    assert_eq!(source(&parameter), "torch.nn.Parameter(<torch.Tensor float32 [2]>)");
}

#[test]
fn numpy_scalars_are_numbers_and_arrays_show_them() {
    let dtype = |code: &str| [b"cnumpy\ndtype\nX\x02\x00\x00\x00", code.as_bytes(), b"\x85R"].concat();
    let scalar = |code: &str, bytes: &[u8]| {
        let data = [b"C", &[bytes.len() as u8][..], bytes].concat();
        let made = [b"cnumpy.core.multiarray\nscalar\n", &dtype(code)[..], &data, b"\x86R."].concat();
        source(&made)
    };
    assert_eq!(scalar("f4", &0.5_f32.to_le_bytes()), "0.5");
    assert_eq!(scalar("f2", &[0x00, 0x3c]), "1.0");
    assert_eq!(scalar("i2", &(-2_i16).to_le_bytes()), "-2");
    assert_eq!(scalar("u8", &u64::MAX.to_le_bytes()), u64::MAX.to_string());
    assert_eq!(scalar("b1", &[1]), "True");
    assert_eq!(scalar("S2", b"ab"), "numpy.frombuffer(b'ab', '|S2')[0]");
    let array = |shape: &[u8]| {
        let data = b"C\x04\x01\x00\x02\x00".as_slice();
        let parts = [b"cnumpy.core.numeric\n_frombuffer\n(", data, &dtype("i2"), shape, b"X\x01\x00\x00\x00FtR."];
        source(&parts.concat())
    };
    assert_eq!(array(b"K\x02\x85"), "numpy.array([1, 2], '<i2')");
    assert_eq!(array(b"K\x01K\x02\x86"), "numpy.array([1, 2], '<i2').reshape((1, 2), order='F')");
}

#[test]
fn a_call_is_written_with_its_arguments() {
    for (bytes, text) in [
        (&b"\x80\x02cposix\nsystem\nX\x07\x00\x00\x00echo hi\x85R."[..], "posix.system('echo hi')"),
        (
            b"\x80\x02ccommands\nPopen\n](X\x02\x00\x00\x00shX\x02\x00\x00\x00-ce\x85R.",
            "subprocess.Popen(['sh', '-c'])",
        ),
        (b"(X\x01\x00\x00\x00xios\nsystem\n.", "os.system('x')"),
        (b"cos\nsystem\n)R.", "os.system()"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93K\x01\x85}\x8c\x01aK\x02s\x92.", "os.system(1, a=2)"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93)}K\x01K\x02s\x92.", "os.system(**{1: 2})"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93K\x01\x85K\x07\x92.", "os.system(1, **7)"),
    ] {
        assert_eq!(source(bytes), text);
    }
}

#[test]
fn calls_as_arguments_and_calls_of_results_are_written_whole() {
    let inner = b"cos\ngetenv\nX\x01\x00\x00\x00x\x85R".as_slice();
    assert_eq!(source(&[b"cos\nsystem\n", inner, b"\x85R."].concat()), "os.system(os.getenv('x'))");
    // Which function runs stands in the first call.
    let resolved = b"cpkgutil\nresolve_name\nX\x09\x00\x00\x00os:system\x85RX\x02\x00\x00\x00hi\x85R.";
    assert_eq!(source(resolved), "pkgutil.resolve_name('os:system')('hi')");
    let partial = b"cfunctools\npartial\ncos\nsystem\nX\x02\x00\x00\x00hi\x86R)R.";
    assert_eq!(source(partial), "functools.partial(os.system, 'hi')()");
}

#[test]
fn what_makes_an_object_of_a_class_is_the_call() {
    let made = b"ccopy_reg\n_reconstructor\n(c__main__\nModel\nc__builtin__\nobject\nNtR.";
    assert_eq!(source(made), "copyreg._reconstructor(__main__.Model, builtins.object, None)");
}

#[test]
fn states_and_items_are_calls_behind_it() {
    let state = b"c__main__\nModel\n)\x81}X\x01\x00\x00\x00xK\x01sb.";
    assert_eq!(source(state), "__main__.Model().__setstate__({'x': 1})");
    let items = b"c__main__\nModel\n)\x81(K\x01K\x02eK\x03aK\x04K\x05s.";
    assert_eq!(source(items), "__main__.Model().extend([1, 2, 3]).update({4: 5})");
}

#[test]
fn a_name_that_is_none_of_python_is_quoted() {
    let name = b"\x80\x04\x8c\x02os\x8c\x0bsystem('x')\x93)R.";
    assert_eq!(source(name), "<'os'.\"system('x')\">()");
    assert_eq!(source(b"cos\n\xe2\x80\xaemetsys\n)R."), "<'os'.'\\u202emetsys'>()");
    assert_eq!(source(b"c\nx\n)R."), "<''.'x'>()");
}

#[test]
fn a_value_that_contains_itself_is_written_once() {
    assert_eq!(source(b"]q\x00h\x00a."), "[[...]]");
    assert_eq!(source(b"}q\x00K\x01h\x00s."), "{1: {...}}");
    assert_eq!(source(b"](K\x01\x85q\x00h\x00e."), "[(1,), (1,)]", "twice in one is no circle");
    assert_eq!(source(b"]q\x00h\x00\x85a."), "[([...],)]");
    let itself = b"c__main__\nModel\n)\x81q\x00h\x00b.";
    assert_eq!(source(itself), "__main__.Model().__setstate__(__main__.Model(...))");
    // What the call of it returns is its own state.
    let again = b"c__main__\nModel\n)\x81q\x00h\x00)Rb.";
    assert_eq!(source(again), "__main__.Model().__setstate__(__main__.Model(...)())");
}

#[test]
fn a_text_is_cut_with_a_mark() {
    assert_eq!(cut(b"](K\x01K\x02K\x03e.", 5), "[1, 2…");
    assert_eq!(cut(b"](K\x01K\x02e.", 6), "[1, 2]");
    assert_eq!(cut(b"](K\x01K\x02e.", 0), "…");
    let long = [b"X\x00\x00\x00\x01".as_slice(), &vec![b'a'; 1 << 24], b"."].concat();
    assert_eq!(cut(&long, 4), "'aaa…");
    let huge = [b"\x8e\x00\x00\x00\x01\x00\x00\x00\x00".as_slice(), &vec![0; 1 << 24], b"."].concat();
    assert_eq!(cut(&huge, 8), "b'\\x00…");
}

#[test]
fn a_million_lists_inside_one_another() {
    let bytes = [b"]q\x00".as_slice(), &b"]h\x00aq\x00".repeat(1_000_000), b"."].concat();
    assert_eq!(cut(&bytes, 10), "[[[[[[[[[[…");
    let whole = cut(&bytes, usize::MAX - 1);
    assert_eq!(whole.len(), 2 * 1_000_001);
}

#[test]
fn lists_that_hold_each_other_twice_and_so_on() {
    let bytes = [b"]q\x00".as_slice(), &b"](h\x00h\x00eq\x00".repeat(100), b"."].concat();
    assert!(cut(&bytes, 200).starts_with("[[["));
    assert_eq!(cut(&bytes, 100_000).chars().count(), 100_001);
}

#[test]
fn calls_of_what_calls_would_return_and_so_on() {
    let bytes = [b"cos\nsystem\n".as_slice(), &b")R".repeat(200_000), b"."].concat();
    assert_eq!(cut(&bytes, 40), "os.system(...)()()()()()()()()()()()()()…");
    let some = [b"cos\nsystem\n".as_slice(), &b")R".repeat(50), b"."].concat();
    assert_eq!(cut(&some, 1000), format!("os.system{}", "()".repeat(50)));
}

#[test]
fn an_object_of_a_million_states_and_items() {
    let bytes = [b"c__main__\nA\n)\x81".as_slice(), &b"Nb".repeat(1_000_000), b"."].concat();
    assert_eq!(cut(&bytes, 30), "__main__.A().__setstate__(None…");
    let bytes = [b"c__main__\nA\n)\x81".as_slice(), &b"NaNNs".repeat(500_000), b"."].concat();
    assert_eq!(cut(&bytes, 45), "__main__.A().extend([None]).update({None: Non…");
}

/// The catalog of a PyTorch file of this pickle.
fn catalog(path: &Path, pickle: &[u8]) -> max_weights::Checkpoint {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", &[0; 8]), ("a/version", b"3\n")] {
        zip.start_file(name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    max_weights::open(path).unwrap()
}

#[test]
fn a_file_lists_its_values_its_calls_and_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let evil = b"X\x04\x00\x00\x00evilcposix\nsystem\nX\x02\x00\x00\x00hi\x85RX\x02\x00\x00\x00lrF0.1\n".as_slice();
    // One whose result is thrown away, and one in the attributes of a dict, which have no names.
    let hidden = b"ccommands\nPopen\n)R0ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00xcnt\nsystem\n)Rsb0".as_slice();
    let pickle = [b"\x80\x02", hidden, b"}(X\x01\x00\x00\x00w", TENSOR, evil, b"u."].concat();
    let opened = catalog(&path, &pickle);
    let catalog: &Catalog = opened.catalog();

    let named: Vec<_> = catalog.objects().map(|found| (found.name, found.source(100))).collect();
    assert_eq!(named, [("evil", "posix.system('hi')".to_owned()), ("lr", "0.1".to_owned())]);
    let evil = catalog.objects().next().unwrap();
    assert_eq!(evil.global().unwrap().danger, Danger::RunsCode);

    let calls: Vec<_> = catalog.calls().map(|found| found.source(100)).collect();
    assert_eq!(calls, ["subprocess.Popen()", "nt.system()", "posix.system('hi')"]);
    let whole = std::fs::read(&path).unwrap();
    let at = |position: Option<u64>| whole[usize::try_from(position.unwrap()).unwrap()];
    assert!(catalog.calls().all(|found| at(found.position()) == b'R'), "the byte of the instruction");

    let globals: Vec<_> = catalog.globals().map(|(file, global)| (file, global.full_name())).collect();
    let names = globals.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>();
    assert_eq!(
        names[..4],
        ["subprocess.Popen", "collections.OrderedDict", "nt.system", "torch._utils._rebuild_tensor_v2"]
    );
    assert!(catalog.globals().all(|(_, global)| whole[usize::try_from(global.offset).unwrap()] == b'c'));
    assert!(globals.iter().all(|(file, _)| *file == 0));
}
