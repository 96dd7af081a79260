//! Files of the corpus, and ways to damage them.

use crate::rng::Random;
use crate::support::root;

/// The files of the corpus, in the order of their names.
pub fn corpus() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(root().join("tool/tests/corpus")).expect("corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "dump" || end == "map"));
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).expect("file")).collect()
}

/// Numbers at which arithmetic goes wrong.
const ODD: [u64; 12] = [0, 1, 15, 16, 17, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Damages a file in some places. Parts of the other files may get into it.
pub fn damage(file: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.below(4) {
        if file.is_empty() {
            return;
        }
        let at = random.below(file.len());
        match random.below(7) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file.truncate(at),
            2 => drop(file.drain(at..(at + random.below(40)).min(file.len()))),
            3 => {
                let wide = ODD[random.below(ODD.len())].to_le_bytes();
                let wide = &wide[..[1, 4, 8][random.below(3)]];
                // Fields are aligned more often than not.
                let at = if random.below(4) == 0 { at } else { at & !3 };
                let end = (at + wide.len()).min(file.len());
                file[at..end].copy_from_slice(&wide[..end - at]);
            }
            4 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len());
                let part = other[from..(from + random.below(100)).min(other.len())].to_vec();
                drop(file.splice(at..at, part));
            }
            5 => {
                let part = file[at..(at + random.below(200)).min(file.len())].to_vec();
                drop(file.splice(at..at, part));
            }
            _ => file[at] = random.below(256) as u8,
        }
    }
}
