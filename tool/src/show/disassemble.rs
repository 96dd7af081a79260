//! Disassembles instructions by the program `objdump`.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use super::block::Column;

/// Runs `objdump` for one piece of code at a time, with the code in an unnamed file.
pub struct Disassembler {
    file: File,
}

impl Disassembler {
    /// Fails if `objdump` does not exist, or a file cannot be created.
    pub fn new() -> io::Result<Self> {
        Command::new("objdump").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(
            |error| io::Error::new(error.kind(), format!("cannot start objdump, which disassembles: {error}")),
        )?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir())?;
        Ok(Disassembler { file })
    }

    /// The instructions with their addresses, or a line with the reason why there are none.
    pub(super) fn column(&mut self, machine: u32, addr: u64, code: &[u8]) -> io::Result<Column> {
        let Some(name) = objdump_name(machine) else {
            return Ok(vec![(addr, format!("objdump has no name for machine {machine}"))]);
        };
        if code.is_empty() {
            return Ok(Column::new());
        }
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(code)?;
        let mut command = Command::new("objdump");
        command.args(["-D", "-z", "-b", "binary", "-m", name, "--no-show-raw-insn"]);
        command.args([&format!("--adjust-vma={addr:#x}"), "/dev/stdin"]);
        let output = command.env("LC_ALL", "C").stdin(self.file.try_clone()?).output()?;
        if !output.status.success() {
            let problem = String::from_utf8_lossy(&output.stderr);
            return Ok(vec![(addr, format!("objdump fails: {}", problem.lines().next().unwrap_or_default()))]);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let instructions = text.lines().filter_map(|line| line.split_once(":\t"));
        let address = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
        let one =
            |(at, text): (&str, &str)| Some((address(at)?, text.split_whitespace().collect::<Vec<_>>().join(" ")));
        Ok(instructions.filter_map(one).collect())
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
