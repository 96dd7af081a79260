//! A thread's queue to the writer: finds room for a record in the thread's chunk, changes chunks, and hands full ones over.

use std::sync::Arc;

use crate::api::error::{Error, Result};
use crate::queue::chunk::{first_size_for, Cursor, BODY_MAX, CHUNK_SIZE};
use crate::queue::quiesce::HELD_FOR;
use crate::queue::record::Event;
use crate::queue::shared::{Message, Shared};
use crate::queue::thread_slot::ThreadSlot;

/// See the module's description.
#[repr(C)]
pub struct ThreadQueue {
    pub shared: &'static Shared,
    slot: Arc<ThreadSlot>,
    cursor: Option<Cursor>,
}

/// The code that lays down one record.
pub trait Fill {
    /// The record is about other code than its own, which somebody else may have registered, or moves or ends code.
    const REFERS: bool;
    /// The least length of the body.
    fn least_len(&self) -> usize;
    /// The length of the body.
    fn exact_len(&self) -> Result<usize>;
    /// Writes the body to the start of `room` and returns the record's event, its length included. `None` if `room` is too small:
    /// then it is called again with more room.
    fn fill(&self, room: &mut [u8], timestamp: u64) -> Result<Option<Event>>;
}

impl ThreadQueue {
    pub fn new(shared: &'static Shared) -> Result<ThreadQueue> {
        Ok(ThreadQueue { shared, slot: shared.attach()?, cursor: None })
    }

    /// Begins the record of a registration, whose time is to be taken after this. `None` if the thread has no chunk. To be followed
    /// by `end_at_once` in any case.
    ///
    /// For the usual registration only, as its other half; all other records go through [`ThreadQueue::append`]. It has two halves
    /// and no [`Fill`], so that the event is written to its place from registers. An event that is built in memory and copied costs
    /// a quarter of the call, because the processor cannot forward pieces of what was just stored in other pieces.
    #[inline(always)]
    pub fn begin_at_once(&mut self) -> Option<&mut Cursor> {
        self.slot.begin();
        self.shared.order();
        match &mut self.cursor {
            Some(cursor) if self.slot.is_kept() => Some(cursor),
            _ => None,
        }
    }

    /// Asks for the memory that the next record is written to.
    #[inline(always)]
    pub fn ask_ahead(&self) {
        if let Some(cursor) = &self.cursor {
            cursor.ask_ahead();
        }
    }

    /// Ends what `begin_at_once` has begun, whether anything was published or not. What is read after this is read after it.
    #[inline(always)]
    pub fn end_at_once(&mut self) {
        self.slot.end();
        self.shared.wake_if_asleep();
    }

    /// Lays down one record. An error leaves no trace; `NotRunning` is that of a call that was overtaken by the end of all
    /// sinks.
    ///
    /// The time is taken when there is room. A call that had to wait for it is stamped later than it began, which is as
    /// true: the code does not run before the call returns.
    pub fn append(&mut self, record: &impl Fill) -> Result<()> {
        if record.least_len() > BODY_MAX {
            return self.append_large(record);
        }
        let mut size = first_size_for(record.least_len());
        loop {
            if self.cursor.is_some() {
                self.enter()?;
                // While there was no record the writer may have taken the chunk.
                let filled = self.cursor.as_mut().map(|cursor| fill_and_commit(cursor, self.shared, record));
                let full = self.cursor.as_ref().map(|cursor| (cursor.chunk().size(), cursor.is_empty()));
                self.slot.end();
                if filled.transpose()? == Some(true) {
                    self.shared.wake_if_asleep();
                    return Ok(());
                }
                size = match full {
                    Some((CHUNK_SIZE.., true)) => return self.append_large(record),
                    // The record alone fills it.
                    Some((_, true)) => CHUNK_SIZE,
                    Some((size, false)) => (2 * size).min(CHUNK_SIZE),
                    None => size,
                };
            }
            self.change_chunk(size, record.least_len())?;
        }
    }

    /// A record that is too large for a chunk of the pool gets a separate chunk, in which it is laid down as any other.
    #[cold]
    fn append_large(&mut self, record: &impl Fill) -> Result<()> {
        let len = record.exact_len()?;
        let pool = &self.shared.pool;
        let fits = pool.can_hold(len);
        let taken = if fits { self.shared.wait_for(|| pool.take_large(len)) } else { None };
        let Some(mut cursor) = taken else {
            if !fits {
                return Err(Error::NoMemory);
            }
            if self.shared.is_off() {
                return Err(Error::NotRunning);
            }
            self.shared.status.counters.dropped.add(1);
            return Err(Error::Dropped);
        };
        let chunk = cursor.chunk();
        let sent = self
            .enter()
            .and_then(|()| fill_and_commit(&mut cursor, self.shared, record))
            .and_then(|filled| filled.then_some(()).ok_or(Error::Internal))
            // This thread's earlier records have to be written before.
            .and_then(|()| self.hand_over())
            .and_then(|()| self.shared.send(Message::Full { slot: self.slot.number, chunk }));
        self.slot.end();
        if sent.is_err() {
            pool.recycle(chunk);
        }
        self.shared.wake_if_asleep();
        sent
    }

    /// Announces a record, and sees to it that the writer does not take the chunk before `ThreadSlot::end`.
    fn enter(&mut self) -> Result<()> {
        loop {
            self.slot.begin();
            self.shared.order();
            if self.slot.is_kept() {
                return Ok(());
            }
            self.slot.end();
            if self.slot.is_shut() {
                return Err(Error::Closed);
            }
            match self.slot.settle(HELD_FOR) {
                Some(true) => self.cursor = None,
                Some(false) => {}
                None => self.shared.status.quiesce.go_on(&self.slot),
            }
        }
    }

    /// Whether a body of this length fits the thread's chunk.
    pub fn has_room(&self, body: usize) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.room_len() >= Some(body))
    }

    /// Hands over a chunk that is full and takes the next one, with room for a body of this length, as far as nothing has to be
    /// waited for, and no memory made. Most changes are of this kind, and each is in the middle of a call.
    #[cold]
    pub fn change_at_once(&mut self, body: usize) -> bool {
        // Before anything is read of the chunk: the writer may have taken it, and its memory may be gone.
        if self.enter().is_err() {
            return false;
        }
        let is_changed = self.exchange(body);
        self.slot.end();
        is_changed
    }

    /// See `change_at_once`. To be called between `enter` and `ThreadSlot::end`.
    fn exchange(&mut self, body: usize) -> bool {
        let Some(full) = self.cursor.as_ref().filter(|cursor| !cursor.is_empty()).map(Cursor::chunk) else {
            return false;
        };
        let Some(next) = self.shared.next_chunk(full.size(), body) else { return false };
        // The full one is sent before it is taken out of the slot, as in `hand_over`.
        if !self.shared.send_now(Message::Full { slot: self.slot.number, chunk: full }) {
            self.shared.pool.recycle(next.chunk());
            return false;
        }
        self.slot.set_current(Some(next.chunk()));
        self.cursor = Some(next);
        true
    }

    /// Hands over the current chunk, if there is one, and takes another one: of at least this size, or a smaller one with room for a
    /// body of this length.
    #[cold]
    fn change_chunk(&mut self, size: usize, body: usize) -> Result<()> {
        if self.cursor.is_some() && self.change_at_once(body) {
            return Ok(());
        }
        // The full one goes first, also if there is no other yet: writing it out is what makes one free.
        self.enter()?;
        let has_filled_one = self.cursor.is_some();
        let handed_over = self.hand_over();
        self.slot.end();
        handed_over?;
        let shared = self.shared;
        let waits = || has_filled_one && shared.pool.is_ample();
        let taken =
            shared.take_chunk(size, has_filled_one).or_else(|| waits().then(|| shared.wait_for_writer(size))?);
        let taken = taken.or_else(|| shared.pool.take_new(size));
        let Some(cursor) = taken.or_else(|| shared.wait_for(|| shared.pool.take(size))) else {
            if shared.is_off() {
                return Err(Error::NotRunning);
            }
            shared.status.counters.dropped.add(1);
            return Err(Error::Dropped);
        };
        self.slot.set_current(Some(cursor.chunk()));
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Gives the current chunk to the writer. To be called between `enter` and `ThreadSlot::end`.
    fn hand_over(&mut self) -> Result<()> {
        let Some(cursor) = &self.cursor else { return Ok(()) };
        // Sent first, and only then taken out of the slot: so the writer, which looks at the slot first and then empties the
        // channel, finds the chunk in one place at least. It recycles none that it still sees in the slot.
        self.shared.send(Message::Full { slot: self.slot.number, chunk: cursor.chunk() })?;
        self.slot.set_current(None);
        self.cursor = None;
        Ok(())
    }

    /// The thread ends. Its chunk stays in the slot, where the writer finds it: a thread that ends cannot wait for anything.
    pub fn finish(&mut self) {
        self.cursor = None;
        self.slot.detach();
        self.shared.detached();
    }
}

fn fill_and_commit<R: Fill>(cursor: &mut Cursor, shared: &Shared, record: &R) -> Result<bool> {
    let Some(room) = cursor.room() else { return Ok(false) };
    let timestamp = if R::REFERS { shared.clock.now() } else { shared.clock.now_after_ends() };
    let Some(event) = record.fill(room, timestamp)? else { return Ok(false) };
    cursor.commit(event);
    if R::REFERS {
        shared.clock.note_end();
    }
    Ok(true)
}
