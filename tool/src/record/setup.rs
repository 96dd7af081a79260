//! Enables the support of perf in runtimes that have their own support, by the table in `runtimes`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::plan::Stacks;
use super::resolve::Resolved;
use super::runtimes::{Runtime, Way, RUNTIMES};
use super::{linked, probe, quoted};

/// The settings for a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// One line for the user.
    pub line: Option<String>,
    pub variables: Vec<(&'static str, OsString)>,
    /// The command with more arguments.
    pub command: Option<Vec<OsString>>,
    /// How stacks are recorded best.
    pub stacks: Option<Stacks>,
    /// Whether anything is set.
    pub is_set: bool,
}

/// Chooses the settings for a command. `None` if the command runs no runtime of the table, or a runtime that uses libjitsym.
pub fn of(command: &[OsString], env: &dyn Fn(&str) -> Option<OsString>) -> Option<Setup> {
    of_by(command, env, &probe::starts)
}

/// A function that returns whether a runtime starts with a setup.
type Starts<'s> = &'s dyn Fn(&Runtime, &Resolved, &Setup) -> bool;

fn of_by(command: &[OsString], env: &dyn Fn(&str) -> Option<OsString>, starts: Starts<'_>) -> Option<Setup> {
    let found = Resolved::of(command)?;
    let mut rows = rows(&found, env);
    let first = rows.next()?;
    if linked::uses_library(&found.path) {
        return None;
    }
    let mut refused = None;
    for (runtime, is_itself) in std::iter::once(first).chain(rows) {
        let setup = choose(runtime, is_itself, &found, env);
        // The program must run in the same way as without this program.
        let is_other = |name: &str| runtime.asked_with.iter().any(|(other, _)| *other == name);
        let asked = || choose(runtime, is_itself, &found, &|name| env(name).filter(|_| !is_other(name)));
        if !setup.is_set || starts(runtime, &found, &asked()) {
            return Some(setup);
        }
        refused.get_or_insert(runtime.name);
    }
    let line =
        |name: &str| format!("{name}: it does not start with its support of perf turned on, so nothing is set for it");
    Some(Setup { line: refused.map(line), ..Setup::default() })
}

/// The rows for the name that is closest to the file, and whether the file itself has the name. If the file does not have the
/// name, the file is the interpreter of a script that starts the runtime.
fn rows<'f>(
    found: &'f Resolved,
    env: &'f dyn Fn(&str) -> Option<OsString>,
) -> impl Iterator<Item = (&'static Runtime, bool)> + use<'f> {
    let named = |name: &str, runtime: &Runtime| {
        let is_new = runtime.is_named(name).map(|version| version.is_none_or(|version| version >= runtime.since));
        is_new == Some(true)
    };
    let names = found.names.iter().enumerate().rev().filter_map(|(number, name)| Some((number, name.to_str()?)));
    let mut names = names.filter(move |(_, name)| RUNTIMES.iter().any(|runtime| named(name, runtime)));
    names.next().into_iter().flat_map(move |(number, name)| {
        let rows = RUNTIMES.iter().filter(move |runtime| named(name, runtime));
        let has_agent = |runtime: &Runtime| agent(runtime).is_some() && probe::has_place_for_agent(env);
        rows.filter(move |runtime| runtime.agents.is_empty() || has_agent(runtime))
            .map(move |row| (row, number >= found.before))
    })
}

/// The first existing file of the agents.
fn agent(runtime: &Runtime) -> Option<PathBuf> {
    runtime.agents.iter().find_map(|pattern| match pattern.split_once('*') {
        None => Some(PathBuf::from(pattern)).filter(|path| path.is_file()),
        Some((start, end)) => {
            let (dir, prefix) = start.rsplit_once('/')?;
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let fitting = names.filter(|name| name.starts_with(prefix));
            fitting.map(|name| PathBuf::from(format!("{dir}/{name}{end}"))).find(|path| path.is_file())
        }
    })
}

/// The options of the runtime itself, up to the program that it runs. A first word such as `run` is a subcommand, and a word
/// after an option may be the option's value.
fn own_options(words: &[String]) -> &[String] {
    let is_subcommand = |word: &String| word.chars().all(|c| c.is_ascii_alphanumeric());
    let mut len = usize::from(words.first().is_some_and(is_subcommand));
    let mut may_be_value = false;
    for word in &words[len..] {
        let is_option = word.starts_with(['-', '+']);
        if ["--", "-jar"].contains(&word.as_str()) || !is_option && !may_be_value {
            break;
        }
        (len, may_be_value) = (len + 1, is_option);
    }
    &words[..len]
}

fn choose(runtime: &Runtime, is_itself: bool, found: &Resolved, env: &dyn Fn(&str) -> Option<OsString>) -> Setup {
    let mut setup = Setup { stacks: runtime.stacks, ..Setup::default() };
    let of_ways = runtime.ways.iter().filter_map(|way| match way {
        Way::Variable(name, _) | Way::Options(name, ..) => Some(*name),
        Way::Arguments { .. } => None,
    });
    let words: Vec<String> =
        found.words.iter().skip(found.at + 1).map(|word| word.to_string_lossy().into_owned()).collect();
    let mut given = own_options(&words).to_vec();
    // The BEAM accepts its flags at all positions.
    given.extend(words.iter().filter(|word| word.starts_with('+')).cloned());
    given.extend(of_ways.filter_map(env).map(|value| value.to_string_lossy().into_owned()));
    let given = given.join(" ");
    let is_changed = |name: &str| found.changed.iter().any(|changed| changed == name);
    let is_set = |way: &Way| match way {
        Way::Variable(name, _) => env(name).is_some() || is_changed(name),
        Way::Options(name, ..) => is_changed(name),
        Way::Arguments { .. } => false,
    };
    if runtime.chosen.iter().any(|text| given.contains(text)) || runtime.ways.iter().any(is_set) {
        setup.line =
            Some(format!("{}: the command or the environment already says what to write for perf", runtime.name));
        return setup;
    }
    let agent = agent(runtime).map_or(String::new(), |path| path.display().to_string());
    let mut set = Vec::new();
    for way in runtime.ways {
        match way {
            Way::Variable(name, value) => setup.variables.push((name, value.into())),
            Way::Options(name, options, between) => {
                let mut value = env(name).filter(|value| !value.is_empty()).unwrap_or_default();
                if !value.is_empty() {
                    value.push(between);
                }
                value.push(options.replace("{agent}", &agent));
                setup.variables.push((name, value));
            }
            Way::Arguments { words, after, idle } => {
                let next = found.words.get(found.at + 1).map(OsString::as_os_str);
                let is_next = |list: &[&str]| list.iter().any(|word| next == Some(OsStr::new(word)));
                if is_next(idle) || !is_itself {
                    return Setup::default();
                }
                let at = found.at + 1 + usize::from(is_next(after));
                let mut command = found.words.clone();
                command.splice(at..at, words.iter().map(OsString::from));
                setup.command = Some(command);
                set.push(format!("the arguments {}", words.join(" ")));
            }
        }
    }
    let assigned = setup.variables.iter().map(|(name, value)| format!("{name}={}", quoted(Path::new(value))));
    set.extend(assigned);
    setup.is_set = !setup.variables.is_empty() || setup.command.is_some();
    let effect = runtime.effect;
    setup.line = Some(match set.is_empty() {
        true => format!("{}: {effect}", runtime.name),
        false => format!("set for {}: {}; {effect} (--no-runtime-setup sets nothing)", runtime.name, set.join(" ")),
    });
    setup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PrivateDir;
    use std::os::unix::fs::PermissionsExt;

    struct Programs(PrivateDir);

    impl Programs {
        fn new() -> Programs {
            let programs = Programs(PrivateDir::new(&std::env::temp_dir(), "jitsym-setup-").unwrap());
            for name in [
                "node",
                "php8.2",
                "php7.4",
                "python3.11",
                "python3.12",
                "python3",
                "wasmtime",
                "erl",
                "luajit",
                "java",
                "vm",
            ] {
                programs.add(name, "\x7fELF");
            }
            programs
        }

        fn add(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }

        /// Sets up a command. `@` stands for the directory of the programs.
        fn set_up(&self, command: &str, env: &[(&str, &str)]) -> Option<Setup> {
            let dir = format!("{}/", self.0.path().display());
            let words: Vec<OsString> = command.split(' ').map(|word| word.replace('@', &dir).into()).collect();
            of_by(
                &words,
                &|name| env.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()),
                &|_, _, _| true,
            )
        }

        fn variables(&self, command: &str, env: &[(&str, &str)]) -> Vec<String> {
            let variables = self.set_up(command, env).unwrap_or_default().variables;
            variables.iter().map(|(name, value)| format!("{name}={}", value.display())).collect()
        }

        fn command(&self, command: &str) -> Option<String> {
            let words = self.set_up(command, &[])?.command?;
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            Some(words.join(" ").replace(&format!("{}/", self.0.path().display()), "@"))
        }
    }

    const NODE: &str = "NODE_OPTIONS=--perf-prof --interpreted-frames-native-stack";

    #[test]
    fn variables_of_runtimes() {
        let programs = Programs::new();
        assert_eq!(programs.variables("@node x.js", &[]), [NODE]);
        assert_eq!(programs.variables("env A=b @node x.js", &[]), [NODE]);
        let python = ["PYTHONPERFSUPPORT=1", "PYTHON_PERF_JIT_SUPPORT=1"];
        assert_eq!(programs.variables("@python3 x", &[]), python);
        assert_eq!(programs.variables("@python3.12 x", &[]), python[..1]);
        let old = programs.set_up("@python3.11 x", &[]).unwrap();
        assert!(old.variables.is_empty() && old.line.unwrap().contains("since version 3.12"));
        let lua = programs.set_up("@luajit x", &[]).unwrap();
        assert!(lua.variables.is_empty() && lua.command.is_none() && lua.line.unwrap().contains("-ljitsym"));
        assert_eq!(programs.set_up("@vm node", &[]), None);
        assert_eq!(programs.set_up("@erl", &[]).unwrap().stacks, Some(Stacks::FramePointers));
        programs.add("script", &format!("#!/usr/bin/env -S {}/node --x\n", programs.0.path().display()));
        assert_eq!(programs.variables("@script", &[]), [NODE]);
    }

    #[test]
    fn choices_of_the_user_stay() {
        let programs = Programs::new();
        let added = programs.variables("@node x", &[("NODE_OPTIONS", "--no-warnings")]);
        assert_eq!(added, ["NODE_OPTIONS=--no-warnings --perf-prof --interpreted-frames-native-stack"]);
        for (command, env) in [
            ("@node --perf-basic-prof x", &[][..]),
            ("@node x", &[("NODE_OPTIONS", "--perf-prof")]),
            ("env NODE_OPTIONS= @node x", &[]),
            ("env -u NODE_OPTIONS @node x", &[]),
            ("@python3 -X perf x", &[]),
            ("@python3 x", &[("PYTHONPERFSUPPORT", "0")]),
            ("env PYTHONPERFSUPPORT=0 @python3 x", &[]),
            ("@python3 x", &[("PYTHON_PERF_JIT_SUPPORT", "")]),
            ("@erl +JPperf map", &[]),
            ("@java -XX:+DumpPerfMapAtExit X", &[]),
            ("@php8.2 -d opcache.jit_debug=16 x", &[]),
            ("@wasmtime --profile=perfmap x", &[]),
            ("@wasmtime run -W gc --profile=perfmap x", &[]),
            ("@node -r mod --perf-basic-prof x", &[]),
            ("@erl -s a b +JPperf map", &[]),
        ] {
            let setup = programs.set_up(command, env).unwrap();
            assert!(setup.variables.is_empty() && setup.command.is_none(), "{command} {env:?}: {setup:?}");
            assert!(setup.line.is_some_and(|line| line.contains("already says")), "{command}");
        }
    }

    /// Arguments of the program that the runtime runs do not affect the settings of the runtime.
    #[test]
    fn arguments_of_others() {
        let programs = Programs::new();
        for command in [
            "@node bench.js --perf-report",
            "@python3 ./x.py -X perf",
            "@wasmtime run a.wasm --profile x",
            "@java -jar PerfMapTool.jar",
            "@php8.2 a.php -d opcache.jit_debug=16",
        ] {
            let setup = programs.set_up(command, &[]).unwrap();
            assert!(!setup.variables.is_empty() || setup.command.is_some(), "{command}: {setup:?}");
        }
    }

    #[test]
    fn arguments_of_runtimes() {
        let programs = Programs::new();
        let command = |text| programs.command(text);
        assert_eq!(command("@php8.2 a.php -d b").as_deref(), Some("@php8.2 -d opcache.jit_debug=32 a.php -d b"));
        assert_eq!(command("@php7.4 a.php"), None);
        assert_eq!(command("@wasmtime a.wasm").as_deref(), Some("@wasmtime --profile=jitdump a.wasm"));
        assert_eq!(command("@wasmtime run a").as_deref(), Some("@wasmtime run --profile=jitdump a"));
        assert_eq!(command("@wasmtime compile a"), None);
        let dir = programs.0.path().display().to_string();
        programs.add("script", &format!("#!{dir}/php8.2 -n\n"));
        assert_eq!(command("@script a").as_deref(), Some("@php8.2 -d opcache.jit_debug=32 -n @script a"));
        // A script with the name of a runtime gets no arguments.
        programs.add("wasmtime", "#!/bin/sh\n");
        assert_eq!(programs.set_up("@wasmtime a", &[]).unwrap(), Setup::default());
    }

    /// If the runtime does not start with the settings of a row, the next row is used, and finally no settings.
    #[test]
    fn a_runtime_that_does_not_start() {
        let programs = Programs::new();
        let words = [format!("{}/python3", programs.0.path().display()).into()];
        let set_up = |starts: Starts<'_>| of_by(&words, &|_| None, starts).unwrap();
        let second = set_up(&|_, _, setup| setup.variables.len() == 1);
        assert_eq!(second.variables, [("PYTHONPERFSUPPORT", OsString::from("1"))]);
        let nothing = set_up(&|runtime, _, _| runtime.ways.is_empty());
        assert!(nothing.variables.is_empty() && !nothing.is_set, "{nothing:?}");
        let words = [format!("{}/node", programs.0.path().display()).into()];
        let nothing = of_by(&words, &|_| None, &|_, _, _| false).unwrap();
        assert!(nothing.variables.is_empty() && nothing.line.unwrap().contains("Node.js: it does not start"));
    }

    #[test]
    fn a_runtime_with_the_library() {
        let programs = Programs::new();
        programs.add("node", "\x7fELF .. libjitsym.so.0.1");
        assert_eq!(programs.set_up("@node x", &[]), None);
    }
}
