//! How a long command ends: by its time limit, or by a signal. An invalid settings file ends it at once.
#![cfg(unix)]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn validate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_max-weights"));
    command.arg("validate").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The status of a program that is to end by itself: one that does not is killed.
fn ended(mut program: Child) -> ExitStatus {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = program.try_wait().expect("a child") {
            return status;
        }
        if Instant::now() > patience {
            program.kill().expect("a child");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ctrl_c_ends_it_as_it_ends_any_program() {
    // A process that is started with `nohup`, or in the background of a script, inherits that Ctrl-C is ignored, and passes that on. A
    // signal that this process handles has its default action again in its children.
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default()).expect("a handler");
    let mut program = validate(&["--no-config", "-"]).stdin(Stdio::piped()).spawn().expect("spawned");
    let stdin = program.stdin.take();
    std::thread::sleep(Duration::from_millis(300));
    let sent = Command::new("kill").args(["-INT", &program.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert_eq!(ended(program).signal(), Some(2));
    drop(stdin);
}

/// A file of 512 MB, nearly none of which is on the disk.
fn sparse(path: &Path, names: [&str; 2]) {
    const HALF: u64 = 256 << 20;
    let tensor = |name: &str, from: u64| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[8192,8192],\"data_offsets\":[{from},{}]}}", from + HALF)
    };
    let mut header = format!("{{{},{}}}", tensor(names[0], 0), tensor(names[1], HALF));
    header.extend(std::iter::repeat_n(' ', (8 - header.len() % 8) % 8));
    let mut file = File::create(path).expect("a temporary folder");
    file.write_all(&(header.len() as u64).to_le_bytes())
        .and_then(|()| file.write_all(header.as_bytes()))
        .expect("written");
    file.set_len(8 + header.len() as u64 + 2 * HALF).expect("made longer");
}

/// What is unfinished in a folder, or one in it.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let each = paths.flat_map(|path| if path.is_dir() { unfinished(&path) } else { vec![path] });
    each.filter(|path| path.to_string_lossy().ends_with(".max-weights-unfinished")).collect()
}

#[test]
fn a_signal_leaves_nothing_of_what_a_command_was_writing() {
    // As above.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::default()).expect("a handler");
    }
    let folder = tempfile::tempdir().expect("a folder");
    sparse(&folder.path().join("in.safetensors"), ["a.weight", "b.weight"]);
    let long = format!("key={}", "v".repeat(100_000));
    let commands: [(&[&str], &str, i32); 6] = [
        (&["convert", "in.safetensors", "out.safetensors", "--dtype", "fp16"], "INT", 2),
        (&["convert", "in.safetensors", "folder", "--dtype", "fp16"], "TERM", 15),
        (&["convert", "in.safetensors", "out.gguf", "--quantize", "q8_0"], "HUP", 1),
        (&["split", "in.safetensors", "parts", "--max-shard-size", "300MB"], "INT", 2),
        (&["merge", "in.safetensors", "whole.safetensors"], "TERM", 15),
        (&["meta", "set", "in.safetensors", &long], "HUP", 1),
    ];
    for (arguments, signal, number) in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_max-weights"));
        command.args(arguments).current_dir(&folder).stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = command.spawn().expect("spawned");
        let mut status = None;
        while status.is_none() && unfinished(folder.path()).is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            status = program.try_wait().expect("a child");
        }
        if let Some(status) = status {
            // Where a filesystem shares blocks, a copy takes no time.
            assert!(status.success() && arguments[0] != "convert", "{arguments:?} ended before it was seen to write");
            continue;
        }
        let sent = Command::new("kill").args([&format!("-{signal}"), &program.id().to_string()]).status();
        assert!(sent.expect("kill").success());
        assert_eq!(ended(program).signal(), Some(number), "{arguments:?}");
        assert_eq!(unfinished(folder.path()), Vec::<PathBuf>::new(), "{arguments:?}");
    }
}

#[test]
fn files_of_settings_and_baselines_that_are_none_are_mistakes_of_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad");
    std::fs::write(&bad, b"\xff\x1b[31m").expect("written");
    let bad = bad.to_str().expect("UTF-8");
    let missing = folder.path().join("missing");
    let missing = missing.to_str().expect("UTF-8");
    for option in ["--config", "--baseline"] {
        for file in [bad, missing, "/dev/zero", "/"] {
            // 256 MB of zeros take a moment, and say no more than 4 MB do.
            if (option, file) == ("--baseline", "/dev/zero") {
                continue;
            }
            let no_config = if option == "--baseline" { vec!["--no-config"] } else { Vec::new() };
            let arguments = [&no_config[..], &[option, file, bad]].concat();
            let output = validate(&arguments).output().expect("it ran");
            let message = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(output.status.code(), Some(2), "{option} {file}: {message}");
            assert!(!message.contains('\x1b') && message.contains(file), "{option} {file}: {message:?}");
        }
    }
}
