//! The server: a thread for each connection, and what a request goes through.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::azure::{self, Blocks};
use crate::behaviour::Behaviour;
use crate::connection::{Connection, pause};
use crate::counts::{Counts, Entry, Record, Request, lock};
use crate::effects::{Sending, change, instead, sending, version};
use crate::faults::{Fault, Faults};
use crate::files::{Files, serve};
use crate::http::{Answer, Head};
use crate::hub::{self, Links};
use crate::machine;
use crate::multipart::{Uploads, discard, text_of};
use crate::route::Route;
use crate::s3::{self, Store};

struct State {
    files: Files,
    uploads: Uploads,
    blocks: Blocks,
    links: Links,
    faults: Faults,
    record: Record,
    /// The latency and the rate.
    pace: Mutex<(Duration, u64)>,
    stop: AtomicBool,
}

impl State {
    fn set(&self, text: &str) -> io::Result<()> {
        let (latency, rate) = *lock(&self.pace);
        let behaviour = Behaviour { latency, rate, rules: Vec::new() }.with(text)?;
        *lock(&self.pace) = (behaviour.latency, behaviour.rate);
        self.faults.set(behaviour.rules);
        Ok(())
    }

    fn counts(&self) -> Counts {
        self.record.counts(self.uploads.open())
    }
}

/// A running server, which stops when this is dropped.
pub struct Server {
    state: Arc<State>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serve a folder on a free port of the loopback interface.
    pub fn start(folder: PathBuf, behaviour: Behaviour) -> io::Result<Self> {
        Self::start_at(folder, behaviour, 0)
    }

    /// Serve a folder on this port of the loopback interface.
    pub fn start_at(folder: PathBuf, behaviour: Behaviour, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            files: Files::new(folder),
            uploads: Uploads::default(),
            blocks: Blocks::default(),
            links: Links::default(),
            faults: Faults::default(),
            record: Record::default(),
            pace: Mutex::new((behaviour.latency, behaviour.rate)),
            stop: AtomicBool::new(false),
        });
        state.faults.set(behaviour.rules);
        let shared = Arc::clone(&state);
        let acceptor =
            thread::Builder::new().name("fault-server".to_owned()).spawn(move || accept(&shared, &listener))?;
        Ok(Self { state, address, acceptor: Some(acceptor) })
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked and sent since the start, or since `reset_counts`.
    pub fn counts(&self) -> Counts {
        self.state.counts()
    }

    /// All requests since then, in the order in which they came.
    pub fn log(&self) -> Vec<Request> {
        self.state.record.log()
    }

    /// Begin to count anew, with an empty log.
    pub fn reset_counts(&self) {
        self.state.record.reset();
    }

    /// From the next request on only the faults of this text apply, in the words of [`Behaviour`]; none for an empty one. Latency and rate stay
    /// unchanged if the text has none.
    pub fn set(&self, faults: &str) -> io::Result<()> {
        self.state.set(faults)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        // The acceptor waits for a connection, and gets one.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.state.uploads.remove(&self.state.files);
    }
}

fn accept(state: &Arc<State>, listener: &TcpListener) {
    let mut connections: Vec<(JoinHandle<()>, Weak<TcpStream>)> = Vec::new();
    for stream in listener.incoming() {
        if state.stop.load(Ordering::Relaxed) {
            break;
        }
        connections.retain(|(thread, _)| !thread.is_finished());
        let Ok(stream) = stream else {
            // No descriptor is left: one may be soon.
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let stream = Arc::new(stream);
        let other = Arc::downgrade(&stream);
        state.record.connection();
        let shared = Arc::clone(state);
        let spawned = thread::Builder::new().spawn(move || {
            // An error is the end of a connection: the client's, or one that a fault asks for.
            let _ = attend(&shared, stream);
        });
        if let Ok(thread) = spawned {
            connections.push((thread, other));
        }
    }
    for (thread, stream) in connections {
        if let Some(stream) = stream.upgrade() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = thread.join();
    }
}

/// Answer what comes over a connection.
fn attend(state: &State, stream: Arc<TcpStream>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = Connection::new(stream, &state.stop);
    loop {
        let head = match connection.head() {
            Ok(None) => return Ok(()),
            Ok(Some(bytes)) => Head::parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
            Err(error) => return Err(error),
        };
        let Some(head) = head else {
            let answer = Answer::text(400, "text/plain", "This is no request.\n").with("Connection", "close");
            return connection.send(&answer, true, &Sending::default(), |_| ());
        };
        let is_kept = head.keeps_alive();
        match Route::of(&head.path) {
            Route::Control(name) => control(state, &mut connection, &head, &name)?,
            route => {
                let entry = state.record.begin(&head);
                let answered = respond(state, &mut connection, head, &route, &entry);
                state.record.end();
                answered?;
            }
        }
        if !is_kept {
            return Ok(());
        }
    }
}

/// Answer a request, with the faults that befall it.
fn respond(
    state: &State,
    connection: &mut Connection<'_>,
    mut head: Head,
    route: &Route,
    entry: &Entry,
) -> io::Result<()> {
    let (latency, rate) = *lock(&state.pace);
    let faults = state.faults.choose(&head, route.operation(&head));
    if !latency.is_zero() {
        pause(&state.stop, latency)?;
    }
    for fault in &faults {
        match fault {
            Fault::ResetBeforeHead => return Err(io::ErrorKind::ConnectionReset.into()),
            Fault::StallBeforeHead(time) => pause(&state.stop, *time)?,
            Fault::IfMatchIgnored => head.headers.retain(|(name, _)| name != "if-match"),
            _ => {}
        }
    }
    let mut answer = with_body(connection, &head, |body| match instead(&faults, &head, route) {
        Some(answer) => Ok((discard(body)?, answer)),
        None => answer(state, &head, route, &faults, body),
    })
    .inspect(|(taken, _)| state.record.received(*taken))?
    .1;
    change(&faults, &mut answer)?;
    let sending = sending(&faults, answer.body.len(), rate);
    state.record.status(entry, answer.status);
    connection.send(&answer, head.method != "HEAD", &sending, |bytes| state.record.sent(entry, bytes))
}

/// What `use_body` makes of the body of a request, which it takes whole.
fn with_body<T>(
    connection: &mut Connection<'_>,
    head: &Head,
    use_body: impl FnOnce(&mut dyn io::Read) -> io::Result<T>,
) -> io::Result<T> {
    let has_body = ["content-length", "transfer-encoding"].iter().any(|name| head.header(name).is_some());
    if !has_body {
        return use_body(&mut io::empty());
    }
    connection.take_head()?;
    if head.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = head.body(connection.wire()).ok_or(io::ErrorKind::InvalidData)?;
    let used = use_body(&mut body)?;
    discard(&mut body)?;
    Ok(used)
}

/// The right answer, except for changes of the object, and how much of the body was read.
fn answer(
    state: &State,
    head: &Head,
    route: &Route,
    faults: &[Fault],
    body: &mut dyn io::Read,
) -> io::Result<(u64, Answer)> {
    let State { files, uploads, links, .. } = state;
    let version = version(faults);
    let (is_strict, has_md5) = (faults.contains(&Fault::PartTooSmall), faults.contains(&Fault::Md5Tags));
    let store = Store { files, uploads, is_strict, has_md5 };
    match route {
        Route::Store { bucket, key } => return s3::answer(&store, head, (bucket, key), version, body),
        Route::Azure { container, key } => {
            return azure::answer(&store, &state.blocks, head, (container, key), version, body);
        }
        _ => {}
    }
    let taken = discard(body)?;
    let is_read = matches!(head.method.as_str(), "GET" | "HEAD");
    let answer = match route {
        Route::Hub(requested) => hub::answer(files, links, head, requested),
        Route::Machine(path) => machine::answer(head, path),
        Route::File(_) | Route::Link(_) if !is_read => Answer::text(405, "text/plain", "Files are only read.\n"),
        Route::File(path) => match files.object(path, version) {
            Some(object) => serve(head, &object),
            None => Answer::text(404, "text/plain", "There is no such file.\n"),
        },
        Route::Link(key) => {
            let most = faults.iter().find_map(|fault| match fault {
                Fault::LinkExpiresAfter(most) => Some(*most),
                _ => None,
            });
            hub::follow(files, links, head, key, version, most)
        }
        _ => Answer::text(404, "text/plain", "Nothing is here.\n"),
    };
    Ok((taken, answer))
}

/// What tests say to the server, and ask it.
fn control(state: &State, connection: &mut Connection<'_>, head: &Head, name: &str) -> io::Result<()> {
    let text = with_body(connection, head, |body| text_of(body))?;
    let log = || state.record.log().iter().map(Request::json).collect::<Vec<_>>().join(",\n ");
    let answer = match (head.method.as_str(), name) {
        ("POST", "_control") => match state.set(&text) {
            Ok(()) => Answer::new(200),
            Err(error) => Answer::text(400, "text/plain", error.to_string()),
        },
        ("GET", "_counts") => Answer::text(200, "application/json", state.counts().json()),
        ("GET", "_log") => Answer::text(200, "application/json", format!("[{}]", log())),
        ("DELETE", "_counts" | "_log") => {
            state.record.reset();
            Answer::new(204)
        }
        _ => Answer::text(405, "text/plain", "POST /_control, GET or DELETE /_counts, GET or DELETE /_log\n"),
    };
    connection.send(&answer, true, &Sending::default(), |_| ())
}
