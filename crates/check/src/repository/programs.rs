//! Findings about programs: those that loaders run implicitly, those that a configuration names, notebooks, and files that make Python run
//! something at startup.

use std::path::Path;

use max_weights::text::{cut, escape};
use max_weights::{Diagnostic, rules};
use serde_json::Value;

use super::program::Program;
use crate::words;

/// Characters of a statement that a finding shows.
const EVIDENCE: usize = 120;

/// Programs that Python, torch.hub, pytest or a server runs by their names alone.
const BY_NAME: [(&str, &str); 7] = [
    ("__init__.py", "importing the folder runs it"),
    ("conftest.py", "pytest runs it"),
    ("handler.py", "inference servers run it"),
    ("hubconf.py", "torch.hub runs it"),
    ("sitecustomize.py", "Python runs it at startup"),
    ("usercustomize.py", "Python runs it at startup"),
    ("pipeline.py", "Diffusers runs it as a custom pipeline"),
];
/// How the names of programs begin that Transformers runs as remote code.
const BY_START: &str = "
    configuration_ feature_extraction_ image_processing_ modeling_ processing_ tokenization_ video_processing_";

/// Why a loader, or Python, runs a program of this name without being told by a configuration, if it does.
pub(super) fn run_by_name(name: &str, path: &Path) -> Option<&'static str> {
    let folder = path.parent().and_then(Path::file_name);
    if name == "generate.py" && folder.is_some_and(|folder| folder == "custom_generate") {
        return Some("generate() of Transformers runs it");
    }
    if name == "inference.py" && folder.is_some_and(|folder| folder == "code") {
        return Some("inference servers run it");
    }
    let is_custom = words::each(BY_START).any(|start| name.starts_with(start));
    let by_name = BY_NAME.iter().find(|(program, _)| name == *program).map(|(_, why)| *why);
    by_name.or_else(|| is_custom.then_some("its name is that of custom code for Transformers"))
}

/// The findings about a program. `run_by` names what runs it as a model is loaded; `None` if it is only run by hand.
pub(super) fn findings(program: &Program, run_by: Option<&str>, report: &mut dyn FnMut(Diagnostic)) {
    if let Some(encoding) = &program.hidden_by {
        let sentence = format!(
            "the program is written in the encoding '{}', which makes it look like something else",
            escape(encoding)
        );
        report(
            Diagnostic::new(rules::REPOSITORY_PROGRAM_ENCODING, sentence)
                .evidence(format!("coding: {}", escape(encoding))),
        );
    }
    let (rule, sentence) = match (run_by, &program.word) {
        (Some(why), _) => (rules::REPOSITORY_PROGRAM_RUN, format!("a program that loaders run: {why}")),
        (None, Some(word)) => (
            rules::REPOSITORY_CALL,
            format!(
                "line {}: a program that no configuration here makes loaders run has the word {}, by which it may run \
                 anything or reach the network",
                word.line,
                escape(&word.text)
            ),
        ),
        (None, None) => {
            (rules::REPOSITORY_PROGRAM, "a program that no configuration here makes loaders run".to_owned())
        }
    };
    let finding = Diagnostic::new(rule, sentence);
    report(match &program.word {
        Some(word) => finding.evidence(cut(&word.statement, EVIDENCE)),
        None => finding,
    });
}

/// A notebook: its cells of code, as one program that is run by hand.
pub(super) fn notebook(value: &Value, report: &mut dyn FnMut(Diagnostic)) {
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
    if let Some(command) = shell.iter().find(|command| !is_usual(command)) {
        let sentence = "the notebook has a shell command, which runs with its cell";
        report(Diagnostic::new(rules::REPOSITORY_CALL, sentence).evidence(escape(command)));
    }
    let shell = match shell.first() {
        Some(first) => format!("; {} shell commands, the first is {}", shell.len(), escape(first)),
        None => String::new(),
    };
    // A person runs a notebook cell by cell: what it fetches is no surprise.
    findings(&Program::read(code.as_bytes(), true), None, &mut |mut finding| {
        if finding.rule == rules::REPOSITORY_PROGRAM {
            finding.message = format!("a notebook, which only runs by hand{shell}");
        } else {
            finding.message = finding.message.replacen("line ", "code line ", 1);
        }
        report(finding);
    });
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

/// Requirements that come from elsewhere than the index of packages.
pub(super) fn requirements(bytes: &[u8], report: &mut dyn FnMut(Diagnostic)) {
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
        report(Diagnostic::new(rules::REPOSITORY_REQUIREMENT, sentence).evidence(escape(first.trim())));
    }
}
