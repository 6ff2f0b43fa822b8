//! Numbers for people.

/// A float in the digits that matter, as `%g` of C has it.
pub(crate) fn significant(value: f64) -> String {
    general(value, 6)
}

/// A float in `digits` digits, as `%g` of C formats it: without trailing zeros, and with an exponent if it is large or
/// small.
pub(super) fn general(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{}", value + 0.0); // -0 is 0
    }
    let scientific = format!("{value:.*e}", digits - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs());
    }
    without_zeros(&format!("{value:.*}", (digits as i32 - 1 - exponent).max(0) as usize)).to_owned()
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_shown_as_c_shows_them() {
        let shown = [0.0, -0.0, 1.0, -0.772_516, 9.174_39e-5, 0.095_457_5, 1e20, 123_456.0, 1_234_567.0, 1e-4];
        let requested =
            ["0", "0", "1", "-0.772516", "9.17439e-05", "0.0954575", "1e+20", "123456", "1.23457e+06", "0.0001"];
        assert_eq!(shown.map(significant), requested);
        assert_eq!(general(99.96, 3), "100");
    }
}
