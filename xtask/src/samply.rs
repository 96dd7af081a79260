//! samply as a reader: `samply import` of a recording of perf, and the profile that it makes of it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use object::{Object, ObjectSegment, ObjectSymbol};
use serde_json::Value;

use crate::matrix::Outcome;
use crate::perf::{Graph, Mode, Recording};
use crate::program::Written;
use crate::raw::{self, RawSample};
use crate::run;
use crate::score::{self, Frame, Kind, Sample};
use crate::script;
use crate::truth::{Truth, Unwind};

/// The ways to use it: it reads what perf has recorded.
pub const MODES: &[Mode] = &[
    Mode::new("jitdump", Graph::FramePointers, Written::Jitdump),
    Mode::new("map", Graph::FramePointers, Written::Map),
    Mode::new("region", Graph::FramePointers, Written::Region),
];

pub fn measure(samply: &Path, recording: &Recording, dir: &Path) -> Result<Outcome> {
    let profile = dir.join("profile.json");
    let mut import = run::command(samply);
    import.current_dir(dir).args(["import", "--save-only", "--no-open", "-o"]).arg(&profile).arg(&recording.data);
    run::success(&mut import)?;
    let profile: Value = serde_json::from_slice(&std::fs::read(&profile)?).context("the profile")?;
    let mut raw: BTreeMap<u32, Vec<RawSample>> = BTreeMap::new();
    for sample in raw::samples(&recording.data)? {
        raw.entry(sample.tid).or_default().push(sample);
    }
    raw.values_mut().for_each(|samples| samples.sort_by_key(|sample| sample.time));
    let samples = samples(&recording.truth, &profile, &raw, &mut Natives::default())?;
    let whole = matches!(recording.truth.unwind()?, Unwind::Both | Unwind::FramePointers);
    Ok(Outcome::of(score::score(&recording.truth, &samples, whole)))
}

/// The samples of the profile. It has times since its beginning and no addresses of code, so that those are taken from the
/// recording, by thread and time.
fn samples(
    truth: &Truth,
    profile: &Value,
    raw: &BTreeMap<u32, Vec<RawSample>>,
    natives: &mut Natives,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for thread in array(&profile["threads"])? {
        let tid = thread["tid"].as_str().context("thread without id")?;
        let tid: u32 = tid.split('.').next().unwrap_or_default().parse().context("thread id")?;
        let times: Vec<u64> = array(&thread["samples"]["time"])?
            .iter()
            .map(|time| Ok((time.as_f64().context("time")? * 1e6).round() as u64))
            .collect::<Result<_>>()?;
        if times.is_empty() {
            continue;
        }
        let raw = raw.get(&tid).with_context(|| format!("the recording has no thread {tid}"))?;
        let recorded: Vec<u64> = raw.iter().map(|sample| sample.time).collect();
        let matched = match_times(&times, &recorded)?;
        for (index, at) in matched.into_iter().enumerate() {
            let Some(raw) = at.map(|at| &raw[at]) else { continue };
            let frames = frames(truth, profile, thread, index, raw.time, natives)?;
            let name = frames.first().and_then(|frame| frame.name.clone());
            samples.push(Sample { tid, time: raw.time, ip: raw.ip, name, frames });
        }
    }
    Ok(samples)
}

/// Which recorded time each of the profile's is: all are shifted by the same amount, which is that of the first one's match.
fn match_times(times: &[u64], recorded: &[u64]) -> Result<Vec<Option<usize>>> {
    const NEAR: u64 = 1000;
    let find = |time: u64| {
        let behind = recorded.partition_point(|&other| other + NEAR < time);
        (behind < recorded.len() && recorded[behind].abs_diff(time) <= NEAR).then_some(behind)
    };
    let with = |begin: u64| -> Vec<Option<usize>> { times.iter().map(|time| find(begin + time - times[0])).collect() };
    let matched = |list: &Vec<Option<usize>>| list.iter().flatten().count();
    let best = recorded.iter().take(100).map(|&begin| with(begin)).max_by_key(matched).unwrap_or_default();
    if matched(&best) * 100 < times.len() * 99 {
        bail!("only {} of {} times of the profile are in the recording", matched(&best), times.len());
    }
    Ok(best)
}

/// The stack of a sample.
fn frames(
    truth: &Truth,
    profile: &Value,
    thread: &Value,
    sample: usize,
    time: u64,
    natives: &mut Natives,
) -> Result<Vec<Frame>> {
    let mut frames = Vec::new();
    let mut stack = thread["samples"]["stack"][sample].as_u64();
    while let Some(at) = stack {
        let index = |table: &str, column: &str, at: u64| thread[table][column][at as usize].as_u64();
        let frame = index("stackTable", "frame", at).context("stack without a frame")?;
        let function = index("frameTable", "func", frame).context("frame without a function")?;
        let name = index("funcTable", "name", function).context("function without a name")?;
        let name = thread["stringArray"][name as usize].as_str().context("name")?;
        let library = index("funcTable", "resource", function)
            .and_then(|resource| index("resourceTable", "lib", resource))
            .and_then(|library| profile["libs"][library as usize]["path"].as_str());
        frames.push(match library {
            // Jitdumps and perf maps pass for libraries.
            Some(path) if !path.ends_with(".dump") && !path.ends_with(".map") => {
                let address = index("frameTable", "address", frame);
                let kind = if script::is_region(path) { Kind::Guest } else { Kind::Native };
                Frame { name: address.and_then(|address| natives.name(path, address)), kind }
            }
            _ => {
                // Where samply knows nothing, the name is the address.
                let address = name.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                let native = address.is_some_and(|address| truth.code_at(address, time).is_none());
                let kind = if native && library.is_none() { Kind::Native } else { Kind::Guest };
                Frame { name: address.is_none().then(|| name.to_string()), kind }
            }
        });
        stack = index("stackTable", "prefix", at);
    }
    Ok(frames)
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("not an array in the profile")
}

/// The symbols of object files. samply leaves them to the viewer of the profile.
#[derive(Default)]
struct Natives(HashMap<PathBuf, Vec<(u64, u64, String)>>);

impl Natives {
    fn name(&mut self, path: &str, address: u64) -> Option<String> {
        let symbols = self.0.entry(path.into()).or_insert_with(|| read_symbols(path).unwrap_or_default());
        let behind = symbols.partition_point(|(start, ..)| *start <= address);
        let (start, size, name) = symbols[..behind].last()?;
        (address - start < *size).then(|| name.clone())
    }
}

fn read_symbols(path: &str) -> Result<Vec<(u64, u64, String)>> {
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(&*bytes)?;
    // Addresses are counted from the first segment.
    let first = file.segments().map(|segment| segment.address()).min().unwrap_or_default();
    let mut symbols: Vec<(u64, u64, String)> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.size() > 0)
        .filter_map(|symbol| {
            Some((symbol.address().checked_sub(first)?, symbol.size(), symbol.name().ok()?.to_string()))
        })
        .collect();
    symbols.sort();
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = r#"{
        "libs": [{"path": "/tmp/jit-7.dump"}, {"path": "/none/libc.so.6"}, {"path": "/tmp/perf-7.map"}],
        "threads": [{
            "tid": "7.1",
            "samples": {"stack": [2, 4, null], "time": [0.0, 1.0, 2.5]},
            "stackTable": {"frame": [0, 1, 2, 3, 2], "prefix": [null, 0, 1, null, 3]},
            "frameTable": {"func": [0, 1, 2, 3], "address": [16, 32, 48, -1]},
            "funcTable": {"name": [0, 1, 2, 3], "resource": [1, 0, 2, -1]},
            "resourceTable": {"lib": [0, 1, 2]},
            "stringArray": ["0x10", "with a blank", "of the map", "0x1004"]
        }]
    }"#;

    #[test]
    fn profiles_are_read() {
        let profile: Value = serde_json::from_str(PROFILE).unwrap();
        let truth = Truth::parse("pid\t7\ncode\t1\t1000\t10\t0\t0\tx\nend\n").unwrap();
        let raw = |time| RawSample { tid: 7, time, ip: time, chain: Vec::new() };
        let raw = BTreeMap::from([(7, vec![raw(5), raw(500_000), raw(1_500_000), raw(3_000_000)])]);
        let samples = samples(&truth, &profile, &raw, &mut Natives::default()).unwrap();
        let times: Vec<u64> = samples.iter().map(|sample| sample.time).collect();
        assert_eq!(times, [500_000, 1_500_000, 3_000_000]);
        let shown = |sample: &Sample| {
            sample.frames.iter().map(|frame| (frame.name.clone().unwrap_or_default(), frame.kind)).collect::<Vec<_>>()
        };
        let guest = |name: &str| (name.to_string(), Kind::Guest);
        assert_eq!(shown(&samples[0]), [guest("of the map"), guest("with a blank"), (String::new(), Kind::Native)]);
        assert_eq!(shown(&samples[1]), [guest("of the map"), guest("")], "code without a name is code of the guest");
        assert_eq!(samples[0].name.as_deref(), Some("of the map"));
        assert!(samples[2].frames.is_empty() && samples[2].name.is_none());
    }

    #[test]
    fn times_that_are_not_of_the_recording_are_an_error() {
        assert_eq!(match_times(&[3, 2003], &[0, 700_000, 702_000]).unwrap(), [Some(1), Some(2)]);
        assert!(match_times(&[0, 100_000, 200_000], &[0, 700_000, 1_400_000]).is_err());
    }
}
