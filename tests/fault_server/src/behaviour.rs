//! How a server behaves: how late it answers, how fast it sends, and what goes wrong.

use std::io;
use std::str::FromStr;
use std::time::Duration;

use crate::faults::{Rule, number, rules};

/// How late a server answers, how fast it sends, and which faults it has. Its text is described on the first page of the crate:
/// `"latency_ms=20 slow-down times=2".parse()`.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// How long a request waits before it is answered.
    pub latency: Duration,
    /// Bytes a second of each connection; no limit for 0.
    pub rate: u64,
    pub(crate) rules: Vec<Rule>,
}

impl Behaviour {
    /// This latency and rate, unless the text has others, with the faults of the text and no others.
    pub fn with(mut self, text: &str) -> io::Result<Self> {
        let mut faults = String::new();
        for word in text.split(|c: char| c.is_whitespace() || c == ',') {
            match word.split_once('=') {
                Some(("latency_ms", value)) => self.latency = Duration::from_millis(number("latency_ms", value)?),
                Some(("rate", value)) => self.rate = number("rate", value)?,
                _ => faults += &format!("{word} "),
            }
        }
        self.rules = rules(&faults)?;
        Ok(self)
    }
}

impl FromStr for Behaviour {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        Self::default().with(text)
    }
}
