//! What is said of programs: those that loaders run by themselves, those that a configuration names, notebooks, and files that make Python run
//! something as it starts.

use std::path::Path;

use max_weights::Result;
use max_weights::rules;
use max_weights::text::shown;
use max_weights::workers::Interrupt;
use serde_json::Value;

use super::program::{Call, Danger, Program};
use crate::finding::Finding;

/// Calls of one program that are said one by one.
const MAX_SAID: usize = 20;
/// Calls that a note names.
const NAMED: usize = 5;

/// Programs that run when somebody imports the folder, or tests it.
const BY_HAND: [(&str, &str); 2] = [("__init__.py", "importing the folder runs it"), ("conftest.py", "pytest runs it")];
/// Programs that Python, torch.hub or a server runs by their names alone.
const BY_NAME: [(&str, &str); 5] = [
    ("handler.py", "inference servers run it"),
    ("hubconf.py", "torch.hub runs it"),
    ("sitecustomize.py", "Python runs it at startup"),
    ("usercustomize.py", "Python runs it at startup"),
    ("pipeline.py", "Diffusers runs it as a custom pipeline"),
];
/// How the names of programs begin that Transformers runs as remote code.
const BY_START: [&str; 7] = [
    "configuration_",
    "feature_extraction_",
    "image_processing_",
    "modeling_",
    "processing_",
    "tokenization_",
    "video_processing_",
];

/// Why a loader, or Python, runs a program of this name without being told by a configuration.
fn run_alone(name: &str, path: &Path) -> Option<&'static str> {
    let folder = path.parent().and_then(Path::file_name);
    if name == "generate.py" && folder.is_some_and(|folder| folder == "custom_generate") {
        return Some("generate() of Transformers runs it");
    }
    if name == "inference.py" && folder.is_some_and(|folder| folder == "code") {
        return Some("inference servers run it");
    }
    BY_NAME.iter().find(|(program, _)| name == *program).map(|(_, why)| *why)
}

/// Reports that a program of this name is run without being told by a configuration, if it is.
pub(super) fn alone(name: &str, path: &Path, report: &mut dyn FnMut(Finding)) {
    if let Some(why) = run_alone(name, path) {
        report(Finding::new(rules::REPOSITORY_PROGRAM_RUN, format!("{why}, whatever is in it")));
    }
}

/// Why loaders run a program of this name, if its name says so.
pub(super) fn run_by_name(name: &str, path: &Path) -> Option<&'static str> {
    let by_hand = || BY_HAND.iter().find(|(program, _)| name == *program).map(|(_, why)| *why);
    run_alone(name, path).or_else(by_hand).or_else(|| {
        BY_START
            .iter()
            .any(|start| name.starts_with(start))
            .then_some("its name is that of custom code for Transformers")
    })
}

/// What is found in a program. `run_by` says who runs it as a model is loaded; none: nobody does by itself.
pub(super) fn findings(program: &Program, run_by: Option<&str>, report: &mut dyn FnMut(Finding)) {
    if let Some(encoding) = &program.hidden_by {
        let sentence = format!(
            "the program is written in the encoding '{}', which makes it look like something else",
            shown(encoding)
        );
        report(
            Finding::new(rules::REPOSITORY_PROGRAM_ENCODING, sentence).evidence(format!("coding: {}", shown(encoding))),
        );
    }
    if let Some(line) = program.broken {
        let sentence = format!("line {line}: this is not valid Python, so calls in it may have been missed");
        report(Finding::new(rules::REPOSITORY_PROGRAM_UNREADABLE, sentence));
    }
    let (mut said, mut more) = (0, 0);
    let mut noted: Vec<&Call> = Vec::new();
    for call in &program.calls {
        let Some(rule) = rule_of(call, run_by.is_some()) else {
            noted.push(call);
            continue;
        };
        if said >= MAX_SAID {
            more += 1;
            continue;
        }
        said += 1;
        let when = match (call.at_import, run_by) {
            (true, Some(why)) => format!(" as soon as the program is imported; {why}"),
            (true, None) => " as soon as the program is run".to_owned(),
            (false, Some(why)) => format!(" in a function; {why}"),
            (false, None) => " in a function".to_owned(),
        };
        let sentence = format!("line {}: {} {}{when}", call.line, shown(&call.name), call.danger.does());
        report(Finding::new(rule, sentence).evidence(call.text.clone()));
    }
    let more = if more > 0 { format!("; {more} more calls are dangerous") } else { String::new() };
    let list = list_of(&noted);
    let sentence = match run_by {
        Some(why) => format!("a program that loaders run: {why}{list}{more}"),
        None => format!("a program that no configuration here makes loaders run{list}{more}"),
    };
    report(Finding::new(rules::REPOSITORY_PROGRAM, sentence));
}

/// The rule of a call; `None` where it is worth a note only.
fn rule_of(call: &Call, is_run: bool) -> Option<&'static max_weights::rules::Rule> {
    Some(match (call.danger, call.at_import, is_run) {
        (Danger::Hidden, true, _) | (Danger::Execute | Danger::Network | Danger::Unpickle, true, true) => {
            rules::REPOSITORY_CALL_AT_IMPORT
        }
        (Danger::Hidden | Danger::Execute, _, _)
        | (Danger::Network, true, false)
        | (Danger::Network | Danger::Unpickle, false, true)
        | (Danger::System, true, true) => rules::REPOSITORY_CALL,
        _ => return None,
    })
}

fn list_of(calls: &[&Call]) -> String {
    let mut names: Vec<String> =
        calls.iter().map(|call| format!("{} (line {})", shown(&call.name), call.line)).collect();
    names.dedup();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    match (names.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) => format!("; it calls {}", names.join(", ")),
        (_, more) => format!("; it calls {}, and {more} more", names.join(", ")),
    }
}

/// A notebook: its cells of code, as one program that somebody runs by hand.
pub(super) fn notebook(value: &Value, interrupt: Interrupt<'_>, report: &mut dyn FnMut(Finding)) -> Result<()> {
    let old = value.pointer("/worksheets/0/cells");
    let cells = value.get("cells").or(old).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (mut code, mut shell) = (String::new(), Vec::new());
    for cell in cells.iter().filter(|cell| cell.get("cell_type").and_then(Value::as_str) == Some("code")) {
        let source = cell.get("source").or_else(|| cell.get("input"));
        let text: String = match source {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(lines)) => lines.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        // `%%bash` and the like make the whole cell one of another language.
        let other = text.trim_start().starts_with("%%") && !text.trim_start().starts_with("%%time");
        for line in text.lines() {
            let command = line.trim_start();
            if other || command.starts_with(['!', '%']) {
                shell.extend(command.starts_with('!').then(|| command.to_owned()));
                code.push('\n');
            } else {
                code.push_str(line);
                code.push('\n');
            }
        }
    }
    let Some(mut program) = Program::read(code.as_bytes(), interrupt)? else {
        report(Finding::new(rules::REPOSITORY_PROGRAM_UNREADABLE, "the notebook's code cannot be parsed"));
        return Ok(());
    };
    // A person runs a notebook cell by cell: what it fetches is no surprise, and magic words are no Python.
    program.calls.iter_mut().filter(|call| call.danger < Danger::Execute).for_each(|call| call.at_import = false);
    program.broken = None;
    if let Some(command) = shell.iter().find(|command| !is_usual(command)) {
        let sentence = "the notebook has a shell command, which runs with its cell";
        report(Finding::new(rules::REPOSITORY_CALL, sentence).evidence(shown(command)));
    }
    let shell = match shell.first() {
        Some(first) => format!("; {} shell commands, the first is {}", shell.len(), shown(first)),
        None => String::new(),
    };
    findings(&program, None, &mut |mut finding| {
        if finding.rule == rules::REPOSITORY_PROGRAM {
            finding.message = format!(
                "a notebook, which only runs by hand{}{shell}",
                list_of(&program.calls.iter().collect::<Vec<_>>())
            );
        } else {
            finding.message = finding.message.replacen("line ", "code line ", 1);
        }
        report(finding);
    });
    Ok(())
}

/// Commands that notebooks begin with, and that do no more than install, list or fetch.
const USUAL: [&str; 12] =
    ["pip", "pip3", "conda", "uv", "nvidia-smi", "ls", "cd", "pwd", "mkdir", "git", "huggingface-cli", "hf"];

/// Whether a command of a notebook is one of the usual ones, and not several.
fn is_usual(command: &str) -> bool {
    let command = command.trim_start_matches('!').trim();
    let word = command.split_whitespace().next().unwrap_or_default();
    USUAL.contains(&word) && !command.contains(['|', ';', '&', '`', '$', '>'])
}

/// A file named `.pth` that is text: Python runs each of its lines that begins with `import`, if it lies where packages lie.
pub(super) fn path_file(bytes: &[u8], interrupt: Interrupt<'_>, report: &mut dyn FnMut(Finding)) -> Result<()> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text
        .split(['\n', '\r'])
        .enumerate()
        .filter(|(_, line)| line.starts_with("import ") || line.starts_with("import\t"));
    for (number, line) in lines.take(MAX_SAID) {
        let sentence =
            format!("line {}: Python runs this line at startup if the file is in a folder of packages", number + 1);
        report(Finding::new(rules::REPOSITORY_PATH_FILE, sentence).evidence(shown(line)));
        let program = Program::read(line.as_bytes(), interrupt)?;
        for call in program.iter().flat_map(|program| &program.calls).filter(|call| call.danger > Danger::System) {
            let sentence =
                format!("line {}: {} {} at Python's startup", number + 1, shown(&call.name), call.danger.does());
            report(Finding::new(rules::REPOSITORY_CALL_AT_IMPORT, sentence).evidence(call.text.clone()));
        }
    }
    Ok(())
}

/// Requirements that come from elsewhere than the index of packages.
pub(super) fn requirements(bytes: &[u8], report: &mut dyn FnMut(Finding)) {
    let text = String::from_utf8_lossy(bytes);
    let elsewhere = |line: &str| {
        let line = line.split(" #").next().unwrap_or_default().trim();
        !line.starts_with('#')
            && (line.contains("://")
                || line.starts_with("-e")
                || line.starts_with("git+")
                || line.starts_with("--trusted-host"))
    };
    let lines: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| elsewhere(line)).collect();
    if let Some((number, first)) = lines.first() {
        let more =
            if lines.len() > 1 { format!(", and {} more lines like it", lines.len() - 1) } else { String::new() };
        let sentence = format!("line {}: installing this fetches and runs code from a URL{more}", number + 1);
        report(Finding::new(rules::REPOSITORY_REQUIREMENT, sentence).evidence(shown(first.trim())));
    }
}
