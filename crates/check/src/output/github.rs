//! Annotations on GitHub: the commands that a runner finds in the log, and the step summary for findings beyond their limit.

use std::fs::OpenOptions;
use std::io::{self, Write};

use max_weights::rules::Severity;
use max_weights::text;

use super::summary::ReportSummary;
use super::{ReportPaths, Settings, place, sentence, step_summary, word, worst_first};
use crate::report::Report;

/// Annotations that GitHub shows for one step, per severity.
pub(super) const MAX_ANNOTATIONS: usize = 10;
/// Characters of a message, and of a title.
const MAX_MESSAGE: usize = 2000;
const MAX_TITLE: usize = 200;

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let mut places = ReportPaths::new(&settings.root);
    let (mut counts, mut omitted) = ([0usize; 3], 0u64);
    for finding in worst_first(&report.findings) {
        let (command, slot) = match finding.rule.severity {
            Severity::Note => ("notice", 0),
            Severity::Warning => ("warning", 1),
            _ => ("error", 2),
        };
        let Some(count) = counts.get_mut(slot) else { continue };
        *count += 1;
        if *count > MAX_ANNOTATIONS {
            omitted += 1;
            continue;
        }
        let title = format!("{} {} ({})", finding.rule.code, finding.rule.id, word(finding.rule));
        let name = places.name(finding.file());
        // A file that is not in the repository cannot be annotated; its path is in the message then.
        let file = if place::is_inside(name) {
            format!("file={},line=1,", property(&text::printable(name)))
        } else {
            String::new()
        };
        let shown = if place::is_inside(name) { String::new() } else { format!("{}: ", text::printable(name)) };
        let message = format!(
            "{shown}{}\nhelp: {}",
            text::cut(&sentence(finding), MAX_MESSAGE),
            text::cut(&finding.help, MAX_MESSAGE)
        );
        writeln!(out, "::{command} {file}title={}::{}", property(&text::cut(&title, MAX_TITLE)), data(&message))?;
    }
    let summary = ReportSummary::new(report);
    for (_, sentence) in summary.verdicts(report) {
        writeln!(out, "{}", data(&sentence))?;
    }
    writeln!(out, "{}", data(&summary.counts(report, settings)))?;
    if omitted > 0 {
        let where_else = if settings.step_summary.is_some() { "in the step summary" } else { "not shown" };
        let findings = text::plural(omitted, "more finding");
        writeln!(out, "{findings} {where_else}: a step shows {MAX_ANNOTATIONS} annotations of a severity")?;
    }
    settings.step_summary.as_deref().map_or(Ok(()), |path| {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        // All that a step writes may have 1 MiB together.
        let present = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        match step_summary::MAX_BYTES.saturating_sub(present) {
            space if space < step_summary::MIN_BYTES => Ok(()),
            space => file.write_all(step_summary::page(report, settings, space).as_bytes()),
        }
    })
}

/// The message of a command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_command_is_escaped() {
        assert_eq!(data("a%0A::error::\r\nb"), "a%250A::error::%0D%0Ab");
        assert_eq!(property("a:b,c%"), "a%3Ab%2Cc%25");
    }
}
