//! Programs in Python, word by word: what they import from beside them, which classes they define, and whether any word in them is one by which
//! programs run others. What a program does with it is not looked at, as that is for who reads it.

use std::collections::HashSet;

/// Longer programs are not looked at.
pub(super) const MAX_BYTES: usize = 2 << 20;

/// Words by which programs and code are run, wherever they stand.
const RUNS: &str = "
    CDLL CodeType FunctionType InteractiveConsole InteractiveInterpreter PyDLL WinDLL __builtins__ __getattribute__ __import__ __subclasses__
    _posixsubprocess attrgetter builtins cdll cpp_extension create_subprocess_exec create_subprocess_shell ctypes dup2 execfile
    execl execle execlp execlpe execv execve execvp execvpe fork_exec getstatusoutput load_dynamic load_library load_source marshal methodcaller
    popen popen2 popen3 popen4 posix posix_spawn posix_spawnp pty pydoc pythonapi resolve_name runpy spawnl spawnle spawnlp spawnlpe spawnv
    spawnve spawnvp spawnvpe startfile subprocess windll";
/// Modules that reach the network, where they are imported.
const NETWORK: &str = "
    aiohttp ftplib gdown http httplib httpx imaplib paramiko poplib pycurl requests smtplib socket socketserver telnetlib urllib urllib2 urllib3
    webbrowser websocket websockets wget xmlrpc";
/// Modules that are handed on by nobody who only takes attributes of them by their names.
const HANDED_ON: &str = "importlib nt os pickle sys";
/// Spaces, and what stands for the end of a line that goes on.
const SPACES: [char; 3] = [' ', '\t', '\x0b'];
/// Words of Python's own that stand beside others.
const KEYWORDS: &str = "
    and as assert await del elif else except for from if import in is lambda not or print raise return while with yield";
/// Letters that are others for Python: `𝐞𝐱𝐞𝐜` is `exec`.
const FOLDED: [(char, char); 12] = [
    ('ª', 'ª'),
    ('º', 'º'),
    ('Ĳ', 'ŉ'),
    ('ſ', 'ſ'),
    ('Ǆ', 'ǳ'),
    ('ʰ', 'ˤ'),
    ('ᴬ', 'ᶿ'),
    ('ⁱ', 'ₜ'),
    ('ℂ', 'ↈ'),
    ('ⱼ', 'ⱽ'),
    ('ﬀ', 'ｚ'),
    ('𝐀', '𝟿'),
];

/// Encodings in which ASCII is ASCII, so that what a program says is seen without decoding it.
const PLAIN: &str = "
    ascii us-ascii utf-8 utf8 utf-8-sig latin-1 latin1 iso-8859-1 iso8859-1 iso-8859-15 iso8859-15 l1 cp1250 cp1251 cp1252 windows-1250
    windows-1251 windows-1252 koi8-r koi8-u gbk gb2312 gb18030 cp936 euc-jp euc-kr big5 cp65001";

/// What a program has.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// The modules beside it that it imports: `configuration_x` for `from .configuration_x import Config`.
    pub(super) siblings: Vec<String>,
    /// The classes that it defines.
    pub(super) classes: HashSet<String>,
    /// The encoding that it declares, if that hides what it says.
    pub(super) hidden_by: Option<String>,
    /// The first word by which it may run something else, or reach the network.
    pub(super) word: Option<Word>,
}

/// A word of a program, and its line.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: usize,
    pub(super) statement: String,
}

impl Program {
    /// What is in the text of a program, or in the cells of a notebook, which may reach the network.
    pub(super) fn read(bytes: &[u8], is_notebook: bool) -> Self {
        let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        // A lone \r ends a line for Python, and a comment with it; a form feed counts as a space, and a line goes on behind a backslash.
        let text = text.replace("\r\n", "\n").replace('\r', "\n").replace(['\0', '\x0c'], " ").replace("\\\n", " \x0b");
        let hidden_by = declared(bytes).filter(|name| !has(PLAIN, name));
        let mut program = Self { hidden_by, ..Self::default() };
        let (mut at, mut line, mut before) = (0, 1, "");
        while let Some(start) = text.get(at..).and_then(|rest| rest.find(is_part)).map(|start| at + start) {
            let (gap, rest) = (text.get(at..start).unwrap_or_default(), text.get(start..).unwrap_or_default());
            let (word, behind) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
            line += gap.bytes().filter(|byte| matches!(byte, b'\n' | b'\x0b')).count();
            match before {
                "class" => drop(program.classes.insert(word.to_owned())),
                "from" if gap.trim_start().starts_with('.') => {
                    program.siblings.extend(siblings(word, behind));
                }
                _ => {}
            }
            let statement = || statement(&text, start);
            if program.word.is_none() && runs(word, before, gap, behind, is_notebook, &statement) {
                program.word = Some(Word { text: word.to_owned(), line, statement: statement().trim().to_owned() });
            }
            (at, before) = (start + word.len(), word);
        }
        program
    }
}

fn has(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|each| each == word)
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The line, or the part of one, in which something stands.
fn statement(text: &str, at: usize) -> &str {
    let (before, behind) = text.split_at(at);
    let start = before.rfind(['\n', ';', ':']).map_or(0, |end| end + 1);
    let end = behind.find(['\n', ';']).map_or(text.len(), |end| at + end);
    text.get(start..end).unwrap_or_default()
}

/// Whether a word is one by which a program runs something else. `before` is the word before it, `gap` what is between, `behind` what follows.
fn runs<'t>(
    word: &str,
    before: &str,
    gap: &str,
    behind: &str,
    is_notebook: bool,
    statement: &dyn Fn() -> &'t str,
) -> bool {
    let beside = gap.trim_matches(SPACES);
    let next = behind.trim_start_matches(SPACES);
    let is_attribute = beside.ends_with('.');
    let is_import = || matches!(statement().split_whitespace().next(), Some("import" | "from"));
    // A text of one word, the name of an argument or a variable, or words of people beside each other.
    let is_text = gap.ends_with(['"', '\'']) && next.starts_with(['"', '\'']);
    let is_set = before == "def" || next.starts_with(':') || next.starts_with('=') && !next.starts_with("==");
    let follows = next.split(|c| !is_part(c)).next().unwrap_or_default();
    let is_prose = (beside.is_empty() && !before.is_empty() && !has(KEYWORDS, before))
        || !follows.is_empty() && !has(KEYWORDS, follows);
    let is_code = !is_text && !is_set && !is_prose;
    if has(RUNS, word) {
        return true;
    }
    if has(HANDED_ON, word) {
        let is_inside = next.starts_with('.') && next.trim_start_matches(['.', ' ', '\t', '\x0b']).starts_with("__");
        let is_plain = next.starts_with('.') || is_import() && follows != "as";
        return is_inside || is_code && !is_plain && !is_attribute;
    }
    match word {
        // `model.eval()` is another one, and what is Python's own is reached through words that tell.
        "eval" | "exec" => is_code && !is_attribute,
        "system" | "globals" | "interact" => is_code,
        "modules" => is_attribute && before == "sys",
        "code" | "commands" | "distutils" | "imp" | "pip" => is_import() && !is_attribute,
        "hub" => is_attribute && before == "torch" || is_import() && before == "import",
        _ if has(NETWORK, word) => !is_notebook && !is_attribute && is_import(),
        _ => {
            let is_other = |c: char| FOLDED.iter().any(|(first, last)| (*first..=*last).contains(&c));
            is_code && next.starts_with('(') && word.chars().any(is_other)
        }
    }
}

/// The modules beside the program that `from .word behind` imports, or `from . import word behind`.
fn siblings(word: &str, behind: &str) -> Vec<String> {
    if word != "import" {
        return vec![word.to_owned()];
    }
    let list = behind.trim_start();
    let end = if list.starts_with('(') { list.find(')') } else { list.find(['\n', ';', '#']) };
    let names = list.get(..end.unwrap_or(list.len())).unwrap_or_default().split(',');
    names.filter_map(|name| name.split(|c| !is_part(c)).find(|name| !name.is_empty())).map(str::to_owned).collect()
}

/// The encoding of a `coding:` comment in the first two lines.
fn declared(bytes: &[u8]) -> Option<String> {
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()).take(2);
    for line in lines {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line: String = line.iter().map(|byte| char::from(*byte)).collect();
        let Some(comment) = line.trim_start_matches([' ', '\t', '\x0c']).strip_prefix('#') else { continue };
        for (at, word) in comment.match_indices("coding") {
            let after = comment.get(at + word.len()..).unwrap_or_default();
            let Some(name) = after.strip_prefix([':', '=']) else { continue };
            let name = name.trim_start_matches([' ', '\t']);
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            let name: String = name.chars().take_while(|c| is_part(*c)).collect();
            if !name.is_empty() {
                return Some(name.to_ascii_lowercase().replace('_', "-"));
            }
        }
    }
    None
}
