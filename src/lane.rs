//! A thread's way to the writer: finds room for a record in the thread's chunk, changes chunks, and hands them over.

use std::sync::Arc;

use crate::chunk::{Cursor, Event, CHUNK_SIZE};
use crate::engine::{Engine, Message};
use crate::error::{Error, Result};
use crate::slot::Slot;

/// Bytes of a chunk that are not for bodies, generously.
const CHUNK_OVERHEAD: usize = 256;

/// See the module's description.
pub struct Lane {
    pub engine: &'static Engine,
    slot: Arc<Slot>,
    cursor: Option<Cursor>,
}

impl Lane {
    pub fn new(engine: &'static Engine) -> Result<Lane> {
        Ok(Lane { engine, slot: engine.attach()?, cursor: None })
    }

    /// Lays down one record: `fill` writes its body, is given the time, and says what the record is. An error of `fill`
    /// leaves no trace.
    ///
    /// The time is taken when there is room. A call that had to wait for it is stamped later than it began, which is as
    /// true: the code does not run before the call returns.
    pub fn append(&mut self, body_len: usize, fill: impl FnOnce(&mut [u8], u64) -> Result<Event>) -> Result<()> {
        while self.find_room(body_len)? {
            // While there was no record the writer may have taken the chunk.
            self.enter();
            if let Some(cursor) = &mut self.cursor {
                let result = fill_and_commit(cursor, body_len, self.engine.clock.now(), fill);
                self.slot.end();
                self.engine.wake_if_asleep();
                return result;
            }
            self.slot.end();
        }
        self.append_alone(body_len, fill)
    }

    /// Sees to it that the chunk has room for a body. False if no chunk has, or none is free.
    #[inline]
    fn find_room(&mut self, body_len: usize) -> Result<bool> {
        if self.cursor.as_mut().is_some_and(|cursor| cursor.room(body_len).is_some()) {
            return Ok(true);
        }
        if body_len > CHUNK_SIZE - CHUNK_OVERHEAD {
            return Ok(false);
        }
        self.change_chunk()
    }

    /// A record that no chunk can hold, or that finds none free, gets memory of its own.
    #[cold]
    fn append_alone(&mut self, body_len: usize, fill: impl FnOnce(&mut [u8], u64) -> Result<Event>) -> Result<()> {
        let body_fits = u32::try_from(body_len + CHUNK_OVERHEAD).is_ok() && self.engine.pool.can_hold(body_len);
        let chunk = if body_fits { self.engine.wait_for_own(body_len) } else { None };
        let Some(chunk) = chunk else {
            self.engine.counters.dropped.add(1);
            return Err(if body_fits { Error::Dropped } else { Error::NoMemory });
        };
        let mut cursor = Cursor::new(chunk);
        self.enter();
        let sent = fill_and_commit(&mut cursor, body_len, self.engine.clock.now(), fill)
            // What this thread laid down before has to be written before.
            .and_then(|()| self.hand_over())
            .and_then(|()| self.engine.send(Message::Full { slot: self.slot.number, chunk }));
        self.slot.end();
        if sent.is_err() {
            self.engine.pool.recycle(chunk);
        }
        self.engine.wake_if_asleep();
        sent
    }

    /// Announces a record, and sees to it that the writer does not take the chunk before `Slot::end`.
    #[inline]
    fn enter(&mut self) {
        loop {
            self.slot.begin();
            self.engine.order();
            if self.slot.is_kept() {
                return;
            }
            self.slot.end();
            if self.slot.settle() {
                self.cursor = None;
            }
        }
    }

    /// Hands over the current chunk and takes another one. False if none is free.
    #[cold]
    fn change_chunk(&mut self) -> Result<bool> {
        // The full one goes first, also if there is no other yet: writing it out is what makes one free.
        self.enter();
        let handed_over = self.hand_over();
        self.slot.end();
        handed_over?;
        let Some(chunk) = self.engine.take_chunk() else { return Ok(false) };
        self.cursor = Some(Cursor::new(chunk));
        self.slot.set_current(Some(chunk));
        Ok(true)
    }

    /// Gives the current chunk to the writer. To be called between `enter` and `Slot::end`.
    fn hand_over(&mut self) -> Result<()> {
        let Some(cursor) = &self.cursor else { return Ok(()) };
        // Sent first, and only then taken out of the slot: so the writer, which looks at the slot first and then empties the
        // channel, finds the chunk in one place at least. It recycles none that it still sees in the slot.
        self.engine.send(Message::Full { slot: self.slot.number, chunk: cursor.chunk() })?;
        self.slot.set_current(None);
        self.cursor = None;
        Ok(())
    }

    /// The thread ends.
    pub fn finish(&mut self) {
        self.enter();
        // If it cannot be sent it stays in the slot, where the writer finds it too.
        if self.hand_over().is_ok() {
            self.slot.detach();
        }
        self.slot.end();
    }
}

fn fill_and_commit(
    cursor: &mut Cursor,
    body_len: usize,
    timestamp: u64,
    fill: impl FnOnce(&mut [u8], u64) -> Result<Event>,
) -> Result<()> {
    let body = cursor.room(body_len).ok_or(Error::Internal)?;
    let event = fill(body, timestamp)?;
    cursor.commit(Event { timestamp, body_len: body_len as u32, ..event });
    Ok(())
}
