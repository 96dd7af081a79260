//! `jitsym export` and the objects that it writes, as nm, objdump, addr2line, readelf and gdb read them; random code; damaged files.

// Not all of what it makes is needed here.
#[allow(dead_code)]
#[path = "check/build.rs"]
mod build;
#[path = "check/damage.rs"]
mod damage;
#[path = "export/hostile.rs"]
mod hostile;
#[path = "export/process.rs"]
mod process;
#[path = "export/random.rs"]
mod random;
#[cfg(target_arch = "x86_64")]
#[path = "export/real.rs"]
mod real;
#[path = "check/random.rs"]
mod rng;
#[path = "../../tests/support/mod.rs"]
mod support;
