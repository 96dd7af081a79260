//! The measurements. Each opens a contender, warms it up, times it, closes it, and checks its files.

mod paced;
pub mod process;
mod rate;
mod saturated;
mod start;

pub use paced::{bursts, latency, probe};
pub use rate::rate;
pub use saturated::saturated;
pub use start::start;

use std::collections::BTreeMap;

use crate::clock::Scale;
use crate::statistics::{mean, percentile};

/// What a measurement found, by name.
pub type Figures = BTreeMap<String, f64>;

/// Calls timed together, because the timer costs more than one of them.
pub const BATCH: usize = 16;

/// The percentiles that are kept of a distribution.
pub const PERCENTILES: [f64; 16] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 60.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.95, 99.99];

/// The name of a percentile among the figures.
pub fn percentile_name(prefix: &str, percent: f64) -> String {
    format!("{prefix}_p{percent}")
}

/// Timings of `calls` calls each, in ticks, become nanoseconds a call: `NAME_p50` and so on, and `NAME_mean`.
fn add_distribution(figures: &mut Figures, name: &str, ticks: &[u64], calls: usize, scale: &Scale) {
    let mut ns: Vec<f64> = ticks.iter().map(|&ticks| scale.net_ns(ticks, calls)).collect();
    figures.insert(format!("{name}_mean"), mean(&ns));
    ns.sort_by(f64::total_cmp);
    for percent in PERCENTILES {
        figures.insert(percentile_name(name, percent), percentile(&ns, percent));
    }
}
