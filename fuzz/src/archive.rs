//! Zip archives as lists of members, for mutation. Checksums and sizes are correct in the output, except for deliberately false
//! values. Otherwise no mutated member would get past its checksum, and no compressed one past its compression.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::pickle;
use super::random::Random;

/// Bytes of a member at most.
const MAX: usize = 4 << 20;
const MEMBERS: usize = 40;

#[derive(Clone)]
struct Member {
    name: Vec<u8>,
    deflated: bool,
    /// Sizes and checksum follow the data.
    follows: bool,
    data: Vec<u8>,
}

/// A changed archive; nothing if it would be longer than `most`.
pub fn change(input: &[u8], most: usize, random: &mut Random) -> Option<Vec<u8>> {
    let mut members =
        parse(input).filter(|members| !members.is_empty() && !random.one_in(30)).unwrap_or_else(|| generate(random));
    for _ in 0..=random.below(2) {
        change_members(&mut members, random);
    }
    let lies = if random.one_in(3) { 0 } else { 1 + random.below(2) };
    Some(write(&members, lies, random)).filter(|archive| archive.len() <= most)
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    Some(bytes.get(at..at + width)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// The members that the directory names, as far as they can be read.
fn parse(input: &[u8]) -> Option<Vec<Member>> {
    let end = input.windows(4).rposition(|window| window == b"PK\x05\x06")?;
    let (count, mut at) = (number(input, end + 10, 2)?, number(input, end + 16, 4)?);
    let mut members = Vec::new();
    for _ in 0..count.min(MEMBERS) {
        let (deflated, packed) = (number(input, at + 10, 2)? == 8, number(input, at + 20, 4)?);
        let name = input.get(at + 46..at + 46 + number(input, at + 28, 2)?)?.to_vec();
        let local = number(input, at + 42, 4)?;
        let start = local + 30 + number(input, local + 26, 2)? + number(input, local + 28, 2)?;
        let data = input.get(start..start.checked_add(packed)?)?;
        let data = if deflated { decompress_to_vec_with_limit(data, MAX).ok()? } else { data.to_vec() };
        members.push(Member { name, deflated, follows: number(input, at + 8, 2)? & 8 != 0, data });
        at += 46 + number(input, at + 28, 2)? + number(input, at + 30, 2)? + number(input, at + 32, 2)?;
    }
    Some(members)
}

/// What `torch.save` writes of a few tensors.
fn generate(random: &mut Random) -> Vec<Member> {
    let count = 1 + random.below(3);
    let storages: Vec<usize> = (0..count).map(|_| 4 * (1 + random.below(40))).collect();
    let mut members = vec![member("data.pkl", dict(&storages, random), random)];
    if random.one_in(2) {
        members.push(member("byteorder", random.pick(&[&b"little"[..], b"big", b"odd"]).to_vec(), random));
    }
    for (key, bytes) in storages.iter().enumerate() {
        members.push(member(&format!("data/{key}"), (0..*bytes).map(|i| i as u8).collect(), random));
    }
    members.push(member("version", b"3\n".to_vec(), random));
    members
}

fn member(name: &str, data: Vec<u8>, random: &mut Random) -> Member {
    Member { name: format!("archive/{name}").into_bytes(), deflated: random.one_in(2), follows: random.one_in(2), data }
}

/// A state dict with a tensor over each storage.
fn dict(storages: &[usize], random: &mut Random) -> Vec<u8> {
    let mut pickle = b"\x80\x02}(".to_vec();
    for (key, bytes) in storages.iter().enumerate() {
        let (class, item) =
            random.pick(&[("FloatStorage", 4), ("HalfStorage", 2), ("DoubleStorage", 8), ("ByteStorage", 1)]);
        let elements = (bytes / item).min(255) as u8;
        let (rows, columns) = (1 + random.below(4) as u8, elements / 4);
        pickle.extend(format!("X\x08\0\0\0weight.{key}ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\n{class}\nU\x01{key}U\x03cpu").bytes());
        pickle.extend([b'K', elements, b't', b'Q', b'K', random.below(2) as u8, b'K', rows, b'K', columns, 0x86]);
        let strides = random.pick(&[[columns, 1], [0, 1], [1, rows], [1, 0], [columns, 2]]);
        pickle.extend([b'K', strides[0], b'K', strides[1], 0x86]);
        pickle.extend_from_slice(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend_from_slice(b"u.");
    pickle
}

fn change_members(members: &mut Vec<Member>, random: &mut Random) {
    let (which, other) = (random.below(members.len()), random.below(members.len()));
    if members.is_empty() {
        return;
    }
    match random.below(12) {
        0 | 1 => members[which].deflated ^= true,
        2 => members[which].follows ^= true,
        3 => members.swap(which, other),
        4 if members.len() < MEMBERS => members.insert(other, members[which].clone()),
        5 => drop(members.remove(which)),
        6 => members[which].name = members[other].name.clone(),
        7 => {
            // Large ones now and then: they take time to compress.
            let most = if random.one_in(8) { 22 } else { 12 };
            let scale = random.below(most);
            let len = random.below(1 << scale).min(MAX);
            members[which].data.resize(len, 0);
            members[which].deflated |= len > 1000;
        }
        8 => {
            // A small member that a machine has long work with: instructions that leave nothing, or a lot.
            let piece = random.pick(&[
                &b"]0"[..],
                b"}0",
                b")0",
                b"]",
                b"K\x01",
                b"h\0",
                b"2",
                b"(",
                b"U\x01a0",
                b"J\0\0\0\x000",
            ]);
            let scale = if random.one_in(8) { 20 } else { 12 };
            let times = 1 << random.below(scale);
            let data = &mut members[which].data;
            let at = random.below(data.len());
            if data.len() + piece.len() * times <= MAX {
                drop(data.splice(at..at, piece.repeat(times)));
                members[which].deflated = true;
            }
        }
        _ => {
            let pickles = members.iter().position(|member| member.name.ends_with(b".pkl"));
            let member = &mut members[pickles.unwrap_or(which)];
            member.data = pickle::change(&member.data, MAX, random);
        }
    }
}

/// What a record says of a member: method, checksum, packed and whole size.
struct Claim([u64; 4]);

impl Claim {
    fn lie(&mut self, random: &mut Random) {
        let truth = &mut self.0[random.below(4)];
        *truth = match random.below(9) {
            0 => 0,
            1 => truth.wrapping_add(1),
            2 => truth.wrapping_sub(1),
            3 => truth.wrapping_mul(2),
            4 => *truth << 10,
            5 => u64::from(u32::MAX),
            6 => 0x7fff_ffff,
            7 => 1 << random.below(32),
            _ => random.below(300) as u64,
        };
    }

    fn write(&self, to: &mut Vec<u8>) {
        for value in &self.0[1..] {
            to.extend_from_slice(&(*value as u32).to_le_bytes());
        }
    }
}

fn write(members: &[Member], lies: usize, random: &mut Random) -> Vec<u8> {
    let lied: Vec<(usize, usize)> = (0..lies).map(|_| (random.below(members.len()), random.below(3))).collect();
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (number, member) in members.iter().enumerate() {
        let packed = if member.deflated { compress_to_vec(&member.data, 6) } else { member.data.clone() };
        let crc = u64::from(crc32fast::hash(&member.data));
        let method = if member.deflated { 8 } else { 0 };
        // In the own header, behind the data, in the directory.
        let mut claims = [0; 3].map(|_| Claim([method, crc, packed.len() as u64, member.data.len() as u64]));
        if member.follows {
            claims[0].0[1..].fill(0);
        }
        for (_, place) in lied.iter().filter(|(of, _)| *of == number) {
            claims[*place].lie(random);
        }
        let flags = if member.follows { 8u16 } else { 0 };
        let offset = archive.len() as u32;
        archive.extend_from_slice(b"PK\x03\x04\0\0");
        archive.extend_from_slice(&flags.to_le_bytes());
        archive.extend_from_slice(&(claims[0].0[0] as u16).to_le_bytes());
        archive.extend_from_slice(&[0; 4]);
        claims[0].write(&mut archive);
        archive.extend_from_slice(&(member.name.len() as u16).to_le_bytes());
        archive.extend_from_slice(&[0; 2]);
        archive.extend_from_slice(&member.name);
        archive.extend_from_slice(&packed);
        if member.follows {
            archive.extend_from_slice(b"PK\x07\x08");
            claims[1].write(&mut archive);
        }
        directory.extend_from_slice(b"PK\x01\x02\0\0\0\0");
        directory.extend_from_slice(&flags.to_le_bytes());
        directory.extend_from_slice(&(claims[2].0[0] as u16).to_le_bytes());
        directory.extend_from_slice(&[0; 4]);
        claims[2].write(&mut directory);
        directory.extend_from_slice(&(member.name.len() as u16).to_le_bytes());
        directory.extend_from_slice(&[0; 12]);
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(&member.name);
    }
    let start = archive.len() as u32;
    archive.extend_from_slice(&directory);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    for _ in 0..2 {
        archive.extend_from_slice(&(members.len() as u16).to_le_bytes());
    }
    archive.extend_from_slice(&(directory.len() as u32).to_le_bytes());
    archive.extend_from_slice(&start.to_le_bytes());
    archive.extend_from_slice(&[0; 2]);
    archive
}
