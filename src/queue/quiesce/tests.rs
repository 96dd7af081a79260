use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::thread::scope;

use super::*;

/// The `patience` that a real fork passes to `prepare`.
const PATIENCE: Duration = Duration::from_millis(75);

fn writer() -> *mut () {
    ptr::without_provenance_mut(64)
}

fn shared() -> &'static WithChildren {
    Box::leak(Box::new(WithChildren { writer_went_on: AtomicU32::new(7), thread_went_on: AtomicU32::new(7) }))
}

fn of(found: Found) -> (Rest, *mut ()) {
    (found.rest, found.writer)
}

/// Repeats `attempt` until it returns true, which means that the attempt was fast enough. On a busy machine an attempt may be
/// too slow, because the waits of a fork and of the writer have short time limits.
fn in_time(attempt: impl Fn() -> bool) {
    assert!((0..200).any(|_| attempt()), "never in time");
}

/// Acts as the writer for the threads of `slots`: waits until a fork makes a request, and answers this request. Returns without
/// an answer if `forked` becomes true before a request, or if the fork stops waiting for the writer.
fn answer(still: &Quiesce, slots: &[Arc<ThreadSlot>], whole: bool, forked: &AtomicBool) {
    while !still.is_asked() && !forked.load(Ordering::SeqCst) {
        thread::sleep_micros(100);
    }
    if still.begin_hold() && still.hold_threads(slots.iter().cloned()) {
        assert_eq!(still.is_quiet(), slots.is_empty());
        slots.iter().for_each(|slot| slot.end());
        assert!(still.is_quiet());
        if still.enter_last() {
            still.answer(whole, u64::MAX);
        }
    }
}

#[test]
fn nobody_waits_without_a_writer() {
    in_time(|| {
        let still = Quiesce::default();
        let begin = Instant::now();
        assert_eq!(still.prepare(0, PATIENCE, None, || panic!("nobody to wake")).rest, Rest::NoWriter);
        still.over();
        assert!(!still.is_asked() && !still.begin_hold());
        begin.elapsed() < PATIENCE
    });
}

#[test]
fn the_writer_answers_and_stands_still_until_the_fork_is_over() {
    for (whole, rest) in [(true, Rest::Whole), (false, Rest::Partial)] {
        in_time(|| {
            let (still, forked) = (Quiesce::default(), AtomicBool::new(false));
            still.begin(writer(), shared());
            let (passed, passes) = mpsc::channel();
            scope(|scope| {
                scope.spawn(|| {
                    answer(&still, &[], whole, &forked);
                    still.enter();
                    passed.send(()).unwrap();
                    still.leave();
                });
                let begin = Instant::now();
                let found = of(still.prepare(0, PATIENCE, None, || {}));
                let too_early = passes.recv_timeout(Duration::from_millis(20)).is_ok();
                let in_time = found == (rest, writer()) && begin.elapsed() < STILL_FOR;
                assert!(!in_time || !too_early, "it goes on while the process forks");
                forked.store(true, Ordering::SeqCst);
                still.over();
                assert!(too_early || passes.recv().is_ok());
                in_time
            })
        });
    }
}

#[test]
fn a_writer_that_does_not_answer_is_not_waited_for() {
    let still = Quiesce::default();
    still.begin(writer(), shared());
    let begin = Instant::now();
    // In this test, the writer sleeps, or has no time to answer.
    assert_eq!(of(still.prepare(0, PATIENCE, None, || {})), (Rest::Partial, writer()));
    assert!(begin.elapsed() >= PATIENCE - PATIENCE / 3);
    assert!(!still.begin_hold() && !still.enter_last(), "too late");
    still.answer(true, u64::MAX);
    still.over();
    // The thread that changes the data no longer runs, so the fork does not wait for a processor.
    scope(|scope| scope.spawn(|| still.enter()).join().unwrap());
    assert_eq!(of(still.prepare(0, PATIENCE, None, || {})), (Rest::Disturbed, ptr::null_mut()));
    still.over();
    // During a slow write the writer counts as quiescent, and `aside` returns only after the fork is over.
    in_time(|| {
        let ((began, begins), (written, writes), (wrote, goes_on)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        scope(|scope| {
            let still = &still;
            scope.spawn(move || {
                still.aside(|| {
                    began.send(()).unwrap();
                    goes_on.recv().unwrap();
                });
                written.send(()).unwrap();
            });
            begins.recv().unwrap();
            let begin = Instant::now();
            assert_eq!(still.prepare(0, PATIENCE, None, || {}).rest, Rest::Partial);
            wrote.send(()).unwrap();
            let too_early = writes.recv_timeout(2 * PATIENCE).is_ok();
            let in_time = begin.elapsed() < STILL_FOR;
            assert!(!in_time || !too_early, "it comes back while the process forks");
            still.over();
            assert!(too_early || writes.recv().is_ok());
            in_time
        })
    });
    still.end();
    assert_eq!(still.prepare(0, PATIENCE, None, || {}).rest, Rest::NoWriter);
}

/// A fork waits longer for a writer that only lacks a processor. In this test, a spinning thread acts as this writer.
#[test]
fn a_writer_without_a_processor_is_waited_for() {
    let (still, begin) = (Quiesce::default(), Instant::now());
    still.begin(writer(), shared());
    let (moves, has_moved) = mpsc::channel();
    let mover = scope(|scope| {
        scope.spawn(|| {
            still.enter();
            moves.send(thread::id()).unwrap();
            while begin.elapsed() < 3 * PATIENCE {
                std::hint::spin_loop();
            }
            still.leave();
        });
        let mover = has_moved.recv().unwrap();
        assert_eq!(of(still.prepare(0, PATIENCE, None, || {})), (Rest::Partial, writer()));
        mover
    });
    assert!(thread::can_run(thread::id()));
    // The thread ends now.
    while thread::can_run(mover) {
        thread::sleep_micros(100);
    }
}

#[test]
fn a_writer_at_rest_need_not_answer() {
    let still = Quiesce::default();
    assert!(still.prepare_at_once(|| true).is_none(), "there is none");
    still.begin(writer(), shared());
    assert!(still.prepare_at_once(|| false).is_none() && !still.halting.load(Ordering::SeqCst));
    let halting = || still.halting.load(Ordering::SeqCst);
    assert_eq!(still.prepare_at_once(halting).map(of), Some((Rest::Whole, writer())));
    assert!(still.prepare_at_once(|| true).is_none(), "another fork is under way");
    assert_eq!(still.prepare(0, PATIENCE, None, || {}).rest, Rest::Whole);
    assert!(!still.is_asked() && !still.enter_last());
    still.over();
    still.over();
    still.enter();
    still.aside(|| assert!(still.prepare_at_once(|| true).is_none(), "in the middle of a change"));
    still.leave();
    assert!(still.prepare_at_once(|| true).is_some(), "after it");
    still.over();
    still.wait_to_register();
    still.enter();
    assert!(still.prepare_at_once(|| true).is_none(), "it moves");
}

#[test]
fn nobody_is_kept_for_ever_and_children_learn_of_it() {
    let (still, shared, slot) = (Quiesce::default(), shared(), ThreadSlot::new(0));
    still.begin(writer(), shared);
    let begin = Instant::now();
    let found = still.prepare_at_once(|| true).unwrap();
    assert_eq!(found.rest_in_child(shared), Rest::Whole);
    slot.hold_threads();
    assert_eq!(slot.settle(HELD_FOR), None);
    still.go_on(&slot);
    assert_eq!(slot.settle(HELD_FOR), Some(false));
    assert_eq!(found.rest_in_child(shared), Rest::Partial);
    still.wait_to_register();
    still.enter();
    assert!(begin.elapsed() >= STILL_FOR);
    assert_eq!(found.rest_in_child(shared), Rest::Disturbed);
    assert_eq!(Found::NOTHING.rest_in_child(shared), Rest::Disturbed);
    still.leave();
    still.over();
    let next = still.prepare_at_once(|| true).unwrap();
    assert_eq!(next.rest_in_child(shared), Rest::Whole);
}

/// If the writer has too much to do for a last round, a fork waits only until the writer has applied all records that the fork
/// needs. The fork then does not wait for a slow write of the writer.
#[test]
fn nobody_waits_for_a_writer_that_is_behind() {
    const LONG: Duration = Duration::from_secs(60);
    for (behind, is_behind) in [(Some(7), true), (Some(6), false), (None, false)] {
        in_time(|| {
            let still = Quiesce::default();
            still.begin(writer(), shared());
            still.enter();
            still.set_behind(behind);
            let begin = Instant::now();
            still.aside(|| {
                assert_eq!(still.prepare(7, if is_behind { LONG } else { PATIENCE }, None, || {}).rest, Rest::Partial);
                still.over();
            });
            still.leave();
            is_behind == (begin.elapsed() < PATIENCE - PATIENCE / 3)
        });
    }
}

/// A fork that has waited for two thirds of its time limit can begin while the writer pauses in the middle of its round. A fork
/// that has just begun to wait gets a last round of the writer.
#[test]
fn the_writer_pauses_for_a_fork_that_has_waited() {
    in_time(|| {
        let (still, forked) = (Quiesce::default(), AtomicBool::new(false));
        still.begin(writer(), shared());
        still.enter();
        scope(|scope| {
            let fork = |patience| {
                let found = still.prepare(0, patience, None, || {}).rest;
                still.over();
                found
            };
            let first = scope.spawn(move || fork(PATIENCE));
            let second = scope.spawn(move || fork(100 * PATIENCE));
            while !still.is_in_a_hurry() && !first.is_finished() {
                thread::sleep_micros(100);
            }
            still.give_way();
            let first = first.join().unwrap();
            let too_early = second.is_finished();
            still.leave();
            answer(&still, &[], true, &forked);
            let second = second.join().unwrap();
            !too_early && (first, second) == (Rest::Partial, Rest::Whole)
        })
    });
}

#[test]
fn forks_share_a_standstill_and_the_last_one_ends_it() {
    in_time(|| {
        let (still, forked) = (Quiesce::default(), AtomicBool::new(false));
        still.begin(writer(), shared());
        let slot = Arc::new(ThreadSlot::new(0));
        slot.begin();
        let found = scope(|scope| {
            scope.spawn(|| answer(&still, std::slice::from_ref(&slot), true, &forked));
            let found = still.prepare(0, PATIENCE, None, || {}).rest;
            forked.store(true, Ordering::SeqCst);
            found
        });
        if found != Rest::Whole {
            return false;
        }
        assert_eq!(still.prepare(0, PATIENCE, None, || {}).rest, Rest::Whole);
        assert!(!slot.is_kept());
        still.over();
        assert!(!slot.is_kept() && still.halting.load(Ordering::SeqCst));
        still.over();
        assert!(slot.is_kept());
        still.wait_to_register();
        true
    });
}
