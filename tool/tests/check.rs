//! `jitsym check`, `dump` and `stat`: every rule, what they say of files of other producers, and that no bytes are too odd.

#[path = "check/build.rs"]
mod build;
#[path = "check/cases.rs"]
mod cases;
#[path = "check/clean.rs"]
mod clean;
#[path = "check/corpus.rs"]
mod corpus;
#[path = "check/damage.rs"]
mod damage;
#[path = "check/frames.rs"]
mod frames;
#[path = "check/hostile.rs"]
mod hostile;
#[path = "check/mutations.rs"]
mod mutations;
#[path = "../../tests/support/perf.rs"]
mod perf;
#[path = "check/perf_agrees.rs"]
mod perf_agrees;
#[path = "check/program.rs"]
mod program;
#[path = "check/random.rs"]
mod rng;
#[path = "check/rules.rs"]
mod rules;
#[path = "../../tests/support/mod.rs"]
mod support;
