//! A plain reader of files of callgrind: everything in memory, all names whole, all positions absolute. It believes what it reads.

use std::collections::{BTreeMap, HashMap};

/// Object, file, name.
pub type Function = (String, String, String);
/// A function, the file of the place, address and line.
pub type Spot = (Function, String, u64, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub own: BTreeMap<Spot, Vec<u64>>,
    /// By the place of the call, the function and the place in it. The number of calls comes first.
    pub calls: BTreeMap<(Spot, Function, u64, u64), Vec<u64>>,
    pub jumps: BTreeMap<(Spot, String, u64, u64), Vec<u64>>,
    /// What the file says itself.
    pub totals: Vec<String>,
}

fn add(sums: &mut Vec<u64>, costs: impl Iterator<Item = u64>) {
    for (number, cost) in costs.enumerate() {
        sums.resize(sums.len().max(number + 1), 0);
        sums[number] += cost;
    }
}

fn number(word: &str) -> u64 {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).expect("number"),
        None => word.parse().unwrap_or_else(|_| panic!("{word}")),
    }
}

/// The position at the start of some words, relative to the last one, and the words after it.
fn position<'w, 'l>(words: &'w [&'l str], last: &[u64]) -> (Vec<u64>, &'w [&'l str]) {
    let one = |(word, &last): (&&str, &u64)| match word.as_bytes()[0] {
        b'*' => last,
        b'+' => last + number(&word[1..]),
        b'-' => last - number(&word[1..]),
        _ => number(word),
    };
    (words.iter().zip(last).map(one).collect(), &words[last.len()..])
}

impl Profile {
    pub fn read(text: &str) -> Profile {
        let mut profile = Profile::default();
        let mut names: HashMap<(&str, &str), &str> = HashMap::new();
        let mut now: HashMap<&str, &str> = HashMap::new();
        let (mut columns, mut last, mut waiting) = (vec!["line"], vec![0], None);
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(words) = line.strip_prefix("positions:") {
                columns = words.split_whitespace().collect();
                continue;
            }
            if line.starts_with("events:") {
                last = vec![0; columns.len()];
                continue;
            }
            if line.starts_with("totals:") || line.starts_with("summary:") {
                profile.totals.push(line.to_owned());
                continue;
            }
            let of = |at: &[u64], column: &str| {
                columns.iter().position(|name| *name == column).map_or(0, |column| at[column])
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            if line.starts_with(|c: char| "0123456789+-*".contains(c)) {
                let (at, costs) = position(&words, &last);
                last = at;
                let function = (now["ob"].to_owned(), now["fl"].to_owned(), now["fn"].to_owned());
                let spot = (function, now["file"].to_owned(), of(&last, "instr"), of(&last, "line"));
                let costs = costs.iter().map(|cost| number(cost));
                match waiting.take() {
                    None => add(profile.own.entry(spot).or_default(), costs),
                    Some((Some(callee), count, target)) => {
                        let target: Vec<u64> = target;
                        let key = (spot, callee, of(&target, "instr"), of(&target, "line"));
                        let counts: Vec<u64> = count;
                        add(profile.calls.entry(key).or_default(), counts.into_iter().chain(costs));
                    }
                    Some((None, count, target)) => {
                        let file = now.remove("jfi").unwrap_or(now["file"]).to_owned();
                        let key = (spot, file, of(&target, "instr"), of(&target, "line"));
                        add(profile.jumps.entry(key).or_default(), count.into_iter());
                    }
                }
                continue;
            }
            let Some((key, value)) =
                line.split_once('=').filter(|(key, _)| key.bytes().all(|c| c.is_ascii_lowercase()))
            else {
                continue;
            };
            if ["calls", "jump", "jcnd"].contains(&key) {
                let words: Vec<&str> = value.split_whitespace().collect();
                let counts = words[0].split('/').map(number).collect();
                let (target, _) = position(&words[1..], &last);
                let callee = (key == "calls").then(|| {
                    let object = now.remove("cob").unwrap_or(now["ob"]);
                    let file = now.remove("cfi").unwrap_or(now["file"]);
                    (object.to_owned(), file.to_owned(), now["cfn"].to_owned())
                });
                waiting = Some((callee, counts, target));
                continue;
            }
            let kind = &key[key.len() - 2..];
            let kind = if kind == "fl" || kind == "fe" { "fi" } else { kind };
            let is_numbered = value.starts_with('(') && value[1..].starts_with(|c: char| c.is_ascii_digit());
            let name = match value.split_once(')').filter(|_| is_numbered) {
                Some((number, "")) => names[&(kind, number)],
                Some((number, name)) => {
                    names.insert((kind, number), name.trim_start());
                    name.trim_start()
                }
                None => value,
            };
            now.insert(if key == "cfl" { "cfi" } else { key }, name);
            if ["fl", "fi", "fe"].contains(&key) {
                now.insert("file", name);
            }
        }
        profile
    }

    /// The same with other functions and places. A target is a place too.
    pub fn renamed(&self, rename: &dyn Fn(&Spot, bool) -> Spot) -> Profile {
        let mut new = Profile { totals: self.totals.clone(), ..Profile::default() };
        for (spot, costs) in &self.own {
            add(new.own.entry(rename(spot, false)).or_default(), costs.iter().copied());
        }
        for ((from, to, address, line), costs) in &self.calls {
            let (to, _, address, line) = rename(&(to.clone(), to.1.clone(), *address, *line), true);
            add(new.calls.entry((rename(from, false), to, address, line)).or_default(), costs.iter().copied());
        }
        for ((from, file, address, line), costs) in &self.jumps {
            // No test has jumps between functions.
            let (_, file, address, line) = rename(&(from.0.clone(), file.clone(), *address, *line), false);
            add(new.jumps.entry((rename(from, false), file, address, line)).or_default(), costs.iter().copied());
        }
        new
    }

    /// What is only in one of two, a line each.
    pub fn difference(&self, other: &Profile) -> String {
        fn lines<K: std::fmt::Debug>(map: &BTreeMap<K, Vec<u64>>) -> Vec<String> {
            map.iter().map(|entry| format!("{entry:?}")).collect()
        }
        let all = |profile: &Profile| {
            [lines(&profile.own), lines(&profile.calls), lines(&profile.jumps), profile.totals.clone()].concat()
        };
        let (here, there) = (all(self), all(other));
        let missing = here.iter().filter(|line| !there.contains(line)).map(|line| format!("\n- {line}"));
        let surplus = there.iter().filter(|line| !here.contains(line)).map(|line| format!("\n+ {line}"));
        missing.chain(surplus).collect()
    }

    /// What a function costs without those that it calls, and what all calls of it cost.
    pub fn costs(&self, name: &str) -> (u64, u64) {
        let own = self.own.iter().filter(|(spot, _)| spot.0 .2 == name).map(|(_, costs)| costs[0]).sum();
        let calls = self.calls.iter().filter(|(call, _)| call.1 .2 == name).map(|(_, costs)| costs[1]).sum();
        (own, calls)
    }
}
