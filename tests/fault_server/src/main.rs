//! `fault-server FOLDER [--port N] [--latency-ms N] [--rate N] [--fault NAME=ARGUMENT,…]…`: prints its URL, and serves until its input is closed.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use fault_server::{Behaviour, Server};

const USAGE: &str =
    "fault-server FOLDER [--port N] [--latency-ms N] [--rate N] [--fault NAME=ARGUMENT,OPTION=VALUE]...";

fn run() -> io::Result<()> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, USAGE);
    let (mut folder, mut port, mut settings) = (None, 0, String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if !argument.starts_with("--") {
            folder = Some(argument);
            continue;
        }
        let value = arguments.next().ok_or_else(usage)?;
        match argument.as_str() {
            "--port" => port = value.parse().map_err(|_| usage())?,
            "--latency-ms" => settings += &format!(" latency_ms={value}"),
            "--rate" => settings += &format!(" rate={value}"),
            "--fault" => settings += &format!(" {value}"),
            _ => return Err(usage()),
        }
    }
    let server = Server::start_at(folder.ok_or_else(usage)?.into(), settings.parse::<Behaviour>()?, port)?;
    writeln!(io::stdout(), "{}", server.url())?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "fault-server: {error}");
            ExitCode::FAILURE
        }
    }
}
