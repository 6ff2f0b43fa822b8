//! Deltas as trainers publish them, in folders `weight_v000012` (slime, miles, SkyRL, ModelExpress). The index has the versions before and after,
//! and the encoding of the changes. The tensors are bytes, each a zstd frame; their checksums are in the metadata of their files.

use std::collections::{BTreeMap, HashMap};

use crate::dtype::DType;
use crate::error::{Diagnostic, Result};
use crate::format::FileHeader;
use crate::rules;
use crate::tensor::{Element, TensorInfo};
use crate::text;

use super::checksum::ChecksumFormat;
use super::{DeltaDialect, DialectChange, DialectForm};

/// The keys of such an index below `metadata`.
pub(in crate::format) const KEYS: [&str; 5] =
    ["version", "base_version", "delta_encoding", "compression_format", "checksum_format"];
/// The prefix of folder names.
pub(super) const PREFIX: &str = "weight_v";
/// The compression of the frames.
const COMPRESSION: &str = "zstd";

/// The form that is called so in an index.
pub(super) fn encoding(name: &str) -> Result<DeltaDialect, String> {
    let known =
        DeltaDialect::of_name(name).filter(|dialect| matches!(dialect, DeltaDialect::Xor | DeltaDialect::Overwrite));
    known.ok_or_else(|| format!("delta_encoding '{}'; xor and overwrite are known", text::escape(name)))
}

impl DialectForm {
    /// The keys and values in the index.
    pub(crate) fn words(&self) -> BTreeMap<&'static str, &str> {
        let words = [&*self.version, &*self.base_version, self.dialect.name(), COMPRESSION, self.checksum.name()];
        KEYS.into_iter().zip(words).collect()
    }

    /// Of the values of the [`KEYS`], in their order.
    pub(in crate::format) fn of(words: [Option<String>; KEYS.len()]) -> Result<Self> {
        let refused = |cause: String| Diagnostic::new(rules::DELTA_HEADER, cause).format();
        if let Some(key) = KEYS.iter().zip(&words).find_map(|(key, word)| word.is_none().then_some(key)) {
            return Err(refused(format!("the metadata of the index have no {key}, which those of a delta have")));
        }
        let [version, base_version, encoded, compression, checksum] = words.map(Option::unwrap_or_default);
        let unknown = |cause: String| refused(format!("the index has the {cause}"));
        let dialect = encoding(&encoded).map_err(unknown)?;
        if compression != COMPRESSION {
            let word = text::escape(&compression);
            return Err(unknown(format!("compression_format '{word}'; {COMPRESSION} is known")));
        }
        let checksum = ChecksumFormat::of_name(&checksum).map_err(unknown)?;
        if version == base_version {
            return Err(refused(format!("it changes the version {} into itself", text::escape(&version))));
        }
        Ok(Self { dialect, version, base_version, checksum })
    }

    /// The content of one of its files, for the tensors that the index assigns to it.
    ///
    /// # Errors
    /// Other tensors; tensors that are not a row of bytes; missing or invalid checksums.
    pub(crate) fn changes(
        &self,
        file: &FileHeader,
        is_here: impl Fn(&str) -> bool,
    ) -> Result<Vec<(String, DialectChange)>> {
        let metadata: HashMap<&str, &str> =
            file.metadata.iter().flatten().map(|(key, value)| (&**key, &**value)).collect();
        let change = |info: TensorInfo<'_>| {
            let refused = |rule, cause: String| Diagnostic::new(rule, cause).tensor(info.name).format();
            if !is_here(info.name) {
                return Err(refused(rules::DELTA_HEADER, "the index does not put it into this file".to_owned()));
            }
            let (Element::Plain(DType::UInt8), [_]) = (info.element, info.shape) else {
                let (elements, shape) = (info.element, text::shape(info.shape));
                let cause =
                    format!("what changed is a row of bytes, but here are {elements} elements in the shape {shape}");
                return Err(refused(rules::DELTA_TENSOR, cause));
            };
            let missing = || "the metadata of the file have no checksum of it".to_owned();
            let checksum = metadata.get(info.name).ok_or_else(missing).and_then(|digits| self.checksum.parse(digits));
            let checksum = checksum.map_err(|cause| refused(rules::DELTA_HEADER, cause))?;
            Ok((info.name.to_owned(), DialectChange::Frame { dialect: self.dialect, frame: info.span, checksum }))
        };
        file.tensors.iter().map(change).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> [Option<String>; 5] {
        ["000012", "000011", "xor", "zstd", "adler32"].map(|word| Some(word.to_owned()))
    }

    #[test]
    fn an_index_says_all_five_words_and_knows_what_they_mean() {
        let form = DialectForm::of(words()).expect("a delta");
        assert_eq!((form.dialect, form.checksum), (DeltaDialect::Xor, ChecksumFormat::Adler32));
        assert_eq!(KEYS.map(|key| Some(form.words()[key].to_owned())), words());
        for (number, word, sentence) in [
            (0, None, "have no version"),
            (1, Some("000012"), "the version 000012 into itself"),
            (2, Some("and"), "delta_encoding 'and'"),
            (2, Some("sparse"), "delta_encoding 'sparse'"),
            (3, Some("lz4"), "compression_format 'lz4'"),
            (4, Some("md5"), "checksum_format 'md5'"),
        ] {
            let mut words = words();
            words[number] = word.map(str::to_owned);
            let error = DialectForm::of(words).expect_err("none").to_string();
            assert!(error.contains(sentence) && error.contains("[delta.header]"), "{error}");
        }
    }
}
