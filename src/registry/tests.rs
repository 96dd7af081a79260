use super::map_spans::DEAD_MAX;
use super::*;
use crate::format::code_info::Info;

fn code(addr: u64, size: u64) -> Live {
    Live { addr, size, index: 0, stored: None, home: Home::Plain }
}

/// The first id with this slot.
fn id(slot: u64) -> u64 {
    1 << 32 | slot
}

fn ids(slots: impl IntoIterator<Item = u64>) -> Vec<u64> {
    slots.into_iter().map(id).collect()
}

fn insert(registry: &mut Registry, id: u64, live: &Live, name: &[u8], gone: &mut Vec<u64>) -> MapChange {
    assert!(registry.make_room(id, name.len(), 0, false));
    registry.insert(id, live, name, gone)
}

/// Adds code, and returns how the map changed.
fn add(registry: &mut Registry, id: u64, live: Live, name: &str, gone: &mut Vec<u64>) -> MapChange {
    insert(registry, id, &live, name.as_bytes(), gone)
}

/// Ends all registrations, and returns their ids.
fn end_all(registry: &mut Registry) -> Vec<u64> {
    let mut all = Vec::new();
    registry.remove_all(|id| all.push(id));
    all
}

fn lines(registry: &Registry) -> String {
    let line = |(start, size, name): (u64, u64, &[u8])| format!("{start}+{size} {}", String::from_utf8_lossy(name));
    registry.spans().map(line).collect::<Vec<_>>().join(", ")
}

#[test]
fn freed_code_keeps_its_name_until_its_bytes_are_used_again() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    assert_eq!(add(&mut registry, id(1), code(100, 50), "a", &mut gone), MapChange::Append);
    registry.remove(id(1)).unwrap();
    assert!(registry.remove(id(1)).is_none());
    assert_eq!(lines(&registry), "100+50 a");
    assert_eq!(add(&mut registry, id(2), code(120, 10), "b", &mut gone), MapChange::Rewrite);
    assert_eq!(lines(&registry), "100+20 a, 120+10 b, 130+20 a");
    assert!(gone.is_empty());
    assert_eq!(registry.live_count(Home::Plain), 1);
}

#[test]
fn the_newest_wins_over_live_code() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    add(&mut registry, id(1), code(100, 50), "a", &mut gone);
    add(&mut registry, id(2), code(150, 50), "b", &mut gone);
    add(&mut registry, id(3), code(200, 50), "c", &mut gone);
    assert_eq!(add(&mut registry, id(4), code(140, 100), "d", &mut gone), MapChange::Rewrite);
    assert_eq!(lines(&registry), "100+40 a, 140+100 d, 240+10 c");
    gone.sort_unstable();
    assert_eq!((gone, registry.live_count(Home::Plain)), (ids([1, 2, 3]), 1));
    assert_eq!(registry.remove(id(1)).map(|live| live.addr), None);
}

#[test]
fn the_same_line_again_changes_nothing() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    add(&mut registry, id(1), code(100, 50), "a", &mut gone);
    assert_eq!(add(&mut registry, id(2), code(100, 50), "a", &mut gone), MapChange::None);
    assert_eq!(add(&mut registry, id(3), code(100, 50), "b", &mut gone), MapChange::Rewrite);
    assert_eq!(gone, ids([1, 2]));
}

#[test]
fn ranges() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    for n in 0..10 {
        add(&mut registry, id(n + 1), code(100 * n, 100), "x", &mut gone);
    }
    let mut found = registry.live_in(Home::Plain, 150, 301);
    found.sort_unstable();
    assert_eq!(found, ids([2, 3, 4]));
    assert!(registry.live_in(Home::Plain, 1000, 2000).is_empty());
    registry.remove(id(2));
    let mut all = end_all(&mut registry);
    all.sort_unstable();
    assert_eq!(
        (all, registry.live_count(Home::Plain), registry.span_count()),
        (ids([1].into_iter().chain(3..11)), 0, 10)
    );
}

#[test]
fn dead_entries_are_bounded_and_the_oldest_go() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let total = DEAD_MAX as u64 + 100;
    for n in 0..total {
        add(&mut registry, id(n + 1), code(16 * n, 16), "x", &mut gone);
        registry.remove(id(n + 1));
    }
    let forgotten = registry.forget_oldest();
    assert!(forgotten >= 100 && registry.span_count() <= DEAD_MAX);
    assert_eq!(registry.spans().next().unwrap().0, 16 * forgotten as u64);
    assert_eq!(registry.forget_oldest(), 0);
}

#[test]
fn reuse_does_not_let_memory_grow() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    for n in 0..100_000 {
        add(&mut registry, id(n + 1), code(16 * (n % 7), 16), "x", &mut gone);
        registry.remove(id(n + 1));
        registry.forget_oldest();
    }
    assert!((registry.places[0].pieces.most(), registry.places[0].pieces.dead(), registry.span_count()) == (7, 7, 7));
}

#[test]
fn spans_never_overlap_whatever_happens() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let mut random = 1u64;
    let mut next = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    // For each byte: the id of the code that was live there last, and whether this code is still live.
    let mut bytes = vec![(0u64, false); 600];
    for n in 1..20_000u64 {
        // Each new id has one of 40 slots, and a new generation.
        let free = (0..40).map(|slot| n << 33 | 1 << 32 | slot).find(|&id| registry.id_in(id as u32) == 0);
        let action = next(100);
        let victim = registry.id_in(next(40) as u32);
        let mut end = |id| bytes.iter_mut().filter(|(owner, _)| *owner == id).for_each(|byte| byte.1 = false);
        let Some(id) = free.filter(|_| action >= 30) else {
            assert_eq!(registry.remove(victim).is_some(), victim != 0);
            end(victim);
            continue;
        };
        if action == 99 {
            registry.remove_all(end);
        }
        let (addr, size) = (next(500), next(99) + 1);
        let mut expected: Vec<u64> =
            bytes[addr as usize..(addr + size) as usize].iter().filter(|b| b.1).map(|b| b.0).collect();
        add(&mut registry, id, code(addr, size), &id.to_string(), &mut gone);
        expected.sort_unstable();
        expected.dedup();
        gone.sort_unstable();
        assert_eq!(gone, expected);
        for old in gone.drain(..) {
            bytes.iter_mut().filter(|(owner, _)| *owner == old).for_each(|byte| byte.1 = false);
        }
        bytes[addr as usize..(addr + size) as usize].fill((id, true));
        if action > 95 {
            registry.places[0].names.compact(registry.places[0].pieces.names_mut());
        }
        let mut said = vec![(0u64, false); 600];
        let mut last_end = 0;
        for (start, size, name) in registry.spans() {
            assert!(start >= last_end && size > 0);
            last_end = start + size;
            let owner = std::str::from_utf8(name).unwrap().parse().unwrap();
            said[start as usize..last_end as usize]
                .fill((owner, registry.live_in(Home::Plain, start, last_end) == [owner]));
        }
        assert_eq!(said, bytes);
        let live = registry.places[0]
            .starts
            .values()
            .filter(|&number| registry.places[0].pieces[number].owner().is_some())
            .count();
        assert_eq!(
            (registry.live_count(Home::Plain), registry.span_count() - registry.places[0].pieces.dead()),
            (live, live)
        );
    }
}

#[test]
fn names_of_bytes_that_are_used_again_take_no_memory() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    for n in 0..100_000 {
        let name = format!("a name of its own, the {n}th");
        add(&mut registry, id(n % 2), code(0x1000, 16), &name, &mut gone);
        registry.tidy();
        assert_eq!(lines(&registry), format!("4096+16 {name}"));
        let (capacity, _) = registry.places[0].names.0.usage();
        assert!(capacity <= 256 * 1024, "{capacity} bytes for one name");
    }
    assert_eq!((gone.len(), registry.places[0].pieces.most()), (99_999, 1));
}

#[test]
fn names_survive_what_becomes_of_others() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let lasting = |n: u64| format!("lasting {n}");
    for n in 0..5000 {
        add(&mut registry, id(n), code(64 * n, 16), &lasting(n), &mut gone);
        for times in 0..10 {
            let passing = format!("passing {n} {times}").repeat(4);
            add(&mut registry, id(5000), code(1 << 40, 16), &passing, &mut gone);
            assert!(registry.remove(id(5000)).is_some());
        }
        registry.tidy();
    }
    for n in 0..5000 {
        assert_eq!(registry.name_of(id(n)), Some(lasting(n).as_bytes()));
    }
    let needed: usize = registry.spans().map(|(_, _, name)| name.len()).sum();
    let (capacity, garbage) = registry.places[0].names.0.usage();
    // More memory is used than the names need, for two reasons. Half of the bytes may be garbage, and a growing vector
    // allocates memory in advance.
    assert!(needed < 70_000 && garbage <= 2 * 64 * 1024 && capacity <= 512 * 1024, "{needed} {garbage} {capacity}");
}

#[test]
fn a_split_gives_each_piece_a_name_of_its_own() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    add(&mut registry, id(1), code(100, 50), "whole", &mut gone);
    add(&mut registry, id(2), code(120, 10), "middle", &mut gone);
    // The code with the name "whole" now has two pieces, and each piece has a copy of the name. The new code replaces the piece
    // at 100, so the copy of this piece is dropped. The piece at 130 keeps its copy, even after a compaction.
    add(&mut registry, id(3), code(100, 20), "first", &mut gone);
    registry.places[0].names.compact(registry.places[0].pieces.names_mut());
    assert_eq!(lines(&registry), "100+20 first, 120+10 middle, 130+20 whole");
    assert_eq!(
        (registry.places[0].names.0.usage(), registry.live_count(Home::Plain), registry.places[0].pieces.dead()),
        ((16, 0), 2, 1)
    );
}

#[test]
fn moved_code_keeps_everything_but_its_place() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let stored = Some(Stored { offset: 1 << 40, len: 77 });
    let live = Live { addr: 100, size: 50, index: 1 << 41, stored, home: Home::Plain };
    add(&mut registry, id(1), live, "a", &mut gone);
    let name = registry.name_of(id(1)).unwrap().to_vec();
    assert_eq!(registry.remove(id(1)), Some(live));
    assert!(registry.name_of(id(1)).is_none() && registry.id_at(Home::Plain, 100).is_none());
    // The code moves to a place that overlaps its old place.
    let moved = Live { addr: 120, ..live };
    assert_eq!(insert(&mut registry, id(1), &moved, &name, &mut gone), MapChange::Rewrite);
    assert_eq!((lines(&registry).as_str(), registry.id_at(Home::Plain, 120)), ("100+20 a, 120+50 a", Some(id(1))));
    assert_eq!((registry.remove(id(1)), gone), (Some(moved), vec![]));
}

#[test]
fn a_slot_that_is_used_again_is_another_registration() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let (old, new) = (1 << 32 | 5, 3 << 32 | 5);
    add(&mut registry, old, code(100, 50), "a", &mut gone);
    assert!(registry.is_live(old) && !registry.is_live(new) && !registry.is_live(5) && !registry.is_live(0));
    assert!(registry.remove(new).is_none() && registry.remove(5).is_none() && registry.remove(u64::MAX).is_none());
    assert!(registry.remove(old).is_some());
    add(&mut registry, new, code(200, 60), "b", &mut gone);
    assert!(registry.remove(old).is_none() && registry.size_of(old).is_none());
    assert_eq!(
        (registry.size_of(new), registry.id_at(Home::Plain, 200), registry.live_count(Home::Plain)),
        (Some(60), Some(new), 1)
    );
    assert_eq!(registry.live_in(Home::Plain, 0, 1000), [new]);
    // The slot of overwritten code is free too.
    add(&mut registry, id(6), code(200, 60), "c", &mut gone);
    assert_eq!((gone, registry.is_live(new), registry.live_count(Home::Plain)), (vec![new], false, 1));
}

#[test]
fn what_ends_together_dies_like_the_others() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    for n in 0..DEAD_MAX as u64 + 10 {
        add(&mut registry, id(n), code(16 * n, 16), "x", &mut gone);
    }
    registry.remove(id(7));
    assert_eq!(end_all(&mut registry), ids((0..7).chain(8..DEAD_MAX as u64 + 10)));
    assert_eq!((registry.live_count(Home::Plain), registry.places[0].pieces.dead()), (0, DEAD_MAX + 10));
    assert!(end_all(&mut registry).is_empty() && !registry.is_live(id(8)));
    // The code that was unregistered first is forgotten first.
    let forgotten = registry.forget_oldest();
    assert!(
        registry.places[0].starts.from(16 * 7).next().is_none_or(|(at, _)| at > 16 * 7)
            && registry.span_count() == DEAD_MAX + 10 - forgotten
    );
    add(&mut registry, id(8), code(16 * 8, 16), "again", &mut gone);
    assert!(gone.is_empty() && registry.live_count(Home::Plain) == 1);
}

#[test]
fn a_child_gets_the_live_code_in_the_order_of_the_file() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    for (slot, offset) in [(1, 300), (2, 100), (3, 0), (4, 200), (5, 400)] {
        let stored = (offset > 0).then_some(Stored { offset, len: 10 });
        add(&mut registry, id(slot), Live { stored, ..code(100 * slot, 50) }, &format!("code {slot}"), &mut gone);
    }
    registry.remove(id(4)).unwrap();
    add(&mut registry, id(6), code(520, 10), "over", &mut gone);
    registry.forget_dead(Home::Plain);
    assert_eq!(lines(&registry), "100+50 code 1, 200+50 code 2, 300+50 code 3, 520+10 over");
    assert!(registry.live_by_place(None).unwrap().eq(ids([3, 6, 2, 1])));
    assert_eq!(registry.get(id(2)).unwrap(), Live { stored: Some(Stored { offset: 100, len: 10 }), ..code(200, 50) });
    registry.set_stored(id(2), None);
    registry.set_stored(id(3), Some(Stored { offset: 7, len: 8 }));
    registry.set_stored(id(4), Some(Stored { offset: 7, len: 8 }));
    assert_eq!(registry.get(id(2)).unwrap().stored, None);
    assert_eq!(registry.get(id(3)).unwrap().stored, Some(Stored { offset: 7, len: 8 }));
    assert!(registry.get(id(4)).is_none() && registry.get(id(5)).is_none());
    assert_eq!((registry.live_count(Home::Plain), gone), (4, ids([5])));
}

#[test]
fn info_records_go_with_their_code() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let info = |number: u64| vec![number as u8; 200];
    for number in 1..=1000 {
        add(&mut registry, id(number), code(number * 100, 50), "f", &mut gone);
        registry.keep_info(id(number), Info::new(&info(number)));
    }
    registry.keep_info(id(5000), Info::new(b"of nobody"));
    assert!(registry.get(id(7)).unwrap().stored.is_none() && registry.stored().next().is_none());
    assert_eq!(registry.info_of(id(7)).bytes(), info(7));
    // Info records are dropped in each possible way: their code is unregistered or overwritten, their group is written to a
    // file, or other info records replace them.
    assert!((1..=300).all(|number| registry.remove(id(number)).is_some()));
    add(&mut registry, id(2000), code(301 * 100, 300 * 100), "g", &mut gone);
    assert_eq!(gone.len(), 300);
    (601..=700).for_each(|number| registry.set_stored(id(number), Some(Stored { offset: 40, len: 9 })));
    registry.keep_info(id(800), Info::new(b"new"));
    assert_eq!(registry.entries.info.usage().1, 701 * 200);
    registry.tidy();
    assert_eq!(registry.entries.info.usage(), (299 * 200 + 3, 0));
    let kept = (701..=1000).filter(|&number| number != 800);
    assert!(kept.into_iter().all(|number| registry.info_of(id(number)).bytes() == info(number)));
    assert_eq!((registry.info_of(id(800)), registry.info_of(id(601))), (Info::new(b"new"), Info::NOTHING));
    registry.remove_all(|_| {});
    assert_eq!(registry.entries.info.usage().1, 299 * 200 + 3);
}

#[test]
fn code_in_regions_has_places_of_its_own() {
    let (mut registry, mut gone) = (Registry::default(), Vec::new());
    let in_region = |addr, size| Live { home: Home::Region, ..code(addr, size) };
    let in_regions = |registry: &Registry| {
        let span = |(start, size, name, id): (u64, u64, &[u8], u64)| (start, size, name.to_vec(), id);
        registry.region_spans_in(0, 1000).map(span).collect::<Vec<_>>()
    };
    add(&mut registry, id(1), code(100, 50), "before", &mut gone);
    registry.remove(id(1)).unwrap();
    add(&mut registry, id(2), code(200, 50), "elsewhere", &mut gone);
    assert!(registry.make_room(id(3), 6, 0, true));
    registry.insert(id(3), &in_region(100, 80), b"region", &mut gone);
    registry.keep_info(id(3), Info::new(b"info"));
    // The map keeps the name of the code that was there before the region, and has no line for the region's code.
    assert_eq!((lines(&registry).as_str(), registry.span_count()), ("100+50 before, 200+50 elsewhere", 2));
    assert_eq!(in_regions(&registry), [(100, 80, b"region".to_vec(), id(3))]);
    assert_eq!(registry.get(id(3)), Some(in_region(100, 80)));
    assert_eq!((registry.name_of(id(3)), registry.info_of(id(3))), (Some(&b"region"[..]), Info::new(b"info")));
    let homes = [Home::Plain, Home::Region];
    assert_eq!(homes.map(|home| registry.live_in(home, 0, 1000)), [[id(2)], [id(3)]]);
    assert_eq!(homes.map(|home| registry.id_at(home, 100)), [None, Some(id(3))]);
    assert_eq!(homes.map(|home| registry.live_count(home)), [1, 1]);
    assert!(registry.has_live_in(Home::Region, 150, 151));
    let of = |home: Option<Home>| registry.live_by_place(home).unwrap().collect::<Vec<_>>();
    assert_eq!((of(Some(Home::Plain)), of(Some(Home::Region)), of(None)), (ids([2]), ids([3]), ids([2, 3])));
    // Dead code in a region keeps its name until the code is forgotten, or is replaced by new code in the region. New code
    // outside of regions does not replace dead code in a region.
    assert_eq!(registry.remove(id(3)), Some(in_region(100, 80)));
    registry.forget_dead(Home::Plain);
    assert_eq!(lines(&registry), "200+50 elsewhere");
    assert_eq!(in_regions(&registry), [(100, 80, b"region".to_vec(), 0)]);
    add(&mut registry, id(3), code(100, 80), "no region", &mut gone);
    assert_eq!(in_regions(&registry).len(), 1);
    registry.forget_dead_in_regions(101, 1000);
    assert_eq!(in_regions(&registry).len(), 1);
    registry.forget_dead_in_regions(100, 1000);
    assert!(in_regions(&registry).is_empty() && gone.is_empty());
    assert_eq!(end_all(&mut registry), ids([2, 3]));
}
