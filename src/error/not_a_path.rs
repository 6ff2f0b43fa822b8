//! Arguments that are not paths: addresses, and forms that only a shell understands.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::text;

/// The schemes of URLs that stores open.
const SCHEMES: [&str; 6] = ["s3", "gs", "az", "hf", "https", "http"];

/// Whether a store in this process opens URLs.
static OPENED: AtomicBool = AtomicBool::new(false);

/// From here on URLs are opened, and messages do not advise against them.
pub(crate) fn urls_are_opened() {
    OPENED.store(true, Ordering::Relaxed);
}

/// Whether a path is a URL of one of the schemes that stores open.
pub(crate) fn is_url(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    SCHEMES.iter().any(|scheme| text.strip_prefix(scheme.as_bytes()).is_some_and(|rest| rest.starts_with(b"://")))
}

/// Advice for a path that does not exist because it is an address, or a form that only a shell understands.
pub(crate) fn not_a_path(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    if let Some(rest) = text.strip_prefix('~') {
        let home = std::env::home_dir().filter(|_| rest.is_empty() || rest.starts_with('/'))?;
        let path = format!("{}{rest}", text::path(&home));
        return Some(format!("'~' is for shells, which write the home folder in its place: give {path}"));
    }
    // Joining paths leaves one slash there.
    let (scheme, rest) = text.split_once(":/")?;
    let is_scheme = scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+');
    if !is_scheme || (OPENED.load(Ordering::Relaxed) && is_url(path)) {
        return None;
    }
    let rest = rest.trim_start_matches('/');
    Some(match scheme {
        "hf" if rest.contains('/') => format!(
            "this build opens no URLs: download it with `hf download {0}`, and give {0}",
            text::escape(&rest.split('/').take(2).collect::<Vec<_>>().join("/"))
        ),
        "file" => format!("addresses are not opened: give the path, /{}", text::escape(rest)),
        _ => format!("{scheme}:// is not opened by this build: download it, and give the path"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_path_says_what_to_give_instead() {
        let message = |path: &str| not_a_path(Path::new(path)).unwrap_or_default();
        assert!(message("hf://org/model/file.safetensors").contains("`hf download org/model`, and give org/model"));
        assert!(message("s3://bucket/a.safetensors").starts_with("s3:// is not opened by this build"));
        assert!(message("https:/host/a.gguf").contains("https://"), "joined from parts");
        assert_eq!(message("file:///a/b"), "addresses are not opened: give the path, /a/b");
        for path in ["a/b", "/nope", "C:/models", "a:b", ":/x", "~name/x"] {
            assert_eq!(message(path), "", "{path}");
        }
        if let Some(home) = std::env::home_dir() {
            assert!(message("~/x").ends_with(&format!("give {}/x", text::path(&home))));
        }
    }
}
