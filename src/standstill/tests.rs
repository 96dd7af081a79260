use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::thread::{scope, sleep};

use super::*;

fn writer() -> *mut () {
    ptr::without_provenance_mut(64)
}

fn shared() -> &'static Shared {
    Box::leak(Box::new(Shared { writer_went_on: AtomicU32::new(7), thread_went_on: AtomicU32::new(7) }))
}

fn of(found: Found) -> (Rest, *mut ()) {
    (found.rest, found.writer)
}

/// What the writer does once it is asked.
fn answer(still: &Standstill, whole: bool) {
    while !still.is_asked() {
        thread::sleep_micros(100);
    }
    assert!(still.begin_halt() && still.halt(std::iter::empty()) && still.is_quiet() && still.enter_last());
    still.answer(whole);
}

#[test]
fn nobody_waits_without_a_writer() {
    let still = Standstill::default();
    let begin = Instant::now();
    assert_eq!(still.prepare(|| panic!("nobody to wake")).rest, Rest::NoWriter);
    still.over();
    assert!(begin.elapsed() < PATIENCE && !still.is_asked() && !still.begin_halt());
}

#[test]
fn the_writer_answers_and_stands_still_until_the_fork_is_over() {
    let still = Standstill::default();
    still.begin(writer(), shared());
    for whole in [true, false] {
        let (passed, passes) = mpsc::channel();
        scope(|scope| {
            scope.spawn(|| {
                answer(&still, whole);
                still.enter();
                passed.send(()).unwrap();
                still.leave();
            });
            let rest = if whole { Rest::Whole } else { Rest::Partial };
            assert_eq!(of(still.prepare(|| {})), (rest, writer()));
            assert!(passes.recv_timeout(Duration::from_millis(20)).is_err(), "it goes on while the process forks");
            still.over();
            passes.recv_timeout(Duration::from_secs(60)).unwrap();
        });
    }
}

#[test]
fn a_writer_that_does_not_answer_is_not_waited_for() {
    let still = Standstill::default();
    still.begin(writer(), shared());
    let begin = Instant::now();
    // It sleeps, or does not come to it.
    assert_eq!(of(still.prepare(|| {})), (Rest::Partial, writer()));
    assert!(begin.elapsed() >= PATIENCE);
    assert!(!still.begin_halt() && !still.enter_last(), "too late");
    still.answer(true);
    still.over();
    still.enter();
    assert_eq!(of(still.prepare(|| {})), (Rest::Disturbed, ptr::null_mut()));
    still.over();
    // In a slow write it is as good as at rest, and does not come back from it before the fork is over.
    let (written, writes) = mpsc::channel();
    scope(|scope| {
        scope.spawn(|| {
            still.aside(|| sleep(2 * PATIENCE));
            written.send(()).unwrap();
        });
        assert_eq!(still.prepare(|| {}).rest, Rest::Partial);
        assert!(writes.recv_timeout(2 * PATIENCE).is_err());
        still.over();
    });
    still.end();
    assert_eq!(still.prepare(|| {}).rest, Rest::NoWriter);
}

#[test]
fn a_writer_at_rest_need_not_answer() {
    let still = Standstill::default();
    assert!(still.prepare_at_once(|| true).is_none(), "there is none");
    still.begin(writer(), shared());
    assert!(still.prepare_at_once(|| false).is_none() && !still.halting.load(Ordering::SeqCst));
    let halting = || still.halting.load(Ordering::SeqCst);
    assert_eq!(still.prepare_at_once(halting).map(of), Some((Rest::Whole, writer())));
    assert!(still.prepare_at_once(|| true).is_none(), "another fork is under way");
    assert_eq!(still.prepare(|| {}).rest, Rest::Whole);
    assert!(!still.is_asked() && !still.enter_last());
    still.over();
    still.over();
    still.wait_to_register();
    still.enter();
    assert!(still.prepare_at_once(|| true).is_none(), "it moves");
}

#[test]
fn nobody_is_kept_for_ever_and_children_learn_of_it() {
    let (still, shared, slot) = (Standstill::default(), shared(), Slot::new(0));
    still.begin(writer(), shared);
    let found = still.prepare_at_once(|| true).unwrap();
    assert_eq!(found.rest_in_child(shared), Rest::Whole);
    slot.halt();
    let begin = Instant::now();
    assert_eq!(slot.settle(HALTED_FOR), None);
    still.go_on(&slot);
    assert_eq!(slot.settle(HALTED_FOR), Some(false));
    assert_eq!(found.rest_in_child(shared), Rest::Partial);
    still.wait_to_register();
    still.enter();
    assert!(begin.elapsed() >= STILL_FOR - HALTED_FOR);
    assert_eq!(found.rest_in_child(shared), Rest::Disturbed);
    assert_eq!(Found::NOTHING.rest_in_child(shared), Rest::Disturbed);
    still.leave();
    still.over();
    let next = still.prepare_at_once(|| true).unwrap();
    assert_eq!(next.rest_in_child(shared), Rest::Whole);
}

#[test]
fn forks_share_a_standstill_and_the_last_one_ends_it() {
    let still = Standstill::default();
    still.begin(writer(), shared());
    let slot = Arc::new(Slot::new(0));
    scope(|scope| {
        scope.spawn(|| {
            while !still.begin_halt() {
                thread::sleep_micros(100);
            }
            slot.begin();
            assert!(still.halt([slot.clone()].into_iter()) && !still.is_quiet());
            slot.end();
            assert!(still.is_quiet() && still.enter_last());
            still.answer(true);
        });
        assert_eq!(still.prepare(|| {}).rest, Rest::Whole);
        assert_eq!(still.prepare(|| {}).rest, Rest::Whole);
        assert!(!slot.is_kept());
        still.over();
        assert!(!slot.is_kept() && still.halting.load(Ordering::SeqCst));
        still.over();
        assert!(slot.is_kept());
        still.wait_to_register();
    });
}
