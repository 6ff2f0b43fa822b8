//! The parts of an input, and how it is composed from a changed header.

/// What the bytes of an input are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A whole file: the length of the header, the header, the data.
    File,
    /// The declared length of the file's data (64 bits, little-endian), and the header: so the length can be anything.
    Header,
    /// The index of a sharded checkpoint: JSON, and nothing else.
    Index,
    /// A whole GGUF file.
    Gguf,
    /// The declared length of the file's data (64 bits, little-endian), and the header of a GGUF file.
    GgufHeader,
    /// A pickle, or several.
    Pickle,
    /// A whole file of PyTorch.
    Torch,
    /// The same, changed member by member where it is an archive.
    Archive,
    /// Names, as the target `names` takes them apart.
    Names,
    /// A row of choices.
    Program,
}

impl Layout {
    /// True if an input begins with a length, of its header or of its data.
    fn has_length(self) -> bool {
        matches!(self, Self::File | Self::Header | Self::GgufHeader)
    }

    /// The header in an input, possibly truncated.
    pub fn header(self, input: &[u8]) -> &[u8] {
        if !self.has_length() {
            return input;
        }
        let Some((length, rest)) = input.split_first_chunk::<8>() else { return &[] };
        if self != Self::File {
            return rest;
        }
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        &rest[..length.min(rest.len())]
    }

    /// The bytes of data in an input, or that it declares.
    pub fn data_len(self, input: &[u8]) -> u64 {
        match (self, input.first_chunk::<8>()) {
            (Self::Header | Self::GgufHeader, Some(length)) => u64::from_le_bytes(*length),
            (Self::File, Some(_)) => (input.len() - 8 - self.header(input).len()) as u64,
            _ => 0,
        }
    }

    /// An input of at most `most` bytes with this header, for `data` bytes of data.
    pub fn input(self, header: &[u8], data: u64, most: usize) -> Vec<u8> {
        if !self.has_length() {
            return header[..header.len().min(most)].to_vec();
        }
        let header = &header[..header.len().min(most.saturating_sub(8))];
        let first = if matches!(self, Self::Header | Self::GgufHeader) { data } else { header.len() as u64 };
        let mut input = [&first.to_le_bytes(), header].concat();
        if self == Self::File {
            let buffer = most.saturating_sub(input.len()) as u64;
            let start = input.len();
            input.resize(start + data.min(buffer) as usize, 0);
            for (i, byte) in input[start..].iter_mut().enumerate() {
                *byte = (i as u8).wrapping_mul(31).wrapping_add(7);
            }
        }
        input.truncate(most);
        input
    }
}
