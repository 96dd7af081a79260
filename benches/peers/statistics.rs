//! Percentiles within a measurement, medians and quartiles over rounds.

/// Median and quartiles.
#[derive(Clone, Copy)]
pub struct Quartiles {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Quartiles {
    /// Of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Quartiles {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Quartiles { low: percentile(&sorted, 25.0), median: percentile(&sorted, 50.0), high: percentile(&sorted, 75.0) }
    }
}

/// The smallest value that so many percent of the values do not exceed.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Puts the contenders of a round in random order. Only fairness depends on it, so any generator will do.
pub fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for last in (1..items.len()).rev() {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, (*state >> 33) as usize % (last + 1));
    }
}
