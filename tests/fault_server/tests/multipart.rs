//! Uploads in parts.

use std::fs;

use crate::client::{Reply, Served};

const TWO_PARTS: [(u32, &[u8]); 2] = [(2, b"second"), (1, b"first ")];

/// Begin an upload, and put parts; the query that names it, and the list that completes it.
fn begin(served: &Served, parts: &[(u32, &[u8])]) -> (String, String) {
    let upload = served.ask("POST /s3/bucket/new?uploads", &[], b"");
    assert_eq!((upload.element("Bucket").as_str(), upload.element("Key").as_str()), ("bucket", "new"));
    let query = format!("uploadId={}", upload.element("UploadId"));
    let mut tags = Vec::new();
    for (number, bytes) in parts {
        let reply = served.ask(&format!("PUT /s3/bucket/new?partNumber={number}&{query}"), &[], bytes);
        assert_eq!(reply.status, 200);
        tags.push((*number, reply.header("etag").expect("a tag").to_owned()));
    }
    tags.sort();
    let entry = |(number, tag): &(u32, String)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", tag.replace('"', "&quot;"))
    };
    let entries: String = tags.iter().map(entry).collect();
    (query, format!("<CompleteMultipartUpload>{entries}</CompleteMultipartUpload>"))
}

fn complete(served: &Served, query: &str, list: &str, headers: &[(&str, &str)]) -> Reply {
    served.ask(&format!("POST /s3/bucket/new?{query}"), headers, list.as_bytes())
}

/// Whether nothing of an upload is left.
fn is_clean(served: &Served) -> bool {
    let left = fs::read_dir(served.folder.path().join(".fault-server")).map_or(0, Iterator::count);
    served.server.counts().open_uploads == 0 && left == 0
}

#[test]
fn an_object_appears_when_its_parts_are_complete() {
    let served = Served::new("");
    let (query, list) = begin(&served, &TWO_PARTS);
    assert_eq!(served.get("/s3/bucket/new").status, 404);
    assert_eq!(served.get("/s3/bucket?list-type=2").elements("Key"), ["model"]);
    assert_eq!(served.server.counts().open_uploads, 1);
    assert_eq!(served.get("/s3/bucket?uploads").elements("UploadId").len(), 1);
    let reply = complete(&served, &query, &list, &[]);
    assert_eq!(reply.status, 200);
    let read = served.get("/s3/bucket/new");
    assert_eq!(read.body, b"first second");
    assert_eq!(read.header("etag"), Some(reply.element("ETag").as_str()));
    assert!(is_clean(&served));
    assert_eq!(complete(&served, &query, &list, &[]).element("Code"), "NoSuchUpload");
}

#[test]
fn an_upload_that_is_aborted_leaves_nothing() {
    let served = Served::new("");
    let (query, list) = begin(&served, &TWO_PARTS);
    assert_eq!(served.ask(&format!("DELETE /s3/bucket/new?{query}"), &[], b"").status, 204);
    assert!(is_clean(&served));
    assert_eq!(complete(&served, &query, &list, &[]).status, 404);
    assert_eq!(served.ask(&format!("PUT /s3/bucket/new?partNumber=1&{query}"), &[], b"x").status, 404);
    assert!(is_clean(&served));
}

#[test]
fn lists_of_parts_are_checked() {
    let served = Served::new("");
    let (query, list) = begin(&served, &TWO_PARTS);
    let code = |list: &str| complete(&served, &query, list, &[]).element("Code");
    assert_eq!(code("rubbish"), "MalformedXML");
    assert_eq!(code(&list.replace("<PartNumber>2<", "<PartNumber>3<")), "InvalidPart");
    assert_eq!(code(&list.replace("<PartNumber>2<", "<PartNumber>1<")), "InvalidPartOrder");
    assert_eq!(code(&list.replace("&quot;", "x")), "InvalidPart");
    let part = |number: &str| served.ask(&format!("PUT /s3/bucket/new?partNumber={number}&{query}"), &[], b"x").status;
    assert_eq!([part("0"), part("10001"), part("x")], [400; 3]);
    assert_eq!(served.server.counts().open_uploads, 1, "it can still be completed");
    assert_eq!(complete(&served, &query, &list, &[]).status, 200);
}

#[test]
fn a_part_that_is_put_again_replaces_the_first() {
    let served = Served::new("");
    let (query, list) = begin(&served, &[(1, b"old")]);
    let tag =
        served.ask(&format!("PUT /s3/bucket/new?partNumber=1&{query}"), &[], b"new").header("etag").map(str::to_owned);
    assert_eq!(complete(&served, &query, &list, &[]).element("Code"), "InvalidPart");
    let list = format!("<PartNumber>1</PartNumber><ETag>{}</ETag>", tag.expect("a tag"));
    assert_eq!(complete(&served, &query, &list, &[]).status, 200);
    assert_eq!(served.get("/s3/bucket/new").body, b"new");
    assert!(is_clean(&served));
}

#[test]
fn preconditions_hold_when_an_upload_is_completed() {
    let served = Served::new("");
    let (query, list) = begin(&served, &TWO_PARTS);
    assert_eq!(served.ask("PUT /s3/bucket/new", &[], b"earlier").status, 200);
    assert_eq!(complete(&served, &query, &list, &[("If-None-Match", "*")]).status, 412);
    assert_eq!(complete(&served, &query, &list, &[("If-Match", "\"x\"")]).status, 412);
    assert_eq!(served.get("/s3/bucket/new").body, b"earlier");
    let tag = served.get("/s3/bucket/new").header("etag").expect("a tag").to_owned();
    assert_eq!(complete(&served, &query, &list, &[("If-Match", &tag)]).status, 200);
    assert_eq!(served.get("/s3/bucket/new").body, b"first second");
}

#[test]
fn parts_completions_and_preconditions_fail_on_demand() {
    let served = Served::new("");
    let (query, list) = begin(&served, &TWO_PARTS);
    for (fault, status, code) in [
        ("complete-fails", 500, "InternalError"),
        ("complete-error-in-200", 200, "InternalError"),
        ("precondition-fails", 412, "PreconditionFailed"),
        ("part-too-small", 400, "EntityTooSmall"),
    ] {
        served.server.set(fault).expect("a fault");
        let reply = complete(&served, &query, &list, &[]);
        assert_eq!((reply.status, reply.element("Code").as_str()), (status, code), "{fault}");
        assert_eq!(served.get("/s3/bucket/new").status, 404, "{fault}");
    }
    served.server.set("part-fails times=1").expect("a fault");
    let part = |number: u32| served.ask(&format!("PUT /s3/bucket/new?partNumber={number}&{query}"), &[], b"x").status;
    assert_eq!([part(3), part(3)], [500, 200]);
    assert_eq!(complete(&served, &query, &list, &[]).status, 200);
    served.server.set("precondition-fails").expect("a fault");
    assert_eq!(served.ask("PUT /s3/bucket/other", &[], b"x").status, 412);
    assert_eq!(served.get("/s3/bucket/other").status, 404);
}
