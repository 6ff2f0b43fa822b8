//! The report for a terminal: the findings by file, and the summary at the end, where it is visible.

use std::borrow::Cow;
use std::io::{self, Write};

use anstyle::Style;
use max_weights::{Diagnostic, text};

use super::colors::Colors;
use super::summary::{DEPTHS, ReportSummary, about, seconds};
use super::{ReportPaths, Settings, place, word};
use crate::report::{Depth, FileReport, Report};

/// Files without findings that the list of unexamined files names.
const MAX_LISTED: usize = 20;
/// The narrowest column that text is wrapped in.
const NARROWEST: usize = 40;

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page { out, colors: Colors::new(settings.color), width: settings.width.max(NARROWEST) };
    let mut places = ReportPaths::new(&settings.root);
    let mut files = report.files.iter().collect::<Vec<_>>();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    for findings in report.findings.chunk_by(|a, b| a.path == b.path) {
        let Some(first) = findings.first() else { continue };
        let found = files.binary_search_by(|file| (*file.path).cmp(first.file()));
        let file = found.ok().and_then(|at| files.get(at)).copied();
        page.file(places.name(first.file()), file)?;
        for finding in findings {
            page.finding(finding)?;
        }
        page.line(0, "")?;
    }
    if settings.all_files {
        let mut with: Vec<_> = report.findings.iter().map(Diagnostic::file).collect();
        with.dedup();
        for file in files.iter().filter(|file| with.binary_search(&&*file.path).is_err()) {
            page.file(places.name(&file.path), Some(file))?;
        }
        page.line(0, "")?;
    }
    page.summary(report, settings, &mut places)
}

struct Page<'a> {
    out: &'a mut dyn Write,
    colors: Colors,
    width: usize,
}

impl Page<'_> {
    fn file(&mut self, name: &str, file: Option<&FileReport>) -> io::Result<()> {
        let (name, bold, dim) = (text::printable(name), self.colors.bold, self.colors.dim);
        let about = format!("({})", file.map_or_else(|| "what its files say about each other".into(), about));
        let name = guarded(&name);
        if name.chars().count() + 1 + about.chars().count() <= self.width {
            return writeln!(self.out, "{bold}{name}{bold:#} {dim}{}{dim:#}", guarded(&about));
        }
        writeln!(self.out, "{bold}{name}{bold:#}")?;
        self.wrapped(2, dim, &about)
    }

    fn finding(&mut self, finding: &Diagnostic) -> io::Result<()> {
        let (rule, style, bold) = (finding.rule, self.colors.of(finding.rule), self.colors.bold);
        writeln!(self.out, "  {style}{}{style:#} {bold}{}{bold:#} {}", word(rule), rule.code, rule.id)?;
        self.wrapped(4, Style::new(), &finding.message)?;
        let inside = place::inside(finding);
        let dim = self.colors.dim;
        if !inside.is_empty() {
            self.wrapped(4, dim, &format!("at {inside}"))?;
        }
        if let Some(evidence) = &finding.evidence {
            for (number, line) in wrap(&text::printable(evidence), self.width - 6).into_iter().enumerate() {
                self.line(4, &format!("{} {line}", if number == 0 { '>' } else { '|' }))?;
            }
        }
        if !finding.help.is_empty() {
            self.wrapped(4, dim, &format!("help: {}", finding.help))?;
        }
        Ok(())
    }

    fn summary<'a>(&mut self, report: &'a Report, settings: &Settings, places: &mut ReportPaths<'a>) -> io::Result<()> {
        let summary = ReportSummary::new(report);
        let looked = format!(
            "{}, {} in {}, level {}",
            text::plural(report.files.len() as u64, "file"),
            text::size(report.bytes()),
            seconds(report),
            report.level.name()
        );
        let bold = self.colors.bold;
        writeln!(self.out, "{bold}{looked}{bold:#}")?;
        self.kinds(&summary)?;
        self.listed("not looked at", &summary.not_looked_at, places)?;
        self.listed("only recognised, nothing is known about the contents", &summary.recognised, places)?;
        self.line(0, "")?;
        for (verdict, sentence) in summary.verdicts(report) {
            let style = self.colors.verdict(verdict);
            let (head, rest) = sentence.split_once(':').unwrap_or((&sentence, ""));
            let colon = if rest.is_empty() { "" } else { ":" };
            writeln!(self.out, "{style}{head}{style:#}{colon}{rest}")?;
        }
        self.wrapped(0, Style::new(), &summary.counts(report, settings))
    }

    /// The table of kinds and depths, of which only those are there that some file has.
    fn kinds(&mut self, summary: &ReportSummary<'_>) -> io::Result<()> {
        let has =
            |depth: usize| summary.kinds.iter().any(|kind| kind.depths.get(depth).is_some_and(|count| *count > 0));
        let depths: Vec<usize> = (0..DEPTHS.len()).filter(|depth| has(*depth)).collect();
        let kind_width = summary.kinds.iter().map(|kind| kind.kind.chars().count()).max().unwrap_or(0);
        for kind in &summary.kinds {
            let deep: Vec<String> = depths
                .iter()
                .filter_map(|at| Some((DEPTHS.get(*at)?, *kind.depths.get(*at)?)))
                .filter(|(_, count)| *count > 0)
                .map(|(depth, count)| format!("{} {}", depth.name(), text::grouped(count)))
                .collect();
            let name = text::escape(kind.kind);
            let line = format!(
                "{name:kind_width$}  {:>7}  {:>9}  {}",
                text::grouped(kind.files),
                text::size(kind.bytes),
                deep.join(", ")
            );
            self.line(2, &line)?;
        }
        Ok(())
    }

    fn listed<'a>(&mut self, title: &str, files: &[&'a FileReport], places: &mut ReportPaths<'a>) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        self.line(0, &format!("{title}:"))?;
        for file in files.iter().take(MAX_LISTED) {
            let mut line = text::printable(places.name(&file.path)).into_owned();
            line.push_str(&format!(" ({})", text::escape(&file.kind)));
            if let Some(note) = file.note.as_deref().filter(|_| file.depth == Depth::NotLookedAt) {
                line.push_str(&format!(": {}", text::printable(note)));
            }
            self.line(2, &line)?;
        }
        if let Some(more) = files.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
            self.line(2, &format!("and {}", text::plural(more as u64, "more file")))?;
        }
        Ok(())
    }

    /// A string in lines of the width.
    fn wrapped(&mut self, indent: usize, style: Style, text: &str) -> io::Result<()> {
        for line in wrap(&text::printable(text), self.width.saturating_sub(indent)) {
            writeln!(self.out, "{:indent$}{style}{}{style:#}", "", guarded(&line))?;
        }
        Ok(())
    }

    fn line(&mut self, indent: usize, line: &str) -> io::Result<()> {
        writeln!(self.out, "{:indent$}{}", "", guarded(line))
    }
}

/// The text in lines of at most `width` characters, broken between words where possible.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.len() <= width {
        return vec![text.to_owned()];
    }
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for word in text.split(' ') {
        let mut word = word;
        let mut len = word.chars().count();
        if used > 0 && used + 1 + len > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        } else if used > 0 {
            line.push(' ');
            used += 1;
        }
        while len > width {
            let at = word.char_indices().nth(width).map_or(word.len(), |(at, _)| at);
            let (head, tail) = word.split_at(at);
            lines.push(head.to_owned());
            (word, len) = (tail, len - width);
        }
        line.push_str(word);
        used += len;
    }
    lines.push(line);
    lines
}

/// The line, so that no CI system takes it for a command: those of GitHub Actions begin with `::`, those of Azure Pipelines and TeamCity have `##`.
fn guarded(line: &str) -> Cow<'_, str> {
    if !line.contains("##") && !line.trim_start().starts_with("::") {
        return Cow::Borrowed(line);
    }
    let line = line.replace("##", "#\\x23");
    match line.trim_start().strip_prefix("::") {
        Some(rest) => format!("{}\\x3a:{rest}", &line[..line.len() - rest.len() - 2]).into(),
        None => line.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words_and_long_words_are_cut() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a bbbbbbbbbb c", 4), ["a", "bbbb", "bbbb", "bb c"]);
        assert_eq!(wrap("äöüß", 2), ["äö", "üß"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn no_line_is_a_command_of_a_ci_system() {
        assert_eq!(guarded("  ::error::x"), "  \\x3a:error::x");
        assert_eq!(guarded("a ##vso[task]###"), "a #\\x23vso[task]#\\x23#");
    }
}
