//! The hub: the commit of a revision, the files of a model, and their URLs.

use std::path::PathBuf;

use max_weights::format::json;
use serde::Deserialize;
use url::Url;

use crate::client::clients;
use crate::failure::RequestFailure;
use crate::options::{RemoteOptions, Secret};
use crate::url::is_loopback;
use crate::web::beginning;

/// The default hub.
const HUB: &str = "https://huggingface.co";
/// The most bytes of an answer that lists the files of a model.
const MAX_LIST: usize = 32 << 20;
/// The most files of a model.
const MAX_FILES: usize = 100_000;

#[derive(Debug, Clone)]
pub(crate) struct Hub {
    endpoint: Url,
    token: Option<Secret>,
}

impl Hub {
    pub(crate) fn new(options: &RemoteOptions) -> Result<Self, RequestFailure> {
        let endpoint = options.endpoint.clone().or_else(|| variable("HF_ENDPOINT")).unwrap_or_else(|| HUB.to_owned());
        let Ok(endpoint) = Url::parse(&format!("{}/", endpoint.trim_end_matches('/'))) else {
            return Err(RequestFailure::wrong("the address of the hub is not a URL"));
        };
        if endpoint.scheme() == "http" && !options.allow_http && !is_loopback(&endpoint) {
            return Err(RequestFailure::wrong(
                "the address of the hub is not encrypted: use https://, or say allow_http=True",
            ));
        }
        let token = match &options.credentials {
            crate::options::Credentials::Anonymous => None,
            crate::options::Credentials::Provider(provider) => {
                let fields =
                    provider().map_err(|error| RequestFailure::wrong(format!("credentials= failed: {error}")))?;
                fields.into_iter().find_map(|(name, value)| (name == "token").then_some(value))
            }
            crate::options::Credentials::Found => token(),
        };
        Ok(Self { endpoint, token })
    }

    pub(crate) fn token(&self) -> Option<Secret> {
        self.token.clone()
    }

    /// The URL of a file of a model.
    pub(crate) fn file(&self, model: &str, revision: &str, path: &str) -> Result<Url, RequestFailure> {
        self.url(&[model, "resolve"], revision, path)
    }

    /// A URL of the hub. Names are encoded, so that none leaves its segment or begins a query.
    fn url(&self, parts: &[&str], revision: &str, path: &str) -> Result<Url, RequestFailure> {
        let parts = parts.iter().map(|part| encoded(part)).collect::<Vec<_>>().join("/");
        let revision = encoded(revision).replace('/', "%2F");
        let path = if path.is_empty() { String::new() } else { format!("/{}", encoded(path)) };
        let url = self.endpoint.join(&format!("{parts}/{revision}{path}"));
        url.map_err(|_| RequestFailure::wrong("this is not a valid name of a file of the hub"))
    }

    /// The current commit of a revision, and the names of all files in it.
    pub(crate) async fn files(&self, model: &str, revision: &str) -> Result<(String, Vec<String>), RequestFailure> {
        let url = self.url(&["api/models", model, "revision"], revision, "")?;
        let clients = clients().map_err(|error| RequestFailure::wrong(error.to_string()))?;
        let mut request = clients.named.get(url.clone());
        if let Some(token) = self.token.as_ref().filter(|_| url.scheme() == "https" || is_loopback(&url)) {
            request = request.bearer_auth(token.reveal());
        }
        let mut response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            return Err(RequestFailure::of_answer(status, &headers, &beginning(response).await));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_LIST {
                return Err(RequestFailure::wrong(format!("the list of its files has more than {MAX_LIST} bytes")));
            }
        }
        let (commit, files) =
            files_of(&bytes).ok_or_else(|| RequestFailure::wrong("the hub's answer names no commit and no files"))?;
        if files.len() > MAX_FILES {
            return Err(RequestFailure::wrong(format!("the model has more than {MAX_FILES} files")));
        }
        Ok((commit, files))
    }
}

/// The fields that are parsed; the rest of an answer takes no memory.
#[derive(Deserialize)]
struct HubAnswer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: Option<String>,
}

/// The commit and the files in an answer.
fn files_of(bytes: &[u8]) -> Option<(String, Vec<String>)> {
    let HubAnswer { sha: commit, siblings } = json::read(bytes, MAX_LIST as u64).ok()?;
    if commit.is_empty() || commit.len() > 64 || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    Some((commit, siblings.into_iter().filter_map(|one| one.rfilename).collect()))
}

/// The text as a part of the path of a URL.
fn encoded(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |url, character| match character {
        '%' | '?' | '#' | '\\' => url + &format!("%{:02X}", character as u32),
        _ => url + character.encode_utf8(&mut [0; 4]),
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The token that `hf auth login` saved, or from the environment.
fn token() -> Option<Secret> {
    let home = || Some(std::env::home_dir()?.join(".cache/huggingface"));
    let home = || variable("HF_HOME").map(PathBuf::from).or_else(home);
    let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home()?.join("token")));
    let saved = || Some(std::fs::read_to_string(path?).ok()?.trim().to_owned());
    variable("HF_TOKEN").or_else(saved).filter(|token| !token.is_empty()).map(Secret::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_below_their_model() {
        let hub = Hub { endpoint: Url::parse("https://hub.example/").expect("a URL"), token: None };
        let url = |path: &str| hub.file("org/model", "refs/pr/1", path).expect("a URL").to_string();
        let below = "https://hub.example/org/model/resolve/refs%2Fpr%2F1/";
        for (path, present) in [
            ("a/b.gguf", "a/b.gguf"),
            ("%2e%2e/%2e%2e/x", "%252e%252e/%252e%252e/x"),
            ("..%2Fx", "..%252Fx"),
            ("..\\..\\x", "..%5C..%5Cx"),
            ("x?y#z", "x%3Fy%23z"),
        ] {
            assert_eq!(url(path), format!("{below}{present}"));
        }
    }

    #[test]
    fn an_answer_of_the_hub_names_a_commit_and_files() {
        let answer =
            br#"{"sha":"abc1","siblings":[{"rfilename":"model.safetensors"},{"other":1},{"rfilename":"a/b"}]}"#;
        let (commit, files) = files_of(answer).expect("an answer");
        assert_eq!((commit.as_str(), files.len()), ("abc1", 2));
        for wrong in [&b"{}"[..], b"[]", br#"{"sha":"../x","siblings":[]}"#, br#"{"sha":3,"siblings":[]}"#, b"<html>"] {
            assert!(files_of(wrong).is_none());
        }
    }
}
