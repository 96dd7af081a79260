//! A map from names to numbers, for file names and function names in DWARF.

use crate::sys::sort::sort;

/// Maps each name to a number, which is 0 at first. Equal names share a number. Usually there is only one name.
#[derive(Debug)]
pub struct Numbers<'a> {
    only: Option<(&'a [u8], u32)>,
    /// The names in sorted order, or an empty list if there is only one name.
    all: Vec<(&'a [u8], u32)>,
}

impl<'a> Numbers<'a> {
    /// `None` if there is no memory.
    pub fn new(names: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Numbers<'a>> {
        let mut all = Vec::new();
        let mut last = names.clone().next();
        let only = last.map(|name| (name, 0)).filter(|&(only, _)| names.clone().all(|name| are_same(only, name)));
        if only.is_some() {
            return Some(Numbers { only, all });
        }
        for name in names {
            if all.is_empty() || !last.is_some_and(|last| are_same(last, name)) {
                all.try_reserve(1).ok()?;
                all.push((name, 0));
                last = Some(name);
            }
        }
        sort(&mut all);
        all.dedup();
        Some(Numbers { only, all })
    }

    /// Returns the name and its number if there is only one name.
    pub fn only(&mut self) -> Option<(&'a [u8], &mut u32)> {
        self.only.as_mut().map(|(name, number)| (*name, number))
    }

    /// The number of a name; `None` if the name is unknown.
    #[inline]
    pub fn of(&mut self, name: &[u8]) -> Option<&mut u32> {
        match &mut self.only {
            Some((only, number)) if are_same(only, name) => Some(number),
            _ => {
                let at = self.all.binary_search_by(|(other, _)| (*other).cmp(name)).ok()?;
                Some(&mut self.all[at].1)
            }
        }
    }
}

/// Whether two names are equal. Compares the addresses first, because most equal names are at the same address.
#[inline]
pub fn are_same(one: &[u8], other: &[u8]) -> bool {
    std::ptr::eq(one, other) || one == other
}
