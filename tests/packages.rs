//! The ways to get at the library beside `scripts/install.sh`: cargo-c, Debian packages, and other build systems that find it
//! where it is installed, or build it with themselves.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::installed::*;
use crate::pages;
use crate::support::{checker, fetched, fresh_dir, is_root, root, run, stdout};

fn file_names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// `cargo cinstall` lays down the same files, the program left out, and they can be moved and used. (The cargo-c of Debian 13,
/// with the toolchain that builds everything else.)
#[test]
fn cargo_c() {
    let stage = fresh_dir("cargo-c").join("first place");
    let mut cinstall = Command::new(fetched("cargo-cinstall"));
    cinstall.current_dir(root()).args(["cinstall", "--locked", "--release"]);
    cinstall.args(["--prefix", "/usr", "--libdir", "/usr/lib", "--destdir"]).arg(&stage);
    // Quick to build: no library of these is measured.
    cinstall.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "8");
    cinstall.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    run(cinstall.arg("--target-dir").arg(root().join("target/cargo-c")));
    let moved = stage.with_file_name("moved");
    fs::rename(&stage, &moved).expect("move the tree");

    let usr = moved.join("usr");
    let version = env!("CARGO_PKG_VERSION");
    let shared = format!("libjitsym.so.{version}");
    let libraries = ["libjitsym.a", "libjitsym.so", "libjitsym.so.0.1", &shared, "pkgconfig"];
    assert_eq!(file_names(&usr.join("lib")), libraries);
    for header in file_names(&root().join("include")) {
        let read = |dir: &Path| fs::read_to_string(dir.join("include").join(&header)).unwrap_or_default();
        assert!(read(&usr) == read(root()), "{header} is another one than that of install.sh");
    }
    assert_eq!(file_names(&usr.join("share/cmake/jitsym")), ["jitsymConfig.cmake", "jitsymConfigVersion.cmake"]);
    let pages = [file_names(&usr.join("share/man/man1")), file_names(&usr.join("share/man/man3"))].concat();
    assert_eq!(pages, pages::pages().into_keys().collect::<Vec<_>>());

    let tree = Tree { root: moved, prefix: "/usr", libdir: "/usr/lib", includedir: "/usr/include" };
    // Its pkg-config file has the prefix in it; pkg-config can be told to go by where it lies.
    let words = |which| tree.pkg_config_words(&["--define-prefix", which]);
    let rpath = format!("-Wl,-rpath,{}", tree.path("/usr/lib").display());
    build_and_run("cargo-c", true, &words("--cflags"), &[words("--libs"), vec![rpath]].concat());

    let build = fresh_dir("cargo-c-cmake");
    let mut configure = consumer("cmake");
    configure.arg("-S").arg(root().join("c-tests/consumers/cmake")).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", tree.path("/usr").display())));
    run(consumer("cmake").arg("--build").arg(&build));
    run(consumer("ctest").current_dir(&build).args(["--output-on-failure", "--no-tests=error"]));
    assert_linked(&build.join("hello_c_shared"), true);
}

/// Another project builds the library with itself. What it builds is what is installed, so cargo has it already.
#[test]
fn cmake_from_source() {
    for (how, options, shared) in [("subdirectory", None, true), ("fetch", Some("-DBUILD_SHARED_LIBS=OFF"), false)] {
        let build = fresh_dir(format!("source-{how}"));
        let mut configure = consumer("cmake");
        configure.arg("-S").arg(root().join("c-tests/consumers/fetch")).arg("-B").arg(&build);
        configure.arg(format!("-DHOW={how}")).arg(format!("-DSOURCE={}", root().display())).args(options);
        configure.arg(format!("-DJITSYM_TARGET_DIR={}", root().join("target").display()));
        run(configure.arg(format!("-DJITSYM_CARGO={}", env!("CARGO"))));
        run(consumer("cmake").arg("--build").arg(&build));
        run(consumer("ctest").current_dir(&build).args(["--output-on-failure", "--no-tests=error"]));
        for (program, shared) in [("hello_shared", true), ("hello_static", false), ("hello_jitsym", shared)] {
            assert_linked(&build.join(program), shared);
        }
        // Another build finds nothing to do.
        let again = stdout(&run(consumer("cmake").arg("--build").arg(&build)));
        assert!(!again.contains("Linking"), "{again}");
    }
}

/// `cmake --install` of the project itself is `scripts/install.sh`.
#[test]
fn cmake_installs() {
    let build = fresh_dir("cmake-install");
    let mut configure = consumer("cmake");
    configure.arg("-S").arg(root()).arg("-B").arg(&build).arg("-DCMAKE_INSTALL_LIBDIR=lib");
    configure.arg(format!("-DJITSYM_TARGET_DIR={}", root().join("target").display()));
    run(configure.arg(format!("-DJITSYM_CARGO={}", env!("CARGO"))));
    let stage = build.join("stage");
    let mut install = consumer("cmake");
    install.env("DESTDIR", &stage).args(["--install"]).arg(&build).args(["--prefix", "/opt/jit"]);
    run(built(&mut install));
    assert_eq!(file_names(&stage.join("opt/jit")), ["bin", "include", "lib", "share"]);
    assert!(stage.join("opt/jit/lib/libjitsym.a").is_file());
}

#[test]
fn meson() {
    let tree = plain();
    let build = fresh_dir("meson");
    let mut setup = consumer("meson");
    setup.arg("setup").arg("--pkg-config-path").arg(tree.lib("pkgconfig"));
    setup.arg("--cmake-prefix-path").arg(tree.path(tree.prefix));
    run(setup.arg(&build).arg(root().join("c-tests/consumers/meson")));
    let tested = stdout(&run(consumer("meson").arg("test").arg("-C").arg(&build)));
    assert!(tested.lines().any(|line| line.split_whitespace().eq(["Ok:", "6"])), "{tested}");
    for language in ["c", "cc"] {
        for (kind, shared) in [("shared", true), ("static", false), ("cmake", false)] {
            assert_linked(&build.join(format!("hello_{language}_{kind}")), shared);
        }
    }
}

/// Two plugins, each with the static library inside and with the symbols of it in plain sight, in one program: each goes on
/// with its own copy, or both with one.
#[test]
fn plugins_with_the_static_library() {
    let tree = plain();
    let dir = fresh_dir("plugins");
    let include = format!("-I{}", tree.path(tree.includedir).display());
    let source = |name: &str| root().join("c-tests/consumers").join(name);
    for name in ["one.so", "two.so"] {
        let mut compiler = consumer("gcc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", &include]).arg(source("plugin.c"));
        run(compiler
            .arg("-o")
            .arg(dir.join(name))
            .args(tree.pkg_config_words(&["--static", "--libs-only-L"]))
            .arg("-l:libjitsym.a"));
    }
    let host = dir.join("host");
    run(consumer("gcc").args(["-Wall", "-Wextra", "-Werror"]).arg(source("host.c")).arg("-o").arg(&host).arg("-ldl"));
    for scope in ["local", "global"] {
        let files = fresh_dir(format!("plugins-{scope}"));
        run(consumer(&host).env("JITSYM_DIR", &files).arg(scope).arg(dir.join("one.so")).arg(dir.join("two.so")));
        assert!(checker::assert_all_sound(&files, &[]) > 0);
        let map = file_names(&files).into_iter().find(|name| name.ends_with(".map")).expect("map");
        let map = fs::read_to_string(files.join(map)).expect("map");
        assert!(map.contains(" one\n") && map.contains(" two\n"), "{scope}: {map}");
    }
}

/// Runs a command in a copy of the running system, whose files are those of the machine until somebody changes them. `/mnt` is a
/// directory of the test.
fn in_a_copy_of_the_system(shared: &Path, script: &str) -> String {
    let work = fresh_dir("system");
    // What changes lies in memory, and is gone in the end with the mounts.
    let mounts = "
        mount -t tmpfs none \"$1\"
        mkdir \"$1/upper\" \"$1/work\" \"$1/root\"
        mount -t overlay overlay -o \"lowerdir=/,upperdir=$1/upper,workdir=$1/work\" \"$1/root\"
        mount -t proc proc \"$1/root/proc\"
        mount --bind /dev \"$1/root/dev\"
        mount -t tmpfs none \"$1/root/tmp\"
        mount --bind \"$2\" \"$1/root/mnt\"
        exec chroot \"$1/root\" /bin/sh -euc \"$3\"";
    let mut command = consumer("unshare");
    command.args(["-m", "sh", "-euc", mounts, "sh"]).args([work.as_os_str(), shared.as_os_str()]);
    stdout(&run(command.env("DEBIAN_FRONTEND", "noninteractive").arg(OsStr::new(script))))
}

/// The Debian packages have no fault that Debian's own checker knows, can be installed, used and removed, and leave nothing.
#[test]
fn debian_packages() {
    if !is_root("mount a copy of the system") {
        return;
    }
    let dir = fresh_dir("deb");
    let mut deb = Command::new("sh");
    deb.current_dir("/").arg(root().join("scripts/deb.sh")).arg(&dir).env_remove("CARGO_TARGET_DIR");
    deb.env("DEBFULLNAME", "The libjitsym authors").env("DEBEMAIL", "libjitsym@packages.debian.org");
    run(deb.env("CARGO", env!("CARGO")));
    let version = env!("CARGO_PKG_VERSION");
    let architecture = stdout(&run(Command::new("dpkg").arg("--print-architecture")));
    let packages = ["jitsym", "libjitsym-dev", "libjitsym0.1"];
    let files = packages.map(|name| format!("{name}_{version}-1_{}.deb", architecture.trim()));
    assert_eq!(file_names(&dir), files);

    let mut lintian = consumer("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags", "initial-upload-closes-no-bugs"]);
    run(lintian.args(files.iter().map(|file| dir.join(file))));

    fs::copy(root().join("c-tests/consumers/hello.c"), dir.join("hello.c")).expect("program");
    // One package that is missing is noticed; then all are there, found without being told where.
    let script = "
        find /usr /etc | sort >/tmp/before
        dpkg -i /mnt/libjitsym-dev_*.deb >/tmp/alone 2>&1 || echo 'not alone'
        dpkg -i /mnt/*.deb >/dev/null
        dpkg --audit; dpkg --verify jitsym libjitsym-dev libjitsym0.1
        ldconfig -p | grep -c 'libjitsym.so.0.1 '
        cc /mnt/hello.c $(pkg-config --cflags --libs jitsym) -o /tmp/hello
        cc /mnt/hello.c $(pkg-config --static --libs jitsym | sed 's/-ljitsym/-l:libjitsym.a/') -o /tmp/static
        cc /mnt/hello.c -ljitsym -o /tmp/plain
        for program in hello static plain; do /tmp/$program /tmp; done
        jitsym version
        dpkg -S /usr/share/man/man3/jitsym_register.3.gz
        dpkg --purge jitsym libjitsym-dev libjitsym0.1 >/dev/null
        ldconfig -p | grep jitsym || echo gone
        find /usr /etc | sort | diff /tmp/before -";
    let output = in_a_copy_of_the_system(&dir, script);
    let lines: Vec<&str> = output.lines().filter(|line| !line.starts_with("/tmp/perf-")).collect();
    let page = format!("libjitsym-dev:{}: /usr/share/man/man3/jitsym_register.3.gz", architecture.trim());
    assert_eq!(lines, ["not alone", "1", &format!("jitsym {version}"), &page, "gone"], "{output}");
}
