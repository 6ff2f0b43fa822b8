//! For any bytes, a scan ends soon, in bounded memory, and without a panic.

use std::time::{Duration, Instant};

use crate::support::{protocol_2, scan, scan_as, scan_legacy, tensor};
use max_weights::rules::Verdict;
use max_weights_check::security::pickle::{PickleOrigin, may_be_pickle};

/// Numbers that are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }
}

fn scan_all_ways(bytes: &[u8]) {
    for expected in [PickleOrigin::Any, PickleOrigin::TorchZip] {
        let scanned = scan_as(bytes, expected);
        assert!(scanned.seen.consumed <= bytes.len() as u64 + 8);
    }
    scan_legacy(bytes);
    may_be_pickle(bytes, bytes.len() as u64, "file");
}

#[test]
fn any_bytes_are_looked_through() {
    let mut numbers = Numbers(7);
    for round in 0..2_000 {
        let len = numbers.below(200);
        let mut bytes: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
        if round % 2 == 0 {
            bytes.splice(0..0, [0x80, 4]);
        }
        scan_all_ways(&bytes);
    }
}

#[test]
fn instructions_in_any_order_are_looked_through() {
    let instructions = b".(012FIJKLMNPQRSTUVXabcdeghijlopqrst}])u\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98BCG\n\x00\x01";
    let mut numbers = Numbers(11);
    for _ in 0..4_000 {
        let len = numbers.below(120);
        let bytes: Vec<u8> = (0..len).map(|_| instructions[numbers.below(instructions.len())]).collect();
        scan_all_ways(&bytes);
    }
}

#[test]
fn a_pickle_that_is_changed_anywhere_is_looked_through() {
    let inner = protocol_2(b"cos\nsystem\n(S'true'\ntR");
    let pickle = protocol_2(
        &[
            &b"}(X\x01\0\0\0a"[..],
            &tensor("0", 4),
            b"X\x01\0\0\0bccollections\ndefaultdict\nc__builtin__\nlist\n\x85RX\x01\0\0\0cctorch.storage\n_load_from_bytes\nC",
            &[inner.len() as u8],
            &inner,
            b"\x85Rucjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}(X\x05\0\0\0shapeK\x02\x85X\x05\0\0\0dtypecnumpy\ndtype\nX\x02\0\0\0f8\x85Rub0123456789abcdef\x86",
        ]
        .concat(),
    );
    assert_eq!(scan(&pickle).answer(), Verdict::Malicious);
    for at in 0..pickle.len() {
        scan_all_ways(&pickle[..at]);
        for byte in [0, b'.', b'(', b'c', b'R', 0x80, 0x93, 0xff, pickle[at] ^ 1, pickle[at].wrapping_add(1)] {
            let mut changed = pickle.clone();
            changed[at] = byte;
            scan_all_ways(&changed);
        }
    }
}

#[test]
fn what_makes_much_of_little_is_bounded() {
    let started = Instant::now();
    let big = 1 << 20;
    for (why, body) in [
        ("lists", b"]0".repeat(big)),
        ("marks", b"(".repeat(big)),
        ("values", b"N".repeat(big)),
        ("copies", [&b"]"[..], &b"2".repeat(big)].concat()),
        ("remembered values", [&b"N"[..], &b"\x94".repeat(big)].concat()),
        ("tuples of tuples", [&b"N"[..], &b"2\x86".repeat(big / 2)].concat()),
        ("names", b"cos\nsystem\n0".repeat(big / 12)),
        ("beginnings of pickles", [&b"N.\xff"[..], &b"\x80\x02V".repeat(big / 3)].concat()),
        ("beginnings of names", [&b"N.\xff"[..], &b"\x8c\x02os".repeat(big / 4)].concat()),
        ("lengths", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec()),
        ("a length that is negative", b"\x8b\xff\xff\xff\xff".to_vec()),
    ] {
        let scanned = scan(&[b"\x80\x04", &body[..]].concat());
        assert_ne!(scanned.answer(), Verdict::Clean, "{why}");
        assert!(scanned.findings.len() < 1000, "{why}");
    }
    // A processor that is emulated (tools/platforms.py) takes a dozen times longer.
    let longest = if std::env::var_os("MAX_WEIGHTS_EMULATED").is_some() { 1200 } else { 120 };
    assert!(started.elapsed() < Duration::from_secs(longest), "{:?}", started.elapsed());
}

#[test]
fn bytes_that_are_long_are_not_read() {
    let len = 64_u32 << 20;
    let mut pickle = [b"\x80\x03B", &len.to_le_bytes()[..]].concat();
    pickle.resize(pickle.len() + len as usize, 0);
    pickle.extend(b"0cos\nsystem\n(S'true'\ntR.");
    assert_eq!(scan(&pickle).evidence("code.malicious-global"), "os.system('true')");
}

#[test]
fn arrays_of_joblib_are_passed_over() {
    let wrapper = |bytes: &[u8], aligned: &[u8]| {
        [
            &b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}(X\x05\0\0\0shapeK\x02\x85X\x05\0\0\0dtypecnumpy\ndtype\nX\x02\0\0\0f8\x85R"[..],
            aligned,
            b"ub",
            bytes,
            b".",
        ]
        .concat()
    };
    let alignment = b"X\x1b\0\0\0numpy_array_alignment_bytesK\x10";
    for pickle in [wrapper(&[0xff; 16], b""), wrapper(&[&[3, 0xff, 0xff, 0xff], &[0x80; 16][..]].concat(), alignment)] {
        let scanned = scan(&pickle);
        assert_eq!((scanned.ids(), scanned.answer()), (vec![], Verdict::Clean));
        assert_eq!(scanned.seen.consumed, pickle.len() as u64);
    }
    assert!(scan(&wrapper(&[0; 8], b"")).has("code.broken"));
}

#[test]
fn pickles_in_one_another_that_readers_come_to_in_many_ways_are_looked_at_once() {
    let mut pickle = protocol_2(b"cos\nsystem\n(S'true'\ntR");
    // At the end of each frame, within an instruction, another reader continues.
    let frames = b"\x95\x01\0\0\0\0\0\0\0K00".repeat(16);
    for _ in 0..7 {
        let bytes = [b"B", &(pickle.len() as u32).to_le_bytes()[..], &pickle].concat();
        pickle = [b"\x80\x04", &frames[..], b"cpickle\nloads\n", &bytes, b"\x85R."].concat();
    }
    let scanned = scan(&pickle);
    assert!(scanned.findings.iter().any(|finding| finding.evidence.as_deref() == Some("os.system('true')")));
    assert!(scanned.file.pickles < 1_000, "{}", scanned.file.pickles);
}
