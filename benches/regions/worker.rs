//! One measurement, in a process of its own: `worker LIBRARY DIRECTORY TASK...`.

use std::ffi::CString;
use std::fs::DirEntry;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use ::jitsym::capi::types::jitsym_line;

use crate::clock::{ticks, Scale};
use crate::interface::{anonymous, make_executable, unmap, Session};
use crate::statistics::{mean, percentile, shuffle};
use crate::{running, Figures};

/// The first word of a command line that is a worker's.
pub const WORKER: &str = "--worker";

/// As many calls are timed together.
const BATCH: usize = 16;
const BATCHES: usize = 1500;
const WARM_UP: usize = 400;
/// From one batch to the next: 100,000 calls a second.
const PERIOD: Duration = Duration::from_micros(10 * BATCH as u64);

pub fn run(words: &[String]) {
    let words: Vec<&str> = words.iter().map(|word| &**word).collect();
    let [library, dir, ref task @ ..] = words[..] else { panic!("a worker without a task: {words:?}") };
    let session = Session::open(Path::new(library), Path::new(dir));
    let number = |word: &str| word.parse().expect("number");
    let figures = match task {
        ["calls", kind, size] => calls(&session, kind, number(size)),
        ["writer", kind, count, order, lines] => {
            writer(&session, Path::new(dir), kind, number(count), order, number(lines))
        }
        ["memory", kind, size, names] => memory(&session, kind, number(size), *names == "named"),
        ["running"] => running::run(&session),
        _ => panic!("no such task: {task:?}"),
    };
    for (name, value) in figures {
        println!("{name} {value}");
    }
}

/// Where code of so many bytes in all is registered.
fn place(session: &Session, kind: &str, size: u64) -> u64 {
    let size = size.next_multiple_of(64 << 10);
    match kind {
        "created" => session.create(size).exec,
        "adopted" => {
            let memory = anonymous(size);
            make_executable(memory, size);
            session.adopt(memory, size);
            memory
        }
        _ => anonymous(size),
    }
}

/// Everything that was registered is in the right place.
fn check(session: &Session, kind: &str, calls: usize) {
    session.flush();
    let stats = session.stats();
    let in_regions = if kind == "without" { 0 } else { calls as u64 };
    assert_eq!((stats.registered, stats.region_code), (calls as u64, in_regions), "registrations");
    assert_eq!((stats.dropped, stats.write_errors, stats.region_left_out, stats.region_late), (0, 0, 0, 0));
}

/// Waits without giving up the processor, as a compiler that works on the next function does not either.
struct Pace {
    period: u64,
    next: u64,
}

impl Pace {
    fn new(scale: &Scale) -> Pace {
        Pace { period: scale.ticks(PERIOD), next: ticks() }
    }

    fn wait(&mut self) {
        self.next = (self.next + self.period).max(ticks());
        while ticks() < self.next {
            std::hint::spin_loop();
        }
    }
}

/// What a call takes.
fn calls(session: &Session, kind: &str, size: usize) -> Figures {
    let scale = Scale::calibrate();
    let calls = (WARM_UP + BATCHES + BATCHES) * BATCH;
    let mut addr = place(session, kind, (calls * size) as u64);
    let (bytes, name) = (vec![0x90; size], c"Namespace::Class::method(std::string const&, int) [jit]");
    let mut call = || {
        session.register(addr, &bytes, name, &[]);
        addr += size as u64;
    };
    let (mut batches, mut singles) = (vec![1; BATCHES], vec![1; BATCHES * BATCH]);
    let mut pace = Pace::new(&scale);
    for number in 0..WARM_UP + BATCHES {
        let start = ticks();
        (0..BATCH).for_each(|_| call());
        if number >= WARM_UP {
            batches[number - WARM_UP] = ticks() - start;
        }
        pace.wait();
    }
    for batch in singles.chunks_mut(BATCH) {
        for single in batch {
            let start = ticks();
            call();
            *single = ticks() - start;
        }
        pace.wait();
    }
    check(session, kind, calls);
    let sorted = |ticks: &[u64], calls: usize| {
        let mut sorted: Vec<f64> = ticks.iter().map(|&ticks| scale.net_ns(ticks, calls)).collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (batches, singles) = (sorted(&batches, BATCH), sorted(&singles, 1));
    Figures::from([
        ("p50".into(), percentile(&batches, 50.0)),
        ("mean".into(), mean(&batches)),
        ("p99".into(), percentile(&singles, 99.0)),
    ])
}

/// Processor time in nanoseconds.
fn cpu_ns(clock: libc::clockid_t) -> f64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is writable, and filled when the call succeeds.
    let time = unsafe {
        assert_eq!(libc::clock_gettime(clock, time.as_mut_ptr()), 0);
        time.assume_init()
    };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// What all threads but this one have taken.
fn others_ns() -> f64 {
    cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// What it takes to get memory for a function, to fill it, to make it executable, and to give it back, while a thousand others live.
fn memory(session: &Session, kind: &str, size: usize, is_named: bool) -> Figures {
    const LIVE: usize = 1000;
    const COUNT: usize = 50_000;
    let bytes = vec![0x90; size];
    let fill = |addr: u64| {
        // SAFETY: the memory is as long, and nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, size) };
    };
    let register = |addr: u64| if is_named { session.register(addr, &bytes, c"a_function", &[]) } else { 0 };
    let mapped = (size as u64).next_multiple_of(4096);
    let make = || match kind {
        "allocated" => {
            let piece = session.alloc(size as u64);
            fill(piece.write);
            (piece.exec, register(piece.exec))
        }
        _ => {
            let addr = anonymous(mapped);
            fill(addr);
            make_executable(addr, mapped);
            (addr, register(addr))
        }
    };
    let end = |(addr, id): (u64, u64)| match kind {
        "allocated" => session.free(addr),
        _ => {
            if is_named {
                session.unregister(id);
            }
            unmap(addr, mapped);
        }
    };
    let scale = Scale::calibrate();
    let mut live: Vec<(u64, u64)> = (0..LIVE).map(|_| make()).collect();
    let start = ticks();
    for number in 0..COUNT {
        end(std::mem::replace(&mut live[number % LIVE], make()));
    }
    let ns = scale.net_ns(ticks() - start, 1) / COUNT as f64;
    let stats = session.stats();
    assert_eq!((stats.dropped, stats.write_errors), (0, 0));
    Figures::from([("ns".into(), ns), ("generations".into(), stats.region_generations as f64)])
}

/// What the background thread takes, and what it writes.
fn writer(session: &Session, dir: &Path, kind: &str, count: usize, order: &str, lines: usize) -> Figures {
    const SIZE: usize = 64;
    let text = (count * SIZE) as u64;
    let start = place(session, kind, text);
    let mut places: Vec<usize> = (0..count).collect();
    match order {
        "down" => places.reverse(),
        "random" => shuffle(&mut places, &mut 1),
        _ => {}
    }
    let names: Vec<CString> = (0..count)
        .map(|number| CString::new(format!("Class{}::method{number}(int)", number % 97)).expect("name"))
        .collect();
    let row = |number: usize| jitsym_line {
        offset: (number * SIZE / lines) as u32,
        line: 10 + number as u32,
        column: 1,
        reserved: 0,
        file: c"/home/user/project/source/file.src".as_ptr(),
    };
    let (bytes, rows): (_, Vec<jitsym_line>) = ([0x90; SIZE], (0..lines).map(row).collect());
    let scale = Scale::calibrate();
    session.flush();
    let begin = others_ns();
    let mut pace = Pace::new(&scale);
    for batch in places.chunks(BATCH) {
        for &place in batch {
            session.register(start + (place * SIZE) as u64, &bytes, &names[place], &rows);
        }
        pace.wait();
    }
    session.flush();
    let ns = others_ns() - begin;
    check(session, kind, count);
    let sizes = || {
        let files = std::fs::read_dir(dir).expect("directory").flatten();
        let is_object = |entry: &DirEntry| entry.path().extension().is_some_and(|extension| extension == "so");
        let blocks = |entry: DirEntry| std::os::unix::fs::MetadataExt::blocks(&entry.metadata().expect("file"));
        let bytes: u64 = files.filter(is_object).map(|entry| blocks(entry) * 512).sum();
        // The code itself is not counted.
        bytes.saturating_sub(text.next_multiple_of(64 << 10)) as f64 / count as f64
    };
    let meanwhile = sizes();
    session.close();
    Figures::from([("ns".into(), ns / count as f64), ("meanwhile".into(), meanwhile), ("bytes".into(), sizes())])
}
