//! What perf says of records that the kernel had no room for.

/// How many times that was, by what `perf report --stats` prints.
pub fn lost(stats: &str) -> u64 {
    let count = |line: &str| line.trim().strip_prefix("LOST events:")?.split_whitespace().next()?.parse().ok();
    stats.lines().find_map(count).unwrap_or(0)
}
