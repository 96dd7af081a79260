//! Stores texts that occur often by number.

use std::collections::HashMap;

#[derive(Debug, Default)]
pub struct Names {
    all: Vec<String>,
    ids: HashMap<String, u32>,
}

impl Names {
    pub fn id(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.all.len() as u32;
        self.all.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    pub fn name(&self, id: u32) -> &str {
        self.all.get(id as usize).map_or("", String::as_str)
    }
}
