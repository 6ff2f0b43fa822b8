//! The colours of text.

use anstyle::{AnsiColor, Style};
use max_weights::rules::{Rule, Severity, Verdict};

/// Colours; each is an empty string without colour.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Colors {
    pub(super) bold: Style,
    pub(super) dim: Style,
    pub(super) good: Style,
    pub(super) note: Style,
    pub(super) warning: Style,
    pub(super) error: Style,
}

impl Colors {
    pub(super) fn new(requested: bool) -> Self {
        if !requested {
            return Self::default();
        }
        Self {
            bold: Style::new().bold(),
            dim: Style::new().dimmed(),
            good: AnsiColor::Green.on_default().bold(),
            note: AnsiColor::Cyan.on_default().bold(),
            warning: AnsiColor::Yellow.on_default().bold(),
            error: AnsiColor::Red.on_default().bold(),
        }
    }

    /// The colour of findings of this rule.
    pub(super) fn of(&self, rule: &Rule) -> Style {
        match rule.severity {
            Severity::Note => self.note,
            Severity::Warning => self.warning,
            _ => self.error,
        }
    }

    /// The colour of a verdict.
    pub(super) fn verdict(&self, verdict: Verdict) -> Style {
        match verdict {
            Verdict::Clean => self.good,
            Verdict::Unknown | Verdict::Accepted => self.note,
            Verdict::Faulty | Verdict::NeedsTrust => self.warning,
            Verdict::Broken | Verdict::Malicious => self.error,
        }
    }
}
