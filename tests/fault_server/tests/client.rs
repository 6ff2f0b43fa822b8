//! A client that shows the bytes on the wire, and a server over a separate folder.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use fault_server::{Behaviour, Server};
use tempfile::TempDir;

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With as many bytes as were announced, or the last chunk.
    Whole,
    Closed,
    Reset,
    /// Nothing came for a while.
    Silence,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) ending: Ending,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The contents of the first element of this name.
    pub(crate) fn element(&self, name: &str) -> String {
        self.elements(name).into_iter().next().unwrap_or_default()
    }

    pub(crate) fn elements(&self, name: &str) -> Vec<String> {
        let (text, start) = (self.text(), format!("<{name}>"));
        let pieces = text.split(start.as_str()).skip(1);
        pieces.map(|piece| piece.split("</").next().unwrap_or_default().replace("&quot;", "\"")).collect()
    }
}

pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(server.url().trim_start_matches("http://")).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        Self(stream)
    }

    /// Give up after a short silence.
    pub(crate) fn impatient(self) -> Self {
        self.0.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
        self
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("a connection");
    }

    /// Send a request: its first line without the version, headers, a body.
    pub(crate) fn send(&mut self, line: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut text = format!("{line} HTTP/1.1\r\nHost: {}\r\n", self.0.peer_addr().expect("an address"));
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        self.write((text + "\r\n").as_bytes());
        self.write(body);
    }

    /// The next byte, or how the connection ended.
    fn byte(&mut self) -> Result<u8, Ending> {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(0) => Err(Ending::Closed),
            Ok(_) => Ok(byte[0]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(Ending::Reset),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(Ending::Silence),
            // A read with a limit of time is not begun again by the system when the process was stopped for a moment.
            Err(error) if error.kind() == ErrorKind::Interrupted => self.byte(),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn until(&mut self, end: &[u8]) -> Result<String, Ending> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(end) {
            bytes.push(self.byte()?);
        }
        Ok(String::from_utf8(bytes).expect("text"))
    }

    fn bytes(&mut self, count: usize, body: &mut Vec<u8>) -> Result<(), Ending> {
        for _ in 0..count {
            body.push(self.byte()?);
        }
        Ok(())
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> Result<(), Ending> {
        loop {
            let length = usize::from_str_radix(self.until(b"\r\n")?.trim(), 16).expect("a length");
            self.bytes(length, body)?;
            assert_eq!(self.until(b"\r\n")?, "\r\n");
            if length == 0 {
                return Ok(());
            }
        }
    }

    /// The next answer; how the connection ended where there is none.
    pub(crate) fn reply(&mut self, has_body: bool) -> Result<Reply, Ending> {
        let head = self.until(b"\r\n\r\n")?;
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        let mut reply = Reply { status, head, body: Vec::new(), ending: Ending::Whole };
        let length = reply.header("content-length").map(|text| text.parse().expect("a length"));
        let is_chunked = reply.header("transfer-encoding") == Some("chunked");
        let mut body = Vec::new();
        let read = match length {
            _ if !has_body => Ok(()),
            _ if is_chunked => self.chunks(&mut body),
            Some(length) => self.bytes(length, &mut body),
            None => Ok(()),
        };
        reply.body = body;
        reply.ending = read.err().unwrap_or(Ending::Whole);
        Ok(reply)
    }

    pub(crate) fn ask(&mut self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send(line, headers, body);
        self.reply(!line.starts_with("HEAD")).expect("an answer")
    }
}

/// A server over a folder with some files.
pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
}

pub(crate) fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

pub(crate) fn put(folder: &Path, path: &str, bytes: &[u8]) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
}

impl Served {
    /// `bucket/model` has 1000 bytes.
    pub(crate) fn new(behaviour: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        put(folder.path(), "bucket/model", &content(1000));
        let behaviour: Behaviour = behaviour.parse().expect("a behaviour");
        let server = Server::start(folder.path().to_owned(), behaviour).expect("a server");
        Self { server, folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.server)
    }

    /// One request over a separate connection.
    pub(crate) fn ask(&self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.client().ask(line, headers, body)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path}"), &[], b"")
    }

    /// Bytes 100 to 199 of the model.
    pub(crate) fn range(&self) -> Reply {
        self.ask("GET /files/bucket/model", &[("Range", "bytes=100-199")], b"")
    }
}
