//! The floor for memory that comes back from another core: what `bare` does, into chunks that a thread has just read. Chunks have
//! the size of this library's, the last one read is filled first, and the reader looks as often as this library's writer does
//! (`queue/pool`, `writer`).

use std::hint::black_box;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::contenders::bare::Parts;
use crate::contenders::Contender;
use crate::files::Files;
use crate::record::first_address;
use crate::task::Task;

const CHUNK: usize = 256 << 10;
/// Chunks at the start, and at least two for each thread.
const CHUNKS: usize = 16;
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A pass that reads at least this many bytes shortens the pause.
const BUSY_BYTES: usize = 64 << 10;

/// See the module's description.
pub struct Crossed {
    parts: Parts,
    pool: Arc<Pool>,
    /// Says how many bytes it has read.
    reader: JoinHandle<usize>,
}

struct Pool {
    chunks: Vec<Chunk>,
    chunk_size: usize,
    /// Numbers of chunks. The last one is used first.
    free: Mutex<Vec<usize>>,
    done: AtomicBool,
}

/// Apart from the others, because each is written to by another thread.
#[repr(align(128))]
struct Chunk {
    start: AtomicPtr<u8>,
    /// Bytes that the reader may read.
    filled: AtomicUsize,
    /// Its thread has gone to another one.
    full: AtomicBool,
}

impl Contender for Crossed {
    fn open(task: &Task) -> Self {
        let parts = Parts::new(task);
        let chunk_size = CHUNK.max(parts.size());
        let count = CHUNKS.max(2 * task.setting.threads);
        let chunk = |_| Chunk {
            start: AtomicPtr::new(Box::leak(vec![1_u8; chunk_size].into_boxed_slice()).as_mut_ptr()),
            filled: AtomicUsize::new(0),
            full: AtomicBool::new(false),
        };
        let pool = Arc::new(Pool {
            chunks: (0..count).map(chunk).collect(),
            chunk_size,
            free: Mutex::new((0..count).collect()),
            done: AtomicBool::new(false),
        });
        let of_reader = pool.clone();
        let reader = std::thread::Builder::new().name("crossed-reader".into()).spawn(move || of_reader.read());
        Crossed { parts, pool, reader: reader.expect("start a thread") }
    }

    fn caller(&self, thread: usize) -> impl FnMut() {
        let Crossed { parts, pool, reader } = self;
        let take = || loop {
            if let Some(number) = pool.free.lock().expect("lock").pop() {
                break &pool.chunks[number];
            }
            reader.thread().unpark();
            std::thread::yield_now();
        };
        let mut chunk = take();
        let mut at = 0;
        let mut addr = first_address(thread);
        move || {
            if pool.chunk_size - at < parts.size() {
                chunk.full.store(true, Ordering::Release);
                (chunk, at) = (take(), 0);
            }
            // SAFETY: the room is within the chunk, which is this thread's, and the reader reads only what lies before it.
            let room = unsafe { slice::from_raw_parts_mut(chunk.start.load(Ordering::Relaxed).add(at), parts.size()) };
            parts.lay_down(room, addr);
            addr = parts.next(addr);
            at += parts.size();
            chunk.filled.store(at, Ordering::Release);
        }
    }

    fn close(self, calls: usize) -> Files {
        self.pool.done.store(true, Ordering::Release);
        self.reader.thread().unpark();
        assert_eq!(self.reader.join().expect("the reader"), calls * self.parts.size(), "bytes read");
        Files::default()
    }
}

impl Pool {
    fn read(&self) -> usize {
        let mut read = vec![0; self.chunks.len()];
        let mut pause = SHORTEST_PAUSE;
        let mut total = 0;
        loop {
            let done = self.done.load(Ordering::Acquire);
            let mut bytes = 0;
            for (number, chunk) in self.chunks.iter().enumerate() {
                let full = chunk.full.load(Ordering::Acquire);
                let filled = chunk.filled.load(Ordering::Acquire);
                // SAFETY: up to `filled` nobody writes to the chunk until it is free again.
                let part = unsafe {
                    let start = chunk.start.load(Ordering::Relaxed).add(read[number]);
                    slice::from_raw_parts(start, filled - read[number])
                };
                black_box(part.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
                bytes += part.len();
                read[number] = filled;
                if full {
                    read[number] = 0;
                    chunk.filled.store(0, Ordering::Relaxed);
                    chunk.full.store(false, Ordering::Relaxed);
                    self.free.lock().expect("lock").push(number);
                }
            }
            total += bytes;
            if done {
                return total;
            }
            pause = if bytes >= BUSY_BYTES { pause / 2 } else { pause * 2 }.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            std::thread::park_timeout(pause);
        }
    }
}
