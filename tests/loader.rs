//! `include/jitsym_dl.h`: programs that are not linked with the library use it where it is, and write a map where it is not.

mod map;

use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::perf::{self, Recording};
use crate::support::{
    artifacts, compile, describe, fresh_dir, is_root, once, root, run, scratch_dir, shared_dir, stdout, thorough,
    try_run, Link,
};

/// How programs are compiled that were not written for the loader: whatever they include of the library is that then.
const INSTEAD: [&str; 2] = ["-include", "jitsym_dl.h"];

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let other = shared_dir("bin").join("dl_other.o");
        once(&other, "", || {
            let mut cxx = Command::new("g++");
            cxx.current_dir(root()).args(["-c", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Iinclude"]);
            run(cxx.arg("c-tests/loader/dl_other.cc").arg("-o").arg(&other));
        });
        let sources = ["c-tests/loader/dl.c", other.to_str().expect("path")];
        compile("gcc", &sources, Link::None, &["-O1", "-Wpedantic", "-std=c99"], "dl")
    })
}

/// A run in which the library is found nowhere, if nobody says where.
fn command(program: &Path, mode: &str) -> Command {
    let dir = scratch_dir(format!("files-{mode}"));
    let mut command = Command::new(program);
    command.env_clear().arg(dir).arg(artifacts().shared_dir.join("libjitsym.so")).arg(mode);
    command
}

fn succeed(command: &mut Command) {
    let output = try_run(command);
    assert!(
        output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty(),
        "{}",
        describe(command, &output)
    );
}

#[test]
fn absent_and_present() {
    let program = program();
    let library = artifacts().shared_dir.join("libjitsym.so");
    succeed(&mut command(program, "absent"));
    succeed(command(program, "absent").env("JITSYM_LIB", "/nowhere/libjitsym.so"));
    succeed(&mut command(program, "late"));
    succeed(&mut command(program, "once"));
    succeed(command(program, "present").env("JITSYM_LIB", &library));
    for _ in 0..20 {
        succeed(command(program, "threads").env("JITSYM_LIB", &library));
    }
    // By its soname, where the dynamic linker looks.
    succeed(command(program, "present").env("LD_LIBRARY_PATH", &artifacts().shared_dir));
    succeed(command(program, "present").env("LD_LIBRARY_PATH", &artifacts().shared_dir).env("JITSYM_LIB", ""));
    // The dynamic linker has nothing to do with it before it is asked.
    let needed = stdout(&run(Command::new("readelf").arg("-d").arg(program)));
    assert!(needed.contains("libc.so.6") && !needed.contains("jitsym"), "{needed}");
}

/// What a program is told of a library that it could not load.
fn why_not(program: &Path, given: Option<&Path>) -> String {
    let mut command = command(program, "why");
    command.envs(given.map(|path| ("JITSYM_LIB", path)));
    let said = stdout(&run(&mut command));
    said.strip_suffix("\nok\n").unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// The name that was tried, and what the dynamic linker says of it.
#[test]
fn reasons() {
    let program = program();
    let none = "cannot open shared object file: No such file or directory";
    let hint = "; the variable JITSYM_LIB may name the file";
    assert_eq!(why_not(program, None), format!("libjitsym.so.0.1: {none}{hint}"));
    assert_eq!(why_not(program, Some(Path::new("/nowhere/it.so"))), format!("/nowhere/it.so: {none}"));
    let text = root().join("README.md");
    assert_eq!(why_not(program, Some(&text)), format!("{}: invalid ELF header", text.display()));
    let said = why_not(program, Some(Path::new("libm.so.6")));
    assert!(said.contains("libm.so.6: undefined symbol: jitsym_"), "{said}");
    // One that is longer than there is room for is cut, and is no line that has no end.
    let long = format!("/nowhere/{}", "long/".repeat(600));
    let said = why_not(program, Some(Path::new(&long)));
    assert!(said.starts_with("/nowhere/long/") && (500..2000).contains(&said.len()), "{}: {said}", said.len());
}

/// The reason is said where the user asks for it.
#[test]
fn reasons_are_said() {
    let mut command = command(program(), "why");
    let output = try_run(command.env("JITSYM_LIB", "/nowhere/it.so").env("JITSYM_DEBUG", "1"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("jitsym ") && said.contains(": the library cannot be loaded: /nowhere/it.so: "), "{said}");
}

/// Another ABI is not used, nor a library that lacks a function, and nothing is left of the attempt.
#[test]
fn other_libraries() {
    let program = program();
    let dir = scratch_dir("other");
    let names = fs::read_to_string(root().join("tests/exports.txt")).expect("list of functions");
    let build = |name: &str, version: u32, without: &str| {
        let functions: String = names
            .lines()
            .filter(|name| *name != without && *name != "jitsym_version_number")
            .map(|name| format!("int {name}(void) {{ return 0; }}\n"))
            .collect();
        let source = dir.join(format!("{name}.c"));
        let text = format!("{functions}unsigned jitsym_version_number(void) {{ return {version}; }}\n");
        fs::write(&source, text).expect("write the source");
        let library = dir.join(format!("{name}.so"));
        run(Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
        library
    };
    for (name, version, without, why) in [
        ("minor", 2000, "", "is version 0.2.0, and not 0.1"),
        ("major", 1_001_000, "", "is version 1.1.0, and not 0.1"),
        ("lacking", 1000, "jitsym_path", "undefined symbol: jitsym_path"),
    ] {
        let library = build(name, version, without);
        succeed(command(program, "absent").env("JITSYM_LIB", &library));
        let said = why_not(program, Some(&library));
        assert!(said.contains(library.to_str().expect("UTF-8")) && said.contains(why), "{said}");
    }
    // The control: with all functions and another patch version it is taken.
    let output = try_run(command(program, "absent").env("JITSYM_LIB", build("good", 1999, "")));
    assert!(String::from_utf8_lossy(&output.stderr).contains("jitsym_init(&options, &session) is"), "{output:?}");
}

/// A directory in which all users may write, and in which a setuid program has the rights of its owner.
fn dir_of_all(name: &str) -> PathBuf {
    let dir = Path::new("/tmp").join(format!("jitsym-{name}-{}", std::process::id()));
    fs::create_dir(&dir).expect("directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("permissions");
    dir
}

/// Who runs this program has the rights of another user.
fn give_away(program: &Path) {
    chown(program, Some(65534), Some(65534)).expect("give the program to another user");
    fs::set_permissions(program, fs::Permissions::from_mode(0o4755)).expect("setuid");
}

/// A program with the rights of another user does not load what its user names.
#[test]
fn privileged_programs() {
    if !is_root("give a program to another user") {
        return;
    }
    let dir = dir_of_all("loader");
    let of_another = dir.join("dl");
    fs::copy(program(), &of_another).expect("copy");
    let library = dir.join("libjitsym.so");
    fs::copy(artifacts().shared_dir.join("libjitsym.so"), &library).expect("copy");
    let mut with_library = Command::new(&of_another);
    with_library.env_clear().env("JITSYM_LIB", &library).arg(&dir).arg(&library);
    // The control: so it is found without other rights.
    let present = try_run(with_library.arg("present"));
    give_away(&of_another);
    let mut absent = Command::new(&of_another);
    let absent = try_run(absent.env_clear().env("JITSYM_LIB", &library).arg(&dir).arg(&library).arg("absent"));
    fs::remove_dir_all(&dir).expect("remove the directory");
    assert_eq!(present.stdout, b"ok\n", "{present:?}");
    assert_eq!(absent.stdout, b"ok\n", "{absent:?}");
}

/// All of jitsym.h is there: a program that uses it does the same with the loader, function by function.
#[test]
fn every_function() {
    let names = fs::read_to_string(root().join("tests/exports.txt")).expect("list of functions");
    let header = fs::read_to_string(root().join("include/jitsym_dl.h")).expect("header");
    for name in names.lines() {
        let define = format!("#define {name} jitsym_dl_{}\n", name.trim_start_matches("jitsym_"));
        assert!(header.contains(&define), "{define}");
        assert!(header.contains(&format!("FUNCTION({name})")), "{name}");
    }
    // Those whose first call is jitsym_init.
    let others = if thorough() { &["calls/late"][..] } else { &[] };
    for source in ["calls/threads", "files/files"].iter().chain(others) {
        let flags = [&INSTEAD[..], &["-O1"]].concat();
        let name = source.replace('/', "-");
        let program = compile("gcc", &[&format!("c-tests/{source}.c")], Link::None, &flags, &name);
        let dir = scratch_dir(format!("files-{name}"));
        let mut command = Command::new(&program);
        succeed(command.arg(&dir).arg("light").env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so")));
    }
}

/// Without the library a call takes a load and a branch.
#[test]
fn one_branch() {
    let program = program();
    let count = |calls: u64| {
        let profile = scratch_dir("profiles").join(calls.to_string());
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--tool=callgrind", "--toggle-collect=one_call"]);
        valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
        let inner = command(program, &calls.to_string());
        run(valgrind.arg(program).args(inner.get_args()).env_remove("JITSYM_LIB"));
        let text = fs::read_to_string(&profile).expect("profile");
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals");
        totals.trim().parse::<u64>().expect("number")
    };
    let each = (count(2000) - count(1000)) / 1000;
    println!("{each} instructions");
    // The load, the comparison, the branch, the result and the return; with some compilers a register is saved.
    assert!((4..=8).contains(&each) || cfg!(not(target_arch = "x86_64")), "{each}");
}

#[test]
fn every_language_version() {
    let dir = scratch_dir("header");
    let source = dir.join("header.c");
    let text = "#include \"jitsym_dl.h\"\n\
        jitsym_status f(jitsym *s);\njitsym_status f(jitsym *s) { return jitsym_close(s); }\n\
        jitsym_status g(jitsym *s, jitsym_code *c, jitsym_move_target *t, jitsym_stats *to);\n\
        jitsym_status g(jitsym *s, jitsym_code *c, jitsym_move_target *t, jitsym_stats *to) {\n\
          char b[99]; jitsym_id i = 0;\n\
          if (jitsym_register(s, c, &i) || jitsym_move(s, i, t) || jitsym_unregister(s, i)) return jitsym_flush(s, 0);\n\
          return jitsym_path(s, 1, b, sizeof b) ? jitsym_get_stats(s, to) : jitsym_unregister_range(s, 1, 1, 0); }\n\
        int why(void);\n\
        int why(void) { char b[8]; jitsym *s; jitsym_init(NULL, &s); jitsym_last_error(NULL, b, sizeof b); return puts(b); }\n";
    fs::write(&source, text).expect("write the source");
    let alone = dir.join("alone.c");
    fs::write(&alone, "#include \"jitsym_map.h\"\n#include \"jitsym_dl.h\"\n#include \"jitsym.h\"\n")
        .expect("write the source");
    let compiles = |compiler: &str, language: &str, version: &str| {
        let mut command = Command::new(compiler);
        command.current_dir(root()).args([
            "-x",
            language,
            &format!("-std={version}"),
            "-Iinclude",
            "-O2",
            "-c",
            "-o",
            "/dev/null",
        ]);
        command.args(["-pedantic", "-Wall", "-Wextra", "-Wshadow", "-Wundef", "-Wconversion", "-Werror"]);
        for source in [&source, &alone] {
            let mut all = Command::new(compiler);
            run(all.current_dir(root()).args(command.get_args()).arg(source));
        }
    };
    for version in ["c99", "c11", "c17", "gnu17"] {
        compiles("gcc", "c", version);
        compiles("clang", "c", version);
    }
    for version in ["c++11", "c++17", "c++20"] {
        compiles("g++", "c++", version);
        compiles("clang++", "c++", version);
    }
}

/// What a distribution would ship: a runtime that does not need the library, finds it by its soname, and then has names in perf.
#[test]
fn perf_sees_the_functions() {
    // The old kind of rpath wins over LD_LIBRARY_PATH, in which cargo names directories with other builds.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", artifacts().shared_dir.display());
    let flags = [&INSTEAD[..], &["-O1", &rpath]].concat();
    let program = compile("gcc", &["c-tests/perf/truth_jit.c"], Link::None, &flags, "truth_jit");
    let recording = Recording::new("loader", &program, &[], &["scenario=stacks", "seconds=1"]);
    let samples = perf::samples(&recording.truth, &recording.data, false);
    let mut names = perf::Verdict::new("names");
    for sample in samples.iter().filter(|sample| recording.truth.in_arena(sample.ip)) {
        let newest = recording.truth.newest_at(sample.ip).map(|place| &*place.name);
        names.check(newest == Some(&*sample.sym), || format!("{sample:?}, expected {newest:?}"));
    }
    names.decide(200, 1.0);
}

/// The object whose constructor and destructor call the program.
fn holder() -> PathBuf {
    let out = shared_dir("bin").join("holder.so");
    once(&out, "", || {
        let mut compiler = Command::new("gcc");
        compiler.current_dir(root()).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
        run(compiler.arg("c-tests/loader/holder.c").arg("-o").arg(&out));
    });
    out
}

/// Each call comes back while another thread holds the loader's lock, as it does in the constructor and the destructor of a plugin.
#[test]
fn no_call_asks_the_loader() {
    for (link, name) in [(Link::Shared, "held-shared"), (Link::Static, "held-static")] {
        let program = compile("gcc", &["c-tests/loader/held.c"], link, &["-O1", "-rdynamic"], name);
        let dir = fresh_dir(name);
        succeed(Command::new(program).env_clear().arg(&dir).arg(holder()));
    }
}

/// The first session in a plugin with the static library has the loader keep the plugin, and holds no lock meanwhile.
#[test]
fn a_plugin_is_kept_before_any_lock() {
    let plugin = scratch_dir("bin").join("kept.so");
    crate::support::plugin(&plugin);
    let program = compile("gcc", &["c-tests/loader/held_plugin.c"], Link::None, &["-O1", "-rdynamic"], "held-plugin");
    succeed(Command::new(program).env_clear().arg(fresh_dir("held-plugin")).arg(holder()).arg(plugin));
}

/// Storage of a thread with a destructor is noted under the loader's lock, and so is each function that is looked up by its name.
#[test]
fn the_library_has_no_use_for_the_loaders_lock() {
    let symbols = stdout(&run(Command::new("nm").arg("-D").arg(artifacts().shared_dir.join("libjitsym.so"))));
    assert!(symbols.contains(" dlsym@") && !symbols.contains("__cxa_thread_atexit_impl"), "{symbols}");
}
