//! What the commands print: each file of `tests/commands/` is a session in a folder of small checkpoints, its commands and their output.
//!
//! A line that begins with `$` is a command, run by sh in a pipe. Its output follows, with `␛` for the escape character: after two spaces on
//! standard output, after `!` on standard error, and after `?` the exit status, if it is not 0. To add a command, write its line, generate the
//! rest, and review it:
//!
//! ```sh
//! SNAPSHOTS=overwrite cargo test -p max-weights-cli --test main commands
//! ```
#![cfg(unix)]

use crate::common;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use snapbox::Data;

/// The checkpoints of the sessions.
fn checkpoints(folder: &Path) {
    let llama = |layers: usize| -> Vec<(String, &'static str, usize, Vec<usize>)> {
        let mut weights = vec![("model.embed_tokens.weight".to_owned(), "BF16", 16, vec![32, 8])];
        for layer in 0..layers {
            let of_layer = |name: &str| format!("model.layers.{layer}.{name}.weight");
            weights.push((of_layer("input_layernorm"), "F32", 32, vec![8]));
            weights.push((of_layer("mlp.gate_proj"), "BF16", 16, vec![16, 8]));
            weights.push((of_layer("self_attn.q_proj"), "BF16", 16, vec![8, 8]));
        }
        weights.push(("lm_head.weight".to_owned(), "BF16", 16, vec![32, 8]));
        weights
    };
    let write = |name: &str, metadata: &str, weights: &[(String, &str, usize, Vec<usize>)]| {
        let weights: Vec<_> =
            weights.iter().map(|(name, dtype, bits, shape)| (name.as_str(), *dtype, *bits, &shape[..])).collect();
        common::safetensors(&folder.join(name), metadata, &weights);
    };
    let all = llama(4);
    write("llama.safetensors", "\"format\":\"pt\"", &all);
    std::fs::create_dir(folder.join("sharded")).expect("a temporary folder");
    write("sharded/model-00001-of-00002.safetensors", "", &all[..6]);
    write("sharded/model-00002-of-00002.safetensors", "", &all[6..]);
    let experts = |kind: &str| {
        (0..4).map(|expert| (format!("layers.0.experts.{expert}.{kind}"), "BF16", 16, vec![8, 8])).collect::<Vec<_>>()
    };
    write(
        "moe.safetensors",
        "",
        &[experts("w1"), experts("w2"), vec![("layers.0.gate".to_owned(), "F32", 32, vec![4, 8])]].concat(),
    );
    let odd = ["esc\u{1b}[31m.weight", "größe.weight", "重み.weight", "with \"quotes\", and commas"]
        .map(|name| (name.to_owned(), "F32", 32, vec![2]));
    write("odd.safetensors", "", &odd);
    common::gguf(&folder.join("tiny.gguf"), &[("general.architecture", "llama"), ("general.name", "tiny")]);

    write(
        "unnamed.safetensors",
        "",
        &[(String::new(), "F32", 32, vec![2]), ("a.weight".to_owned(), "F32", 32, vec![2])],
    );
    let ramp: Vec<u8> = (0..64u16).flat_map(|number| (f32::from(number) / 8.0 - 4.0).to_le_bytes()).collect();
    write("ramp.safetensors", "", &[("ramp.weight".to_owned(), "F32", 32, vec![8, 8])]);
    let file = std::fs::read(folder.join("ramp.safetensors")).expect("it was written");
    let filled = [&file[..file.len() - ramp.len()], &ramp].concat();
    std::fs::write(folder.join("ramp.safetensors"), filled).expect("a temporary folder");
    different(folder);
    common::torch(&folder.join("plain.pth"), b"}X\x05\0\0\0epochK\x05s");
    common::torch(&folder.join("hostile.pth"), b"}X\x05\0\0\0epochcos\nsystem\nX\x04\0\0\0true\x85Rs");

    let whole = std::fs::read(folder.join("llama.safetensors")).expect("it was written");
    std::fs::write(folder.join("cut.safetensors"), &whole[..whole.len() - 8]).expect("a temporary folder");
    std::fs::write(folder.join("longer.safetensors"), [&whole[..], b"and more"].concat()).expect("a temporary folder");
    std::fs::write(folder.join("empty.safetensors"), b"").expect("a temporary folder");
    std::fs::write(folder.join("text.txt"), b"hello, this is text and no checkpoint").expect("a temporary folder");
}

/// Two checkpoints that differ in all ways, and one that is nearly the first.
fn different(folder: &Path) {
    let write = |name: &str, metadata: &str, weights: &[(&str, &str, usize, &[usize])], values: &[u8]| {
        let path = folder.join(name);
        common::safetensors(&path, metadata, weights);
        let file = std::fs::read(&path).expect("it was written");
        std::fs::write(&path, [&file[..file.len() - values.len()], values].concat()).expect("a temporary folder");
    };
    let single = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let of_a = [
        ("gone.weight", "F32", 32, &[2][..]),
        ("layers.0.weight", "F32", 32, &[2, 2]),
        ("layers.1.weight", "F32", 32, &[2, 2]),
        ("norm.weight", "F32", 32, &[2]),
        ("old.weight", "F32", 32, &[2]),
        ("padded.weight", "F32", 32, &[2]),
    ];
    let values = single(&[9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 1.5, 7.0, 8.0, 1.0, 1.0]);
    write("before.safetensors", "\"format\":\"pt\"", &of_a, &values);
    let near = single(&[9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.001, 1.0, 1.5, 7.0, 8.0, 1.0, 1.0]);
    write("near.safetensors", "\"format\":\"pt\"", &of_a, &near);
    let of_b = [
        ("come.weight", "F32", 32, &[1][..]),
        ("layers.0.weight", "F32", 32, &[2, 2]),
        ("layers.1.weight", "F32", 32, &[2, 2]),
        ("new.weight", "F32", 32, &[2]),
        ("norm.weight", "BF16", 16, &[2]),
        ("padded.weight", "F32", 32, &[4]),
    ];
    let mut values = single(&[5.0, 1.0, 2.5, 3.0, 4.0, 1.0, 2.0, f32::NAN, 4.25, 7.0, 8.0]);
    values.extend([0x80, 0x3f, 0xc0, 0x3f]);
    values.extend(single(&[1.0, 1.0, 0.0, 0.0]));
    write("after.safetensors", "", &of_b, &values);
}

/// The environment of a session, where a command does not set another: nothing of that in which the tests run.
const ENVIRONMENT: [(&str, &str); 2] = [("LC_ALL", "C.UTF-8"), ("HF_HOME", "hub")];

/// The line without how long a validation took, which is another time every time.
fn untimed(line: &str) -> String {
    match (line.find(" in "), line.find(", level ")) {
        (Some(from), Some(to)) if from < to => format!("{} in …{}", &line[..from], &line[to..]),
        _ => line.to_owned(),
    }
}

/// The session with what its commands print now.
fn played(session: &str, folder: &Path) -> String {
    let mut played = String::new();
    let lines: Vec<&str> = session.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        // An empty line before a command or a comment belongs to the session, any other to the output.
        let before = line.is_empty() && lines.get(at + 1).is_some_and(|next| next.starts_with(['#', '$']));
        if !before && !line.starts_with(['#', '$']) {
            continue;
        }
        let _ = writeln!(played, "{line}");
        let Some(command) = line.strip_prefix("$ ") else { continue };
        let programs = Path::new(env!("CARGO_BIN_EXE_max-weights")).parent().expect("a folder");
        let output = Command::new("/bin/sh")
            .args(["-c", command])
            .current_dir(folder)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "LSAN_OPTIONS")) // what a sanitizer overlooks
            .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
            .envs(ENVIRONMENT)
            .output()
            .expect("a shell is there");
        for (mark, text) in [("  ", &output.stdout), ("! ", &output.stderr)] {
            let text = String::from_utf8(text.clone()).expect("UTF-8");
            text.lines().for_each(|line| {
                let line = untimed(&line.replace('\u{1b}', "␛"));
                let _ = writeln!(played, "{}", format!("{mark}{line}").trim_end());
            });
        }
        match output.status.code() {
            Some(0) => {}
            code => {
                let _ = writeln!(played, "? {}", code.map_or("a signal".to_owned(), |code| code.to_string()));
            }
        }
    }
    played
}

#[test]
fn every_command_prints_what_is_written_in_its_session() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    checkpoints(folder.path());
    let sessions = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands");
    let mut sessions: Vec<_> = std::fs::read_dir(sessions)
        .expect("it is there")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    sessions.sort();
    assert!(!sessions.is_empty());
    for path in sessions {
        let session = std::fs::read_to_string(&path).expect("a text");
        assert!(session.contains("\n$ "), "{}: no commands", path.display());
        snapbox::assert_data_eq!(Data::text(played(&session, folder.path())).raw(), Data::read_from(&path, None).raw());
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_quietly() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let names: Vec<String> = (0..20_000).map(|number| format!("layers.{number}.weight")).collect();
    let weights: Vec<(&str, &str, usize, &[usize])> =
        names.iter().map(|name| (name.as_str(), "F16", 16, &[1][..])).collect();
    let path = folder.path().join("wide.safetensors");
    common::safetensors(&path, "", &weights);
    for format in ["tree", "table", "json", "jsonl", "csv"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_max-weights"));
        command.args(["ls", "--no-fold", "--format", format]).arg(&path).env_remove("COMPLETE");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
        drop(child.stdout.take()); // far less fits into a pipe than the listing has
        let output = child.wait_with_output().expect("the program ends");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{format}");
    }
}
