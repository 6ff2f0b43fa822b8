//! Expectations of a checkpoint: each key of a specification, and the finding where it is not met.

use crate::comparison_files::{Entry, gguf, saved};
use max_weights::{Checkpoint, Diagnostic, uninterrupted};
use max_weights_check::expectation::{Expectation, check, check_ties, of, write};

fn half<'a>(name: &'a str, shape: &'a [usize]) -> Entry<'a> {
    (name, "BF16", shape, vec![0; shape.iter().product::<usize>() * 2])
}

/// Two layers of a model whose hidden size is 4, with 6 tokens.
fn model() -> Checkpoint {
    saved(
        &[
            half("embed.weight", &[6, 4]),
            half("layers.0.norm", &[4]),
            half("layers.0.up", &[8, 4]),
            half("layers.1.norm", &[4]),
            half("layers.1.up", &[8, 4]),
        ],
        "\"format\":\"pt\"",
    )
}

const SCHEMA: &str = "\"schema\": \"max-weights.expectation/1\"";

fn expect(spec: &str) -> Expectation {
    let spec = format!("{{{SCHEMA}, {spec}}}");
    Expectation::parse(spec.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

/// The findings about the model, by rule and sentence.
fn found(spec: &str) -> Vec<(&'static str, String)> {
    message(&check(model().catalog(), &expect(spec)))
}

fn message(findings: &[Diagnostic]) -> Vec<(&'static str, String)> {
    findings.iter().map(|finding| (finding.rule.id, finding.message.clone())).collect()
}

fn one(rule: &'static str, message: &str) -> Vec<(&'static str, String)> {
    vec![(rule, message.to_owned())]
}

const WHOLE: &str = r#"
    "description": "a model of two layers",
    "symbols": {"hidden": 4},
    "tensors": {
        "embed.weight": {"shape": ["vocab", "hidden"], "dtype": "bfloat16"},
        "layers.*.norm": {"shape": ["hidden"], "dtype": ["BF16", "F32"], "count": "layers"},
        "layers.*.up": {"shape": ["*", "hidden"], "count": "layers"},
        "*": {"dtype": "bfloat16"},
        "lm_head.weight": {"shape": ["vocab", "hidden"]},
        "rotary": {"optional": true}
    },
    "ties": [["lm_head.weight", "embed.weight"]],
    "allow_extra": false,
    "parameters": {"min": 50, "max": 100},
    "metadata": {"format": "pt"}"#;

#[test]
fn a_checkpoint_that_is_as_expected_has_no_findings() {
    assert_eq!(found(WHOLE), []);
    assert_eq!(found("\"tensors\": {}, \"allow_extra\": true, \"metadata\": [\"format\"], \"parameters\": 96"), []);
    assert_eq!(found("\"allow_extra\": [\"layers.*\", \"embed.??????\"]"), []);
}

#[test]
fn what_is_missing_is_named_with_near_names() {
    let of = |spec: &str| found(&format!("{spec}, \"allow_extra\": true"));
    let says = "there is no tensor 'layers.1.nrm'; there are 'layers.1.norm', 'layers.0.norm'";
    assert_eq!(of(r#""tensors": {"layers.1.nrm": {}}"#), one("expectation.missing", says));
    let says = "no tensor matches 'decoder.*'";
    assert_eq!(of(r#""tensors": {"decoder.*": {}}"#), one("expectation.missing", says));
    assert_eq!(of(r#""ties": [["a", "b"]]"#), one("expectation.ties", "there is none of 'a', 'b'"));
    let tied = r#""tensors": {"zz.qq": {}, "b": {"optional": true}}, "ties": [["zz.qq", "b"]]"#;
    assert_eq!(of(tied), one("expectation.missing", "there is no tensor 'zz.qq'"));
}

#[test]
fn another_number_of_tensors_than_is_expected() {
    let of = |count: &str| {
        found(&format!("\"tensors\": {{\"layers.*.up\": {{\"count\": {count}}}}}, \"allow_extra\": true"))
    };
    assert_eq!(of("2"), []);
    assert_eq!(of("{\"min\": 1}"), []);
    assert_eq!(of("3"), one("expectation.count", "2 tensors match 'layers.*.up', and 3 are expected"));
    assert_eq!(
        of("{\"max\": 1}"),
        one("expectation.count", "2 tensors match 'layers.*.up', and at most 1 are expected")
    );
    let symbols =
        "\"symbols\": {\"layers\": 3}, \"tensors\": {\"*.up\": {\"count\": \"layers\"}}, \"allow_extra\": true";
    let says = "2 tensors match '*.up', so that 'layers' is 2, and 3 is expected";
    assert_eq!(found(symbols), one("expectation.count", says));
    let other = r#""tensors": {"blk.*.up": {"count": "layers"}, "blk.*.q": {"count": "layers", "optional": true}}"#;
    let says = "no tensor matches 'blk.*.up'";
    assert_eq!(found(&format!("{other}, \"allow_extra\": true")), one("expectation.missing", says));
    let none = r#""symbols": {"layers": 0}, "tensors": {"blk.*.up": {"count": "layers"}}, "allow_extra": true"#;
    assert_eq!(found(none), []);
}

#[test]
fn another_dtype_or_shape_than_is_expected() {
    let of = |requested: &str| found(&format!("\"tensors\": {{\"layers.0.up\": {requested}}}, \"allow_extra\": true"));
    let says = "'layers.0.up' is bfloat16, but float32 or float16 is expected";
    assert_eq!(of("{\"dtype\": [\"F32\", \"float16\"]}"), one("expectation.dtype", says));
    let says = "'layers.0.up' has shape [8, 4], but [*, 5] is expected";
    assert_eq!(of("{\"shape\": [\"*\", 5]}"), one("expectation.shape", says));
    let says = "'layers.0.up' has shape [8, 4], but [8] is expected";
    assert_eq!(of("{\"shape\": [8]}"), one("expectation.shape", says));
    assert_eq!(of("{\"shape\": [8, \"hidden\"]}"), []);
}

#[test]
fn a_symbol_stands_for_one_number_that_of_most_places() {
    let odd = saved(&[half("a", &[4]), half("b", &[5]), half("c", &[4])], "");
    let spec = r#""tensors": {"b": {"shape": ["hidden"]}, "a": {"shape": ["hidden"]}, "c": {"shape": ["hidden"]}}"#;
    let says = "'hidden' is 5 by dimension 0 of 'b', and 4 by 'a'";
    assert_eq!(message(&check(odd.catalog(), &expect(spec))), one("expectation.symbol", says));
    let declared_before = format!("\"symbols\": {{\"hidden\": 5}}, {spec}");
    let findings = check(odd.catalog(), &expect(&declared_before));
    assert_eq!(findings.iter().map(|finding| finding.tensor.as_deref()).collect::<Vec<_>>(), [Some("a"), Some("c")]);
    assert!(findings[0].message.ends_with("and 5 is expected"), "{}", findings[0].message);
}

#[test]
fn what_is_not_expected_is_extra() {
    let says = "'embed.weight', bfloat16 of shape [6, 4], is not expected";
    assert_eq!(found("\"allow_extra\": [\"layers.*\"]"), one("expectation.extra", says));
    assert_eq!(found("\"tensors\": {}").len(), 5, "nothing is expected");
    let of_all = "\"tensors\": {\"layers.*\": {}, \"*\": {\"dtype\": \"BF16\"}}";
    assert_eq!(found(of_all), one("expectation.extra", says), "what holds for all names nothing");
}

#[test]
fn very_many_findings_of_a_rule_are_counted() {
    let names: Vec<String> = (0..150).map(|number| format!("t{number}")).collect();
    let many = saved(&names.iter().map(|name| half(name, &[1])).collect::<Vec<_>>(), "");
    let findings = message(&check(many.catalog(), &Expectation::default()));
    assert_eq!((findings.len(), findings[100].1.as_str()), (101, "50 more of this kind"));
}

#[test]
fn parameters_and_metadata_that_are_not_as_expected() {
    let says = "there are 96 parameters, but at least 1,000 are expected";
    assert_eq!(found("\"allow_extra\": true, \"parameters\": {\"min\": 1000}"), one("expectation.parameters", says));
    let says = "the metadata has 'pt' for 'format', but 'np' is expected";
    assert_eq!(found("\"allow_extra\": true, \"metadata\": {\"format\": \"np\"}"), one("expectation.metadata", says));
    let says = "the metadata has no key 'license'";
    assert_eq!(found("\"allow_extra\": true, \"metadata\": {\"license\": null}"), one("expectation.metadata", says));
    let file = gguf(0, 32, &[0; 128]);
    assert_eq!(
        message(&check(file.catalog(), &expect("\"tensors\": {\"w\": {\"dtype\": \"F32\", \"shape\": [32]}}"))),
        []
    );
}

#[test]
fn tied_tensors_that_are_both_there_are_alike_and_have_the_same_values() {
    let spec = expect("\"ties\": [[\"a\", \"b\", \"c\"]]");
    let of = |b: Entry<'_>| saved(&[half("a", &[4]), b], "");
    let other = of(half("b", &[5]));
    let says = "'b' is bfloat16 of shape [5], but is expected to be 'a', which is bfloat16 of shape [4]";
    assert_eq!(message(&check(other.catalog(), &spec)), one("expectation.ties", says));
    let values = of(("b", "BF16", &[4], vec![0, 0, 0, 0, 0, 0, 1, 0]));
    assert_eq!(message(&check(values.catalog(), &spec)), []);
    let findings = check_ties(&values, &spec, &uninterrupted).expect("read");
    assert_eq!(message(&findings), one("expectation.ties", "'b' is expected to be 'a', but has other values"));
    assert_eq!(message(&check_ties(&of(half("b", &[4])), &spec, &uninterrupted).expect("read")), []);
}

#[test]
fn another_checkpoint_is_an_expectation() {
    let good = Expectation::of_catalog(model().catalog());
    assert_eq!(message(&check(model().catalog(), &good)), []);
    let other = saved(&[half("embed.weight", &[6, 4]), ("layers.0.norm", "F32", &[4], vec![0; 16])], "");
    let findings = message(&check(other.catalog(), &good));
    let rules: Vec<&str> = findings.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(rules, ["expectation.dtype", "expectation.missing", "expectation.missing", "expectation.missing"]);
}

#[test]
fn a_specification_of_a_good_checkpoint_holds_for_it_whatever_its_names_are() {
    let odd =
        saved(&[half("a*[b]?", &[2]), half("größe", &[0]), half("[", &[]), ("new", "F6_NEW", &[4], vec![0; 3])], "");
    for checkpoint in [&model(), &odd, &gguf(8, 32, &[0; 34])] {
        let spec = of(checkpoint.catalog()).to_string();
        let spec = Expectation::parse(spec.as_bytes()).expect("a specification");
        assert_eq!(message(&check(checkpoint.catalog(), &spec)), []);
    }
    let mut text = Vec::new();
    write(model().catalog(), &mut text).expect("memory can be written to");
    assert!(
        text.ends_with(b"}\n") && text.starts_with(b"{\n  \"parameters\": 96,"),
        "{}",
        String::from_utf8_lossy(&text)
    );
}

#[test]
fn what_is_wrong_with_a_specification_is_said_with_its_place() {
    for (spec, says) in [
        ("{", "this is not valid JSON: EOF while parsing an object at line 1 column 1"),
        ("{\"a\": 1, \"a\": 2}", "this is not valid JSON: the key \"a\" appears twice"),
        ("[]", "the specification: an object is expected, not an empty list"),
        ("{}", "there is no \"schema\"; a specification has \"max-weights.expectation/1\""),
        (
            "{\"model_type\": \"bert\"}",
            "there is no \"schema\"; a specification has \"max-weights.expectation/1\"; this is the configuration of a model, which transformers can turn into a specification",
        ),
        ("{\"schema\": \"x\"}", "schema: \"max-weights.expectation/1\" is expected, not \"x\""),
        ("{\"tensor\": {}}", "the specification: unknown key \"tensor\""),
        ("{\"tensors\": []}", "tensors: an object is expected, not an empty list"),
        ("{\"tensors\": {\"a\": []}}", "tensors.\"a\": an object is expected, not an empty list"),
        ("{\"tensors\": {\"a\": {\"shap\": []}}}", "tensors.\"a\": unknown key \"shap\""),
        ("{\"tensors\": {\"a[\": {}}}", "tensors.\"a[\": the pattern has a [ without its ]"),
        (
            "{\"tensors\": {\"a\": {\"shape\": [1, -2]}}}",
            "tensors.\"a\".shape[1]: a number, a symbol or \"*\" is expected, not -2",
        ),
        ("{\"tensors\": {\"a\": {\"shape\": 3}}}", "tensors.\"a\".shape: a list is expected, not 3"),
        (
            "{\"tensors\": {\"a\": {\"dtype\": []}}}",
            "tensors.\"a\".dtype: a list of dtypes is expected, not an empty list",
        ),
        ("{\"tensors\": {\"a\": {\"dtype\": [1]}}}", "tensors.\"a\".dtype[0]: a string is expected, not 1"),
        ("{\"tensors\": {\"a\": {\"optional\": 1}}}", "tensors.\"a\".optional: true or false is expected, not 1"),
        (
            "{\"tensors\": {\"a\": {\"count\": {}}}}",
            "tensors.\"a\".count: a number, or an object of \"exact\", or \"min\" and \"max\", is expected, not an object",
        ),
        ("{\"symbols\": {\"h\": 1.5}}", "symbols.\"h\": a count is expected, not 1.5"),
        ("{\"allow_extra\": \"*\"}", "allow_extra: true, false or a list of patterns is expected, not \"*\""),
        ("{\"ties\": [[\"a\"]]}", "ties[0]: a list of at least two names is expected, not a list"),
        ("{\"parameters\": {\"least\": 3}}", "parameters: unknown key \"least\""),
        ("{\"metadata\": {\"a\": []}}", "metadata.\"a\": a string, a number or null is expected, not an empty list"),
    ] {
        let is_whole = says.contains("JSON") || says.contains("schema") || !spec.starts_with("{\"");
        let spec = if is_whole { spec.to_owned() } else { spec.replacen('{', &format!("{{{SCHEMA}, "), 1) };
        let error = Expectation::parse(spec.as_bytes()).expect_err(&spec);
        assert!(matches!(error, max_weights::Error::Argument(_)), "{error}");
        assert_eq!(error.to_string(), says);
    }
    let spec = format!("{{{SCHEMA}, \"tensors\": {{\"a\": {{\"dtype\": \"bf17\"}}}}}}");
    let error = Expectation::parse(spec.as_bytes()).expect_err("no dtype").to_string();
    assert!(error.starts_with("tensors.\"a\".dtype: \"bf17\" is not a dtype; known are bool, "), "{error}");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Expectation::parse(deep.as_bytes()).expect_err("too deep").to_string().contains("recursion limit"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("spec.json");
    assert!(Expectation::read(&path).expect_err("not there").to_string().contains("read the specification"));
    std::fs::write(&path, "{").expect("written");
    assert!(Expectation::read(&path).expect_err("no JSON").to_string().contains("spec.json: this is not valid JSON"));
}

#[test]
fn the_example_of_the_page_is_a_specification() {
    let page = include_str!("../../../../docs/validation.md");
    let (_, rest) = page.split_once("```json\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let spec = Expectation::parse(example.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let findings = message(&check(model().catalog(), &spec));
    let of_metadata = findings.iter().filter(|(rule, _)| *rule == "expectation.metadata").count();
    assert_eq!(of_metadata, 0, "{findings:?}");
    assert!(findings.iter().any(|(rule, _)| *rule == "expectation.parameters"), "{findings:?}");
}
