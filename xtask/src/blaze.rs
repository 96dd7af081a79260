//! blazesym as a reader: names for the addresses of a process that lives, through its perf map or the
//! files of its regions.

use anyhow::Result;
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use blazesym::Pid;

use crate::matrix::Outcome;
use crate::perf::{Graph, Mode, Recording};
use crate::program::Written;
use crate::score::{self, Frame, Kind, Sample};
use crate::truth::{Truth, Unwind};
use crate::{raw, script};

/// The ways to use it.
pub const MODES: &[Mode] =
    &[Mode::new("map", Graph::FramePointers, Written::Map), Mode::new("region", Graph::FramePointers, Written::Region)];

/// Asks blazesym about the addresses of a recording, whose program still lives.
pub fn measure(recording: &Recording) -> Result<Outcome> {
    let truth = &recording.truth;
    let raw = raw::samples(&recording.data)?;
    let mut addresses: Vec<u64> = raw.iter().flat_map(|sample| &sample.chain).copied().collect();
    addresses.extend(raw.iter().map(|sample| sample.ip));
    addresses.sort_unstable();
    addresses.dedup();
    let names = names(truth.pid, &addresses);
    let frame = |time: u64, address: u64| {
        let (name, module) = lookup(&addresses, &names, address);
        Frame { name, kind: kind(truth, time, address, module) }
    };
    let samples: Vec<Sample> = raw
        .iter()
        .map(|sample| Sample {
            tid: sample.tid,
            time: sample.time,
            ip: sample.ip,
            name: lookup(&addresses, &names, sample.ip).0,
            frames: sample.chain.iter().map(|&address| frame(sample.time, address)).collect(),
        })
        .collect();
    let whole = matches!(truth.unwind()?, Unwind::Both | Unwind::FramePointers);
    Ok(Outcome::of(score::score(truth, &samples, whole)))
}

type Named = Option<(String, Option<String>)>;

/// Name and object file of each address. One after another, since blazesym gives no answer at all if one cannot be looked up.
fn names(pid: u32, addresses: &[u64]) -> Vec<Named> {
    let symbolizer = Symbolizer::new();
    let source = Source::Process(Process::new(Pid::from(pid)));
    let named = |&address: &u64| match symbolizer.symbolize_single(&source, Input::AbsAddr(address)).ok()? {
        Symbolized::Sym(symbol) => {
            let module = symbol.module.as_ref().map(|module| module.to_string_lossy().into_owned());
            Some((symbol.name.to_string(), module))
        }
        Symbolized::Unknown(_) => None,
    };
    addresses.iter().map(named).collect()
}

fn lookup<'n>(addresses: &[u64], names: &'n [Named], address: u64) -> (Option<String>, Option<&'n str>) {
    match addresses.binary_search(&address).ok().and_then(|at| names[at].as_ref()) {
        Some((name, module)) => (Some(name.clone()), module.as_deref()),
        None => (None, None),
    }
}

fn kind(truth: &Truth, time: u64, address: u64, module: Option<&str>) -> Kind {
    let is_ours = module.is_some_and(|module| module.ends_with(".map") || script::is_region(module));
    match module {
        Some(_) if !is_ours => Kind::Native,
        _ if is_ours || truth.code_at(address, time).is_some() => Kind::Guest,
        _ => Kind::Native,
    }
}
