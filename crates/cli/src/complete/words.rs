//! Words of a command line as shells hand them over: as they were typed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The word as the command would get it: without quotes, and with environment variables replaced. Commands are not run, and words that are
/// not UTF-8 stay unchanged.
pub(super) fn unquoted(word: &OsStr) -> OsString {
    let Some(text) = word.to_str() else { return word.to_owned() };
    let mut plain = OsString::new();
    let mut quote = None;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None) => rest = pushed(&mut plain, rest),
            ('\\', Some('"')) if rest.starts_with(['"', '\\', '$', '`']) => rest = pushed(&mut plain, rest),
            ('$', None | Some('"')) => match variable(rest) {
                Some((value, after)) => {
                    plain.push(value);
                    rest = after;
                }
                None => plain.push("$"),
            },
            (c, _) => plain.push(c.encode_utf8(&mut [0; 4])),
        }
    }
    plain
}

/// Takes the next character literally.
fn pushed<'a>(plain: &mut OsString, rest: &'a str) -> &'a str {
    let len = rest.chars().next().map_or(0, char::len_utf8);
    plain.push(&rest[..len]);
    &rest[len..]
}

/// The value of a variable that `$` is before, and what follows its name; `None` where there is no such variable.
fn variable(rest: &str) -> Option<(OsString, &str)> {
    let (name, after) = if let Some(braced) = rest.strip_prefix('{') {
        braced.split_once('}')?
    } else {
        rest.split_at(rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len()))
    };
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    Some((std::env::var_os(name).filter(|_| is_name)?, after))
}

/// The path with the home folder for `~`.
pub(super) fn at_home(path: PathBuf) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(below), Some(home)) => home.join(below),
        _ => path,
    }
}

/// A word for a script of bash or zsh.
pub(super) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-.,+:@".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Whether a program of this name is on the path.
pub(super) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| Path::new(&folder).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(word: &str) -> String {
        unquoted(OsStr::new(word)).into_string().expect("UTF-8")
    }

    #[test]
    fn quotes_go_and_what_they_keep_stays() {
        assert_eq!(plain(r"my\ file.gguf"), "my file.gguf");
        assert_eq!(plain(r#""my file".'g g'uf"#), "my file.g guf");
        assert_eq!(plain(r#""a\b\"c"#), r#"a\b"c"#, "an open quote, as while one types");
        assert_eq!(plain(r"'a\'b"), r"a\b");
        assert_eq!(plain("é\\"), "é");
    }

    #[test]
    fn variables_are_replaced_and_commands_never_run() {
        let path = std::env::var("PATH").expect("PATH");
        assert_eq!(plain("$PATH/a"), format!("{path}/a"));
        assert_eq!(plain("\"${PATH}a\""), format!("{path}a"));
        assert_eq!(plain("'$PATH'"), "$PATH");
        assert_eq!(plain("$NOT_THERE_AT_ALL/$(touch x)`touch x`"), "$NOT_THERE_AT_ALL/$(touch x)`touch x`");
    }

    #[test]
    fn a_word_of_a_script_is_one_word() {
        assert_eq!(quoted("/usr/bin/max-weights"), "/usr/bin/max-weights");
        assert_eq!(quoted("/it's here/$x"), r"'/it'\''s here/$x'");
    }
}
