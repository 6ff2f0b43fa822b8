//! A connection: reads heads, and writes answers at the configured speed and up to the configured byte.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::effects::Sending;
use crate::http::{Answer, REQUEST_ID, reason};
use crate::text::http_date;

/// The longest head.
const MAX_HEAD: usize = 64 << 10;
/// Bytes of a file that are read and sent at a time.
const PIECE: usize = 256 << 10;

/// Wait so long, or until the server stops.
pub(crate) fn pause(stop: &AtomicBool, time: Duration) -> io::Result<()> {
    let end = Instant::now() + time;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(20)));
    }
}

pub(crate) struct Connection<'a> {
    /// The only one: when this is dropped, the connection is closed.
    stream: Arc<TcpStream>,
    stop: &'a AtomicBool,
    /// Whether the last byte of a head has not been taken yet. A connection that is closed with bytes in it is reset: std has no other way.
    holds_a_byte: bool,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(stream: Arc<TcpStream>, stop: &'a AtomicBool) -> Self {
        Self { stream, stop, holds_a_byte: false }
    }

    /// What comes behind a head that was taken.
    pub(crate) fn wire(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&*self.stream).write_all(bytes)
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        (&*self.stream).read_exact(bytes)
    }

    /// The next head; none when the client has gone.
    pub(crate) fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (mut head, mut piece) = (Vec::new(), [0; 8192]);
        loop {
            let before = head.len();
            let length = self.stream.peek(&mut piece)?;
            if length == 0 {
                return Ok(None);
            }
            head.extend_from_slice(&piece[..length]);
            let start = before.saturating_sub(3);
            let Some(at) = head[start..].windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
                self.read(&mut piece[..length])?;
                if head.len() > MAX_HEAD {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a head without an end"));
                }
                continue;
            };
            let end = start + at + 4;
            self.read(&mut piece[..end - 1 - before])?;
            self.holds_a_byte = true;
            head.truncate(end);
            return Ok(Some(head));
        }
    }

    /// Take the last byte of the head: what follows is the body, or the next head.
    pub(crate) fn take_head(&mut self) -> io::Result<()> {
        if self.holds_a_byte {
            self.read(&mut [0])?;
            self.holds_a_byte = false;
        }
        Ok(())
    }

    /// Send an answer, with its body if the request has one coming; `sent` gets the length of each piece.
    pub(crate) fn send(
        &mut self,
        answer: &Answer,
        has_body: bool,
        sending: &Sending,
        mut sent: impl FnMut(u64),
    ) -> io::Result<()> {
        let length = answer.body.len();
        let mut head = format!("HTTP/1.1 {} {}\r\n", answer.status, reason(answer.status));
        for (name, value) in &answer.headers {
            // Nothing that came in a path ends a header.
            head += &format!("{name}: {}\r\n", value.replace(['\r', '\n'], " "));
        }
        if sending.is_chunked {
            head += "Transfer-Encoding: chunked\r\n";
        } else if !matches!(answer.status, 204 | 304) {
            head += &format!("Content-Length: {length}\r\n");
        }
        let now = http_date(std::time::SystemTime::now());
        head += &format!("Date: {now}\r\nServer: fault-server\r\nx-amz-request-id: {REQUEST_ID}\r\n\r\n");
        self.write(head.as_bytes())?;
        if has_body {
            self.body(answer, sending, &mut sent)?;
        }
        if has_body && let Some(end) = sending.end {
            // What was sent is to be seen before the end.
            if sending.is_reset {
                pause(self.stop, Duration::from_millis(50))?;
            } else {
                self.take_head()?;
            }
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, format!("ended after {end} bytes")));
        }
        self.take_head()
    }

    fn body(&mut self, answer: &Answer, sending: &Sending, sent: &mut impl FnMut(u64)) -> io::Result<()> {
        let mut reader = answer.body.reader()?;
        let (length, started) = (answer.body.len(), Instant::now());
        let end = sending.end.unwrap_or(length).min(length);
        // At a rate, a piece is what passes in a tenth of a second.
        let piece = if sending.rate == 0 { PIECE } else { (sending.rate as usize / 10).clamp(1, PIECE) };
        let mut buffer = vec![0; piece];
        let (mut at, mut stall) = (0_u64, sending.stall);
        while at < end {
            let mut next = end.min(at + piece as u64);
            if let Some((place, time)) = stall {
                if at >= place {
                    pause(self.stop, time)?;
                    stall = None;
                } else {
                    next = next.min(place);
                }
            }
            let bytes = &mut buffer[..(next - at) as usize];
            reader.read_exact(bytes)?;
            if let Some(flipped) = sending.flipped.filter(|flipped| (at..next).contains(flipped)) {
                bytes[(flipped - at) as usize] ^= 1;
            }
            if sending.rate > 0 {
                let due = Duration::from_secs_f64(next as f64 / sending.rate as f64);
                pause(self.stop, due.saturating_sub(started.elapsed()))?;
            } else if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            // Counted before a client can have them, and ask.
            sent(next - at);
            if sending.is_chunked {
                self.write(format!("{:x}\r\n", bytes.len()).as_bytes())?;
                self.write(bytes)?;
                self.write(b"\r\n")?;
            } else {
                self.write(bytes)?;
            }
            at = next;
        }
        if sending.is_chunked && end == length {
            self.write(b"0\r\n\r\n")?;
        }
        Ok(())
    }
}
