//! Finds out which debugger traces this process.

/// The debuggers that know the interface for code which is made at run time (`debugger`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debugger {
    Gdb,
    Lldb,
}

/// Returns `None` if no debugger traces the process, another program does, or `/proc` does not tell.
pub fn debugger() -> Option<Debugger> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:\t"))?;
    // Without a tracer the pid is 0, and reading the name fails.
    let read = |what| std::fs::read(format!("/proc/{tracer}/{what}")).ok();
    let name = read("comm")?;
    // If the loader runs the debugger (ld-linux-x86-64.so.2 gdb), the debugger has the loader's name.
    called(&if name.starts_with(b"ld") { read("cmdline")? } else { name })
}

/// The debugger, by the name of the tracing process: gdb, gdbserver, gdb-multiarch or `.gdb-wrapped`, lldb-server or
/// lldb-server-14. Programs that run a debugger for somebody (lldb, editors) do not trace themselves.
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
