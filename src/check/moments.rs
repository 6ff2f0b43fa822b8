//! Mean and deviation of numbers, a block at a time.

/// The count of numbers, their mean, and the sum of the squares of their distances from it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
    number: u64,
    mean: f64,
    squares: f64,
}

/// Independent sums, so that the compiler can use vectors: it does not reorder additions of floats itself.
const LANES: usize = 8;

impl Moments {
    /// Of one block.
    pub(super) fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mean = sum(values, |value| value) / values.len() as f64;
        let squares = sum(values, |value| (value - mean) * (value - mean));
        Self { number: values.len() as u64, mean, squares }
    }

    /// Chan's update: merges the sums of a block without losing the small ones to the large ones.
    pub(super) fn join(&mut self, other: Self) {
        if other.number == 0 {
            return;
        }
        let total = self.number + other.number;
        let share = other.number as f64 / total as f64;
        let delta = other.mean - self.mean;
        self.mean += delta * share;
        self.squares += other.squares + delta * delta * self.number as f64 * share;
        self.number = total;
    }

    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    pub(super) fn deviation(&self) -> f64 {
        (self.squares / self.number as f64).sqrt()
    }
}

#[inline(always)] // with the closure, so that it becomes one loop
fn sum(values: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let (groups, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for group in groups {
        for (sum, value) in sums.iter_mut().zip(group) {
            *sum += of(*value);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += of(*value);
    }
    sums.iter().sum()
}
