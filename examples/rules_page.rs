//! Writes the page of all rules, docs/rules.md: `cargo run --example rules_page > docs/rules.md`.

use max_weights::rules::{self, Severity, Verdict};

const INTRO: &str = "# The rules that a file can break

Every error about a file, and every warning, names its rule in brackets: `[safetensors.overlap]`. In Python it is `error.rule`, and
`error.help` says what to do; in Rust it is `Diagnostic::rule`. [Validation](validation.md) prints the code of the rule with its name, and
selects rules by either; `max-weights explain` prints the text of this page. Names and codes are never changed once they were released.

An *error* ends the opening. A *warning* is kept in `max_weights.infos(weights).warnings`; some of them (names that are empty or hold a NUL character,
sets of files that disagree, a wrong checksum of `data.pkl`) are refused unless `strict=False` is given, as are shards that are missing
or not those of their index, although that is an error.
`max-weights validate` goes on after an error where that is safe, and reports everything that is found; a *note* is only reported there.

This page is made from `src/rules/` by `cargo run --example rules_page`.
";

/// The subjects, by the first parts of their ids, in the order of the page.
const SUBJECTS: [(&str, &[&str]); 19] = [
    ("Files", &["file", "format"]),
    ("safetensors", &["safetensors"]),
    ("GGUF", &["gguf"]),
    ("PyTorch's zip archives", &["torch-zip"]),
    ("PyTorch's files from before 1.6", &["torch-legacy"]),
    ("PyTorch's pickles", &["pickle"]),
    ("PyTorch's tensors and values", &["torch"]),
    ("PyTorch's distributed checkpoints", &["distributed"]),
    ("Deltas", &["delta"]),
    ("Several files", &["checkpoint", "directory", "index", "names"]),
    ("A whole folder", &["set"]),
    ("Quantized weights", &["quantized"]),
    ("Adapters", &["adapter"]),
    ("Values", &["values"]),
    ("Manifests, expectations", &["expectation", "manifest"]),
    ("What pickles call", &["code"]),
    (
        "Archives and other formats",
        &["archive", "arrow", "container", "hdf5", "keras", "numpy", "onnx", "skops", "tensorflow", "tflite"],
    ),
    ("What a repository makes its loaders run", &["repository"]),
    ("Tensors and memory", &["cast", "interrupted", "memory", "quantization", "span", "tensor"]),
];

#[allow(dead_code)] // a test takes the page and not the program
fn main() {
    print!("{}", page());
}

/// The whole page.
pub(crate) fn page() -> String {
    let mut page = INTRO.to_owned();
    for (title, subjects) in SUBJECTS {
        page.push_str(&format!("\n## {title}\n"));
        for rule in rules::all().filter(|rule| subjects.contains(&subject(rule.id))) {
            let severity = match rule.severity {
                Severity::Error => "Error",
                Severity::Warning => "Warning",
                _ => "Note",
            };
            let answer = match rule.verdict {
                Verdict::Malicious => ": malicious",
                Verdict::NeedsTrust => ": loading it needs trust",
                _ => "",
            };
            let [meaning, cause, help] = [rule.meaning, rule.cause, rule.help].map(sentence);
            let (id, code) = (rule.id, rule.code);
            page.push_str(&format!(
                "\n### {id}\n\n`{code}`, {severity}{answer}. {meaning}\n\n- Why: {cause}\n- What to do: {help}\n"
            ));
        }
    }
    page
}

fn subject(id: &str) -> &str {
    id.split('.').next().unwrap_or(id)
}

/// Add a capital letter and a full stop, and escape Markdown outside of code.
fn sentence(text: &str) -> String {
    let mut sentence = String::new();
    let mut code = false;
    for (at, letter) in text.char_indices() {
        code ^= letter == '`';
        if !code && "_*<[|".contains(letter) {
            sentence.push('\\');
        }
        // A lower-case name, such as `torch.save`, is unchanged.
        let name = text.split(' ').next().is_some_and(|word| word.contains(['.', '_']));
        if at == 0 && !name { sentence.extend(letter.to_uppercase()) } else { sentence.push(letter) }
    }
    if !text.ends_with(['.', '?', '!']) {
        sentence.push('.');
    }
    sentence
}
