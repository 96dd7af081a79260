//! Recordings that this machine cannot make: a real recording, with events of another kind in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::parts::{event, kind, word, Parts, DEFERRED, SAMPLE};
use super::refusals::recording;
use super::{inject, perf};
use crate::support::*;

/// Kinds of events.
const AUXTRACE: u32 = 71;
const TIME_CONV: u32 = 79;
/// Marks in a call chain, and the bit of an attribute that allows the second one.
const USER: u64 = -512i64 as u64;
const USER_DEFERRED: u64 = -640i64 as u64;
const DEFERS: u64 = 1 << 38;

/// In a recording of Intel PT, perf makes the samples when it reads the recording. So all functions get objects.
#[test]
fn samples_that_come_later() {
    let (dir, data, dump) = recording("aux", &["-k", "1"]);
    let new = dir.join("jit.data");
    let mut parts = Parts::read(&data);
    parts.events.retain(|event| kind(event) != SAMPLE);
    parts.write(&data);
    let output = run(&mut inject(&data, &new));
    assert!(stdout(&output).contains("a copy, because no sample is in"), "the control: {output:?}");
    parts.events.push(event(AUXTRACE, 0, &[0; 5]));
    parts.write(&data);
    let output = run(&mut inject(&data, &new));
    let bytes = fs::read(dump).expect("jitdump");
    let mut loads = jitsym_tool::objects::Loads::new();
    assert!(loads.add_jitdump(&bytes) && loads.all.len() > 3);
    let expected: BTreeSet<String> =
        loads.all.iter().map(|load| String::from_utf8_lossy(load.name).into_owned()).collect();
    let objects =
        fs::read_dir(dir.join("jit.data.objects")).expect("objects").map(|entry| entry.expect("entry").path());
    let symbols: String = objects.map(|object| stdout(&run(perf::command("nm").arg(object)))).collect();
    let found: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| Some(line.split_once(" t ").or(line.split_once(" T "))?.1.to_owned()))
        .collect();
    assert_eq!(found, expected, "{symbols}");
    let count = loads.all.len();
    assert!(
        stdout(&output).contains(&format!("{count} of {count} functions of 1 process, because perf finds")),
        "{output:?}"
    );
    let is_object = |event: &&Vec<u8>| event.windows(9).any(|part| part == b"/jitcode-");
    assert!(Parts::read(&new).events.iter().any(|event| is_object(&event)), "the objects are mapped");
}

/// Since perf 7, the call chain of a sample can be in an event of its own. The newest perf reads the recording.
#[test]
fn call_chains_that_come_later() {
    let (dir, data, _) = recording("deferred", &["-k", "1", "-g"]);
    let (new, plain) = (dir.join("jit.data"), dir.join("plain.data"));
    run(&mut inject(&data, &plain));
    let mut parts = Parts::read(&data);
    let attribute = word(&parts.head, 24) as usize;
    let flags = word(&parts.head, attribute + 40) | DEFERS;
    parts.head[attribute + 40..attribute + 48].copy_from_slice(&flags.to_ne_bytes());
    let mut all = Vec::new();
    for (cookie, sample) in parts.events.into_iter().enumerate() {
        // The sample has: address, process and thread, time, period, call chain.
        let words: Vec<u64> = (8..sample.len()).step_by(8).map(|at| word(&sample, at)).collect();
        let user = (kind(&sample) == SAMPLE).then(|| words[5..].iter().position(|&word| word == USER)).flatten();
        let Some(user) = user.map(|at| at + 5) else {
            all.push(sample);
            continue;
        };
        // The address itself is that of the sample: without it, only the callers tell of compiled code.
        let misc = u16::from_ne_bytes([sample[4], sample[5]]);
        let cookie = cookie as u64 + 1;
        let mut first = words[..user].to_vec();
        first[4] = (user - 5 + 2) as u64;
        first.extend([USER_DEFERRED, cookie]);
        all.push(event(SAMPLE, misc, &first));
        let mut deferred = vec![cookie, (words.len() - user) as u64];
        deferred.extend(&words[user..]);
        deferred.extend([words[1], words[2] + 1]);
        all.push(event(DEFERRED, misc, &deferred));
    }
    parts.events = all;
    parts.write(&data);
    run(&mut inject(&data, &new));
    let stacks = |data: &Path| -> BTreeSet<String> {
        let mut script = perf::of(perf::command(fetched("perf")), &[], "script");
        let text = stdout(&run(script.args(["--no-inline", "-F", "ip,sym", "-i"]).arg(data)));
        let name = |line: &str| line.trim().split_once(' ').map_or(String::new(), |(_, name)| name.to_owned());
        text.split("\n\n").map(|stack| stack.lines().map(name).collect::<Vec<_>>().join(";")).collect()
    };
    let (expected, found) = (stacks(&plain), stacks(&new));
    assert!(expected.iter().any(|stack| stack.contains("leaf_fp;")), "{expected:?}");
    assert_eq!(found, expected);
}

/// perf 5.9 and older tell less of how the processor's counter becomes the kernel's time.
#[test]
fn an_old_conversion() {
    let (dir, data, dump) = recording("conversion", &[]);
    let new = dir.join("jit.data");
    // The times of the dump as times of a counter that counts two for each nanosecond.
    let mut bytes = fs::read(&dump).expect("jitdump");
    let mut at = 40;
    while at < bytes.len() {
        let time = 2 * word(&bytes, at + 8);
        bytes[at + 8..at + 16].copy_from_slice(&time.to_ne_bytes());
        at += u32::from_ne_bytes(bytes[at + 4..at + 8].try_into().expect("4 bytes")) as usize;
    }
    bytes[32..40].copy_from_slice(&1u64.to_ne_bytes());
    fs::write(&dump, bytes).expect("jitdump");
    let whole = Parts::read(&data);
    let with = |words: Option<&[u64]>| {
        let events = words.map(|words| event(TIME_CONV, 0, words)).into_iter().chain(whole.events.iter().cloned());
        Parts { head: whole.head.clone(), events: events.collect() }.write(&data);
        let output = try_run(&mut inject(&data, &new));
        (output.status.code() == Some(0), format!("{output:?}"))
    };
    // Early times, because the two clocks differ: only the reading is tested.
    let (shift, mult, zero) = (40, 1, 0);
    assert!(with(None).1.contains("does not tell how they become times"), "the control");
    for words in [&[shift, mult, zero][..], &[shift, mult, zero, 0, 0, 1]] {
        let (is_good, text) = with(Some(words));
        assert!(is_good && !text.contains("does not tell"), "{text}");
    }
    assert!(
        with(Some(&[shift, mult, zero, 0, 0, 0])).1.contains("does not tell"),
        "the kernel says that it does not hold"
    );
    assert!(with(Some(&[shift, 0, zero])).1.contains("does not tell"), "no factor");
}
