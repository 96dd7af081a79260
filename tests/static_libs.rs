//! What stands beside the static library in a link. The libraries that it needs are the ones that we say: `-l` flags in
//! `support::STATIC_LIBS`, from where the C tests have them. And other Rust libraries do not clash with it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn static_libs() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(crate::support::root());
    cargo.args(["rustc", "--release", "--lib", "--features", "reserve", "--crate-type", "staticlib", "--target-dir"]);
    // Not the directory of the library that the other tests link: other arguments would make cargo build it anew.
    cargo.arg(crate::support::root().join("target/native-static-libs"));
    // The list does not depend on it, and the build takes half as long.
    cargo.args(["--config", "profile.release.lto=\"off\"", "--config", "profile.release.opt-level=0"]);
    let output = crate::support::run(cargo.args(["--", "--print", "native-static-libs"]));
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("native-static-libs: ")).expect("native-static-libs").1;
    // The unwinder, which C compilers add by themselves: the one that fits, in a program without shared libraries too.
    let printed: BTreeSet<&str> = line.split_whitespace().filter(|library| *library != "-lgcc_s").collect();
    let promised: BTreeSet<&str> = crate::support::STATIC_LIBS.iter().copied().collect();
    assert_eq!(printed, promised, "support::STATIC_LIBS and what is written about static linking must change");
}

/// A program with another static library that contains Rust: panics are caught in both, by what each has of Rust's runtime
/// library, in whatever order they are linked.
#[test]
fn beside_another_rust_library() {
    let dir = crate::support::scratch_dir("another");
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let source = crate::support::root().join("c-tests/consumers");
    let whole = ["-Clto=fat", "-Ccodegen-units=1"];
    for (name, lto) in [("parts", &[][..]), ("whole", &whole)] {
        let other = dir.join(format!("libother-{name}.a"));
        let mut compiler = Command::new(&rustc);
        compiler.args(["-O", "--edition=2021", "--crate-type=staticlib", "-o"]).arg(&other).args(lto);
        crate::support::run(compiler.arg(source.join("another.rs")));
        let ours = &crate::support::artifacts().static_lib;
        for libraries in [[ours, &other], [&other, ours]] {
            for flags in [&[][..], &["-Wl,--gc-sections"]] {
                let program = dir.join("program");
                let mut compiler = Command::new("gcc");
                compiler
                    .current_dir(crate::support::root())
                    .args(["-Wall", "-Wextra", "-Werror", "-Iinclude"])
                    .args(flags);
                compiler.arg(source.join("beside.c")).args(libraries).args(crate::support::STATIC_LIBS);
                crate::support::run(compiler.arg("-o").arg(&program));
                let output = crate::support::run(Command::new(&program).env("JITSYM_DIR", &dir));
                assert_eq!(crate::support::stdout(&output), "another: 1, caught 5\njitsym: 0, 1 registered\n");
            }
        }
    }
    assert!(crate::support::checker::assert_all_sound(&dir, &[]) > 0);
}

/// A program without any shared library.
#[test]
fn in_a_static_program() {
    let dir = crate::support::scratch_dir("static");
    let program = dir.join("program");
    let mut compiler = Command::new("gcc");
    compiler
        .current_dir(crate::support::root())
        .args(["-static", "-Iinclude", "c-tests/consumers/hello.c", "-o"])
        .arg(&program);
    crate::support::run(compiler.arg(&crate::support::artifacts().static_lib).args(crate::support::STATIC_LIBS));
    let headers =
        crate::support::stdout(&crate::support::run(Command::new("readelf").args(["-l", "-W"]).arg(&program)));
    assert!(!headers.contains("INTERP") && !headers.contains("DYNAMIC"), "{headers}");
    crate::support::run(Command::new(&program).arg(&dir));
    assert!(crate::support::checker::assert_all_sound(&dir, &[]) > 0);
}

/// A plugin in which no session has written is unloaded, and threads that have called it end later, as does the process.
#[test]
fn in_a_plugin_that_is_unloaded() {
    let dir = crate::support::fresh_dir("unloaded");
    let plugin = crate::support::scratch_dir("bin").join("plugin.so");
    crate::support::plugin(&plugin);
    let host =
        crate::support::compile("gcc", &["c-tests/loader/unloads.c"], crate::support::Link::None, &["-O1"], "unloads");
    let output = crate::support::run(Command::new(host).arg(&dir).arg(plugin));
    assert!(output.stdout == b"ok\n" && output.stderr.is_empty(), "{output:?}");
    std::fs::remove_dir_all(format!("{}-spools", dir.display())).expect("remove the spools");
}

/// Whoever uses little of the library, and asks the linker to leave out what nobody needs, gets less.
#[test]
fn unused_parts_are_left_out() {
    let dir = crate::support::scratch_dir("little");
    let source = dir.join("little.c");
    std::fs::write(
        &source,
        "#include <jitsym.h>\nint main(void) { return jitsym_version_number() != JITSYM_VERSION_NUMBER; }\n",
    )
    .expect("program");
    let size = |flag: &str| {
        let program = crate::support::compile(
            "gcc",
            &[source.to_str().expect("UTF-8")],
            crate::support::Link::Static,
            &["-s", flag],
            "little",
        );
        crate::support::run(&mut Command::new(&program));
        std::fs::metadata(program).expect("program").len()
    };
    let (all, little) = (size("-Wl,--no-gc-sections"), size("-Wl,--gc-sections"));
    assert!(little < all / 2, "{little} of {all} bytes are left");
}
