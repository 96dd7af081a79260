//! The events of a recording, to be changed.

use std::fs;
use std::path::Path;

/// Kinds of events.
pub const SAMPLE: u32 = 9;
pub const DEFERRED: u32 = 22;

/// A recording in parts.
pub struct Parts {
    pub head: Vec<u8>,
    pub events: Vec<Vec<u8>>,
}

pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub fn kind(event: &[u8]) -> u32 {
    u32::from_ne_bytes(event[..4].try_into().expect("4 bytes"))
}

/// An event of these words.
pub fn event(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
    let size = 8 + 8 * words.len() as u16;
    let mut event = kind.to_ne_bytes().to_vec();
    event.extend([misc, size].map(u16::to_ne_bytes).concat());
    event.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    event
}

impl Parts {
    pub fn read(data: &Path) -> Parts {
        let bytes = fs::read(data).expect("recording");
        let (mut at, mut events) = (word(&bytes, 40) as usize, Vec::new());
        let (head, end) = (bytes[..at].to_vec(), at + word(&bytes, 48) as usize);
        while at < end {
            let size = usize::from(u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]));
            events.push(bytes[at..at + size].to_vec());
            at += size;
        }
        Parts { head, events }
    }

    /// Writes the recording without the features behind the events.
    pub fn write(&self, data: &Path) {
        let (mut head, events) = (self.head.clone(), self.events.concat());
        head[48..56].copy_from_slice(&(events.len() as u64).to_ne_bytes());
        head[72..104].fill(0);
        fs::write(data, [head, events].concat()).expect("recording");
    }
}
