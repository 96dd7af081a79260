//! Determines which debugger traces this process.

/// The debuggers that read the list of code that a process generates at run time (`sys::debugger`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debugger {
    Gdb,
    Lldb,
}

/// Returns the debugger that traces this process. Returns `None` if no program traces this process, if the tracer is neither
/// gdb nor lldb, or if `/proc` does not show the tracer.
pub fn debugger() -> Option<Debugger> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:\t"))?;
    // Without a tracer the pid is 0, and reading the name fails.
    let read = |what| std::fs::read(format!("/proc/{tracer}/{what}")).ok();
    let name = read("comm")?;
    // If the debugger was started through the loader (`ld-linux-x86-64.so.2 gdb`), the process has the loader's name. In that
    // case the command line contains the debugger's name.
    called(&if name.starts_with(b"ld") { read("cmdline")? } else { name })
}

/// Returns the debugger that has this name or command line. Names of debuggers are, for example, gdb, gdbserver, gdb-multiarch,
/// `.gdb-wrapped`, lldb-server and lldb-server-14. The program `lldb` does not trace a process itself. `lldb` and editors start
/// another program to trace the process, such as lldb-server or gdb.
fn called(name: &[u8]) -> Option<Debugger> {
    let has = |part: &[u8]| name.windows(part.len()).any(|found| found == part);
    match () {
        () if has(b"lldb") => Some(Debugger::Lldb),
        () if has(b"gdb") => Some(Debugger::Gdb),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debuggers_are_known_by_their_names() {
        for (kind, names) in [
            (Some(Debugger::Gdb), &["gdb", "gdbserver", "gdb-multiarch", ".gdb-wrapped"][..]),
            (Some(Debugger::Lldb), &["lldb-server", "lldb-server-14.", "lldb"]),
            (None, &["strace", "ltrace", "perf", "jitsym", "gd", "", "\n"]),
        ] {
            names.iter().for_each(|name| assert_eq!(called(name.as_bytes()), kind, "{name}"));
        }
    }
}
