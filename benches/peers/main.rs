//! What telling perf about a function costs: this library next to copying the same bytes, and next to how other runtimes do
//! it. `cargo bench`; docs/performance.md says how to read what it prints.
//!
//! One program in two roles. The harness starts itself again as a worker for every single measurement, the contenders of a
//! round one after another in random order, and compares within rounds.

mod args;
mod clock;
mod contenders;
mod files;
mod library;
mod machine;
mod measure;
mod pin;
mod plot;
mod record;
mod report;
mod rounds;
mod statistics;
mod syscalls;
mod targets;
mod task;
mod worker;

use args::Args;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == task::WORKER) {
        worker::run(&words[1..]);
        return;
    }
    let args = Args::parse(&words).unwrap_or_else(|message| {
        eprintln!("{message}\n\n{}", args::USAGE);
        std::process::exit(2);
    });
    machine::print();
    let results = rounds::run(&args);
    report::print(&args, &results);
    targets::print(&results);
    machine::compare(&results);
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::draw(&results)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
