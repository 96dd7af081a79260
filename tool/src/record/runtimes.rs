//! The table of the runtimes whose own support of perf `jitsym record` enables.

use super::plan::Stacks;

/// The method by which a runtime is made to report names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A variable of the runtime, with its value.
    Variable(&'static str, &'static str),
    /// Options in a variable that may contain other options. The third text separates the options. `{agent}` is the path that
    /// was found.
    Options(&'static str, &'static str, &'static str),
    /// Arguments after the name of the program, or after one of the subcommands in `after`. With a subcommand in `idle`, the
    /// program runs nothing.
    Arguments { words: &'static [&'static str], after: &'static [&'static str], idle: &'static [&'static str] },
}

/// A runtime, or its versions from one version on.
#[derive(Debug)]
pub struct Runtime {
    pub name: &'static str,
    /// The names of its programs. A version may follow a name.
    pub programs: &'static [&'static str],
    /// The first version to which this row applies. An unknown version counts as new enough.
    pub since: (u32, u32),
    /// If this is not empty, the row applies only to machines with one of these files. A `*` stands for any name in a
    /// directory.
    pub agents: &'static [&'static str],
    pub ways: &'static [Way],
    /// The words after the name of the program with which the runtime starts, rejects unknown settings, and ends at once. If
    /// the first word is a name, it is the name of another program, which runs the same code. If the list is empty, the
    /// runtime starts with all settings.
    pub probe: &'static [&'static str],
    /// Variables that are changed during the test of the runtime: names and values. So the runtime starts no agent, debugger
    /// or server of the user, and writes to no log. Without a value, the variable is removed.
    pub asked_with: &'static [(&'static str, &'static str)],
    /// If the command or the variables contain one of these texts, the user has chosen a method.
    pub chosen: &'static [&'static str],
    /// The effect of the methods, or the reason why there is no method.
    pub effect: &'static str,
    /// The method by which stacks are recorded if the user has not chosen one.
    pub stacks: Option<Stacks>,
}

const NO_VERSION: (u32, u32) = (0, 0);
/// If the compiler of a runtime keeps frame pointers, stacks by frame pointers are whole.
const FRAME_POINTERS: Option<Stacks> = Some(Stacks::FramePointers);
const JAVA: &[&str] = &["java"];
const PYTHON: &[&str] = &["python", "python3"];

/// For each runtime, the first row that applies is used.
pub const RUNTIMES: &[Runtime] = &[
    // In this variable, Node.js accepts only a few options of V8: these two options since version 12, and no option for the
    // directory of the jitdump.
    Runtime {
        name: "Node.js",
        programs: &["node", "nodejs"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Options("NODE_OPTIONS", "--perf-prof --interpreted-frames-native-stack", " ")],
        probe: &["--version"],
        asked_with: &[],
        chosen: &["--perf-", "--perf_"],
        effect: "V8 writes jit-PID.dump and isolate-*.log into the working directory",
        stacks: FRAME_POINTERS,
    },
    Runtime {
        name: "Deno",
        programs: &["deno"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Options("DENO_V8_FLAGS", "--perf-prof,--interpreted-frames-native-stack", ",")],
        probe: &["eval", ""],
        asked_with: &[("DENO_V8_FLAGS", ""), ("DENO_COVERAGE_DIR", ""), ("NODE_OPTIONS", ""), ("OTEL_DENO", "")],
        chosen: &["--perf-", "--perf_"],
        effect: "V8 writes jit-PID.dump into the working directory",
        stacks: FRAME_POINTERS,
    },
    Runtime {
        name: "Bun",
        programs: &["bun", "bunx"],
        since: NO_VERSION,
        agents: &[],
        ways: &[],
        probe: &[],
        asked_with: &[],
        chosen: &["useJITDump"],
        effect: "perf does not read its jitdumps, because their names contain a thread ID",
        stacks: FRAME_POINTERS,
    },
    // Python 3.12 supports only the first variable. In later versions the second variable takes precedence.
    Runtime {
        name: "Python",
        programs: PYTHON,
        since: (3, 13),
        agents: &[],
        ways: &[Way::Variable("PYTHONPERFSUPPORT", "1"), Way::Variable("PYTHON_PERF_JIT_SUPPORT", "1")],
        probe: PYTHON_PROBE,
        asked_with: &[],
        chosen: PYTHON_CHOSEN,
        effect: "Python 3.13 and newer write a jitdump, 3.12 a perf map",
        stacks: None,
    },
    Runtime {
        name: "Python",
        programs: PYTHON,
        since: (3, 12),
        agents: &[],
        ways: &[Way::Variable("PYTHONPERFSUPPORT", "1")],
        probe: PYTHON_PROBE,
        asked_with: &[],
        chosen: PYTHON_CHOSEN,
        effect: "Python 3.12 writes a perf map, 3.13 a jitdump, which has whole stacks",
        stacks: None,
    },
    Runtime {
        name: "Python",
        programs: PYTHON,
        since: NO_VERSION,
        agents: &[],
        ways: &[],
        probe: PYTHON_PROBE,
        asked_with: &[],
        chosen: &[],
        effect: "its functions have names in perf since version 3.12",
        stacks: None,
    },
    Runtime {
        name: "wasmtime",
        programs: &["wasmtime"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Arguments {
            words: &["--profile=jitdump"],
            after: &["run", "serve"],
            idle: &["compile", "config", "completion", "explore", "help", "hot-blocks", "objdump", "settings", "wast", "wizer"],
        }],
        probe: &["--version"],
        asked_with: &[],
        chosen: &["--profile"],
        effect: "wasmtime writes jit-PID.dump into the working directory",
        stacks: FRAME_POINTERS,
    },
    // The first three programs are shell scripts that execute the last two programs.
    Runtime {
        name: "Erlang",
        programs: &["erl", "elixir", "iex", "mix", "escript", "rebar3", "erlexec", "beam.smp"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Options("ERL_FLAGS", "+JPperf true", " ")],
        probe: &["erl"],
        // The emulator reads these flags last. At that time it has checked all other flags. Then it prints its version and
        // ends.
        asked_with: &[("ERL_ZFLAGS", "+V -start_epmd false")],
        chosen: &["+JPperf"],
        effect: "the BEAM writes a jitdump or a perf map, and keeps frame pointers",
        stacks: FRAME_POINTERS,
    },
    // The value 32 makes PHP write a jitdump. The variable has no effect while the JIT compiler is disabled.
    Runtime {
        name: "PHP",
        programs: &["php", "php-cgi", "php-fpm"],
        since: (8, 0),
        agents: &[],
        ways: &[Way::Arguments { words: &["-d", "opcache.jit_debug=32"], after: &[], idle: &[] }],
        probe: &[],
        asked_with: &[],
        chosen: &["opcache.jit_debug"],
        effect: "PHP writes a jitdump if its JIT compiler is on",
        stacks: None,
    },
    // This row is for perf's agent for virtual machines of Java.
    Runtime {
        name: "Java",
        programs: JAVA,
        since: NO_VERSION,
        agents: &[
            "/usr/lib/linux-tools-*/libperf-jvmti.so",
            "/usr/lib/linux-tools/*/libperf-jvmti.so",
            "/usr/lib/perf-core/libperf-jvmti.so",
            "/usr/lib64/libperf-jvmti.so",
            "/usr/lib/libperf-jvmti.so",
            "/usr/local/lib/libperf-jvmti.so",
            "/usr/local/lib64/libperf-jvmti.so",
        ],
        ways: &[Way::Options(
            "JAVA_TOOL_OPTIONS",
            "-XX:+IgnoreUnrecognizedVMOptions -agentpath:{agent} -XX:+PreserveFramePointer",
            " ",
        )],
        probe: &["-version"],
        asked_with: JAVA_OPTIONS,
        chosen: JAVA_CHOSEN,
        effect: "perf's agent writes a jitdump below ~/.debug/jit",
        stacks: FRAME_POINTERS,
    },
    // Before JDK 17, the option for the map does not exist.
    Runtime {
        name: "Java",
        programs: JAVA,
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Options(
            "JAVA_TOOL_OPTIONS",
            "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit -XX:+PreserveFramePointer",
            " ",
        )],
        probe: &["-version"],
        asked_with: JAVA_OPTIONS,
        chosen: JAVA_CHOSEN,
        effect: "the JVM of JDK 17 or newer writes a perf map when it ends",
        stacks: FRAME_POINTERS,
    },
    // With W^X, code memory is a file, for which perf reads no map.
    Runtime {
        name: ".NET",
        programs: &["dotnet"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Variable("DOTNET_PerfMapEnabled", "1"), Way::Variable("DOTNET_EnableWriteXorExecute", "0")],
        probe: &[],
        asked_with: &[],
        chosen: &[],
        effect: ".NET writes a jitdump and a perf map",
        stacks: FRAME_POINTERS,
    },
    Runtime {
        name: "MoarVM",
        programs: &["raku", "rakudo", "rakudo-m", "perl6", "perl6-m", "moar", "nqp", "nqp-m"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Variable("MVM_JIT_PERF_MAP", "1")],
        probe: &[],
        asked_with: &[],
        chosen: &[],
        effect: "MoarVM writes a perf map",
        stacks: None,
    },
    Runtime {
        name: "LuaJIT",
        programs: &["luajit"],
        since: NO_VERSION,
        agents: &[],
        ways: &[],
        probe: &[],
        asked_with: &[],
        chosen: &["-ljitsym", "-l jitsym"],
        effect: "its traces have names in perf with the module jitsym.lua of libjitsym (luajit -ljitsym)",
        stacks: None,
    },
    // The variable has an effect only if Julia was built with LLVM's listener for perf, as the official builds are.
    Runtime {
        name: "Julia",
        programs: &["julia"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Variable("ENABLE_JITPROFILING", "1")],
        probe: &[],
        asked_with: &[],
        chosen: &[],
        effect: "LLVM writes a jitdump below ~/.debug/jit",
        stacks: FRAME_POINTERS,
    },
    Runtime {
        name: "Mono",
        programs: &["mono", "mono-sgen", "mono-boehm"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Options("MONO_ENV_OPTIONS", "--jitmap", " ")],
        probe: &["--version"],
        asked_with: &[],
        chosen: &["--jitmap", "--jitdump"],
        effect: "Mono writes a perf map",
        stacks: None,
    },
];

const PYTHON_CHOSEN: &[&str] = &["-X perf", "-Xperf"];
/// The options exclude the module `site`, which runs code that the user has installed.
const PYTHON_PROBE: &[&str] = &["-S", "-c", ""];
const JAVA_OPTIONS: &[(&str, &str)] = &[
    ("JAVA_TOOL_OPTIONS", ""),
    ("JDK_JAVA_OPTIONS", ""),
    ("_JAVA_OPTIONS", ""),
    ("OPENJ9_JAVA_OPTIONS", ""),
    ("IBM_JAVA_OPTIONS", ""),
];
const JAVA_CHOSEN: &[&str] = &["PerfMap", "perf-jvmti", "perfmap", "perf-map-agent"];

impl Runtime {
    /// The arguments that are added to the command.
    pub fn arguments(&self) -> &'static [&'static str] {
        let words = |way: &Way| if let Way::Arguments { words, .. } = way { Some(*words) } else { None };
        self.ways.iter().find_map(words).unwrap_or_default()
    }

    /// Whether a program with this name is this runtime, and the version in the name.
    pub fn is_named(&self, program: &str) -> Option<Option<(u32, u32)>> {
        let rests = self.programs.iter().filter_map(|name| program.strip_prefix(name));
        rests.filter_map(|rest| if rest.is_empty() { Some(None) } else { version(rest).map(Some) }).next_back()
    }
}

/// The version at the end of a name, such as `3.13` or `-2.1.0-beta3`. A longer name may belong to another program, such as
/// `python3-config`.
fn version(text: &str) -> Option<(u32, u32)> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let stage = rest.trim_start_matches('-').trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if !["", "alpha", "beta", "rc", "dev", "t", "d"].contains(&stage) {
        return None;
    }
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse().ok()?;
    Some((major, parts.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_versions() {
        let find = |program: &str| {
            RUNTIMES.iter().find_map(|runtime| runtime.is_named(program).map(|version| (runtime.name, version)))
        };
        for (program, expected) in [
            ("node", Some(("Node.js", None))),
            ("nodejs", Some(("Node.js", None))),
            ("node-22", Some(("Node.js", Some((22, 0))))),
            ("python3.13", Some(("Python", Some((3, 13))))),
            ("python3", Some(("Python", None))),
            ("python2", Some(("Python", Some((2, 0))))),
            ("php8.2", Some(("PHP", Some((8, 2))))),
            ("php-fpm8.2", Some(("PHP", Some((8, 2))))),
            ("luajit-2.1.0-beta3", Some(("LuaJIT", Some((2, 1))))),
            ("beam.smp", Some(("Erlang", None))),
            ("perl6", Some(("MoarVM", None))),
            ("python3.13t", Some(("Python", Some((3, 13))))),
            ("python3-config", None),
            ("php8cc", None),
            ("php8-lint", None),
            ("node-22-foo", None),
            ("node-gyp", None),
            ("javac", None),
            ("perl", None),
            ("phpunit", None),
            ("", None),
        ] {
            assert_eq!(find(program), expected, "{program}");
        }
    }

    #[test]
    fn each_row_has_an_effect() {
        for runtime in RUNTIMES {
            assert!(!runtime.effect.is_empty() && !runtime.effect.ends_with('.'), "{}", runtime.name);
            let needs_agent =
                runtime.ways.iter().any(|way| matches!(way, Way::Options(_, text, _) if text.contains("{agent}")));
            assert_eq!(needs_agent, !runtime.agents.is_empty(), "{}", runtime.name);
        }
    }
}
