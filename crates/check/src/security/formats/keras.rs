//! Keras' configurations, in archives and in HDF5: layers that hold code, and names that the loader imports and calls.

use max_weights::rules;
use max_weights::rules::Rule;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};
use serde_json::{Map, Value};

use crate::context::{ByteSpan, FileContext};
use crate::dangerous::is_dangerous_in_model;
use crate::security::archive::{leads_out, scan_inside};
use crate::security::base64;
use crate::words;

/// The longest configuration that is read. Those of the largest models have a few megabytes, and values take many times their text in memory.
pub(super) const MAX_CONFIG: usize = 16 << 20;
/// Objects in objects; serde_json itself stops at 128.
const MAX_DEPTH: usize = 128;
/// What is in compiled code that runs commands or loads more code.
const DANGEROUS_BYTES: &str = "
    system popen subprocess __import__ exec eval socket urllib requests pickle marshal builtins \x02os execve";
/// Modules of Keras whose classes and functions models consist of.
const PARTS: &str = "
    layers models initializers optimizers losses metrics regularizers constraints activations dtype_policies random ops engine applications
    quantizers distillation mixed_precision legacy backend.common.keras_tensor backend.torch.optimizers utils.generic_utils";
/// Those of which no function is a part of a model: they load and make whole models.
const WITHOUT_FUNCTIONS: &str = "models legacy engine distillation quantizers dtype_policies";
/// Modules of TensorFlow whose operations no layer uses.
const OUTSIDE: &str = "
    io raw_ops py_function numpy_function py_func eager_py_func load_op_library load_library saved_model data summary print";
/// The classes of `keras.layers`.
const LAYERS: &str = "Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D \
    AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention AugMix AutoContrast Average AveragePooling1D \
    AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate \
    ContrastLimitedAdaptiveHistogramEqualization Convolution1DTranspose Convolution2DTranspose Convolution3DTranspose GlobalAvgPool1D \
    GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D \
    Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution2D \
    Convolution3D Cropping1D Cropping2D Cropping3D CutMix Dense DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense \
    Embedding Equalization Flatten FlaxLayer GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D \
    GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention HashedCrossing \
    Hashing Identity InputLayer InputSpec IntegerLookup JaxLayer LSTM LSTMCell Lambda Layer LayerNormalization LeakyReLU Masking \
    MaxNumBoundingBoxes MaxPool1D MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp \
    MultiHeadAttention Multiply Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment RandomBrightness RandomColorDegeneration \
    RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHeight \
    RandomHue RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation \
    RandomWidth RandomZoom ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D \
    SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D SpatialDropout2D \
    SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup Subtract TFSMLayer TextVectorization ThresholdedReLU TimeDistributed \
    TorchModuleWrapper UnitNormalization UpSampling1D UpSampling2D UpSampling3D Wrapper ZeroPadding1D ZeroPadding2D ZeroPadding3D";
/// Layers that read a vocabulary from a file if the configuration names one.
const LOOKUPS: [&str; 4] = ["StringLookup", "IntegerLookup", "TextVectorization", "IndexLookup"];

/// Whether a JSON text is a configuration of Keras, by its first keys.
pub(super) fn is_config(text: &[u8]) -> bool {
    let start = text.get(..4096).unwrap_or(text);
    // What follows a byte that no text has is something else.
    let end = start.iter().position(|byte| *byte < b' ' && !byte.is_ascii_whitespace()).unwrap_or(start.len());
    let start = start.get(..end).unwrap_or_default();
    let has = |word: &[u8]| memchr::memmem::find(start, word).is_some();
    has(b"\"class_name\"") && (has(b"\"config\"") || has(b"\"module\"")) || super::hides_letters(start)
}

/// Looks at all objects of a configuration.
pub(super) fn walk(piece: &ByteSpan<'_>, value: &Value, depth: usize, context: &mut FileContext<'_>) -> Result<()> {
    if depth > MAX_DEPTH {
        return Ok(());
    }
    match value {
        Value::Array(values) => {
            for value in values {
                walk(piece, value, depth + 1, context)?;
            }
        }
        Value::Object(object) => {
            context.check_cancelled()?;
            if let Some(class) = object.get("class_name").and_then(Value::as_str) {
                named(piece, class, object, context)?;
            }
            for (key, value) in object {
                if key == "enable_unsafe_deserialization" {
                    unsafe_deserialization(piece, context);
                }
                // A layer may have any name.
                if key != "name" || !value.is_string() {
                    walk(piece, value, depth + 1, context)?;
                }
            }
        }
        // As the name of a function, and not within another.
        Value::String(text) if text.rsplit('.').next() == Some("enable_unsafe_deserialization") => {
            unsafe_deserialization(piece, context);
        }
        _ => {}
    }
    Ok(())
}

fn unsafe_deserialization(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) {
    let message = "the configuration switches off Keras's protection (enable_unsafe_deserialization)";
    context.report(piece, Diagnostic::new(rules::KERAS_MALICIOUS, message));
}

/// An object that names what the loader makes of it.
fn named(piece: &ByteSpan<'_>, class: &str, object: &Map<String, Value>, context: &mut FileContext<'_>) -> Result<()> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let config = object.get("config");
    let of_config = |key: &str| config.and_then(|config| config.get(key));
    let module = text("module").unwrap_or_default();
    let report = |rule: &'static Rule, message: String, context: &mut FileContext<'_>| {
        let evidence = format!("{}.{}", escape(module), escape(class));
        context.report(piece, Diagnostic::new(rule, message).evidence(evidence));
    };
    match class {
        // An object in place of the code says itself what it is.
        "Lambda"
            if of_config("function").is_some_and(|function| function.is_object() && of_tuple(function).is_none()) => {}
        "Lambda" | "__lambda__" => lambda(piece, config, context),
        "TorchModuleWrapper" => {
            let message = "a TorchModuleWrapper unpickles a PyTorch module when the model is loaded";
            report(rules::KERAS_CUSTOM, message.into(), context);
            if let Some(module) = of_config("module").and_then(find_text) {
                scan_inside(piece, &base64::decoded(module.as_bytes()), "TorchModuleWrapper", context)?;
            }
        }
        "TFSMLayer" => {
            let path = of_config("filepath").and_then(Value::as_str).unwrap_or_default();
            report(rules::KERAS_CUSTOM, format!("a TFSMLayer loads and runs the graph at '{}'", escape(path)), context);
        }
        "TFOpLambda" | "SlicingOpLambda" => {
            let function = of_config("function").and_then(Value::as_str).unwrap_or_default();
            if function.split('.').any(|part| words::has(OUTSIDE, part)) {
                let message = format!("the layer {class} calls TensorFlow's '{}'", escape(function));
                report(rules::KERAS_MALICIOUS, message, context);
            }
        }
        lookup if LOOKUPS.contains(&lookup) => {
            if let Some(path) = of_config("vocabulary").and_then(Value::as_str) {
                let is_outside = leads_out(path) || path.contains("://") || path.starts_with('~');
                let rule = if is_outside { rules::KERAS_MALICIOUS } else { rules::KERAS_CUSTOM };
                report(
                    rule,
                    format!("the layer {lookup} reads the file '{}' when it is loaded", escape(path)),
                    context,
                );
            }
        }
        _ => {}
    }
    // A function is named by its configuration.
    let is_function = class == "function";
    let name = if is_function {
        config.and_then(Value::as_str).or(text("registered_name")).unwrap_or_default()
    } else {
        class
    };
    let what = format!("'{}.{}'", escape(module), escape(name));
    if is_dangerous_in_model(module, name) && !module.is_empty() {
        let message = format!("the loader imports {what}, which runs commands or reaches files");
        report(rules::KERAS_MALICIOUS, message, context);
    } else if let Some(part) = part_of_keras(module) {
        let below = |known: &str| part.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let is_plain = (part.is_empty() || words::each(PARTS).any(&below))
            && !(is_function && words::each(WITHOUT_FUNCTIONS).any(below));
        if !is_plain && is_function {
            report(rules::KERAS_MALICIOUS, format!("the loader calls {what}, which is not part of a model"), context);
        } else if !is_plain {
            report(rules::KERAS_CUSTOM, format!("{what} is not a Keras layer"), context);
        } else if part == "layers" && !is_function && !words::has(LAYERS, class) {
            report(rules::KERAS_CUSTOM, format!("{what} is not a known Keras layer"), context);
        }
    } else if !module.is_empty() && module != "builtins" {
        report(rules::KERAS_CUSTOM, format!("the loader imports {what}, which is not part of Keras"), context);
    }
    if let Some(custom) = text("registered_name").filter(|name| name.contains('>') && !name.starts_with("keras")) {
        report(rules::KERAS_CUSTOM, format!("'{}' is the author's own class or function", escape(custom)), context);
    }
    Ok(())
}

/// The module within Keras; `None` if it is another package's.
fn part_of_keras(module: &str) -> Option<&str> {
    let rest = ["tensorflow.python.keras", "tensorflow.keras", "tf_keras", "keras"]
        .iter()
        .find_map(|root| module.strip_prefix(root))?;
    if rest.is_empty() {
        return Some("");
    }
    let part = rest.strip_prefix('.')?;
    let part = part.strip_prefix("api.").unwrap_or(part);
    Some(part.strip_prefix("src.").unwrap_or(part))
}

/// A function in bytes of Python's compiler, in base64.
fn lambda(piece: &ByteSpan<'_>, config: Option<&Value>, context: &mut FileContext<'_>) {
    let code = config
        .and_then(|config| config.get("function").or_else(|| config.get("code")).or(Some(config)))
        .and_then(find_text);
    let bytes = code.map(|code| base64::decoded(code.as_bytes())).unwrap_or_default();
    if let Some(name) = dangerous_in(&bytes) {
        let message = format!("a Lambda layer holds compiled Python code that uses '{name}'");
        context.report(piece, Diagnostic::new(rules::KERAS_MALICIOUS, message));
    } else {
        let message = "a Lambda layer holds compiled Python code, which loading the model may run";
        context.report(piece, Diagnostic::new(rules::KERAS_CODE, message));
    }
}

/// The first name in compiled code that runs commands, loads code, or reaches networks.
fn dangerous_in(code: &[u8]) -> Option<&'static str> {
    let found = words::each(DANGEROUS_BYTES).find(|name| memchr::memmem::find(code, name.as_bytes()).is_some());
    found.map(|name| name.trim_start_matches('\x02'))
}

/// The longest text in a value: the code among names and defaults.
fn find_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Array(values) => values.iter().filter_map(Value::as_str).max_by_key(|text| text.len()),
        Value::Object(_) if of_tuple(value).is_some() => of_tuple(value).and_then(find_text),
        Value::Object(object) => {
            let inner = object.get("config").and_then(|config| config.get("code").or_else(|| config.get("value")));
            inner.or_else(|| object.get("code")).or_else(|| object.get("value")).and_then(Value::as_str)
        }
        _ => None,
    }
}

/// The values of one of Python's tuples, which Keras writes as an object with them.
fn of_tuple(value: &Value) -> Option<&Value> {
    let is_tuple = value.get("class_name").and_then(Value::as_str) == Some("__tuple__");
    value.get("items").filter(|items| is_tuple && items.is_array())
}
