//! Each fault as a client sees it.

use std::time::{Duration, Instant};

use crate::client::{Ending, Reply, Served, content};

const RIGHT: Option<&str> = Some("bytes 100-199/1000");

fn tag(reply: &Reply) -> &str {
    reply.header("etag").unwrap_or_default()
}

/// The answer is the right one, except for what a test checks.
fn assert_right(reply: &Reply) {
    assert_eq!((reply.status, reply.body.as_slice()), (206, &content(1000)[100..200]));
    assert_eq!((reply.header("content-range"), reply.ending), (RIGHT, Ending::Whole));
}

#[test]
fn errors_come_with_the_status_and_code_of_the_store() {
    let served = Served::new("");
    for (fault, status, code) in [
        ("slow-down", 503, "SlowDown"),
        ("500-in-200", 200, "InternalError"),
        ("denied", 403, "AccessDenied"),
        ("expired-token", 400, "ExpiredToken"),
        ("clock-skew", 403, "RequestTimeTooSkewed"),
        ("deleted=1", 404, "NoSuchKey"),
    ] {
        served.server.set(&format!("{fault} times=1")).expect("a fault");
        let reply = served.range();
        assert_eq!((reply.status, reply.element("Code").as_str()), (status, code), "{fault}");
        assert_eq!(reply.header("x-amz-request-id"), Some(reply.element("RequestId").as_str()));
        assert_right(&served.range());
    }
    served.server.set("denied").expect("a fault");
    assert_eq!(served.get("/hub/api/models/org/name").header("x-error-code"), Some("GatedRepo"));
}

#[test]
fn limits_say_when_to_come_back() {
    let served = Served::new("429-retry-after=3");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("3")));
    served.server.set("429-ratelimit=87").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("ratelimit")), (429, Some("\"resolvers\";r=0;t=87")));
    assert_eq!(reply.header("retry-after"), None);
}

#[test]
fn connections_are_reset_before_the_head_and_in_the_body() {
    let served = Served::new("reset-before-head");
    let mut client = served.client();
    client.send("GET /files/bucket/model", &[], b"");
    assert_eq!(client.reply(true).expect_err("an end"), Ending::Reset);
    served.server.set("reset-in-body=30").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.status, reply.body.len(), reply.ending), (206, 30, Ending::Reset));
    assert_eq!(reply.header("content-length"), Some("100"));
    assert_eq!(served.server.counts().bytes, 30);
}

#[test]
fn bodies_are_shorter_than_announced_or_than_asked() {
    let served = Served::new("short-body");
    let reply = served.range();
    assert_eq!((reply.header("content-length"), reply.body.len(), reply.ending), (Some("100"), 50, Ending::Closed));
    served.server.set("short-adjusted").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.header("content-length"), reply.body.len(), reply.ending), (Some("50"), 50, Ending::Whole));
    assert_eq!(reply.header("content-range"), RIGHT);
}

#[test]
fn ranges_are_others_than_were_asked_for() {
    let served = Served::new("shifted-range");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("content-range")), (206, Some("bytes 101-200/1000")));
    assert_eq!(reply.body, &content(1000)[101..201]);
    let reply = served.ask("GET /files/bucket/model", &[("Range", "bytes=0-999")], b"");
    assert_eq!((reply.header("content-range"), reply.body.len()), (Some("bytes 1-999/1000"), 999));
    served.server.set("other-total").expect("a fault");
    assert_eq!(served.range().header("content-range"), Some("bytes 100-199/2000"));
    served.server.set("no-content-range").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("content-range"), reply.body.len()), (206, None, 100));
    served.server.set("whole-200").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("content-range")), (200, None));
    assert_eq!(reply.body, content(1000));
    served.server.set("whole-200-right-range").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("content-range"), reply.body.len()), (200, RIGHT, 100));
}

#[test]
fn an_object_is_replaced_between_requests() {
    let served = Served::new("etag-changes=3");
    let (first, second, third) = (served.range(), served.range(), served.range());
    assert_right(&first);
    assert_right(&second);
    assert_eq!((third.status, third.header("content-range")), (206, RIGHT));
    assert_ne!(tag(&third), tag(&first));
    assert!(third.body.iter().zip(&first.body).all(|(new, old)| new != old), "a mix would be seen in each byte");
    let ask =
        |tag: &str| served.ask("GET /files/bucket/model", &[("Range", "bytes=0-9"), ("If-Match", tag)], b"").status;
    assert_eq!([ask(tag(&first)), ask(tag(&third))], [412, 206]);
    served.server.set("etag-changes=1 if-match-ignored").expect("a fault");
    assert_eq!(ask(tag(&first)), 206);
}

#[test]
fn an_object_is_replaced_while_it_is_sent() {
    let served = Served::new("etag-changes-in-body");
    let first = served.range();
    assert_eq!((first.body.as_slice(), first.ending), (&content(1000)[100..150], Ending::Closed));
    let second = served.range();
    assert_eq!((second.status, second.ending), (206, Ending::Whole));
    assert_ne!(tag(&first), tag(&second));
    assert_ne!(second.body, &content(1000)[100..200]);
    served.server.set("").expect("no faults");
    assert_right(&served.range());
}

#[test]
fn an_object_has_no_tag_grows_shrinks_and_is_deleted() {
    let served = Served::new("no-etag");
    let reply = served.range();
    assert_eq!((tag(&reply), reply.body.len()), ("", 100));
    served.server.set("").expect("no faults");
    let before = served.range();
    for (fault, range) in [("grows", "bytes 100-199/5096"), ("shrinks", "bytes 100-199/500")] {
        served.server.set(fault).expect("a fault");
        assert_right(&served.range());
        let after = served.range();
        assert_eq!((after.status, after.header("content-range")), (206, Some(range)));
        assert_ne!(tag(&after), tag(&before));
        assert_eq!(after.body, before.body);
    }
    served.server.set("grows=1").expect("a fault");
    assert_eq!(served.get("/files/bucket/model").body, [content(1000), vec![0; 4096]].concat());
    served.server.set("shrinks=1").expect("a fault");
    assert_eq!(served.ask("GET /files/bucket/model", &[("Range", "bytes=600-")], b"").status, 416);
    served.server.set("deleted").expect("a fault");
    assert_eq!([served.range().status, served.range().status], [206, 404]);
}

#[test]
fn bodies_are_encoded() {
    let served = Served::new("gzip");
    let reply = served.range();
    assert_eq!((reply.header("content-encoding"), reply.header("content-range")), (Some("gzip"), RIGHT));
    assert_eq!((&reply.body[..3], reply.body.len()), (&[0x1f, 0x8b, 8][..], 10 + 5 + 100 + 8));
    assert_eq!(&reply.body[15..115], &content(1000)[100..200]);
    served.server.set("chunked").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.header("content-length"), reply.header("transfer-encoding")), (None, Some("chunked")));
    assert_right(&reply);
}

#[test]
fn listings_have_names_that_no_file_has() {
    let served = Served::new("lists=../%00%2f");
    assert_eq!(served.get("/s3/bucket?list-type=2").elements("Key"), ["../\0/", "model"]);
    assert!(served.get("/hub/api/models/bucket").text().contains("[{\"rfilename\": \"../\\u0000/\"}, {"));
}

#[test]
fn answers_stall_and_drip() {
    let served = Served::new("stall=60 times=1");
    let impatient = |served: &Served| {
        let mut client = served.client().impatient();
        client.send("GET /files/bucket/model", &[("Range", "bytes=100-199")], b"");
        client.reply(true)
    };
    let reply = impatient(&served).expect("an answer");
    assert_eq!((reply.body.len(), reply.ending), (50, Ending::Silence));
    served.server.set("stall=0.1").expect("a fault");
    assert_right(&served.range());
    served.server.set("stall-before-head=60").expect("a fault");
    assert_eq!(impatient(&served).expect_err("silence"), Ending::Silence);
    served.server.set("drip").expect("a fault");
    let start = Instant::now();
    let reply = served.ask("GET /files/bucket/model", &[("Range", "bytes=0-1")], b"");
    assert_eq!(reply.body, content(2));
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn redirects_lead_round_in_circles_and_elsewhere() {
    let served = Served::new("redirect-loop");
    let reply = served.range();
    let here = format!("{}/files/bucket/model", served.server.url());
    assert_eq!((reply.status, reply.header("location")), (302, Some(here.as_str())));
    served.server.set("redirect-to=http://169.254.169.254/latest").expect("a fault");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("location")), (302, Some("http://169.254.169.254/latest")));
}

#[test]
fn a_bit_is_flipped() {
    let served = Served::new("corrupt");
    let reply = served.range();
    assert_eq!((reply.status, reply.header("content-range")), (206, RIGHT));
    let differing: Vec<usize> = (0..100).filter(|at| reply.body[*at] != content(1000)[100 + at]).collect();
    assert_eq!(differing, [50]);
    assert_eq!((reply.body[50] ^ content(1000)[150]).count_ones(), 1);
}

#[test]
fn faults_are_for_some_requests_only() {
    let served = Served::new("slow-down path=other\ncorrupt times=1");
    assert_ne!(served.range().body, &content(1000)[100..200]);
    assert_right(&served.range());
    assert_eq!(served.get("/files/other").status, 503);
    served.server.set("slow-down percent=30").expect("a fault");
    let failed = (0..200).filter(|_| served.range().status == 503).count();
    assert!((40..80).contains(&failed), "{failed}");
}
