//! The choice of instructions: the best that the processor has, or the level of the environment variable.

use std::fmt;

use once_cell::race::OnceBox;

use crate::error::{Error, Result};

/// The environment variable that forces a level.
pub const VARIABLE: &str = "MAX_WEIGHTS_SIMD";

/// A set of instructions that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust.
    Scalar,
    /// NEON: every processor of AArch64.
    Neon,
    /// AVX2 and F16C: Haswell, Zen and later.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, VBMI and VBMI2, and BMI2: Ice Lake, Zen 4 and later.
    Avx512,
}

impl Level {
    const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The level's name in the environment variable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// True if this processor can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("avx512vbmi2")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// An error unless this processor can run it.
    pub(crate) fn require(self) -> Result<()> {
        if self.is_available() {
            return Ok(());
        }
        Err(Error::Argument(format!("this processor lacks the instructions of the level {self}")))
    }

    /// The levels that this processor can run, lowest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// The level in use. The environment is read once, at the first call.
    pub fn chosen() -> Result<Self> {
        static CHOSEN: OnceBox<Result<Level, String>> = OnceBox::new();
        let forced = || std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
        CHOSEN.get_or_init(|| Box::new(Self::choose(forced()))).clone().map_err(Error::Argument)
    }

    fn choose(forced: Option<String>) -> Result<Self, String> {
        let Some(forced) = forced.filter(|value| !value.is_empty()) else {
            return Ok(Self::available().next_back().unwrap_or(Self::Scalar));
        };
        let choices = || Self::available().map(Self::name).collect::<Vec<_>>().join(", ");
        let Some(level) = Self::ALL.into_iter().find(|level| level.name() == forced) else {
            return Err(format!("{VARIABLE}={forced:?} is unknown; the choices on this machine are: {}", choices()));
        };
        if !level.is_available() {
            return Err(format!("{VARIABLE}={level}: this processor lacks it; the choices here are: {}", choices()));
        }
        Ok(level)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_forces_a_level_or_names_the_choices() {
        assert_eq!(Level::choose(Some("scalar".into())), Ok(Level::Scalar));
        assert_eq!(Level::choose(None), Ok(Level::available().next_back().expect("scalar at least")));
        let message = Level::choose(Some("sse9".into())).expect_err("no such level");
        assert!(message.contains("sse9") && message.contains("scalar"), "{message}");
    }
}
