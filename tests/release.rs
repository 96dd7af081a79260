//! What `scripts/release.sh` makes can be used by somebody who has nothing else: sources that build without cargo and without a
//! network, libraries for older systems and for musl, and Debian packages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installed::*;
use crate::support::{fresh_dir, is_root, root, run, spaceless, stdout, tool, try_run};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const TARGETS: [&str; 4] = ["x86_64-linux-gnu", "x86_64-linux-musl", "aarch64-linux-gnu", "aarch64-linux-musl"];

/// A checkout of the sources as they are here, all committed. The directory is new.
fn checkout(dir: &Path) {
    let git = || {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=test", "-c", "user.email=test", "-C"]);
        git
    };
    run(Command::new("git").args(["clone", "--quiet", "--shared"]).arg(root()).arg(dir));
    let changes = run(git().arg(root()).args(["diff", "HEAD", "--binary"])).stdout;
    if !changes.is_empty() {
        fs::write(dir.join("changes"), changes).expect("changes");
        run(git().arg(dir).args(["apply", "changes"]));
        fs::remove_file(dir.join("changes")).expect("changes");
        // With the time of the last commit, so that each checkout has the same.
        let time = stdout(&run(git().arg(root()).args(["log", "-1", "--format=%ct +0000"])));
        run(git()
            .arg(dir)
            .args(["commit", "--quiet", "--all", "--message=test"])
            .env("GIT_COMMITTER_DATE", time.trim()));
    }
}

/// The script of a checkout.
fn release(checkout: &Path, dir: &Path, what: &[&str]) -> Command {
    let mut script = Command::new("sh");
    script.current_dir("/").arg(checkout.join("scripts/release.sh")).arg(dir).args(what);
    if let Some(built) = std::env::var_os("JITSYM_TEST_XTASK") {
        script.env("JITSYM_XTASK", built);
    }
    // None of these changes anything.
    script.env("CDPATH", "/:/usr").env("TMPDIR", "/nowhere").env("TAR_OPTIONS", "--nowhere").env("GZIP", "-1");
    script.env("RUSTFLAGS", "-Copt-level=0").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("GIT_DIR", "/nowhere");
    script
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn unpack(archive: &Path, dir: &Path) -> PathBuf {
    run(Command::new("tar").arg("-C").arg(dir).arg("-xzf").arg(archive));
    let name = archive.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    dir.join(name.trim_end_matches(".tar.gz"))
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).expect("program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
}

/// Nothing that is there is overwritten, what is not committed is not released, and a failure leaves nothing.
#[test]
fn refused() {
    let dir = fresh_dir("release-refused");
    let here = dir.join("a checkout");
    checkout(&here);
    // In place of the real one: it makes the sources in no time.
    let xtask = dir.join("xtask");
    executable(
        &xtask,
        "#!/bin/sh\nmkdir -p \"$2/.cargo\"; cp .cargo/config.toml \"$2/.cargo\"; echo >\"$2/jitsym.cdx.json\"\n",
    );
    let bin = dir.join("bin");
    fs::create_dir(&bin).expect("directory");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));
    let outcome = |out: &Path, what: &str| {
        let mut script = release(&here, out, &[what]);
        let output = try_run(script.env("JITSYM_XTASK", &xtask).env("PATH", &path));
        (output.status.code().expect("an exit"), String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let out = dir.join("out put");
    assert_eq!(outcome(&out, "sauce").0, 2);
    assert!(!out.exists());
    assert_eq!(outcome(&out, "source"), (0, String::new()));
    let made = ["SHA256SUMS".to_owned(), format!("jitsym-{VERSION}.cdx.json"), format!("jitsym-{VERSION}.tar.gz")];
    assert_eq!(names(&out), made);
    assert_eq!(outcome(&out, "source"), (1, format!("release.sh: {} is not empty\n", out.display())));
    assert_eq!(names(&out), made);

    // A part of the work fails or is ended, and nothing is left.
    let out = dir.join("other");
    for (program, does, code) in [("tar", "exit 3", 3), ("gzip", "exit 4", 4), ("gzip", "kill -TERM $PPID", 143)] {
        executable(&bin.join(program), &format!("#!/bin/sh\n{does}\n"));
        let outcome = outcome(&out, "source");
        assert_eq!((outcome.0, names(&out)), (code, vec![]), "{program}: {}", outcome.1);
        fs::remove_file(bin.join(program)).expect("program");
    }

    // The real one makes a new directory, of what is committed.
    let xtask = || {
        let mut xtask = Command::new(std::env::var_os("JITSYM_TEST_XTASK").unwrap_or("cargo".into()));
        if std::env::var_os("JITSYM_TEST_XTASK").is_none() {
            xtask
                .args(["run", "--quiet", "--package", "xtask", "--manifest-path"])
                .arg(root().join("Cargo.toml"))
                .arg("--");
        }
        xtask.current_dir(&here).arg("source");
        xtask
    };
    let output = try_run(xtask().arg("."));
    assert!(!output.status.success() && as_text(&output.stderr).contains("cannot make .: File exists"), "{output:?}");
    assert_eq!(stdout(&run(Command::new("git").arg("-C").arg(&here).args(["status", "--porcelain"]))), "");
    fs::write(here.join("README.md"), "changed").expect("change");
    let new = dir.join("new");
    let output = try_run(xtask().arg(&new));
    assert!(!output.status.success() && as_text(&output.stderr).contains("not committed:\n M README.md"), "{output:?}");
    assert!(!new.exists());
}

fn as_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The sources build by rustc and a linker, without cargo and a network, after a build that failed too. What they build is
/// installed and linked.
#[test]
fn sources_by_rustc_alone() {
    let dir = fresh_dir("release sources");
    let (here, out) = (dir.join("checkout"), dir.join("out"));
    checkout(&here);
    run(&mut release(&here, &out, &["source"]));
    let name = format!("jitsym-{VERSION}");
    assert_eq!(names(&out), ["SHA256SUMS", &format!("{name}.cdx.json"), &format!("{name}.tar.gz")]);
    run(Command::new("sha256sum").current_dir(&out).args(["--strict", "--check", "SHA256SUMS"]));
    let tree = unpack(&out.join(format!("{name}.tar.gz")), &dir);

    // A compiler that writes half of the libraries and fails, once.
    let sysroot = stdout(&run(Command::new("rustc").args(["--print", "sysroot"])));
    let rustc = dir.join("rustc");
    let text = format!(
        r#"#!/bin/sh
        case "$*" in "--crate-name jitsym "*)
            if ! [ -e failed ]; then
                for file in libjitsym.so libjitsym.a; do
                    echo half >target/make/library/$file
                    echo half >target/make/library/new/$file
                done
                touch failed
                exit 1
            fi
        esac
        exec {}/bin/rustc "$@""#,
        sysroot.trim()
    );
    executable(&rustc, &text);
    let offline = |program: &str| {
        let mut command = consumer("unshare");
        command.args(["--net", "--map-root-user", program]).current_dir(&tree).env("PATH", "/usr/bin:/bin");
        command.env_remove("RUSTFLAGS").env("CDPATH", tree.join("vendor"));
        command
    };
    let make = |rustc: &Path| {
        let mut make = offline("make");
        // Quick to build: no library of these is measured.
        make.args(["library", "-j3", "LTO=off", "RUSTFLAGS=-Copt-level=0 -Ccodegen-units=16"]);
        make.arg(format!("RUSTC={}", rustc.display()));
        make
    };
    for compiler in [Path::new("/nowhere/rustc"), &rustc] {
        let output = try_run(&mut make(compiler));
        assert_eq!(output.status.code(), Some(2), "{}", as_text(&output.stderr));
    }
    assert!(tree.join("failed").is_file());
    run(&mut make(&rustc));
    assert_frame_pointers(&tree.join("target/make/libjitsym.so"));

    let stage = spaceless(&dir).join("stage");
    let mut install = offline("sh");
    install.args(["scripts/install.sh", "--prefix=/usr"]).env("DESTDIR", &stage).env("CARGO", "/nowhere/cargo");
    run(install.env("JITSYM_LIBRARIES", tree.join("target/make/library")).env("JITSYM_PROGRAM", tool()));
    let installed = Tree { root: stage, prefix: "/usr", libdir: "/usr/lib", includedir: "/usr/include" };
    assert!(installed.path("/usr/share/man/man3/jitsym_register.3").is_file());
    uses(&installed, "release-sources");
}

/// A function that calls others begins as one with a frame pointer, on x86-64. (Compilers for aarch64 keep them anyway.)
fn assert_frame_pointers(library: &Path) {
    let code =
        run(Command::new("objdump").args(["-d", "--no-show-raw-insn", "--disassemble=jitsym_register"]).arg(library));
    let code = stdout(&code);
    // In a stripped library, the name is followed by `@@Base`.
    let is_begin = |line: &&str| line.contains(" <jitsym_register") && line.ends_with(">:");
    let begin: Vec<&str> = code.lines().skip_while(|line| !is_begin(line)).skip(1).take(3).collect();
    let text = begin.join("\n");
    assert!(text.contains("push   %rbp") && text.contains("mov    %rsp,%rbp"), "{}: {text}", library.display());
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

/// All files of a release. They are made once for the tests of them.
mod archives {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::bindings::python_env;
    use crate::managers::{npm_package_works, wheel_works};
    use crate::support::{checker, fetched, once, shared_dir};

    /// Runs a script with nothing but a Debian system and a directory, which is the home directory, and without a network.
    fn in_a_clean_system(system: &str, home: &Path, script: &str) -> String {
        let mounts = r#"root=$1 home=$2
            for dir in proc dev sys; do mount --rbind "/$dir" "$root/$dir"; done
            mount -t tmpfs tmpfs "$root/tmp"
            mount --bind "$home" "$root/home"
            exec chroot "$root" /usr/bin/env -i PATH=/home/bin:/usr/bin:/bin HOME=/home LC_ALL=C sh -euc "cd; $3""#;
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "sh", "-euc", mounts, "sh"]).arg(fetched(system)).arg(home).arg(script);
        stdout(&run(&mut unshare))
    }

    /// A just-in-time compiler is linked in each way with what is installed below `$prefix`. perf reports the name of its code.
    const PROFILED: &str = r#"
        export PKG_CONFIG_PATH=$lib/pkgconfig
        profile() {
            perf record -q -e cpu-clock -F 499 -o perf.data "$@" hello.toy 1 >/dev/null
            perf report -i perf.data --stdio --sort symbol 2>/dev/null | grep -o 'pixel' | sort -u
            rm -f /tmp/perf-*.map perf.data
        }
    "#;
    const WITH_GLIBC: &str = r#"
        cc toy_jit.c -o shared $(pkg-config --cflags --libs jitsym) -Wl,-rpath,"$lib"
        cc toy_jit.c -o static $(pkg-config --cflags --libs jitsym-static)
        cc -static toy_jit.c -o whole $(pkg-config --cflags --libs jitsym-static) -Wl,--eh-frame-hdr
        for program in shared static whole; do profile ./$program; done
        $prefix/bin/jitsym version
    "#;
    /// Alpine has its unwinder in a library for musl. Debian has none, so it is made of the unwinder that rustc has for musl.
    const WITH_MUSL: &str = r#"
    echo 'GCC_3.0 { _Unwind_*; }; GCC_4.2.0 { _Unwind_GetIPInfo; } GCC_3.0;' >gcc_s.map
    musl-gcc -shared -o libgcc_s.so.1 -Wl,-soname,libgcc_s.so.1,--version-script,gcc_s.map \
        -Wl,--whole-archive libunwind.a -Wl,--no-whole-archive
    musl-gcc toy_jit.c -o shared $(pkg-config --cflags --libs jitsym) -Wl,-rpath,"$lib:/home" libgcc_s.so.1
    musl-gcc -static toy_jit.c -o whole $(pkg-config --cflags --libs jitsym-static) libunwind.a -Wl,--eh-frame-hdr
    for program in shared whole; do profile ./$program; done
    $prefix/bin/jitsym version
"#;

    /// Makes parts of a release. The place is a new directory.
    fn make(place: &Path, what: &[&str]) -> PathBuf {
        let _ = fs::remove_dir_all(place);
        fs::create_dir_all(place).expect("directory");
        let (here, out) = (place.join("checkout"), place.join("made"));
        checkout(&here);
        run(&mut release(&here, &out, what));
        out
    }

    /// A whole release.
    fn made() -> PathBuf {
        let place = shared_dir("releases").join("one place");
        once(&place, "", || {
            let all: Vec<&str> = ["source", "wheel", "npm", "deb"].into_iter().chain(TARGETS).collect();
            make(&place, &all);
        });
        place.join("made")
    }

    fn archive(name: &str) -> PathBuf {
        made().join(format!("jitsym-{VERSION}{name}.tar.gz"))
    }

    fn package(name: &str) -> String {
        let architecture = stdout(&run(Command::new("dpkg").arg("--print-architecture")));
        format!("{name}_{VERSION}-1_{}.deb", architecture.trim())
    }

    fn wheel(arch: &str) -> String {
        format!("jitsym-{VERSION}-py3-none-manylinux_2_17_{arch}.manylinux2014_{arch}.whl")
    }

    const PACKAGES: [&str; 3] = ["jitsym", "libjitsym-dev", "libjitsym0.1"];

    /// A home directory for a clean system.
    fn home() -> PathBuf {
        let home = fresh_dir("home");
        // What a maintainer script of a package would have done.
        fs::create_dir(home.join("bin")).expect("directory");
        for (name, to) in [("cc", "gcc"), ("awk", "mawk")] {
            symlink(Path::new("/usr/bin").join(to), home.join("bin").join(name)).expect("link");
        }
        for file in ["toy_jit.c", "hello.toy"] {
            fs::copy(root().join("examples").join(file), home.join(file)).expect("program");
        }
        home
    }

    /// Runs the script in clean systems, with what is below a directory of the home directory. `count` programs are profiled.
    fn profiled(systems: &[&str], home: &Path, prefix: &str, lib: &str, script: &str, count: usize) {
        let script = format!("prefix=/home/{prefix} lib=/home/{prefix}/{lib}\n{PROFILED}{script}");
        for system in systems {
            let expected = format!("{}jitsym {VERSION}\n", "pixel\n".repeat(count));
            assert_eq!(in_a_clean_system(system, home, &script), expected, "{system}, {prefix}");
        }
    }

    /// Makes parts of a release at two places, and expects the same files with the same bytes.
    fn same_bytes(test: &str, what: &[&str], expected: &[String]) {
        let dir = fresh_dir(test);
        let [one, other] = ["one place", "other"].map(|place| make(&dir.join(place), what));
        for dir in [&one, &other] {
            assert_files(dir, expected.to_vec());
        }
        for name in names(&one) {
            let [one, other] = [&one, &other].map(|dir| fs::read(dir.join(&name)).expect("file"));
            assert!(one == other, "{name}: other bytes");
        }
    }

    /// The directory has these files, the bill of materials, and the sums of all.
    fn assert_files(dir: &Path, mut expected: Vec<String>) {
        expected.extend(["SHA256SUMS".into(), format!("jitsym-{VERSION}.cdx.json")]);
        expected.sort();
        assert_eq!(names(dir), expected);
        let sums = fs::read_to_string(dir.join("SHA256SUMS")).expect("checksums");
        assert_eq!(sums.lines().count(), expected.len() - 1);
        run(Command::new("sha256sum").current_dir(dir).args(["--strict", "--check", "SHA256SUMS"]));
    }

    #[test]
    fn same_bytes_of_sources_and_packages() {
        let mut expected = PACKAGES.map(package).to_vec();
        expected.push(format!("jitsym-{VERSION}.tar.gz"));
        same_bytes("packages", &["source", "deb"], &expected);
    }

    /// Of the libraries for a target, of the program, and of the packages that contain them.
    fn same_bytes_for(target: &str) {
        let mut expected = vec![format!("jitsym-{VERSION}-{target}.tar.gz")];
        let mut what = vec![target];
        if let Some(arch) = target.strip_suffix("-linux-gnu") {
            expected.extend([wheel(arch), format!("jitsym-{VERSION}.tgz")]);
            what.extend(["wheel", "npm"]);
        }
        same_bytes(target, &what, &expected);
    }

    #[test]
    fn same_bytes_for_glibc() {
        same_bytes_for("x86_64-linux-gnu");
    }

    #[test]
    fn same_bytes_for_musl() {
        same_bytes_for("x86_64-linux-musl");
    }

    #[test]
    fn same_bytes_for_glibc_on_aarch64() {
        same_bytes_for("aarch64-linux-gnu");
    }

    #[test]
    fn same_bytes_for_musl_on_aarch64() {
        same_bytes_for("aarch64-linux-musl");
    }

    /// A whole release has all files, and the sum of each.
    #[test]
    fn whole() {
        let mut expected: Vec<String> =
            TARGETS.iter().map(|target| format!("jitsym-{VERSION}-{target}.tar.gz")).collect();
        expected.extend([format!("jitsym-{VERSION}.tar.gz"), format!("jitsym-{VERSION}.tgz")]);
        expected.extend(["x86_64", "aarch64"].map(wheel));
        expected.extend(PACKAGES.map(package));
        assert_files(&made(), expected);
    }

    /// The tools of PyPI find no fault in the wheels, which need no newer glibc than they say.
    #[test]
    fn wheels() {
        let env = python_env(&["auditwheel==6.8.2", "check-wheel-contents==0.6.3", "twine==7.0.0"]);
        let dir = fresh_dir("wheels");
        for arch in ["x86_64", "aarch64"] {
            let wheel = made().join(wheel(arch));
            run(Command::new(env.join("bin/twine")).args(["check", "--strict"]).arg(&wheel));
            run(Command::new(env.join("bin/check-wheel-contents")).arg(&wheel));
            let said = stdout(&run(Command::new(env.join("bin/auditwheel")).arg("show").arg(&wheel)));
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let platform = format!("is consistent with the following platform tag: \"manylinux_2_17_{arch}\".");
            assert!(said.contains(&platform), "{said}");
            let tree = unpack(&archive(&format!("-{arch}-linux-gnu")), &dir);
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(dir.join(arch)));
            let files = [
                ("lib/libjitsym.so.0.1", "jitsym/lib/libjitsym.so.0.1"),
                ("lib/libjitsym.a", "jitsym/lib/libjitsym.a"),
                ("bin/jitsym", "jitsym-0.1.0.data/scripts/jitsym"),
                ("share/doc/jitsym/LICENSES-CRATES", "jitsym-0.1.0.dist-info/licenses/LICENSES-CRATES"),
            ];
            for (file, packed) in files {
                let packed = dir.join(arch).join(packed.replace("0.1.0", VERSION));
                assert!(fs::read(tree.join(file)).expect(file) == fs::read(packed).expect(file), "{arch}: {file}");
            }
        }
        wheel_works("released-wheel", &made().join(wheel("x86_64")));
    }

    /// The package has the libraries for both machines.
    #[test]
    fn npm_package() {
        let dir = fresh_dir("npm");
        let package = made().join(format!("jitsym-{VERSION}.tgz"));
        run(Command::new("tar").arg("-C").arg(&dir).arg("-xzf").arg(&package));
        for (arch, cpu) in [("x86_64", "x64"), ("aarch64", "arm64")] {
            let tree = unpack(&archive(&format!("-{arch}-linux-gnu")), &dir);
            let packed = dir.join("package/lib").join(cpu).join("libjitsym.so.0.1");
            assert!(fs::read(tree.join("lib/libjitsym.so")).expect("library") == fs::read(packed).expect("library"));
        }
        assert!(dir.join("package/LICENSES-CRATES").is_file());
        npm_package_works("released-npm-package", &package);
    }

    /// CMake finds the unpacked binaries, and builds the sources that it fetches by their address, without a network.
    #[test]
    fn cmake() {
        let dir = fresh_dir("cmake");
        let tree = unpack(&archive("-x86_64-linux-gnu"), &dir);
        let sources = archive("");
        let uses = [
            ("cmake", vec![format!("-DCMAKE_PREFIX_PATH={}", tree.display())]),
            ("fetch", vec!["-DHOW=archive".to_owned(), format!("-DSOURCE=file://{}", sources.display())]),
        ];
        for (project, options) in uses {
            let build = dir.join(format!("build {project}"));
            let mut configure = consumer("cmake");
            configure.arg("-S").arg(root().join("c-tests/consumers").join(project)).arg("-B").arg(&build).args(options);
            run(configure.arg(format!("-DJITSYM_CARGO={}", env!("CARGO"))));
            let mut make = consumer("cmake");
            // Quick to build: no library of these is measured.
            make.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
            run(make.env("CARGO_NET_OFFLINE", "true").env_remove("CARGO_TARGET_DIR").arg("--build").arg(&build));
            run(consumer("ctest").current_dir(&build).args(["--output-on-failure", "--no-tests=error"]));
        }
    }

    /// The libraries work on Debian 12 and 13, and need no newer glibc than 2.17.
    #[test]
    fn glibc() {
        if !is_root("change the root directory") {
            return;
        }
        let home = home();
        let tree = unpack(&archive("-x86_64-linux-gnu"), &home);
        assert_libraries(&tree, "x86_64-linux-gnu");
        let prefix = format!("jitsym-{VERSION}-x86_64-linux-gnu");
        profiled(&["older-clean", "clean"], &home, &prefix, "lib", WITH_GLIBC, 3);
    }

    /// The libraries work with Debian's musl.
    #[test]
    fn musl() {
        if !is_root("change the root directory") {
            return;
        }
        let home = home();
        let tree = unpack(&archive("-x86_64-linux-musl"), &home);
        assert_libraries(&tree, "x86_64-linux-musl");
        let target = ["--print", "target-libdir", "--target", "x86_64-unknown-linux-musl"];
        let libraries = stdout(&run(Command::new("rustc").args(target)));
        let unwinder = Path::new(libraries.trim()).join("self-contained/libunwind.a");
        fs::copy(unwinder, home.join("libunwind.a")).expect("unwinder");
        let prefix = format!("jitsym-{VERSION}-x86_64-linux-musl");
        profiled(&["older-clean", "clean"], &home, &prefix, "lib", WITH_MUSL, 2);
    }

    /// The libraries for aarch64 work under qemu.
    #[test]
    fn aarch64() {
        let dir = fresh_dir("aarch64");
        for target in ["aarch64-linux-gnu", "aarch64-linux-musl"] {
            let tree = unpack(&archive(&format!("-{target}")), &dir);
            assert_libraries(&tree, target);
            on_aarch64(&tree, target);
        }
    }

    /// The files of the Debian packages work where nothing else is. (tests/packages.rs installs the packages.)
    #[test]
    fn debian_packages() {
        if !is_root("change the root directory") {
            return;
        }
        let home = home();
        for name in PACKAGES {
            let file = made().join(package(name));
            run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(home.join("packages")));
            let maintainer = stdout(&run(Command::new("dpkg-deb").arg("-f").arg(&file).arg("Maintainer")));
            assert_eq!(maintainer, "The libjitsym authors <libjitsym@packages.debian.org>\n");
        }
        let lib = "lib/x86_64-linux-gnu";
        profiled(&["clean"], &home, "packages/usr", lib, WITH_GLIBC, 3);
        assert_frame_pointers(&home.join("packages/usr").join(lib).join("libjitsym.so.0.1"));
    }

    /// The sources build on Debian 12 and 13 without a network, by make and by cargo.
    #[test]
    fn sources() {
        if !is_root("change the root directory") {
            return;
        }
        let make = "make -s -j3 install prefix=/home/built";
        let cargo = "sh scripts/install.sh --prefix=/home/built";
        for (system, command) in [("older-clean", make), ("clean", make), ("clean", cargo)] {
            let home = home();
            fs::rename(unpack(&archive(""), &home), home.join("the sources")).expect("move the sources");
            in_a_clean_system(system, &home, &format!("cd 'the sources'; {command}"));
            profiled(&[system], &home, "built", "lib", WITH_GLIBC, 3);
            assert_frame_pointers(&home.join("built/lib/libjitsym.so.0.1"));
        }
    }

    /// Conan builds the sources, and a program with each of the libraries.
    #[test]
    fn conan() {
        let program = python_env(&["conan==2.34.0"]).join("bin/conan");
        let dir = fresh_dir("conan");
        let tree = unpack(&archive(""), &dir);
        let conan = |arguments: &[&str]| {
            let mut conan = consumer(&program);
            conan.current_dir(&tree).env("CONAN_HOME", dir.join("home")).env("CARGO_NET_OFFLINE", "true");
            // Quick to build: no library of these is measured. Both packages are made of one build.
            conan.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
            run(conan.env("CARGO_TARGET_DIR", dir.join("target")).env("JITSYM_PROGRAM", tool()).args(arguments))
        };
        conan(&["profile", "detect"]);
        for (option, shared) in [("jitsym/*:shared=True", true), ("jitsym/*:shared=False", false)] {
            // It runs a program with the package.
            conan(&["create", "packaging/conan", "--no-remote", "-o", option]);
            let test = tree.join("packaging/conan/test_package/build");
            let found = stdout(&run(Command::new("find").arg(&test).args(["-type", "f", "-name", "program"])));
            assert_linked(Path::new(found.trim()), shared);
            fs::remove_dir_all(test).expect("the program");
        }
    }

    /// Programs are linked with an archive for aarch64, and run under qemu.
    fn on_aarch64(tree: &Path, target: &str) {
        let tree = Tree { root: spaceless(tree), prefix: "/", libdir: "/lib", includedir: "/include" };
        let words = |package: &str| -> Vec<String> {
            let mut command = consumer("pkg-config");
            command.env("PKG_CONFIG_PATH", tree.lib("pkgconfig")).args(["--cflags", "--libs", package]);
            stdout(&run(&mut command)).split_whitespace().map(str::to_owned).collect()
        };
        let gcc = strings(&["aarch64-linux-gnu-gcc"]);
        let (compiler, programs) = if target.ends_with("gnu") {
            let rpath = format!("-Wl,-rpath,{}", tree.path("/lib").display());
            let whole = [words("jitsym-static"), strings(&["-static"])].concat();
            (gcc, vec![[words("jitsym"), vec![rpath]].concat(), words("jitsym-static"), whole])
        } else {
            let zig = strings(&[fetched("zig").to_str().expect("UTF-8"), "cc", "-target", target, "-static"]);
            // zig does not know `-l:`.
            let library = tree.lib("libjitsym.a").display().to_string();
            let named = words("jitsym-static").into_iter();
            let named = named.map(|word| if word == "-l:libjitsym.a" { library.clone() } else { word });
            (zig, vec![named.chain(strings(&["-lunwind"])).collect()])
        };
        for (number, words) in programs.iter().enumerate() {
            let files = fresh_dir(format!("{target}-{number}"));
            let program = files.join("hello");
            let mut compile = consumer(&compiler[0]);
            compile
                .args(&compiler[1..])
                .env("ZIG_GLOBAL_CACHE_DIR", files.join("zig"))
                .env("ZIG_LOCAL_CACHE_DIR", files.join("zig"));
            run(compile.arg(root().join("c-tests/consumers/hello.c")).arg("-o").arg(&program).args(words));
            let mut qemu = consumer(fetched("qemu-aarch64"));
            run(qemu.args(["-L", "/usr/aarch64-linux-gnu"]).arg(&program).arg(&files));
            assert_eq!(checker::assert_all_sound(&files, &[]), 1, "{target} {number}");
        }
        let version = stdout(&run(consumer(fetched("qemu-aarch64")).arg(tree.path("/bin/jitsym")).arg("version")));
        assert_eq!(version, format!("jitsym {VERSION}\n"));
    }

    /// The newest version of each symbol set that a library needs, by the name before the underscore.
    fn versions(library: &Path) -> BTreeMap<String, Vec<u32>> {
        let output =
            stdout(&run(Command::new("readelf").env("LC_ALL", "C").args(["-W", "--version-info"]).arg(library)));
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
        if machine == "X86-64" {
            assert_frame_pointers(&shared);
        }
        let files = [
            "include/jitsym.h",
            "lib/cmake/jitsym/jitsymConfig.cmake",
            "share/bash-completion/completions/jitsym",
            "share/doc/jitsym/LICENSES-CRATES",
            "share/doc/jitsym/jitsym.cdx.json",
            "share/man/man1/jitsym.1",
            "share/man/man3/jitsym_register.3",
        ];
        for file in files {
            assert!(tree.join(file).is_file(), "{target}: {file}");
        }
    }
}
