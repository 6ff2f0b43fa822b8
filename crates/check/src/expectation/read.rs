//! Reading a specification. What is wrong with it is said with the place in it, such as `tensors."lm_head.weight".shape[1]`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use max_weights::text::shown;
use max_weights::{DType, Encoding, Error, Result};

use super::glob::Glob;
use super::json::Json;
use super::{Bounds, Count, Dim, Expectation, Extra, SCHEMA, Wanted};

/// Bytes of a specification at most: a quarter of a million tensors take 30 MB.
const MAX_BYTES: u64 = 256 << 20;

impl Expectation {
    /// Reads a specification.
    ///
    /// # Errors
    /// A file that cannot be read; [`Error::Argument`] where it is not a specification, with the place in it.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(path, "read the specification", error);
        let mut text = Vec::new();
        File::open(path).map_err(failed)?.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(Error::Argument(format!("{}: a specification has at most {MAX_BYTES} bytes", at(path))));
        }
        Self::parse(&text).map_err(|error| match error {
            Error::Argument(cause) => Error::Argument(format!("{}: {cause}", at(path))),
            other => other,
        })
    }

    /// The same of a string.
    ///
    /// # Errors
    /// [`Error::Argument`] where it is not a specification, with the place in it.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let json = serde_json::from_slice(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            Error::Argument(format!("this is not valid JSON at line {line}, column {column}: {what}"))
        })?;
        let pairs = object("the specification", &json)?;
        let has = |key: &str| pairs.iter().any(|(there, _)| there == key);
        if !has("schema") {
            let is_config = has("model_type") || has("architectures");
            let but = if is_config {
                "; this is the configuration of a model, which transformers can turn into a specification"
            } else {
                ""
            };
            return Err(Error::Argument(format!("there is no \"schema\"; a specification has \"{SCHEMA}\"{but}")));
        }
        let mut found = Self::default();
        for (key, value) in pairs {
            match key.as_str() {
                "schema" => {
                    if *value != Json::Text(SCHEMA.to_owned()) {
                        return wrong("schema", value, &format!("\"{SCHEMA}\""));
                    }
                }
                "tensors" => {
                    for (name, value) in object("tensors", value)? {
                        found.tensors.push(wanted(name, value)?);
                    }
                }
                "symbols" => {
                    for (name, value) in object("symbols", value)? {
                        let number = count(&format!("symbols.{}", quoted(name)), value)?;
                        found.symbols.insert(name.clone(), number);
                    }
                }
                "allow_extra" => found.extra = extra(value)?,
                "ties" => {
                    for (number, group) in list("ties", value)?.iter().enumerate() {
                        let place = format!("ties[{number}]");
                        let names = texts(&place, list(&place, group)?)?;
                        if names.len() < 2 {
                            return wrong(&place, group, "a list of at least two names");
                        }
                        found.ties.push(names);
                    }
                }
                "parameters" => found.parameters = Some(bounds("parameters", value)?),
                "metadata" => found.metadata = metadata(value)?,
                // For whoever reads it.
                "description" => {}
                _ => return unknown("the specification", key),
            }
        }
        Ok(found)
    }
}

fn at(path: &Path) -> String {
    max_weights::text::path(path)
}

/// A key as it is in a place.
fn quoted(key: &str) -> String {
    format!("\"{}\"", shown(key))
}

fn wrong<T>(place: &str, found: &Json, expected: &str) -> Result<T> {
    let found = match found {
        Json::Text(text) => quoted(text),
        Json::Number(number) => number.to_string(),
        Json::Count(number) => number.to_string(),
        Json::List(list) if list.is_empty() => "an empty list".to_owned(),
        other => other.kind().to_owned(),
    };
    Err(Error::Argument(format!("{place}: {expected} is expected, not {found}")))
}

fn unknown<T>(place: &str, key: &str) -> Result<T> {
    Err(Error::Argument(format!("{place}: unknown key {}", quoted(key))))
}

fn object<'a>(place: &str, value: &'a Json) -> Result<&'a [(String, Json)]> {
    if let Json::Object(pairs) = value { Ok(pairs) } else { wrong(place, value, "an object") }
}

fn list<'a>(place: &str, value: &'a Json) -> Result<&'a [Json]> {
    if let Json::List(list) = value { Ok(list) } else { wrong(place, value, "a list") }
}

fn count(place: &str, value: &Json) -> Result<u64> {
    if let Json::Count(number) = value { Ok(*number) } else { wrong(place, value, "a count") }
}

fn texts(place: &str, list: &[Json]) -> Result<Vec<String>> {
    let text = |(number, value): (usize, &Json)| match value {
        Json::Text(text) => Ok(text.clone()),
        other => wrong(&format!("{place}[{number}]"), other, "a string"),
    };
    list.iter().enumerate().map(text).collect()
}

fn glob(place: &str, text: &str) -> Result<Glob> {
    Glob::parse(text).map_err(|why| Error::Argument(format!("{place}: {why}")))
}

fn wanted(name: &str, value: &Json) -> Result<Wanted> {
    let place = format!("tensors.{}", quoted(name));
    let mut found = Wanted { name: glob(&place, name)?, shape: None, dtypes: Vec::new(), optional: false, count: None };
    for (key, value) in object(&place, value)? {
        let place = format!("{place}.{key}");
        match (key.as_str(), value) {
            ("shape" | "dtype", Json::Null) => {}
            ("shape", value) => {
                let dims = list(&place, value)?.iter().enumerate();
                let dims = dims.map(|(number, value)| dim(&format!("{place}[{number}]"), value));
                found.shape = Some(dims.collect::<Result<_>>()?);
            }
            ("dtype", Json::Text(name)) => found.dtypes = vec![dtype(&place, name)?],
            ("dtype", value) => {
                let names = texts(&place, list(&place, value)?)?;
                if names.is_empty() {
                    return wrong(&place, value, "a list of dtypes");
                }
                let names = names.iter().enumerate();
                let names = names.map(|(number, name)| dtype(&format!("{place}[{number}]"), name));
                found.dtypes = names.collect::<Result<_>>()?;
            }
            ("optional", Json::Bool(optional)) => found.optional = *optional,
            ("optional", value) => return wrong(&place, value, "true or false"),
            ("count", Json::Text(symbol)) => found.count = Some(Count::Symbol(symbol.clone())),
            ("count", value) => found.count = Some(Count::Bounds(bounds(&place, value)?)),
            _ => return unknown(&format!("tensors.{}", quoted(name)), key),
        }
    }
    Ok(found)
}

fn dim(place: &str, value: &Json) -> Result<Dim> {
    match value {
        Json::Count(number) => Ok(Dim::Exact(*number)),
        Json::Text(text) if text == "*" => Ok(Dim::Any),
        Json::Text(text) if !text.is_empty() => Ok(Dim::Symbol(text.clone())),
        other => wrong(place, other, "a number, a symbol or \"*\""),
    }
}

/// A dtype by its name here, in safetensors files or in GGUF files, or one that only PyTorch has.
fn dtype(place: &str, name: &str) -> Result<String> {
    let plain = DType::all().find(|dtype| dtype.name() == name || dtype.safetensors_name() == name);
    let packed = Encoding::from_name(name);
    let torch = max_weights::tensor::TorchDType::from_name(name);
    match (plain, packed, torch) {
        (Some(dtype), ..) => Ok(dtype.name().to_owned()),
        (None, None, None) => {
            let names: Vec<&str> = DType::all().map(DType::name).collect();
            let names = names.join(", ");
            let cause =
                format!("{place}: {} is not a dtype; known are {names}, and the encodings of GGUF", quoted(name));
            Err(Error::Argument(cause))
        }
        _ => Ok(name.to_owned()),
    }
}

fn extra(value: &Json) -> Result<Extra> {
    match value {
        Json::Bool(true) => Ok(Extra::All),
        Json::Bool(false) => Ok(Extra::default()),
        Json::List(patterns) => {
            let names = texts("allow_extra", patterns)?;
            let names = names.iter().enumerate().map(|(number, name)| glob(&format!("allow_extra[{number}]"), name));
            names.collect::<Result<_>>().map(Extra::These)
        }
        other => wrong("allow_extra", other, "true, false or a list of patterns"),
    }
}

fn bounds(place: &str, value: &Json) -> Result<Bounds> {
    let pairs = match value {
        Json::Count(number) => return Ok(Bounds::exact(*number)),
        Json::Object(pairs) if !pairs.is_empty() => pairs,
        other => return wrong(place, other, "a number, or an object of \"exact\", or \"min\" and \"max\","),
    };
    let mut found = Bounds::default();
    for (key, value) in pairs {
        let number = count(&format!("{place}.{key}"), value)?;
        match key.as_str() {
            "exact" => found = Bounds::exact(number),
            "min" => found.min = Some(number),
            "max" => found.max = Some(number),
            _ => return unknown(place, key),
        }
    }
    Ok(found)
}

fn metadata(value: &Json) -> Result<Vec<(String, Option<String>)>> {
    if let Json::List(keys) = value {
        return Ok(texts("metadata", keys)?.into_iter().map(|key| (key, None)).collect());
    }
    let pairs = object("metadata", value)?;
    let pair = |(key, value): &(String, Json)| match value {
        Json::Null => Ok((key.clone(), None)),
        Json::Text(text) => Ok((key.clone(), Some(text.clone()))),
        Json::Count(number) => Ok((key.clone(), Some(number.to_string()))),
        Json::Number(number) => Ok((key.clone(), Some(number.to_string()))),
        Json::Bool(value) => Ok((key.clone(), Some(value.to_string()))),
        other => wrong(&format!("metadata.{}", quoted(key)), other, "a string, a number or null"),
    };
    pairs.iter().map(pair).collect()
}
