//! Reads a specification. Errors name the place in it, such as `tensors."lm_head.weight".shape[1]`.

use std::path::Path;

use max_weights::text::escape;
use max_weights::workers::stopped_here;
use max_weights::{DType, Encoding, Error, Result};
use serde_json::{Map, Value};

use super::{Bounds, Dim, Expectation, ExpectedCount, ExpectedTensor, ExtraTensors, SCHEMA};
use crate::bytes::read_file;
use crate::glob::Glob;
use crate::json::{Document, JsonDialect};

/// Bytes of a specification at most: a quarter of a million tensors take 30 MB.
const MAX_BYTES: u64 = 256 << 20;
/// Values of a specification at most, those with a name counted as three: a tensor has about twelve.
const MAX_VALUES: usize = 40_000_000;

impl Expectation {
    /// Reads a specification.
    ///
    /// # Errors
    /// A file that cannot be read; [`Error::Argument`] where it is not a specification, with the place in it.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(path, "read the specification", error);
        let Some(text) = read_file(path, MAX_BYTES, &stopped_here).map_err(failed)? else {
            return Err(Error::Argument(format!("{}: a specification has at most {MAX_BYTES} bytes", at(path))));
        };
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
        let no_json = |why| Error::Argument(format!("this is not valid JSON: {why}"));
        let Document { value, duplicates } = Document::read(text, JsonDialect::Python, MAX_VALUES).map_err(no_json)?;
        if let Some((key, _)) = duplicates.first() {
            return Err(no_json(format!("the key {} appears twice", quoted(key))));
        }
        let pairs = object("the specification", &value)?;
        let has = |key: &str| pairs.contains_key(key);
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
                    if value != SCHEMA {
                        return wrong("schema", value, &format!("\"{SCHEMA}\""));
                    }
                }
                "tensors" => {
                    for (name, value) in object("tensors", value)? {
                        found.tensors.push(requested(name, value)?);
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
                // For readers only.
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

/// A key as it appears in a place.
fn quoted(key: &str) -> String {
    format!("\"{}\"", escape(key))
}

fn wrong<T>(place: &str, found: &Value, expected: &str) -> Result<T> {
    let found = match found {
        Value::String(text) => quoted(text),
        Value::Number(number) => number.to_string(),
        Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Null => "null".to_owned(),
    };
    Err(Error::Argument(format!("{place}: {expected} is expected, not {found}")))
}

fn unknown<T>(place: &str, key: &str) -> Result<T> {
    Err(Error::Argument(format!("{place}: unknown key {}", quoted(key))))
}

fn object<'a>(place: &str, value: &'a Value) -> Result<&'a Map<String, Value>> {
    value.as_object().map_or_else(|| wrong(place, value, "an object"), Ok)
}

fn list<'a>(place: &str, value: &'a Value) -> Result<&'a [Value]> {
    value.as_array().map_or_else(|| wrong(place, value, "a list"), |list| Ok(list.as_slice()))
}

fn count(place: &str, value: &Value) -> Result<u64> {
    value.as_u64().map_or_else(|| wrong(place, value, "a count"), Ok)
}

fn texts(place: &str, list: &[Value]) -> Result<Vec<String>> {
    let text = |(number, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.clone()),
        other => wrong(&format!("{place}[{number}]"), other, "a string"),
    };
    list.iter().enumerate().map(text).collect()
}

fn glob(place: &str, text: &str) -> Result<Glob> {
    Glob::parse(text).map_err(|why| Error::Argument(format!("{place}: {why}")))
}

fn requested(name: &str, value: &Value) -> Result<ExpectedTensor> {
    let place = format!("tensors.{}", quoted(name));
    let mut found =
        ExpectedTensor { name: glob(&place, name)?, shape: None, dtypes: Vec::new(), optional: false, count: None };
    for (key, value) in object(&place, value)? {
        let place = format!("{place}.{key}");
        match (key.as_str(), value) {
            ("shape" | "dtype", Value::Null) => {}
            ("shape", value) => {
                let dims = list(&place, value)?.iter().enumerate();
                let dims = dims.map(|(number, value)| dim(&format!("{place}[{number}]"), value));
                found.shape = Some(dims.collect::<Result<_>>()?);
            }
            ("dtype", Value::String(name)) => found.dtypes = vec![dtype(&place, name)?],
            ("dtype", value) => {
                let names = texts(&place, list(&place, value)?)?;
                if names.is_empty() {
                    return wrong(&place, value, "a list of dtypes");
                }
                let names = names.iter().enumerate();
                let names = names.map(|(number, name)| dtype(&format!("{place}[{number}]"), name));
                found.dtypes = names.collect::<Result<_>>()?;
            }
            ("optional", Value::Bool(optional)) => found.optional = *optional,
            ("optional", value) => return wrong(&place, value, "true or false"),
            ("count", Value::String(symbol)) => found.count = Some(ExpectedCount::Symbol(symbol.clone())),
            ("count", value) => found.count = Some(ExpectedCount::Bounds(bounds(&place, value)?)),
            _ => return unknown(&format!("tensors.{}", quoted(name)), key),
        }
    }
    Ok(found)
}

fn dim(place: &str, value: &Value) -> Result<Dim> {
    match value {
        Value::Number(number) if number.is_u64() => count(place, value).map(Dim::Exact),
        Value::String(text) if text == "*" => Ok(Dim::Any),
        Value::String(text) if !text.is_empty() => Ok(Dim::Symbol(text.clone())),
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

fn extra(value: &Value) -> Result<ExtraTensors> {
    match value {
        Value::Bool(true) => Ok(ExtraTensors::All),
        Value::Bool(false) => Ok(ExtraTensors::default()),
        Value::Array(patterns) => {
            let names = texts("allow_extra", patterns)?;
            let names = names.iter().enumerate().map(|(number, name)| glob(&format!("allow_extra[{number}]"), name));
            names.collect::<Result<_>>().map(ExtraTensors::These)
        }
        other => wrong("allow_extra", other, "true, false or a list of patterns"),
    }
}

fn bounds(place: &str, value: &Value) -> Result<Bounds> {
    let pairs = match value {
        Value::Number(number) if number.is_u64() => return count(place, value).map(Bounds::exact),
        Value::Object(pairs) if !pairs.is_empty() => pairs,
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

fn metadata(value: &Value) -> Result<Vec<(String, Option<String>)>> {
    if let Value::Array(keys) = value {
        return Ok(texts("metadata", keys)?.into_iter().map(|key| (key, None)).collect());
    }
    let pairs = object("metadata", value)?;
    let pair = |(key, value): (&String, &Value)| match value {
        Value::Null => Ok((key.clone(), None)),
        Value::String(text) => Ok((key.clone(), Some(text.clone()))),
        Value::Number(number) => Ok((key.clone(), Some(number.to_string()))),
        Value::Bool(value) => Ok((key.clone(), Some(value.to_string()))),
        other => wrong(&format!("metadata.{}", quoted(key)), other, "a string, a number or null"),
    };
    pairs.iter().map(pair).collect()
}
