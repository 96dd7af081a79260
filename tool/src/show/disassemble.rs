//! Instructions, as the program `objdump` prints them.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

/// Runs `objdump` for one piece of code after the other, with the code in a file without a name.
pub struct Disassembler {
    file: File,
}

impl Disassembler {
    /// Fails if there is no `objdump`, or no place for a file.
    pub fn new() -> io::Result<Self> {
        Command::new("objdump").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(
            |error| io::Error::new(error.kind(), format!("cannot start objdump, which disassembles: {error}")),
        )?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir())?;
        Ok(Disassembler { file })
    }

    pub(super) fn write(&mut self, machine: u32, addr: u64, code: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let Some(name) = objdump_name(machine) else {
            return writeln!(out, "    objdump has no name for machine {machine}");
        };
        if code.is_empty() {
            return Ok(());
        }
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(code)?;
        let mut command = Command::new("objdump");
        command.args(["-D", "-b", "binary", "-m", name, &format!("--adjust-vma={addr:#x}"), "/dev/stdin"]);
        let output = command.env("LC_ALL", "C").stdin(self.file.try_clone()?).output()?;
        if !output.status.success() {
            let problem = String::from_utf8_lossy(&output.stderr);
            return writeln!(out, "    objdump fails: {}", problem.lines().next().unwrap_or_default());
        }
        // Behind the name of the section, which says nothing.
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().skip_while(|line| !line.contains("<.data>:")).skip(1);
        for line in lines.filter(|line| !line.is_empty()) {
            writeln!(out, "    {}", line.trim_start())?;
        }
        Ok(())
    }
}

fn objdump_name(machine: u32) -> Option<&'static str> {
    Some(match machine {
        3 => "i386",
        40 => "arm",
        62 => "i386:x86-64",
        183 => "aarch64",
        243 => "riscv:rv64",
        _ => return None,
    })
}
