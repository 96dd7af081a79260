//! A thread's queue to the writer: writes records into the thread's chunk, changes chunks, and sends full chunks to the
//! writer.

use std::sync::Arc;

use crate::api::error::{Error, Result};
use crate::queue::chunk::{first_size_for, Cursor, BODY_MAX, CHUNK_SIZE};
use crate::queue::quiesce::HELD_FOR;
use crate::queue::record::Event;
use crate::queue::shared::{Message, Shared};
use crate::queue::thread_slot::ThreadSlot;

#[repr(C)]
pub struct ThreadQueue {
    pub shared: &'static Shared,
    slot: Arc<ThreadSlot>,
    cursor: Option<Cursor>,
}

/// Writes one record.
pub trait Fill {
    /// Whether the record ends or moves code that is registered already, perhaps by another thread.
    const REFERS: bool;
    /// A lower bound for the body's length.
    fn least_len(&self) -> usize {
        0
    }
    fn exact_len(&self) -> Result<usize> {
        Ok(self.least_len())
    }
    /// Writes the body to the start of `room` and returns the record's event, which includes the body's length. `None` if
    /// `room` is too small: in that case the caller calls `fill` again with more room.
    fn fill(&self, room: &mut [u8], timestamp: u64) -> Result<Option<Event>>;
}

impl ThreadQueue {
    pub fn new(shared: &'static Shared) -> Result<ThreadQueue> {
        Ok(ThreadQueue { shared, slot: shared.attach()?, cursor: None })
    }

    /// Begins the record of a registration. The caller takes the record's time after this call, and calls `end_at_once` in
    /// any case. Returns `None` if the thread has no chunk that it may use now.
    ///
    /// Only the usual registration uses `begin_at_once` and `end_at_once`. All other records use [`ThreadQueue::append`] with a
    /// [`Fill`]. Without a [`Fill`], the compiler stores the event's fields from registers directly into the chunk. With a
    /// [`Fill`], the compiler would first store the event elsewhere in memory and then copy it. The copy would take a quarter
    /// of the registration's time: its loads differ in size from the stored fields, so the processor could not forward the
    /// stored data to the loads.
    #[inline(always)]
    pub fn begin_at_once(&mut self) -> Option<&mut Cursor> {
        self.slot.begin();
        self.shared.order();
        match &mut self.cursor {
            Some(cursor) if self.slot.is_kept() => Some(cursor),
            _ => None,
        }
    }

    /// Prefetches the memory of the next record.
    #[inline(always)]
    pub fn ask_ahead(&self) {
        if let Some(cursor) = &self.cursor {
            cursor.ask_ahead();
        }
    }

    /// Ends the record that `begin_at_once` has begun, whether or not the record was published. A read that follows this call
    /// in the program is not executed before this call (`Shared::order`).
    #[inline(always)]
    pub fn end_at_once(&mut self) {
        self.slot.end();
        self.shared.end_record();
    }

    /// Returns 0 if this thread's chunk shows that the writer has read all records of this thread. Otherwise returns the
    /// present time. Once the writer has read all records up to the returned time, it has read all records of this thread.
    pub fn unread_until(&self) -> u64 {
        self.slot.begin();
        self.shared.order();
        let chunk = self.cursor.as_ref().filter(|_| self.slot.is_kept()).map(Cursor::chunk);
        let is_read = chunk.is_some_and(|chunk| chunk.committed() > 0 && chunk.consumed() == chunk.committed());
        self.slot.end();
        if is_read {
            0
        } else {
            self.shared.clock.now()
        }
    }

    /// Writes one record. After an error, nothing of the record is published. The error `NotRunning` means that all sinks
    /// ended during the call.
    ///
    /// The record's time is taken once there is room. If the call had to wait for room, the time stamp is later than the start
    /// of the call. The time stamp may be any time during the call, because the code does not run before the call returns.
    pub fn append(&mut self, record: &impl Fill) -> Result<()> {
        if record.least_len() > BODY_MAX {
            return self.append_large(record);
        }
        let mut size = first_size_for(record.least_len());
        loop {
            if self.cursor.is_some() {
                self.enter()?;
                // `enter` sets `cursor` to `None` if the writer has taken the chunk since the last record.
                let filled = self.cursor.as_mut().map(|cursor| fill_and_commit(cursor, self.shared, record));
                let full = self.cursor.as_ref().map(|cursor| (cursor.chunk().size(), cursor.is_empty()));
                self.slot.end();
                if filled.transpose()? == Some(true) {
                    self.shared.end_record();
                    return Ok(());
                }
                size = match full {
                    Some((CHUNK_SIZE.., true)) => return self.append_large(record),
                    // The chunk is empty, but too small for the record.
                    Some((_, true)) => CHUNK_SIZE,
                    Some((size, false)) => (2 * size).min(CHUNK_SIZE),
                    None => size,
                };
            }
            self.change_chunk(size, record.least_len())?;
        }
    }

    /// Writes a record that is too large for a full-size chunk. The record gets a separate chunk.
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
            // The writer has to receive this thread's earlier records before it receives the new record.
            .and_then(|()| self.hand_over())
            .and_then(|()| self.shared.send(Message::Full { slot: self.slot.number, chunk }));
        self.slot.end();
        if sent.is_err() {
            pool.recycle(chunk);
        } else if self.shared.in_place.is_used() {
            self.shared.hurry();
        }
        self.shared.end_record();
        sent
    }

    /// Announces a record to the writer. From here until `ThreadSlot::end`, the writer does not take the chunk.
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

    /// Whether the thread's chunk has room for a body of this length.
    pub fn has_room(&self, body: usize) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.room_len() >= Some(body))
    }

    /// Hands the full chunk over to the writer and takes another chunk with room for a body of this length. The function does
    /// not wait for a free chunk, and takes no new memory. If the change is not possible at once, the thread keeps its old
    /// chunk, and the function returns false. Most changes of chunks happen in this function, in the middle of a
    /// registration.
    #[cold]
    pub fn change_at_once(&mut self, body: usize) -> bool {
        // The chunk is not read before `enter`, because the writer may have taken the chunk and freed its memory.
        if self.enter().is_err() {
            return false;
        }
        let is_changed = self.exchange(body);
        self.slot.end();
        is_changed
    }

    /// Does the work of `change_at_once`. Must be called between `enter` and `ThreadSlot::end`.
    fn exchange(&mut self, body: usize) -> bool {
        let Some(full) = self.cursor.as_ref().filter(|cursor| !cursor.is_empty()).map(Cursor::chunk) else {
            return false;
        };
        let Some(next) = self.shared.next_chunk(full.size(), body) else { return false };
        // The chunk is sent before it is taken out of the slot, as in `hand_over`.
        if !self.shared.send_now(Message::Full { slot: self.slot.number, chunk: full }) {
            self.shared.pool.recycle(next.chunk());
            return false;
        }
        self.slot.set_current(Some(next.chunk()));
        self.cursor = Some(next);
        true
    }

    /// Hands over the current chunk, if the thread has one, and takes another chunk. If `change_at_once` succeeds, the new
    /// chunk has room for a body of `body` bytes; otherwise it has at least `size` bytes.
    #[cold]
    fn change_chunk(&mut self, size: usize, body: usize) -> Result<()> {
        if self.cursor.is_some() && self.change_at_once(body) {
            return Ok(());
        }
        // The writer frees chunks by writing them out. So this thread hands over its full chunk even if no other chunk is free.
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

    /// Hands the current chunk over to the writer. Must be called between `enter` and `ThreadSlot::end`.
    fn hand_over(&mut self) -> Result<()> {
        let Some(cursor) = &self.cursor else { return Ok(()) };
        // The chunk is sent first, and then taken out of the slot. The writer reads the slot first and then empties the
        // channel, so it finds the chunk in the slot, in the channel, or in both. The writer recycles no chunk that is still
        // in the slot.
        self.shared.send(Message::Full { slot: self.slot.number, chunk: cursor.chunk() })?;
        self.slot.set_current(None);
        self.cursor = None;
        Ok(())
    }

    /// Gives up the slot when the thread ends. The thread's chunk stays in the slot for the writer, because an ending thread
    /// cannot wait for room in the channel.
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
