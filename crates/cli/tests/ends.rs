//! How a validation ends that would go on for long: by its time, or by Ctrl-C; and what is no file of settings ends it at once.
#![cfg(unix)]

use std::os::unix::process::ExitStatusExt as _;
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
    // Whoever is started with `nohup`, or in the background of a script, inherits that Ctrl-C is ignored, and passes that on. A signal that
    // this process catches is by default again in its children.
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default()).expect("a handler");
    let mut program = validate(&["--no-config", "-"]).stdin(Stdio::piped()).spawn().expect("spawned");
    let stdin = program.stdin.take();
    std::thread::sleep(Duration::from_millis(300));
    let sent = Command::new("kill").args(["-INT", &program.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert_eq!(ended(program).signal(), Some(2));
    drop(stdin);
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
            let said = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(output.status.code(), Some(2), "{option} {file}: {said}");
            assert!(!said.contains('\x1b') && said.contains(file), "{option} {file}: {said:?}");
        }
    }
}
