//! Texts that occur often, each kept once.

use std::collections::HashMap;
use std::rc::Rc;

/// A text by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(u32);

/// All texts of a file and of those that name its functions.
#[derive(Default)]
pub struct Texts {
    numbers: HashMap<Rc<[u8]>, Text>,
    all: Vec<Rc<[u8]>>,
}

impl Texts {
    pub fn add(&mut self, text: &[u8]) -> Text {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let (number, text) = (Text(self.all.len() as u32), Rc::<[u8]>::from(text));
        self.all.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    pub fn get(&self, text: Text) -> &[u8] {
        &self.all[text.0 as usize]
    }
}
