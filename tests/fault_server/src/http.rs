//! HTTP/1.1: the head of a request, the body of one, and an answer before it is sent.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use crate::text::{decode_percent, escape_xml};

/// What every answer has as `x-amz-request-id`.
pub(crate) const REQUEST_ID: &str = "FA017FA017FA017F";

/// The head of a request.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: String,
    /// The path with the query, as it came.
    pub(crate) target: String,
    /// The path, decoded.
    pub(crate) path: String,
    query: Vec<(String, String)>,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// The head that these bytes are, up to the empty line.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let is_token = |name: &str| !name.is_empty() && name.bytes().all(|c| c.is_ascii_graphic() && c != b':');
        if words.next().is_some() || !version.starts_with("HTTP/1.") || !is_token(method) {
            return None;
        }
        // A proxy would be asked with the whole URL.
        let target = match target.split_once("://") {
            Some((_, after)) if !target.starts_with('/') => &after[after.find('/')?..],
            _ => target,
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs =
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let query = pairs.map(|(name, value)| Some((decode_percent(name)?, decode_percent(&value.replace('+', " "))?)));
        let mut headers = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            if !is_token(name) {
                return None;
            }
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Self {
            method: method.to_owned(),
            target: target.to_owned(),
            path: decode_percent(path).filter(|path| path.starts_with('/'))?,
            query: query.collect::<Option<_>>()?,
            headers,
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// A value of the query; empty for a name without one.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The name by which this server was asked.
    pub(crate) fn host(&self) -> &str {
        self.header("host").unwrap_or_default()
    }

    /// Whether the connection is of use after the answer.
    pub(crate) fn keeps_alive(&self) -> bool {
        !self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// The body of this request, which comes from the connection, without the chunks that it came in; nothing for a length that is none.
    pub(crate) fn body<'a>(&self, connection: impl Read + 'a) -> Option<Box<dyn Read + 'a>> {
        let is_chunked = self.header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
        let wire: Box<dyn Read + 'a> = if is_chunked {
            Box::new(Chunks::new(connection))
        } else {
            let length = self.header("content-length").unwrap_or("0").parse().ok()?;
            Box::new(connection.take(length))
        };
        // Clients of AWS sign bodies chunk by chunk, within the length.
        let is_signed = self.header("x-amz-content-sha256").is_some_and(|value| value.starts_with("STREAMING-"));
        Some(if is_signed { Box::new(Chunks::new(wire)) } else { wire })
    }
}

/// A body in chunks, each with its length in front.
struct Chunks<R> {
    wire: R,
    /// The rest of the chunk; `None` after the last.
    left: Option<u64>,
    is_first: bool,
}

impl<R: Read> Chunks<R> {
    fn new(wire: R) -> Self {
        Self { wire, left: Some(0), is_first: true }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            if line.len() > 4096 || self.wire.read(&mut byte)? == 0 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a chunk without a length"));
            }
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl<R: Read> Read for Chunks<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.left == Some(0) {
            if !self.is_first {
                self.line()?;
            }
            self.is_first = false;
            let line = self.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let length = u64::from_str_radix(digits, 16);
            let length = length.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.left = (length > 0).then_some(length);
            if length == 0 {
                while !self.line()?.is_empty() {}
            }
        }
        let Some(left) = self.left else { return Ok(0) };
        let buffer = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.wire.read(&mut bytes[..buffer])?;
        if read == 0 && buffer > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = Some(left - read as u64);
        Ok(read)
    }
}

/// Some bytes of a file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Where the file ends; zeros follow up to the declared length.
    pub(crate) end_of_file: u64,
    /// Each byte is sent with these bits changed: other content, of the same length.
    pub(crate) mask: u8,
}

/// What follows the head of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    Bytes(Vec<u8>),
    Part(Part),
}

impl Body {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Part(part) => part.length,
        }
    }

    pub(crate) fn truncate(&mut self, length: u64) {
        match self {
            Self::Bytes(bytes) => bytes.truncate(length as usize),
            Self::Part(part) => part.length = part.length.min(length),
        }
    }

    /// The bytes to send.
    pub(crate) fn reader(&self) -> io::Result<Box<dyn Read + '_>> {
        let part = match self {
            Self::Bytes(bytes) => return Ok(Box::new(bytes.as_slice())),
            Self::Part(part) => part,
        };
        let mut file = File::open(&part.path)?;
        file.seek(SeekFrom::Start(part.start))?;
        let stored = part.end_of_file.saturating_sub(part.start).min(part.length);
        let bytes = file.take(stored).chain(io::repeat(0).take(part.length - stored));
        Ok(if part.mask == 0 { Box::new(bytes) } else { Box::new(Masked { bytes, mask: part.mask }) })
    }
}

struct Masked<R> {
    bytes: R,
    mask: u8,
}

impl<R: Read> Read for Masked<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(bytes)?;
        bytes[..read].iter_mut().for_each(|byte| *byte ^= self.mask);
        Ok(read)
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Bytes(Vec::new()) }
    }

    pub(crate) fn text(status: u16, kind: &str, text: impl Into<Vec<u8>>) -> Self {
        let answer = Self { status, headers: Vec::new(), body: Body::Bytes(text.into()) };
        answer.with("Content-Type", kind)
    }

    /// An error as stores write it.
    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let message = escape_xml(message);
        let xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>\
             <RequestId>{REQUEST_ID}</RequestId></Error>"
        );
        Self::text(status, "application/xml", xml)
    }

    pub(crate) fn xml(body: &str) -> Self {
        Self::text(200, "application/xml", format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}"))
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }
}

/// What the status line says after the number.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        302 => "Found",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Slow Down",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(head: &str, wire: &[u8]) -> Vec<u8> {
        let head = Head::parse(head.as_bytes()).expect("a head");
        let mut bytes = Vec::new();
        head.body(wire).expect("a length").read_to_end(&mut bytes).expect("a body");
        bytes
    }

    #[test]
    fn a_head_has_a_path_a_query_and_headers() {
        let text = b"GET /files/a%20b?x=1&y&z=%2F HTTP/1.1\r\nHost: here\r\nRANGE: bytes=1-2\r\n\r\n";
        let head = Head::parse(text).expect("a head");
        assert_eq!((head.path.as_str(), head.host(), head.header("range")), ("/files/a b", "here", Some("bytes=1-2")));
        assert_eq!(
            [head.value("x"), head.value("y"), head.value("z"), head.value("w")],
            [Some("1"), Some(""), Some("/"), None]
        );
        for rubbish in ["", "\r\n", "GET", "GET / HTTP/1.1 x", "GET / FTP/1", "GET a HTTP/1.1", "GET /%zz HTTP/1.1"] {
            assert!(Head::parse(rubbish.as_bytes()).is_none(), "{rubbish}");
        }
        assert!(Head::parse(b"GET / HTTP/1.1\r\nno colon\r\n\r\n").is_none());
        assert!(Head::parse(&[0xff; 30]).is_none());
    }

    #[test]
    fn bodies_come_whole_in_chunks_and_in_signed_chunks() {
        let chunked = "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(body(chunked, b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\nGET"), b"abcde");
        assert_eq!(body("PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", b"abcGET"), b"abc");
        let signed = b"3;chunk-signature=00\r\nabc\r\n0;chunk-signature=00\r\n\r\n";
        let head = format!(
            "PUT / HTTP/1.1\r\nContent-Length: {}\r\nx-amz-content-sha256: STREAMING-AWS4\r\n\r\n",
            signed.len()
        );
        assert_eq!(body(&head, signed), b"abc");
        let head = Head::parse(b"PUT / HTTP/1.1\r\nContent-Length: -3\r\n\r\n").expect("a head");
        assert!(head.body(&b"abc"[..]).is_none());
    }
}
