//! Completion in the shell: scripts that ask this command, and the answers.
//!
//! A script calls the command with `COMPLETE=SHELL`, and after `--` the words up to the cursor; the last one is to be completed. Bash and zsh
//! get custom scripts. These add no space after an incomplete word, such as a name with a dot, and split words as the command does. clap's
//! engine finds the answers from the definitions in `arguments.rs`.

mod names;
mod words;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::Path;

use clap::{Args, ValueEnum, ValueHint};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, PathCompleter, ValueCompleter as _};
use clap_complete::env::EnvCompleter as _;
use clap_complete::{CompletionCandidate, env};
use max_weights::{DType, text};

use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::{CLEAN, USAGE};

const NAME: &str = "max-weights";
/// Says which shell asks.
const REQUESTED: &str = "COMPLETE";
/// In bash, the end of the last word, which the answers replace: it breaks words at `:`, `=` and `@`.
const REPLACED: &str = "_MAX_WEIGHTS_REPLACED";
/// Tells candidates that are files from others.
const FILES: &str = "files";

/// A shell that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    #[value(alias = "pwsh")]
    Powershell,
}

impl Shell {
    /// The shell of this name, or path of its program.
    fn of(program: &OsStr) -> Result<Self, String> {
        let name = Path::new(program).file_stem().unwrap_or_default().to_string_lossy();
        Self::from_str(&name, true).map_err(|_| {
            let shells: Vec<_> = Self::value_variants().iter().filter_map(Self::to_possible_value).collect();
            let shells: Vec<&str> = shells.iter().map(clap::builder::PossibleValue::get_name).collect();
            format!("there are completions for {}, but none for '{}'", shells.join(", "), text::escape(&name))
        })
    }

    /// What makes the shell ask `program`.
    fn registration(self, program: &str) -> io::Result<Vec<u8>> {
        let mut script = Vec::new();
        match self {
            Self::Bash => script.extend(include_str!("bash.sh").replace("COMPLETER", &words::quoted(program)).bytes()),
            Self::Zsh => script.extend(include_str!("zsh.sh").replace("COMPLETER", &words::quoted(program)).bytes()),
            Self::Fish => env::Fish.write_registration(REQUESTED, NAME, NAME, program, &mut script)?,
            Self::Powershell => env::Powershell.write_registration(REQUESTED, NAME, NAME, program, &mut script)?,
        }
        Ok(script)
    }
}

/// Answers a shell that requests completions; `None` without a request.
pub(crate) fn answer(arguments: &[OsString]) -> Option<u8> {
    let shell = std::env::var_os(REQUESTED).filter(|shell| !shell.is_empty() && shell != "0")?;
    let words = arguments.iter().skip_while(|argument| *argument != "--").skip(1).cloned().collect::<Vec<_>>();
    let answer = Shell::of(&shell).and_then(|shell| {
        let answer = if words.is_empty() { shell.registration(&program()) } else { answers(shell, words) };
        answer.map_err(|error| error.to_string())
    });
    let written = answer.and_then(|bytes| {
        let mut out = io::stdout().lock();
        out.write_all(&bytes).and_then(|()| out.flush()).map_err(|error| error.to_string())
    });
    let Err(message) = written else { return Some(CLEAN) };
    // This cannot be reported anywhere else.
    let _ = writeln!(io::stderr(), "{NAME}: {REQUESTED}: {message}");
    Some(USAGE)
}

/// Print the script with which a shell completes this command.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell; without it, the one that SHELL names.
    pub(crate) shell: Option<Shell>,
}

/// Prints the script that makes a shell ask.
pub(crate) fn script(options: &Completions, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let from_environment = || {
        let usage =
            |message| CommandFailure::Usage(format!("{message}: `{NAME} completions bash` prints those of bash"));
        match std::env::var_os("SHELL").filter(|shell| !shell.is_empty()) {
            Some(shell) => Shell::of(&shell).map_err(|message| usage(format!("SHELL: {message}"))),
            None => Err(usage("SHELL does not say which shell is used".into())),
        }
    };
    let shell = options.shell.map_or_else(from_environment, Ok)?;
    screen.write_all(&shell.registration(&program())?)?;
    Ok(CLEAN)
}

/// What a script calls: the command by its name where that finds it, or else this program.
fn program() -> String {
    let here = std::env::current_exe().ok().filter(|path| path.file_stem() == Some(OsStr::new(NAME)));
    match here.and_then(|path| path.into_os_string().into_string().ok()) {
        Some(path) if !words::is_on_path(NAME) => path,
        _ => NAME.to_owned(),
    }
}

/// The candidates for the last of the words, in the format of the shell's script.
fn answers(shell: Shell, mut words: Vec<OsString>) -> io::Result<Vec<u8>> {
    let typed = words.last().cloned().unwrap_or_default();
    let last = words.len() - 1;
    match shell {
        Shell::Bash | Shell::Zsh => words.iter_mut().for_each(|word| *word = words::unquoted(word)),
        Shell::Fish => words[last] = words::unquoted(&typed), // the others come without quotes
        Shell::Powershell => {}
    }
    let kept = if shell == Shell::Bash { kept(&typed) } else { String::new() };
    let mut answer = Vec::new();
    let mut files = false;
    for candidate in candidates(words)? {
        if candidate.get_tag().is_some_and(|tag| tag.to_string() == FILES) && shell == Shell::Zsh {
            files = true; // it has a completion of its own for them
            continue;
        }
        let Some(value) = candidate.get_value().to_str().filter(|value| is_plain(value)) else { continue };
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().unwrap_or_default();
        match shell {
            Shell::Bash => {
                if let Some(rest) = value.strip_prefix(&kept) {
                    writeln!(answer, "{rest}")?;
                }
            }
            Shell::Zsh => {
                let kind = if value.ends_with(['.', '=']) { '+' } else { '-' };
                let value = value.replace('\\', r"\\").replace(':', r"\:");
                let separator = if help.is_empty() { "" } else { ":" };
                writeln!(answer, "{kind}{value}{separator}{}", help.replace('\\', r"\\"))?;
            }
            Shell::Fish | Shell::Powershell => {
                let separator = if help.is_empty() { "" } else { "\t" };
                writeln!(answer, "{value}{separator}{help}")?;
            }
        }
    }
    if files {
        answer.extend(b"/\n");
    }
    Ok(answer)
}

/// What is before the part of the last word that bash replaces.
fn kept(typed: &OsStr) -> String {
    let kept = || typed.to_str()?.strip_suffix(std::env::var(REPLACED).ok()?.as_str());
    words::unquoted(OsStr::new(kept().unwrap_or_default())).into_string().unwrap_or_default()
}

/// What can follow, of all that clap knows: options are offered to who has typed a dash.
fn candidates(mut words: Vec<OsString>) -> io::Result<Vec<CompletionCandidate>> {
    let last = words.len() - 1;
    let incomplete = words[last].to_string_lossy().into_owned();
    let mut found = Vec::new();
    if last == 1 {
        found = ask(words.clone())?;
        if found.is_empty() && !incomplete.starts_with('-') {
            words.insert(1, "ls".into()); // `max-weights FILE` lists it
            found.extend(ask(words)?);
        }
    } else if last > 1 {
        let current = words.pop();
        let mut words = crate::with_command(words);
        words.extend(current);
        found = ask(words)?;
    }
    if !incomplete.starts_with('-') {
        found.retain(|candidate| !candidate.get_value().to_string_lossy().starts_with('-'));
    }
    Ok(found)
}

fn ask(words: Vec<OsString>) -> io::Result<Vec<CompletionCandidate>> {
    let last = words.len() - 1;
    let file = names::file(&words[..last]).map(words::at_home);
    let mut command = crate::command().mut_subcommands(move |command| {
        let file = file.clone();
        command.mut_args(move |argument| match (&file, argument.get_id().as_str(), argument.get_value_hint()) {
            (_, "dtype", _) => argument.add(ArgValueCandidates::new(dtypes)),
            (_, _, ValueHint::AnyPath) => argument.add(ArgValueCompleter::new(files)),
            (Some(file), "name", _) => {
                let file = file.clone();
                argument.add(ArgValueCompleter::new(move |incomplete: &OsStr| names::candidates(&file, incomplete)))
            }
            _ => argument,
        })
    });
    // The engine would offer of the two names that which is first in the alphabet.
    command = command.mut_subcommand("ls", |ls| ls.visible_alias(None).alias("list"));
    clap_complete::engine::complete(&mut command, words, last, std::env::current_dir().ok().as_deref())
}

/// Files, and a candidate that announces files, whether there are any or not.
fn files(incomplete: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(incomplete);
    found.retain(|candidate| candidate.get_value() != ".");
    found.push(CompletionCandidate::new(""));
    found.into_iter().map(|candidate| candidate.tag(Some(FILES.into()))).collect()
}

/// The dtypes that floats can be counted as.
fn dtypes() -> Vec<CompletionCandidate> {
    let floats = DType::all().map(DType::name).filter(|name| name.contains("float"));
    floats.map(CompletionCandidate::new).collect()
}

/// Whether a string is safe in a line and on a terminal without escapes.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && text::printable(value) == value
}
