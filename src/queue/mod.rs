//! The code that registering threads and the writer share: memory for records, and messages in both directions.

pub mod chunk;
pub mod file_thread;
pub mod file_write_gate;
pub mod oneshot;
pub mod pool;
pub mod process_state;
pub mod quiesce;
pub mod record;
pub mod requests;
pub mod shared;
pub mod signal_flush;
pub mod spool;
pub mod status;
pub mod thread_queue;
pub mod thread_slot;
pub mod writer_in_calls;
