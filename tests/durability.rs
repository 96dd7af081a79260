//! What outlives a process that is killed, a disk that is slow or full, and a spool that is damaged.
//!
//! `c-tests/durability/kill_me.c` registers code and notes in a file of its own which calls have returned; the tests end it at
//! random moments and hold the map and the jitdump against these notes, before and after `jitsym recover`. Nothing here
//! is about time: how much was lost before the recovery, or how long a call took, is printed and not judged.
//!
//! The normal run has 20 rounds of killing; with `JITSYM_LONG_TESTS=1` in the environment there are 240, and as many
//! times more of everything else that is random. Each test prints its seed; `JITSYM_TEST_SEED` sets it, to see the same
//! choices again (though not the same moments).
//!
//! Tests that need a file system of their own mount one in a private mount namespace, which takes root; another user's
//! run says that it leaves them out.

mod check;
mod crafted;
mod dead_disk;
mod garbage;
mod kills;
mod moments;
mod plan;
pub mod recover;
mod recoveries;
mod run;
mod slow_disk;
mod spool_places;
