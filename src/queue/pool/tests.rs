use super::*;
use crate::queue::chunk::tests::event;
use crate::queue::chunk::BODY_MAX;
use crate::queue::record::EventKind;

fn pool(max_memory: usize) -> Pool {
    let pool = Pool::new(max_memory).unwrap();
    assert!(!pool.is_open() && pool.take(FIRST_SIZE).is_none() && pool.take_new(FIRST_SIZE).is_none());
    assert!(pool.open(None).is_none() && pool.is_open());
    pool
}

#[test]
fn what_was_used_last_is_used_first() {
    let pool = pool(64 << 20);
    let (small, a, b) = (pool.take(FIRST_SIZE), pool.take_new(CHUNK_SIZE), pool.take_new(CHUNK_SIZE));
    let [small, a, b] = [small, a, b].map(|cursor| cursor.unwrap().chunk());
    assert!(a != b && small != a && small != b);
    assert_eq!(pool.bytes_used(), (FIRST_SIZE + 2 * CHUNK_SIZE) as u64);
    for chunk in [b, a, small] {
        pool.recycle(chunk);
    }
    // A small chunk is used only when no other chunk is free.
    for expected in [a, b, small] {
        let last = pool.take(FIRST_SIZE).unwrap();
        assert_eq!(last.chunk(), expected);
        assert!(last.chunk().serial() > 3);
    }
}

/// The writer enlarges one chunk at a time, so a thread that needs a chunk at that moment finds another free chunk.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn free_chunks_stay_free_while_some_are_made_larger() {
    for _ in 0..100 {
        let pool = pool(64 << 20);
        pool.ask_for(FIRST_SIZE);
        pool.replenish(16);
        pool.ask_for(CHUNK_SIZE);
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..8).for_each(|_| pool.replenish(16));
                is_done.store(true, Ordering::Relaxed);
            });
            while !is_done.load(Ordering::Relaxed) {
                assert!(pool.count_free() > 1);
                let cursor = pool.take_as_it_is(0).expect("a free chunk");
                pool.recycle(cursor.chunk());
            }
        });
    }
}

#[test]
fn a_chunk_that_is_too_small_is_left_where_it_is() {
    let pool = pool(64 << 20);
    let small = FIRST_SIZE - 192;
    assert!(pool.take_as_it_is(small + 1).is_none());
    let first = pool.take_as_it_is(small).unwrap();
    assert_eq!(first.chunk().size(), FIRST_SIZE);
    assert!(first.room_len() >= Some(small) && pool.take_as_it_is(0).is_none());
}

#[test]
fn it_is_small_until_threads_ask_for_more() {
    let pool = pool(64 << 20);
    (0..8).for_each(|_| pool.replenish(1));
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (FIRST_SIZE as u64, 0));
    let first = pool.take(FIRST_SIZE).unwrap().chunk();
    pool.replenish(1);
    assert_eq!(pool.bytes_held(), 2 * FIRST_SIZE as u64, "the next thread finds one");
    pool.recycle(first);
    let larger = pool.take(4 * FIRST_SIZE).unwrap().chunk();
    assert_eq!((larger, larger.size(), pool.bytes_held()), (first, 4 * FIRST_SIZE, 5 * FIRST_SIZE as u64));
    pool.ask_for(4 * FIRST_SIZE);
    (0..8).for_each(|_| pool.replenish(1));
    assert_eq!(pool.bytes_held() as usize, (5 + 3 * 8) * FIRST_SIZE, "{LOW} are free");
    pool.ask_for(CHUNK_SIZE);
    (0..8).for_each(|_| pool.replenish(1));
    pool.recycle(larger);
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (4 << 20, 0), "all are whole");
    pool.forget_asked();
    pool.rest();
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (CHUNK_SIZE as u64, 0));
    pool.shrink();
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (0, 0));
    pool.rest();
    assert_eq!(pool.bytes_held(), FIRST_SIZE as u64);
}

#[test]
fn the_pool_grows_to_its_bound_and_back() {
    let pool = pool(8 << 20);
    let mut taken = Vec::new();
    while let Some(cursor) = pool.take(CHUNK_SIZE).or_else(|| pool.take_new(CHUNK_SIZE)) {
        taken.push(cursor.chunk());
    }
    assert_eq!(taken.len(), 32);
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (8 << 20, 8 << 20));
    assert!(pool.is_low() && pool.is_ample() && !pool.grow(FIRST_SIZE) && pool.take_large(BODY_MAX + 1).is_none());
    taken.into_iter().for_each(|chunk| pool.recycle(chunk));
    // The attempt to take a large chunk has set `cramped`.
    assert!(pool.take_cramped() && !pool.take_cramped());
    pool.make_way();
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (4 << 20, 0));
    assert!(pool.take_large(4 << 20).is_none() && pool.take_large((4 << 20) - 1000).is_some());
}

/// Small chunks may use all the memory that is allowed. Once the writer has freed small chunks in its next round, a thread can
/// get a larger chunk.
#[test]
fn small_chunks_make_way_for_a_larger_one() {
    let pool = pool(64 << 20);
    while pool.grow(4 * FIRST_SIZE) {}
    // The chunk that `open` made has only `FIRST_SIZE` bytes, so a few more chunks of this size fit into the remaining room.
    while pool.grow(FIRST_SIZE) {}
    assert!(pool.bytes_held() > (64 << 20) - CHUNK_SIZE as u64);
    assert!(pool.take(CHUNK_SIZE).is_none() && pool.take_new(FIRST_SIZE).is_none() && pool.take_cramped());
    pool.make_way();
    assert_eq!(pool.take(CHUNK_SIZE).unwrap().chunk().size(), CHUNK_SIZE);
}

#[test]
fn it_is_shut_when_every_chunk_has_come_home() {
    let pool = pool(8 << 20);
    let (a, b) = (pool.take(FIRST_SIZE).unwrap().chunk(), pool.take_large(1 << 20).unwrap().chunk());
    pool.recycle(a);
    assert!(!pool.shut() && pool.is_open());
    pool.recycle(b);
    assert!(pool.shut() && !pool.is_open());
    assert_eq!((pool.bytes_held(), pool.bytes_used()), (0, 0));
    let none = |size| pool.take(size).is_none() && pool.take_new(size).is_none();
    assert!(none(FIRST_SIZE) && none(CHUNK_SIZE) && pool.take_large(1 << 20).is_none());
    let dir = std::env::temp_dir();
    assert_eq!(pool.open(Some(&dir)), None);
    assert_eq!(pool.memory().state(), crate::queue::status::SpoolState::Shared);
    let again = pool.take(FIRST_SIZE).unwrap().chunk();
    assert_eq!((again.committed(), again.size()), (0, FIRST_SIZE));
    pool.recycle(again);
    let larger = pool.take(CHUNK_SIZE).unwrap().chunk();
    assert_eq!((larger, larger.size()), (again, CHUNK_SIZE));
    pool.recycle(larger);
    assert!(pool.shut());
    assert_eq!(pool.memory().state(), crate::queue::status::SpoolState::None);
}

#[test]
fn large_records_come_and_go() {
    let pool = pool(8 << 20);
    assert!(!pool.can_hold(4 << 20) && pool.can_hold(3 << 20));
    let mut cursor = pool.take_large(5 << 20).unwrap();
    cursor.room().unwrap()[..5 << 20].fill(7);
    cursor.commit(event(EventKind::Load, 1, 5 << 20));
    assert!(pool.take_large(3 << 20).is_none());
    assert_eq!(pool.bytes_held() as usize, (5 << 20) + CHUNK_SIZE + FIRST_SIZE);
    pool.recycle(cursor.chunk());
    assert_eq!(pool.bytes_held(), FIRST_SIZE as u64);
    let again = pool.take_large(5 << 20).unwrap();
    assert_eq!(again.chunk(), cursor.chunk());
    assert_eq!((again.chunk().committed(), again.chunk().consumed()), (0, 0));
}

#[test]
fn threads_never_get_the_same_chunk() {
    let pool = pool(8 << 20);
    while pool.grow(FIRST_SIZE) {}
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    let Some(mut cursor) = pool.take(FIRST_SIZE) else { continue };
                    let room = cursor.room().unwrap();
                    room[0] = thread;
                    std::hint::black_box(&mut *room);
                    assert_eq!(room[0], thread);
                    pool.recycle(cursor.chunk());
                }
            });
        }
    });
    assert_eq!(pool.bytes_used(), 0);
    assert_eq!(std::iter::from_fn(|| pool.take(FIRST_SIZE)).count(), 32);
}
