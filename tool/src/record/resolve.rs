//! Finds the program that a command finally runs, through `env`, symbolic links and interpreter lines.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::perf::find_program;
use crate::open;

/// A depth that exceeds the limits of all kernels for links and scripts.
const DEPTH: usize = 40;

/// The program that a command runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The command, including the words of interpreter lines.
    pub words: Vec<OsString>,
    /// The index of the program among the words.
    pub at: usize,
    /// The file that is executed.
    pub path: PathBuf,
    /// All names of the program: of the command, of links, and of interpreters. The last name is closest to the file.
    pub names: Vec<OsString>,
    /// The number of names before the names of the file itself.
    pub before: usize,
    /// The variables that `env` sets or removes.
    pub changed: Vec<OsString>,
}

impl Resolved {
    /// Resolves a command. `None` if the program does not exist, or if `env` has options that this function does not support.
    pub fn of(command: &[OsString]) -> Option<Resolved> {
        let mut found = Resolved { words: command.to_vec(), ..Resolved::default() };
        for _ in 0..DEPTH {
            let path = find_program(found.words.get(found.at)?)?;
            let names = names(&path);
            let is_env = names.iter().any(|name| name == "env");
            found.before = found.names.len();
            found.names.extend(names);
            if is_env {
                found.skip_env()?;
                continue;
            }
            let Some(mut interpreter) = interpreter(&path) else {
                found.path = path;
                return Some(found);
            };
            interpreter.push(path.into());
            found.words.splice(found.at..=found.at, interpreter);
        }
        None
    }

    /// Continues from `env` to the program that it runs.
    fn skip_env(&mut self) -> Option<()> {
        self.at = self.at.checked_add(1)?;
        loop {
            let word = self.words.get(self.at)?.to_str()?.to_owned();
            if let Some(line) = word.strip_prefix("-S").or(word.strip_prefix("--split-string=")) {
                // `-S LINE` in two words comes from a shell, `-SLINE` and `-S LINE` in one word from an interpreter line.
                let (line, taken) = match line.trim() {
                    "" => (self.words.get(self.at + 1)?.to_str()?.to_owned(), 2),
                    line => (line.to_owned(), 1),
                };
                // Quotes, escapes and variables have their own rules.
                if line.contains(['\'', '"', '\\', '$', '#']) {
                    return None;
                }
                self.words.splice(self.at..self.at + taken, line.split_whitespace().map(OsString::from));
                continue;
            }
            let (taken, changed) = match &*word {
                "-u" | "--unset" => (2, self.words.get(self.at + 1).cloned()),
                "--" => (1, None),
                _ if word.starts_with("--unset=") => (1, word.strip_prefix("--unset=").map(OsString::from)),
                // Such words are options that change the directory or empty the environment, and unknown options.
                _ if word.starts_with('-') => return None,
                _ => match word.split_once('=') {
                    // Another path leads to other programs.
                    Some(("PATH", _)) => return None,
                    Some((name, _)) => (1, Some(name.into())),
                    None => return Some(()),
                },
            };
            self.at = self.at.checked_add(taken)?;
            self.changed.extend(changed);
        }
    }
}

/// The name of a file, and the names of all files to which symbolic links lead.
fn names(path: &Path) -> Vec<OsString> {
    let (mut path, mut names) = (path.to_owned(), Vec::new());
    for _ in 0..DEPTH {
        names.extend(path.file_name().map(OsStr::to_owned));
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().map_or(target.clone(), |dir| dir.join(&target));
    }
    names
}

/// The interpreter of a script, and its argument if it has one. The kernel passes the text after the first blank as one
/// argument.
fn interpreter(program: &Path) -> Option<Vec<OsString>> {
    let mut start = [0; 256];
    let len = open::named(program).ok()?.read_at(&mut start, 0).ok()?;
    let line = start[..len].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|byte| b" \t".contains(byte)).unwrap_or(line.len());
    let words = [&line[..end], line[end..].trim_ascii()];
    Some(words.iter().filter(|word| !word.is_empty()).map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PrivateDir;
    use std::os::unix::fs::{symlink, PermissionsExt};

    fn words(command: &str) -> Vec<OsString> {
        command.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn links_scripts_and_env() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-resolve-").unwrap();
        let path = |name: &str| dir.path().join(name);
        let script = |name: &str, text: &str| {
            fs::write(path(name), text).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        script("vm-1.2", "\x7fELF");
        symlink("vm-1.2", path("vm")).unwrap();
        symlink(path("vm"), path("alias")).unwrap();
        let vm = path("alias").display().to_string();
        script("direct", &format!("#! {vm} -a -b\n"));
        script("twice", &format!("#!{}\n", path("direct").display()));
        script("by-env", &format!("#!/usr/bin/env -S X=1 {vm} --flag\n"));
        symlink(path("loop"), path("loop")).unwrap();
        script("circle", &format!("#!{}\n", path("circle").display()));

        let of = |command: &str| Resolved::of(&words(command));
        let found = of(&format!("{vm} x")).unwrap();
        assert_eq!((found.at, &*found.names), (0, &["alias", "vm", "vm-1.2"].map(OsString::from)[..]));
        assert_eq!(found.words, words(&format!("{vm} x")));
        let direct = path("direct").display().to_string();
        let found = of(&format!("{direct} x")).unwrap();
        assert_eq!(found.words, [&vm, "-a -b", &direct, "x"].map(OsString::from));
        assert_eq!((found.at, found.names.last()), (0, Some(&"vm-1.2".into())));
        assert_eq!(of(&path("twice").display().to_string()).unwrap().words.len(), 4);
        let by_env = path("by-env").display().to_string();
        let found = of(&format!("env A=b -u C {by_env} x")).unwrap();
        assert_eq!(found.words, words(&format!("env A=b -u C /usr/bin/env X=1 {vm} --flag {by_env} x")));
        assert_eq!((found.at, found.changed), (6, ["A", "C", "X"].map(OsString::from).to_vec()));
        assert_eq!(Resolved::of(&[words("env -S"), vec![format!("{vm} y").into()]].concat()).unwrap().at, 1);
        for nothing in ["", "no-such-program", "env", "env -i node", "env -C / node", "env PATH=/x node", "env -S a\"b"]
        {
            assert_eq!(of(nothing), None, "{nothing}");
        }
        for circle in ["loop", "circle"] {
            assert_eq!(of(&path(circle).display().to_string()), None, "{circle}");
        }
    }
}
