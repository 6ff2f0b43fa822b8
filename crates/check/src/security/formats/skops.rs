//! skops' files: a zip archive whose schema names the classes and functions that loading it makes and calls.

use max_weights::rules;
use max_weights::rules::Rule;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};
use serde_json::{Map, Value};

use crate::context::{ByteSpan, FileContext};
use crate::dangerous::is_dangerous_in_model;
use crate::words;

/// Packages whose classes and functions estimators consist of.
const PACKAGES: &str = "sklearn numpy scipy collections datetime lightgbm xgboost catboost";
/// Types of Python itself that only hold values.
const TYPES: &str = "
    list dict tuple set frozenset str int float bool complex bytes bytearray slice NoneType type range object";
/// Functions of NumPy and others that call, load or run what they are given.
const CALLING: &str = "
    f2py testing distutils load loadtxt fromfile memmap genfromtxt save vectorize frompyfunc ctypeslib";

/// Looks at all nodes of a schema.
pub(super) fn walk(piece: &ByteSpan<'_>, value: &Value, context: &mut FileContext<'_>) -> Result<()> {
    match value {
        Value::Array(values) => values.iter().try_for_each(|value| walk(piece, value, context)),
        Value::Object(object) => {
            context.check_cancelled()?;
            if object.contains_key("__module__") || object.contains_key("__loader__") {
                node(piece, object, context);
            }
            object.values().try_for_each(|value| walk(piece, value, context))
        }
        _ => Ok(()),
    }
}

fn node(piece: &ByteSpan<'_>, object: &Map<String, Value>, context: &mut FileContext<'_>) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (module, class, loader) = (text("__module__"), text("__class__"), text("__loader__"));
    let name = format!("{module}.{class}");
    let report = |rule: &'static Rule, message: String, context: &mut FileContext<'_>| {
        context.report(piece, Diagnostic::new(rule, message).evidence(escape(&name)));
    };
    let first = module.split('.').next().unwrap_or_default();
    let is_value = matches!(first, "builtins" | "") && (words::has(TYPES, class) || class.is_empty());
    let is_known = words::has(PACKAGES, first) && !name.split('.').any(|part| words::has(CALLING, part));
    let is_operator = first == "operator" || first == "_operator";
    // The program that wrote the file has classes, too.
    let is_hidden = (module.contains("__") && module != "__main__") || class.contains("__");
    if is_dangerous_in_model(module, class) || is_hidden {
        report(rules::SKOPS_MALICIOUS, format!("loading makes or calls '{}'", escape(&name)), context);
    } else if loader == "OperatorFuncNode" && !is_operator {
        let message = format!("a node is loaded as a function of operator, but names '{}'", escape(&name));
        report(rules::SKOPS_MALICIOUS, message, context);
    } else if loader == "MethodNode" || loader == "OperatorFuncNode" || is_operator {
        let function =
            object.get("content").and_then(|content| content.get("func")).and_then(Value::as_str).unwrap_or(class);
        let rule = if function.contains("__") { rules::SKOPS_MALICIOUS } else { rules::SKOPS_TYPE };
        report(rule, format!("loading takes the method or operator '{}'", escape(function)), context);
    } else if !is_value && !is_known {
        report(rules::SKOPS_TYPE, format!("loading makes or calls '{}'", escape(&name)), context);
    }
}
