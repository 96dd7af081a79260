//! `jitsym export`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jitsym::format::file_names::parse;
use jitsym::format::jitdump::raw::RawHeader;
use jitsym_tool::kind::Kind;
use jitsym_tool::objects::{self, LeftOut, Loads, Made, OutDir};
use jitsym_tool::record::quoted;
use jitsym_tool::text::Shown;

use crate::input::{self, Input};
use crate::{complain, say, written, Outcome};

/// Write ELF files of compiled code, for addr2line, objdump, nm, readelf and gdb
///
/// The files have symbols, and from a jitdump also the code, source lines, inlined functions and unwind tables. Code that
/// lies close together shares a file. Code that replaced other code is in another file than the code that it replaced. An
/// address in a file is the address in the process minus the offset that the command prints. From a perf map, only the newest
/// name at each address is exported.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  jitsym export /tmp/jit-4711.dump -o code")]
pub struct Export {
    /// Export the code of this jitdump or perf map (plain, gzip, zstd), standard input (-), or of a process (PID)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write into this directory. If it does not exist, it is made for this user alone
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Write a perf map instead (perf-PID.map): one plain line for each address range, with clean names, sorted by address
    #[arg(long)]
    map: bool,
}

/// Writes the files, and prints what is in them.
pub fn run(asked: &Export, out: &mut dyn Write) -> Outcome {
    let inputs = match read(&asked.file) {
        Ok(inputs) => inputs,
        Err((path, error)) => {
            complain(&path, &error);
            return Outcome::Failed;
        }
    };
    let loads = match loads(&inputs) {
        Ok(loads) => loads,
        Err((path, error)) => {
            complain(&path, &error);
            return Outcome::Failed;
        }
    };
    match loads.impossible {
        0 => {}
        1 => say(format_args!("{}: 1 record describes no possible code, and is left out", asked.file.shown())),
        count => {
            say(format_args!("{}: {count} records describe no possible code, and are left out", asked.file.shown()))
        }
    }
    if loads.all.is_empty() {
        complain(&asked.file, &io::Error::new(io::ErrorKind::NotFound, "has no code, and nothing is written"));
        return Outcome::Failed;
    }
    let (files, left_out) = objects::few_files(&loads.all);
    if files.is_empty() && !asked.map {
        complain(&asked.file, &io::Error::new(io::ErrorKind::InvalidData, "has only code larger than 1 GiB"));
        return Outcome::Failed;
    }
    // The machine is checked before the directory is made, so that a failure leaves no empty directory.
    if let Err(error) = if asked.map { Ok(()) } else { loads.check_machine() } {
        complain(&asked.file, &error);
        return Outcome::Failed;
    }
    let told = OutDir::new(&asked.output).and_then(|dir| match asked.map {
        true => dir.put_new(&format!("perf-{}.map", loads.pid), |mut file| file.write_all(&loads.to_map())).map(Err),
        false => objects::write(&loads, &files, &dir, None).map(Ok),
    });
    match told {
        Ok(Ok(made)) => written(tell(&made, left_out, out)),
        Ok(Err(map)) => written(writeln!(out, "{}", map.shown())),
        Err(error) => {
            complain(&asked.output, &error);
            Outcome::Failed
        }
    }
}

/// An error with the file that it is about.
type Failure = (PathBuf, io::Error);

/// Reads the named file, or the jitdumps and perf maps of a process. Of a process, files that cannot be read are reported, and
/// one readable file is enough.
fn read(word: &Path) -> Result<Vec<(PathBuf, Input)>, Failure> {
    let sources = input::files(word).map_err(|error| (word.to_owned(), error))?;
    let (mut inputs, mut last) = (Vec::new(), None);
    for source in sources {
        match input::read(&source) {
            Ok(input) if Kind::of(&input.bytes, &input.facts) == Kind::Region => {
                let text = "is an ELF file already, which the same programs read";
                last = Some((source.path, io::Error::new(io::ErrorKind::InvalidInput, text)));
            }
            Ok(input) => inputs.push((source.path, input)),
            Err(error) => {
                let before = last.replace((source.path, error));
                before.inspect(|(path, error)| complain(path, error));
            }
        }
    }
    match last {
        Some(failure) if inputs.is_empty() => Err(failure),
        last => {
            last.inspect(|(path, error)| complain(path, error));
            Ok(inputs)
        }
    }
}

/// The code in all files: jitdumps first, because they know more than maps.
fn loads(inputs: &[(PathBuf, Input)]) -> Result<Loads<'_>, Failure> {
    let mut loads = Loads::new();
    let kind = |input: &Input| Kind::of(&input.bytes, &input.facts);
    let mut clock = None;
    for (path, input) in inputs.iter().filter(|(_, input)| kind(input) == Kind::Jitdump) {
        let Some(header) = RawHeader::read(&input.bytes) else { continue };
        if *clock.get_or_insert(header.arch_timestamp()) != header.arch_timestamp() {
            let why = "has times of another clock than the other jitdump of the process, and is left out: export it by its name";
            complain(path, &io::Error::new(io::ErrorKind::InvalidData, why));
            continue;
        }
        if !loads.add_jitdump(&input.bytes) {
            return Err((path.clone(), io::Error::new(io::ErrorKind::InvalidData, "is not a jitdump")));
        }
    }
    for (path, input) in inputs.iter().filter(|(_, input)| kind(input) == Kind::PerfMap) {
        loads.add_map(&input.bytes);
        if let (0, Some((pid, _))) = (loads.pid, path.file_name().and_then(parse)) {
            loads.pid = pid;
        }
    }
    loads.finish();
    Ok(loads)
}

/// Prints a block for each file.
fn tell(made: &Made, left_out: LeftOut, out: &mut dyn Write) -> io::Result<()> {
    for object in &made.objects {
        let (path, code) = (object.path.shown(), &object.code);
        let functions = if object.pieces == 1 { "function" } else { "functions" };
        writeln!(out, "{path}")?;
        writeln!(
            out,
            "    {} {functions} at {:#x}..{:#x}, offset {:#x}",
            object.pieces, code.start, code.end, object.origin
        )?;
        // gdb splits its arguments like a shell.
        let path = PathBuf::from(path.to_string());
        writeln!(out, "    gdb: add-symbol-file {} -o {:#x}", quoted(&path), object.origin)?;
    }
    for (count, why) in [
        (left_out.too_many, "there would be too many files"),
        (left_out.too_large, "a file has at most 1 GiB of addresses"),
    ] {
        let functions = if count == 1 { "function is" } else { "functions are" };
        if count > 0 {
            writeln!(out, "{count} {functions} in none of these files: {why}")?;
        }
    }
    Ok(())
}
