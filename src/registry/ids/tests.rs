use super::*;
use crate::registry::{Home, Live};

#[test]
fn an_id_lives_once() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..5000 {
        let id = id_pool.take(&ids, 0x1000, 40, false).unwrap();
        assert!(seen.insert(id.0));
        assert_eq!(ids.size_of(id), Some(40));
        assert!(ids.retire(id) && ids.size_of(id).is_none() && !ids.retire(id));
        ids.recycle(id);
    }
    assert!(ids.fresh.load(Ordering::Relaxed) < 200, "slots are used again");
    assert!(ids.size_of(Id(0)).is_none() && !ids.retire(Id(0)) && !ids.retire(Id(u64::MAX)));
}

/// A slot can have two billion ids, one after another, and never has the same id twice.
#[test]
fn a_slot_ends_before_its_ids_begin_anew() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    let first: Vec<Id> = (0..BATCH).map(|_| id_pool.take(&ids, 0x1000, 40, false).unwrap()).collect();
    let mut seen: std::collections::HashSet<u64> = first.iter().map(|id| id.0).collect();
    for &id in &first {
        assert!(ids.retire(id));
        // Sets the generation of the slot to a high number, so that only a few ids of the slot are left.
        ids.place(split(id).1).unwrap().word.store(word_of(LAST - 6, 0), Ordering::Relaxed);
        ids.recycle(id);
    }
    let mut of_them = 0;
    for round in 0..10 * BATCH {
        let id = id_pool.take(&ids, 0x1000, 40, false).unwrap();
        assert!(seen.insert(id.0), "{:x} is given out again", id.0);
        of_them += usize::from(split(id).1 < BATCH as u32);
        if round % 5 == 0 {
            id_pool.put_back(&ids, id);
        } else {
            assert!(ids.retire(id));
            ids.recycle(id);
        }
    }
    assert_eq!(of_them, 3 * BATCH, "each has three ids left");
}

#[test]
fn slots_fill_segments_without_overlap() {
    let mut expected = (0, 0);
    for slot in 0..100_000 {
        let place = Ids::locate(slot);
        if place != expected {
            assert_eq!((expected.1, place), ((FIRST_SEGMENT as usize) << expected.0, (expected.0 + 1, 0)));
        }
        expected = (place.0, place.1 + 1);
    }
    assert!(Ids::locate(u32::MAX).0 >= SEGMENTS, "the last slots do not exist, and are refused");
    assert!(Ids::new().place_or_new(u32::MAX).is_none());
}

#[test]
fn what_was_not_used_is_given_back() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    let id = id_pool.take(&ids, 0x1000, 40, false).unwrap();
    id_pool.put_back(&ids, id);
    id_pool.give_back(&ids);
    let mut other = IdPool::new();
    let again = other.take(&ids, 0x1000, 1, false).unwrap();
    assert_eq!(again.0 as u32, id.0 as u32);
    assert_ne!(again, id);
    assert_eq!(ids.fresh.load(Ordering::Relaxed), BATCH as u32);
}

#[test]
fn slots_of_a_whole_cache_are_used_again() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    for _ in 0..10 {
        let all: Vec<Id> = (0..20_000).map(|_| id_pool.take(&ids, 0x1000, 1, false).unwrap()).collect();
        for id in all {
            assert!(ids.retire(id));
            ids.recycle(id);
        }
    }
    assert!(ids.fresh.load(Ordering::Relaxed) <= 20_000 + 2 * BATCH as u32);
}

#[test]
fn only_one_thread_retires() {
    let ids = Ids::new();
    let mut id_pool = IdPool::new();
    let all: Vec<Id> = (0..2000).map(|_| id_pool.take(&ids, 0x1000, 40, false).unwrap()).collect();
    let won: usize = std::thread::scope(|scope| {
        let race = || all.iter().filter(|&&id| ids.retire(id)).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(won, all.len());
}

#[test]
fn an_id_remembers_what_is_to_be_read_and_where() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    let id = id_pool.take(&ids, 0x1000, 40, true).unwrap();
    assert!(ids.is_unread(id));
    assert_eq!(ids.size_of(id), Some(40));
    ids.set_read(id);
    assert!(!ids.is_unread(id));
    assert_eq!(ids.move_to(id, 0x2000, false), Some(0x1000));
    assert!(!ids.is_unread(id));
    assert_eq!(ids.move_to(id, 0x3000, true), Some(0x2000));
    assert!(ids.is_unread(id) && ids.retire(id) && !ids.is_unread(id) && !ids.retire(id));
    assert_eq!(ids.move_to(id, 0x4000, false), None);
}

#[test]
fn unused_slots_are_in_memory_before_they_are_taken() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    while ids.fresh.load(Ordering::Relaxed) < 5 * AHEAD {
        ids.prepare();
        let from = ids.fresh.load(Ordering::Relaxed);
        let pages: Vec<u8> = (from..from + ahead(from)).step_by(IN_A_PAGE).map(|slot| residency(&ids, slot)).collect();
        assert!(pages.iter().all(|&page| page == 1), "{pages:?}");
        for _ in 0..ahead(from) - 100 {
            id_pool.take(&ids, 0x1000, 40, false).unwrap();
        }
    }
    assert!(ids.segments[8].load(Ordering::Relaxed).is_null());
    assert!((0..ids.fresh.load(Ordering::Relaxed)).all(|slot| ids.place(slot).is_some()));
}

#[test]
fn a_child_has_the_ids_of_live_code_and_no_other() {
    let (ids, mut id_pool) = (Ids::new(), IdPool::new());
    let all: Vec<Id> = (0..100).map(|at| id_pool.take(&ids, 0x1000 * at, 40, at % 7 == 0).unwrap()).collect();
    let mut registry = Registry::default();
    for (at, id) in (0..).zip(&all) {
        let (addr, home) = (0x1000 * at, if at % 3 == 0 { Home::Region } else { Home::Plain });
        let live = Live { addr, size: 40, index: 0, stored: None, home };
        match at % 4 {
            // In case 0, the id has ended, and the registry has no entry for this id. In case 1, the id has ended, but
            // the registry still has its entry.
            0 => assert!(ids.retire(*id)),
            1 => {
                registry.insert(id.0, &live, b"name", &mut Vec::new());
                assert!(ids.retire(*id));
            }
            // In case 2, a call has taken the id, but has not finished the registration of the code.
            2 => {}
            _ => drop(registry.insert(id.0, &live, b"name", &mut Vec::new())),
        }
    }
    let child = ids.inherit(&mut registry);
    assert_eq!([Home::Plain, Home::Region].map(|home| registry.live_count(home)), [16, 9]);
    for (at, &id) in all.iter().enumerate() {
        assert_eq!(child.size_of(id), (at % 4 == 3).then_some(40), "{at}");
        assert!(!child.is_unread(id));
    }
    // All slots without a live id are free, and ended ids are not used again.
    let mut id_pool = IdPool::new();
    let fresh: Vec<Id> = (0..75).map(|_| id_pool.take(&child, 0, 1, false).unwrap()).collect();
    assert!(fresh.iter().all(|id| (id.0 as u32) < 128 && !all.contains(id)));
    assert!(all.iter().skip(3).step_by(4).all(|&id| child.size_of(id) == Some(40)));
}

/// Returns 1 if the page of a slot is in memory, else 0.
fn residency(ids: &Ids, slot: u32) -> u8 {
    let place = std::ptr::from_ref(ids.place(slot).expect("its segment is there"));
    let page = place.map_addr(|addr| addr & !4095);
    let mut resident = 0;
    // SAFETY: the page is mapped, and `resident` has room for the answer about one page.
    assert_eq!(unsafe { libc::mincore(page.cast_mut().cast(), 1, &mut resident) }, 0);
    resident & 1
}
