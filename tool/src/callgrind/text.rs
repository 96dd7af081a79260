//! Stores each text only once, because many texts occur often.

use std::collections::HashMap;
use std::rc::Rc;

/// The number of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(u32);

/// The texts of a callgrind file and of the files that name its functions.
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
