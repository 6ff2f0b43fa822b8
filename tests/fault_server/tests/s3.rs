//! Objects and listings of S3.

use crate::client::{Reply, Served, content, put};

#[test]
fn objects_are_put_read_and_deleted() {
    let served = Served::new("");
    assert_eq!(served.get("/s3/bucket/model").body, content(1000));
    let reply = served.ask("PUT /s3/bucket/a/b%20c", &[], b"bytes");
    assert_eq!(reply.status, 200);
    let read = served.ask("GET /s3/bucket/a/b%20c", &[("Range", "bytes=1-2")], b"");
    assert_eq!((read.status, read.body.as_slice(), read.header("etag")), (206, &b"yt"[..], reply.header("etag")));
    assert_eq!(served.ask("HEAD /s3/bucket/a/b%20c", &[], b"").header("content-length"), Some("5"));
    assert_eq!(served.ask("DELETE /s3/bucket/a/b%20c", &[], b"").status, 204);
    let gone = served.get("/s3/bucket/a/b%20c");
    assert_eq!((gone.status, gone.element("Code").as_str()), (404, "NoSuchKey"));
    assert_eq!(served.get("/s3/none/key").element("Code"), "NoSuchBucket");
    assert_eq!(served.ask("PUT /s3/bucket/../../x", &[], b"bytes").status, 400);
    assert_eq!(served.ask("PUT /s3/new", &[], b"").status, 200);
    assert_eq!(served.ask("PUT /s3/new/key", &[], b"x").status, 200);
    assert_eq!(served.ask("POST /s3/new?delete", &[], b"<Delete><Object><Key>key</Key></Object></Delete>").status, 200);
    assert_eq!(served.get("/s3/new/key").status, 404);
    assert_eq!(served.ask("POST /s3/bucket/model", &[], b"x").status, 501);
}

#[test]
fn a_put_goes_by_its_preconditions() {
    let served = Served::new("");
    let put = |path: &str, name, value: &str| served.ask(&format!("PUT {path}"), &[(name, value)], b"x").status;
    assert_eq!(put("/s3/bucket/model", "If-None-Match", "*"), 412);
    assert_eq!(put("/s3/bucket/new", "If-None-Match", "*"), 200);
    assert_eq!(put("/s3/bucket/model", "If-Match", "\"other\""), 412);
    assert_eq!(put("/s3/bucket/none", "If-Match", "\"other\""), 404);
    assert_eq!(served.get("/s3/bucket/model").body, content(1000));
    let tag = served.get("/s3/bucket/model").header("etag").expect("a tag").to_owned();
    assert_eq!(put("/s3/bucket/model", "If-Match", &tag), 200);
    assert_eq!(served.get("/s3/bucket/model").body, b"x");
}

#[test]
fn signed_and_unsigned_chunks_are_put_without_their_frames() {
    let served = Served::new("");
    let mut client = served.client();
    client.write(
        b"PUT /s3/bucket/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(client.reply(false).expect("an answer").status, 100);
    assert_eq!(client.reply(true).expect("an answer").status, 200);
    assert_eq!(client.ask("GET /s3/bucket/a", &[], b"").body, b"abc");
    let signed = [("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")];
    let framed = b"3\r\nxyz\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
    assert_eq!(client.ask("PUT /s3/bucket/b", &signed, framed).status, 200);
    assert_eq!(client.ask("GET /s3/bucket/b", &[], b"").body, b"xyz");
}

fn list(served: &Served, query: &str) -> Reply {
    served.get(&format!("/s3/bucket?list-type=2&{query}"))
}

#[test]
fn listings_have_prefixes_sizes_and_tags() {
    let served = Served::new("");
    for key in ["a/1", "a/2", "a/b/3", "c & d"] {
        put(served.folder.path(), &format!("bucket/{key}"), b"12345");
    }
    let all = list(&served, "");
    assert_eq!(all.elements("Key"), ["a/1", "a/2", "a/b/3", "c &amp; d", "model"]);
    assert_eq!(all.elements("Size"), ["5", "5", "5", "5", "1000"]);
    assert_eq!(all.elements("ETag").last().map(String::as_str), served.get("/s3/bucket/model").header("etag"));
    assert_eq!((all.element("IsTruncated").as_str(), all.element("KeyCount").as_str()), ("false", "5"));
    let below = list(&served, "prefix=a/&delimiter=/");
    assert_eq!(below.elements("Key"), ["a/1", "a/2"]);
    assert!(below.text().contains("<CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes>"));
    assert_eq!(list(&served, "prefix=c&encoding-type=url").elements("Key"), ["c%20%26%20d"]);
    assert_eq!(list(&served, "prefix=none").element("KeyCount"), "0");
    assert_eq!(list(&served, "start-after=a/b/3").elements("Key"), ["c &amp; d", "model"]);
}

#[test]
fn listings_come_in_pages_of_a_thousand() {
    let served = Served::new("");
    for number in 0..2100 {
        put(served.folder.path(), &format!("bucket/many/{number:04}"), b"");
    }
    let (mut keys, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = list(&served, &format!("prefix=many/&continuation-token={token}"));
        keys.extend(page.elements("Key"));
        pages += 1;
        token = page.element("NextContinuationToken");
        if page.element("IsTruncated") == "false" {
            break;
        }
    }
    assert_eq!((pages, keys.len(), token.as_str()), (3, 2100, ""));
    assert!(keys.is_sorted_by(|before, after| before < after));
    assert_eq!(list(&served, "prefix=many/&max-keys=7").elements("Key").len(), 7);
}
