//! Merges the records of all threads in the order of their time stamps.

use std::collections::VecDeque;

use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, Event, EventKind};
use crate::sys::prefetch;

/// While the event `n` is the next to be read, two things are prefetched: the event `n + 2 * AHEAD`, and the name of the event
/// `n + AHEAD`.
const AHEAD: u32 = 8;

/// If the writer has more records to read than this, a fork waits only for the records of its own thread. The writer reads this
/// many records in less than a millisecond.
pub const READ_MOST: u64 = 1024;

/// The unread part of a chunk.
struct Reading {
    chunk: Chunk,
    /// The number of events that are marked as read in the chunk.
    marked: u32,
    next: u32,
    end: u32,
    /// The time and the kind of the next event.
    order: Order,
}

/// The time stamp of an event, and a flag that is false for a registration and true for other events. If several events have
/// the same time, registrations come first. So the registration of code precedes the end of the code, even if the clock stands
/// still in between.
type Order = (u64, bool);

fn order(event: &Event) -> Order {
    (event.timestamp, event.kind != EventKind::Load)
}

/// Yields the events of all threads, the earliest first. The events of each single thread are already in order.
pub struct Merge {
    /// One lane for each thread that has unread events.
    lanes: Vec<VecDeque<Reading>>,
    /// The index of the lane that is being read, and the `Order` of the earliest event in the remaining lanes.
    run: Option<(usize, Order)>,
    /// Chunks that have been read to their end.
    done: Vec<Reading>,
}

impl Merge {
    /// Takes each thread's chunks, oldest first, and records how far each chunk can be read now.
    pub fn new(threads: impl Iterator<Item = impl Iterator<Item = Chunk>>) -> Merge {
        let lane = |chunks| -> VecDeque<Reading> { Iterator::filter_map(chunks, Reading::new).collect() };
        let mut lanes = Vec::new();
        for chunks in threads {
            let lane = lane(chunks);
            if !lane.is_empty() {
                lanes.push(lane);
            }
        }
        Merge { lanes, run: None, done: Vec::new() }
    }

    /// The next event, if it is not later than `until`.
    pub fn next(&mut self, until: u64) -> Option<(Chunk, Event)> {
        self.next_if(until, |_| true)
    }

    /// Like `next`, but takes the event only if `may` returns true for the event.
    pub fn next_if(&mut self, until: u64, may: impl FnOnce(&Event) -> bool) -> Option<(Chunk, Event)> {
        loop {
            let (lane, bound) = match self.run {
                Some(run) => run,
                None => *self.run.insert(self.next_run()?),
            };
            let order = self.lanes[lane].front().map(|reading| reading.order);
            match order {
                Some(order) if order <= bound => {
                    // Here, the earliest event of all lanes is later than `until`.
                    if order.0 > until {
                        return None;
                    }
                    return self.take(lane, may);
                }
                _ => self.run = None,
            }
        }
    }

    /// Returns the index of the lane that has the earliest event, and the `Order` of the earliest event in the remaining lanes.
    fn next_run(&self) -> Option<(usize, Order)> {
        let mut earliest: Option<(Order, usize)> = None;
        let mut second = (u64::MAX, true);
        for (lane, readings) in self.lanes.iter().enumerate() {
            let Some(order) = readings.front().map(|reading| reading.order) else { continue };
            match earliest {
                Some((best, _)) if order >= best => second = second.min(order),
                _ => {
                    second = earliest.map_or(second, |(best, _)| best);
                    earliest = Some((order, lane));
                }
            }
        }
        earliest.map(|(_, lane)| (lane, second))
    }

    fn take(&mut self, lane: usize, may: impl FnOnce(&Event) -> bool) -> Option<(Chunk, Event)> {
        let lane = &mut self.lanes[lane];
        let reading = lane.front_mut()?;
        let (chunk, event) = (reading.chunk, reading.chunk.event(reading.next));
        if !may(&event) {
            return None;
        }
        reading.next += 1;
        reading.look_ahead();
        if reading.next < reading.end {
            reading.order = order(&chunk.event(reading.next));
        } else {
            self.done.extend(lane.pop_front());
        }
        Some((chunk, event))
    }

    /// The number of events that are still to be read.
    pub fn unread(&self) -> u64 {
        self.lanes.iter().flatten().map(|reading| u64::from(reading.end - reading.next)).sum()
    }

    /// Stores in each chunk the number of events that have been read from the chunk. Once a chunk is read to its end, later
    /// calls do not touch it. Returns whether any record was read since the last call.
    pub fn mark(&mut self, round: u64) -> bool {
        let mut any = false;
        for reading in self.lanes.iter_mut().filter_map(VecDeque::front_mut).chain(&mut self.done) {
            if reading.next > reading.marked {
                reading.chunk.set_consumed(round, reading.next);
                reading.marked = reading.next;
                any = true;
            }
        }
        self.done.clear();
        any
    }
}

impl Reading {
    fn new(chunk: Chunk) -> Option<Reading> {
        let (next, end) = (chunk.consumed(), chunk.committed());
        (next < end).then(|| Reading { chunk, marked: next, next, end, order: order(&chunk.event(next)) })
    }

    /// Prefetches the name of an event that will be read soon. The name is in the cache of the processor on which the code was
    /// registered. Without the prefetch, the writer would wait for each name.
    #[inline(always)]
    fn look_ahead(&self) {
        let number = self.next + AHEAD;
        if number < self.end && cfg!(not(jitsym_loom)) {
            prefetch::to_read(self.chunk.event_place(number + AHEAD).cast());
            let event = self.chunk.event(number);
            let code = if event.has(flag::HAS_CODE) { event.size as usize } else { 0 };
            let end = (event.body_at as usize + event.body_len as usize).wrapping_sub(code);
            let name = end.wrapping_sub(event.name_len.into());
            prefetch::to_read(self.chunk.as_ptr().wrapping_add(name));
            prefetch::to_read(self.chunk.as_ptr().wrapping_add(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::chunk::tests::event;
    use crate::queue::chunk::FIRST_SIZE;
    use crate::queue::pool::Pool;

    fn chunk(pool: &Pool, timestamps: &[u64]) -> Chunk {
        pool.replenish(1);
        let mut cursor = pool.take(FIRST_SIZE).unwrap();
        for &timestamp in timestamps {
            cursor.commit(event(EventKind::Unregister, timestamp, 0));
        }
        cursor.chunk()
    }

    fn read(threads: &[Vec<Chunk>], until: u64, round: u64) -> Vec<u64> {
        let mut merge = Merge::new(threads.iter().map(|chunks| chunks.iter().copied()));
        let read = std::iter::from_fn(|| merge.next(until)).map(|(_, event)| event.timestamp).collect();
        merge.mark(round);
        read
    }

    #[test]
    fn events_come_in_the_order_of_time_and_once() {
        let pool = Pool::new(8 << 20).unwrap();
        pool.open(None);
        let threads = [
            vec![chunk(&pool, &[1, 5, 9]), chunk(&pool, &[10, 30])],
            vec![chunk(&pool, &[2, 3, 4, 11])],
            vec![chunk(&pool, &[])],
            vec![chunk(&pool, &[5, 12, 40])],
        ];
        assert_eq!(read(&threads, 11, 1), [1, 2, 3, 4, 5, 5, 9, 10, 11]);
        assert_eq!(threads[0][1].consumed_up_to(0), 0, "the round counts when it is committed");
        assert_eq!(read(&threads, 11, 2), []);
        assert_eq!(read(&threads, u64::MAX, 2), [12, 30, 40]);
        assert_eq!((threads[0][1].consumed_up_to(1), threads[0][1].consumed_up_to(2)), (1, 2));
        assert_eq!(read(&threads, u64::MAX, 3), []);
    }

    #[test]
    fn what_is_read_can_be_marked_bit_by_bit() {
        let pool = Pool::new(8 << 20).unwrap();
        pool.open(None);
        let threads = [vec![chunk(&pool, &[1, 4]), chunk(&pool, &[5, 7])], vec![chunk(&pool, &[2, 3, 6])]];
        let mut merge = Merge::new(threads.iter().map(|chunks| chunks.iter().copied()));
        assert!(!merge.mark(1));
        for (round, expected) in [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [1, 0, 2]), (4, [2, 0, 2]), (5, [2, 1, 2])] {
            merge.next(u64::MAX).unwrap();
            assert!(merge.mark(round) && !merge.mark(round));
            let consumed = threads.iter().flatten().map(|chunk| chunk.consumed_up_to(round));
            assert!(consumed.eq(expected));
        }
        // Another thread may already own a chunk that was read to its end.
        threads[0][0].set_consumed(9, 0);
        assert!(merge.next(u64::MAX).is_some() && merge.mark(10));
        assert_eq!((threads[0][0].consumed(), threads[1][0].consumed()), (0, 3));
    }

    #[test]
    fn an_event_that_may_not_be_taken_is_the_next_one_later() {
        let pool = Pool::new(8 << 20).unwrap();
        pool.open(None);
        let threads = [vec![chunk(&pool, &[1, 4])], vec![chunk(&pool, &[2])]];
        let mut merge = Merge::new(threads.iter().map(|chunks| chunks.iter().copied()));
        assert!(merge.next(u64::MAX).is_some() && merge.next_if(u64::MAX, |event| event.timestamp != 2).is_none());
        merge.mark(1);
        assert_eq!((threads[0][0].consumed(), threads[1][0].consumed()), (1, 0));
        assert_eq!(read(&threads, u64::MAX, 2), [2, 4]);
    }

    #[test]
    fn of_the_same_time_registrations_come_first() {
        let pool = Pool::new(8 << 20).unwrap();
        pool.open(None);
        let lanes = [EventKind::Unregister, EventKind::Load, EventKind::Move].map(|kind| {
            pool.replenish(1);
            let mut cursor = pool.take(FIRST_SIZE).unwrap();
            cursor.commit(event(kind, 5, 0));
            [cursor.chunk()]
        });
        let mut merge = Merge::new(lanes.iter().map(|chunks| chunks.iter().copied()));
        let kinds: Vec<EventKind> = std::iter::from_fn(|| merge.next(5)).map(|(_, event)| event.kind).collect();
        assert_eq!(kinds, [EventKind::Load, EventKind::Unregister, EventKind::Move]);
    }
}
