//! The command-line program: `jitsym dump` prints a jitdump as text, `jitsym recover` completes the files of processes that
//! were killed, `jitsym clean` removes those of processes that are dead.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use jitsym::format::jitdump::{Header, Record, Records};

const USAGE: &str = "\
usage: jitsym dump FILE
       jitsym recover [--dir DIR] [PID]...
       jitsym clean [--dry-run] [--dir DIR]...
       jitsym version
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["dump", path] => std::fs::read(path)
            .and_then(|file| dump(&file, &mut io::stdout().lock()))
            .map_err(|error| format!("{path}: {error}")),
        ["recover", "--dir", dir, pids @ ..] => recover(Path::new(dir), pids),
        ["recover", pids @ ..] => recover(&jitsym::spool_dir(), pids),
        ["clean", options @ ..] => clean(options),
        ["version"] => {
            println!("jitsym {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{}", text.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Completes the files of all dead processes of this user that left a spool in `dir`, or of those with these pids.
fn recover(dir: &Path, pids: &[&str]) -> Result<(), String> {
    let pids: Vec<u32> =
        pids.iter().map(|pid| pid.parse().map_err(|_| format!("{pid}: no pid\n{USAGE}"))).collect::<Result<_, _>>()?;
    let wanted = |pid| pids.is_empty() || pids.contains(&pid);
    let reports = jitsym::recover(dir, &wanted).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut failed = false;
    for report in reports {
        let problems: String = report.problems.iter().map(|problem| format!("; {problem}")).collect();
        println!("{}: {} records completed{problems}", report.pid, report.records);
        failed |= report.kept;
    }
    if failed {
        return Err("some files are not complete; their spools are kept".into());
    }
    Ok(())
}

/// Removes maps, jitdumps and spools of this user's dead processes, and says which.
fn clean(mut options: &[&str]) -> Result<(), String> {
    let (mut dirs, mut dry_run) = (Vec::new(), false);
    loop {
        options = match options {
            ["--dry-run", rest @ ..] => {
                dry_run = true;
                rest
            }
            ["--dir", dir, rest @ ..] => {
                dirs.push(Path::new(dir).to_owned());
                rest
            }
            [] => break,
            _ => return Err(USAGE.into()),
        };
    }
    let dirs = if dirs.is_empty() { jitsym::clean_dirs() } else { dirs };
    let verb = if dry_run { "would remove" } else { "removed" };
    for dir in dirs {
        let found = jitsym::clean(&dir, dry_run).map_err(|error| format!("{}: {error}", dir.display()))?;
        for jitsym::Cleaned { path, kept } in found {
            let written = match kept {
                None => writeln!(io::stdout(), "{verb} {}", path.display()),
                Some(why) => writeln!(io::stdout(), "kept {}: {why}", path.display()),
            };
            written.map_err(|error| format!("output: {error}"))?;
        }
    }
    Ok(())
}

/// One line a record, one more for each row of a line table.
fn dump(file: &[u8], out: &mut impl Write) -> io::Result<()> {
    let Some(header) = Header::read(file) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "is not a jitdump of this byte order"));
    };
    let clock = if header.arch_timestamp { "counter" } else { "CLOCK_MONOTONIC" };
    writeln!(out, "jitdump of process {}, machine {}, time by {clock}", header.pid, header.machine)?;
    let mut records = Records::new(file);
    for (time, record) in records.by_ref() {
        match record {
            Record::Load(load) => {
                let name = String::from_utf8_lossy(load.name);
                let (addr, size, index, tid) = (load.addr, load.code.len(), load.index, load.tid);
                writeln!(out, "{time} LOAD {addr:#x}+{size:#x} index {index} thread {tid} {name}")?;
            }
            Record::Move { old_addr, new_addr, size, index } => {
                writeln!(out, "{time} MOVE {old_addr:#x} to {new_addr:#x}+{size:#x} index {index}")?;
            }
            Record::DebugInfo { addr, entries } => {
                writeln!(out, "{time} DEBUG_INFO {addr:#x}, {} rows", entries.len())?;
                for (addr, line, column, file) in entries {
                    writeln!(out, "    {addr:#x} {}:{line}:{column}", String::from_utf8_lossy(file))?;
                }
            }
            Record::UnwindingInfo { eh_frame, eh_frame_hdr, mapped_size } => {
                let (tables, header) = (eh_frame.len(), eh_frame_hdr.len());
                writeln!(out, "{time} UNWINDING_INFO .eh_frame {tables} .eh_frame_hdr {header} mapped {mapped_size}")?;
            }
            Record::Close => writeln!(out, "{time} CLOSE")?,
            Record::Other(id) => writeln!(out, "{time} record {id}")?,
        }
    }
    if records.offset() < file.len() {
        writeln!(out, "{} bytes at the end are no whole record", file.len() - records.offset())?;
    }
    Ok(())
}
