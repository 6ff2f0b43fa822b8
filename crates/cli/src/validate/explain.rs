//! `max-weights explain`: what a rule means.

use max_weights::rules::{self, Rule, Severity, Verdict};
use max_weights_check::RuleSelection;
use max_weights_check::output::wrap;
use serde::Serialize;

use super::arguments::Explain;
use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::screen::Screen;

/// Columns for wrapping if the terminal reports no width.
const WIDTH: usize = 100;

#[derive(Serialize)]
struct RuleJson {
    schema: &'static str,
    rules: Vec<Explained>,
}

/// A rule.
#[derive(Serialize)]
struct Explained {
    code: &'static str,
    /// The name.
    rule: &'static str,
    severity: &'static str,
    /// What it answers to whether the file is safe: clean (nothing), broken, needs-trust or malicious.
    answer: &'static str,
    meaning: &'static str,
    cause: &'static str,
    /// What to do.
    help: &'static str,
}

pub(crate) fn run(options: &Explain, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let selection = RuleSelection { select: options.rules.clone(), ignore: Vec::new() };
    super::check_rules(&selection)?;
    let chosen: Vec<&Rule> = rules::all().filter(|rule| selection.has(rule)).collect();
    if options.json {
        let object = RuleJson { schema: "max-weights.explain/1", rules: chosen.into_iter().map(explained).collect() };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
    } else if options.rules.is_empty() {
        let width = chosen.iter().map(|rule| rule.id.len()).max().unwrap_or(0);
        for rule in chosen {
            let (dim, style) = (screen.paint.dim, style(rule, screen));
            let line = format!("{style}{}{style:#}  {:width$}  {dim}{}{dim:#}", rule.code, rule.id, rule.meaning);
            screen.line(&line)?;
        }
    } else {
        for (number, rule) in chosen.into_iter().enumerate() {
            if number > 0 {
                screen.line("")?;
            }
            print(rule, screen)?;
        }
    }
    Ok(CLEAN)
}

fn explained(rule: &Rule) -> Explained {
    Explained {
        code: rule.code,
        rule: rule.id,
        severity: rule.severity.name(),
        answer: rule.verdict.name(),
        meaning: rule.meaning,
        cause: rule.cause,
        help: rule.help,
    }
}

fn style(rule: &Rule, screen: &Screen) -> anstyle::Style {
    match rule.severity {
        Severity::Error => screen.paint.error,
        Severity::Warning => screen.paint.warning,
        _ => screen.paint.dim,
    }
}

fn print(rule: &Rule, screen: &mut Screen) -> Result<(), CommandFailure> {
    let (bold, style) = (screen.paint.bold, style(rule, screen));
    let answer = match rule.verdict {
        Verdict::Malicious => ": malicious",
        Verdict::NeedsTrust => ": loading it needs trust",
        Verdict::Broken => ": broken, or not examined",
        _ => "",
    };
    let severity = rule.severity.name();
    screen.line(&format!("{bold}{}{bold:#}  {}  {style}{severity}{answer}{style:#}", rule.code, rule.id))?;
    let dim = screen.paint.dim;
    for (title, text) in [("what", rule.meaning), ("why", rule.cause), ("what to do", rule.help)] {
        let wide = screen.width().unwrap_or(WIDTH).max(40) - 14;
        for (number, line) in wrap(text, wide).iter().enumerate() {
            let title = if number == 0 { title } else { "" };
            screen.line(&format!("  {dim}{title:10}{dim:#}  {line}"))?;
        }
    }
    Ok(())
}
