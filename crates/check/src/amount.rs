//! Sizes and times as people write them, on the command line and in files of settings.

use std::time::Duration;

/// Bytes: a number, or one with a unit, such as `2GB` or `1.5 GiB`.
pub fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => f64::from(1u32 << 10),
        "mib" => f64::from(1u32 << 20),
        "gib" => f64::from(1u32 << 30),
        "tib" => (1u64 << 40) as f64,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    (bytes >= 1.0 && bytes.is_finite()).then_some(bytes as u64)
}

/// Seconds, or what humantime understands: `90s`, `10min`, `1h 30m`.
pub fn time(text: &str) -> Option<Duration> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
        Err(_) => humantime::parse_duration(text).ok()?,
    };
    (!time.is_zero()).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(["2GB", "1.5 GiB", "4096"].map(bytes), [Some(2_000_000_000), Some(3 << 29), Some(4096)]);
        assert_eq!(["2 apples", "-1", "NaN", "0", ""].map(bytes), [None; 5]);
    }

    #[test]
    fn times_are_seconds_or_have_units() {
        let seconds = |text: &str| time(text).map(|time| time.as_secs_f64());
        assert_eq!(["1h 30min", "0.5", "90", "2min"].map(seconds), [Some(5400.0), Some(0.5), Some(90.0), Some(120.0)]);
        assert_eq!(["soon", "-1", "inf", "0", ""].map(seconds), [None; 5]);
    }
}
