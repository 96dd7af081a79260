//! The samples of a recording as they are: addresses, which readers give names to. Read with `linux-perf-data`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use linux_perf_data::linux_perf_event_reader::EventRecord;
use linux_perf_data::{PerfFileReader, PerfFileRecord};

/// In a call chain: user addresses follow, up to the next mark of this kind.
const CONTEXT_USER: u64 = -512_i64 as u64;
const CONTEXT_MAX: u64 = -4095_i64 as u64;

pub struct RawSample {
    pub tid: u32,
    pub time: u64,
    pub ip: u64,
    /// Innermost first; the callers' addresses are within their call instructions.
    pub chain: Vec<u64>,
}

pub fn samples(data: &Path) -> Result<Vec<RawSample>> {
    let file = BufReader::new(File::open(data).with_context(|| format!("{}", data.display()))?);
    let PerfFileReader { mut perf_file, mut record_iter } = PerfFileReader::parse_file(file)?;
    let mut samples = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file)? {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        let EventRecord::Sample(sample) = record.parse()? else { continue };
        let (Some(tid), Some(time), Some(ip)) = (sample.tid, sample.timestamp, sample.ip) else { continue };
        let chain = sample.callchain.map(|chain| (0..chain.len()).filter_map(|at| chain.get(at)).collect());
        samples.push(RawSample { tid: tid as u32, time, ip, chain: user_part(chain.unwrap_or_default()) });
    }
    Ok(samples)
}

fn user_part(chain: Vec<u64>) -> Vec<u64> {
    let mut user = Vec::new();
    let mut in_user = false;
    for address in chain {
        if address >= CONTEXT_MAX {
            in_user = address == CONTEXT_USER;
        } else if in_user {
            // The first one is where the thread was, the others where it will return to.
            user.push(if user.is_empty() { address } else { address.saturating_sub(1) });
        }
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_user_addresses_are_of_interest() {
        let kernel = -128_i64 as u64;
        assert_eq!(user_part(vec![kernel, 5, 6, CONTEXT_USER, 100, 200, 300]), [100, 199, 299]);
        assert_eq!(user_part(vec![CONTEXT_USER, 100]), [100]);
        assert!(user_part(vec![kernel, 5]).is_empty());
    }
}
