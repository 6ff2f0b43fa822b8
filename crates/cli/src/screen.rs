//! Standard output and standard error for people: colours, the width of the terminal, and ASCII where the locale has nothing else.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal as _, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use max_weights::format::pickle::Danger;
use max_weights::text;
use max_weights_check::output::json_escaped;
use unicode_width::UnicodeWidthStr as _;

use crate::CLEAN;
use crate::inputs::Color;

/// The one control character of ASCII that JSON has without an escape.
const DELETE: u8 = 0x7f;
/// Bytes that are written at a time.
const BUFFER: usize = 64 << 10;

/// Colours; each is an empty style without colour.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Paint {
    pub(crate) bold: Style,
    pub(crate) dim: Style,
    pub(crate) dtype: Style,
    pub(crate) size: Style,
    pub(crate) good: Style,
    pub(crate) warning: Style,
    pub(crate) error: Style,
}

impl Paint {
    fn new(requested: bool) -> Self {
        if !requested {
            return Self::default();
        }
        Self {
            bold: Style::new().bold(),
            dim: Style::new().dimmed(),
            dtype: AnsiColor::Cyan.on_default(),
            size: AnsiColor::Green.on_default(),
            good: AnsiColor::Green.on_default(),
            warning: AnsiColor::Yellow.on_default(),
            error: AnsiColor::Red.on_default().bold(),
        }
    }
}

impl Paint {
    /// Whether there are colours.
    pub(crate) fn is_painted(&self) -> bool {
        self.bold != Style::new()
    }

    /// The colour of a class or function.
    pub(crate) fn danger(&self, danger: Danger) -> Style {
        match danger {
            Danger::Harmless => self.good,
            Danger::Library | Danger::NeedsTrust => self.warning,
            Danger::RunsCode => self.error,
        }
    }
}

/// Where a command writes.
pub(crate) struct Screen {
    out: BufWriter<Box<dyn Write>>,
    written: bool,
    /// Whether nothing but JSON is to be on standard output.
    pub(crate) is_for_json: bool,
    /// The exit status of the command, even if its output cannot be written. Commands with a verdict set it before they print.
    pub(crate) status: u8,
    /// The colours of standard output.
    pub(crate) paint: Paint,
    /// Those of standard error, and whether it has any.
    paint_errors: Paint,
    errors: ColorChoice,
    unicode: bool,
    width: Option<usize>,
}

impl Screen {
    pub(crate) fn new(color: Color) -> Self {
        let choice = match color {
            Color::Auto => AutoStream::choice(&io::stdout()),
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        let errors = match color {
            Color::Auto => AutoStream::choice(&io::stderr()),
            _ => choice,
        };
        let painted = choice != ColorChoice::Never;
        // Without colours nothing has to look for them.
        let out: Box<dyn Write> =
            if painted { Box::new(AutoStream::new(io::stdout(), choice)) } else { Box::new(io::stdout()) };
        Self {
            out: BufWriter::with_capacity(BUFFER, out),
            written: false,
            is_for_json: false,
            status: CLEAN,
            paint: Paint::new(painted),
            paint_errors: Paint::new(errors != ColorChoice::Never),
            errors,
            unicode: has_unicode(),
            width: width(),
        }
    }

    /// For a command that prints JSON, or does not.
    pub(crate) fn for_json(&mut self, json: bool) -> &mut Self {
        self.is_for_json = json;
        self
    }

    /// Columns of the terminal; `None` where a line may be of any length.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Whether characters beyond ASCII can be shown.
    pub(crate) fn unicode(&self) -> bool {
        self.unicode
    }

    /// Whether anything was written to standard output.
    pub(crate) fn was_written(&self) -> bool {
        self.written
    }

    /// The output for raw bytes.
    pub(crate) fn raw(&mut self) -> &mut impl Write {
        self.written = true;
        &mut self.out
    }

    /// Writes a line for people.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        let shown = in_locale(line, self.unicode);
        self.written = true;
        self.out.write_all(shown.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Writes lines for people, each of which ends.
    pub(crate) fn text(&mut self, lines: &str) -> io::Result<()> {
        self.written = true;
        self.out.write_all(in_locale(lines, self.unicode).as_bytes())
    }

    /// Writes what ends a command on standard error.
    pub(crate) fn complain(&self, message: &str) {
        self.say("max-weights: ", self.paint_errors.error, message);
    }

    /// Reports on standard error what takes a while, if it is a terminal.
    pub(crate) fn tell(&self, message: &str) {
        if io::stderr().is_terminal() {
            self.say("", self.paint_errors.dim, message);
        }
    }

    /// Writes a line on standard error, after everything written so far. A failure cannot be reported.
    fn say(&self, before: &str, style: Style, message: &str) {
        let message = in_locale(message, self.unicode);
        let _ = writeln!(AutoStream::new(io::stderr(), self.errors), "{style}{before}{style:#}{message}");
    }

    /// Writes warnings on standard error, so that piped output stays what it is.
    pub(crate) fn warn(&mut self, messages: impl IntoIterator<Item = impl ToString>) -> io::Result<()> {
        for (number, message) in messages.into_iter().enumerate() {
            if number == 0 {
                self.flush()?;
            }
            self.say("warning: ", self.paint_errors.warning, &message.to_string());
        }
        Ok(())
    }
}

/// JSON. A string of it may have an escape for every character: those that could steer a terminal or mislead the eye get one.
impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written = true;
        if bytes.iter().all(|byte| byte.is_ascii() && *byte != DELETE) {
            return self.out.write(bytes);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => self.out.write_all(json_escaped(text).as_bytes()).map(|()| bytes.len()),
            Err(_) => self.out.write(bytes), // a part of a character
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Columns that a string takes.
pub(crate) fn columns(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// The text in at most `most` columns. The middle is cut, as names differ at their ends.
pub(crate) fn fitted(text: &str, most: usize, unicode: bool) -> Cow<'_, str> {
    let excluded = if unicode { "…" } else { &"..."[..most.min(3)] };
    if columns(text) <= most {
        return text.into();
    }
    let (mut head, mut tail) = (String::new(), Vec::new());
    let space = most.saturating_sub(columns(excluded));
    let mut used = 0;
    for c in text.chars().rev() {
        used += unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if used > space.div_ceil(2) {
            break;
        }
        tail.push(c);
    }
    let space = space - tail.iter().rev().collect::<String>().width();
    for c in text.chars() {
        head.push(c);
        if head.width() > space {
            head.pop();
            break;
        }
    }
    head.push_str(excluded);
    head.extend(tail.iter().rev());
    head.into()
}

/// Adds a string, padded with spaces to `width` columns.
pub(crate) fn push_padded(line: &mut String, text: &str, width: usize) {
    line.push_str(text);
    line.extend(std::iter::repeat_n(' ', width.saturating_sub(columns(text))));
}

/// The text padded with spaces to `width` columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    let mut padded = text.to_owned();
    padded.extend(std::iter::repeat_n(' ', width.saturating_sub(columns(text))));
    padded
}

/// The text as the locale can show it. What has to fit into columns is counted in this form.
pub(crate) fn in_locale(text: &str, unicode: bool) -> Cow<'_, str> {
    if unicode { text.into() } else { ascii(text) }
}

/// Text without characters beyond ASCII: those that are drawn with have others that are near, the rest are escaped.
fn ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '├' | '│' => plain.push('|'),
            '└' => plain.push('`'),
            '─' | '–' => plain.push('-'),
            '…' => plain.push_str("..."),
            '×' => plain.push('x'),
            '→' => plain.push_str("->"),
            '█' | '▏' | '▎' | '▍' | '▌' | '▋' | '▊' | '▉' => plain.push('#'),
            c if c.is_ascii() => plain.push(c),
            c if u32::from(c) <= 0xffff => {
                let _ = write!(plain, "\\u{:04x}", u32::from(c));
            }
            c => {
                let _ = write!(plain, "\\U{:08x}", u32::from(c));
            }
        }
    }
    plain.into()
}

/// Whether the locale's characters are UTF-8. Systems that have no such variables show it.
fn has_unicode() -> bool {
    if cfg!(not(unix)) {
        return true;
    }
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The columns to keep to: what COLUMNS says, or those of the terminal that standard output is.
fn width() -> Option<usize> {
    if let Some(columns) =
        std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|&columns| columns > 0)
    {
        return Some(columns);
    }
    if !io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| width.0.into())
}

/// The name of an element type, safe to print.
pub(crate) fn element(info: &max_weights::tensor::TensorInfo<'_>) -> String {
    text::escape(&info.element.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_fit_keeps_both_ends() {
        assert_eq!(fitted("model.layers.0.weight", 40, true), "model.layers.0.weight");
        assert_eq!(fitted("model.layers.0.weight", 11, true), "model…eight");
        assert_eq!(fitted("重重重重重", 5, true), "重…重");
        assert_eq!(fitted("abc", 1, true), "…");
        assert_eq!(fitted("model.layers.0.weight", 11, false), "mode...ight");
        assert_eq!(fitted("abc", 2, false), "..");
    }

    #[test]
    fn what_is_drawn_with_has_a_form_in_ascii_and_the_rest_is_escaped() {
        assert_eq!(ascii("├── 0–5 → …"), "|-- 0-5 -> ...");
        assert_eq!(ascii("é𝄞"), "\\u00e9\\U0001d11e");
    }
}
