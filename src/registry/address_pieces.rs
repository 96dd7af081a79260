//! Pieces of the address space, each with the name of the code that was live there last.
//!
//! All pieces are in one table. The pieces of dead code form a list, in the order in which the code was unregistered or
//! overwritten.

use std::ops::{Index, IndexMut};

use super::names::Name;
use crate::sys::mapping::Table;

/// Means "no piece" or "no slot".
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub start: u64,
    pub name: Name,
    pub size: u32,
    /// The slot of the live registration to which the piece belongs, or `NONE` if the piece is dead.
    owner: u32,
    /// The neighbours of a dead piece in the list of dead pieces. If the number of this piece is free, `after` is the next free
    /// number or `NONE`.
    before: u32,
    after: u32,
}

const _: () = assert!(size_of::<Piece>() == 32);

impl Piece {
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.size)
    }

    pub fn owner(&self) -> Option<u32> {
        (self.owner != NONE).then_some(self.owner)
    }
}

/// All pieces. Each piece has a number.
#[derive(Debug)]
pub struct Pieces {
    all: Table<Piece>,
    free: u32,
    oldest_dead: u32,
    newest_dead: u32,
    dead: usize,
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces { all: Table::default(), free: NONE, oldest_dead: NONE, newest_dead: NONE, dead: 0 }
    }
}

impl Index<u32> for Pieces {
    type Output = Piece;

    fn index(&self, number: u32) -> &Piece {
        &self.all[number as usize]
    }
}

impl IndexMut<u32> for Pieces {
    fn index_mut(&mut self, number: u32) -> &mut Piece {
        &mut self.all[number as usize]
    }
}

impl Pieces {
    pub fn dead(&self) -> usize {
        self.dead
    }

    /// Makes room for this many more pieces. False if memory is short.
    pub fn make_room(&mut self, more: usize) -> bool {
        self.all.try_reserve(more).is_ok()
    }

    /// Adds a piece that has no owner and is not in the list of dead pieces. The caller then assigns or retires the piece.
    pub fn add(&mut self, start: u64, size: u32, name: Name) -> u32 {
        let piece = Piece { start, name, size, owner: NONE, before: NONE, after: NONE };
        if self.free == NONE {
            self.all.push(piece);
            return (self.all.len() - 1) as u32;
        }
        let number = self.free;
        self.free = self[number].after;
        self[number] = piece;
        number
    }

    /// Frees the number of a piece that is not in the list of dead pieces.
    pub fn release(&mut self, number: u32) {
        let free = self.free;
        // The name of a free number is empty.
        self[number] = Piece { start: 0, name: Name::default(), size: 0, owner: NONE, before: NONE, after: free };
        self.free = number;
    }

    /// Assigns a piece to a live registration. The piece must not be in the list of dead pieces.
    pub fn assign(&mut self, number: u32, owner: u32) {
        self[number].owner = owner;
    }

    /// Appends a piece to the list of dead pieces, because the registration of its code has just ended.
    pub fn retire(&mut self, number: u32) {
        let before = std::mem::replace(&mut self.newest_dead, number);
        let piece = &mut self[number];
        (piece.owner, piece.before, piece.after) = (NONE, before, NONE);
        match before {
            NONE => self.oldest_dead = number,
            before => self[before].after = number,
        }
        self.dead += 1;
    }

    /// Takes a piece out of the list of dead pieces.
    pub fn unlink(&mut self, number: u32) {
        let Piece { before, after, .. } = self[number];
        match before {
            NONE => self.oldest_dead = after,
            before => self[before].after = after,
        }
        match after {
            NONE => self.newest_dead = before,
            after => self[after].before = before,
        }
        self.dead -= 1;
    }

    /// The dead piece that has been dead for the longest time.
    pub fn oldest_dead(&self) -> Option<u32> {
        (self.oldest_dead != NONE).then_some(self.oldest_dead)
    }

    /// The names of all pieces. A piece whose number is not in use has an empty name.
    pub fn names_mut(&mut self) -> impl Iterator<Item = &mut Name> {
        self.all.iter_mut().map(|piece| &mut piece.name)
    }

    /// The largest number of pieces that have existed at the same time.
    #[cfg(test)]
    pub fn most(&self) -> usize {
        self.all.len()
    }
}
