//! What a registration costs the calling thread, next to copying the same bytes and to writing the record with one system
//! call, as most runtimes do. `cargo bench`.
//!
//! The machine's speed drifts, so the candidates take turns within each round, and what counts is the ratio of a round's
//! figures: the table shows the median and the quartiles over all rounds.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jitsym::{Bytes, Code, FramePointer, Options, Session, Unwind};

const ROUNDS: usize = 15;
/// Registrations timed together, because the clock costs as much as one of them.
const BATCH: usize = 16;
const BATCHES: usize = 200;
/// Pause after a batch: about 100,000 registrations a second, far more than compilers make.
const PAUSE: Duration = Duration::from_micros(160);
/// Records before and after the code, and the name, of the same size as ours.
const AROUND: usize = 250;

fn main() {
    let dir = std::env::temp_dir().join(format!("jitsym-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("scratch directory");
    println!("nanoseconds a registration, median of {ROUNDS} rounds, and its ratio to each other way [quartiles]");
    println!(
        "{:>8} {:>8} {:>8} {:>8}   {:>20}   {:>20}",
        "bytes", "jitsym", "memcpy", "write", "to memcpy", "to write"
    );
    for size in [64, 512, 4096] {
        measure(&dir, size);
    }
    std::fs::remove_dir_all(&dir).expect("remove the scratch directory");
}

fn measure(dir: &Path, size: usize) {
    let options = Options { map_dir: Some(dir.to_owned()), jitdump_dir: Some(dir.to_owned()), ..Options::default() };
    let session = Session::open(&options).expect("session");
    let code = vec![0x90_u8; size];
    let mut next_addr = 0x7000_0000_0000_u64;
    let mut register = || {
        let unwind = Unwind::FramePointer(FramePointer::default());
        let bytes = Bytes::Here(&code);
        let code = Code::new(next_addr, size as u64, "a_function_with_a_name_of_about_fifty_bytes(int, int)");
        next_addr += size as u64;
        session.register(&Code { bytes, unwind, ..code }).expect("register");
    };

    let record = vec![0x90_u8; size + AROUND];
    // As far apart as the chunks that jitsym writes to.
    let mut copies = vec![0_u8; 1 << 20];
    let mut at = 0;
    let mut copy = || {
        if at + record.len() > copies.len() {
            at = 0;
        }
        copies[at..at + record.len()].copy_from_slice(std::hint::black_box(&record));
        at += record.len();
        std::hint::black_box(&copies);
    };

    let file: Mutex<File> =
        Mutex::new(OpenOptions::new().create(true).append(true).open(dir.join("peer")).expect("file"));
    let mut write = || file.lock().expect("lock").write_all(&record).expect("write");

    let mut rounds: Vec<[f64; 3]> = Vec::new();
    for _ in 0..=ROUNDS {
        rounds.push([time(&mut register), time(&mut copy), time(&mut write)]);
    }
    // The first one warms up.
    rounds.remove(0);
    session.close().expect("close");

    let column = |value: &dyn Fn(&[f64; 3]) -> f64| {
        let mut column: Vec<f64> = rounds.iter().map(value).collect();
        column.sort_by(f64::total_cmp);
        [column[ROUNDS / 4], column[ROUNDS / 2], column[3 * ROUNDS / 4]]
    };
    let median = |index: usize| column(&|round| round[index])[1];
    let ratio = |peer: usize| {
        let [low, middle, high] = column(&|round| round[0] / round[peer]);
        format!("{middle:.2} [{low:.2}-{high:.2}]")
    };
    println!(
        "{size:>8} {:>8.0} {:>8.0} {:>8.0}   {:>20}   {:>20}",
        median(0),
        median(1),
        median(2),
        ratio(1),
        ratio(2)
    );
}

/// The median over batches, so that a batch which lost the processor does not count.
fn time(body: &mut dyn FnMut()) -> f64 {
    let mut batches: Vec<f64> = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..BATCH {
            body();
        }
        batches.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        let end = Instant::now() + PAUSE;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}
