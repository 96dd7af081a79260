//! Binds threads to processors, so that it is known whether memory passes from one core to another.

use std::mem::{size_of, zeroed};

use crate::measure::process;

/// The processor of the calling threads, and that of the contender's own.
#[derive(Clone, Copy)]
pub struct Pin(pub usize, pub usize);

impl Pin {
    /// `same` or `apart`. The first and the last processor: neighbours may be two threads of one core.
    pub fn parse(word: &str) -> Result<Pin, String> {
        // SAFETY: all fields are numbers; the call fills `size_of` bytes.
        let set = unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0);
            set
        };
        // SAFETY: the numbers are below the size of the set.
        let mut allowed = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
        let first = allowed.next().expect("a processor to run on");
        match (word, allowed.next_back()) {
            ("same", _) => Ok(Pin(first, first)),
            ("apart", Some(last)) => Ok(Pin(first, last)),
            ("apart", None) => Err("--pin apart needs two processors".into()),
            _ => Err(format!("{word}: neither same nor apart")),
        }
    }

    /// Before the contender is opened: every thread inherits it.
    pub fn bind_all(self) {
        bind(0, self.0);
    }

    /// Binds the threads whose name is not that of the callers.
    pub fn bind_background(self) {
        let name = |thread: u32| std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok();
        let callers = name(std::process::id());
        process::threads()
            .into_iter()
            .filter(|&thread| name(thread) != callers)
            .for_each(|thread| bind(thread, self.1));
    }
}

fn bind(thread: u32, cpu: usize) {
    // SAFETY: all fields are numbers, and the set is as large as it says. A thread that has just ended is not bound.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(thread as i32, size_of::<libc::cpu_set_t>(), &set);
    }
}
