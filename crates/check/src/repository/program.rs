//! Scans Python programs word by word: what they import from their own folder, which classes they define, and whether they have words by which
//! code is run. What a program does with such a word is left to the reader.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use crate::words;

/// Longer programs are not looked at.
pub(super) const MAX_BYTES: usize = 2 << 20;

/// Words that run programs or code, in any position.
const RUNS: &str = "
    CDLL CodeType FunctionType InteractiveConsole InteractiveInterpreter PyDLL WinDLL __builtins__ __getattribute__ __import__ __subclasses__
    _posixsubprocess attrgetter builtins cdll cpp_extension create_subprocess_exec create_subprocess_shell ctypes dup2 execfile
    execl execle execlp execlpe execv execve execvp execvpe fork_exec getstatusoutput load_dynamic load_library load_source marshal methodcaller
    popen popen2 popen3 popen4 posix posix_spawn posix_spawnp pty pydoc pythonapi resolve_name runpy spawnl spawnle spawnlp spawnlpe spawnv
    spawnve spawnvp spawnvpe startfile subprocess windll";
/// Words that do so too, and that people write in other places.
const OTHERS: &str = "code commands distutils eval exec globals hub imp interact modules pip system";
/// Modules that reach the network, where they are imported.
const NETWORK: &str = "
    aiohttp ftplib gdown http httplib httpx imaplib paramiko poplib pycurl requests smtplib socket socketserver telnetlib urllib urllib2 urllib3
    webbrowser websocket websockets wget xmlrpc";
/// Modules that harmless code does not pass on: it only takes their attributes by name.
const HANDED_ON: &str = "importlib nt os pickle sys";
/// Spaces, and the placeholder for a continued line.
const SPACES: [char; 3] = [' ', '\t', '\x0b'];
/// Python keywords that may precede or follow other words.
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

/// Classes, and imported modules of the same folder, that are kept.
const MAX_NAMES: usize = 10_000;
/// Bytes of the list of one import.
const MAX_LIST: usize = 4 << 10;

/// What a program has.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// The modules of its folder that it imports: `configuration_x` for `from .configuration_x import Config`.
    pub(super) siblings: Vec<String>,
    /// The classes that it defines.
    pub(super) classes: HashSet<String>,
    /// The encoding that it declares, if that hides what it says.
    pub(super) hidden_by: Option<String>,
    /// The first word by which it may run something else, or reach the network.
    pub(super) word: Option<ProgramWord>,
}

/// A word of a program, and its line.
#[derive(Debug)]
pub(super) struct ProgramWord {
    pub(super) text: String,
    pub(super) line: usize,
    pub(super) statement: String,
}

impl Program {
    /// What is in the text of a program, or in the cells of a notebook, which may reach the network.
    pub(super) fn read(bytes: &[u8], is_notebook: bool) -> Self {
        let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        // A lone \r ends a line for Python, and a comment with it; a form feed counts as a space, and a line continues after a backslash.
        let text = text.replace("\r\n", "\n").replace('\r', "\n").replace(['\0', '\x0c'], " ").replace("\\\n", " \x0b");
        let hidden_by = declared(bytes).filter(|name| !words::has(PLAIN, name));
        let mut program = Self { hidden_by, ..Self::default() };
        let (mut at, mut line, mut before) = (0, 1, "");
        // Where the statement begins in which this is, and its first word.
        let (mut start_of_statement, mut verb) = (0, "");
        while let Some(start) = text.get(at..).and_then(|rest| rest.find(is_part)).map(|start| at + start) {
            let (gap, rest) = (text.get(at..start).unwrap_or_default(), text.get(start..).unwrap_or_default());
            let (word, behind) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
            line += gap.bytes().filter(|byte| matches!(byte, b'\n' | b'\x0b')).count();
            if let Some(end) = gap.rfind(['\n', ';', ':']) {
                (start_of_statement, verb) = (at + end + 1, word);
            } else if at == 0 {
                verb = word;
            }
            match before {
                "class" if program.classes.len() < MAX_NAMES => drop(program.classes.insert(word.to_owned())),
                "from" if program.siblings.len() < MAX_NAMES && gap.trim_start().starts_with('.') => {
                    program.siblings.extend(siblings(word, behind));
                }
                _ => {}
            }
            let is_import = matches!(verb, "import" | "from");
            if program.word.is_none() && runs(word, before, gap, behind, is_notebook, is_import) {
                let statement = text.get(start_of_statement..).unwrap_or_default();
                let statement = statement.split(['\n', ';']).next().unwrap_or_default().trim().to_owned();
                program.word = Some(ProgramWord { text: word.to_owned(), line, statement });
            }
            (at, before) = (start + word.len(), word);
        }
        program
    }
}

/// What a word that counts is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordClass {
    Runs,
    HandedOn,
    Network,
    /// Only counts as code.
    Other,
}

static CLASSES: OnceLock<HashMap<&str, WordClass>> = OnceLock::new();

/// The class of a word. The table is made before the lock of its cell is taken, which a child that is forked meanwhile would never get.
fn class_of(word: &str) -> Option<WordClass> {
    let classes = CLASSES.get().unwrap_or_else(|| {
        let made = classes();
        CLASSES.get_or_init(|| made)
    });
    classes.get(word).copied()
}

fn classes() -> HashMap<&'static str, WordClass> {
    let lists = [
        (RUNS, WordClass::Runs),
        (HANDED_ON, WordClass::HandedOn),
        (NETWORK, WordClass::Network),
        (OTHERS, WordClass::Other),
    ];
    lists.iter().flat_map(|(list, class)| words::each(list).map(|word| (word, *class))).collect()
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a word is one by which a program runs something else. `before` is the word before it, `gap` what is between, `behind` what follows.
fn runs(word: &str, before: &str, gap: &str, behind: &str, is_notebook: bool, is_import: bool) -> bool {
    let class = class_of(word);
    if class.is_none() && word.is_ascii() {
        return false;
    }
    let companions = gap.trim_matches(SPACES);
    let next = behind.trim_start_matches(SPACES);
    let is_attribute = companions.ends_with('.');
    // A text of one word, the name of an argument or a variable, or words of prose.
    let is_text = gap.ends_with(['"', '\'']) && next.starts_with(['"', '\'']);
    let is_set = before == "def" || next.starts_with(':') || next.starts_with('=') && !next.starts_with("==");
    let follows = next.split(|c| !is_part(c)).next().unwrap_or_default();
    let is_prose = (companions.is_empty() && !before.is_empty() && !words::has(KEYWORDS, before))
        || !follows.is_empty() && !words::has(KEYWORDS, follows);
    let is_code = !is_text && !is_set && !is_prose;
    match (class, word) {
        (Some(WordClass::Runs), _) => true,
        (Some(WordClass::Network), _) => !is_notebook && !is_attribute && is_import,
        (Some(WordClass::HandedOn), _) => {
            let is_inside =
                next.starts_with('.') && next.trim_start_matches(['.', ' ', '\t', '\x0b']).starts_with("__");
            let is_plain = next.starts_with('.') || is_import && follows != "as";
            is_inside || is_code && !is_plain && !is_attribute
        }
        // `model.eval()` is another one, and what is Python's own is reached through words that tell.
        (_, "eval" | "exec") => is_code && !is_attribute,
        (_, "system" | "globals" | "interact") => is_code,
        (_, "modules") => is_attribute && before == "sys",
        (_, "code" | "commands" | "distutils" | "imp" | "pip") => is_import && !is_attribute,
        (_, "hub") => is_attribute && before == "torch" || is_import && before == "import",
        _ => {
            let is_other = |c: char| FOLDED.iter().any(|(first, last)| (*first..=*last).contains(&c));
            is_code && next.starts_with('(') && word.chars().any(is_other)
        }
    }
}

/// The modules in the program's folder that `from .word behind` imports, or `from . import word behind`.
fn siblings(word: &str, behind: &str) -> Vec<String> {
    if word != "import" {
        return vec![word.to_owned()];
    }
    let list = behind.get(..super::boundary(behind, MAX_LIST)).unwrap_or(behind).trim_start();
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
