//! Checkpoints of torch.distributed.checkpoint made by hand, so that everything in them can be made to lie.

#![allow(clippy::expect_used)] // helpers of tests fail as tests do

use std::fs;
use std::path::{Path, PathBuf};

use crate::zip_files::{Part, Zip};

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const FILESYSTEM: &str = "torch.distributed.checkpoint.filesystem";

/// A chunk of a tensor, and where `storage_data` says that it is.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) offsets: Vec<i64>,
    pub(crate) sizes: Vec<i64>,
    /// The file, the first byte and the length; none for a chunk that storage_data leaves out.
    pub(crate) item: Option<(String, i64, i64)>,
}

/// A checkpoint to be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folder {
    /// Name, shape and chunks of each tensor, of float32.
    pub(crate) tensors: Vec<(String, Vec<i64>, Vec<Chunk>)>,
    /// Values that are not tensors: name, file, first byte and length.
    pub(crate) values: Vec<(String, (String, i64, i64))>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// The value of planner_data.
    pub(crate) planner: Vec<u8>,
    /// Descriptors of all items.
    pub(crate) transform: Option<String>,
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn number(number: i64) -> Vec<u8> {
    format!("L{number}L\n").into_bytes()
}

fn tuple(members: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    [b"(".to_vec(), members.into_iter().flatten().collect(), b"t".to_vec()].concat()
}

fn list(members: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    [b"](".to_vec(), members.into_iter().flatten().collect(), b"e".to_vec()].concat()
}

fn dict(entries: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Vec<u8> {
    [b"}(".to_vec(), entries.into_iter().flat_map(|(key, value)| [key, value].concat()).collect(), b"u".to_vec()]
        .concat()
}

fn instance(module: &str, class: &str, state: &[u8]) -> Vec<u8> {
    [format!("c{module}\n{class}\n").as_bytes(), b")\x81", state, b"b"].concat()
}

/// An instance of a class of the metadata with these attributes.
pub(crate) fn object(module: &str, class: &str, attributes: &[(&str, Vec<u8>)]) -> Vec<u8> {
    instance(module, class, &dict(attributes.iter().map(|(name, value)| (text(name), value.clone()))))
}

fn size(dims: &[i64]) -> Vec<u8> {
    [b"ctorch\nSize\n".to_vec(), tuple(dims.iter().map(|dim| number(*dim))), b"\x85R".to_vec()].concat()
}

impl Folder {
    /// The pickle `.metadata`.
    pub(crate) fn metadata(&self) -> Vec<u8> {
        let (mut states, mut storage) = (Vec::new(), Vec::new());
        for (name, shape, chunks) in &self.tensors {
            let properties = tuple([b"ctorch\nfloat32\n".to_vec(), b"N".to_vec(), b"\x89".to_vec()]);
            let properties = instance(METADATA, "TensorProperties", &properties);
            let chunk = |chunk: &Chunk| {
                let attributes = [("offsets", size(&chunk.offsets)), ("sizes", size(&chunk.sizes))];
                object(METADATA, "ChunkStorageMetadata", &attributes)
            };
            let attributes =
                [("properties", properties), ("size", size(shape)), ("chunks", list(chunks.iter().map(chunk)))];
            states.push((text(name), object(METADATA, "TensorStorageMetadata", &attributes)));
            for chunk in chunks {
                let Some((file, offset, length)) = &chunk.item else { continue };
                let index = [("fqn", text(name)), ("offset", size(&chunk.offsets)), ("index", b"N".to_vec())];
                let mut info =
                    vec![("relative_path", text(file)), ("offset", number(*offset)), ("length", number(*length))];
                info.extend(self.transform.iter().map(|name| ("transform_descriptors", list([text(name)]))));
                let index = object(METADATA, "MetadataIndex", &index);
                storage.push((index, object(FILESYSTEM, "_StorageInfo", &info)));
            }
        }
        for (name, (file, offset, length)) in &self.values {
            states.push((text(name), object(METADATA, "BytesStorageMetadata", &[])));
            let index = object(METADATA, "MetadataIndex", &[("fqn", text(name))]);
            let mut info =
                vec![("relative_path", text(file)), ("offset", number(*offset)), ("length", number(*length))];
            info.extend(self.transform.iter().map(|name| ("transform_descriptors", list([text(name)]))));
            storage.push((index, object(FILESYSTEM, "_StorageInfo", &info)));
        }
        let planner = if self.planner.is_empty() { b"N".to_vec() } else { self.planner.clone() };
        let attributes = [
            ("state_dict_metadata", dict(states)),
            ("planner_data", planner),
            ("storage_data", dict(storage)),
            ("version", text("1.0.0")),
        ];
        [b"\x80\x02".to_vec(), object(METADATA, "Metadata", &attributes), b".".to_vec()].concat()
    }

    /// Writes it into a new folder.
    pub(crate) fn write(&self) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        self.write_to(folder.path());
        let path = folder.path().to_path_buf();
        (folder, path)
    }

    fn write_to(&self, folder: &Path) {
        for (name, bytes) in &self.files {
            fs::write(folder.join(name), bytes).expect("written");
        }
        fs::write(folder.join(".metadata"), self.metadata()).expect("written");
    }
}

/// What torch.save makes of a tensor of float32 with these strides.
pub(crate) fn item(values: &[f32], shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let reference =
        [text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu"), number(values.len() as i64)];
    let dims = |dims: &[i64]| tuple(dims.iter().map(|dim| number(*dim)));
    let arguments = [
        [tuple(reference), b"Q".to_vec()].concat(),
        number(0),
        dims(shape),
        dims(strides),
        b"\x89".to_vec(),
        b"ccollections\nOrderedDict\n)R".to_vec(),
    ];
    let call = [b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n".to_vec(), tuple(arguments), b"R.".to_vec()].concat();
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    saved(&call, &data)
}

/// The archive that torch.save makes of a pickle and one storage.
pub(crate) fn saved(pickle: &[u8], data: &[u8]) -> Vec<u8> {
    let parts = [
        Part::stored("archive/data.pkl", pickle),
        Part::stored("archive/byteorder", "little"),
        Part::stored("archive/data/0", data),
        Part::stored("archive/version", "3\n"),
    ];
    Zip::new(&parts).bytes
}

/// A tensor `w` of 4 x 2 in two pieces of rows, each in the file of its rank behind a few bytes.
pub(crate) fn two_ranks() -> Folder {
    let mut folder = Folder::default();
    let mut chunks = Vec::new();
    for rank in 0..2_i64 {
        let values: Vec<f32> = (0..4).map(|value| (rank * 4 + value) as f32).collect();
        let (name, item) = (format!("__{rank}_0.distcp"), item(&values, &[2, 2], &[2, 1]));
        let place = Some((name.clone(), 7, item.len() as i64));
        chunks.push(Chunk { offsets: vec![rank * 2, 0], sizes: vec![2, 2], item: place });
        folder.files.push((name, [b"another".to_vec(), item].concat()));
    }
    folder.tensors.push(("w".to_owned(), vec![4, 2], chunks));
    folder
}
