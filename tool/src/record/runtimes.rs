//! A table of the runtimes that can write files for perf. `jitsym record` turns this support on.

use super::plan::Stacks;

/// How a runtime is asked for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A variable of its own.
    Variable(&'static str, &'static str),
    /// Options in a variable that may contain other options, each separated by this text. `{agent}` is the path that was found.
    Options(&'static str, &'static str, &'static str),
    /// Arguments after the name of the program, or after one of these subcommands. With another of the subcommands, the program
    /// runs nothing.
    Arguments { words: &'static [&'static str], after: &'static [&'static str], idle: &'static [&'static str] },
}

/// A runtime, or its versions from one version on.
#[derive(Debug)]
pub struct Runtime {
    pub name: &'static str,
    /// The names of its programs. A version may follow.
    pub programs: &'static [&'static str],
    /// The first version that this row is for. An unknown version counts as new enough.
    pub since: (u32, u32),
    /// The row is for machines with one of these files only. A `*` stands for any name in a directory.
    pub agents: &'static [&'static str],
    pub ways: &'static [Way],
    /// The words after the name of the program with which the runtime starts and ends at once, and refuses what it does not know.
    /// If the first word is a name, it is that of another program, which runs the same code. Empty: whatever is set, the runtime
    /// starts.
    pub probe: &'static [&'static str],
    /// Variables that are others while the runtime is asked, so that it starts no agent, debugger or server of the user, and
    /// writes to no log: names and values. Without a value, the variable is removed.
    pub asked_with: &'static [(&'static str, &'static str)],
    /// If the command or the variables contain one of these texts, the user has chosen a way.
    pub chosen: &'static [&'static str],
    /// The effect of the ways, or the reason why there is none.
    pub effect: &'static str,
    /// How stacks are recorded, unless the user chooses.
    pub stacks: Option<Stacks>,
}

const NO_VERSION: (u32, u32) = (0, 0);
/// If the compiler of a runtime keeps frame pointers, stacks by frame pointers are whole.
const FRAME_POINTERS: Option<Stacks> = Some(Stacks::FramePointers);
const JAVA: &[&str] = &["java"];
const PYTHON: &[&str] = &["python", "python3"];

/// For each runtime, the first row that fits counts.
pub const RUNTIMES: &[Runtime] = &[
    // In this variable, Node.js accepts few options of V8: these two since version 12, and none for the place of the jitdump.
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
    // 3.12 knows the first variable only. In later versions the second variable wins.
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
    // The first three are shell scripts that execute the last ones.
    Runtime {
        name: "Erlang",
        programs: &["erl", "elixir", "iex", "mix", "escript", "rebar3", "erlexec", "beam.smp"],
        since: NO_VERSION,
        agents: &[],
        ways: &[Way::Options("ERL_FLAGS", "+JPperf true", " ")],
        probe: &["erl"],
        // The emulator reads these flags last. It has checked all other flags then, prints its version and ends.
        asked_with: &[("ERL_ZFLAGS", "+V -start_epmd false")],
        chosen: &["+JPperf"],
        effect: "the BEAM writes a jitdump or a perf map, and keeps frame pointers",
        stacks: FRAME_POINTERS,
    },
    // 32: a jitdump. The variable is without effect while the JIT compiler is off.
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
    // The agent of perf for virtual machines of Java.
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
    // Only if Julia was built with LLVM's listener for perf, as the official builds are.
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
/// Without the module `site`, which runs code that the user has installed.
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

/// The version in the end of a name, such as `3.13` or `-2.1.0-beta3`. Another program may have a longer name: `python3-config`.
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
