//! What a caller does: registers code with one of a few descriptions, after a small change to the description or to the size of
//! the code.

use proptest::prelude::*;
use proptest::sample::Index;

use super::model::{Description, Saved};
use super::section::Section;

/// The largest code.
pub const SIZE_MAX: u64 = 0x2000;

#[derive(Clone, Debug)]
pub enum Given {
    Described(Description),
    Section(Section),
}

/// A small change to a description, if it has what is to be changed.
#[derive(Clone, Debug)]
pub enum Change {
    None,
    CfaOffset(i32),
    SavedOffset(Index, i32),
    SavedRegister(Index, u32),
    Forget(Index),
    /// One of the places or rows lies elsewhere, or (0) nowhere in particular.
    Place(Index, i32),
}

/// The size of the code: as it was, a bit different, or up to one of the places.
#[derive(Clone, Debug)]
pub enum Size {
    Same,
    Other(i64),
    Place(Index, i64),
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Which description, modulo their number.
    pub which: usize,
    pub change: Change,
    pub size: Size,
    /// What stands in fields that are of no meaning.
    pub garbage: u32,
    /// A caller from the future has a larger struct.
    pub larger: bool,
    /// The row's size is left to the library.
    pub row_size_known: bool,
    /// The name has to be cleaned, which takes another way through the library.
    pub unclean: bool,
    /// Declared with a gap behind it.
    pub gap: bool,
    /// Moved once more.
    pub moved: bool,
}

pub fn step() -> impl Strategy<Value = Step> {
    let delta = || prop_oneof![Just(8), Just(-8), Just(1), Just(-16)];
    let change = prop_oneof![
        6 => Just(Change::None),
        1 => delta().prop_map(Change::CfaOffset),
        2 => (any::<Index>(), delta()).prop_map(|(at, by)| Change::SavedOffset(at, by)),
        1 => (any::<Index>(), 0u32..34).prop_map(|(at, to)| Change::SavedRegister(at, to)),
        1 => any::<Index>().prop_map(Change::Forget),
        3 => (any::<Index>(), -1..=1).prop_map(|(at, by)| Change::Place(at, by)),
    ];
    let size = prop_oneof![
        4 => Just(Size::Same),
        3 => (-9i64..=9).prop_map(Size::Other),
        3 => (any::<Index>(), -1i64..=9).prop_map(|(at, by)| Size::Place(at, by)),
    ];
    let garbage = prop_oneof![2 => Just(0), 1 => any::<u32>()];
    let flags =
        (prop::bool::weighted(0.1), any::<bool>(), prop::bool::weighted(0.2), any::<bool>(), prop::bool::weighted(0.1));
    (0usize..24, change, size, garbage, flags).prop_map(|(which, change, size, garbage, flags)| {
        let (larger, row_size_known, unclean, gap, moved) = flags;
        Step { which, change, size, garbage, larger, row_size_known, unclean, gap, moved }
    })
}

impl Change {
    fn saved(&self, saved: &mut Saved) {
        let at = |index: &Index| (!saved.is_empty()).then(|| index.index(saved.len()));
        match self {
            Change::SavedOffset(index, by) => {
                if let Some(at) = at(index) {
                    saved[at].offset = saved[at].offset.wrapping_add(*by);
                }
            }
            Change::SavedRegister(index, to) => {
                if let Some(at) = at(index) {
                    saved[at].reg = *to;
                }
            }
            Change::Forget(index) => {
                if let Some(at) = at(index) {
                    saved.remove(at);
                }
            }
            Change::None | Change::CfaOffset(_) | Change::Place(..) => {}
        }
    }

    pub fn apply(&self, description: &mut Description) {
        let moved = |place: &mut u32, by: i32| *place = if by == 0 { 0 } else { place.wrapping_add_signed(by) };
        match description {
            Description::FramePointer(places, cfa_offset, saved) => {
                match self {
                    Change::CfaOffset(by) => *cfa_offset = cfa_offset.wrapping_add(*by),
                    Change::Place(index, by) => moved(places.all().swap_remove(index.index(5)), *by),
                    _ => {}
                }
                self.saved(saved);
            }
            Description::FixedFrame(places, cfa_offset, saved) => {
                match self {
                    Change::CfaOffset(by) => *cfa_offset = cfa_offset.wrapping_add(*by),
                    Change::Place(index, by) => moved(places.all().swap_remove(index.index(6)), *by),
                    _ => {}
                }
                self.saved(saved);
            }
            Description::Rows(rows) if rows.is_empty() => {}
            Description::Rows(rows) => {
                let at = rows.len() - 1;
                match self {
                    Change::CfaOffset(by) => rows[at].cfa_offset = rows[at].cfa_offset.wrapping_add(*by),
                    Change::Place(index, by) => {
                        let at = index.index(rows.len());
                        moved(&mut rows[at].offset, *by);
                    }
                    _ => {}
                }
                self.saved(&mut rows[at].saved);
            }
        }
    }
}

impl Size {
    pub fn apply(&self, given: &Given, size: u64) -> u64 {
        let by = |size: u64, by: i64| size.saturating_add_signed(by).clamp(1, SIZE_MAX);
        match (self, given) {
            (Size::Place(index, delta), Given::Described(Description::FramePointer(places, ..))) => {
                by((*places.clone().all().swap_remove(index.index(5))).into(), *delta)
            }
            (Size::Place(index, delta), Given::Described(Description::FixedFrame(places, ..))) => {
                by((*places.clone().all().swap_remove(index.index(6))).into(), *delta)
            }
            (Size::Place(index, delta), Given::Described(Description::Rows(rows))) if !rows.is_empty() => {
                by(index.get(rows).offset.into(), *delta)
            }
            (Size::Other(delta), _) => by(size, *delta),
            _ => size,
        }
    }
}
