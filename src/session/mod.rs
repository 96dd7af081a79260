//! Opens and closes sessions, handles their calls, and continues them in forked children.

mod alloc;
mod autoload;
pub mod bridge;
mod calls;
pub mod collector;
mod config;
mod config_slots;
mod exit;
mod explain;
mod flush_in_handler;
pub mod fork;
mod handle;
mod host_mistakes;
mod lifecycle;
mod opening;
pub mod process;
pub mod register;
mod rust_api;
pub mod stack;
#[cfg(test)]
mod tests;
mod trampoline;
mod wanted;
mod writer_thread;

pub(crate) use calls::{close, find, not_registered};
pub use config::{clean_dirs, spool_dir};
pub use explain::{doubt, last_error, refused, sink_words, turns_off};
pub use flush_in_handler::flush_from_signal;
pub(crate) use handle::is_off;
pub(crate) use register::{check_range, register_as_usual, usual_local, Given, Local};
pub(crate) use rust_api::open;
pub use rust_api::Session;
pub(crate) use wanted::wanted;
