//! Damaged recordings and dumps: no panic, no endless loop, and no file but the output and its objects.

use std::fs;

use jitsym_tool::inject::{inject, Given, Options};

use super::damage::damage;
use super::refusals::recording;
use super::rng::Random;
use crate::support::*;

#[test]
fn damaged_recordings() {
    let options: [(&str, &[&str]); 2] = [("damaged", &["-k", "1", "-g"]), ("damaged-z", &["-k", "1", "-z", "-g"])];
    let given = std::env::var("JITSYM_INJECT_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = given.unwrap_or_else(now);
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for (name, options) in options {
        let (dir, data, dump) = recording(name, options);
        let (whole, code) = (fs::read(&data).expect("recording"), fs::read(&dump).expect("dump"));
        let others = [whole.clone(), code.clone()];
        let given = Given { dumps: vec![(None, dump.clone())], search: Vec::new() };
        let mut good = 0;
        for round in 0..if thorough() { 2000 } else { 60 } {
            let (mut bad, mut bad_code) = (whole.clone(), code.clone());
            // The first round is the control.
            if round % 4 != 3 && round > 0 {
                damage(&mut bad, &others, &mut random);
            }
            if round % 2 == 1 {
                damage(&mut bad_code, &others, &mut random);
            }
            let inside = dir.join("inside");
            fs::create_dir(&inside).expect("directory");
            let (input, output) = (dir.join("bad.data"), inside.join("jit.data"));
            fs::write(&input, &bad).expect("write");
            fs::write(&dump, &bad_code).expect("write");
            let options = Options { input: input.clone(), output, given: given.clone(), ..Options::default() };
            let result = inject(&options, &mut |_, _| Ok(()));
            good += usize::from(result.is_ok());
            assert!(round > 0 || result.is_ok(), "{result:?}");
            let names = fs::read_dir(&inside).expect("directory").map(|entry| entry.expect("entry").file_name());
            for name in names {
                let is_output = result.is_ok() && (name == "jit.data" || name == "jit.data.objects");
                assert!(is_output, "round {round} of seed {seed}: {name:?}");
            }
            assert!(fs::read(&input).expect("input") == bad && fs::read(&dump).expect("dump") == bad_code);
            fs::remove_dir_all(&inside).expect("remove");
        }
        assert!(good > 10, "{good} were good");
    }
}
