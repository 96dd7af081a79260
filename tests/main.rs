//! The integration tests. They are one program, so that a change of the library is linked once. `cargo xtask test` gives each test a
//! process.

mod abi;
mod abi_layout;
mod agents;
mod bridge;
mod c_tests;
mod cfi_tools;
mod collector;
mod cost;
mod cross;
mod debug;
mod debug_output;
mod dependencies;
mod docs;
mod durability;
mod ends;
mod exports;
mod faults;
mod fork_perf;
mod fork_rust;
mod go;
mod growth;
mod header;
mod in_process;
mod install;
mod late_perf;
mod loader;
mod luajit;
mod man;
mod managers;
mod matrix_truth;
mod node;
mod packages;
mod perf_jitdump;
mod perf_map;
mod probes;
mod python;
mod races;
mod readers;
mod regions;
mod release;
mod rooms;
mod runtimes;
mod samply;
mod several;
mod several_wasmtime;
mod soak;
mod stack;
mod static_libs;
mod steady_state;
mod support;
mod trampolines;
mod unwind_properties;
mod unwind_steps;
mod unwinder;
mod valgrind;

// What some of them share.
#[path = "support/bindings.rs"]
mod bindings;
#[path = "support/cfi.rs"]
mod cfi;
#[path = "support/declarations.rs"]
mod declarations;
#[path = "support/guests.rs"]
mod guests;
#[path = "support/headers.rs"]
mod headers;
#[path = "support/installed.rs"]
mod installed;
#[path = "support/instrumented.rs"]
mod instrumented;
#[path = "../man/mod.rs"]
mod pages;
#[path = "support/perf.rs"]
mod perf;
#[path = "support/reference.rs"]
mod reference;

// What `cargo xtask matrix` knows too.
#[allow(dead_code)]
#[path = "../xtask/src/annotate.rs"]
mod annotate;
#[allow(dead_code)]
#[path = "../xtask/src/score.rs"]
mod score;
#[allow(dead_code)]
#[path = "../xtask/src/script.rs"]
mod script;
#[allow(dead_code)]
#[path = "../xtask/src/truth.rs"]
mod truth;
