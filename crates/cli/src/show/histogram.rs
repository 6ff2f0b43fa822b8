//! A histogram of bars.

use std::io;

use max_weights::check::{Bin, ExactNumber};
use max_weights::text;

use super::numbers::{general, significant};
use crate::screen::{Screen, columns};

/// Columns of the longest bar.
const BAR: usize = 40;
const MIN_BAR: usize = 8;
/// Columns other than those of a bar: before the label, around the bar, and for the count.
const MARGIN: usize = 18;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Writes one bar a bin.
pub(super) fn write(bins: &[Bin], screen: &mut Screen) -> io::Result<()> {
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let labels: Vec<String> = bins.iter().map(label).collect();
    let wide = labels.iter().map(|label| columns(label)).max().unwrap_or(0);
    let space = screen.width().map_or(BAR, |width| width.saturating_sub(wide + MARGIN).clamp(MIN_BAR, BAR));
    screen.line("")?;
    for (label, bin) in labels.iter().zip(bins) {
        let bar = bar(bin.count as f64 / most as f64, space, screen.unicode());
        let between = if bar.is_empty() { "" } else { " " };
        let style = screen.paint.dtype;
        let pad = " ".repeat(wide - columns(label));
        screen.line(&format!("  {pad}{label}  {style}{bar}{between}{style:#}{}", text::grouped(bin.count)))?;
    }
    Ok(())
}

fn label(bin: &Bin) -> String {
    if bin.low == bin.high {
        return exact(bin.low);
    }
    format!("{} … {}", general(bin.low.to_f64(), 3), general(bin.high.to_f64(), 3))
}

/// An integer in all its digits, a float in those that matter.
pub(super) fn exact(number: ExactNumber) -> String {
    match number {
        ExactNumber::Integer(value) => {
            let digits = text::grouped(u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX));
            if value < 0 { format!("-{digits}") } else { digits }
        }
        ExactNumber::Float(value) => significant(value),
    }
}

/// A bar for a share of the longest one; a share above zero is always visible.
fn bar(share: f64, space: usize, eighths: bool) -> String {
    let parts = |steps: usize| (share * steps as f64).round().max(if share > 0.0 { 1.0 } else { 0.0 }) as usize;
    if !eighths {
        return "#".repeat(parts(space));
    }
    let parts = parts(space * 8);
    "█".repeat(parts / 8) + EIGHTHS[parts % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_at_all_is_seen() {
        assert_eq!(bar(0.0, 40, true), "");
        assert_eq!(bar(1e-9, 40, true), "▏");
        assert_eq!(bar(1e-9, 40, false), "#");
        assert_eq!(bar(1.0, 4, true), "████");
        assert_eq!(bar(0.53, 4, true), "██▏");
    }
}
