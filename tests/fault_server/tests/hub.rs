//! The stand-in for the hub.

use std::net::ToSocketAddrs;

use crate::client::{Client, Reply, Served, content, put};

fn hub() -> Served {
    let served = Served::new("");
    put(served.folder.path(), "org/name/model.safetensors", &content(500));
    put(served.folder.path(), "org/name/a b/config.json", b"{}");
    served
}

fn commit(served: &Served) -> String {
    served.get("/hub/api/models/org/name").header("x-repo-commit").expect("a commit").to_owned()
}

fn resolve(served: &Served) -> Reply {
    served.ask("GET /hub/org/name/resolve/main/model.safetensors", &[("Authorization", "Bearer x")], b"")
}

/// The path of a link, which is at another host name of the same port.
fn path_of(served: &Served, link: &str) -> String {
    let url = served.server.url();
    let other = url.replace("127.0.0.1", "localhost");
    assert!(other.trim_start_matches("http://").to_socket_addrs().is_ok());
    link.strip_prefix(&other).expect("the other name").to_owned()
}

#[test]
fn a_model_has_a_commit_and_files() {
    let served = hub();
    let model = served.get("/hub/api/models/org/name/revision/main");
    let commit = commit(&served);
    assert_eq!((model.status, commit.len()), (200, 40));
    let siblings = "\"siblings\": [{\"rfilename\": \"a b/config.json\"}, {\"rfilename\": \"model.safetensors\"}]";
    assert!(model.text().contains(siblings) && model.text().contains(&format!("\"sha\": \"{commit}\"")));
    assert!(served.get("/hub/api/models/org/name?blobs=true").text().contains("model.safetensors\", \"size\": 500}"));
    assert_eq!(served.get(&format!("/hub/api/models/org/name/revision/{commit}")).text(), model.text());
    put(served.folder.path(), "org/name/new", b"x");
    assert_ne!(self::commit(&served), commit);
}

#[test]
fn folders_of_a_model_are_listed() {
    let served = hub();
    let tree = |path: &str| served.get(&format!("/hub/api/models/org/name/tree/main{path}")).text();
    let paths = |text: &str| -> Vec<String> {
        let pieces = text.split("\"path\": \"").skip(1);
        pieces.map(|piece| piece.split('"').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(paths(&tree("")), ["a b", "model.safetensors"]);
    assert_eq!(paths(&tree("?recursive=true")), ["a b/config.json", "model.safetensors"]);
    assert_eq!(paths(&tree("/a%20b")), ["a b/config.json"]);
    assert!(tree("").contains("\"type\": \"directory\"") && tree("").contains("\"size\": 500"));
    assert_eq!(served.get("/hub/api/models/org/name/tree/main/none").header("x-error-code"), Some("EntryNotFound"));
}

#[test]
fn a_file_is_a_link_to_another_host() {
    let served = hub();
    let reply = resolve(&served);
    assert_eq!((reply.status, reply.header("x-linked-size")), (302, Some("500")));
    assert_eq!(reply.header("x-repo-commit"), Some(commit(&served).as_str()));
    let path = path_of(&served, reply.header("location").expect("a link"));
    let part = served.ask(&format!("GET {path}"), &[("Range", "bytes=3-7")], b"");
    assert_eq!((part.status, part.body.as_slice()), (206, &content(500)[3..8]));
    assert_eq!(part.header("etag"), reply.header("x-linked-etag"));
    let log = served.server.log();
    assert!(log.iter().any(|request| request.authorization && request.path.contains("/resolve/")));
    let url = served.server.url();
    let mut client = Client::new(&served.server);
    client.write(
        format!(
            "HEAD /hub/org/name/resolve/main/a%20b/config.json HTTP/1.1\r\nHost: {}\r\n\r\n",
            &url[7..].replace("127.0.0.1", "localhost")
        )
        .as_bytes(),
    );
    let reply = client.reply(false).expect("an answer");
    assert!(
        reply
            .header("location")
            .is_some_and(|link| link.starts_with(&format!("{url}/cdn/org/name/a%20b/config.json?")))
    );
}

#[test]
fn what_is_missing_has_the_code_of_the_hub() {
    let served = hub();
    let code = |path: &str| {
        let reply = served.get(path);
        assert_eq!(reply.status, 404);
        reply.header("x-error-code").map(str::to_owned)
    };
    assert_eq!(code("/hub/org/name/resolve/main/none").as_deref(), Some("EntryNotFound"));
    assert_eq!(code("/hub/org/none/resolve/main/model.safetensors").as_deref(), Some("RepoNotFound"));
    assert_eq!(code("/hub/api/models/org/none/revision/main").as_deref(), Some("RepoNotFound"));
    assert_eq!(code("/hub/org/name/resolve/v2/model.safetensors").as_deref(), Some("RevisionNotFound"));
    assert_eq!(code("/hub/elsewhere"), None);
}

#[test]
fn links_need_their_signature_and_expire_on_demand() {
    let served = hub();
    assert_eq!(served.get("/cdn/org/name/model.safetensors").status, 403);
    assert_eq!(served.get("/cdn/org/name/model.safetensors?signature=99").status, 403);
    served.server.set("link-expires-after=2").expect("a fault");
    let link = || path_of(&served, resolve(&served).header("location").expect("a link"));
    let (first, second) = (link(), link());
    let status = |path: &str| served.get(path).status;
    assert_eq!([status(&first), status(&first), status(&first)], [200, 200, 403]);
    assert!(served.get(&first).text().contains("Request has expired"));
    assert_eq!(status(&second), 200);
}
