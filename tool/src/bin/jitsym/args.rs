//! The command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use jitsym_tool::check::report::Style;
use jitsym_tool::check::rules::{self, Rule};
use lexopt::prelude::*;
use lexopt::Parser;

pub const USAGE: &str = "\
usage: jitsym check [--all | --json] [--allow RULE]... FILE...
           says what readers of jitdumps and perf maps would choke on, misattribute or stop at;
           ends with 1 if there are errors or warnings, with 2 if a file could not be read
               --all         every finding, not the first few of each rule
               --json        the same for programs: an object with \"files\", of which each has \"findings\"
               --allow RULE  leaves out a rule; several with commas
       jitsym check --rules [--json]
           lists the rules
       jitsym dump [--disassemble] [--name TEXT] FILE
           prints a jitdump with its line and unwind tables, or a perf map
               --disassemble  the instructions too, by objdump
               --name TEXT    only code with that in its name
       jitsym stat FILE...
           prints numbers, sizes and rates, and a picture of the addresses over time
       jitsym recover [--dir DIR] [PID]...
           completes the files of processes that were killed
       jitsym clean [--dry-run] [--dir DIR]...
           removes maps, jitdumps, files of regions and spools of this user's dead processes
               --dry-run      only says which
       jitsym help | version
";

/// What is to be done.
pub enum Command {
    Help,
    Version,
    Rules { json: bool },
    Check { files: Vec<PathBuf>, style: Style, allowed: Vec<&'static Rule> },
    Dump { file: PathBuf, disassemble: bool, name: Option<Vec<u8>> },
    Stat { files: Vec<PathBuf> },
    Recover { dir: PathBuf, pids: Vec<u32> },
    Clean { dirs: Vec<PathBuf>, dry_run: bool },
}

pub fn parse() -> Result<Command, String> {
    let mut parser = Parser::from_env();
    match parser.next().map_err(text)? {
        Some(Value(word)) => match word.to_str() {
            Some("check") => check(&mut parser).map_err(text),
            Some("dump") => dump(&mut parser).map_err(text),
            Some("stat") => stat(&mut parser).map_err(text),
            Some("recover") => recover(&mut parser).map_err(text),
            Some("clean") => clean(&mut parser).map_err(text),
            Some("version") => nothing_more(&mut parser, Command::Version),
            Some("help") => nothing_more(&mut parser, Command::Help),
            _ => Err(format!("there is no command {word:?}")),
        },
        Some(Long("version") | Short('V')) => nothing_more(&mut parser, Command::Version),
        Some(Long("help") | Short('h')) => nothing_more(&mut parser, Command::Help),
        Some(other) => Err(text(other.unexpected())),
        None => Err("there is no command".into()),
    }
}

fn text(error: lexopt::Error) -> String {
    error.to_string()
}

fn nothing_more(parser: &mut Parser, command: Command) -> Result<Command, String> {
    match parser.next().map_err(text)? {
        Some(other) => Err(text(other.unexpected())),
        None => Ok(command),
    }
}

fn check(parser: &mut Parser) -> Result<Command, lexopt::Error> {
    let (mut files, mut allowed) = (Vec::new(), Vec::new());
    let (mut all, mut json, mut rules) = (false, false, false);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("all") => all = true,
            Long("json") => json = true,
            Long("rules") => rules = true,
            Long("allow") => {
                for id in parser.value()?.string()?.split(',') {
                    allowed.push(rules::find(id).ok_or_else(|| format!("there is no rule {id:?}"))?);
                }
            }
            Long("help") | Short('h') => return Ok(Command::Help),
            Value(file) => files.push(file.into()),
            other => return Err(other.unexpected()),
        }
    }
    if rules && files.is_empty() {
        return Ok(Command::Rules { json });
    }
    if files.is_empty() || rules {
        return Err("check wants files, or --rules".into());
    }
    let style = match (json, all) {
        (true, _) => Style::Json,
        (false, true) => Style::AllText,
        (false, false) => Style::Text,
    };
    Ok(Command::Check { files, style, allowed })
}

fn dump(parser: &mut Parser) -> Result<Command, lexopt::Error> {
    let (mut file, mut disassemble, mut name) = (None, false, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("disassemble") => disassemble = true,
            Long("name") => name = Some(parser.value()?.into_vec()),
            Long("help") | Short('h') => return Ok(Command::Help),
            Value(word) if file.is_none() => file = Some(word.into()),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Command::Dump { file: file.ok_or("dump wants a file")?, disassemble, name })
}

fn stat(parser: &mut Parser) -> Result<Command, lexopt::Error> {
    let mut files = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help),
            Value(file) => files.push(file.into()),
            other => return Err(other.unexpected()),
        }
    }
    if files.is_empty() {
        return Err("stat wants files".into());
    }
    Ok(Command::Stat { files })
}

fn recover(parser: &mut Parser) -> Result<Command, lexopt::Error> {
    let (mut dir, mut pids) = (None, Vec::new());
    while let Some(argument) = parser.next()? {
        match argument {
            Long("dir") => dir = Some(PathBuf::from(parser.value()?)),
            Long("help") | Short('h') => return Ok(Command::Help),
            Value(pid) => pids.push(pid_of(pid)?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Command::Recover { dir: dir.unwrap_or_else(jitsym::spool_dir), pids })
}

fn clean(parser: &mut Parser) -> Result<Command, lexopt::Error> {
    let (mut dirs, mut dry_run) = (Vec::new(), false);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("dry-run") => dry_run = true,
            Long("dir") => dirs.push(PathBuf::from(parser.value()?)),
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Command::Clean { dirs, dry_run })
}

fn pid_of(word: OsString) -> Result<u32, lexopt::Error> {
    let pid = word.to_str().and_then(|word| word.parse().ok());
    pid.ok_or_else(|| format!("{}: no pid", word.display()).into())
}
