use std::collections::BTreeMap;

use super::runs::{at, Runs};
use crate::format::code_info::Info;
use crate::sink::test_random::{Random, Seed};

/// Random code in few places, with names that tell the code. Each address leads to the code that is there, and to no other.
#[test]
fn random_code() {
    const PLACES: u64 = 300;
    const SIZE: u64 = 64;
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let (mut runs, mut live) = (Runs::default(), BTreeMap::new());
    let mut next_slot = 0_u64;
    for _ in 0..200 {
        for _ in 0..random.below(60) {
            // The places are far apart at times, so that a run's parts have many entries.
            let place = random.below(PLACES);
            let addr = if place < 10 { place << 40 } else { (1 << 50) + place * SIZE };
            if let Some((id, _)) = live.remove(&addr) {
                runs.end(id);
            }
            if random.below(3) > 0 {
                next_slot = (next_slot + 1) % 1000;
                let id = random.below(1 << 20) << 32 | next_slot | 1 << 60;
                if live.values().any(|(other, _)| *other as u32 == id as u32) {
                    continue;
                }
                let size = 1 + random.below(SIZE);
                runs.add((addr, size), id, &id.to_ne_bytes(), Info::NOTHING).unwrap();
                live.insert(addr, (id, size));
            }
        }
        runs.publish().unwrap();
        let is_there = |addr: u64| {
            let (start, (id, size)) = live.range(..=addr).next_back()?;
            (addr - start < *size).then_some((*start, *size, id.to_ne_bytes().to_vec()))
        };
        for place in 0..PLACES {
            let addr = if place < 10 { place << 40 } else { (1 << 50) + place * SIZE };
            for addr in [addr.wrapping_sub(1), addr, addr + random.below(SIZE), addr + SIZE - 1] {
                let found = at(addr, |code| (code.addr(), code.size(), code.name().to_vec()));
                assert_eq!(found, is_there(addr), "{addr:#x}");
            }
        }
        for (addr, (id, _)) in &live {
            assert_eq!(runs.addr_of(*id), Some(*addr));
        }
    }
    runs.clear();
    assert_eq!(at(1 << 50, |_| ()), None);
    assert!(!runs.has_changes());
}
