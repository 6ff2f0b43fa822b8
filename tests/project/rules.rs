//! The registry of rules: every id has its text, is in use, and is named by a test; the page of all rules is that of the registry.

#[path = "../../examples/rules_page.rs"]
mod rules_page;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use max_weights::rules::{self, Rule};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` that end in one of `endings`.
fn texts(folder: &str, endings: &[&str]) -> Vec<String> {
    let mut folders = vec![root().join(folder)];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| path.extension().is_some_and(|have| have == *ending)) {
                texts.push(fs::read_to_string(&path).expect("a text"));
            }
        }
    }
    texts
}

fn subject(rule: &Rule) -> &'static str {
    rule.id.split('.').next().expect("a part")
}

#[test]
fn ids_are_well_formed_unique_and_in_order() {
    let all: Vec<&Rule> = rules::all().collect();
    assert!(all.len() > 200, "{}", all.len());
    for rule in &all {
        let words = rule.id.split(['.', '-']);
        let fine = |word: &str| !word.is_empty() && word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'));
        assert!(words.clone().all(fine) && rule.id.matches('.').count() <= 1, "{}", rule.id);
        assert_eq!(rules::find(rule.id), Some(*rule), "{} is there once", rule.id);
    }
    let mut seen = HashSet::new();
    for group in all.chunk_by(|a, b| subject(a) == subject(b)) {
        assert!(seen.insert(subject(group[0])), "the rules of {} stand together", subject(group[0]));
        assert!(group.is_sorted_by_key(|rule| rule.id), "the rules of {} are sorted", subject(group[0]));
    }
}

#[test]
fn codes_are_unique_and_find_their_rules() {
    let mut seen = HashSet::new();
    for rule in rules::all() {
        let fine =
            rule.code.strip_prefix("MW-").and_then(|rest| rest.split_once('-')).is_some_and(|(subject, number)| {
                subject.len() == 2
                    && subject.bytes().all(|byte| byte.is_ascii_uppercase())
                    && number.len() == 3
                    && number.bytes().all(|byte| byte.is_ascii_digit())
            });
        assert!(fine, "{}: {}", rule.id, rule.code);
        assert!(seen.insert(rule.code), "{} is there twice", rule.code);
        assert_eq!(rules::find(&rule.code.to_lowercase()), Some(rule));
    }
}

#[test]
fn every_rule_says_what_is_wrong_why_and_what_to_do() {
    for rule in rules::all() {
        for (text, longest) in [(rule.meaning, 140), (rule.cause, 200), (rule.help, 200)] {
            assert!(text.len() > 10 && text.len() <= longest, "{}: {} bytes: {text}", rule.id, text.len());
            assert!(!text.contains('\n') && !text.contains("  ") && text.trim() == text, "{}: {text}", rule.id);
            assert!(!text.ends_with('.'), "{}: the sentence goes on where it is shown: {text}", rule.id);
        }
        assert!(rule.meaning != rule.cause && rule.cause != rule.help, "{} says the same twice", rule.id);
    }
}

/// The name of the constant of a rule.
fn constant(id: &str) -> String {
    id.to_uppercase().replace(['.', '-'], "_")
}

#[test]
fn every_rule_is_in_use_and_every_test_names_one_that_is() {
    let (mut code, mut tests) = (String::new(), texts("tests", &["rs", "py"]).concat());
    let crates = ["check", "cli", "python"].map(|name| format!("crates/{name}"));
    for folder in crates.iter().map(|of| format!("{of}/tests")).filter(|folder| root().join(folder).is_dir()) {
        tests.push_str(&texts(&folder, &["rs", "txt"]).concat());
    }
    let sources: Vec<Vec<String>> = crates.iter().map(|of| texts(&format!("{of}/src"), &["rs"])).collect();
    for text in [texts("src", &["rs"]), sources.concat()].concat() {
        // Unit tests are at the end of a file.
        let (above, below) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
        code.push_str(above);
        tests.push_str(below);
    }
    let mut without = Vec::new();
    for rule in rules::all() {
        let used = format!("rules::{}", constant(rule.id));
        let ends = |at: usize| code[at + used.len()..].starts_with(|next: char| !next.is_alphanumeric() && next != '_');
        assert!(code.match_indices(&used).any(|(at, _)| ends(at)), "no code raises {}", rule.id);
        let named = [format!("\"{}\"", rule.id), format!("'{}'", rule.id), format!("[{}]", rule.id)];
        if !named.iter().any(|named| tests.contains(named)) {
            without.push(rule.id);
        }
    }
    assert!(without.is_empty(), "rules that no test raises: {without:?}");
}

#[test]
fn the_page_of_all_rules_is_that_of_the_registry() {
    let page = rules_page::page();
    assert_eq!(page.matches("\n### ").count(), rules::all().count(), "every subject has its part of the page");
    let stored = fs::read_to_string(root().join("docs/rules.md")).expect("the page");
    assert!(stored == page, "run: cargo run --example rules_page > docs/rules.md");
}
