//! Files over plain HTTP.

use std::fs;

use crate::client::{Served, content, put};

#[test]
fn a_file_is_served_whole_and_in_ranges() {
    let served = Served::new("");
    let whole = served.get("/files/bucket/model");
    assert_eq!((whole.status, whole.body.as_slice()), (200, content(1000).as_slice()));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    assert!(whole.header("last-modified").is_some_and(|date| date.ends_with(" GMT")));
    let tag = whole.header("etag").expect("a tag");
    assert!(tag.starts_with('"') && tag.len() == 34, "{tag}");
    for (range, first, end) in
        [("bytes=0-0", 0, 1), ("bytes=100-199", 100, 200), ("bytes=990-", 990, 1000), ("bytes=-5", 995, 1000)]
    {
        let part = served.ask("GET /files/bucket/model", &[("Range", range)], b"");
        assert_eq!((part.status, part.body.as_slice()), (206, &content(1000)[first..end]), "{range}");
        assert_eq!(part.header("content-range"), Some(format!("bytes {first}-{}/1000", end - 1).as_str()));
        assert_eq!(part.header("etag"), Some(tag));
    }
    let beyond = served.ask("GET /files/bucket/model", &[("Range", "bytes=1000-")], b"");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */1000")));
    assert_eq!(served.get("/files/bucket/none").status, 404);
    assert_eq!(served.get("/files/../etc/passwd").status, 404);
    assert_eq!(served.get("/files/%2e%2e/%2e%2e/etc/passwd").status, 404);
    assert_eq!(served.ask("PUT /files/bucket/model", &[], b"x").status, 405);
}

#[test]
fn a_head_has_the_length_and_no_body() {
    let served = Served::new("");
    let mut client = served.client();
    let reply = client.ask("HEAD /files/bucket/model", &[], b"");
    assert_eq!((reply.status, reply.header("content-length")), (200, Some("1000")));
    assert_eq!(client.ask("GET /files/bucket/model", &[], b"").body.len(), 1000, "the next answer begins there");
}

#[test]
fn preconditions_are_those_of_http() {
    let served = Served::new("");
    let tag = served.get("/files/bucket/model").header("etag").expect("a tag").to_owned();
    let with = |name, value: &str| served.ask("GET /files/bucket/model", &[(name, value), ("Range", "bytes=0-9")], b"");
    assert_eq!(with("If-Match", &tag).status, 206);
    assert_eq!(with("If-Match", "\"other\"").status, 412);
    assert_eq!(with("If-None-Match", &tag).status, 304);
    assert_eq!(with("If-None-Match", "\"other\"").status, 206);
    assert_eq!(with("If-Range", &tag).status, 206);
    assert_eq!(with("If-Range", "\"other\"").body.len(), 1000);
}

#[test]
fn the_tag_is_that_of_the_content() {
    let served = Served::new("");
    put(served.folder.path(), "bucket/copy", &content(1000));
    put(served.folder.path(), "bucket/other", &content(1001)[1..]);
    let tag = |path| served.get(path).header("etag").expect("a tag").to_owned();
    assert_eq!(tag("/files/bucket/model"), tag("/files/bucket/copy"));
    assert_ne!(tag("/files/bucket/model"), tag("/files/bucket/other"));
    let before = tag("/files/bucket/model");
    put(served.folder.path(), "bucket/model", b"something else");
    assert_ne!(before, tag("/files/bucket/model"));
    fs::remove_file(served.folder.path().join("bucket/model")).expect("a file");
    assert_eq!(served.get("/files/bucket/model").status, 404);
}

#[test]
fn names_may_have_any_characters() {
    let served = Served::new("");
    put(served.folder.path(), "a b/ä?#&%2F", b"x");
    assert_eq!(served.get("/files/a%20b/%C3%A4%3F%23%26%252F").body, b"x");
}
