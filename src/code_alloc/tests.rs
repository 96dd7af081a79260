use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::arena::RESTING_MIN;
use super::*;
use crate::sys::sync::Mutex;

/// A source whose regions have addresses, but no memory.
#[derive(Default)]
struct Nowhere {
    regions: Mutex<BTreeMap<u64, Known>>,
    next: Mutex<u64>,
    /// Whether all requests are refused.
    fails: AtomicBool,
}

struct Known {
    len: u64,
    max_len: u64,
    discarded: Vec<bool>,
}

/// The distance between the two views of a region.
const APART: u64 = 1 << 40;

impl Nowhere {
    fn with<T>(&self, exec: u64, body: impl FnOnce(&mut Known, usize) -> T) -> Result<T> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::NoMemory);
        }
        let mut regions = self.regions.lock().unwrap();
        let (start, known) = regions.range_mut(..=exec).next_back().expect("a region");
        assert!(exec < start + known.len);
        Ok(body(known, ((exec - start) / CHUNK) as usize))
    }

    fn release(&self, region: Option<u64>) {
        if let Some(exec) = region {
            self.regions.lock().unwrap().remove(&exec).expect("a region");
        }
    }

    /// How many bytes of memory all regions have.
    fn len(&self) -> u64 {
        let regions = self.regions.lock().unwrap();
        let gone = |known: &Known| known.discarded.iter().filter(|gone| **gone).count() as u64 * CHUNK;
        regions.values().map(|known| known.len - gone(known)).sum()
    }

    fn count(&self) -> usize {
        self.regions.lock().unwrap().len()
    }

    /// Asserts that a piece lies inside its region, and that no memory of the piece is discarded.
    fn check(&self, piece: CodeRegion) {
        let regions = self.regions.lock().unwrap();
        let (start, known) = regions.range(..=piece.exec).next_back().expect("a region");
        let place = piece.exec - start;
        assert!(place + piece.size <= known.len, "{piece:x?} ends after its region");
        let chunks = (place / CHUNK) as usize..=((place + piece.size - 1) / CHUNK) as usize;
        assert!(!known.discarded[chunks].contains(&true), "{piece:x?} lies in memory that was given back");
        assert_eq!(piece.write, piece.exec + APART);
    }
}

impl Source for Nowhere {
    fn create(&self, wanted: &RegionOptions) -> Result<CodeRegion> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::NoMemory);
        }
        let mut next = self.next.lock().unwrap();
        let exec = if wanted.near == 0 { (1 << 30) + *next } else { (wanted.near & !0xfff) + *next };
        *next += wanted.max_size + 4096;
        let len = wanted.size.next_multiple_of(4096);
        let discarded = vec![false; wanted.max_size.div_ceil(CHUNK) as usize];
        let known = Known { len, max_len: wanted.max_size, discarded };
        assert!(self.regions.lock().unwrap().insert(exec, known).is_none());
        Ok(CodeRegion { exec, write: exec + APART, size: len })
    }

    fn grow(&self, exec: u64, size: u64) -> Result<()> {
        self.with(exec, |known, _| {
            assert!(size >= known.len && size <= known.max_len);
            known.len = size;
        })
    }

    fn discard(&self, exec: u64, size: u64) -> Result<()> {
        self.with(exec, |known, first| {
            known.discarded[first..first + (size / CHUNK) as usize].iter_mut().for_each(|gone| {
                assert!(!*gone, "given back twice");
                *gone = true;
            });
        })
    }

    fn provide(&self, exec: u64, size: u64) -> Result<()> {
        assert_eq!(size, CHUNK);
        self.with(exec, |known, first| {
            assert!(known.discarded[first], "never given back");
            known.discarded[first] = false;
        })
    }

    fn unregister(&self, _: u64, _: u64) {}
}

fn alloc(allocator: &Allocator, from: &Nowhere, size: u64) -> CodeRegion {
    allocator.alloc(from, Wanted::new(size, 0, 0, true).unwrap()).unwrap()
}

fn free(allocator: &Allocator, to: &Nowhere, exec: u64) {
    to.release(allocator.free(to, exec).unwrap());
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }

    /// Returns a random size. Most of the sizes are small, and few are very large.
    fn size(&mut self) -> u64 {
        let bits = [8, 8, 10, 10, 12, 14, 16, 18, 21][self.below(9) as usize];
        if self.below(20_000) == 0 {
            80 << 20
        } else {
            1 + self.below(1 << bits)
        }
    }
}

/// The seed of a test, which is printed if the test fails.
struct Seed(u64);

impl Seed {
    fn new() -> Seed {
        let given = std::env::var("JITSYM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let time = || std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        Seed(given.unwrap_or_else(|| u64::from(time()) + 1))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with JITSYM_TEST_SEED={}", self.0);
        }
    }
}

/// Allocates and frees pieces, with a source that fails at random. Each piece has the requested size and alignment, can be
/// reached from `near`, and overlaps no other piece. After all pieces are freed, one region is left.
#[test]
fn pieces_at_random() {
    const NEAR: u64 = 1 << 44;
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let mut pieces: BTreeMap<u64, u64> = BTreeMap::new();
    for step in 0..10_000_u64 {
        nowhere.fails.store(random.below(100) == 0, Ordering::Relaxed);
        // Alternates between mostly allocating and mostly freeing.
        let many = if step / 1000 % 2 == 0 { 60 } else { 40 };
        let number = random.below(pieces.len().max(1) as u64) as usize;
        let old = pieces.iter().nth(number).map(|(&exec, &len)| (exec, len));
        match (random.below(100), old) {
            (95.., Some((exec, len))) => {
                let new = 1 + random.below(len);
                allocator.shrink(exec, new).unwrap();
                assert_eq!(allocator.shrink(exec, len + 1), Err(Error::TooLarge));
                pieces.insert(exec, new.next_multiple_of(GRANULE));
            }
            (chance, Some((exec, _))) if chance >= many => {
                free(&allocator, &nowhere, exec);
                pieces.remove(&exec);
                assert_eq!(allocator.free(&nowhere, exec), Err(Error::Region));
            }
            _ => {
                let (size, alignment) = (random.size(), [0, 1, 16, 64, 128, 4096][random.below(6) as usize]);
                let near = if random.below(4) == 0 { NEAR } else { 0 };
                let Ok(piece) = allocator.alloc(&nowhere, Wanted::new(size, alignment, near, true).unwrap()) else {
                    assert!(nowhere.fails.load(Ordering::Relaxed));
                    continue;
                };
                nowhere.check(piece);
                assert!(piece.size >= size && piece.size < size + GRANULE && piece.exec % alignment.max(GRANULE) == 0);
                assert!(near == 0 || piece.exec.abs_diff(near) < 1 << 31);
                let before = pieces.range(..piece.exec).next_back();
                assert!(before.is_none_or(|(exec, len)| exec + len <= piece.exec), "{piece:x?} lies in {before:x?}");
                let after = pieces.range(piece.exec..).next();
                assert!(
                    after.is_none_or(|(exec, _)| piece.exec + piece.size <= *exec),
                    "{after:x?} lies in {piece:x?}"
                );
                pieces.insert(piece.exec, piece.size);
            }
        }
        if step % 500 == 0 {
            allocator.lock().unwrap().iter().for_each(Arena::check);
        }
    }
    nowhere.fails.store(false, Ordering::Relaxed);
    pieces.keys().for_each(|&exec| free(&allocator, &nowhere, exec));
    allocator.lock().unwrap().iter().for_each(Arena::check);
    assert_eq!(nowhere.count(), 1);
}

/// However often pieces are replaced, the memory use stays limited. The limit covers the bytes in use and the bytes that are
/// held back.
#[test]
fn freed_memory_comes_back() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let mut pieces: std::collections::VecDeque<u64> =
        (0..1000).map(|_| alloc(&allocator, &nowhere, 200).exec).collect();
    for _ in 0..100_000 {
        free(&allocator, &nowhere, pieces.pop_front().unwrap());
        pieces.push_back(alloc(&allocator, &nowhere, 200).exec);
    }
    assert!(nowhere.len() <= 3 << 20, "{} bytes for 256,000", nowhere.len());
}

/// The memory of freed code is reused late and in large amounts, because each reuse begins an epoch.
#[test]
fn freed_memory_rests() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let mut freed_at: BTreeMap<u64, u32> = BTreeMap::new();
    // Maps an address to the epoch in which the latest code at this address was freed. A real region also records these epochs.
    let mut marks: BTreeMap<u64, u32> = BTreeMap::new();
    let mut generation = 0;
    let mut pieces: Vec<u64> = (0..1000).map(|_| alloc(&allocator, &nowhere, 64).exec).collect();
    let mut random = Random(1);
    let least = (RESTING_MIN / 64 / 2) as u32;
    for now in 0..20 * least {
        let exec = pieces.swap_remove(random.below(1000) as usize);
        free(&allocator, &nowhere, exec);
        freed_at.insert(exec, now);
        marks.insert(exec, generation);
        let next = alloc(&allocator, &nowhere, 64).exec;
        assert!(freed_at.get(&next).is_none_or(|then| now - then >= least - 1), "used again at once");
        if marks.get(&next) == Some(&generation) {
            generation += 1;
        }
        pieces.push(next);
    }
    assert!(generation <= 20, "{generation} generations");
}

#[test]
fn what_is_empty_goes() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let large: Vec<u64> = (0..4).map(|_| alloc(&allocator, &nowhere, 60 << 20).exec).collect();
    let larger = alloc(&allocator, &nowhere, 100 << 20).exec;
    assert_eq!(nowhere.count(), 5);
    free(&allocator, &nowhere, larger);
    assert_eq!(nowhere.count(), 4);
    large.iter().for_each(|&exec| free(&allocator, &nowhere, exec));
    // The allocator keeps one region, but returns most of the region's memory.
    assert_eq!(nowhere.count(), 1);
    assert!(nowhere.len() <= 2 << 20, "{} bytes for nothing", nowhere.len());
    // The kept region is used for the next piece.
    alloc(&allocator, &nowhere, 60 << 20);
    assert_eq!(nowhere.count(), 1);
}

/// When a piece shrinks before it is used, later pieces can take the memory that is cut off.
#[test]
fn shrunk() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let first = alloc(&allocator, &nowhere, 4096);
    assert_eq!(allocator.shrink(first.exec, 0), Err(Error::SizeZero));
    assert_eq!(allocator.shrink(first.exec, 4097), Err(Error::TooLarge));
    assert_eq!(allocator.shrink(first.exec, u64::MAX), Err(Error::TooLarge));
    assert_eq!(allocator.shrink(first.exec + 64, 64), Err(Error::Region));
    allocator.shrink(first.exec, 65).unwrap();
    assert_eq!(allocator.shrink(first.exec, 129), Err(Error::TooLarge));
    // The second piece takes the memory that was cut off the first piece.
    let second = alloc(&allocator, &nowhere, 4096);
    assert_eq!(second.exec, first.exec + 128);
    allocator.shrink(first.exec, 1).unwrap();
    assert_eq!(alloc(&allocator, &nowhere, 64).exec, first.exec + 64);
    allocator.lock().unwrap().iter().for_each(Arena::check);
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |size, alignment| Wanted::new(size, alignment, 0, true).map(drop).unwrap_err();
    assert_eq!(refused(0, 0), Error::SizeZero);
    assert_eq!(refused((1 << 30) + 1, 0), Error::TooLarge);
    assert_eq!(refused(u64::MAX, 0), Error::TooLarge);
    assert_eq!(refused(1, 8192), Error::TooLarge);
    assert_eq!(refused(1, 3), Error::Alignment);
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    assert_eq!(allocator.free(&nowhere, 0), Err(Error::Region));
    let piece = alloc(&allocator, &nowhere, 1 << 30);
    assert_eq!(allocator.free(&nowhere, piece.exec - 64), Err(Error::Region));
    assert_eq!(allocator.free(&nowhere, piece.exec + (1 << 30)), Err(Error::Region));
}

/// If there is no new memory for a request, the allocator uses the memory that is held back.
#[test]
fn without_memory() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let piece = alloc(&allocator, &nowhere, FIRST_LEN);
    let wanted = Wanted::new(FIRST_LEN, 0, 0, true).unwrap();
    nowhere.fails.store(true, Ordering::Relaxed);
    assert_eq!(allocator.alloc(&nowhere, wanted), Err(Error::NoMemory));
    free(&allocator, &nowhere, piece.exec);
    assert_eq!(allocator.alloc(&nowhere, wanted).unwrap(), piece);
}

/// Once the sink for regions runs, code gets memory that profilers recognise.
#[test]
fn a_sink_that_comes_late() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let get = |named| allocator.alloc(&nowhere, Wanted::new(64, 0, 0, named).unwrap()).unwrap();
    let unnamed = get(false);
    let named = get(true);
    assert_eq!(nowhere.count(), 2);
    assert_eq!(get(true).exec, named.exec + 64);
    // If the sink ends, any region may be used.
    assert_eq!(get(false).exec, unnamed.exec + 64);
}

#[test]
fn threads() {
    const GRANULES: usize = 1 << 20;
    let seed = Seed::new();
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let taken: Vec<AtomicBool> = (0..GRANULES).map(|_| AtomicBool::new(false)).collect();
    let first = alloc(&allocator, &nowhere, 64).exec;
    let work = |number: u64| {
        let mut random = Random(seed.0 + number);
        let mut pieces: Vec<CodeRegion> = Vec::new();
        let mark = |piece: CodeRegion, now: bool| {
            let start = ((piece.exec - first) / GRANULE) as usize;
            for granule in &taken[start..start + (piece.size / GRANULE) as usize] {
                assert_ne!(granule.swap(now, Ordering::AcqRel), now, "{piece:x?} is two threads'");
            }
        };
        for _ in 0..5000 {
            if pieces.len() > 100 || random.below(2) == 0 && !pieces.is_empty() {
                let piece = pieces.swap_remove(random.below(pieces.len() as u64) as usize);
                mark(piece, false);
                free(&allocator, &nowhere, piece.exec);
            } else {
                let piece = alloc(&allocator, &nowhere, 1 + random.below(2000));
                mark(piece, true);
                pieces.push(piece);
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|number| drop(scope.spawn(move || work(number)))));
    allocator.lock().unwrap().iter().for_each(Arena::check);
}

/// Pieces for trampolines are allocated ahead. Only such pieces are freed as trampolines.
#[test]
fn trampolines() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let wanted = |size, named| Wanted { trampoline: true, ..Wanted::new(size, 0, 0, named).unwrap() };
    assert_eq!(allocator.spare(wanted(1, false)), None);
    let other = alloc(&allocator, &nowhere, 64).exec;
    let mut pieces = vec![allocator.alloc_ahead(&nowhere, wanted(23, true)).unwrap()];
    // Nobody can free a piece that has no owner yet, or shorten a trampoline.
    let first = pieces[0].exec;
    let in_use = || allocator.lock().unwrap().iter().map(Arena::in_use).sum::<u64>();
    let before = in_use();
    for number in 1..=SPARES as u64 {
        assert_eq!(allocator.free_trampoline(&nowhere, first + number * GRANULE), Ok(None));
        assert_eq!(allocator.free(&nowhere, first + number * GRANULE), Err(Error::Region));
    }
    assert_eq!((allocator.shrink(first, 1), in_use()), (Err(Error::Region), before));
    while let Some(piece) = allocator.spare(wanted(23, true)) {
        nowhere.check(piece);
        pieces.push(piece);
    }
    assert_eq!(pieces.len(), 1 + SPARES);
    assert!(pieces.windows(2).all(|pair| pair[0].exec != pair[1].exec && pair[0].size == GRANULE));
    let large = allocator.alloc_ahead(&nowhere, wanted(65, true)).unwrap();
    assert_eq!((large.size, allocator.spare(wanted(23, true))), (128, None));
    for exec in [other, other + 64 * 64, large.exec + 64, 0, 1] {
        assert_eq!(allocator.free_trampoline(&nowhere, exec), Ok(None));
    }
    pieces.push(large);
    for piece in pieces {
        let before = in_use();
        assert_eq!(allocator.free_trampoline(&nowhere, piece.exec), Ok(None));
        assert_eq!(in_use(), before - piece.size);
        assert_eq!((allocator.free_trampoline(&nowhere, piece.exec), in_use()), (Ok(None), before - piece.size));
    }
    assert_eq!(in_use(), 64);
    allocator.lock().unwrap().iter().for_each(Arena::check);
    free(&allocator, &nowhere, other);

    // Spare pieces without a file are of no use once the sink for regions runs. A forked child takes over the others.
    allocator.alloc_ahead(&nowhere, wanted(1, false)).unwrap();
    allocator.lock().unwrap().iter_mut().for_each(|arena| arena.named = false);
    allocator.spares.lock().unwrap().iter_mut().for_each(|spare| spare.named = false);
    assert_eq!(allocator.spare(wanted(1, true)), None);
    allocator.alloc_ahead(&nowhere, wanted(1, true)).unwrap();
    assert!((0..SPARES).all(|_| allocator.spare(wanted(1, true)).is_some()));
    assert_eq!(allocator.spare(wanted(1, true)), None);
    let child = Allocator::default();
    child.take_over(&allocator);
    assert_eq!(allocator.spare(wanted(1, false)), None);
    let piece = child.spare(wanted(1, false)).unwrap();
    assert_eq!(child.free_trampoline(&nowhere, piece.exec), Ok(None));
    assert_eq!(child.free(&nowhere, piece.exec), Err(Error::Region));
}

/// Outside of regions, trampolines are copies in private memory.
#[test]
fn copies_of_trampolines() {
    let (allocator, nowhere) = (Allocator::default(), Nowhere::default());
    let kind = Kind { target: 1, words: 0, gap: false };
    let wanted = |named| Wanted::for_trampoline(23, named, kind).unwrap();
    let piece = allocator.alloc_ahead(&nowhere, wanted(false)).unwrap();
    assert_eq!((piece.write, nowhere.count()), (piece.exec, 0));
    // A region needs pieces of its own, and so does another kind.
    let other = Wanted::for_trampoline(23, false, Kind { target: 2, ..kind }).unwrap();
    assert_eq!((allocator.spare(wanted(true)), allocator.spare(other)), (None, None));
    assert_eq!(allocator.alloc(&nowhere, wanted(true)).map(|piece| piece.write - piece.exec), Ok(APART));
    // The child does not use what the parent has allocated ahead, but can free the parent's trampolines once.
    let child = Allocator::default();
    child.take_over(&allocator);
    assert_eq!(child.spare(wanted(false)), None);
    for piece in [child.alloc(&nowhere, wanted(false)).unwrap(), piece] {
        assert_eq!(child.free_trampoline(&nowhere, piece.exec + 1), Ok(None));
        assert_eq!(child.copies.try_lock().unwrap().owned_len(piece.exec), Some(GRANULE));
        assert_eq!(child.free_trampoline(&nowhere, piece.exec), Ok(None));
        assert_eq!(child.copies.try_lock().unwrap().owned_len(piece.exec), None);
    }
    // So few kinds have pieces in advance that no search takes long.
    for target in 3..100 {
        let wanted = Wanted::for_trampoline(23, false, Kind { target, ..kind }).unwrap();
        child.alloc_ahead(&nowhere, wanted).unwrap();
    }
    assert_eq!(child.spares.lock().unwrap().len(), SPARES_MAX);
}
