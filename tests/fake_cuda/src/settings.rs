//! What a test asks for by environment variables, read once, at the first `cuInit`.

use std::collections::HashMap;
use std::time::Duration;

/// How much of a copy's source is compared with what it was when the copy was issued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Check {
    None,
    /// All of a copy up to 1 MiB, a thousand places of a larger one.
    Sampled,
    Full,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    /// Bytes of each device.
    pub(crate) memory: u64,
    /// Bytes of host memory that can be pinned or registered at a time.
    pub(crate) pinned: u64,
    /// The speed of each device's link, in each direction, in 10⁹ bytes a second; 0 is no limit.
    pub(crate) gigabytes_per_second: f64,
    /// An operation is executed no sooner than this after it was issued.
    pub(crate) delay: Duration,
    pub(crate) check: Check,
    /// Whether copies between host and device move bytes; without them only their time passes.
    pub(crate) bytes: bool,
    /// Attributes of the devices that differ from the usual.
    pub(crate) attributes: HashMap<i32, i32>,
    pub(crate) report: Option<String>,
}

impl Settings {
    /// Of the environment; an error names the variable.
    pub(crate) fn read() -> Result<Self, String> {
        let check = match text("FAKE_CUDA_CHECK").as_deref() {
            None | Some("sampled") => Check::Sampled,
            Some("none") => Check::None,
            Some("full") => Check::Full,
            Some(other) => return Err(format!("FAKE_CUDA_CHECK is {other:?}: none, sampled or full")),
        };
        let mut attributes = HashMap::new();
        for pair in text("FAKE_CUDA_ATTRIBUTES").unwrap_or_default().split(',').filter(|pair| !pair.is_empty()) {
            let parsed = pair.split_once('=').and_then(|(key, value)| Some((key.parse().ok()?, value.parse().ok()?)));
            let (key, value) = parsed.ok_or_else(|| format!("FAKE_CUDA_ATTRIBUTES: {pair:?} is not NUMBER=VALUE"))?;
            attributes.insert(key, value);
        }
        Ok(Self {
            devices: number("FAKE_CUDA_DEVICES", 2)?,
            memory: number("FAKE_CUDA_MEMORY", 16 << 30)?,
            pinned: number("FAKE_CUDA_PINNED", 8 << 30)?,
            gigabytes_per_second: number("FAKE_CUDA_GBPS", 0.0)?,
            delay: Duration::from_micros(number("FAKE_CUDA_DELAY", 100)?),
            check,
            bytes: number("FAKE_CUDA_BYTES", 1)? != 0,
            attributes,
            report: text("FAKE_CUDA_REPORT"),
        })
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &str, usual: T) -> Result<T, String> {
    text(name).map_or(Ok(usual), |value| value.parse().map_err(|_| format!("{name} is {value:?}, which is no number")))
}
