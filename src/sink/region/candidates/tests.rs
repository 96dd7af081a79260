use super::*;

#[test]
fn what_was_declined_is_looked_at_again() {
    let table = Candidates::default();
    let is_shown = |start, end, now| table.shows_declined(start, end, || now);
    assert!(!is_shown(0, 1, 0));
    table.decline(&(100..200), 1000, 50);
    assert!(is_shown(100, 200, 1049) && is_shown(120, 130, 1000));
    assert!(!is_shown(100, 200, 1050) && !is_shown(99, 120, 1000) && !is_shown(190, 201, 1000));
    table.forget(0, 100);
    table.forget(200, 300);
    assert!(is_shown(100, 200, 1000));
    table.forget(199, 300);
    assert!(!is_shown(100, 200, 1000));
    table.decline(&(100..200), 1000, 50);
    table.clear();
    assert!(!is_shown(100, 200, 1000));
}

#[test]
fn the_last_declined_ranges_are_remembered() {
    let table = Candidates::default();
    let all = SHOWN as u64 * 3 + 5;
    for number in 0..all {
        table.decline(&(number * 10..number * 10 + 10), number, 10_000);
    }
    let is_shown = |number: u64| table.shows_declined(number * 10, number * 10 + 10, || all);
    assert!((0..all).all(|number| is_shown(number) == (number >= all - SHOWN as u64)));
    // Expired ranges are replaced first.
    table.decline(&(7..8), all - SHOWN as u64 + 10_000, 10_000);
    assert!(table.shows_declined(7, 8, || all) && is_shown(all - SHOWN as u64 + 1));
}

#[test]
fn looks_become_rare() {
    let table = Candidates::default();
    assert!(!table.any_waits() && !table.any_is_due(NEVER - 1));
    // Adjacent ranges are merged into one waiting range. A distant range stays separate.
    assert!(table.wait(4096, &(4096..8192), 100) && table.wait(8192, &(8192..12288), 100));
    let has_put_off = |start: u64, now| table.has_put_off((start, start + 1), &(start..start + 4096), now);
    assert!(has_put_off(4096, 101) && has_put_off(12288, 101) && !has_put_off(20480, NOT_NOW + 101));
    assert!(table.wait(65536, &(65536..69632), 200) && table.any_waits() && table.any_is_due(100));
    assert_eq!(lock(&table.table).waiting.len(), 2);
    let (mut now, mut looks, mut counted) = (200, 0, 0);
    while now < 10 * LONG {
        for wait in table.take_due(now) {
            looks += 1;
            table.put_back(wait, now);
        }
        counted += std::iter::from_fn(|| table.next_long(now)).count();
        now = table.due.load(Ordering::Relaxed);
    }
    assert!(looks < 40 && counted == 2, "{looks} looks, {counted} counted");
    let all = 0..MOST_WAITING as u64 + 9;
    assert!(all.filter(|number| table.wait(0, &(number << 20..(number << 20) + 1), now)).count() <= MOST_WAITING);
    table.clear();
    assert!(!table.any_waits());
}

#[test]
fn a_function_begins_at_the_first_byte_and_is_alone() {
    let table = Candidates::default();
    let is_function = |starts: &[u64]| {
        assert!(starts.iter().all(|&start| table.wait(start, &(start / 4096 * 4096..start / 4096 * 4096 + 4096), 7)));
        table.take_due(7).iter().all(|wait| wait.is_function)
    };
    assert!(is_function(&[4096]) && is_function(&[4096, 16384]));
    assert!(!is_function(&[4160]) && !is_function(&[4096, 4160]) && !is_function(&[4096, 8192]));
}

#[test]
fn what_is_unmapped_waits_no_longer() {
    let table = Candidates::default();
    let waits = || lock(&table.table).waiting.iter().map(|wait| (wait.start, wait.end)).collect::<Vec<_>>();
    assert!([(10, 20), (30, 40), (50, 60)].iter().all(|&(start, end)| table.wait(0, &(start..end), 7)));
    table.forget(0, 10);
    table.forget(35, 36);
    assert_eq!(waits(), [(10, 20), (30, 40), (50, 60)]);
    table.forget(15, 35);
    assert_eq!(waits(), [(10, 15), (35, 40), (50, 60)]);
    table.forget(35, 60);
    assert!(waits() == [(10, 15)] && table.any_waits());
    table.forget(0, 100);
    assert!(waits().is_empty() && !table.any_waits());
}

#[test]
fn a_refusal_is_counted_once() {
    let table = Candidates::default();
    assert!(table.is_first_refusal(7) && table.is_first_refusal(8) && !table.is_first_refusal(7));
    table.clear();
    assert!(table.is_first_refusal(7));
}

#[test]
fn the_list_of_mappings_rests() {
    let candidates = Candidates::default();
    assert!(!candidates.rests(0));
    candidates.rest(5, 7);
    assert!(candidates.rests(7) && candidates.rests(6 + 2 * SHARE) && !candidates.rests(7 + 2 * SHARE));
    // This read takes very long, for example because the process was stopped during the read.
    candidates.rest(0, FAILED);
    assert!(candidates.rests(2 * FAILED - 1) && !candidates.rests(2 * FAILED));
}
