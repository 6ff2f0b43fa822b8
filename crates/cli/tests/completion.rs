//! What shells are answered: the command is run as their scripts run it. `tests/shells.rs` does it in real shells.

use crate::common;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let weights: &[(&str, &str, usize, &[usize])] = &[
        ("model.layers.2.w", "F16", 16, &[2]),
        ("model.layers.10.w", "F16", 16, &[2]),
        ("model.norm", "F16", 16, &[2]),
        ("model.norm.bias", "F16", 16, &[2]),
        ("a:b.c", "F16", 16, &[2]),
        ("\u{1b}[2J.w", "F16", 16, &[2]),
    ];
    common::safetensors(&folder.path().join("tiny.safetensors"), "\"format\":\"pt\"", weights);
    common::gguf(
        &folder.path().join("tiny.gguf"),
        &[("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")],
    );
    std::fs::write(folder.path().join("broken.gguf"), b"GGUF\x03").expect("a temporary folder");
    folder
}

fn run(folder: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_max-weights"));
    command.current_dir(folder).env_remove("COMPLETE").env_remove("_MAX_WEIGHTS_REPLACED");
    command.envs(environment.iter().copied()).args(arguments).output().expect("the program runs")
}

/// The lines of the answer to a shell; in bash the last word is replaced from its start.
fn answer(shell: &str, words: &[&str]) -> Vec<String> {
    let folder = folder();
    let last = words.last().copied().unwrap_or_default();
    let arguments: Vec<&str> = ["--", "max-weights"].iter().chain(words).copied().collect();
    let output = run(folder.path(), &[("COMPLETE", shell), ("_MAX_WEIGHTS_REPLACED", last)], &arguments);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn commands_come_first_and_a_file_may_stand_in_their_place() {
    assert_eq!(answer("bash", &["l"]), ["ls"]);
    assert_eq!(answer("bash", &["li"]), ["list"], "another name is offered to who begins it");
    assert_eq!(answer("bash", &["b"]), ["bom", "bench"], "and not broken.gguf");
    assert_eq!(answer("bash", &["br"]), ["broken.gguf"]);
    assert_eq!(answer("bash", &["tiny.g"]), ["tiny.gguf"]);
    assert_eq!(answer("bash", &["tiny.gguf", "--fl"]), ["--flat"]);
    assert!(answer("bash", &[""]).contains(&"show".to_owned()));
}

#[test]
fn files_are_offered_without_the_options() {
    assert_eq!(answer("bash", &["ls", ""]), ["broken.gguf", "tiny.gguf", "tiny.safetensors"]);
    assert_eq!(answer("bash", &["show", "--json", "tiny.s"]), ["tiny.safetensors"]);
    assert_eq!(answer("zsh", &["ls", ""]), ["/"], "zsh completes files itself");
    assert!(answer("bash", &["ls", "--js"]).contains(&"--json".to_owned()));
}

#[test]
fn values_of_options_are_offered() {
    assert_eq!(answer("bash", &["ls", "--format", "js"]), ["json", "jsonl"]);
    assert_eq!(answer("bash", &["ls", "--color=n"]), ["--color=never"]);
    assert_eq!(answer("bash", &["ls", "--as", "bf"]), ["bfloat16"]);
    assert_eq!(answer("bash", &["completions", "z"]), ["zsh"]);
}

#[test]
fn names_come_a_component_at_a_time_and_a_branch_has_a_dot() {
    let names = |incomplete| answer("bash", &["show", "tiny.safetensors", incomplete]);
    assert_eq!(names(""), ["a:b.", "format", "model."], "what steers a terminal is not offered");
    assert_eq!(names("model.n"), ["model.norm"], "a weight has none, also with others below it");
    assert_eq!(names("model.layers."), ["model.layers.2.", "model.layers.10."], "in the order of the layers");
    assert_eq!(names("model.norm."), ["model.norm.bias"]);
    assert_eq!(names("nothing"), [""; 0]);
    assert_eq!(answer("zsh", &["show", "tiny.safetensors", "a"]), [r"+a\:b."]);
    assert_eq!(answer("zsh", &["show", "tiny.safetensors", "model.n"]), ["-model.norm"]);
    assert_eq!(answer("fish", &["show", "tiny.safetensors", "m"]), ["model."]);
    assert_eq!(answer("powershell", &["show", "tiny.safetensors", "m"]), ["model."]);
}

#[test]
fn the_file_is_found_among_the_options() {
    for words in [&["show", "--bins", "3", "tiny.safetensors", "m"][..], &["show", "--json", "tiny.safetensors", "m"]] {
        assert_eq!(answer("bash", words), ["model."]);
    }
    assert_eq!(answer("bash", &["show", "'tiny.safetensors'", "m"]), ["model."]);
}

#[test]
fn keys_of_the_metadata_are_offered() {
    let names = |incomplete| answer("bash", &["show", "tiny.gguf", incomplete]);
    assert_eq!(names(""), ["blk.", "general.", "tokenizer."]);
    assert_eq!(names("general.a"), ["general.architecture"]);
    assert_eq!(names("tokenizer.ggml."), ["tokenizer.ggml.model"]);
}

#[test]
fn names_of_a_model_in_the_local_cache_are_offered() {
    let folder = folder();
    let model = folder.path().join("hub/models--org--tiny");
    let snapshot = model.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    std::fs::create_dir_all(&snapshot).expect("a temporary folder");
    std::fs::create_dir(model.join("refs")).expect("a temporary folder");
    std::fs::write(model.join("refs/main"), "0123456789abcdef0123456789abcdef01234567").expect("a temporary folder");
    std::fs::copy(folder.path().join("tiny.safetensors"), snapshot.join("model.safetensors")).expect("a copy");
    let home = folder.path().display().to_string();
    for name in ["org/tiny", "org/tiny@main"] {
        let environment = [("COMPLETE", "fish"), ("HF_HOME", &home), ("HF_HUB_CACHE", "")];
        let output = run(folder.path(), &environment, &["--", "max-weights", "show", name, "model."]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "model.layers.\nmodel.norm\n", "{output:?}");
    }
}

#[test]
fn what_cannot_be_read_offers_nothing() {
    for file in ["broken.gguf", "not-there.gguf"] {
        assert_eq!(answer("bash", &["show", file, ""]), [""; 0], "{file}");
    }
}

#[test]
fn the_candidates_are_some_hundred_at_most() {
    let folder = folder();
    let names: Vec<String> = (0..2000).map(|number| format!("layers.{number}.w")).collect();
    let weights: Vec<(&str, &str, usize, &[usize])> =
        names.iter().map(|name| (name.as_str(), "F16", 16, &[1][..])).collect();
    common::safetensors(&folder.path().join("wide.safetensors"), "", &weights);
    let arguments = ["--", "max-weights", "show", "wide.safetensors", "layers."];
    let output = run(folder.path(), &[("COMPLETE", "fish")], &arguments);
    assert_eq!(output.stdout.split(|byte| *byte == b'\n').count() - 1, 500);
}

#[test]
fn the_script_is_printed_for_the_shell_that_is_named_or_used() {
    let folder = folder();
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let named = run(folder.path(), &[], &["completions", shell]);
        assert!(named.status.success() && named.stderr.is_empty(), "{named:?}");
        assert!(String::from_utf8_lossy(&named.stdout).contains("max-weights"), "{named:?}");
        let used = run(folder.path(), &[("SHELL", &format!("/usr/bin/{shell}"))], &["completions"]);
        assert_eq!(used.stdout, named.stdout);
        let requested = run(folder.path(), &[("COMPLETE", shell)], &[]);
        assert_eq!(requested.stdout, named.stdout, "as other programs with clap's completion do it");
    }
}

#[test]
fn a_shell_that_is_not_known_is_an_error_that_names_those_that_are() {
    let folder = folder();
    for (environment, arguments) in [
        (&[("SHELL", "/bin/tcsh")][..], &["completions"][..]),
        (&[("COMPLETE", "tcsh")], &[]),
        (&[], &["completions", "tcsh"]),
    ] {
        let output = run(folder.path(), environment, arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("tcsh") && message.contains("bash, zsh, fish, powershell"), "{message}");
        assert!(output.stdout.is_empty());
    }
    let none = run(folder.path(), &[("SHELL", "")], &["completions"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("completions bash"), "{none:?}");
}

#[test]
fn nobody_asks_where_the_variable_is_empty_or_zero() {
    let folder = folder();
    for nobody in ["", "0"] {
        let output = run(folder.path(), &[("COMPLETE", nobody)], &["--version"]);
        assert!(output.stdout.starts_with(b"max-weights "), "{output:?}");
    }
}
