//! What `scripts/release.sh` makes can be used by somebody who has nothing else: sources that build without cargo and without a
//! network, and libraries for older systems and for musl.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installed::*;
use crate::support::{fetched, fresh_dir, is_root, root, run, shared_dir, stdout, tool};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes files of a release. The names that the script prints.
fn release(dir: &Path, what: &[&str]) -> Vec<PathBuf> {
    let mut script = Command::new("sh");
    script.current_dir("/").arg(root().join("scripts/release.sh")).arg(dir).args(what);
    stdout(&run(script.env_remove("CARGO_TARGET_DIR"))).lines().map(PathBuf::from).collect()
}

fn unpack(archive: &Path, dir: &Path) -> PathBuf {
    run(Command::new("tar").arg("-C").arg(dir).arg("-xzf").arg(archive));
    let name = archive.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    dir.join(name.trim_end_matches(".tar.gz"))
}

/// The sources build by rustc and a linker, without cargo and a network. What they build is installed and linked.
#[test]
fn sources_by_rustc_alone() {
    let dir = fresh_dir("release-sources");
    let made = release(&dir, &["source"]);
    assert_eq!(made, [dir.join(format!("jitsym-{VERSION}.tar.gz")), dir.join("SHA256SUMS")]);
    run(Command::new("sha256sum").current_dir(&dir).args(["--strict", "--check", "SHA256SUMS"]));
    let tree = unpack(&made[0], &dir);

    let sysroot = stdout(&run(Command::new("rustc").args(["--print", "sysroot"])));
    let rustc = Path::new(sysroot.trim()).join("bin/rustc");
    let offline = |program: &str| {
        let mut command = consumer("unshare");
        command.args(["--net", "--map-root-user", program]).current_dir(&tree).env("PATH", "/usr/bin:/bin");
        command
    };
    let mut make = offline("make");
    run(make.args(["library", "-j3"]).arg(format!("RUSTC={}", rustc.display())));
    let stage = dir.join("stage");
    let mut install = offline("sh");
    install.args(["scripts/install.sh", "--prefix=/usr"]).env("DESTDIR", &stage).env("CARGO", "/nowhere/cargo");
    run(install.env("JITSYM_LIBRARIES", tree.join("target/make/library")).env("JITSYM_PROGRAM", tool()));
    let installed = Tree { root: stage, prefix: "/usr", libdir: "/usr/lib", includedir: "/usr/include" };
    assert!(installed.path("/usr/share/man/man3/jitsym_register.3").is_file());
    uses(&installed, "release-sources");
}

/// Programs are built by what pkg-config says, shared and static.
fn uses(tree: &Tree, name: &str) {
    let rpath = format!("-Wl,-rpath,{}", tree.path(tree.libdir).display());
    let cflags = tree.pkg_config_words(&["--cflags"]);
    build_and_run(name, true, &cflags, &[tree.pkg_config_words(&["--libs"]), strings(&[&rpath])].concat());
    let mut with_static = consumer("pkg-config");
    with_static.env("PKG_CONFIG_PATH", tree.lib("pkgconfig")).args(["--libs", "jitsym-static"]);
    let libs: Vec<String> = stdout(&run(&mut with_static)).split_whitespace().map(str::to_owned).collect();
    build_and_run(&format!("{name}-static"), false, &cflags, &libs);
}

/// Runs a script with nothing but a Debian system and a directory, which is the home directory, and without a network.
fn in_a_clean_system(system: &str, home: &Path, script: &str) -> String {
    // What a maintainer script of a package would have done.
    let bin = home.join("bin");
    if !bin.exists() {
        fs::create_dir(&bin).expect("directory");
        symlink("/usr/bin/gcc", bin.join("cc")).and_then(|()| symlink("/usr/bin/mawk", bin.join("awk"))).expect("link");
    }
    let mounts = r#"root=$1 home=$2
        for dir in proc dev sys; do mount --rbind "/$dir" "$root/$dir"; done
        mount -t tmpfs tmpfs "$root/tmp"
        mount --bind "$home" "$root/home"
        exec chroot "$root" /usr/bin/env -i PATH=/home/bin:/usr/bin:/bin HOME=/home LC_ALL=C sh -euc "cd; $3""#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "sh", "-euc", mounts, "sh"]).arg(fetched(system)).arg(home).arg(script);
    stdout(&run(&mut unshare))
}

/// A just-in-time compiler is linked in each way with the archive; then perf reports the name of its code.
const PROFILED: &str = r#"
    export PKG_CONFIG_PATH=/home/libs/lib/pkgconfig
    cc toy_jit.c -o shared $(pkg-config --cflags --libs jitsym) -Wl,-rpath,/home/libs/lib
    cc toy_jit.c -o static $(pkg-config --cflags --libs jitsym-static)
    cc -static toy_jit.c -o whole $(pkg-config --cflags --libs jitsym-static) -Wl,--eh-frame-hdr
    for program in shared static whole; do
        perf record -q -e cpu-clock -F 499 -o perf.data ./$program hello.toy 1 >/dev/null
        perf report -i perf.data --stdio --sort symbol 2>/dev/null | grep -o 'pixel' | sort -u
        rm -f /tmp/perf-*.map
    done
    libs/bin/jitsym version
"#;

/// The libraries for glibc work on Debian 12 and 13, and need no newer glibc than 2.17. Those for musl work with Debian's musl.
/// The sources build with the compiler of Debian 13, by make and by cargo. The same sources become the same bytes.
#[test]
fn archives() {
    if !is_root("change the root directory") {
        return;
    }
    let dir = fresh_dir("release");
    let targets = ["x86_64-linux-gnu", "x86_64-linux-musl", "aarch64-linux-gnu", "aarch64-linux-musl"];
    release(&dir, &["source", targets[0], targets[1], targets[2], targets[3]]);
    let file = |name: &str| dir.join(format!("jitsym-{VERSION}{name}.tar.gz"));

    let home = shared_dir("release-home");
    for target in targets {
        let libs = unpack(&file(&format!("-{target}")), &home);
        assert_libraries(&libs, target);
    }
    fs::copy(root().join("examples/toy_jit.c"), home.join("toy_jit.c")).expect("program");
    fs::copy(root().join("examples/hello.toy"), home.join("hello.toy")).expect("program");
    fs::rename(home.join(format!("jitsym-{VERSION}-{}", targets[0])), home.join("libs")).expect("move the archive");
    let expected = format!("{}jitsym {VERSION}\n", "pixel\n".repeat(3));
    for system in ["older-clean", "clean"] {
        assert_eq!(in_a_clean_system(system, &home, PROFILED), expected, "{system}");
    }

    // With musl. Its unwinder is that of the toolchain, which is not a library of its own.
    fs::rename(home.join("libs"), home.join("libs-gnu")).expect("other archive");
    fs::rename(home.join(format!("jitsym-{VERSION}-{}", targets[1])), home.join("libs")).expect("move the archive");
    let musl = r#"
        export PKG_CONFIG_PATH=/home/libs/lib/pkgconfig
        musl-gcc -static toy_jit.c -o whole $(pkg-config --cflags --libs jitsym-static) -lgcc_eh -Wl,--eh-frame-hdr
        perf record -q -e cpu-clock -F 499 -o perf.data ./whole hello.toy 1 >/dev/null
        perf report -i perf.data --stdio --sort symbol 2>/dev/null | grep -o 'pixel' | sort -u
        libs/bin/jitsym version
    "#;
    let expected = format!("pixel\njitsym {VERSION}\n");
    assert_eq!(in_a_clean_system("clean", &home, musl), expected);

    let sources = unpack(&file(""), &home);
    fs::rename(sources, home.join("sources")).expect("move the sources");
    let built = in_a_clean_system(
        "clean",
        &home,
        "cd sources; make -s -j3 >/dev/null 2>&1; target/make/jitsym version
         cargo rustc --quiet --release --lib --features reserve --crate-type cdylib --config profile.release.lto=false
         ls target/release/libjitsym.so",
    );
    assert_eq!(built, format!("jitsym {VERSION}\ntarget/release/libjitsym.so\n"));

    let again = fresh_dir("release-again");
    release(&again, &["source", targets[0]]);
    for name in ["", "-x86_64-linux-gnu"] {
        let other = again.join(file(name).file_name().expect("name"));
        assert!(fs::read(file(name)).expect("archive") == fs::read(other).expect("archive"), "{name}: other bytes");
    }
}

/// The newest version of each symbol set that a library needs, by the name before the underscore.
fn versions(library: &Path) -> BTreeMap<String, Vec<u32>> {
    let output = stdout(&run(Command::new("readelf").env("LC_ALL", "C").args(["-W", "--version-info"]).arg(library)));
    let mut newest: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (_, name) in output.lines().filter_map(|line| line.split_once("Name: ")) {
        let Some((set, number)) = name.split(' ').next().and_then(|name| name.split_once('_')) else { continue };
        let number = number.split('.').map(|part| part.parse().expect("version")).collect();
        let known = newest.entry(set.to_owned()).or_default();
        *known = std::mem::take(known).max(number);
    }
    newest
}

fn assert_libraries(tree: &Path, target: &str) {
    let shared = tree.join(format!("lib/libjitsym.so.{VERSION}"));
    let needed = needed(&shared);
    let versions = versions(&shared);
    if target.ends_with("musl") {
        assert_eq!(needed, ["libgcc_s.so.1"], "{target}");
        assert!(!versions.contains_key("GLIBC"), "{target}: {versions:?}");
    } else {
        assert!(needed.contains(&"libc.so.6".to_owned()), "{target}: {needed:?}");
        let glibc = versions.get("GLIBC").unwrap_or_else(|| panic!("{target}: {versions:?}"));
        assert!(*glibc <= vec![2, 17], "{target}: {versions:?}");
    }
    let program = stdout(&run(Command::new("readelf").arg("-lW").arg(tree.join("bin/jitsym"))));
    assert!(!program.contains("interpreter"), "{target}: {program}");
    let machine = if target.starts_with("aarch64") { "AArch64" } else { "X86-64" };
    for file in [&shared, &tree.join("bin/jitsym"), &tree.join("lib/libjitsym.a")] {
        let header = stdout(&run(Command::new("readelf").arg("-h").arg(file)));
        assert!(header.contains(machine), "{target}: {header}");
    }
    for file in ["share/doc/jitsym/LICENSES-CRATES", "share/doc/jitsym/jitsym.cdx.json", "share/man/man1/jitsym.1"] {
        assert!(tree.join(file).is_file(), "{target}: {file}");
    }
}
