//! The program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::client::put;

#[test]
fn the_program_prints_its_url_and_serves_until_its_input_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    put(folder.path(), "a", b"content");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fault-server"));
    command.arg(folder.path()).args(["--latency-ms", "1", "--rate", "1000000", "--fault", "slow-down,times=1"]);
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
    let mut url = String::new();
    BufReader::new(program.stdout.take().expect("its output")).read_line(&mut url).expect("a line");
    let get = || {
        let mut stream = TcpStream::connect(url.trim().trim_start_matches("http://")).expect("a connection");
        stream.write_all(b"GET /files/a HTTP/1.1\r\nConnection: close\r\n\r\n").expect("a connection");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    assert!(get().starts_with("HTTP/1.1 503 "));
    assert!(get().ends_with("\r\n\r\ncontent"));
    drop(program.stdin.take());
    assert!(program.wait().expect("its end").success());
}

#[test]
fn what_the_program_does_not_know_is_an_error() {
    for arguments in [&[][..], &[".", "--fault", "rubbish"], &[".", "--port"], &[".", "--unknown", "1"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_fault-server")).args(arguments).stdin(Stdio::null()).output();
        let output = output.expect("the program");
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("fault-server: "), "{arguments:?}");
    }
}
