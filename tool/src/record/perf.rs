//! The perf that is used: its path, its features, and a one-line description of a failure.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::sync::OnceLock;

use super::children;
use crate::text::Shown;

#[derive(Clone, Debug)]
pub struct Perf {
    program: PathBuf,
    /// The `/proc` directory with the kernel's settings.
    proc: PathBuf,
    /// The answers of perf about itself. Each question is asked only once.
    version: OnceLock<String>,
    unwinder: OnceLock<Unwinder>,
}

/// The method by which a perf unwinds copied stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwinder {
    /// Finds unwind tables only in mapped memory: in the gap after the code, or in regions.
    Libunwind,
    /// Reads the unwind tables from files.
    Libdw,
    /// `--call-graph dwarf` has no effect.
    None,
}

/// The file of a command, which is searched for as by a shell.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    let runs =
        |path: &Path| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if Path::new(name).components().count() > 1 {
        return Some(PathBuf::from(name)).filter(|path| runs(path));
    }
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(|path| runs(path))
}

impl Perf {
    /// The perf with this name or path. `proc` is the directory of the kernel's process files.
    pub fn new(program: &Path, proc: &Path) -> Result<Perf, String> {
        match find_program(program.as_os_str()) {
            Some(program) => {
                Ok(Perf { program, proc: proc.into(), version: OnceLock::new(), unwinder: OnceLock::new() })
            }
            None => Err(format!(
                "there is no program `{}`: install perf (Debian: linux-perf, Ubuntu: linux-tools-generic, Fedora: perf), \
                 or name one with --perf",
                program.shown()
            )),
        }
    }

    /// A subcommand of perf.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(subcommand);
        command
    }

    /// Runs a command that only reads.
    pub fn output(&self, command: &mut Command) -> Result<Output, String> {
        let output = children::output(command).map_err(|error| self.cannot_start(&error))?;
        if output.status.success() {
            return Ok(output);
        }
        Err(self.failure(output.status, &String::from_utf8_lossy(&output.stderr)))
    }

    /// The message for a perf that has failed. `said` contains its messages.
    pub fn failure(&self, status: ExitStatus, said: &str) -> String {
        match status.signal() {
            Some(signal) => format!("perf was ended by signal {signal}"),
            None => self.cause(said),
        }
    }

    /// The path at which the program was found.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The message if perf cannot be started.
    pub fn cannot_start(&self, error: &io::Error) -> String {
        format!("{} does not start: {error}", self.program.shown())
    }

    /// The version, such as `6.1.187`.
    pub fn version(&self) -> Result<String, String> {
        if let Some(version) = self.version.get() {
            return Ok(version.clone());
        }
        let output = self.output(&mut self.command("--version"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(self.version.get_or_init(|| text.trim().trim_start_matches("perf version ").to_owned()).clone())
    }

    /// The unwinder that perf was built with.
    pub fn unwinder(&self) -> Result<Unwinder, String> {
        if let Some(&unwinder) = self.unwinder.get() {
            return Ok(unwinder);
        }
        let output = self.output(self.command("version").arg("--build-options"))?;
        Ok(*self.unwinder.get_or_init(|| unwinder_of(&String::from_utf8_lossy(&output.stdout))))
    }

    /// The level of `perf_event_paranoid`, if the kernel has this setting.
    pub fn paranoid(&self) -> Option<i32> {
        fs::read_to_string(self.proc.join("sys/kernel/perf_event_paranoid")).ok()?.trim().parse().ok()
    }

    /// The cause of a failure, in one line.
    pub fn cause(&self, said: &str) -> String {
        let has = |text: &str| said.contains(text);
        if has("No such process") {
            return "there is no such process".into();
        }
        if has("perf_event_paranoid") || has("Access to performance monitoring") || has("No permission to enable") {
            let level = self.paranoid().map_or("unknown".into(), |level| level.to_string());
            return format!(
                "the kernel does not permit it: /proc/sys/kernel/perf_event_paranoid is {level}. Your own processes need 2 or \
                 less (as root: sysctl kernel.perf_event_paranoid=2), those of others CAP_PERFMON or root"
            );
        }
        if has("not owned by current user or root") {
            return "the recording belongs to somebody else: perf reads it with -f".into();
        }
        if has("No space left") {
            return "there is no room left on the disk".into();
        }
        if let Some(line) = said.lines().find(|line| line.contains("event syntax error")) {
            return crate::text::printable(line.trim().as_bytes()).to_string();
        }
        // perf prints the cause last. Only hints and a summary may follow.
        let tells = |line: &&str| !line.is_empty() && !line.starts_with("[ perf record:") && !line.contains("Run '");
        let line = said.lines().map(str::trim).rev().find(tells).unwrap_or("it says nothing");
        let shown = crate::text::printable(line.as_bytes()).to_string();
        shown.chars().take(200).collect()
    }
}

/// The unwinder in the output of `perf version --build-options`. If perf has both, it uses libunwind.
fn unwinder_of(options: &str) -> Unwinder {
    let on = |name: &str| {
        options.lines().any(|line| {
            let (option, state) = line.split_once(':').unwrap_or_default();
            option.trim() == name && state.split(']').next().is_some_and(|state| state.contains("on"))
        })
    };
    if on("libunwind") {
        Unwinder::Libunwind
    } else if on("libdw-dwarf-unwind") || on("libdw") || on("dwarf-unwind") {
        Unwinder::Libdw
    } else {
        Unwinder::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unwinder_is_the_one_that_wins() {
        let both = "             libunwind: [ on  ]  # HAVE_LIBUNWIND_SUPPORT\n    libdw-dwarf-unwind: [ on  ]  # X\n";
        assert_eq!(unwinder_of(both), Unwinder::Libunwind);
        assert_eq!(unwinder_of(&both.replacen("on ", "OFF", 1)), Unwinder::Libdw);
        let newer = "    libdw: [ on  ]  # HAVE_LIBDW_SUPPORT\n libunwind: [ OFF ]  # HAVE_LIBUNWIND_SUPPORT ( tip: Deprecated, use LIBUNWIND=1 )\n";
        assert_eq!(unwinder_of(newer), Unwinder::Libdw);
        assert_eq!(unwinder_of("             libunwind: [ OFF ]  # HAVE_LIBUNWIND_SUPPORT\n"), Unwinder::None);
    }

    #[test]
    fn a_cause_is_one_line() {
        let perf = Perf {
            program: "perf".into(),
            proc: "/nowhere".into(),
            version: OnceLock::new(),
            unwinder: OnceLock::new(),
        };
        for said in [
            "Couldn't create thread/CPU maps: No such process\n",
            "Error:\nAccess to performance monitoring and observability operations is limited.\nConsider adjusting /proc/sys/kernel/perf_event_paranoid setting\n",
            "failed to open x: No such file or directory\n\n",
            "",
        ] {
            let cause = perf.cause(said);
            assert!(!cause.is_empty() && !cause.contains('\n'), "{cause:?}");
        }
        assert_eq!(
            perf.cause("incompatible file format\n[ perf record: Woken up 1 times ]\n"),
            "incompatible file format"
        );
    }
}
