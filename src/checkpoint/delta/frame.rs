//! What a zstd frame of a delta of another library unpacks to, and how it changes a tensor, a part at a time.

use crate::budget;
use crate::error::{Error, Result};
use crate::format::delta::published::Hasher;

/// What is hashed at a time of a tensor that is not changed yet.
const PART: usize = 128 << 10;

/// The tensor of the base, which is read before it is changed.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    /// Fills some bytes of the tensor, from this one on.
    pub(super) read: &'a dyn Fn(usize, &mut [u8]) -> Result<()>,
    /// Whether to read it in parts, each of which is changed while the processor's cache has it; or all of it at once, as over a network.
    pub(super) in_parts: bool,
}

impl Base<'_> {
    fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), Stop> {
        (self.read)(start, bytes).map_err(Stop::Failed)
    }
}

/// Why a tensor is not changed any further.
pub(super) enum Stop {
    /// What changed is wrong, for this reason.
    Wrong(String),
    Failed(Error),
}

impl From<String> for Stop {
    fn from(cause: String) -> Self {
        Self::Wrong(cause)
    }
}

/// Who changes a tensor by what a frame unpacks to.
pub(super) trait Take {
    fn take(&mut self, part: &[u8]) -> Result<(), Stop>;

    fn finish(&self) -> Result<(), String>;
}

/// Each byte is that before and after, combined.
pub(super) struct Xor<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) at: usize,
    /// What the bytes are before, if they are to be read.
    pub(super) base: Option<Base<'a>>,
    pub(super) hasher: Option<&'a mut Hasher>,
}

impl Take for Xor<'_> {
    fn take(&mut self, part: &[u8]) -> Result<(), Stop> {
        let (len, start) = (self.bytes.len(), self.at);
        let Some(bytes) = self.bytes.get_mut(start..start + part.len()) else {
            return Err(too_much(len));
        };
        self.base.map_or(Ok(()), |base| base.read(start, bytes))?;
        bytes.iter_mut().zip(part).for_each(|(byte, change)| *byte ^= change);
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.at += part.len();
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        is_all(self.at, self.bytes.len())
    }
}

/// The same of bytes that are left as they are: what they would be is hashed.
pub(super) struct XorOf<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) hasher: &'a mut Hasher,
    pub(super) room: Vec<u8>,
}

impl Take for XorOf<'_> {
    fn take(&mut self, part: &[u8]) -> Result<(), Stop> {
        let Some(bytes) = self.bytes.get(self.at..self.at + part.len()) else { return Err(too_much(self.bytes.len())) };
        self.room.clear();
        self.room.extend(bytes.iter().zip(part).map(|(byte, change)| byte ^ change));
        self.hasher.update(&self.room);
        self.at += part.len();
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        is_all(self.at, self.bytes.len())
    }
}

fn too_much(len: usize) -> Stop {
    format!("what changed unpacks to more than the {len} bytes of the tensor").into()
}

fn is_all(at: usize, len: usize) -> Result<(), String> {
    if at == len {
        return Ok(());
    }
    Err(format!("what changed unpacks to {at} bytes, but the tensor has {len}"))
}

/// How many bytes are replaced, the place of each, and then what is there now; numbers of 32 bits.
pub(super) struct Overwrite {
    /// Bytes of the tensor.
    len: usize,
    /// The bytes of a number that is in two parts.
    word: Vec<u8>,
    count: Option<u32>,
    places: Vec<u32>,
    values: Vec<u8>,
}

impl Overwrite {
    pub(super) fn new(len: usize) -> Self {
        Self { len, word: Vec::new(), count: None, places: Vec::new(), values: Vec::new() }
    }

    /// Replaces the bytes of the tensor; returns whether any was another.
    pub(super) fn write(&self, bytes: &mut [u8]) -> bool {
        let mut is_other = false;
        for (place, value) in self.places.iter().zip(&self.values) {
            if let Some(byte) = bytes.get_mut(*place as usize) {
                is_other |= *byte != *value;
                *byte = *value;
            }
        }
        is_other
    }

    /// Hands on what the bytes of the tensor would be, a part at a time.
    pub(super) fn hash(&self, bytes: &[u8], hasher: &mut Hasher) {
        let (mut changes, mut room) = (self.places.iter().zip(&self.values).peekable(), Vec::new());
        for (start, part) in (0..).step_by(PART).zip(bytes.chunks(PART)) {
            room.clear();
            room.extend_from_slice(part);
            while let Some((place, value)) = changes.next_if(|(place, _)| (**place as usize) < start + part.len()) {
                room[*place as usize - start] = *value;
            }
            hasher.update(&room);
        }
    }

    /// Takes the number of bytes, and then places.
    fn add(&mut self, numbers: &[[u8; 4]]) -> Result<(), String> {
        let (len, mut numbers) = (self.len, numbers.iter().map(|number| u32::from_le_bytes(*number)));
        if self.count.is_none() {
            let Some(count) = numbers.next() else { return Ok(()) };
            if count as usize > len {
                return Err(format!("{count} bytes are replaced, but the tensor has {len}"));
            }
            self.count = Some(count);
        }
        budget::reserve(&mut self.places, numbers.len()).map_err(|short| Error::from(short).to_string())?;
        for number in numbers {
            let (position, before) = (self.places.len(), self.places.last().copied());
            if let Some(before) = before.filter(|before| *before >= number) {
                let cause = if before == number { "twice" } else { "out of order" };
                return Err(format!("its place {position}, the byte {number}, is there {cause}: places rise"));
            }
            if number as usize >= len {
                return Err(format!("its place {position} is the byte {number}, but the tensor has {len}"));
            }
            self.places.push(number);
        }
        Ok(())
    }

    /// How many numbers are to come before the values.
    fn numbers(&self) -> usize {
        self.count.map_or(1, |count| count as usize - self.places.len())
    }
}

impl Take for Overwrite {
    fn take(&mut self, mut part: &[u8]) -> Result<(), Stop> {
        while self.numbers() > 0 {
            if self.word.is_empty() && part.len() >= size_of::<u32>() {
                let (numbers, _) = part.as_chunks();
                // The first number says how many follow.
                let numbers = &numbers[..numbers.len().min(self.numbers())];
                self.add(numbers)?;
                part = &part[size_of_val(numbers)..];
                continue;
            }
            let (now, rest) = part.split_at(part.len().min(size_of::<u32>() - self.word.len()));
            self.word.extend_from_slice(now);
            part = rest;
            let Ok(word) = <[u8; 4]>::try_from(&*self.word) else { return Ok(()) };
            self.word.clear();
            self.add(&[word])?;
        }
        if part.len() > self.places.len() - self.values.len() {
            return Err(format!("more follows its {} places and their bytes", self.places.len()).into());
        }
        budget::reserve(&mut self.values, part.len()).map_err(|short| Stop::Failed(short.into()))?;
        self.values.extend_from_slice(part);
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        match self.count {
            None => Err("what changed unpacks to nothing".to_owned()),
            Some(count) if self.values.len() != count as usize => Err(format!(
                "it is about {count} bytes, but has {} places and {} bytes",
                self.places.len(),
                self.values.len()
            )),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::delta::published::ChecksumFormat;

    #[test]
    fn bytes_are_overwritten_however_what_says_so_is_divided() {
        let mut record: Vec<u8> = [3_u32, 0, 5, 6].into_iter().flat_map(u32::to_le_bytes).collect();
        record.extend([7, 8, 9]);
        for step in 1..=record.len() {
            let mut taker = Overwrite::new(7);
            record.chunks(step).for_each(|part| assert!(taker.take(part).is_ok()));
            taker.finish().expect("all of it");
            let mut bytes = [0; 7];
            assert!(taker.write(&mut bytes) && !taker.write(&mut bytes));
            assert_eq!(bytes, [7, 0, 0, 0, 0, 8, 9]);
        }
    }

    #[test]
    fn what_bytes_would_be_is_hashed_as_what_they_are_then() {
        let len = 3 * PART + 5;
        let places = [0, 1, PART - 1, PART, 2 * PART + 3, len - 1];
        let mut record: Vec<u8> =
            [&[places.len()], &places[..]].concat().iter().flat_map(|number| (*number as u32).to_le_bytes()).collect();
        record.extend(1..=6);
        let mut taker = Overwrite::new(len);
        assert!(taker.take(&record).is_ok());
        let mut bytes = vec![9; len];
        let hash = |work: &dyn Fn(&mut Hasher)| {
            let mut hasher = Hasher::new(ChecksumFormat::Xxh3);
            work(&mut hasher);
            hasher.finish()
        };
        let would_be = hash(&|hasher| taker.hash(&bytes, hasher));
        assert_ne!(would_be, hash(&|hasher| hasher.update(&bytes)));
        assert!(taker.write(&mut bytes));
        assert_eq!(would_be, hash(&|hasher| hasher.update(&bytes)));
    }

    #[test]
    fn records_that_are_none_are_named() {
        let refused = |numbers: &[u32], values: &[u8]| {
            let mut record: Vec<u8> = numbers.iter().copied().flat_map(u32::to_le_bytes).collect();
            record.extend(values);
            let mut taker = Overwrite::new(7);
            match taker.take(&record) {
                Ok(()) => taker.finish().expect_err("none"),
                Err(Stop::Wrong(cause)) => cause,
                Err(Stop::Failed(error)) => panic!("{error}"),
            }
        };
        assert!(refused(&[8], &[]).contains("8 bytes are replaced, but the tensor has 7"));
        assert!(refused(&[2, 3, 3], &[1, 2]).contains("is there twice"));
        assert!(refused(&[2, 3, 1], &[1, 2]).contains("is there out of order"));
        assert!(refused(&[1, 7], &[1]).contains("the byte 7, but the tensor has 7"));
        assert!(refused(&[1, 6], &[]).contains("1 places and 0 bytes"));
        assert!(refused(&[1, 6], &[1, 2]).contains("more follows"));
        assert!(refused(&[], &[]).contains("to nothing"));
    }
}
