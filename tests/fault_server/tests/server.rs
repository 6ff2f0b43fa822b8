//! Counts, the log, latency, rates, and rubbish.

use std::time::{Duration, Instant};

use crate::client::{Ending, Served, content};

#[test]
fn requests_and_bytes_are_counted_and_logged() {
    let served = Served::new("");
    let mut client = served.client();
    client.ask("GET /files/bucket/model?x=1", &[("Range", "bytes=0-9"), ("AUTHORIZATION", "secret")], b"");
    client.ask("HEAD /files/bucket/model", &[], b"");
    client.ask("PUT /s3/bucket/new", &[], b"12345");
    let counts = served.server.counts();
    assert_eq!((counts.requests, counts.bytes, counts.uploaded, counts.connections), (3, 10, 5, 1));
    let of = counts.by_path["/files/bucket/model"];
    assert_eq!((of.requests, of.bytes), (2, 10));
    let log = served.server.log();
    assert_eq!(log.len(), 3);
    let first = &log[0];
    assert_eq!((first.method.as_str(), first.path.as_str()), ("GET", "/files/bucket/model?x=1"));
    assert_eq!((first.range.as_deref(), first.authorization, first.status), (Some("bytes=0-9"), true, Some(206)));
    assert_eq!(first.headers, ["host", "range", "authorization"]);
    assert_eq!(format!("http://{}", first.host), served.server.url());
    assert!(!format!("{log:?}").contains("secret"));
    assert!(!log[1].authorization);
    served.server.reset_counts();
    assert_eq!((served.server.counts().requests, served.server.log().len()), (0, 0));
}

#[test]
fn tests_in_other_languages_ask_and_set_over_http() {
    let served = Served::new("");
    served.get("/files/bucket/model");
    let counts = served.get("/_counts").text();
    assert!(counts.contains("\"requests\": 1, \"bytes\": 1000,"), "{counts}");
    assert!(counts.contains("\"/files/bucket/model\": {\"requests\": 1, \"bytes\": 1000}"), "{counts}");
    let log = served.get("/_log").text();
    assert!(log.contains("\"method\": \"GET\", \"path\": \"/files/bucket/model\", \"range\": null"), "{log}");
    assert_eq!(served.ask("POST /_control", &[], b"slow-down times=1\nlatency_ms=30").status, 200);
    let start = Instant::now();
    assert_eq!([served.range().status, served.range().status], [503, 206]);
    assert!(start.elapsed() >= Duration::from_millis(60));
    let refused = served.ask("POST /_control", &[], b"rubbish");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("slow-down"));
    assert_eq!(served.ask("DELETE /_counts", &[], b"").status, 204);
    assert_eq!(served.server.counts().requests, 0);
    assert_eq!(served.ask("DELETE /_control", &[], b"").status, 405);
}

#[test]
fn latency_is_for_each_request_and_connections_wait_side_by_side() {
    let served = Served::new("latency_ms=100");
    let start = Instant::now();
    let mut clients: Vec<_> = (0..8).map(|_| served.client()).collect();
    for client in &mut clients {
        client.send("GET /files/bucket/model", &[], b"");
    }
    for client in &mut clients {
        assert_eq!(client.reply(true).expect("an answer").body, content(1000));
    }
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert!(served.server.counts().most_at_once > 1);
}

#[test]
fn a_rate_is_for_each_connection() {
    let served = Served::new("rate=5000");
    let start = Instant::now();
    assert_eq!(served.get("/files/bucket/model").body, content(1000));
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
}

#[test]
fn requests_follow_each_other_on_a_connection() {
    let served = Served::new("");
    let mut client = served.client();
    let head = "GET /files/bucket/model HTTP/1.1\r\nRange: bytes=0-0\r\n\r\n";
    client.write(head.repeat(3).as_bytes());
    for _ in 0..3 {
        assert_eq!(client.reply(true).expect("an answer").body, content(1));
    }
    for piece in head.as_bytes().chunks(5) {
        client.write(piece);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.reply(true).expect("an answer").body, content(1));
    client.send("GET /files/bucket/model", &[("Connection", "close")], b"");
    assert_eq!(client.reply(true).expect("an answer").body.len(), 1000);
    assert_eq!(client.reply(true).expect_err("an end"), Ending::Closed);
    assert_eq!(served.server.counts().connections, 1);
}

#[test]
fn rubbish_is_refused_and_the_server_goes_on() {
    let served = Served::new("");
    for rubbish in
        [&b"\r\n\r\n"[..], b"GET\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET /%zz HTTP/1.1\r\n\r\n", &vec![b'x'; 70_000]]
    {
        let mut client = served.client();
        client.write(rubbish);
        match client.reply(true) {
            Ok(reply) => assert_eq!(reply.status, 400),
            Err(ending) => assert_eq!(ending, Ending::Reset, "bytes were left"),
        }
    }
    for request in [
        "PUT /s3/bucket/a HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "PUT /s3/bucket/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut client = served.client();
        client.write(request.as_bytes());
        assert!(client.reply(true).is_err(), "{request}");
    }
    assert_eq!(served.get("/nothing").status, 404);
    assert_eq!(served.get("/s3/bucket/a").status, 404);
    assert_eq!(served.get("/files/bucket/model").status, 200);
}

#[test]
fn a_server_that_is_dropped_does_not_wait_for_its_clients() {
    let served = Served::new("stall=60");
    let mut clients = [served.client(), served.client()];
    clients[1].send("GET /files/bucket/model", &[], b"");
    std::thread::sleep(Duration::from_millis(50));
    let (start, url) = (Instant::now(), served.server.url());
    drop(served.server);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(std::net::TcpStream::connect(&url[7..]).is_err());
}
