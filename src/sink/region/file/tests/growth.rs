//! Tests how many writes a region's file with much code needs, and how many bytes are written.

use std::sync::{Arc, Mutex};

use std::time::Instant;

use super::*;
use crate::format::code_info::Info;

/// Counts writes and their bytes.
fn count(region: &mut Region) -> Arc<Mutex<(u64, u64)>> {
    let count = Arc::new(Mutex::new((0, 0)));
    let shared = count.clone();
    region.file.disk.before_write = Some(Box::new(move |_, _, bytes| {
        let mut count = shared.lock().unwrap();
        *count = (count.0 + 1, count.1 + bytes.len() as u64);
        Ok(())
    }));
    count
}

#[test]
fn the_last_of_some_functions_costs_as_much_as_the_first() {
    assert_even_costs(&[1000, 5000], &[1000, 2000]);
}

#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn the_last_function_costs_as_much_as_the_first() {
    assert_even_costs(&[1000, 10_000, 100_000], &[1000, 10_000]);
}

/// Compares the bytes per function for several numbers of functions, and prints the time per function.
fn assert_even_costs(numbers: &[u64], numbers_downwards: &[u64]) {
    for (order, what) in [(0, "upwards"), (1, "downwards"), (2, "anywhere")] {
        let mut costs = Vec::new();
        for &functions in if order == 1 { numbers_downwards } else { numbers } {
            let mut region = Region::new(functions * 128);
            let counted = count(&mut region);
            let pieces: Vec<_> = (0..30).map(|number| Truth::new(number, 128)).collect();
            let info: Vec<_> = pieces.iter().map(|truth| truth.info(BASE)).collect();
            let begin = Instant::now();
            for number in 0..functions {
                let at = match order {
                    0 => number,
                    1 => functions - 1 - number,
                    // Each address occurs once, because the factor has no common divisor with the number of functions.
                    _ => number * 37_337 % functions,
                };
                let info = &info[number as usize % 30];
                region.file.add(&Code { offset: at * 128, size: 128, name: b"function", info: Info::new(info) });
                if number % 20 == 0 {
                    region.file.write(false).unwrap();
                }
            }
            let time = begin.elapsed();
            region.file.write(true).unwrap();
            let (writes, bytes) = *counted.lock().unwrap();
            println!("{what} {functions}: {:?} {} writes a tick", time / functions as u32, writes * 20 / functions);
            let named = region.file.image().symtab;
            assert_eq!(named.end - named.start, (functions + 1) * SYMBOL_SIZE as u64);
            if order == 2 {
                for number in 0..functions {
                    let truth = Truth { name: "function".into(), ..pieces[number as usize % 30].clone() };
                    region.truth.insert(number * 37_337 % functions * 128, truth);
                }
                region.check();
            }
            // Each update makes at most eleven writes: ten appends, and the header. Sections that move cost some more writes.
            assert!(writes * 20 < functions * 11 + 4000, "{writes} writes");
            costs.push(bytes as f64 / functions as f64);
        }
        // If code is added in the order of its addresses, bytes are written twice only when a section moves.
        println!("{what}: {costs:?} bytes for each");
        assert!(order > 0 || costs[costs.len() - 1] < 2.0 * costs[0], "{costs:?}");
    }
}

/// If all code in the text is similar, each section has enough room from the first write on.
#[test]
fn sections_of_text_that_gets_full_stay_where_they_are() {
    let mut region = Region::new(1980 * 128);
    for number in 0..1980 {
        region.add(number * 128, Truth::new(number % 30, 128));
        if number % 60 == 59 {
            region.file.write(true).unwrap();
            assert!(region.file.space.is_all_used(), "after {number}");
        }
    }
    region.check();
}

/// A single function in a long text does not make the file long.
#[test]
fn a_few_functions_take_little_room() {
    let mut region = Region::new(64 << 20);
    let before = region.file.space.end;
    region.add(0, Truth::new(7, 128));
    region.file.write(true).unwrap();
    let taken = region.file.space.end - before;
    assert!(taken <= 1 << 20, "{taken} bytes");
    region.check();
}

/// A new search table is written at most once in 50 milliseconds, however much code is added below all other code.
#[test]
fn new_tables_are_rare() {
    let mut region = Region::new(1 << 20);
    let slots = split(region.file.layout.tables, region.file.layout.tables_len).1.map(|slot| slot.start);
    let tables = Arc::new(Mutex::new(0));
    let shared = tables.clone();
    region.file.disk.before_write = Some(Box::new(move |_, at, _| {
        *shared.lock().unwrap() += u32::from(slots.contains(&at));
        Ok(())
    }));
    let begin = Instant::now();
    for number in 0..2000 {
        region.add((1999 - number) * 300, Truth::new(number, 128));
        region.file.write(false).unwrap();
    }
    let most = 2 + begin.elapsed().as_millis() / 50;
    let count = *tables.lock().unwrap();
    assert!(count >= 1 && u128::from(count) <= most, "{count} of {most}");
    region.file.write(true).unwrap();
    region.check();
}

/// If code is added in the order of its addresses, each function takes the same time, even if a flush follows each call.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn a_flush_for_each_function_costs_the_same() {
    let costs: Vec<f64> = [500u64, 5000]
        .into_iter()
        .map(|functions| {
            let mut region = Region::new(functions * 128);
            let counted = count(&mut region);
            for number in 0..functions {
                region.add(number * 128, Truth::new(number, 128));
                region.file.write(true).unwrap();
            }
            region.check();
            let (_, bytes) = *counted.lock().unwrap();
            bytes as f64 / functions as f64
        })
        .collect();
    assert!(costs[1] < 1.3 * costs[0], "{costs:?}");
}

/// The data for a new epoch may have more bytes than may wait to be written. Until the file is complete for the new epoch,
/// readers find the contents of the previous epoch.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn an_epoch_may_be_larger_than_what_waits() {
    let mut region = Region::new(1 << 20);
    for number in 0..100 {
        region.add(number * 100, Truth::new(number, 90));
    }
    region.file.write(true).unwrap();
    let before = region.truth.clone();
    region.file.set_begin(4096);
    region.file.reset();
    region.truth.clear();
    let name = |number: u64| format!("{number:x>65000}");
    let count = WAITING_MAX as u64 / 65_000 + 200;
    for number in 0..count {
        region.add(number * 100, Truth { name: name(number), ..Truth::new(number, 90) });
        if number == count / 2 {
            let seen = Seen::read(&region.bytes());
            assert!(seen.names.values().map(|(name, _)| name).eq(before.values().map(|truth| &truth.name)));
        }
    }
    assert_eq!(region.file.left_out(), 0);
    region.file.write(true).unwrap();
    region.check();
}

/// Once a file is final, its earlier contents take no room on the disk.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn older_epochs_take_no_room_in_the_end() {
    use std::os::unix::fs::MetadataExt;
    let mut region = Region::new(1 << 20);
    let blocks = |region: &Region| region.file.disk.file().metadata().unwrap().blocks() * 512;
    for number in 0..40 {
        region.add(number * 100, Truth { name: "x".repeat(65_000), ..Truth::new(number, 90) });
    }
    region.file.write(true).unwrap();
    region.file.reset();
    region.truth.clear();
    region.add(0, Truth::new(1, 90));
    region.file.write(true).unwrap();
    assert!(blocks(&region) > 40 * 65_000);
    region.file.finish(Some(ID)).unwrap();
    region.check();
    assert!(blocks(&region) < 200_000, "{}", blocks(&region));
    // A final file can be changed again.
    for number in 0..40 {
        region.file.reset();
        region.truth.clear();
        region.add(0, Truth { name: "y".repeat(30_000), ..Truth::new(number, 90) });
        region.file.write(true).unwrap();
        region.check();
    }
}
